"""A Conservation as a page: its facts and tables, and every call of a module."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core import display
from whence.core.relevance_balance import Conservation
from whence.views.colours import METHODS, css_of_score
from whence.views.content.conservation import (
    NumberTable,
    all_calls,
    facts,
    lines_by_depth,
    methods,
    places,
    reading,
    tables,
)
from whence.views.content.scoreboard import Style
from whence.views.pages.charts import Line, key_entry, line_chart
from whence.views.pages.layout import Cell, Part, rendered
from whence.views.text import number, printable

STYLES = (Style(METHODS[0], 2.2), Style(METHODS[1], 2.2, (7, 3), "dashed"))
MARKS = 10  # names along the axis at most


@display.fragment.register(Conservation)
def fragment(c: Conservation) -> str:
    """The body of its page."""
    given = {
        "reading": reading(c),
        "drawn": _drawn(c),
        "facts": facts(c),
        "tables": [(title, _table(table)) for title, table in tables(c)],
        "calls": _table(all_calls(c)),
        "call_count": len(c.rows),
    }
    return rendered(Part("conservation.html", given))


@display.title.register(Conservation)
def title(c: Conservation) -> str:
    """The title of its page."""
    return printable(f"Conservation of relevance by {c.method}" + (f" in {c.model}" if c.model else ""))


def _drawn(c: Conservation) -> dict[str, Any] | None:
    """The totals by depth as lines, a dashed one for the usual method beside it; None where none is finite."""
    lines, key = [], []
    for (name, rows), style in zip(methods(c), STYLES, strict=False):
        own = lines_by_depth(c, rows)
        lines += [Line(np.array(x, float), np.array(y), style, printable(name)) for x, y in own]
        key += [key_entry(printable(name), style)] if own else []
    if not lines:
        return None
    names = [place.removeprefix("out of block ").replace("into block", "into") for place in places(c)]
    step = -(-len(names) // MARKS)
    kept = {float(n): printable(names[n]) for n in range(0, len(names) - 1, step)} | {len(names) - 1.0: names[-1]}
    across = "after each block, from the input to f(x)"
    return line_chart(lines, across, "total relevance", "total relevance by depth", kept, key)


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
