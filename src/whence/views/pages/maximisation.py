"""A Maximisation as a page: its facts, and for each unit what was made, its curve and the strongest examples."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core import display
from whence.core.maximisations import Maximisation
from whence.views.content.maximisation import Row, facts, rows
from whence.views.pages.layout import Part, png, rendered
from whence.views.text import number, printable


@display.fragment.register(Maximisation)
def fragment(m: Maximisation) -> str:
    """The body of its page."""
    return rendered(Part("maximisation.html", {"facts": facts(m), "units": [_unit(row) for row in rows(m)]}))


def _unit(row: Row) -> dict[str, Any]:
    """What the template is given of one unit."""
    low, high = float(row.curve.min()), float(row.curve.max())
    heights = (row.curve - low) / ((high - low) or 1.0)
    across = np.linspace(0, 200, len(row.curve))
    line = " ".join(f"{x:.1f},{58 - 56 * y:.1f}" for x, y in zip(across, heights.tolist(), strict=True))
    said = f"free {number(row.free)}, real {number(row.real)}, {number(row.start)} at the start"
    return {
        "name": row.name,
        "made": _shown(row.made, said),
        "line": line,
        "low": number(low),
        "high": number(high),
        "examples": [_shown(example, number(value)) for example, value in row.examples],
    }


def _shown(example: Any, caption: str) -> dict[str, str]:
    is_picture = isinstance(example, np.ndarray)
    return {
        "picture": png(example) if is_picture else "",
        "text": "" if is_picture else printable(str(example)),
        "caption": caption,
    }
