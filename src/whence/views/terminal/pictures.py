"""Pictures in the terminal: two pixels in a character, where it can show colours; else patches in shades."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.views.content.picture import Overlay

WIDEST, NARROWEST = 44, 18  # columns of a picture
TALLEST = 24  # lines of a picture
GAP = 2  # columns between pictures
UPPER_HALF = "▀"  # shows the letter's colour in its upper half, the background in its lower half


def shows_colours(console: Any) -> bool:
    """Whether a terminal can show the colours of a picture: not a file, not NO_COLOR, not 16 colours alone."""
    return not console.no_color and console.color_system in ("256", "truecolor", "windows")


@dataclass(frozen=True, eq=False)
class Colourful:
    """A view with two forms, for terminals with colours and for others; each is made when it is needed."""

    coloured: Callable[[int], Iterable[Any]]  # takes the number of columns
    plain: Callable[[], Iterable[Any]]

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        yield from self.coloured(options.max_width) if shows_colours(console) else self.plain()


def pictures_abreast(named: Sequence[tuple[str, np.ndarray]], width: int) -> Iterator[Any]:
    """Pictures (height, width, 3) with their names above, as many side by side as fit into `width` columns."""
    from rich.cells import set_cell_size
    from rich.segment import Segment, Segments
    from rich.style import Style

    each = max(NARROWEST, min(WIDEST, (width + GAP) // min(len(named), 3) - GAP, width))
    across = max(1, (width + GAP) // (each + GAP))
    for start in range(0, len(named), across):
        chosen = named[start : start + across]
        sized = [_halves(picture, each) for _, picture in chosen]
        if any(name for name, _ in chosen):
            names = (set_cell_size(_fitting(name, each), each) for name, _ in chosen)
            yield Segments([Segment((" " * GAP).join(names).rstrip(), Style(bold=True)), Segment.line()])
        for line in range(max(len(rows) for rows in sized)):
            segments = []
            for place, rows in enumerate(sized):
                segments += [Segment(" " * GAP)] * bool(place) + (
                    rows[line] if line < len(rows) else [Segment(" " * each)]
                )
            yield Segments([*segments, Segment.line()])


def _fitting(name: str, width: int) -> str:
    from rich.cells import cell_len

    return name if cell_len(name) <= width else name[: width - 1] + "…"


def _halves(picture: np.ndarray, columns: int) -> list[list[Any]]:
    """The lines of a picture, `columns` wide, with two of its rows of pixels in each line."""
    from PIL import Image
    from rich.color import Color
    from rich.segment import Segment
    from rich.style import Style

    height, width = picture.shape[:2]
    lines = max(1, min(TALLEST, round(columns * height / width / 2)))
    across = max(1, min(columns, round(2 * lines * width / height)))
    small = Image.fromarray(picture).resize((across, 2 * lines), Image.Resampling.BOX)
    pixels = np.asarray(small).reshape(lines, 2, across, 3).tolist()
    padding = [Segment(" " * (columns - across))] if across < columns else []
    return [
        [
            Segment(UPPER_HALF, Style(color=Color.from_rgb(*top), bgcolor=Color.from_rgb(*bottom)))
            for top, bottom in zip(upper, lower, strict=True)
        ]
        + padding
        for upper, lower in pixels
    ]


def bar_of(overlay: Overlay, width: int) -> Any:
    """The bar of colours below a picture, between the numbers of its ends."""
    from rich.text import Text

    colours, opacity = overlay.scale.stops(max(8, min(24, width - 24)))
    low, high = overlay.scale.ends
    line = Text(f"{low} ", style="dim")
    for red, green, blue in np.round(colours * opacity + 255 * (1 - opacity)).astype(int).tolist():
        line.append(" ", style=f"on rgb({red},{green},{blue})")
    return line.append(f" {high}", style="dim")
