"""A Sensitivity in the terminal: its facts, and a line per layer and concept."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.sensitivities import Sensitivity
from whence.views.content.sensitivity import HEADS, facts, rows
from whence.views.terminal.layout import facts_table

STYLES = {"for": "bold rgb(38,110,214)", "against": "bold rgb(208,48,48)", "withheld": "dim"}


@display.terminal.register(Sensitivity)
def terminal(s: Sensitivity) -> Any:
    """What rich prints: blue is for the target, red against it, dim what is withheld."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in HEADS:
        table.add_column(head, justify="left" if head in ("layer", "concept", "95 %", "verdict") else "right")
    for row in rows(s):
        style = STYLES.get(row.verdict, "")
        table.add_row(*(Text(cell, style=style) for cell in row.cells))
    return Group(facts_table(facts(s)), Text(), table)
