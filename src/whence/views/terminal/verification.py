"""A Verification in the terminal: the verdict, its facts, and how many rows differ by how much."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.run_summaries import Verification
from whence.views.colours import terminal_colour
from whence.views.content.verification import decades, facts, reading
from whence.views.terminal.layout import facts_table
from whence.views.terminal.run_summary import plain_table

BAR = 30  # letters of the longest bar


@display.terminal.register(Verification)
def terminal(v: Verification) -> Any:
    """What rich prints: blue where the rows are the same, red where they differ."""
    from rich.console import Group
    from rich.text import Text

    style = f"bold {terminal_colour(-1 if v.verdict == 'different' else 1)}"
    shown: list[Any] = [Text(reading(v), style=style), Text(), facts_table(facts(v))]
    found = decades(v)
    if found:
        most = max(decade.count for decade in found)
        rows = []
        for decade in found:
            bar = Text("█" * -(-BAR * (decade.count - decade.beyond) // most), style=terminal_colour(1))
            bar += Text("▒" * -(-BAR * decade.beyond // most), style=terminal_colour(-1))
            rows.append((decade.name, f"{decade.count:,}", bar))
        shown += [Text(), plain_table(("relative difference", "rows", ""), rows, left=("relative difference", ""))]
    return Group(*shown)
