"""Attention maps as a figure: one map with names, the heads of a layer, all layers, or weights over the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from whence.core import display
from whence.core.attention_maps import AttentionMaps, AttentionSelection
from whence.core.geometry import patches
from whence.core.looks import Look
from whence.views.colours import WEIGHTS, colour_map
from whence.views.content.attention import column_names, named_matrix, over_picture, row_names, scale, title
from whence.views.content.picture import Overlay
from whence.views.figures.layout import new_figure, tick, wrapped
from whence.views.figures.overlay import colours_over_white, draw_overlay

CELL, MAP = 0.32, 12.0  # inches: the size of a cell, and the largest size of a map
SMALL = 1.3  # inches of a map among all layers
MISSING = "0.85"  # the grey of NaN, and of the gaps between maps


@display.figure.register(AttentionSelection)
def figure(selection: AttentionSelection, look: Look | None = None) -> Any:
    """The selected maps under their facts."""
    over = over_picture(selection, look)
    if not selection.over_picture and (selection.query is not None or len(selection.panels) == 1):
        drawn = _one_map(selection)
    elif len({layer for layer, _ in selection.panels}) > 1:
        drawn = _all_layers(selection, over)
    else:
        drawn = _heads(selection, over)
    fitting = int(12 * drawn.get_figwidth())  # letters in a line
    lines = (wrapped(line, fitting) for line in title(selection))
    drawn.suptitle("\n".join(lines), fontsize="medium", parse_math=False)
    return drawn


@display.figure.register(AttentionMaps)
def figure_of_all(maps: AttentionMaps, look: Look | None = None) -> Any:
    """The maps that are selected when nothing is asked for."""
    return figure(maps.view(), look)


def _one_map(selection: AttentionSelection) -> Any:
    """A heat map with names at both axes."""
    rows, columns, matrix = named_matrix(selection)
    cell = min(CELL, MAP / max(matrix.shape))
    size = (max(5.0, 2.8 + cell * len(columns)), max(2.0, 2.0 + cell * len(rows)))
    drawn = new_figure(*size)
    axes = drawn.subplots()
    _heat(axes, matrix, scale(selection), aspect="equal")
    _label(axes, rows, columns, cell)
    axes.set(xlabel="key", ylabel="query" if selection.query is None else "")
    _colour_bar(drawn, axes, (), scale(selection), 0.9)
    return drawn


def _heads(selection: AttentionSelection, over: Sequence[Overlay]) -> Any:
    """The heads of a layer side by side, or one map over the picture."""
    count = len(selection.panels)
    across = math.ceil(math.sqrt(count))
    down = math.ceil(count / across)
    rows, columns = selection.weights(selection.panels[0]).shape
    named = not selection.over_picture and max(rows, columns) <= 24
    side = 4.5 if count == 1 else max(2.2, 0.16 * columns) if named else 2.2
    tall = side * (_slimness(*over[0].image.shape[:2]) if over else _slimness(rows, columns))
    margin = 1.0 if named else 0.3
    size = (max(5.0, 1.2 + margin + side * across), 1.0 + margin + (tall + 0.25) * down)
    drawn = new_figure(*size)
    grid = drawn.subplots(down, across, squeeze=False)
    for axes in grid.ravel()[count:]:
        axes.set_axis_off()
    limit = scale(selection)
    for place, (panel, axes) in enumerate(zip(selection.panels, grid.ravel(), strict=False)):
        first, last = place % across == 0, place + across >= count
        if selection.over_picture:
            draw_overlay(axes, over[place], bar=False)
            _frame_query(axes, selection, over[place])
        else:
            _heat(axes, selection.matrix(panel), limit, aspect="auto")
            axes.tick_params(labelleft=first, labelbottom=last, labelsize="small")
        if named:
            _label(axes, row_names(selection) if first else [], column_names(selection) if last else [], side / columns)
        if count > 1:
            axes.set_title(f"head {panel[1]}", fontsize="small")
    _colour_bar(drawn, grid, over, limit, 0.9 if down < 3 else 0.5)
    return drawn


def _all_layers(selection: AttentionSelection, over: Sequence[Overlay]) -> Any:
    """Layers from top to bottom, heads from left to right, as one picture: drawing an axes per head would take long."""
    layers, heads = selection.panels[-1][0] + 1, len(selection.panels) // (selection.panels[-1][0] + 1)
    limit = scale(selection)
    tiles = [one.image for one in over] or [selection.weights(p) for p in selection.panels]
    down, across = tiles[0].shape[:2]
    gap = max(1, round(0.06 * max(down, across)))
    edges = ((0, gap), (0, gap), (0, 0))[: tiles[0].ndim]
    gaps = 255 if over else np.nan
    padded = [np.pad(tile if over else tile.astype(float), edges, constant_values=gaps) for tile in tiles]
    rows = [np.concatenate(padded[start : start + heads], 1) for start in range(0, len(padded), heads)]
    whole = np.concatenate(rows, 0)[:-gap, :-gap]
    tall = SMALL * _slimness(down, across)
    size = (max(5.0, 2.0 + SMALL * heads), max(2.5, 1.2 + tall * layers))
    drawn = new_figure(*size)
    axes = drawn.subplots()
    if selection.over_picture:
        axes.imshow(whole, aspect="auto")
    else:
        _heat(axes, whole, limit, aspect="auto")
    axes.set_xticks([n * (across + gap) + (across - 1) / 2 for n in range(heads)], [f"head {n}" for n in range(heads)])
    axes.set_yticks([n * (down + gap) + (down - 1) / 2 for n in range(layers)], [f"layer {n}" for n in range(layers)])
    axes.tick_params(top=False, bottom=False, left=False, labeltop=True, labelbottom=False, labelsize="small")
    axes.spines[:].set_visible(False)
    _colour_bar(drawn, axes, over, limit, 0.9 if layers < 3 else 0.5)
    return drawn


def _slimness(rows: int, columns: int) -> float:
    """Height of a map by its width, within reason."""
    return min(3.0, max(1 / 3, rows / columns))


def _heat(axes: Any, matrix: np.ndarray, limit: float, aspect: str) -> None:
    shown = np.ma.masked_invalid(matrix)
    axes.imshow(
        shown, aspect=aspect, interpolation="nearest", cmap=colour_map(*WEIGHTS, bad=MISSING), vmin=0, vmax=limit or 1.0
    )


def _frame_query(axes: Any, selection: AttentionSelection, overlay: Overlay) -> None:
    """A frame around the query where it is a patch."""
    from matplotlib.patches import Rectangle

    rows, on_grid = selection.maps.members(selection.streams[0]), patches(selection.maps.input).tolist()
    if selection.query is None or rows[selection.query] not in on_grid:
        return
    grid, (left, top, right, bottom) = selection.maps.input.grid or (1, 1), overlay.canvas.box
    down, across = divmod(on_grid.index(rows[selection.query]), grid[1])
    height, width = (bottom - top) / grid[0], (right - left) / grid[1]
    corner = (left + across * width - 0.5, top + down * height - 0.5)
    for colour, line in (("black", 3.0), ("white", 1.5)):
        axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=colour, linewidth=line))


def _colour_bar(drawn: Any, axes: Any, over: Sequence[Overlay], limit: float, shrink: float) -> None:
    """The bar of colours that all maps share."""
    from matplotlib.cm import ScalarMappable

    own = colours_over_white(over[0].scale) if over else colour_map(*WEIGHTS, bad=MISSING)
    high = over[0].scale.high if over else limit
    shown = ScalarMappable(cmap=own)
    shown.set_clim(0, high or 1.0)
    label = "\n".join(["attention weight", *(over[0].legend if over and high else ())])
    drawn.colorbar(shown, ax=axes, label=label, shrink=shrink, extend="max" if high < limit else "neither")


def _label(axes: Any, rows: list[str], columns: list[str], cell: float) -> None:
    """Names at the axes, in a size that fits cells of `cell` inches; where it would be too small, only some names."""
    size = min(9.0, cell * 72 * 0.8)
    step = math.ceil(5.5 / size)
    for axis, names, turn in ((axes.yaxis, rows, 0), (axes.xaxis, columns, 90)):
        chosen = range(0, len(names), step)
        labels = [tick(names[n]) for n in chosen]
        axis.set_ticks(list(chosen), labels, fontsize=max(size, 5.5), rotation=turn, parse_math=False)
