"""A Comparison as a page: the picture or the text under each method's scores, the scores as a table, who agrees."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from whence.core import display
from whence.core.looks import Look
from whence.core.results import Comparison
from whence.core.wording import counted
from whence.views.content.attribution import (
    apart,
    colour_scale,
    explained_name,
    of_row,
    only_special_beside_picture,
    over_picture,
    pictures,
    sections,
)
from whence.views.content.comparison import facts, footer, shown, tables, unsigned
from whence.views.content.intervention import side_by_side
from whence.views.content.reading import reading_of_comparison
from whence.views.content.tokens import share, texts
from whence.views.pages import layout
from whence.views.pages.layout import Part, rendered
from whence.views.text import largest, number, printable, writing


@display.title.register(Comparison)
def title(c: Comparison) -> str:
    """The title of its page."""
    return f"Where {explained_name(c[0])} came from: {counted(len(c), 'method')}"


@display.fragment.register(Comparison)
def fragment(c: Comparison, look: Look | None = None) -> str:
    """The body of its page."""
    return rendered(part(c, look))


def part(c: Comparison, look: Look | None = None) -> Part:
    """The part of a page that shows a comparison."""
    taus, c = c.agreement(), shown(c)
    told = facts(c)
    given = {
        "lead": reading_of_comparison(c, taus),
        "warnings": [text for label, text in told if label == "warning"],
        "facts": [fact for fact in told if fact[0] != "warning"],
        "beside": side_by_side(c[0]),
        "signed": any(a.signed for a in c),
        "unsigned": printable(unsigned(c)) if unsigned(c) else "",
        "pictures": _pictures(c, look),
        "tables": [_table(c, *table) for table in tables(c)],
        "as_texts": not only_special_beside_picture(c[0]),
        "agreement": _agreement(c, taus),
        "rows": c[0].scores.ndim == 2,
    }
    return Part("comparison.html", given)


def _pictures(c: Comparison, look: Look | None) -> dict[str, Any] | None:
    """The picture under the scores of every method, each on its own scale; None without a picture."""
    shown = []
    for a in c:
        for (name, grid), overlay in zip(pictures(a), over_picture(a, look), strict=True):
            shown.append((f"{printable(a.method)} {name}".strip(), grid, overlay))
    return layout.pictures(c[0].input, shown) if shown else None


def _agreement(c: Comparison, taus: np.ndarray) -> list[tuple[str, list[tuple[str, str]]]]:
    """A row of Kendall's tau per method: share for the colour, and text; nothing for one method."""
    rows = zip(c, taus.tolist(), strict=True) if len(c) > 1 else ()
    return [
        (printable(a.method), [(share(tau, 1.0), f"{tau:.2f}" if np.isfinite(tau) else "none") for tau in line])
        for a, line in rows
    ]


def _table(c: Comparison, name: str, row: int | None, scores: list[np.ndarray], indices: list[int]) -> dict[str, Any]:
    """One text of all methods: as a coloured line per method, each on its own scale, and as a table."""
    x, scales, written = c[0].input, [colour_scale(a) for a in c], [writing(a.signed) for a in c]
    parts, rows = sections(x, indices), []
    for label, members in parts:
        features = [
            (
                printable(x.features[i]),
                bool(x.special[i]),
                [
                    ("" if apart(a, i) else share(s[i], scale), w(s[i], scale))
                    for a, s, scale, w in zip(c, scores, scales, written, strict=True)
                ],
            )
            for i in members
        ]
        rows.append((printable(label) if len(parts) > 1 else "", features))
    lines = [
        {"method": printable(a.method), "largest": number(largest(of_row(a.scores, row))), "texts": own}
        for a, s, scale in zip(c, scores, scales, strict=True)
        for own in [texts(x, indices, s, scale, a.signed, partial(apart, a))]
    ]
    return {"name": name, "lines": lines, "parts": rows, "footer": list(footer(c, row))}
