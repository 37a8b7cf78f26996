"""The headings of figures of one kind, and the row of generated text that they draw."""

from __future__ import annotations

import numpy as np

from whence.core.results import Attribution, Comparison
from whence.views.content import comparison
from whence.views.content.attribution import ALL_ZERO, facts, of_row, row_names, row_targets
from whence.views.text import largest, number, printable

TOLD = ("warning", "note", "ignored", "without that", "attention")  # facts that every kind of figure says
SIGNS = "blue: for the target; red, underlined: against it; full colour: "
SINKS_IN_GREY = "; grey: an attention sink, which has no colour"
SIZES = "the stronger the colour, the larger the score (no sign); full colour: "


def heading(a: Attribution, row: int | None = None) -> list[str]:
    """Method and target in a line, the numbers in the next, notes below."""
    said = facts(a)
    told = dict(said)
    target = told["target"] if row is None else printable(str(row_targets(a)[row]))
    numbers = [
        (name, of_row(value, row)) for name, value in (("f(x)", a.output), ("base", a.base), ("residual", a.residual))
    ]
    written = [f"{name} {number(v)}" for name, v in numbers if v is not None and np.ndim(v) == 0]
    written += [] if largest(a.scores) else [ALL_ZERO]
    return [
        f"{told['method']} · {target}",
        *([" · ".join(written)] if written else []),
        *(f"{label}: {text}" for label, text in said if label in TOLD),
    ]


def heading_of_comparison(c: Comparison) -> list[str]:
    """The target and f(x) in a line, notes below."""
    told = comparison.facts(c)
    known = dict(told)
    output = f" · f(x) {known['f(x)']}" if "f(x)" in known else ""
    return [
        f"{known['target']}{output}",
        *(f"{label}: {text}" for label, text in told if label in TOLD),
    ]


def chosen_row(a: Attribution, row: int) -> tuple[int | None, list[str]]:
    """The row of generated text that is drawn, None where there are no rows; and lines that say so."""
    if a.scores.ndim == 1:
        if row:
            raise ValueError(f"row names a generated token, and these scores have no rows; leave row={row} out")
        return None, []
    count = len(a.scores)
    if not -count <= row < count:
        raise ValueError(f"row {row} is out of range: there are {count} generated tokens, from 0 to {count - 1}")
    return row % count, [f"generated token {row % count} of 0-{count - 1}: {row_names(a)[row]}"]


def colours_meaning(signed: bool, largest: str) -> str:
    """A line on the meaning of the colours."""
    return (SIGNS if signed else SIZES) + largest
