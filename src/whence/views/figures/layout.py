"""What figures share: making one, names at axes as plain text, bars of means with their intervals."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from whence.views.content.scoreboard import Row, Style, bar_range, cells
from whence.views.text import printable

RANDOM = "#404040"  # of the method `random`, which pages draw in the colour of their text
NAME = 34  # letters of a name in a line
TICK = 24  # and at an axis
LINES = 6  # of a text


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib Figure of so many inches, or one sentence where matplotlib is missing."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plot() needs matplotlib, which is not installed; run: pip install whence[plot]") from None
    return Figure(figsize=(width, height), layout="constrained")


def colour_of(style: Style) -> str:
    """The colour of a method; a figure has no text colour of its own to inherit."""
    return RANDOM if style.colour == "currentColor" else style.colour


def legend_beside(axes: Any) -> None:
    """A legend to the right of the axes; its names are plain text, also where they hold dollar signs."""
    legend = axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)


def tick(name: str) -> str:
    """A name at an axis, printable, cut where it would leave no room for what is drawn."""
    shown = printable(name)
    return shown if len(shown) <= TICK else shown[: TICK - 1] + "…"


def wrapped(text: str, letters: int) -> str:
    """The text in lines of so many letters, cut where it would leave no room for what is drawn."""
    lines = textwrap.wrap(printable(text), max(letters, 10), max_lines=LINES, placeholder="…")
    return "\n".join(lines) or printable(text)


def draw_means(axes: Any, rows: Sequence[Row], styles: Mapping[str, Style]) -> None:
    """A bar for every mean with the whiskers of its interval; a dot where zero would press the differences together."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    written = cells(rows)
    labels = [f"{wrapped(row.method, NAME)}  {mean.strip()}{row.star}{row.defined_for}" for row, mean, _ in written]
    axes.set_yticks(range(len(rows)), labels, fontsize="small", parse_math=False)
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row.best else "normal")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    span = bar_range(rows)
    if span is None:
        axes.text(0.5, 0.5, "not defined for any method", transform=axes.transAxes, ha="center", fontsize="small")
        axes.set_xticks([])
        return
    axes.set_xlim(span.low, span.high)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize="small")
    axes.grid(axis="x", alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    for place, row in enumerate(rows):
        if np.isfinite(row.score.value):
            _draw_mean(axes, place, row, colour_of(styles[row.method]), span.from_zero)


def _draw_mean(axes: Any, place: int, row: Row, colour: str, from_zero: bool) -> None:
    value = row.score.value
    if from_zero:
        axes.barh(place, value, 0.65, color=colour, alpha=0.65)
    else:
        axes.plot(value, place, "o", color=colour, markersize=6)
    if row.score.interval:
        start, end = row.ends
        axes.errorbar(
            (start + end) / 2, place, xerr=(end - start) / 2, fmt="none", ecolor="0.25", elinewidth=1, capsize=2.5
        )
