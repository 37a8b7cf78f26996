"""A Sensitivity as a page: its facts, a row per layer and concept, the examples most and least along each concept."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core import display
from whence.core.sensitivities import Sensitivity
from whence.views.colours import AGAINST, FOR, css
from whence.views.content.sensitivity import HEADS, ends, facts, reading, rows
from whence.views.pages.layout import Part, png, rendered
from whence.views.text import printable

COLOURS = {"for": css(FOR, 0.45), "against": css(AGAINST, 0.45)}


@display.fragment.register(Sensitivity)
def fragment(s: Sensitivity) -> str:
    """The body of its page."""
    given = {
        "reading": reading(s),
        "facts": facts(s),
        "heads": HEADS,
        "rows": [{"cells": row.cells, "bar": _bar(row), "colour": COLOURS.get(row.verdict, "")} for row in rows(s)],
        "concepts": [_along(s, number) for number in range(len(s.concepts))],
    }
    return rendered(Part("sensitivity.html", given))


@display.title.register(Sensitivity)
def title(s: Sensitivity) -> str:
    """The title of its page."""
    return printable(f"Concepts and the {s.target}" + (f" in {s.model}" if s.model else ""))


def _bar(row: Any) -> dict[str, str]:
    """The bar of a score and the whisker of its interval, as shares of the track."""
    low, high = row.interval
    return {"width": f"{row.score:.1%}", "left": f"{low:.1%}", "whisker": f"{high - low:.1%}"}


def _along(s: Sensitivity, concept: int) -> dict[str, Any]:
    """The examples at both ends of a concept."""
    layer, most, least = ends(s, concept)
    shown = {
        "most": [_example(s.examples[i], caption) for i, caption in most],
        "least": [_example(s.examples[i], caption) for i, caption in least],
    }
    return {"name": printable((s.labels or s.concepts)[concept]), "layer": printable(layer)} | shown


def _example(example: Any, caption: str) -> dict[str, str]:
    is_picture = isinstance(example, np.ndarray)
    return {
        "picture": png(example) if is_picture else "",
        "text": "" if is_picture else printable(str(example)),
        "caption": caption,
    }
