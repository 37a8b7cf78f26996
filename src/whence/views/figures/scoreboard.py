"""A Scoreboard as a figure: for every metric bars with intervals, best first, and its curves beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from whence.core import display
from whence.core.scoreboards import Scoreboard
from whence.views.content.scoreboard import (
    Row,
    Style,
    curve_axes,
    curves,
    drawing_order,
    facts_line,
    metric_facts,
    note,
    ranked,
    rows,
    styles,
    styles_of,
)
from whence.views.figures.layout import INCH, Millimetres, colour_of, draw_means, new_figure, wrapped
from whence.views.text import printable

WIDTH = 5.6  # inches of the bars of a metric, and of its curves


@display.figure.register(Scoreboard)
def figure(board: Scoreboard) -> Any:
    """A line of panels for every metric."""
    across = 1 + has_curves(board)
    drawn = new_figure(WIDTH * across + 1, height(board))
    said = " ".join([f"{facts_line(board)}.", note(board), *board.notes])
    drawn.suptitle(wrapped(said, int(11 * WIDTH * across)), fontsize="small", parse_math=False)
    draw_metrics(drawn, board)
    return drawn


@display.figure.register(Scoreboard, "bars")
def bars(board: Scoreboard) -> Any:
    """The means of every metric with their intervals, without curves."""
    return figure(replace(board, curves=None))


@display.figure.register(Scoreboard, "curves")
def curves_alone(board: Scoreboard, *, width: Millimetres = 130) -> Any:
    """The mean curves of the metrics that have some."""
    found = [(metric, ranked(rows(board, metric))) for metric in board.metrics]
    shown = [(metric, own) for metric, own in found if curves(board, metric, own)]
    if not shown:
        raise ValueError(
            f"no metric of this board has curves ({', '.join(map(printable, board.metrics))}); draw 'bars'"
        )
    drawn = new_figure(width / INCH, 0.3 + (0.75 * width / INCH) * len(shown))
    all_styles = styles([own for _, own in shown])
    for axes, (metric, own) in zip(drawn.subplots(len(shown), squeeze=False)[:, 0], shown, strict=True):
        _draw_curves(axes, board, metric, own, styles_of(own, all_styles))
        axes.set_title(printable(metric), fontsize="small", loc="left", parse_math=False)
    return drawn


def height(board: Scoreboard) -> float:
    """Inches that all metrics need below each other."""
    return 0.9 + len(board.metrics) * max(1.2 + 0.26 * len(board.methods), 3.2 if has_curves(board) else 0.0)


def has_curves(board: Scoreboard) -> bool:
    """Whether any metric has curves."""
    return any(len(board.curve(method, metric)[0]) for method in board.methods for metric in board.metrics)


def draw_metrics(drawn: Any, board: Scoreboard) -> None:
    """Bars of every metric, and curves where the metric has some, on a figure or a part of one."""
    best_first = [ranked(rows(board, metric)) for metric in board.metrics]
    all_styles = styles(best_first)
    grid = drawn.subplots(len(board.metrics), 1 + has_curves(board), squeeze=False)
    for metric, (line, found) in enumerate(zip(grid, best_first, strict=True)):
        own = styles_of(found, all_styles)
        draw_means(line[0], found, own)
        name = f"{printable(board.metrics[metric])}\n{metric_facts(board, metric)}"
        line[0].set_title(name, fontsize="small", loc="left", parse_math=False)
        for axes in line[1:]:
            _draw_curves(axes, board, board.metrics[metric], found, own)


def _draw_curves(axes: Any, board: Scoreboard, metric: str, found: Sequence[Row], own: dict[str, Style]) -> None:
    """The mean curves of all methods, the best on top; nothing where a metric has none."""
    lines = curves(board, metric, found)
    if not lines:
        axes.set_axis_off()
        return
    for method in drawing_order(lines, own):
        style = own[method]
        dash = (0, [length / style.width for length in style.dash]) if style.dash else "solid"
        alpha = 1.0 if style.width > 1 else 0.55
        label = wrapped(method, 28) if style.width > 1 else "_nolegend_"
        axes.plot(
            *lines[method], color=colour_of(style), linewidth=style.width, linestyle=dash, alpha=alpha, label=label
        )
    across, up = curve_axes(board, metric)
    axes.set_xlabel(across, fontsize="small", parse_math=False)
    axes.set_ylabel(up, fontsize="small", parse_math=False)
    axes.tick_params(labelsize="small")
    axes.grid(alpha=0.3, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if handles:  # the best first, in the order of the bars
        legend = axes.legend(handles[::-1], labels[::-1], fontsize="x-small", frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)
