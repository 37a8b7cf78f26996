"""A Maximisation as a page: its facts, and for each unit what was made, its curve and the strongest examples."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core import display
from whence.core.maximisations import Maximisation
from whence.core.wording import counted
from whence.views.colours import METHODS
from whence.views.content.maximisation import Row, facts, reading, rows
from whence.views.content.scoreboard import Style
from whence.views.pages.charts import Line, line_chart
from whence.views.pages.layout import Part, png, rendered
from whence.views.text import number, printable


@display.fragment.register(Maximisation)
def fragment(m: Maximisation) -> str:
    """The body of its page."""
    given = {"reading": reading(m), "facts": facts(m), "units": [_unit(row) for row in rows(m)]}
    return rendered(Part("maximisation.html", given))


@display.title.register(Maximisation)
def title(m: Maximisation) -> str:
    """The title of its page."""
    units = printable(str(m.targets[0])) if len(m.targets) == 1 else counted(len(m.targets), "unit")
    return f"What excites {units}" + (f" of {printable(m.model)}" if m.model else "")


def _unit(row: Row) -> dict[str, Any]:
    """The values for the template of one unit."""
    said = f"free {number(row.free)}, real {number(row.real)}, {number(row.start)} at the start"
    known = np.isfinite(row.curve)
    curve = Line(np.flatnonzero(known).astype(float), row.curve[known], Style(METHODS[0], 2.2), row.name)
    return {
        "name": row.name,
        "made": _shown(row.made, said),
        "curve": line_chart([curve], "step", "mean target", f"{row.name} by step") if known.any() else None,
        "examples": [_shown(example, number(value)) for example, value in row.examples],
    }


def _shown(example: Any, caption: str) -> dict[str, str]:
    is_picture = isinstance(example, np.ndarray)
    return {
        "picture": png(example) if is_picture else "",
        "text": "" if is_picture else printable(str(example)),
        "caption": caption,
    }
