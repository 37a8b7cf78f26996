"""The model without and under an intervention, side by side in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from whence.core.results import Attribution
from whence.views.content.intervention import side_by_side


def beside(a: Attribution) -> Iterator[Any]:
    """An empty line and the table; nothing where there is no intervention."""
    from rich.table import Table
    from rich.text import Text

    found = side_by_side(a)
    if found is None:
        return
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_row(Text(""), *(Text(head, style="bold") for head in found.heads))
    for name, *values in found.rows:
        changed = values[0] != values[1]
        table.add_row(Text(name, style="dim"), Text(values[0]), Text(values[1], style="bold" if changed else ""))
    yield Text()
    yield table
