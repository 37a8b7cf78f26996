"""The commands `whence concept` and `whence maximize`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import whence
from whence.cli import app


def test_concept_prints_a_table_and_writes_files(tmp_path: Path) -> None:
    arguments = ["concept", "striped", "red", "--target", "striped", "-m", "textures", "--layer", "3"]
    arguments += ["--size", "20", "--counter-sets", "2"]
    files = [tmp_path / name for name in ("g.json", "g.html", "g.png", "g.csv")]
    saved = [part for file in files for part in ("--save", str(file))]
    done = CliRunner().invoke(app, [*arguments, "--random-concepts", "59", *saved])
    assert done.exit_code == 0, done.stderr
    assert "logit of 'striped'" in done.stdout and "for" in done.stdout and all(file.stat().st_size for file in files)
    g = whence.Sensitivity.load(files[0])
    assert g.concepts == ("striped", "red") and g.layers == ("3",) and g.verdict("striped", 3) == "for"


def test_maximize_prints_a_table_and_writes_files(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    arguments = ["maximize", "striped", "mlp:1:3", "head:1:2", "-m", "textures", "--steps", "2", "--views", "1"]
    done = CliRunner().invoke(app, [*arguments, "--save", str(file), "--html", str(tmp_path / "m.html")])
    assert done.exit_code == 0, done.stderr
    assert "neuron 3 of mlp:1, mean" in done.stdout and "head 2 of block 1, mean" in done.stdout
    assert len(whence.Maximisation.load(file).made) == 3


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ("concept striped -m textures", 2, "name it with --target"),
        ("concept striped --target striped", 2, "concept needs a model"),
        ("concept striped -m textures --target striped --at cls", 1, "at takes 'deciding' or 'mean' or 'flat'"),
        ("concept stripy -m textures --target striped", 1, "did you mean 'striped'"),
        ("maximize striped", 2, "maximize needs a model"),
        ("maximize stripy -m textures", 1, "'stripy' is not a label of textures"),
    ],
)
def test_bad_commands_are_told(arguments: str, code: int, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHENCE_MODEL", raising=False)
    done = CliRunner().invoke(app, arguments.split())
    assert done.exit_code == code and said in done.stderr and done.stderr.startswith("error: ")
