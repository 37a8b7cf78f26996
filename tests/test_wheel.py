"""The wheel works without the source tree: it holds every file, and the demo runs from it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import whence

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "whence"


def run(*command: object, cwd: Path) -> str:
    """What a command prints, run where neither the source tree nor its modules are in sight."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, cwd=cwd, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built by the hatchling that is installed, so that no network is needed."""
    folder = tmp_path_factory.mktemp("wheel")
    quietly = ["-qq", "--disable-pip-version-check"]
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        *quietly,
        "--no-deps",
        "--no-build-isolation",
        "-w",
        folder,
        ROOT,
        cwd=folder,
    )
    (built,) = folder.glob("whence-*.whl")
    return built


@pytest.fixture
def python(wheel: Path, tmp_path: Path) -> Path:
    """The Python of a new environment that holds the wheel alone.

    Third-party packages are read from the environment of the tests: a .pth file adds that folder to the search path
    but does not follow the .pth files inside it, and one of those is what makes the source tree importable.
    """
    folder = tmp_path / "environment"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    quietly = ["-qq", "--disable-pip-version-check"]
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", *quietly, "--no-deps", "--no-index", wheel),
        cwd=tmp_path,
    )
    own = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (own / "third_party.pth").write_text("\n".join(others), encoding="utf-8")
    return python


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    """Weights, cards, templates and stylesheets are read from the package's folder when it runs."""
    files = [path for path in SOURCES.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    wanted = {path.relative_to(SOURCES.parent).as_posix() for path in files}
    assert any(name.endswith(".safetensors") for name in wanted)
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    assert {name for name in names if name.startswith("whence/")} == wanted
    others = {name.partition(".dist-info/")[2] for name in names if not name.startswith("whence/")}
    assert {"METADATA", "entry_points.txt", "licenses/LICENSE", "licenses/NOTICE"} <= others


def test_the_demo_runs_from_the_wheel(python: Path, tmp_path: Path) -> None:
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    assert Path(run(python, "-c", "import whence; print(whence.__file__)", cwd=empty).strip()).is_relative_to(tmp_path)
    cards = "import whence; print(*[name for name in whence.zoo.names() if whence.zoo.card(name)['size_mb'] > 0])"
    assert run(python, "-c", cards, cwd=empty).split() == list(whence.zoo.names())

    shutil.copy(ROOT / "examples" / "demo.py", empty)
    printed = run(python, "demo.py", cwd=empty)
    assert "integrated_gradients" in printed
    page = (empty / "out" / "demo.html").read_text(encoding="utf-8")
    assert "integrated_gradients" in page and re.search(r"<style>\s*\S", page)


def test_the_command_runs_from_the_wheel(python: Path, tmp_path: Path) -> None:
    command = python.with_name("whence")
    assert run(command, "--version", cwd=tmp_path).startswith("whence ")
    run(command, "explain", "a great film", "--method", "gae", "--save", "result.json", cwd=tmp_path)
    assert "great" in (tmp_path / "result.json").read_text(encoding="utf-8")
