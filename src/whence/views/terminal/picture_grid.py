"""A PictureGrid in the terminal: the comparison of every picture below its name."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.picture_grids import PictureGrid
from whence.views.content.picture_grid import explained
from whence.views.terminal.comparison import terminal as of_comparison
from whence.views.text import printable


@display.terminal.register(PictureGrid)
def terminal(grid: PictureGrid) -> Any:
    """What rich prints."""
    from rich.console import Group
    from rich.text import Text

    parts: list[Any] = []
    for name, c in zip(grid.names, grid, strict=True):
        parts += [Text(f"{printable(name)}  {explained(c)}", style="bold"), Text(), of_comparison(c), Text()]
    return Group(*parts)
