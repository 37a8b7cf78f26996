"""What every medium says about a NameAudit: its facts, a row per test of a group, the names in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whence.core.name_audits import MEASURES, NameAudit
from whence.core.wording import counted
from whence.views.colours import METHODS, OTHER_METHODS
from whence.views.content.attribution import Facts
from whence.views.text import largest, printable, signed

HEADS = ("measure", "kind", "group", "names", "difference", "95 %", "effect", "p", "corrected")
MOST = 30  # names at each end that a page or figure shows; a terminal shows fewer


@dataclass(frozen=True)
class NameRow:
    """One name: its groups, the mean of its relevance and of its change over the sentences, and their spread."""

    name: str
    groups: tuple[str, ...]
    relevance: float
    interval: tuple[float, float]  # of the relevance over the sentences: mean and one standard deviation to each side
    change: float
    pieces: float


def reading(found: NameAudit) -> str:
    """What was found, as a sentence."""
    if not np.isfinite(found.outputs).all():
        return "Some outputs are not finite, so nothing can be said of how far names move the decision."
    return printable(f"{found.answer[:1].upper()}{found.answer[1:]}.")


def facts(found: NameAudit) -> Facts:
    """What every medium says before it shows rows, printable."""
    said = [
        ("question", "does a name move the decision?"),
        ("answer", found.answer),
        ("target", str(found.target)),
        ("model", found.model),
        ("names", f"{len(found.names)}, by {' and '.join(found.kinds)}"),
        ("sentences", f"{len(found.sentences)}, in which only the name is exchanged"),
        ("relevance", f"{found.method}: {MEASURES['relevance']}"),
        ("change", MEASURES["change"]),
        ("effect", "the difference in units of the spread of names within groups (Cohen's d)"),
        ("test", "names exchanged between groups, within the groups of the other kinds; Holm's correction"),
    ]
    said += [("note", note) for note in dict.fromkeys(found.notes)]
    return [(label, printable(text)) for label, text in said]


def test_rows(found: NameAudit) -> list[tuple[tuple[str, ...], bool]]:
    """A row per test, as `HEADS` name it, and whether it is significant."""
    rows: list[tuple[tuple[str, ...], bool]] = []
    scale = largest(np.array([test.interval for test in found.tests]))
    for test in found.tests:
        low, high = (signed(end, scale) for end in test.interval)
        cells = (
            *(
                printable(test.measure),
                printable(test.kind),
                printable(test.group),
                f"{test.names} of {test.names + test.others}",
            ),
            *(signed(test.difference, scale), f"{low} to {high}"),
            *("-" if np.isnan(test.effect) else f"{test.effect:+.2f}", f"{test.p:.4f}", f"{test.corrected:.4f}"),
        )
        rows.append((cells, test.corrected < found.level))
    return rows


def name_rows(found: NameAudit) -> list[NameRow]:
    """The names, that with the largest mean relevance first."""
    relevance, change = found.of_names("relevance"), found.of_names("change")
    spread = found.relevance.std(0)
    groups = list(zip(*found.kinds.values(), strict=True))
    return [
        NameRow(
            name=printable(found.names[i]),
            groups=tuple(printable(group) for group in groups[i]),
            relevance=float(relevance[i]),
            interval=(float(relevance[i] - spread[i]), float(relevance[i] + spread[i])),
            change=float(change[i]),
            pieces=float(found.pieces[i]),
        )
        for i in np.argsort(-relevance, kind="stable")
    ]


def at_the_ends(rows: list[NameRow], most: int = MOST) -> tuple[list[NameRow], str]:
    """The names at both ends of the order, and a sentence on those between them that are left out."""
    if len(rows) <= 2 * most:
        return rows, ""
    left_out = counted(len(rows) - 2 * most, "name")
    return rows[:most] + rows[-most:], f"{left_out} between the first and the last {most} are not shown"


def colours(found: NameAudit) -> dict[str, str]:
    """The colour of every group of the first kind."""
    groups = sorted({printable(group) for group in next(iter(found.kinds.values()))})
    return {group: METHODS[i] if i < len(METHODS) else OTHER_METHODS for i, group in enumerate(groups)}
