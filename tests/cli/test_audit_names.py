"""`whence audit DATA --names LIST`."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import whence
from whence.cli import app


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "texts.tsv").write_text("text\nfans of Woody Allen will like it\nwhat a day\n{name} made a film\n")
    (tmp_path / "names.csv").write_text("name,group\nAdam,a\nMary,a\nOscar,b\nDiane,b\n")
    return tmp_path


def test_names_in_place_of_a_name(data: Path) -> None:
    files = [data / name for name in ("n.json", "n.csv", "n.html")]
    saved = [argument for file in files for argument in ("--save", str(file))]
    given = ["--names", str(data / "names.csv"), "--find", "Woody, Diane", "--target", "positive", "-m", "sst2"]
    shown = CliRunner().invoke(app, ["audit", str(data / "texts.tsv"), *given, *saved])
    assert shown.exit_code == 0, shown.output
    assert "does a name move the decision?" in shown.output and "Oscar" in shown.output
    found = whence.NameAudit.load(files[0])
    assert found.sentences == ("fans of {name} Allen will like it", "{name} made a film")
    assert found.originals == ("Woody", "") and str(found.target) == "logit of 'positive'"
    with files[1].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert (
        len(rows) == 8
        and rows[0]["name"] == "Adam"
        and float(rows[0]["output"]) == pytest.approx(found.outputs[0, 0], rel=1e-4)
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--names", "names.csv", "--layers", "3"], "--names exchanges names and edits no attention, so --layers"),
        (["--method", "lrp"], "without --names or --shortcuts no word is looked at, so --method cannot be used"),
        (["--names", "gone.csv"], "there is no table of names 'gone.csv'"),
        (["--names", "names.csv", "--find", "Zoltan", "--target", "awful"], "no label 'awful'|'awful'"),
    ],
)
def test_misuse_is_one_sentence(data: Path, options: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    shown = CliRunner().invoke(app, ["audit", "texts.tsv", "-m", "sst2", *options])
    assert shown.exit_code in (1, 2) and re.search(sentence, shown.output), shown.output
