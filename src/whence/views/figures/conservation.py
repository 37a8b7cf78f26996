"""Where relevance leaks, as a figure: totals at the edges of blocks, and below them the leaks of every block."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from whence.core import display
from whence.core.relevance_balance import Conservation, ModuleRelevance
from whence.views.content.conservation import NOISE, Rows, blocks, boundaries, leaks_by_kind, methods
from whence.views.figures.layout import legend_beside, new_figure, tick
from whence.views.text import printable

BEFORE, BETWEEN, AFTER = "before", "between", "after"  # names of segments outside of blocks
KINDS = ("#266ed6", "#d03030", "#e0a020", "#3a9a5b", "#8557b5", "#50b0c0")  # colours of kinds of modules
METHODS = ("#202020", "#e07b00")  # colours of lines
BIASES = "#b0b0b0"
OTHERS, CONSTANTS = "other modules", "biases (no leak)"


@display.figure.register(Conservation)
def figure(c: Conservation) -> Any:
    """Totals at the edges between blocks; below, what each block leaks, by kind, and what its biases take."""
    shown = methods(c)
    segments = _segments(shown)
    size = (max(6.5, 2.5 + 0.5 * len(segments)), 2.6 + 2.0 * len(shown))
    drawn = new_figure(*size)
    axes = drawn.subplots(1 + len(shown), 1, sharex=True)
    _draw_totals(axes[0], c, shown, segments)
    kinds = _largest_kinds(shown)
    for place, (name, rows) in enumerate(shown, 1):
        _draw_leaks(axes[place], rows, segments, kinds)
        axes[place].set_title(f"leaks of {name}", fontsize="small", loc="left", parse_math=False)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    limits = [axis.get_ylim() for axis in axes[1:]]
    for axis in axes[1:]:
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    crowded = len(segments) > 16 or any(" " in label for label in segments)
    names = [tick(label) for label in segments]
    axes[-1].set_xticks([n + 0.5 for n in range(len(segments))], names, rotation=90 if crowded else 0, parse_math=False)
    axes[-1].set_xlabel("block")
    legend_beside(axes[1])
    title = f"{c.method} on {c.model}: {c.target}"
    drawn.suptitle(printable(title), fontsize="small", parse_math=False)
    return drawn


def _segments(shown: list[tuple[str, Rows]]) -> list[str]:
    """The names of the blocks and of the segments outside of them, from the input to the output."""
    labels = [
        label for _, rows in shown for label, row, bias in _placed(rows) if row.block or _loses_relevance(row, bias)
    ]
    order = dict.fromkeys(label for _, rows in shown for label, *_ in _placed(rows) if label in labels)
    return [BEFORE, *(label for label in order if label not in (BEFORE, AFTER)), AFTER]


def _loses_relevance(row: ModuleRelevance, bias: float) -> bool:
    """Whether a module itself leaks relevance, or gives it to its biases, beyond rounding."""
    return abs(row.own_leak) + abs(bias) > NOISE * row.absolute


def _placed(rows: Rows) -> Iterator[tuple[str, ModuleRelevance, float]]:
    """Every row with its segment and the biases that are in no module inside it."""
    blocks = [place for place, row in enumerate(rows) if row.block] or [len(rows)]
    for place, row in enumerate(rows):
        inside = 0.0
        for other in rows[place + 1 :]:
            if other.depth <= row.depth:
                break
            inside += other.bias if other.depth == row.depth + 1 else 0.0
        outside = BEFORE if place < blocks[0] else AFTER if place > blocks[-1] else BETWEEN
        yield row.block or outside, row, row.bias - inside


def _largest_kinds(shown: list[tuple[str, Rows]]) -> list[str]:
    sums: dict[str, float] = defaultdict(float)
    for _, rows in shown:
        for kind, value in leaks_by_kind(rows).items():
            sums[kind] += value
    ranked = sorted(sums, key=lambda kind: -sums[kind])
    leaky = [kind for kind in ranked if sums[kind] > NOISE * sums[ranked[0]]]
    return leaky if len(leaky) <= len(KINDS) else [*leaky[: len(KINDS) - 1], OTHERS]


def _draw_totals(axes: Any, c: Conservation, shown: list[tuple[str, Rows]], segments: list[str]) -> None:
    axes.axhline(c.output, color="0.6", linewidth=1, linestyle="--", label="f(x)")
    for (name, rows), colour, marker in zip(shown, METHODS, "os", strict=False):
        for places, totals in _lines(c, rows, segments):
            axes.plot(places, totals, color=colour, marker=marker, markersize=4, label=name)
            name = "_nolegend_"
    axes.axhline(0, color="0.8", linewidth=0.8)
    axes.set_ylabel("total relevance")
    axes.set_title("relevance at the edges of blocks, input left, output right", fontsize="small", loc="left")
    legend_beside(axes)


def _lines(c: Conservation, rows: Rows, segments: list[str]) -> Iterator[tuple[list[int], list[float]]]:
    """Totals at the edges of segments; streams that run beside each other have a line each."""
    totals = dict(boundaries(c, rows))
    places = {"input": 0, "f(x)": len(segments)}
    streams: dict[str, list[str]] = defaultdict(list)
    for label in blocks(rows):
        for name, edge in ((f"into block {label}", 0), (f"out of block {label}", 1)):
            if name in totals:
                places[name] = segments.index(label) + edge
                streams[label.rpartition(" ")[0]].append(name)
    lines = [["input", *next(iter(streams.values()), []), "f(x)"]]
    if len(streams) > 1:
        lines = [["input"], *streams.values(), ["f(x)"]]
    for names in lines:
        yield [places[name] for name in names], [totals[name] for name in names]


def _draw_leaks(axes: Any, rows: Rows, segments: list[str], kinds: list[str]) -> None:
    """Stacked bars, those above 0 and those below it."""
    shares = {kind: np.zeros(len(segments)) for kind in (*kinds, OTHERS, CONSTANTS)}
    for segment, row, bias in _placed(rows):
        place = segments.index(segment if segment in segments else BEFORE)
        shares[row.kind if row.kind in kinds else OTHERS][place] += row.own_leak
        shares[CONSTANTS][place] += bias
    top, bottom = np.zeros(len(segments)), np.zeros(len(segments))
    middle = np.arange(len(segments)) + 0.5
    for kind, colour in zip((*kinds, CONSTANTS), (*KINDS[: len(kinds)], BIASES), strict=True):
        values = shares[kind]
        start = np.where(values >= 0, top, bottom)
        axes.bar(middle, values, 0.7, bottom=start, color=colour, label=kind)
        top, bottom = top + values.clip(min=0), bottom + values.clip(max=0)
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.set_ylim(bottom.min() - 0.05 * np.ptp([bottom, top]), top.max() + 0.05 * np.ptp([bottom, top]))
    axes.set_ylabel("relevance")
