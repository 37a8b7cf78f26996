"""A Comparison in the terminal: every method as a row of coloured text or as a picture; all values on demand."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from whence.core import display
from whence.core.results import Attribution, Comparison
from whence.views.colours import terminal_style
from whence.views.content.attribution import (
    apart,
    colour_scale,
    only_special_beside_picture,
    over_picture,
    pictures,
    sections,
    several_texts,
)
from whence.views.content.comparison import facts, footer, shown, tables
from whence.views.content.picture import scale_of_patches
from whence.views.content.written import passages
from whence.views.terminal.intervention import beside
from whence.views.terminal.layout import facts_table, grid_lines
from whence.views.terminal.pictures import Colourful, pictures_abreast
from whence.views.text import printable, strength, writing

BESIDE = 72  # columns from which the names of methods stand beside their rows
NAME = 24  # columns of a name
FAINT = 0.05  # the share of the scale below which a piece of running text has no colour
VALUES = "the numbers: whence compare --values, or print(comparison)"


@display.terminal.register(Comparison)
def terminal(c: Comparison) -> Any:
    """What rich prints: blue is for the target, red against it, every method on its own scale."""
    from rich.console import Group

    c = shown(c)
    return Group(facts_table(facts(c)), *beside(c[0]), Colourful(partial(_coloured, c), partial(_plain, c)))


@display.terminal.register(Comparison, "values")
def values(c: Comparison) -> Any:
    """The terminal view, with the table of all scores added."""
    from rich.console import Group

    c = shown(c)
    over = Colourful(partial(_overlays, c), partial(_grids, c))
    return Group(facts_table(facts(c)), *beside(c[0]), over, *_tables(c))


@display.text.register(Comparison)
def text(c: Comparison) -> str:
    """Plain text, as wide as its tables: numbers instead of colours."""
    from rich.console import Group

    c = shown(c)
    whole = (part for table in _tables(c) for part in (table.title, table.of_all()))
    return display.uncoloured(Group(facts_table(facts(c)), *beside(c[0]), *_grids(c), *whole))


def _plain(c: Comparison) -> Iterator[Any]:
    yield from _grids(c)
    yield from _tables(c)


def _coloured(c: Comparison, width: int) -> Iterator[Any]:
    """Pictures side by side, and the rows of coloured text."""
    from rich.text import Text

    yield from _overlays(c, width)
    for number, (name, _, scores, indices) in enumerate([] if only_special_beside_picture(c[0]) else tables(c), 1):
        yield Text(f"\n{number}. {name}" if name else "", style="bold")
        yield from _rows(c, scores, indices, width)
    yield Text(f"\n{VALUES}", style="dim")


def _rows(c: Comparison, scores: list[np.ndarray], indices: list[int], width: int) -> Iterator[Any]:
    """Every method's name beside, or on a narrow terminal above, the text on the colours of its scores."""
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    longest = min(NAME, max(cell_len(printable(a.method)) for a in c))
    several = cell_len(_running(c[0], scores[0], indices).plain) > width - longest - 2
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=longest, overflow="fold")
    grid.add_column(overflow="fold")
    for a, own in zip(c, scores, strict=True):
        name, written = printable(a.method), _running(a, own, indices)
        if width < BESIDE:
            yield from (Text(name, style="bold"), written)
            continue
        grid.add_row(Text(name if cell_len(name) <= longest else name.replace("(", "\n(", 1)), written)
        if several:
            grid.add_row()
    if width >= BESIDE:
        yield grid


def _running(a: Attribution, scores: np.ndarray, indices: list[int]) -> Any:
    """The text as it was written, every piece on the colour of its score."""
    from rich.text import Text

    line, scale, several = Text(), colour_scale(a), several_texts(a.input)
    for passage in passages(a.input, indices):
        line.append(f"{chr(10) * bool(line)}{passage.name}: " if several else "", style="italic dim")
        for piece in passage.pieces:
            special = bool(a.special[piece.feature])
            if apart(a, piece.feature):
                line.append(f"[{piece.text}]", style="dim").append(" " * piece.space)
                continue
            score = scores[piece.feature] if strength(scores[piece.feature], scale) >= FAINT else 0.0
            style = terminal_style(score, scale, special) or ("dim" if special else "")
            line.append(piece.text, style=style).append(" " * piece.space)
    line.rstrip()
    return line


def _overlays(c: Comparison, width: int) -> Iterator[Any]:
    """The photo, and the same photo under the scores of every method."""
    from rich.text import Text

    found = [(a, overlay, name) for a in c for overlay, (name, _) in zip(over_picture(a), pictures(a), strict=True)]
    if not found:
        return
    photo = found[0][1].canvas
    named = [(f"{printable(a.method)} {name}".rstrip(), overlay.image) for a, overlay, name in found]
    yield Text()
    yield from pictures_abreast([(photo.name, photo.picture), *named], width)


def _grids(c: Comparison, width: int = 0) -> Iterator[Any]:
    """The patches of every method in shades."""
    from rich.text import Text

    for a in c:
        for name, grid in pictures(a):
            yield Text(f"\n{printable(a.method)}  {name}".rstrip(), style="bold")
            yield from grid_lines(a.input, grid, scale_of_patches(a.input, a.scores, a.signed))


def _tables(c: Comparison) -> list[ValueTable]:
    return [
        ValueTable(c, f"\n{number}. {name}" if name else "", scores, indices, row)
        for number, (name, row, scores, indices) in enumerate(tables(c), 1)
    ]


class ValueTable:
    """The scores of all methods, as many methods side by side as fit; no number is broken."""

    def __init__(
        self, c: Comparison, title: str, scores: list[np.ndarray], indices: list[int], row: int | None
    ) -> None:
        from rich.text import Text

        self.c, self.scores, self.indices, self.row = c, scores, indices, row
        self.title = Text(title, style="bold")

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        yield self.title
        left = list(range(len(self.c)))
        free = options.update_width(10**4)
        while left:
            choices = [self._table(left[:count], options.max_width) for count in range(1, len(left) + 1)]
            fitting = [t for t in choices if console.measure(t, options=free).maximum <= options.max_width] or choices[
                :1
            ]
            yield fitting[-1]
            left = left[len(fitting) :]
            yield from [""] if left else []

    def of_all(self) -> Any:
        """One table with all methods, however wide it is."""
        return self._table(list(range(len(self.c))), 10**4)

    def _table(self, chosen: list[int], width: int) -> Any:
        """A table of some of the methods; long names break, so that a narrow terminal shows at least one column."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        table.add_column("feature", overflow="fold", max_width=max(12, width // 3))
        scales = [colour_scale(a) for a in self.c]
        for n in chosen:
            table.add_column(Text(printable(self.c[n].method)), justify="right", overflow="fold", min_width=9)
        parts = sections(self.c[0].input, self.indices)
        for label, members in parts:
            if len(parts) > 1:
                table.add_row(Text(printable(label), style="italic"))
            for i in members:
                cells = [
                    Text(
                        writing(self.c[n].signed)(self.scores[n][i], scales[n]),
                        style="" if apart(self.c[n], i) else terminal_style(self.scores[n][i], scales[n]),
                        no_wrap=True,
                    )
                    for n in chosen
                ]
                name = Text(printable(self.c[0].features[i]), style="dim" if self.c[0].special[i] else "")
                name.append(" (sink)" if self.c[0].sinks[i] else "", style="dim")
                table.add_row(name, *cells)
            table.add_section()
        for label, numbers in footer(self.c, self.row):
            table.add_row(Text(label, style="dim"), *(Text(numbers[n], style="dim", no_wrap=True) for n in chosen))
        return table
