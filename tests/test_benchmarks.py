"""The tables of benchmarks say what was measured, and what cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whence
from families import subject_of
from whence.core import registry

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


@pytest.fixture
def vision(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    known = dict(registry._records["method"])
    import vision

    yield vision
    registry._records["method"].clear()
    registry._records["method"].update(known)  # its baselines are no methods of the package
    monkeypatch.delitem(sys.modules, "vision")


def test_pictures_are_balanced_and_a_run_goes_on_where_it_stopped(vision: Any, tmp_path: Path) -> None:
    subject, file = subject_of("vit"), tmp_path / "lines.jsonl"
    drawn = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    labels = [str(label) for label in subject.labels]
    every = [vision.Photo(f"{n:02}", one, labels[n % 3], (4, 2, 20, 29)) for n, one in enumerate(drawn)]
    photos = vision.balanced(every, 6, seed=1)
    assert sorted(photo.label for photo in photos) == sorted(labels[:3] * 2)
    assert photos[:3] == vision.balanced(every, 3, 1)
    first = vision.measure(subject, photos[:4], "uniform", file)
    assert first["localisation"] == pytest.approx([16 * 27 / 1024] * 4)
    kept = file.read_text(encoding="utf-8")
    found = vision.measure(subject, photos, "uniform", file)
    lines = file.read_text(encoding="utf-8")
    assert lines.startswith(kept) and len(lines.splitlines()) == 6
    assert all(np.array_equal(found[metric][:4], values) for metric, values in first.items())
    a = whence.explain(subject, photos[5].pixels, "uniform", photos[5].label)
    for curve in vision.CURVES:
        assert found[curve][5] == pytest.approx(whence.score(subject, a, curve).value)


def test_a_threshold_is_chosen_over_all_pictures(vision: Any) -> None:
    found = {metric: np.array([n == 3, 0.4, np.nan]) for n, metric in enumerate(vision.OVERLAP)}
    said = vision.best_threshold(found, vision.OVERLAP)
    assert said.startswith("0.70 (") and said.endswith(" at 0.4")
    assert vision.best_threshold(found, vision.OVERLAP, 0.5).startswith("0.50 (")
