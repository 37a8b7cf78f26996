"""A Score as a figure: the mean with its interval, and the value of every example."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core import display
from whence.core.scoreboards import Score
from whence.views.colours import METHODS
from whence.views.content.score import facts
from whence.views.content.scoreboard import Row, Style
from whence.views.figures.layout import draw_means, new_figure
from whence.views.text import printable


@display.figure.register(Score)
def figure(score: Score) -> Any:
    """A bar, and below it a dot for every example."""
    values = np.empty(0) if score.values is None else score.values[np.isfinite(score.values)]
    several = values.size > 1
    said = [f"{label}: {text}" for label, text in facts(score)]
    drawn = new_figure(6.5, 1.1 + 0.2 * len(said) + 1.4 * several)
    drawn.suptitle("\n".join(said), fontsize="small", parse_math=False)
    axes = drawn.subplots(1 + several, 1, squeeze=False, height_ratios=[1, 2][: 1 + several])[:, 0]
    row = Row(printable(score.metric), score)
    draw_means(axes[0], [row], {row.method: Style(METHODS[0])})
    if several:
        _draw_examples(axes[1], values, score.value)
        limits = [axis.get_xlim() for axis in axes]
        for axis in axes:
            axis.set_xlim(min(low for low, _ in limits), max(high for _, high in limits))
    return drawn


def _draw_examples(axes: Any, values: np.ndarray, mean: float) -> None:
    """The examples from the lowest value to the highest, and a line at the mean."""
    axes.plot(np.sort(values), np.arange(values.size), "o", color=METHODS[0], markersize=3, alpha=0.7)
    axes.axvline(mean, color="0.4", linewidth=1)
    axes.set_xlabel("value of an example", fontsize="small")
    axes.set_ylabel("examples, sorted", fontsize="small")
    axes.set_yticks([])
    axes.tick_params(labelsize="small")
    axes.spines[["top", "right"]].set_visible(False)
