"""The floors of the house hold: the linter sees imports that go upwards, and only the model floor touches a model."""

from __future__ import annotations

import ast
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "whence"

LONGEST_FUNCTION = 55
LONGEST_FILE = 500

# What a module must not do with a model unless it lives on the model floor.
MODEL_CALLS = {
    "children",
    "get_parameter",
    "get_submodule",
    "modules",
    "named_children",
    "named_modules",
    "named_parameters",
    "parameters",
    "state_dict",
}

# Modules that load others by name. The linter cannot see such imports, so each needs a reason.
LOADERS = {
    "__init__.py": "the public names are resolved on first use",
    "core/extensions.py": "the one loading point of methods, metrics and views",
    "views/__init__.py": "every module of the package registers its views",
    "zoo/__init__.py": "the data of each embedded model is a module of the zoo itself",
    "debate/name_lists.py": "faker has a module per locale",
    "runs/workers.py": "the module of a user's function that makes the model of a run",
    "methods/shapley.py": "shap's rules for text live in a private module of shap",
}


@functools.cache
def parsed() -> list[tuple[str, ast.Module]]:
    """Every source file of the package: its path below the package, and its syntax tree."""
    paths = sorted(SOURCES.rglob("*.py"))
    return [(path.relative_to(SOURCES).as_posix(), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts of pyproject.toml on the package below `folder`."""
    linter = Path(sys.executable).with_name("lint-imports")
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "300"}
    return subprocess.run(
        [str(linter), "--no-cache", "--no-logo", "--config", str(ROOT / "pyproject.toml")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env=environment,
    )


@pytest.fixture
def twin(tmp_path: Path) -> Path:
    """A copy of the package's sources that a test may break."""
    shutil.copytree(
        SOURCES, tmp_path / "whence", ignore=lambda _, names: [n for n in names if "." in n and not n.endswith(".py")]
    )
    return tmp_path


FORMS = {
    "top": "import {0}\n",
    "function": "def hidden() -> object:\n    import {0}\n\n    return {0}\n",
    "types": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import {0}\n",
}


@pytest.mark.parametrize(
    ("floor", "imported", "form"),
    [
        ("core", "whence.model", "function"),
        ("zoo", "whence.views", "function"),
        ("model", "whence.methods", "top"),
        ("model", "whence.methods", "function"),
        ("model", "whence.methods", "types"),
        ("measure", "whence.api", "function"),
        ("cli", "whence.views", "function"),
        ("measure", "whence", "function"),
        ("core", "torch", "function"),
        ("core", "matplotlib", "function"),
    ],
)
def test_the_linter_sees_an_import_that_is_not_allowed(twin: Path, floor: str, imported: str, form: str) -> None:
    (twin / "whence" / floor / "attic.py").write_text(FORMS[form].format(imported), encoding="utf-8")
    found = lint(twin)
    assert found.returncode == 1, found.stdout + found.stderr
    assert f"whence.{floor}.attic -> {imported} (l." in found.stdout


def test_the_linter_sees_a_cycle_that_hides_in_a_function(twin: Path) -> None:
    (twin / "whence" / "core" / "attic.py").write_text("from whence.core import results\n", encoding="utf-8")
    with (twin / "whence" / "core" / "results.py").open("a", encoding="utf-8") as file:
        file.write("\n\ndef hidden() -> object:\n    from whence.core import attic\n\n    return attic\n")
    found = lint(twin)
    assert found.returncode == 1
    assert "Modules of one floor import each other without a cycle BROKEN" in found.stdout


def test_the_linter_wants_a_place_for_a_new_package(twin: Path) -> None:
    (twin / "whence" / "attic").mkdir()
    (twin / "whence" / "attic" / "__init__.py").touch()
    found = lint(twin)
    assert found.returncode == 1
    assert "whence.attic" in found.stdout


def test_only_the_model_floor_touches_a_model() -> None:
    """Everyone else asks the subject, so that what a model lends is given back in one place."""
    found = [f"{path}:{place}" for path, tree in parsed() if not path.startswith("model/") for place in touches(tree)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "code",
    [
        "with lent(self.subject.model): pass",
        "handle = module.register_forward_hook(watch)",
        "for name, module in model.named_modules(): pass",
        "weight = layer.get_submodule('dense').weight",
    ],
)
def test_touching_a_model_is_seen(code: str) -> None:
    assert touches(ast.parse(code))


@pytest.mark.parametrize("code", ["board.model", "sys.modules['whence']", "signature(f).parameters", "subject.modules"])
def test_not_touching_a_model_is_allowed(code: str) -> None:
    assert not touches(ast.parse(code))


def touches(tree: ast.Module) -> list[str]:
    """Where a syntax tree takes the model out of a subject, walks through a model's modules or hooks into them."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
        taken = node.attr == "model" and owner.endswith("subject")
        hooked = node.attr.startswith("register_") and node.attr.endswith("hook")
        walked = node.attr in MODEL_CALLS and id(node) in called
        if taken or hooked or walked:
            found.append((node.lineno, ast.unparse(node)))
    return [f"{line} {text}" for line, text in sorted(found)]


def test_no_function_is_long() -> None:
    found = [
        f"{path}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert not found, "\n".join(found)


def test_no_file_is_long() -> None:
    lines = {path: len((SOURCES / path).read_text(encoding="utf-8").splitlines()) for path, _ in parsed()}
    found = [f"{path}: {n} lines" for path, n in lines.items() if n > LONGEST_FILE]
    assert not found, "\n".join(found)


def test_modules_are_loaded_by_name_in_few_places() -> None:
    """An optional package may be loaded by its own name anywhere; a module of whence only by the loaders."""
    found = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, tree in parsed()
        if path not in LOADERS
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _loads_by_name(node) and not _names_another_package(node)
    ]
    assert not found, "\n".join(found)


def _loads_by_name(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in ("import_module", "__import__")


def _names_another_package(call: ast.Call) -> bool:
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Constant) and not str(first.value).startswith(("whence", "."))
