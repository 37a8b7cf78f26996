"""Lines in a drawing with axes, as the template curves.html writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.views.colours import OTHER_METHODS
from whence.views.content.scoreboard import Style, tick_text, ticks, widened

WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 440, 270, 44, 16, 26, 40  # size and margins of a drawing


@dataclass(frozen=True)
class Line:
    """A line: its points, its style, and the text shown when one points at it."""

    x: np.ndarray
    y: np.ndarray
    style: Style
    title: str


def line_chart(
    lines: Sequence[Line],
    across: str,
    up: str,
    label: str,
    marks: Mapping[float, str] | None = None,
    key: Sequence[Mapping[str, str]] = (),
) -> dict[str, Any]:
    """The values for the template of lines, the first one lowest; `marks` are the names of places along the axis."""
    values = np.concatenate([line.y for line in lines])
    low, high = widened(float(values.min()), float(values.max()), 0.04, 0.04)
    start, end = min(0.0, *(float(line.x[0]) for line in lines)), max(float(line.x[-1]) for line in lines)
    end = end if end > start else start + 1.0
    right, bottom = WIDE - RIGHT, HIGH - BOTTOM

    def x(place: float) -> str:
        return f"{LEFT + (right - LEFT) * (place - start) / (end - start):.1f}"

    def y(value: float) -> float:
        return bottom - (bottom - TOP) * (value - low) / (high - low)

    drawn = [
        {
            "points": " ".join(f"{x(a)},{y(b):.1f}" for a, b in zip(line.x, line.y, strict=True)),
            "style": line.style,
            "faint": line.style.colour == OTHER_METHODS,
            "title": line.title,
        }
        for line in lines
    ]
    named = {tick: tick_text(tick) for tick in ticks(start, end, 5)} if marks is None else marks
    return {
        "label": label,
        "across": across,
        "up": up,
        "size": {"wide": WIDE, "high": HIGH, "left": LEFT, "right": right, "top": TOP, "bottom": bottom},
        "marks_up": [(f"{y(tick):.1f}", f"{y(tick) + 4:.1f}", tick_text(tick)) for tick in ticks(low, high, 5)],
        "marks_across": [(x(place), text) for place, text in named.items()],
        "lines": drawn,
        "key": list(key),
    }


def key_entry(name: str, style: Style, title: str = "") -> dict[str, str]:
    """An entry of the legend: a name beside a piece of its line."""
    return {"name": name, "title": title, "line": f"{max(1, round(style.width))}px {style.line} {style.colour}"}
