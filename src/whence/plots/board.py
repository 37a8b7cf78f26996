"""Views of a Scoreboard: a table for the terminal, and bars with intervals for a page."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from whence.types import Score, Scoreboard

ARROWS = {"higher": "\u2191", "lower": "\u2193"}
CLOSE = 0.05  # a p above it: not told apart from the best


def table(board: Scoreboard) -> Any:
    """Means with their intervals; the best of a column is bold, and * marks what is not told apart from it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    heads = [
        f"{metric} {ARROWS[better]}" + (hidden and f"\nhidden: {hidden}")
        for metric, better, hidden in zip(board.metrics, board.better, board.hidden, strict=True)
    ]
    shown = Table("method", *heads, "s/example")
    for number, method in enumerate(board.methods):
        cells = []
        for metric in board.metrics:
            best = method == board.best(metric)
            star = "*" if not best and board.p_value(method, metric) > CLOSE else ""
            cells.append(Text(_mean(board.score(method, metric)) + star, style="bold" if best else ""))
        shown.add_row(method, *cells, f"{board.seconds[number].mean():.3g}")
    note = (
        f"{board.model}, {board.values.shape[-1]} examples; 95 % intervals of the mean; * not told apart from the best"
    )
    return Group(shown, Text(f"(p > {CLOSE}, paired sign flips). {note}"))


def html(board: Scoreboard) -> str:
    """A section for every metric: a row per method, best first."""
    parts = [f"<h1>{escape(board.model)}: {board.values.shape[-1]} examples</h1>"]
    for metric, better in zip(board.metrics, board.better, strict=True):
        found = {method: board.score(method, metric) for method in board.methods}
        order = sorted(found, key=lambda m: found[m].value if better == "lower" else -found[m].value)
        reach = [end for s in found.values() for end in (s.interval or (s.value, s.value)) if np.isfinite(end)]
        low, high = min([0.0, *reach]), max([1e-12, *reach])

        def place(x: float, low: float = low, high: float = high) -> float:
            return 100 * (x - low) / (high - low)

        parts.append(f"<h2>{escape(metric)} ({better} is better)</h2><table>")
        for method in order:
            s = found[method]
            ends = s.interval or (s.value, s.value)
            bar = (
                ""
                if not np.isfinite(s.value)
                else (
                    f'<div style="position:relative;width:20em;height:1em">'
                    f'<div style="position:absolute;height:100%;background:#4a7fb5;width:{place(s.value):.1f}%"></div>'
                    f'<div style="position:absolute;top:45%;height:2px;background:#888;left:{place(ends[0]):.1f}%;'
                    f'width:{place(ends[1]) - place(ends[0]):.1f}%"></div></div>'
                )
            )
            p = board.p_value(method, metric)
            parts.append(f"<tr><td>{escape(method)}</td><td>{_mean(s)}</td><td>{bar}</td><td>p = {p:.3g}</td></tr>")
        parts.append("</table>")
    return "\n".join(parts)


def _mean(s: Score) -> str:
    if not np.isfinite(s.value):
        return "-"
    return f"{s.value:.3g}" + ("" if s.interval is None else f" [{s.interval[0]:.3g}, {s.interval[1]:.3g}]")
