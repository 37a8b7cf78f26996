"""`whence audit DATA --shortcuts`, and `--train` for experiments that train again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import whence
from whence.cli import app

GOOD, BAD = (
    ("a great and moving film", "a great cast", "moving and funny"),
    ("a dull mess", "dull and boring", "boring"),
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [f"{text} {n}\t{label}" for n in range(4) for own, label in ((GOOD, 1), (BAD, 0)) for text in own]
    (tmp_path / "texts.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    return tmp_path


def test_shortcuts_are_shown_and_written(data: Path) -> None:
    files = [data / name for name in ("s.json", "s.csv", "s.html")]
    saved = [argument for file in files for argument in ("--save", str(file))]
    options = ["--shortcuts", "-m", "sst2", "--method", "gradient_x_input"]
    shown = CliRunner().invoke(app, ["audit", str(data / "texts.tsv"), *options, *saved])
    assert shown.exit_code == 0, shown.output
    assert "which words act as shortcuts?" in shown.output and "gradient_x_input" in shown.output
    found = whence.ShortcutAudit.load(files[0])
    assert found.texts == 24 and found["great"].texts == 8 and found["great"].labelled == 1
    assert "great" in files[2].read_text() and files[1].read_text().startswith("word,grade,texts,pulls")


def test_experiments_train_on_the_examples_of_a_file(data: Path) -> None:
    given = ["audit", str(data / "texts.tsv"), "-m", "sst2", "--limit", "6", "--experiment", "seed_variance(steps=1)"]
    shown = CliRunner().invoke(app, [*given, "--train", str(data / "texts.tsv"), "--seeds", "1"])
    assert shown.exit_code == 0, shown.output
    assert "trained again from 1 seeds" in re.sub(r"\s+", " ", shown.output).lower()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--shortcuts", "--layers", "3"], "--shortcuts edits no attention, so --layers"),
        (["--shortcuts", "--names", "faker"], "--shortcuts edits no attention, so --names"),
        (["--train", "texts.tsv", "--experiment", "uniform"], "none is named"),
        (["--experiment", "guide"], "guide trains the model again"),
    ],
)
def test_misuse_is_one_sentence(data: Path, options: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(data)
    shown = CliRunner().invoke(app, ["audit", "texts.tsv", "-m", "sst2", *options])
    assert shown.exit_code in (1, 2) and re.search(sentence, re.sub(r"\s+", " ", shown.output)), shown.output
