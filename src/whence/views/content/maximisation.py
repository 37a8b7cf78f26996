"""What every medium says about a Maximisation: its facts, and a row per unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.core.maximisations import Maximisation
from whence.views.content.attribution import Facts
from whence.views.text import listed, number, printable

MARKS = "▁▂▃▄▅▆▇█"
HEADS = ("unit", "at the start", "free", "real", "best example", "on the way")


@dataclass(frozen=True)
class Row:
    """A unit, what was made for it, and the examples that excite it most."""

    name: str
    made: Any
    start: float
    free: float
    real: float
    curve: np.ndarray
    examples: list[tuple[Any, float]]

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as `HEADS` name it."""
        best = number(self.examples[0][1]) if self.examples else "-"
        return self.name, number(self.start), number(self.free), number(self.real), best, sparks(self.curve)


def reading(m: Maximisation) -> str:
    """How much each made input excites its unit, compared with the start of the search and the given examples."""
    thing = "picture" if _pictures(m) else "text"
    known = [row for row in rows(m) if np.isfinite([row.start, row.real]).all()]
    if not known:
        return "The targets are not finite, so nothing can be said of what was made."
    if len(m.targets) == 1:
        row = known[0]
        how = "raises" if row.real > row.start else "does not raise"
        said = (
            f"The {thing} that was made {how} the {row.name}: {number(row.start)} at the start, {number(row.real)} now."
        )
    else:
        risen = sum(row.real > row.start for row in known)
        said = (
            f"{risen} of {len(m.targets)} {thing}s that were made excite their unit more than the start of the search."
        )
    shown = [row for row in known if row.examples]
    above = sum(row.real > row.examples[0][1] for row in shown)
    if shown and len(m.targets) == 1:
        best = number(shown[0].examples[0][1])
        said += f" The strongest of the given examples reaches {best}."
    elif shown:
        said += f" {above} of {len(shown)} excite it more than any of the given examples."
    lost = [row for row in known if row.free > row.start and row.real - row.start < 0.5 * (row.free - row.start)]
    if lost:
        units = listed([row.name for row in lost])
        said += f" Turning what was searched into a {thing} lost more than half of the gain of {units}."
    return said


def facts(m: Maximisation) -> Facts:
    """What every medium says before it shows units, printable."""
    kind = "picture of 8 bits a colour" if _pictures(m) else "text of the nearest words"
    found = [
        ("model", m.model),
        ("steps", str(m.curves.shape[1])),
        ("free", "the target of what the search ended with"),
        ("real", f"the target of the {kind} that it was turned into"),
    ]
    found += [("note", note) for note in m.notes]
    return [(label, printable(text)) for label, text in found]


def rows(m: Maximisation) -> list[Row]:
    """A row per unit."""
    found = []
    for n, target in enumerate(m.targets):
        shown = m.examples[n] if m.examples else ()
        values = [] if m.excited is None else m.excited[n].tolist()
        numbers = (float(m.start[n]), float(m.free[n]), float(m.real[n]))
        found.append(
            Row(printable(str(target)), m.made[n], *numbers, m.curves[n], list(zip(shown, values, strict=True)))
        )
    return found


def sparks(curve: np.ndarray, width: int = 16) -> str:
    """The curve in small bars, from its lowest value to its highest."""
    means = np.array([part.mean() for part in np.array_split(curve, min(width, len(curve)))])
    low, high = means.min(), means.max()
    levels = (means - low) / (high - low) if high > low else np.zeros_like(means)
    return "".join(MARKS[round(float(level) * (len(MARKS) - 1))] for level in levels)


def _pictures(m: Maximisation) -> bool:
    return isinstance(m.made[0], np.ndarray)
