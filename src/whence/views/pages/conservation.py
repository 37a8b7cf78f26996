"""A Conservation as a page: its facts and tables, and every call of a module."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.relevance_balance import Conservation
from whence.views.colours import css_of_score
from whence.views.content.conservation import NumberTable, all_calls, facts, tables
from whence.views.pages.layout import Cell, Part, rendered
from whence.views.text import number, printable


@display.fragment.register(Conservation)
def fragment(c: Conservation) -> str:
    """The body of its page."""
    given = {
        "facts": facts(c),
        "tables": [(title, _table(table)) for title, table in tables(c)],
        "calls": _table(all_calls(c)),
        "call_count": len(c.rows),
    }
    return rendered(Part("conservation.html", given))


def _table(table: NumberTable) -> dict[str, Any]:
    scale = table.scale
    rows = []
    for names, numbers, words in table.rows:
        cells = [
            Cell("" if v is None else table.written(v), css_of_score(v or 0.0, scale), number(v or 0.0))
            for v in numbers
        ]
        rows.append((list(names), cells, [printable(word) if word else "" for word in words]))
    return {"heads": [printable(head) for head in (*table.names, *table.numbers, *table.words)], "rows": rows}
