"""A Maximisation in the terminal: its facts, a line per unit, and the texts that were made."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.maximisations import Maximisation
from whence.views.content.maximisation import HEADS, facts, rows
from whence.views.terminal.layout import facts_table
from whence.views.text import printable


@display.terminal.register(Maximisation)
def terminal(m: Maximisation) -> Any:
    """What rich prints."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = rows(m)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in HEADS:
        table.add_column(head, justify="left" if head in ("unit", "on the way") else "right")
    for row in shown:
        table.add_row(*(Text(cell) for cell in row.cells))
    texts = [Text(f"{row.name}: {printable(row.made)}") for row in shown if isinstance(row.made, str)]
    return Group(facts_table(facts(m)), Text(), table, *texts)
