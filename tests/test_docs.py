"""What the documentation says is what the registry knows."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

import whence
from whence.cli import app
from whence.core import papers
from whence.core.files import PICTURES

ROOT = Path(__file__).parents[1]


def test_the_table_of_methods_is_the_registrys() -> None:
    table = CliRunner().invoke(app, ["methods", "--markdown"]).stdout.strip()
    assert table in (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


def test_every_method_that_hands_down_relevance_tells_of_patents() -> None:
    for record in whence.list_methods():
        if record.family == "relevance":
            assert "patented" in (record.function.__doc__ or "")
    assert "patent" in (ROOT / "NOTICE").read_text(encoding="utf-8")


def test_the_readme_names_every_method() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [record.name for record in whence.list_methods() if f"`{record.name}`" not in text] == []


def test_every_paper_can_be_cited() -> None:
    records = [*whence.list_methods(), *whence.list_metrics(), *whence.list_experiments()]
    cited = {record.paper: record.bibtex for record in records if record.paper}
    assert all(all(f"{field} = {{" in entry for field in ("title", "author", "year")) for entry in cited.values())
    assert all(number.removeprefix("arXiv:") in cited[number] for number in cited if number.startswith("arXiv:"))
    assert set(papers.entries()) == set(cited)


def test_a_paper_that_is_not_known_is_cited_by_its_number() -> None:
    assert papers.bibtex("arXiv:9999.12345").startswith("@misc{arxiv999912345,\n  eprint = {9999.12345}")
    assert papers.bibtex("doi:10.1/x") == "@misc{doi101x,\n  doi = {10.1/x}\n}"
    assert papers.bibtex("") == ""


def test_the_command_prints_papers() -> None:
    assert "Gur, Shir" in CliRunner().invoke(app, ["methods", "gae", "--bibtex"]).stdout
    everything = CliRunner().invoke(app, ["methods", "--bibtex"]).stdout
    assert everything.count("@inproceedings{abnar2020quantifying") == 1  # of rollout and flow
    assert "Petsiuk" in CliRunner().invoke(app, ["metrics", "insertion", "--bibtex"]).stdout


def commands_on_pictures() -> list[str]:
    """The commands of README and docs that read a picture."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]
    lines = [line for text in texts for line in re.findall(r"^\$ whence (.*)$", text, re.MULTILINE)]
    words = {line: shlex.split(line, comments=True) for line in lines}
    return [
        line
        for line, own in words.items()
        if any(word.endswith(PICTURES) and before != "--save" for before, word in zip(["", *own], own, strict=False))
    ]


def test_there_are_commands_on_pictures() -> None:
    assert len(commands_on_pictures()) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("command", commands_on_pictures())
def test_a_command_on_a_picture_runs_as_it_is_written(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["samples"]).exit_code == 0
    words = shlex.split(command, comments=True)
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    written = [word for before, word in pairwise(words) if before == "--save"]
    assert all(Path(name).stat().st_size > 1000 for name in written)
