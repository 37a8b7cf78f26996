"""What changed from one run to the next: the prediction, and the scores of tokens that both inputs have."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import Any

import numpy as np

from whence.core.results import Attribution
from whence.web.jobs import Job


def changes(now: Job, before: Job) -> dict[str, Any]:
    """The predictions of two jobs, and for every method of both the scores of all tokens, side by side."""
    earlier = {found.method: found for found in before.results if isinstance(found, Attribution)}
    pairs = [(found, earlier[found.method]) for found in now.results if getattr(found, "method", None) in earlier]
    return {
        "prediction": {"before": before.about.get("prediction"), "now": now.about.get("prediction")},
        "methods": [
            {
                "method": found.method,
                "target": {"before": str(old.target), "now": str(found.target)},
                "signed": found.signed,
                "tokens": side_by_side(old, found),
            }
            for found, old in pairs
            if found.scores.ndim == old.scores.ndim == 1
        ],
    }


def side_by_side(before: Attribution, now: Attribution) -> list[dict[str, Any]]:
    """The tokens of both inputs in order, each with its score before and now; None in a run without the token."""
    rows: list[dict[str, Any]] = []

    def add(source: Attribution, place: int, old: float | None, new: float | None) -> None:
        special = bool(source.special[place])
        rows.append({"token": source.features[place], "special": special, "before": old, "now": new})

    matcher = SequenceMatcher(None, before.features, now.features, autojunk=False)
    old, new = (np.asarray(found.scores, float) for found in (before, now))
    for _, a, a_end, b, b_end in matcher.get_opcodes():
        if before.features[a:a_end] == now.features[b:b_end]:
            for i, j in zip(range(a, a_end), range(b, b_end), strict=True):
                add(now, j, float(old[i]), float(new[j]))
            continue
        for i in range(a, a_end):
            add(before, i, float(old[i]), None)
        for j in range(b, b_end):
            add(now, j, None, float(new[j]))
    return rows
