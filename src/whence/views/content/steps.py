"""The way from base to f(x) as steps, one per strong feature: what a waterfall shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whence.core.results import Attribution
from whence.views.text import printable

STRONGEST = 12  # features with a step of their own


@dataclass(frozen=True)
class Step:
    """One step: from where to where, of which kind ("base", "for", "against", "left" or "output")."""

    name: str
    kind: str
    start: float
    end: float

    @property
    def value(self) -> float:
        """The length of the step, with its sign; for the steps "base" and "output", base and f(x)."""
        return self.end if self.kind in ("base", "output") else self.end - self.start


def steps(a: Attribution) -> list[Step]:
    """Base, the strongest features from the largest |score| on, all others in one, the residual, and f(x)."""
    order = np.argsort(-np.abs(a.scores), kind="stable")
    order = order[a.scores[order] != 0]
    kept = order if len(order) <= STRONGEST + 1 else order[:STRONGEST]
    moves = [(printable(a.features[i]), float(a.scores[i])) for i in kept]
    if len(kept) < len(order):
        moves.append((f"{len(order) - len(kept)} others", float(a.scores[order[len(kept) :]].sum())))
    at = float(a.base)
    found = [Step("base", "base", at, at)]
    for name, score in moves:
        found.append(Step(name, "against" if score < 0 else "for", at, at + score))
        at += score
    if abs(float(a.output) - at) > 1e-6 * max(abs(float(a.output)), float(np.abs(a.scores).max(initial=0))):
        found.append(Step("not explained", "left", at, float(a.output)))
    return [*found, Step("f(x)", "output", float(a.output), float(a.output))]
