"""The documentation agrees with the registry, and its commands and code run."""

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
    records = [*whence.list_methods(), *whence.list_metrics(), *whence.list_experiments(), *whence.list_losses()]
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


def pages() -> list[Path]:
    """README and all pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def commands() -> list[str]:
    """The commands of README and of the guides, and those of other pages that read a sample."""
    found: dict[str, None] = {}
    for path in pages():
        for line in re.findall(r"^\$ whence (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
            words = shlex.split(line, comments=True)
            reads = {word for before, word in pairwise(["", *words]) if before not in ("--save", "--html")}
            if path.name == "README.md" or path.parent.name == "guides" or reads & set(whence.zoo.samples()):
                found[shlex.join(words)] = None
    return list(found)


def test_there_are_commands() -> None:
    assert len(commands()) >= 25
    assert [command for command in commands() if "./" in command or "gpt2" in command] == []


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_a_command_runs_as_it_is_written(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["samples"]).exit_code == 0
    words = shlex.split(command)
    if "reviews-run" in words and "--out" not in words:  # what an earlier command of the page wrote
        run = ["run", "reviews.tsv", "--method", "gae", "--limit", "2", "--out", "reviews-run"]
        assert CliRunner().invoke(app, run).exit_code == 0
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    written = [word for before, word in pairwise(words) if before in ("--save", "--html")]
    assert all(Path(name).stat().st_size > 1000 for name in written)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [path for path in pages() if path.parent.name == "guides" or path.stem in ("README", "index")]
)
def test_the_code_of_a_page_runs_as_it_is_written(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)
    assert "print" not in "".join(blocks) or capsys.readouterr().out
    written = re.findall(r"write\(\"([^\"]*)\"", "".join(blocks))
    assert all(Path(name).stat().st_size > 100 for name in written)
