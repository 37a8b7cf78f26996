"""A NameAudit in the terminal: its facts, a line per test of a group, the names at both ends."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.name_audits import NameAudit
from whence.views.content.name_audit import HEADS, at_the_ends, facts, name_rows, test_rows
from whence.views.terminal.layout import facts_table
from whence.views.text import number

MOST = 6  # names at each end


@display.terminal.register(NameAudit)
def terminal(found: NameAudit) -> Any:
    """What rich prints; what is significant is bold."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    tests = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in HEADS:
        tests.add_column(head, justify="left" if head in ("measure", "kind", "group", "95 %") else "right")
    for cells, significant in test_rows(found):
        tests.add_row(*(Text(cell, style="bold" if significant else "") for cell in cells))
    names = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in ("name", *found.kinds, "relevance", "change"):
        names.add_column(head, justify="right" if head in ("relevance", "change") else "left")
    shown, left_out = at_the_ends(name_rows(found), MOST)
    for place, row in enumerate(shown):
        if left_out and place == MOST:
            names.add_row("...")
        names.add_row(*map(Text, (row.name, *row.groups, number(row.relevance), number(row.change))))
    return Group(facts_table(facts(found)), Text(), tests, Text(), names, Text(left_out, style="dim"))
