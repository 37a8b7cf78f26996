"""What every medium says about an Arbitration: what was chosen, and the best candidates."""

from __future__ import annotations

import numpy as np

from whence.core.scoreboards import Arbitration, Score
from whence.core.statistics import bootstrap
from whence.core.wording import counted
from whence.views.content.scoreboard import Row

LISTED = 5  # candidates that are listed


def verdict(found: Arbitration) -> str:
    """What was chosen, in a sentence or two."""
    if found.by == "set" or found.chosen.size == 1:
        return f"{found.metric} chose {found.candidates[found.chosen.flat[0]]} of {len(found.candidates)} candidates."
    counts = np.bincount(found.chosen.ravel(), minlength=len(found.candidates))
    often = found.candidates[int(counts.argmax())]
    each = "input" if found.by == "instance" else "input and label"
    return (
        f"{found.metric} chose for every {each} among {counted(len(found.candidates), 'candidate')}: "
        f"{int((counts > 0).sum())} of them, most often {often} ({counts.max()} of {counts.sum()}). "
        f"One for all would be {found.spec}."
    )


def best(found: Arbitration) -> list[tuple[str, str]]:
    """The best candidates, and their values."""
    return [(name, "-" if np.isnan(value) else f"{value:.4g}") for name, value in found.ranking()[:LISTED]]


def best_rows(found: Arbitration) -> list[Row]:
    """The best candidates by the metric that chose, each with the interval of its mean."""
    rows = []
    for name, mean in found.ranking()[:LISTED]:
        values = found.values[found.candidates.index(name)].reshape(-1)
        interval = bootstrap(values, found.board.seed)[1]
        rows.append(Row(name, Score(found.metric, mean, found.better, values, interval)))
    return rows
