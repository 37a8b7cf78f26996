"""Attention maps in the terminal: numbers and shades, as many as the terminal's width allows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np

from whence.core import display
from whence.core.attention_maps import AttentionMaps, AttentionSelection, Panel
from whence.views.colours import WEIGHTS, terminal_colour, terminal_style
from whence.views.content.attention import column_names, facts, named_matrix, over_picture, scale
from whence.views.content.picture import Scale
from whence.views.terminal.layout import LIMITS, SHADES, Token, Tokens, facts_table, grid_lines, shade
from whence.views.terminal.pictures import Colourful, bar_of, pictures_abreast, shows_colours
from whence.views.text import largest, number, right_to_left, strength, weight

WIDTH = 80  # columns of plain text
LABEL = 16  # the widest name of a row
SMALLEST = 3  # rows and columns of a thumbnail at least
POOLED = 16  # rows and columns of a small map; larger maps are averaged down to this size


@display.terminal.register(AttentionSelection)
def terminal(selection: AttentionSelection) -> Any:
    """What rich prints: the facts, and one map in numbers, one query as a line, or many maps in shades."""
    from rich.console import Group
    from rich.text import Text

    return Group(facts_table(facts(selection)), Text(), *_parts(selection))


@display.terminal.register(AttentionMaps)
def terminal_of_all(maps: AttentionMaps) -> Any:
    """The maps that are selected when nothing is asked for."""
    return terminal(maps.view())


@display.text.register(AttentionSelection)
def text(selection: AttentionSelection) -> str:
    """Plain text, no wider than 80 columns."""
    return display.uncoloured(terminal(selection), WIDTH)


@display.text.register(AttentionMaps)
def text_of_all(maps: AttentionMaps) -> str:
    """The maps that are selected when nothing is asked for."""
    return text(maps.view())


def _parts(selection: AttentionSelection) -> Iterator[Any]:
    limit, panels = scale(selection), selection.panels
    if len(panels) == 1 and selection.over_picture:
        yield Colourful(partial(_picture, selection), partial(_shades, selection))
    elif len({layer for layer, _ in panels}) > 1 and (selection.over_picture or selection.query is None):
        yield ModelView([(panel, selection.weights(panel)) for panel in panels])
    elif len(panels) == 1 and selection.query is not None:
        row = zip(column_names(selection), selection.row(panels[0]), strict=True)
        yield Tokens([Token(name, weight(v, limit), terminal_style(v, limit)) for name, v in row])
    elif selection.over_picture or (len(panels) > 1 and selection.query is None):
        yield SmallMaps([(panel, pooled(selection.weights(panel))) for panel in panels], limit)
    else:
        yield WeightTable(*named_matrix(selection), limit)


def _picture(selection: AttentionSelection, width: int) -> Iterator[Any]:
    """The photo beside the same photo under the weights, and the strongest patches."""
    [overlay] = over_picture(selection)
    yield from pictures_abreast([(overlay.canvas.name, overlay.canvas.picture), ("weights", overlay.image)], width)
    yield from () if overlay.scale.flat else (bar_of(overlay, width),)
    *_, strongest = _shades(selection)
    yield strongest


def _shades(selection: AttentionSelection) -> Iterator[Any]:
    """The weights of the patches in shades."""
    scale_of_weights = Scale(0.0, scale(selection), signed=False)
    yield from grid_lines(selection.maps.input, selection.weights(selection.panels[0]), scale_of_weights, "weight")


class ModelView:
    """All heads of all layers as thumbnails: a line of heads per layer, as small as the terminal needs them."""

    def __init__(self, maps: list[tuple[Panel, np.ndarray]]) -> None:
        self.maps = maps

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        layers = {
            layer: [values for _, values in group] for layer, group in groupby(self.maps, lambda item: item[0][0])
        }
        heads, left = len(layers[0]), len(f"layer {len(layers) - 1} ")
        side = max(SMALLEST, min(8, (options.max_width - left + 1) // heads - 1))
        fitting = max(1, (options.max_width - left + 1) // (side + 1))
        fitting = math.ceil(heads / math.ceil(heads / fitting))  # blocks of heads of about one size
        darkest = max(largest(pooled(values, side)) for _, values in self.maps)
        for start in range(0, heads, fitting):
            numbers = "".join(f"{n:<{side + 1}}" for n in range(start, min(start + fitting, heads)))
            yield Text(f"{'head':<{left}}{numbers}".rstrip(), style="dim")
            for layer, maps in layers.items():
                small = [pooled(values, side) for values in maps[start : start + fitting]]
                yield from self._line(f"layer {layer}".ljust(left), small, darkest, shows_colours(console))
        one = "one of them in numbers: --layer 1 --head 0, or maps.view(layer=1, head=0)"
        yield Text(f"a thumbnail is a map, averaged down; the darkest cell is {number(darkest)}; {one}", style="dim")

    def _line(self, name: str, maps: list[np.ndarray], darkest: float, coloured: bool) -> Iterator[Any]:
        """The heads of a layer: half a character per cell in colours, else a character."""
        from rich.text import Text

        step = 2 if coloured else 1
        for row in range(0, len(maps[0]), step):
            line = Text(name if row == 0 else " " * len(name), style="")
            for values in maps:
                for column, value in enumerate(values[row]):
                    if coloured:
                        below = [_weight_colour(v, darkest) for v in values[row + 1 : row + 2, column]]
                        line.append("▀", style=" on ".join([_weight_colour(value, darkest), *below]))
                    else:
                        line.append(shade(value, strength(value, darkest)))
                line.append(" ")
            line.rstrip()
            yield line
        yield Text()


def _weight_colour(value: float, scale: float) -> str:
    """A weight from white to dark blue, in steps, since rich is slow with ever new colours."""
    share = round(24 * strength(value, scale)) / 24
    mixed = (round(np.interp(share, (0, 0.5, 1), channel)) for channel in zip(*WEIGHTS, strict=True))
    return f"rgb({','.join(map(str, mixed))})"


class WeightTable:
    """Rows and columns with names and numbers; a narrow terminal shows fewer of them."""

    def __init__(self, rows: list[str], columns: list[str], matrix: np.ndarray, scale: float) -> None:
        self.rows, self.columns, self.matrix, self.scale = rows, columns, matrix, scale

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.cells import cell_len
        from rich.text import Text

        digits = len(str(max(self.matrix.shape) - 1))
        name = min(LABEL, max(map(cell_len, self.rows)))
        behind = any(map(right_to_left, self.rows))  # terminals would swap such names with the cells
        left = digits + 1 + (0 if behind else name + 1)
        widest = max(map(cell_len, self.columns)) + 1
        cell = min(max(5, min(widest, 10)), (options.max_width - digits - name - 2) // len(self.columns))
        if cell < 1:
            yield from self._strongest(digits, name, options.max_width)
            return
        yield from (Text(" " * left + line, style="dim") for line in self._heads(cell))
        for place, (label, values) in enumerate(zip(self.rows, self.matrix, strict=True)):
            line = Text().append(f"{place:>{digits}} ", style="dim")
            line.append("" if behind else _fitted(label, name) + " ")
            for value in values:
                mark, figures = _written(value, self.scale, cell)
                line.append(mark, style=terminal_colour(value)).append(figures)
                line.append(" " * (cell in (2, 3) or cell > 4))
            yield line.append(" " + _fitted(label, name) if behind else "")
        if cell < widest and self.rows != self.columns:
            keys = "  ".join(f"{n} {column}" for n, column in enumerate(self.columns))
            yield Text(f"\ncolumns: {keys}", style="dim")
        if self.scale:
            limits = (f"{s} {number(self.scale * part)}" for s, part in zip(SHADES[1], LIMITS, strict=True))
            yield Text(f"\nweight from  {'  '.join(limits)}   · less   blank 0", style="dim")

    def _heads(self, cell: int) -> Iterator[str]:
        """Numbers above the columns, and names where there is room for them."""
        if cell >= 4:
            gap = " " * (cell > 4)
            yield "".join(f"{n:>{cell - len(gap)}}{gap}" for n in range(len(self.columns)))
            # Terminals reorder neighbouring right-to-left words, away from their columns.
            if not any(map(right_to_left, self.columns)):
                names = (_fitted(column, cell - 1, right=True) for column in self.columns)
                yield "".join(name + gap if gap else " " + name for name in names)
            return
        step = 5 if cell > 1 else 10
        yield "".join(f"{n:<{step * cell}}" for n in range(0, len(self.columns), step))

    def _strongest(self, digits: int, name: int, width: int) -> Iterator[Any]:
        """A line per row with its strongest columns, where a matrix has no room."""
        from rich.cells import cell_len
        from rich.text import Text

        for place, (label, values) in enumerate(zip(self.rows, self.matrix, strict=True)):
            line = Text().append(f"{place:>{digits}} ", style="dim").append(_fitted(label, name))
            for column in np.argsort(-values, kind="stable"):
                written = f"{column} {_fitted(self.columns[column], LABEL).rstrip()} {values[column]:.2f}"
                if line.cell_len + 2 + cell_len(written) > width:
                    break
                line.append("  ").append(written, style=terminal_style(values[column], self.scale))
            yield line
        columns = len(self.columns)
        yield Text(f"\nonly the strongest of {columns} columns are shown; a saved figure shows them all", style="dim")


class SmallMaps:
    """Maps in shades, side by side as far as they fit, the heads of a layer together."""

    def __init__(self, maps: list[tuple[Panel, np.ndarray]], scale: float) -> None:
        self.maps, self.scale = maps, scale

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.text import Text

        across = 2 if self.maps[0][1].shape[1] <= 8 else 1
        width = max(len("head 00"), across * self.maps[0][1].shape[1])
        fitting = max(1, (options.max_width + 2) // (width + 2))
        for layer, group in groupby(self.maps, key=lambda item: item[0][0]):
            members = list(group)
            yield Text(f"layer {layer}", style="bold")
            for start in range(0, len(members), fitting):
                chosen = members[start : start + fitting]
                yield Text("  ".join(f"head {panel[1]}".ljust(width) for panel, _ in chosen), style="dim")
                for rows in zip(*(values for _, values in chosen), strict=True):
                    line = Text()
                    for values in rows:
                        for value in values:
                            line.append(
                                shade(value, strength(value, self.scale)) * across, style=terminal_colour(value)
                            )
                        line.append(" " * (width - across * len(values) + 2))
                    yield line
                yield Text()


def _fitted(text: str, width: int, right: bool = False) -> str:
    """The text in exactly that many columns of the terminal."""
    from rich.cells import cell_len, set_cell_size

    text = text.strip() or text
    if cell_len(text) > width:
        return set_cell_size(text, width - 1) + "…" if width > 5 else set_cell_size(text, width)
    padding = " " * (width - cell_len(text))
    return padding + text if right else text + padding


def _written(value: float, scale: float, cell: int) -> tuple[str, str]:
    """A weight in a cell: a shade, and two digits where there is room; a gap follows where there is room for one."""
    mark = shade(value, strength(value, scale))
    if cell < 4:
        return mark * max(1, cell - 1), ""
    digits = "" if value == 0 else "·" if value < 0.005 else f"{value:.2f}".removeprefix("0")[:3]
    return mark.replace("·", "").rjust(max(4, cell - 1) - len(digits)), digits


def pooled(values: np.ndarray, most: int = POOLED) -> np.ndarray:
    """Means of neighbouring cells, so that a map has at most `most` rows and columns."""
    for axis in (0, 1):
        count = values.shape[axis]
        if count > most:
            edges = np.linspace(0, count, most + 1).astype(int)
            sums = np.add.reduceat(values, edges[:-1], axis)
            values = sums / np.expand_dims(np.diff(edges), 1 - axis)
    return values
