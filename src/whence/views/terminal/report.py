"""A Report in the terminal: its results below each other, each under its title."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.reports import Report
from whence.views.text import printable


@display.terminal.register(Report)
def terminal(found: Report) -> Any:
    """What rich prints."""
    from rich.console import Group
    from rich.text import Text

    shown: list[Any] = [Text(printable(found.title), style="bold")]
    for number, result in enumerate(found, 1):
        shown += [Text(), Text(f"{number}. {display.title(result)}", style="bold"), display.terminal(result)]
    return Group(*shown)
