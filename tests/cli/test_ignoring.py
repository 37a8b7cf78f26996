"""`--ignore` on the command line: every form, what is printed and saved, and that `whence score` applies it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import whence
from whence import cli

TEXT = "an excellent cast in a dull film"


def done(*args: object) -> str:
    """What a command that succeeds prints."""
    result = CliRunner(env={"WHENCE_MODEL": None, "COLUMNS": "100"}).invoke(cli.app, [str(arg) for arg in args])
    assert (result.exit_code, result.exception) == (0, None), result.output
    return result.stdout


def test_words_to_ignore_are_handed_on_and_scored_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    shown = done("explain", TEXT, "-m", "sst2", "--method", "gae", "--ignore", "dull", "--save", file)
    subject = whence.load("sst2")
    expected = whence.explain(subject, TEXT, "gae", ignore="dull")
    assert shown.rstrip() == str(expected).rstrip() and "ignoring ‘dull’" in shown
    saved = whence.Attribution.load(file)
    assert saved == expected and saved.provenance["asked"]["ignore"] == ["dull"]
    assert f"{whence.score(subject, expected, 'auac').value:.4g}" in done(
        "score", file, "--metric", "auac", "-m", "sst2"
    )
    both = done("compare", TEXT, "-m", "sst2", "--method", "gae,lrp", "--ignore", "dull", "--ignore", "cast")
    assert "ignoring ‘cast’ and ‘dull’" in both


def test_other_forms_are_json_and_numbers_of_patches(tmp_path: Path) -> None:
    twice = "a dull film , a dull cast"
    second = done("explain", twice, "-m", "sst2", "--json", "--ignore", '{"word": "dull", "occurrence": 1}')
    assert len(json.loads(second)["input"]["ignored"]) == 1
    span = done("explain", twice, "-m", "sst2", "--json", "--ignore", "[0, 6]")
    assert len(json.loads(span)["input"]["ignored"]) == 2
    done("samples", tmp_path)
    shown = done("explain", tmp_path / "digit.png", "-m", "digits", "--method", "gae", "--json", "--ignore", "7")
    assert json.loads(shown)["input"]["ignored"] == [7]
    assert "attention to this is closed" in done("attention", TEXT, "-m", "sst2", "--ignore", "dull")


@pytest.mark.parametrize("word", ["music", '{"word": 3}'])
def test_a_word_that_is_not_there_is_refused_in_a_line(word: str) -> None:
    result = CliRunner().invoke(cli.app, ["explain", TEXT, "-m", "sst2", "--ignore", word])
    assert result.exit_code == 1 and result.stdout == ""
    assert result.stderr.startswith("error: ") and "ignore" in result.stderr and result.stderr.count("\n") == 1
