"""A Comparison as a page: its facts, the picture under each method's scores, and a column of scores per method."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core import display
from whence.core.looks import Look
from whence.core.results import Comparison
from whence.views.content.attribution import over_picture, pictures, sections
from whence.views.content.comparison import facts, footer, shown, tables, unsigned
from whence.views.pages import layout
from whence.views.pages.layout import Part, cell, rendered
from whence.views.text import largest, printable, writing


@display.fragment.register(Comparison)
def fragment(c: Comparison, look: Look | None = None) -> str:
    """The body of its page."""
    return rendered(part(c, look))


def part(c: Comparison, look: Look | None = None) -> Part:
    """The part of a page that shows a comparison."""
    c = shown(c)
    given = {
        "facts": facts(c),
        "signed": any(a.signed for a in c),
        "unsigned": printable(unsigned(c)) if unsigned(c) else "",
        "pictures": _pictures(c, look),
        "methods": [printable(a.method) for a in c],
        "tables": [_table(c, *table) for table in tables(c)],
    }
    return Part("comparison.html", given)


def _pictures(c: Comparison, look: Look | None) -> dict[str, Any] | None:
    """The picture under the scores of every method, each on its own scale; None without a picture."""
    shown = []
    for a in c:
        for (name, grid), overlay in zip(pictures(a), over_picture(a, look), strict=True):
            shown.append((f"{printable(a.method)} {name}".strip(), grid, overlay))
    return layout.pictures(c[0].input, shown) if shown else None


def _table(c: Comparison, name: str, row: int | None, scores: list[np.ndarray], indices: list[int]) -> dict[str, Any]:
    scales, written = [largest(a.scores) for a in c], [writing(a.signed) for a in c]
    parts, lines = sections(c[0].input, indices), []
    for label, members in parts:
        features = [
            (
                printable(c[0].features[i]),
                bool(c[0].special[i]),
                [cell(s[i], scale, write) for s, scale, write in zip(scores, scales, written, strict=True)],
            )
            for i in members
        ]
        lines.append((printable(label) if len(parts) > 1 else "", features))
    return {"name": name, "parts": lines, "footer": list(footer(c, row))}
