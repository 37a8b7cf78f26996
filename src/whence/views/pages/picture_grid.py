"""A PictureGrid as a page: a row per picture, the picture as it was given first, then a column per method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from whence.core import display
from whence.core.looks import Look
from whence.core.picture_grids import PictureGrid
from whence.core.results import Comparison
from whence.core.wording import counted
from whence.views.content.attribution import over_picture, pictures
from whence.views.content.comparison import shown
from whence.views.content.picture_grid import explained, output, reading, said
from whence.views.pages import layers, layout
from whence.views.pages.layout import Part, rendered
from whence.views.text import printable


@display.fragment.register(PictureGrid)
def fragment(grid: PictureGrid, look: Look | None = None) -> str:
    """The body of its page."""
    rows = [_row(name, shown(c), look) for name, c in zip(grid.names, grid, strict=True)]
    methods = [printable(method) for method in grid.methods]
    given = {"reading": reading(grid), "methods": methods, "rows": rows, "said": said(grid, look), "full": layers.FULL}
    return rendered(Part("picture_grid.html", given))


@display.title.register(PictureGrid)
def title(grid: PictureGrid) -> str:
    """The title of its page."""
    return f"{counted(len(grid), 'picture')} by {counted(len(grid.methods), 'method')}"


def _row(name: str, c: Comparison, look: Look | None) -> dict[str, Any]:
    """The values for the template of one picture."""
    cells = [("", pictures(a)[0][1], over_picture(a, look)[0]) for a in c]
    given = layout.pictures(c[0].input, cells)
    given["overlays"] = [replace(one, said=[] if one.bar else one.said) for one in given["overlays"]]  # else below
    return {**given, "name": printable(name), "explained": explained(c), "output": output(c)}
