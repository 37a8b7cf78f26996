"""What commands write: files of every ending, before anything is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

import whence
from whence import cli
from whence.cli import output
from whence.core import display

PROGRAM = [sys.executable, "-c", "from whence.cli import main; main()"]
TEXT = "the wonderful garden"


def run(*args: object, stdin: str | None = None) -> Any:
    env = {"COLUMNS": "100", "WHENCE_MODEL": None, "FORCE_COLOR": None}
    return CliRunner(env=env).invoke(cli.app, [str(arg) for arg in args], input=stdin)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An attribution and a table of texts, as files."""
    folder = tmp_path_factory.mktemp("data")
    whence.explain(whence.load("planted"), TEXT, "gae").save(folder / "a.json")
    (folder / "texts.csv").write_text(f"text\n{TEXT}\nthe letter\n")
    return {"attribution": folder / "a.json", "table": folder / "texts.csv"}


COMMANDS = {  # the command, what it comes to
    "explain": (["explain", TEXT, "--method", "gae"], "Attribution"),
    "compare": (["compare", TEXT, "--method", "gae,attention"], "Comparison"),
    "attention": (["attention", TEXT, "--layer", 0], "AttentionMaps"),
    "conservation": (["conservation", TEXT], "Conservation"),
    "score": (["score", "ATTRIBUTION", "--metric", "auac"], "Score"),
    "evaluate": (["evaluate", "TABLE", "--method", "gae", "--metric", "auac"], "Scoreboard"),
    "arbitrate": (["arbitrate", TEXT, "--candidates", "gae,random"], "Arbitration"),
}


def arguments(name: str, data: dict[str, Path]) -> list[Any]:
    words = {"ATTRIBUTION": data["attribution"], "TABLE": data["table"]}
    return [words.get(part, part) for part in COMMANDS[name][0]] + ["--model", "planted"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_saves_every_ending_before_it_prints(
    name: str, data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(*args: object, **more: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(output, "print_result", closed)
    if name == "score":
        monkeypatch.setattr("typer.echo", closed)
    kind = getattr(whence, COMMANDS[name][1])
    files = [tmp_path / f"saved{ending}" for ending in display.endings(kind)]
    result = run(*arguments(name, data), *(part for file in files for part in ("--save", file)))
    assert result.exit_code != 0 and result.stdout == ""
    assert all(file.stat().st_size > 50 for file in files)
    assert kind.load(files[0])


@pytest.mark.parametrize("name", COMMANDS)
def test_an_ending_that_does_not_apply_is_refused_before_a_model_is_loaded(
    name: str, data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whence.model.loading.load", None)
    known = ", ".join(display.endings(getattr(whence, COMMANDS[name][1])))
    for ending in (".txt", ".jpg", "", *([".csv"] if name == "attention" else [])):
        result = run(*arguments(name, data), "--save", tmp_path / f"saved{ending}")
        assert result.exit_code == 2 and f"--save writes {known} files here, and" in result.stderr
        assert result.stderr.count("\n") == 1
    if name != "attention":
        wrong = run(*arguments(name, data), "--csv", tmp_path / "saved.html")
        assert wrong.exit_code == 2 and "--csv writes a .csv file, and 'saved.html' was named" in wrong.stderr


def test_a_missing_package_is_told_before_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("whence.model.loading.load", None)
    result = run("explain", TEXT, "--save", tmp_path / "a.png")
    assert result.exit_code == 1 and "needs matplotlib, which is not installed" in result.stderr


def test_html_and_csv_are_short_for_save(tmp_path: Path) -> None:
    one, two = (tmp_path / name for name in ("one", "two"))
    one.mkdir(), two.mkdir()
    assert run("explain", TEXT, "-m", "planted", "--html", one / "a.html", "--csv", one / "a.csv").exit_code == 0
    assert run("explain", TEXT, "-m", "planted", "--save", two / "a.html", "--save", two / "a.csv").exit_code == 0
    for name in ("a.html", "a.csv"):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_scores_of_several_metrics_are_numbered(data: dict[str, Path], tmp_path: Path) -> None:
    shown = run(
        "score", data["attribution"], "-m", "planted", "--metric", "auac,deletion", "--save", tmp_path / "s.json"
    )
    found = [whence.Score.load(tmp_path / f"s-{number}.json") for number in (1, 2)]
    assert [score.metric for score in found] == ["auac", "deletion"]
    assert shown.stdout.splitlines() == [str(score) for score in found]


@pytest.mark.parametrize("command", ["explain", "attention"])
def test_a_reader_who_leaves_loses_no_file(command: str, tmp_path: Path) -> None:
    """As in `whence explain ... | head -1`: all results are on disk although the first line could not be printed."""
    reader, writer = os.pipe()
    os.close(reader)
    args = [command, "-", "--model", "planted", "--save", str(tmp_path / "a.json"), "--save", str(tmp_path / "a.html")]
    lines = "the garden\nthe letter\nthe film\n"
    result = subprocess.run([*PROGRAM, *args], input=lines, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"a-{n}.{ending}" for n in (1, 2, 3) for ending in ("html", "json")
    ]
    kind = {"explain": whence.Attribution, "attention": whence.AttentionMaps}[command]
    assert [kind.load(tmp_path / f"a-{n}.json").input.raw for n in (1, 2, 3)] == lines.splitlines()


def test_the_kind_of_a_figure_is_chosen_and_checked_before_anything_runs(tmp_path: Path) -> None:
    figure = tmp_path / "a.svg"
    common = ["--model", "planted", "--save", figure]
    cases = {
        "explain": (["--method", "leave_one_out", "--figure", "waterfall(most=5)"], "from the base to f(x)"),
        "compare": (["--method", "gae,attention", "--figure", "text"], ">attention</text>"),
        "attention": (["--head", 0, "--figure", "heads"], "queries left, keys right"),
    }
    for command, (options, said) in cases.items():
        done = run(command, TEXT, *common, *options)
        assert done.exit_code == 0, done.output
        assert said in figure.read_text(encoding="utf-8")
    refused = run("explain", TEXT, "--model", "no-such-model", "--save", figure, "--figure", "waterfal")
    assert refused.exit_code == 2 and "did you mean 'waterfall'?" in refused.output
    unsaved = run("explain", TEXT, "--model", "no-such-model", "--figure", "waterfall")
    assert unsaved.exit_code == 2 and "add --save attribution.pdf" in unsaved.output


def test_values_are_printed_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = partial(Console, force_terminal=True, color_system="truecolor", width=100)
    monkeypatch.setattr(output, "Console", terminal)
    command = ["compare", TEXT, "--model", "planted", "--method", "gae,lrp"]
    rows, table = (run(*command, *more).output for more in ([], ["--values"]))
    assert "largest |score|\x1b" not in rows and "--values" in rows
    assert "largest |score|\x1b" in table and "--values" not in table
