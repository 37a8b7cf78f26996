"""A Guidance as a figure: a panel per measure, with every seed of every arm, its mean and its interval."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core import display
from whence.core.guidances import Guidance
from whence.views.colours import AGAINST, FOR, in_figure
from whence.views.content.guidance import Row, rows
from whence.views.figures.layout import new_figure, wrapped

ACROSS = 4  # panels in a row
COLOURS: dict[str, Any] = {"better": in_figure(FOR), "worse": in_figure(AGAINST)}


@display.figure.register(Guidance)
def figure(g: Guidance) -> Any:
    """A panel per measure."""
    shown = rows(g)
    across = min(ACROSS, len(shown))
    down = -(-len(shown) // across)
    drawn = new_figure(2.5 * across, 0.9 + 2.2 * down)
    said = f"{g.model}, by {', '.join(g.losses)}\nblue: guided is better than {g.before}, red: worse; small dots: seeds"
    drawn.suptitle("\n".join(wrapped(line, 110) for line in said.split("\n")), fontsize="small", parse_math=False)
    axes = drawn.subplots(down, across, squeeze=False).ravel()
    for axis, row in zip(axes, shown, strict=False):
        _draw(axis, row)
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    return drawn


def _draw(axes: Any, row: Row) -> None:
    """The arms of one measure."""
    for place, (arm, mean) in enumerate(row.means.items()):
        if not np.isfinite(mean):
            axes.text(place, 0.5, "-", ha="center", transform=axes.get_xaxis_transform(), fontsize="small")
            continue
        colour = COLOURS.get(row.verdict, "0.25") if arm == "guided" else "0.45"
        ends = row.intervals[arm]
        if ends is not None:
            axes.errorbar(place, mean, yerr=(ends[1] - ends[0]) / 2, fmt="none", ecolor=colour, capsize=3)
        axes.plot(place, mean, "o", color=colour, markersize=6)
        seeds = [value for value in row.seeds[arm] if np.isfinite(value)] if arm != "given" else []
        axes.plot([place + 0.22] * len(seeds), seeds, ".", color=colour, markersize=3, alpha=0.7)
    axes.set_xticks(range(len(row.means)), list(row.means), fontsize="x-small")
    axes.set_xlim(-0.5, len(row.means) - 0.5)
    axes.margins(y=0.15)
    axes.set_title(wrapped(row.name, 30), fontsize="x-small", parse_math=False)
    axes.tick_params(axis="y", labelsize="x-small")
    axes.spines[["top", "right"]].set_visible(False)
