"""What the documentation says is what the registry knows."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

import whence
from whence.cli import app

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
