"""`whence report`: saved results joined on one page."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from results_by_hand import score_example, scoreboard_example
from whence.cli import app


@pytest.fixture
def saved(tmp_path: Path) -> list[str]:
    """The files of two results."""
    results = {"board": scoreboard_example(), "score": score_example()}
    for name, result in results.items():
        result.save(tmp_path / f"{name}.json")
    return [str(tmp_path / f"{name}.json") for name in results]


def test_a_report_is_written_and_its_contents_are_printed(saved: list[str], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = CliRunner().invoke(app, ["report", *saved, "--html", str(page), "--title", "My model"])
    assert (done.exit_code, done.stdout) == (0, "1. Scoreboard of sst2\n2. Score by auac(fractions=10)\n")
    assert "<title>My model · whence</title>" in page.read_text(encoding="utf-8")


def test_without_a_file_the_results_are_printed(saved: list[str]) -> None:
    done = CliRunner().invoke(app, ["report", *saved])
    assert done.exit_code == 0 and "2. Score by auac(fractions=10)\nauac(fractions=10) = 0.6123" in done.stdout


def test_what_cannot_be_read_or_written_is_said_in_one_line(saved: list[str], tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    calls = {
        1: ([*saved, str(tmp_path / "other.json")], [*saved, str(tmp_path / "none.json")], [str(tmp_path)]),
        2: ([*saved, "--html", "page.txt"], [*saved, "--save", "page.png"], [*saved, "--title", " "], []),
    }
    for code, several in calls.items():
        for arguments in several:
            done = CliRunner().invoke(app, ["report", *arguments])
            assert done.exit_code == code, done.output
            assert (code == 2 and not arguments) or (done.stderr.startswith("error: ") and done.stderr.count("\n") == 1)
