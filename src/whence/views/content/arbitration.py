"""What every medium says about an Arbitration: what was chosen, and the best candidates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from whence.core.scoreboards import Arbitration, Score
from whence.core.statistics import bootstrap, sign_flips
from whence.core.wording import counted
from whence.views.content.scoreboard import CLOSE, Row, reading_of
from whence.views.text import listed, number, printable

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


def reading(found: Arbitration) -> str:
    """The choice, the candidates that tie with it, and its values by metrics that did not choose."""
    first, *rest = groups(found)
    said = [verdict(found)]
    others = [name for name in first.names if name != found.spec]
    if np.isnan(first.mean):
        said.append(f"{found.metric} is not defined on these examples, so the choice means nothing.")
    elif others:
        said.append(f"Tied with {found.spec} ({number(first.mean)}): {listed(others)}; the first given was taken.")
    close = [name for group in rest for name, p in zip(group.names, group.p, strict=True) if p > CLOSE]
    if close:
        told = f"not told apart from {found.spec} (paired test, p > {CLOSE})"
        said.append(f"{listed(close)} {'is' if len(close) == 1 else 'are'} {told}.")
    held_out = [metric for metric in found.board.metrics if metric != found.metric]
    said += [f"Judged by a metric that did not choose: {reading_of(found.board, metric)}" for metric in held_out[:2]]
    return printable(" ".join(said))


@dataclass(frozen=True)
class Group:
    """Candidates that share a rank: their means are equal, but for rounding."""

    rank: int
    names: tuple[str, ...]
    mean: float
    interval: tuple[float, float] | None  # of the group's first candidate
    p: tuple[float, ...]  # p of each candidate against the best, paired; NaN where the test is not defined


def groups(found: Arbitration) -> list[Group]:
    """All candidates by rank, those with equal means together."""
    values = {name: found.values[number].reshape(-1) for number, name in enumerate(found.candidates)}
    leader = values[found.spec]
    made: list[Group] = []
    for place, (name, mean) in enumerate(found.ranking(), 1):
        own, last = values[name], made[-1] if made else None
        several = (~np.isnan(own - leader)).sum() > 1
        p = sign_flips(leader - own, found.board.seed) if several and place > 1 else float("nan")
        if last and (np.isclose(mean, last.mean, rtol=1e-9, atol=0) or np.isnan([mean, last.mean]).all()):
            made[-1] = replace(last, names=(*last.names, name), p=(*last.p, p))
        else:
            made.append(Group(place, (name,), mean, bootstrap(own, found.board.seed)[1], (p,)))
    return made


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
