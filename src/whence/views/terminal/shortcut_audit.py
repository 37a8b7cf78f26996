"""A ShortcutAudit in the terminal: its facts, and a line per word."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.shortcut_audits import ShortcutAudit
from whence.views.content.shortcut_audit import HEADS, facts, word_rows
from whence.views.terminal.layout import facts_table

MOST = 12  # words
SHOWN = ("word", "grade", "texts", "speaks for", "strongest", "p", "predicted", "hidden: flips", "put elsewhere: turns")
STYLES = {"shortcut": "bold red", "suspect": "bold", "strong": "", "": "dim"}


@display.terminal.register(ShortcutAudit)
def terminal(found: ShortcutAudit) -> Any:
    """What rich prints; shortcuts are bold."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = [*SHOWN, *(["misleads"] if found.labelled else [])]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in shown:
        table.add_column(head, justify="left" if head in ("word", "grade", "speaks for") else "right")
    rows, left_out = word_rows(found, MOST)
    for row in rows:
        cells = dict(zip(HEADS, row.cells, strict=True))
        table.add_row(*(Text(cells[head], style=STYLES[row.grade]) for head in shown))
    return Group(facts_table(facts(found)), Text(), table, Text(left_out, style="dim"))
