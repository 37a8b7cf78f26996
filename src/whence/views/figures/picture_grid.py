"""A PictureGrid as a figure: a row per picture, the picture as it was given first, then a column per method."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.looks import Look
from whence.core.picture_grids import PictureGrid
from whence.views.content.attribution import over_picture
from whence.views.content.comparison import shown
from whence.views.content.picture_grid import explained, output, said
from whence.views.figures.layout import new_figure, tick, wrapped
from whence.views.figures.overlay import draw_overlay

CELL = 2.1  # inches: the width of a cell
BELOW = 0.45  # inches: the height of what stands below a picture


@display.figure.register(PictureGrid)
def figure(grid: PictureGrid, look: Look | None = None) -> Any:
    """Every picture beside its scores by every method, each cell with its bar of colours."""
    rows = [[over_picture(a, look)[0] for a in shown(c)] for c in grid]
    heights = [CELL * min(2.5, max(0.2, row[0].image.shape[0] / row[0].image.shape[1])) + BELOW for row in rows]
    across = len(grid.methods) + 1
    words = [wrapped(line, int(15 * CELL * across)) for line in said(grid, look)]
    drawn = new_figure(CELL * across, sum(heights) + 0.3 + 0.15 * len(words))
    places = drawn.subplots(len(rows), across, squeeze=False, height_ratios=heights)
    for line, (name, c, row) in enumerate(zip(grid.names, grid, rows, strict=True)):
        first, *others = places[line]
        _draw_photo(first, row[0].canvas.picture, [tick(name), explained(c), output(c)])
        for axes, overlay in zip(others, row, strict=True):
            draw_overlay(axes, overlay, words=False)
    for axes, method in zip(places[0][1:], grid.methods, strict=True):
        axes.set_title(wrapped(method, int(11 * CELL)), fontsize="small", parse_math=False)
    drawn.supxlabel("\n".join(words), fontsize="x-small", x=0.01, ha="left", parse_math=False)
    return drawn


def _draw_photo(axes: Any, photo: Any, lines: list[str]) -> None:
    """A picture as it was given, with its name and what is predicted below."""
    axes.imshow(photo)
    axes.set(xticks=[], yticks=[])
    axes.set_anchor("N")
    axes.spines[:].set_visible(False)
    axes.set_xlabel("\n".join(wrapped(line, int(13 * CELL)) for line in lines), fontsize="x-small", parse_math=False)
