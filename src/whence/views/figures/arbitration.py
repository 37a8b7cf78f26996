"""An Arbitration as a figure: the best candidates by the metric that chose, and below them the board."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.scoreboards import Arbitration
from whence.views.colours import METHODS
from whence.views.content.arbitration import best_rows, verdict
from whence.views.content.scoreboard import Style, note
from whence.views.figures import scoreboard
from whence.views.figures.layout import draw_means, new_figure, wrapped


@display.figure.register(Arbitration)
def figure(found: Arbitration) -> Any:
    """The verdict above the best candidates and the board."""
    rows = best_rows(found)
    width = scoreboard.WIDTH * (1 + scoreboard.has_curves(found.board)) + 1
    heights = [1.6 + 0.26 * len(rows), scoreboard.height(found.board)]
    drawn = new_figure(width, sum(heights))
    above, below = drawn.subfigures(2, 1, height_ratios=heights)
    said = f"{verdict(found)} {note(found.board)}"
    above.suptitle(wrapped(said, int(11 * width)), fontsize="small", parse_math=False)
    axes = above.subplots()
    draw_means(axes, rows, {row.method: Style(METHODS[0]) for row in rows})
    title = f"the best of {len(found.candidates)} by {found.metric}, {found.better} is better"
    axes.set_title(wrapped(title, int(9 * width)), fontsize="small", loc="left", parse_math=False)
    scoreboard.draw_metrics(below, found.board)
    return drawn
