"""A quick round leaves out most of the sweeps, but no method."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import whence

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_a_quick_round_checks_every_method_on_one_family() -> None:
    sweep = "tests/testing/test_checks.py::test_every_method_on_every_family"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--collect-only",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow",
        sweep,
    ]
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert found.returncode == 0, found.stdout + found.stderr
    kept = [line for line in found.stdout.splitlines() if line.startswith(sweep)]
    assert sorted(kept) == sorted(f"{sweep}[bert-{record.name}]" for record in whence.list_methods())
