"""Attention as lines between tokens: queries on the left, keys on the right, a panel per head."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any

import numpy as np

from whence.core import display
from whence.core.attention_maps import AttentionMaps, AttentionSelection, Panel
from whence.core.looks import Look
from whence.core.specs import Between
from whence.views.colours import FOR, in_figure
from whence.views.content.attention import column_names, panel_name, row_names, title
from whence.views.figures import attention
from whence.views.figures.layout import INCH, Millimetres, new_figure, tick, wrapped_to
from whence.views.figures.letters import inches

SIZE = 7.5  # points of names
SMALLEST = 3.0  # points of names where there are very many tokens
TALL = 8.0  # inches of a panel at most
KEPT = 2000  # most lines of a panel; more would hide each other, and make vector files large
BELOW = 0.01  # smaller weights are too faint to be seen and have no line
Lines = Annotated[int, Between(1, 1000)]


@display.figure.register(AttentionSelection, "heads")
def heads(selection: AttentionSelection, *, lines: Lines | None = None, width: Millimetres | None = None) -> Any:
    """A panel per head: the darker a line, the larger the weight; of long texts the largest of every query."""
    panels = selection.panels
    rows, columns = [tick(name) for name in row_names(selection)], [tick(name) for name in column_names(selection)]
    count = max(len(rows), len(columns))
    most = lines or max(1, min(len(columns), KEPT // max(1, len(rows))))
    step = min(0.17, TALL / count)
    size = min(SIZE, max(SMALLEST, step * 72 * 0.85))
    names = max(inches(name, size) for name in (*rows, *columns))
    across = math.ceil(math.sqrt(len(panels) * 1.5)) if len(panels) > 1 else 1
    down = math.ceil(len(panels) / across)
    wide = (width / INCH) / across if width else 2 * names + 1.4
    share = np.mean([kept(selection, panel, most)[1] for panel in panels])
    said = [*title(selection), _caption(most, len(columns), float(share))]
    head = [line for text in said for line in wrapped_to(text, max(wide * across, 3.0) - 0.1, 8)]
    drawn = new_figure(max(wide * across, 3.0), down * (step * count + 0.35) + 0.15 * len(head))
    drawn.suptitle("\n".join(head), fontsize=8, x=0.01, ha="left", parse_math=False)
    grid = drawn.subplots(down, across, squeeze=False).ravel()
    for axes in grid:
        axes.set_axis_off()
    for panel, axes in zip(panels, grid, strict=False):
        edge = names / max(wide - 2 * names, 0.4)
        _draw(axes, selection, panel, most, (rows, columns), size, edge)
        if len(panels) > 1:
            axes.set_title(panel_name(panel), fontsize=8)
    return drawn


def _caption(most: int, columns: int, share: float) -> str:
    """How to read the lines, and how much of the attention they show."""
    shown = f"the {most} largest weights of every query" if most < columns else f"all weights from {BELOW:g}"
    return f"queries left, keys right; the darker a line, the larger its weight; {shown}, {share:.0%} of all attention"


def kept(selection: AttentionSelection, panel: Panel, most: int) -> tuple[list[tuple[int, int, float]], float]:
    """Query, key and weight of the lines that are drawn, weakest first, and their share of all attention."""
    matrix = np.nan_to_num(selection.matrix(panel), nan=0.0)
    rows = range(len(matrix)) if selection.query is None else [selection.query]
    chosen = [
        (row, int(key), float(matrix[row, key]))
        for row in rows
        for key in np.argsort(-matrix[row], kind="stable")[:most]
        if matrix[row, key] >= BELOW
    ]
    total = float(matrix[list(rows)].sum())
    return sorted(chosen, key=lambda line: line[2]), sum(line[2] for line in chosen) / total if total else 0.0


def _draw(
    axes: Any,
    selection: AttentionSelection,
    panel: Panel,
    most: int,
    names: tuple[list[str], list[str]],
    size: float,
    edge: float,
) -> None:
    """The names of both sides, and the lines between them."""
    from matplotlib.collections import LineCollection

    found, _ = kept(selection, panel, most)
    strongest = max((weight for _, _, weight in found), default=1.0)
    colours = [(*in_figure(FOR), min(1.0, 0.08 + 0.92 * weight / strongest)) for _, _, weight in found]
    widths = [0.4 + 1.4 * weight / strongest for _, _, weight in found]
    ends = [[(0.03, row), (0.97, key)] for row, key, _ in found]
    axes.add_collection(LineCollection(ends, colors=colours, linewidths=widths))
    longest = max(map(len, names))
    axes.set(xlim=(-edge, 1 + edge), ylim=(longest - 0.5, -0.5))
    for side, own, place in (("right", names[0], 0.0), ("left", names[1], 1.0)):
        for number, name in enumerate(own):
            faint = side == "right" and selection.query not in (None, number)
            colour = "0.7" if faint else "black"
            text = {"ha": side, "va": "center_baseline", "fontsize": size, "color": colour, "parse_math": False}
            axes.text(place, number, name, **text)


@display.figure.register(AttentionSelection, "matrix")
def matrix(selection: AttentionSelection) -> Any:
    """The weights of all queries and keys, also where they could be laid over a picture; a query alone as one row."""
    return attention.figure(replace(selection, over_picture=False))


@display.figure.register(AttentionSelection, "model")
def model(selection: AttentionSelection, look: Look | None = None) -> Any:
    """All layers and heads, small."""
    layers, heads_of_each = selection.maps.weights[selection.streams].shape[:2]
    panels = tuple((layer, head) for layer in range(layers) for head in range(heads_of_each))
    query = selection.query if selection.over_picture else None
    return attention.figure(replace(selection, panels=panels, query=query), look)


@display.figure.register(AttentionMaps, "heads")
def heads_of_all(maps: AttentionMaps, *, lines: Lines | None = None, width: Millimetres | None = None) -> Any:
    """The maps that are selected when nothing is asked for, as lines."""
    return heads(maps.view(), lines=lines, width=width)


@display.figure.register(AttentionMaps, "matrix")
def matrix_of_all(maps: AttentionMaps) -> Any:
    """The map that is selected when nothing is asked for, as a matrix."""
    return matrix(maps.view(query="all"))


@display.figure.register(AttentionMaps, "model")
def model_of_all(maps: AttentionMaps, look: Look | None = None) -> Any:
    """All layers and heads, small."""
    return model(maps.view(), look)
