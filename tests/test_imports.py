"""`import whence` is light, and no module hides a public name."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from types import ModuleType

import pytest

import whence

HEAVY = ("torch", "transformers", "matplotlib", "jinja2", "tokenizers", "scipy", "PIL", "pandas", "pyarrow", "typer")


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    found = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout.strip()


def modules() -> list[str]:
    """All modules of the package; `__main__` is the command, which runs when it is imported."""
    found = [module.name for module in pkgutil.walk_packages(whence.__path__, "whence.")]
    return [name for name in found if not name.endswith("__main__")]


def test_import_loads_nothing_heavy() -> None:
    loaded = run("import sys, whence; whence.__version__; dir(whence); print(*sys.modules)").split()
    assert "whence" in loaded
    assert not set(HEAVY) & set(loaded)


def test_help_loads_nothing_heavy() -> None:
    """`whence --help` answers at once: the command imports a model's libraries only when it explains something."""
    code = """
import sys
from whence.cli import main
sys.argv = ["whence", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code
print("loaded:", *sys.modules)
"""
    help_text, _, loaded = run(code).partition("loaded:")
    assert "explain" in help_text and "typer" in loaded.split()
    assert not {"torch", "transformers", "matplotlib", "jinja2", "scipy", "pandas"} & set(loaded.split())


def test_results_load_without_torch() -> None:
    """A saved attribution is read where torch is not wanted."""
    loaded = run("import sys, whence; whence.Attribution.load; whence.Comparison; print(*sys.modules)").split()
    assert not {"torch", "transformers", "matplotlib", "jinja2"} & set(loaded)


def test_no_module_hides_a_public_name() -> None:
    """A module's first import sets an attribute of its name on the package, which would hide a function."""
    code = """
import importlib, pkgutil, whence
first = {name: getattr(whence, name) for name in whence.__all__}
for module in pkgutil.walk_packages(whence.__path__, "whence."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
assert all(getattr(whence, name) is first[name] for name in whence.__all__)
print(*[name for name in whence.__all__ if not callable(getattr(whence, name))])
"""
    assert run(code) == ""


def test_every_public_name_is_fetched_twice() -> None:
    for name in modules():
        importlib.import_module(name)
    for name in whence.__all__:
        first, second = getattr(whence, name), getattr(whence, name)
        assert first is second and callable(first) and not isinstance(first, ModuleType)
        assert first.__name__ == name


def test_no_module_bears_a_public_name() -> None:
    assert len(modules()) > 10
    tops = {name.split(".")[1] for name in modules()}
    assert not tops & {name for name in whence.__all__}


def test_dir_lists_what_there_is() -> None:
    assert set(whence.__all__) <= set(dir(whence))
    assert "__version__" in dir(whence) and dir(whence) == sorted(set(dir(whence)))


def test_star_import_gives_the_public_names() -> None:
    scope: dict[str, object] = {}
    exec("from whence import *", scope)
    assert set(whence.__all__) == set(scope) - {"__builtins__"}


@pytest.mark.parametrize("name", ["explian", "torch", "_hidden"])
def test_an_unknown_attribute_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'whence' has no attribute '{name}'"):
        getattr(whence, name)
