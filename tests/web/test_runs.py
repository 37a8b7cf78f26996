"""Runs over data sets in the app: a page of each, which follows it, and no other folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import whence
from whence.runs.folder import RunFolder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "my <b> run"
    texts = ["a good day", "a bad day", "good " * 5000]
    whence.run(whence.Plan(whence.load("planted"), texts, ["random"], ["auac"], chunk=1, folder=path))
    return path


def test_a_run_has_a_page_that_follows_it(folder: Path, tmp_path: Path, serve: Callable[..., Any]) -> None:
    copy = shutil.copytree(folder, tmp_path / "other" / "my <b> run")
    last = RunFolder(copy).files()[-1]
    last.rename(tmp_path / last.name)
    with serve(runs=(folder, copy)) as client:
        listed = {run["run"]: run for run in client.get("/api/runs").json()}
        assert listed["my <b> run"] == {"run": "my <b> run", "state": "finished", "done": 3, "examples": 3}
        assert listed["my <b> run-2"]["state"] == "stopped" and listed["my <b> run-2"]["done"] == 2
        page = client.get("/runs/my <b> run")
        assert page.status_code == 200 and "3 of 3 examples done" in page.text and "1 failed" in page.text
        assert "my <b> run" not in page.text and "refresh" not in page.text
        with RunFolder(copy).held():
            assert 'http-equiv="refresh"' in client.get("/runs/my <b> run-2").text
        (tmp_path / last.name).rename(last)
        assert "3 of 3 examples" in client.get("/api/runs/my <b> run-2/fragment").text
        assert client.get("/runs").text.count("<li>") == 2


def test_only_the_runs_that_were_named_are_read(folder: Path, serve: Callable[..., Any]) -> None:
    with serve() as client:
        assert "No run was named" in client.get("/runs").text and client.get("/api/runs").json() == []
        for name in (folder.name, "..", "%2e%2e%2f", "a" * 90):
            answer = client.get(f"/api/runs/{name}/fragment")
            assert answer.status_code == 404 and "error" in answer.json()
