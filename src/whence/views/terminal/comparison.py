"""A Comparison in the terminal: its facts, patches in shades, and a column of scores per method."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from whence.core import display
from whence.core.results import Comparison
from whence.views.colours import terminal_style
from whence.views.content.attribution import pictures, sections
from whence.views.content.comparison import facts, footer, shown, tables
from whence.views.content.picture import scale_of_patches
from whence.views.terminal.layout import facts_table, grid_lines
from whence.views.text import largest, printable, writing


@display.terminal.register(Comparison)
def terminal(c: Comparison) -> Any:
    """What rich prints: blue is for the target, red against it, every method on its own scale."""
    from rich.console import Group

    return Group(*_parts(shown(c)))


def _parts(c: Comparison) -> Iterator[Any]:
    from rich.text import Text

    yield facts_table(facts(c))
    for a in c:
        for name, grid in pictures(a):
            yield Text(f"\n{printable(a.method)}  {name}".rstrip(), style="bold")
            yield from grid_lines(a.input, grid, scale_of_patches(a.input, a.scores, a.signed))
    for number, (name, row, scores, indices) in enumerate(tables(c), 1):
        yield Text(f"\n{number}. {name}" if name else "", style="bold")
        yield _table(c, scores, indices, row)


def _table(c: Comparison, scores: list[np.ndarray], indices: list[int], row: int | None) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("feature", overflow="fold")
    scales = [largest(a.scores) for a in c]
    for a in c:
        table.add_column(Text(printable(a.method)), justify="right", overflow="fold")
    parts = sections(c[0].input, indices)
    for label, members in parts:
        if len(parts) > 1:
            table.add_row(Text(printable(label), style="italic"))
        for i in members:
            dim = "dim" if c[0].special[i] else ""
            cells = [
                Text(writing(a.signed)(s[i], scale), style=terminal_style(s[i], scale))
                for a, s, scale in zip(c, scores, scales, strict=True)
            ]
            table.add_row(Text(printable(c[0].features[i]), style=dim), *cells)
        table.add_section()
    for label, values in footer(c, row):
        table.add_row(Text(label, style="dim"), *(Text(value, style="dim") for value in values))
    return table
