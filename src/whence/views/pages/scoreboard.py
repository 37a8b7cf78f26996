"""A Scoreboard as a page: the table of means, and for every metric bars with intervals, best first, and its curves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from whence.core import display
from whence.core.scoreboards import Scoreboard
from whence.core.wording import counted
from whence.views.colours import OTHER_METHODS
from whence.views.content.scoreboard import (
    FEW,
    Row,
    Style,
    bar_range,
    cells,
    curve_axes,
    curves,
    drawing_order,
    heading,
    metric_facts,
    note,
    ranked,
    reading,
    rows,
    styles,
    styles_of,
    tick_text,
    ticks,
)
from whence.views.pages.charts import Line, key_entry, line_chart
from whence.views.pages.layout import Part, rendered
from whence.views.text import printable


@display.fragment.register(Scoreboard)
def fragment(board: Scoreboard) -> str:
    """The body of its page."""
    return rendered(part(board))


@display.title.register(Scoreboard)
def title(board: Scoreboard) -> str:
    """The title of its page."""
    return f"Scoreboard of {printable(board.model)}" if board.model else "Scoreboard"


def part(board: Scoreboard, title: str = "", said: str | None = None) -> Part:
    """The part of a page that shows a scoreboard: the table, and a section for every metric.

    Where other parts stand before it, it has a `title`, and `said` in place of its own reading.
    """
    by_metric = [rows(board, metric) for metric in board.metrics]
    best_first = [ranked(own) for own in by_metric]
    all_styles = styles(best_first)
    counts = [(board.methods, "method"), (board.metrics, "metric"), (board.values[0, 0], "example")]
    given = {
        "title": title,
        "reading": reading(board) if said is None else said,
        "facts": ", ".join([*(counted(len(things), name) for things, name in counts), f"seed {board.seed}"]),
        "notes": [note(board), *map(printable, board.notes)],
        "headings": [heading(board, metric) for metric in range(len(board.metrics))],
        "methods": _means(board, by_metric),
        "sections": [_section(board, metric, own, styles_of(own, all_styles)) for metric, own in enumerate(best_first)],
    }
    return Part("scoreboard.html", given)


def _means(board: Scoreboard, by_metric: Sequence[Sequence[Row]]) -> list[dict[str, Any]]:
    """The line of every method in the table."""
    columns, lines = [cells(own) for own in by_metric], []
    for number, method in enumerate(board.methods):
        own = [
            # A figure space is as wide as a digit, so that the means line up in a column.
            {
                "mean": mean.replace(" ", "\u2007"),
                "best": row.best or row.tied,
                "star": row.star,
                "interval": interval.replace(",", ", "),
            }
            for row, mean, interval in (column[number] for column in columns)
        ]
        lines.append({"name": breakable(method), "cells": own, "seconds": f"{board.seconds[number].mean():.3g}"})
    return lines


def breakable(spec: str) -> list[str]:
    """A spec in pieces, between which a line may break."""
    return re.split(r"(?<=_)|(?=\()", printable(spec))


def _section(board: Scoreboard, metric: int, found: Sequence[Row], own: dict[str, Style]) -> dict[str, Any]:
    return {
        "metric": printable(board.metrics[metric]),
        "facts": metric_facts(board, metric),
        "bars": bars(found, own),
        "curves": _curves(board, board.metrics[metric], found, own),
    }


def bars(found: Sequence[Row], own: dict[str, Style]) -> dict[str, Any] | None:
    """A bar for every mean, in percent of the width; None where no value is defined."""
    span = bar_range(found)
    if span is None:
        return None

    def at(value: float) -> float:
        return 100 * (value - span.low) / (span.high - span.low)

    lines = []
    for row, mean, interval in cells(found):
        line: dict[str, Any] = {"name": breakable(row.method), "against_best": row.against_best}
        line["best"] = row.best or row.tied
        line |= {"mean": mean.strip(), "title": f"{printable(row.method)}: {mean.strip()} {interval}", "mark": None}
        if np.isfinite(row.score.value):
            value, (start, end) = row.score.value, row.ends
            left, right = sorted((at(value), at(0.0))) if span.from_zero else (at(value), at(value))
            whisker = (_percent(at(start)), _percent(at(end) - at(start))) if row.score.interval else None
            colour = own[row.method].colour
            line["mark"] = {
                "left": _percent(left),
                "width": _percent(right - left),
                "colour": colour,
                "whisker": whisker,
            }
        lines.append(line)
    labels = [(_percent(at(tick)), tick_text(tick)) for tick in ticks(span.low, span.high, 4)]
    return {"lines": lines, "from_zero": span.from_zero, "ticks": labels}


def _percent(value: float) -> str:
    return f"{value:.2f}%"


def _curves(board: Scoreboard, metric: str, found: Sequence[Row], own: dict[str, Style]) -> dict[str, Any] | None:
    """The mean curves of all methods, the best on top; None where a metric has none."""
    lines = curves(board, metric, found)
    if not lines:
        return None
    across, up = curve_axes(board, metric)
    means = {row.method: f"{mean.strip()} {interval}".strip() for row, mean, interval in cells(found)}
    drawn = [
        Line(*lines[method], own[method], f"{printable(method)}: {means[method]}")
        for method in drawing_order(lines, own)
    ]
    key = _key([row.method for row in found if row.method in lines], own)
    return line_chart(drawn, across, up, f"{printable(metric)}: {up} by {across}", key=key)


def _key(methods: Sequence[str], own: dict[str, Style]) -> list[dict[str, Any]]:
    """The legend of the lines, the best first; methods in grey share one entry."""
    named = [method for method in methods if own[method].colour != OTHER_METHODS]
    entries = [key_entry(printable(method), own[method]) for method in named]
    others = [method for method in methods if method not in named]
    if others:
        names = printable(", ".join(others))
        shown = names if len(others) <= FEW else counted(len(others), "other")
        entries.append(key_entry(shown, Style(), names))
    return entries
