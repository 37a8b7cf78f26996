"""A Guidance in the terminal: the reading, a line per measure, and the facts."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.guidances import Guidance
from whence.views.content.guidance import facts, heads, reading, rows
from whence.views.terminal.layout import facts_table

STYLES = {"better": "bold rgb(38,110,214)", "worse": "bold rgb(208,48,48)", "cannot tell": "dim"}


@display.terminal.register(Guidance)
def terminal(g: Guidance) -> Any:
    """What rich prints: blue is better than before, red worse."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, head in enumerate(heads(g)):
        table.add_column(head, justify="left" if place in (0, len(heads(g)) - 1) else "right")
    for row in rows(g):
        table.add_row(*(Text(cell, style=STYLES.get(row.verdict, "")) for cell in row.cells))
    return Group(Text(reading(g)), Text(), table, Text(), facts_table(facts(g)))
