"""An Arbitration in the terminal: the verdict, the explanation of a single input, the best candidates, the board."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.scoreboards import Arbitration
from whence.views.content.arbitration import best, verdict
from whence.views.content.scoreboard import ARROWS


@display.terminal.register(Arbitration)
def terminal(found: Arbitration) -> Any:
    """The verdict, the explanation of a single input, the best candidates, the board, and notes."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    heads = Text(f"the best of {len(found.candidates)}"), Text(f"{found.metric}\u00a0{ARROWS[found.better]}")
    ranks = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for head in heads:
        ranks.add_column(head)
    for name, value in best(found):
        ranks.add_row(Text(name), value)
    single = [display.terminal(found.explanations[0]), Text()] if len(found.explanations) == 1 else []
    board = display.terminal(found.board)
    return Group(Text(verdict(found)), Text(), *single, ranks, Text(), board, *map(Text, found.notes))
