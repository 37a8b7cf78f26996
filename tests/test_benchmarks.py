"""The tables of benchmarks say what was measured, and what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whence

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
METHODS = ("lrp", "gae", "leave_one_out")
METRICS = ("sign_agreement", "auac")


@pytest.fixture
def signs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script `benchmarks/signs.py`, which imports its neighbour."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import signs

    return signs


def board(methods: tuple[str, ...], values: list[float]) -> whence.Scoreboard:
    """A board of two examples; every method has the same two values by both metrics."""
    shape = (len(methods), len(METRICS), 2)
    unsigned = np.array([[method != "lrp", False] for method in methods])[..., None]
    return whence.Scoreboard(
        methods=methods,
        metrics=METRICS,
        better=("higher", "higher"),
        values=np.where(unsigned, np.nan, np.broadcast_to(values, shape)),
        seconds=np.ones((len(methods), 2)),
        hidden=("mask", "unknown"),
    )


def test_a_table_of_signs_leaves_out_what_has_none_and_what_is_circular(signs: Any) -> None:
    boards = {"planted": [board(METHODS, [0.5, 1.0])]}
    cells = [signs.cell(boards["planted"], method, "sign_agreement") for method in (*METHODS, "rollout")]
    assert cells == ["0.75 [0.50, 1.00]", "no sign", "circular", "-"]
    rows = [line.split("`")[1] for line in signs.table(boards, "Signs", {"planted": "sign_agreement"}) if "`" in line]
    assert "lrp" in rows and not {"gae", "leave_one_out"} & set(rows)
    rows = [line for line in signs.table(boards, "AUAC", {"planted": "auac"}) if "0.75" in line]
    assert len(rows) == 3 and signs.table(boards, "AUAC", {"planted": "auac"})[3] == "| method | planted (2) |"


def test_parts_of_a_run_are_one_table(signs: Any, tmp_path: Path) -> None:
    board(("lrp",), [0.5, 1.0]).save(tmp_path / "sst2-signed.json")
    board(("gae",), [0.25, 0.25]).save(tmp_path / "sst2-unsigned.json")
    found = signs.tables(tmp_path)
    assert "| `lrp` | 0.75 [0.50, 1.00] |" in found and "| `gae` | 0.25 [0.25, 0.25] |" in found
    assert set(signs.methods_of("all")) == {*signs.methods_of("signed"), *signs.methods_of("unsigned")}
    assert "leave_one_out" in signs.methods_of("signed") and "gae" in signs.methods_of("unsigned")
