"""An Audit as a page: its facts, a line per finding, and for every finding its numbers, charts, groups and limits."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core import display
from whence.core.audits import Audit, Finding
from whence.views.colours import AGAINST, FOR, METHODS, css
from whence.views.content.audit import (
    QUESTION,
    Spread,
    as_rows,
    by_groups,
    facts,
    facts_of,
    headline,
    interval,
    mean,
    reading,
    spread,
)
from whence.views.content.scoreboard import Style, tick_text, ticks
from whence.views.pages.layout import Part, rendered
from whence.views.pages.scoreboard import bars
from whence.views.text import printable

COLOURS = {"explains": css(FOR, 0.4), "partly": "rgba(190,150,0,.35)", "does not": css(AGAINST, 0.4), "cannot tell": ""}
WIDE, HIGH, LEFT, TOP, BOTTOM = 420, 240, 46, 22, 42  # size and margins of a drawing


@display.fragment.register(Audit)
def fragment(a: Audit) -> str:
    """The body of its page."""
    given = {
        "reading": reading(a),
        "facts": facts(a),
        "colours": COLOURS,
        "findings": [_finding(a, finding) for finding in a.findings],
    }
    return rendered(Part("audit.html", given))


@display.title.register(Audit)
def title(a: Audit) -> str:
    """The title of its page."""
    return f"{QUESTION.removesuffix(' here?')} of {printable(a.model)}'s decisions?" if a.model else QUESTION


def _finding(a: Audit, finding: Finding) -> dict[str, Any]:
    """The values for the template of a finding."""
    own = headline(finding) if finding.quantities else []
    first = own[0].name if own else ""
    layers = [q for q in finding.quantities if q.name == first and q.where]
    return {
        "experiment": printable(finding.experiment),
        "question": finding.question,
        "answer": printable(finding.answer),
        "grade": finding.grade,
        "facts": facts_of(finding),
        "bars": _bars(as_rows(own)),
        "first": printable(first),
        "layers": _bars(as_rows(layers, by_place=True)) if len(layers) > 1 else None,
        "spread": _drawn(spread(finding)),
        "tables": [
            {
                "title": t.title,
                "columns": t.columns,
                "rows": [(n, [f"{c:.1%}" for c in r]) for n, r in zip(t.rows, t.cells, strict=True)],
            }
            for t in finding.tables
        ],
        "numbers": [(printable(q.name), q.where or "all", mean(q), interval(q), q.defined) for q in finding.quantities],
        "groups": by_groups(a, finding),
    }


def _bars(rows: list[Any]) -> dict[str, Any] | None:
    """A bar with its whiskers for every number; None without numbers."""
    return bars(rows, {row.method: Style(METHODS[0]) for row in rows}) if rows else None


def _drawn(found: Spread | None) -> dict[str, Any] | None:
    """Dots or bars of examples, in the units of the drawing."""
    if found is None:
        return None
    half = found.width / 2
    low, high = float(found.x.min()) - half, float(found.x.max()) + half
    low, high = (min(low, 0.0), high) if found.dots else (low, high)
    high = high if high > low else low + 1.0
    bottom_value, top_value = min(0.0, float(found.y.min())), float(found.y.max())
    top_value = top_value if top_value > bottom_value else bottom_value + 1.0

    def x(value: float) -> float:
        return LEFT + (WIDE - LEFT - 12) * (value - low) / (high - low)

    def y(value: float) -> float:
        return HIGH - BOTTOM - (HIGH - BOTTOM - TOP) * (value - bottom_value) / (top_value - bottom_value)

    points = [(x(float(a)), y(float(b))) for a, b in zip(found.x, found.y, strict=True)]
    return {
        "across": found.across,
        "up": found.up,
        "wide": WIDE,
        "high": HIGH,
        "left": LEFT,
        "bottom": HIGH - BOTTOM,
        "line": " ".join(f"{a:.1f},{b:.1f}" for a, b in points) if found.line else "",
        "dots": [(f"{a:.1f}", f"{b:.1f}") for a, b in points] if found.dots else [],
        "boxes": []
        if found.dots
        else [
            (f"{a - np.abs(x(half) - x(0.0)):.1f}", f"{b:.1f}", f"{2 * abs(x(half) - x(0.0)):.1f}", f"{y(0.0) - b:.1f}")
            for a, b in points
        ],
        "marks_across": [(f"{x(t):.1f}", tick_text(t)) for t in ticks(low, high, 4)],
        "marks_up": [(f"{y(t):.1f}", tick_text(t)) for t in ticks(bottom_value, top_value, 4)],
    }
