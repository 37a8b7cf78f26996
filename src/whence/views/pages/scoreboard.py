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
    rows,
    styles,
    styles_of,
    tick_text,
    ticks,
    widened,
)
from whence.views.pages.layout import Part, rendered
from whence.views.text import printable

WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 440, 270, 44, 10, 26, 40  # of the drawing of curves, and its margins


@display.fragment.register(Scoreboard)
def fragment(board: Scoreboard) -> str:
    """The body of its page."""
    return rendered(part(board))


def part(board: Scoreboard) -> Part:
    """The part of a page that shows a scoreboard: the table, and a section for every metric."""
    by_metric = [rows(board, metric) for metric in board.metrics]
    best_first = [ranked(own) for own in by_metric]
    all_styles = styles(best_first)
    counts = [(board.methods, "method"), (board.metrics, "metric"), (board.values[0, 0], "example")]
    given = {
        "model": printable(board.model) if board.model else "",
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
            # A figure space is as wide as a digit, so that means stand below each other.
            {
                "mean": mean.replace(" ", "\u2007"),
                "best": row.best,
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
        line: dict[str, Any] = {"name": breakable(row.method), "best": row.best, "against_best": row.against_best}
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
    values = np.concatenate([line[1] for line in lines.values()])
    low, high = widened(float(values.min()), float(values.max()), 0.04, 0.04)
    end = max(float(shares[-1]) for shares, _ in lines.values()) or 1.0
    right, bottom = WIDE - RIGHT, HIGH - BOTTOM

    def x(share: float) -> str:
        return f"{LEFT + (right - LEFT) * share / end:.1f}"

    def y(value: float) -> float:
        return bottom - (bottom - TOP) * (value - low) / (high - low)

    means = {row.method: f"{mean.strip()} {interval}".strip() for row, mean, interval in cells(found)}
    drawn = [
        {
            "points": " ".join(f"{x(a)},{y(b):.1f}" for a, b in zip(*lines[method], strict=True)),
            "style": own[method],
            "faint": own[method].colour == OTHER_METHODS,
            "title": f"{printable(method)}: {means[method]}",
        }
        for method in drawing_order(lines, own)
    ]
    return {
        "label": f"{printable(metric)}: {up} by {across}",
        "across": across,
        "up": up,
        "size": {"wide": WIDE, "high": HIGH, "left": LEFT, "right": right, "top": TOP, "bottom": bottom},
        "marks_up": [(f"{y(tick):.1f}", f"{y(tick) + 4:.1f}", tick_text(tick)) for tick in ticks(low, high, 5)],
        "marks_across": [(x(tick), tick_text(tick)) for tick in ticks(0, end, 5)],
        "lines": drawn,
        "key": _key([row.method for row in found if row.method in lines], own),
    }


def _key(methods: Sequence[str], own: dict[str, Style]) -> list[dict[str, Any]]:
    """Which line is whose, the best first; methods in grey share one entry."""
    named = [method for method in methods if own[method].colour != OTHER_METHODS]
    entries = [
        {"name": printable(method), "title": "", "line": f"{max(2, round(s.width))}px {s.line} {s.colour}"}
        for method, s in ((method, own[method]) for method in named)
    ]
    others = [method for method in methods if method not in named]
    if others:
        names = printable(", ".join(others))
        shown = names if len(others) <= FEW else counted(len(others), "other")
        entries.append({"name": shown, "title": names, "line": f"1px solid {OTHER_METHODS}"})
    return entries
