"""A Guidance as a page: the reading, a row per measure with its difference drawn, the curves of training, facts."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core import display
from whence.core.guidances import Guidance
from whence.views.colours import AGAINST, FOR, METHODS, css
from whence.views.content.guidance import VERDICTS, Row, curve_groups, facts, heads, reading, rows
from whence.views.content.scoreboard import Style
from whence.views.pages.charts import Line, key_entry, line_chart
from whence.views.pages.layout import Part, rendered
from whence.views.text import printable

COLOURS = {"better": css(FOR, 0.45), "worse": css(AGAINST, 0.45)}
LINES = dict(zip(("plain", "guided"), METHODS, strict=False))  # an arm has one colour in all curves of the page


@display.fragment.register(Guidance)
def fragment(g: Guidance) -> str:
    """The body of its page."""
    shown = rows(g)
    given = {
        "reading": reading(g),
        "heads": heads(g),
        "before": g.before,
        "rows": [
            {"cells": row.cells, "about": row.about, "drawn": _drawn(row), "colour": COLOURS.get(row.verdict, "")}
            for row in shown
        ],
        "verdicts": [(name, text) for name, text in VERDICTS.items() if name in {row.verdict for row in shown}],
        "curves": [_curves(loss, arms) for loss, arms in curve_groups(g).items()],
        "facts": facts(g),
    }
    return rendered(Part("guidance.html", given))


@display.title.register(Guidance)
def title(g: Guidance) -> str:
    """The title of its page."""
    return printable(f"{g.model} trained with {', '.join(loss.partition('(')[0] for loss in g.losses)}")


def _drawn(row: Row) -> dict[str, str] | None:
    """The difference on a track with 0 in its middle, as shares of the track; None where there is none."""
    mean, ends = row.difference.mean, row.difference.interval
    if not np.isfinite(mean):
        return None
    low, high = ends or (mean, mean)
    reach = max(abs(low), abs(high), 1e-12) * 1.05

    def place(value: float) -> float:
        return 0.5 + 0.5 * value / reach

    return {
        "dot": f"{place(mean):.2%}",
        "left": f"{place(low):.2%}",
        "width": f"{place(high) - place(low):.2%}",
    }


def _curves(loss: str, arms: dict[str, np.ndarray]) -> dict[str, Any]:
    """The curves of one loss along the training, one line per arm."""
    styles = {arm: Style(LINES[arm], 2.2) for arm in arms}
    lines = [
        Line(np.linspace(0, 100, len(values)) if len(values) > 1 else np.zeros(1), values, styles[arm], arm)
        for arm, values in arms.items()
    ]
    name = "loss on labels" if loss == "label" else printable(loss)
    key = [key_entry(arm, style) for arm, style in styles.items()]
    return {"name": name, "chart": line_chart(lines, "% of the training", "loss x weight", f"{name}, by step", key=key)}
