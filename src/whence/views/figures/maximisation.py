"""A Maximisation as a figure: a row per unit, what was made, its curve, the examples that excite it most."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core import display
from whence.core.maximisations import Maximisation
from whence.views.colours import METHODS
from whence.views.content.maximisation import Row, facts, rows
from whence.views.figures.layout import new_figure, wrapped
from whence.views.text import number


@display.figure.register(Maximisation)
def figure(m: Maximisation) -> Any:
    """A grid: units below each other."""
    shown = rows(m)
    across = 2 + max(len(row.examples) for row in shown)
    drawn = new_figure(1.9 * across + 0.6, 0.9 + 2.2 * len(shown))
    said = [f"{label}: {text}" for label, text in facts(m) if label in ("model", "real")]
    drawn.suptitle("\n".join(said), fontsize="small", parse_math=False)
    for axes, row in zip(drawn.subplots(len(shown), across, squeeze=False), shown, strict=True):
        _draw(axes, row)
    return drawn


def _draw(axes: Any, row: Row) -> None:
    """One unit."""
    _show(axes[0], row.made, f"{row.name}: {number(row.real)}")
    axes[1].plot(row.curve, color=METHODS[0], linewidth=1)
    axes[1].set_title("target by step", fontsize="small")
    axes[1].tick_params(labelsize="x-small")
    axes[1].spines[["top", "right"]].set_visible(False)
    for axis, (example, value) in zip(axes[2:], row.examples, strict=False):
        _show(axis, example, number(value))
    for axis in axes[2 + len(row.examples) :]:
        axis.set_axis_off()


def _show(axes: Any, example: Any, title: str) -> None:
    """A picture, or a text in a frame."""
    if isinstance(example, np.ndarray):
        axes.imshow(example)
    else:
        axes.text(0.5, 0.5, wrapped(str(example), 22), ha="center", va="center", fontsize="x-small", parse_math=False)
    axes.set_title(wrapped(title, 26), fontsize="small", parse_math=False)
    axes.set_axis_off()
