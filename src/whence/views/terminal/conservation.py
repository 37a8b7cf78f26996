"""A Conservation in the terminal: its facts, then relevance by depth, by kind and by module."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.relevance_balance import Conservation
from whence.views.colours import terminal_style
from whence.views.content.conservation import NumberTable, facts, tables
from whence.views.terminal.layout import facts_table
from whence.views.text import printable


@display.terminal.register(Conservation)
def terminal(c: Conservation) -> Any:
    """What rich prints: blue is relevance for the target, red against it."""
    from rich.console import Group
    from rich.text import Text

    parts = [facts_table(facts(c)), Text()]
    for title, table in tables(c):
        parts += [Text(title, style="bold"), _table(table), Text()]
    return Group(*parts[:-1])


def _table(table: NumberTable) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for label in table.names:
        drawn.add_column(label, overflow="fold")
    for label in table.numbers:
        drawn.add_column(Text(printable(label)), justify="right", overflow="fold")
    for label in table.words:
        drawn.add_column(label, overflow="fold")
    for names, numbers, words in table.rows:
        cells = [
            Text("" if v is None else table.written(v), style=terminal_style(v or 0.0, table.scale)) for v in numbers
        ]
        drawn.add_row(*(Text(printable(n)) for n in names), *cells, *(Text(printable(w) if w else "") for w in words))
    return drawn
