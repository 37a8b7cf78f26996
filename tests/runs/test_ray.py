"""Runs on a real Ray cluster of this machine: the same bits as here, and nothing lost when processes are killed.

A cluster takes seconds to start and gigabytes of address space, so these tests hold a lock and run one after the other,
also where pytest runs tests in several processes.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import kills
import whence
from whence.core.locking import locked

TIMEOUT = 240  # seconds after which a run counts as one that hangs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed; pip install whence[ray]"),
]


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """One test with a cluster at a time."""
    with locked(Path(tempfile.gettempdir()) / "whence-tests-ray.lock", wait=True):
        yield


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return kills.written_data(tmp_path / "data.jsonl", 32)


def test_two_ray_workers_give_the_same_rows_as_the_local_engine(data: Path, tmp_path: Path) -> None:
    plan = whence.Plan("planted", data, kills.METHODS.split(","), ["auac"], chunk=4, folder=tmp_path / "here")
    here = whence.run(plan, threads=1)
    line = kills.command(data, tmp_path / "there", "ray")
    done = subprocess.run([*line, "--metric", "auac"], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    assert "32 of 32" in done.stdout and "ray, 2 workers" in done.stdout
    tally = kills.Tally("ray")
    kills.compared(tmp_path / "there", tmp_path / "here", tally)
    assert (tally.lost, tally.doubled, tally.different) == (0, 0, 0) and len(here) == 64
    assert not list((tmp_path / "there" / "staging").iterdir())


def test_killed_workers_and_drivers_lose_nothing(data: Path, tmp_path: Path) -> None:
    plan = whence.Plan("planted", data, kills.METHODS.split(","), chunk=4, folder=tmp_path / "here")
    whence.run(plan, threads=1)
    tally = kills.disturbed(data, tmp_path / "killed", "ray", 2, seed=4)
    kills.compared(tmp_path / "killed", tmp_path / "here", tally)
    assert tally.kills_of_driver + tally.kills_of_worker == 2
    assert (tally.lost, tally.doubled, tally.different) == (0, 0, 0)


def test_what_workers_cannot_do_is_told_in_a_sentence(data: Path, tmp_path: Path) -> None:
    """A model that ends its worker, a method that does not fit; in processes of their own, as a user has."""
    for changes, options, message in (
        ({"model": "os:abort"}, "engine='ray'", "workers died while they read the model"),
        ({"methods": ["grad_cam"]}, "engine='ray'", "grad_cam works on"),
    ):
        plan = replace(whence.Plan("planted", data, ["random"], folder=tmp_path / f"run{len(message)}"), **changes)
        script = (
            "import json, whence\n"
            f"plan = whence.Plan.from_dict(json.loads({_json(plan)!r}))\n"
            f"try:\n    whence.run(plan, {options})\nexcept ValueError as error:\n    print('told', error)\n"
        )
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        assert "told" in done.stdout and message in done.stdout, (done.stdout, done.stderr[-1000:])


def _json(plan: Any) -> str:
    import json

    return json.dumps(plan.to_dict())
