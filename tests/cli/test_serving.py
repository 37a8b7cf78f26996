"""`whence serve`: what it refuses before it listens."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from whence.cli import app


def refused(*words: str) -> str:
    """The one line that the command says when it fails."""
    found = CliRunner().invoke(app, ["serve", *words])
    assert found.exit_code == 1, found.output
    assert found.stderr.startswith("error: ") and found.stderr.count("\n") == 1
    return found.stderr


@pytest.mark.parametrize("package", ["fastapi", "uvicorn"])
def test_a_missing_package_is_said_with_the_command_that_brings_it(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == package else found(name, *rest)
    )
    assert f"whence serve needs {package}" in refused() and "pip install whence[web]" in refused()


def test_other_machines_are_let_in_only_on_demand() -> None:
    assert "--allow-remote" in refused("--host", "0.0.0.0")


def test_a_folder_without_a_model_is_said(tmp_path: Path) -> None:
    assert "has no config.json" in refused("--model", str(tmp_path))


def test_options_reach_the_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from whence.web import server

    called: dict[str, Any] = {}
    monkeypatch.setattr(server, "serve", lambda models, **given: called.update(models=models, **given))
    words = ["--model", str(tmp_path), "--port", "9", "--seconds", "7", "--open", "--allow-remote"]
    assert CliRunner().invoke(app, ["serve", *words, "--allow-host", "lab"]).exit_code == 0
    called["ready"]("http://127.0.0.1:9/")
    assert (called["models"], called["port"], called["limits"].seconds) == ([tmp_path], 9, 7)
    assert called["open_page"] and called["remote"] and called["hosts"] == ["lab"] and called["host"] == "127.0.0.1"
