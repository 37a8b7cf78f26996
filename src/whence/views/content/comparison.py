"""What every medium says about a Comparison: its facts, its tables, and what stands below each method's column."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from whence.core.results import Comparison
from whence.views.content import attribution, intervention
from whence.views.content.attribution import ALL_ZERO, Facts, of_row, off_picture, row_names
from whence.views.text import largest, number, printable


def shown(c: Comparison) -> Comparison:
    """The comparison with the scores that views show."""
    return Comparison(tuple(map(attribution.shown, c)))


def facts(c: Comparison) -> Facts:
    """What every medium says before it shows scores, printable; a note that all methods share is said once."""
    found = [("target", attribution.target_text(c[0]))]
    if c[0].scores.ndim == 1:
        found.append(("f(x)", number(c[0].output)))
    found += intervention.facts(c[0])
    found.append(("scale", scale_note(c)))
    if unsigned(c):
        found.append(("no sign", f"{unsigned(c)}: colour tells how much, neither for nor against"))
    shared = [note for note in c[0].notes if all(note in a.notes for a in c)]
    found += [("note", note) for note in shared]
    for a in c:
        kept = (fact for fact in attribution.facts(a) if fact[0] in ("warning", "note") or fact[1] == ALL_ZERO)
        own = [(label, text) for label, text in kept if text not in shared]
        found += [(label if label != "scale" else "warning", f"{a.method}: {text}") for label, text in own]
    return [(label, printable(text)) for label, text in found]


def scale_note(c: Comparison) -> str:
    """A sentence that every method has its own scale, with the largest score of each."""
    scales = ", ".join(f"{a.method} {number(largest(a.scores))}" for a in c)
    what = "order and sign" if any(a.signed for a in c) else "order"
    return f"Each method has its own scale: compare {what}, not size. Largest |score|: {scales}."


def unsigned(c: Comparison) -> str:
    """The methods whose signs are not shown, by name, beside others whose signs are; "" where all are alike."""
    names = [a.method for a in c if not a.signed]
    return ", ".join(names) if len(names) < len(c) else ""


def tables(c: Comparison) -> list[tuple[str, int | None, list[np.ndarray], list[int]]]:
    """Per table: its title, its generated row, every method's scores, and the features to show."""
    others = off_picture(c[0])
    if c[0].scores.ndim == 1:
        return [("", None, [a.scores for a in c], others)] if others else []
    return [
        (name, row, [a.scores[row] for a in c], [i for i in others if any(a.visible[row, i] for a in c)])
        for row, name in enumerate(row_names(c[0]))
    ]


def footer(c: Comparison, row: int | None) -> Iterator[tuple[str, list[str]]]:
    """What stands below every method's column."""
    scores = [of_row(a.scores, row) for a in c]
    yield "sum", [number(s.sum()) for s in scores]
    for label, name in (("base", "base"), ("residual", "residual"), ("f(x)", "output")):
        values = (of_row(getattr(a, name), row) for a in c)
        yield label, ["none" if value is None else number(value) for value in values]
    yield "largest |score|", [number(largest(s)) for s in scores]
