"""Attention maps: queries as rows, keys as columns, or one query over the picture; one map, or many side by side."""

from __future__ import annotations

import difflib
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

import numpy as np

from whence import views
from whence.core.attention_maps import AttentionMaps
from whence.views import image, tokens
from whence.views.tokens import largest, number, printable, weight

WIDTH = 80  # of plain text
LABEL = 16  # the widest name of a row in the terminal
POOLED = 16  # rows and columns of a small map in the terminal; what is larger is averaged down to it
CELL, MAP = 0.32, 12.0  # inches of a figure: a cell, and the most that all cells of a map may take
SMALL = 1.3  # inches of a map among all layers
SHADES = ((255, 255, 255), tokens.FOR, (10, 30, 90))  # of a heat map, from 0 to the largest weight
OVER_PICTURE = ((150, 150, 150), tokens.FOR)  # of weights over a picture
Panel = tuple[int, int | None]  # layer and head; None is the mean over the heads


def view(
    maps: AttentionMaps,
    *,
    layer: int | None = None,
    head: int | None = None,
    query: int | str | None = None,
    streams: str | tuple[str, str] | None = None,
    all_heads: bool = False,
    all_layers: bool = False,
) -> View:
    """The part of the maps that was asked for, checked."""
    pair = _pair(maps, streams)
    layers, heads = maps.weights[pair].shape[:2]
    if head is not None and (all_heads or all_layers):
        raise ValueError(f"all heads were asked for, and head {head} too; leave one of them out")
    if layer is not None and all_layers:
        raise ValueError(f"all layers were asked for, and layer {layer} too; leave one of them out")
    panels: list[Panel]
    if all_layers:
        panels = [(one, other) for one in range(layers) for other in range(heads)]
    else:
        chosen = _numbered("layer", -1 if layer is None else layer, layers)
        one_head = None if head is None else _numbered("head", head, heads)
        panels = [(chosen, other) for other in range(heads)] if all_heads else [(chosen, one_head)]
    rows, columns = maps.members(pair[0]), maps.members(pair[1])
    on_picture = set(image.patches(maps.input).tolist())
    over_picture = bool(on_picture) and on_picture <= set(columns) and query != "all"
    return View(maps, pair, tuple(panels), _row(maps, rows, query, over_picture), over_picture)


def _pair(maps: AttentionMaps, streams: str | tuple[str, str] | None) -> tuple[str, str]:
    """The streams of queries and keys; where none are named, cross-attention of a decoder, else the first."""
    if streams is None:
        return ("target", "source") if ("target", "source") in maps.weights else next(iter(maps.weights))
    pair = tuple(streams.split(":")) if isinstance(streams, str) else tuple(streams)
    if pair not in maps.weights:
        known = ", ".join(":".join(pair) for pair in maps.weights)
        raise ValueError(
            f"streams={':'.join(map(str, pair))!r} names no attention here (queries:keys); there is {known}"
        )
    return pair


def _numbered(what: str, wanted: int, count: int) -> int:
    if not -count <= wanted < count:
        raise ValueError(f"{what} {wanted} is out of range: there are {count} here, from 0 to {count - 1}")
    return wanted % count


def _row(maps: AttentionMaps, rows: Sequence[int], query: int | str | None, over_picture: bool) -> int | None:
    """The number of the query that is shown alone; None: all of them."""
    if query == "all":
        return None
    if query is None:
        return next((n for n, i in enumerate(rows) if maps.input.special[i]), None) if over_picture else None
    if isinstance(query, int):
        return _numbered("query", query, len(rows))
    names = [maps.input.features[i] for i in rows]
    found = [n for n, name in enumerate(names) if name == query] or [
        n for n, name in enumerate(names) if name.strip() == query.strip()
    ]
    if len(found) != 1:
        near = difflib.get_close_matches(query, names, n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"give a number from 0 to {len(names) - 1}"
        hint = f"it stands at {', '.join(map(str, found))}; give the number" if found else hint
        raise ValueError(f"the query {query!r} names {len(found)} tokens, and one is needed: {hint}")
    return found[0]


@dataclass(frozen=True, eq=False)
class View:
    """One or several of the maps, as they are printed, written and plotted."""

    maps: AttentionMaps
    streams: tuple[str, str]
    panels: tuple[Panel, ...]
    query: int | None  # the row that is shown alone
    over_picture: bool

    def matrix(self, layer: int, head: int | None) -> np.ndarray:
        """(query, key) weights."""
        weights = self.maps.weights[self.streams][layer]
        return weights.mean(0) if head is None else weights[head]

    @property
    def rows(self) -> list[str]:
        """The names of the queries."""
        return self._names(self.streams[0])

    @property
    def columns(self) -> list[str]:
        """The names of the keys."""
        return self._names(self.streams[1])

    def _names(self, stream: str) -> list[str]:
        return [printable(self.maps.input.features[i]) for i in self.maps.members(stream)]

    def __str__(self) -> str:
        return views.uncoloured(self.__rich__(), WIDTH)

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        return Group(views.facts_table(self._facts()), Text(), *self._parts())

    def to_html(self) -> str:
        """A self-contained page."""
        return views.page("\n".join([views.facts_html(self._facts()), *self._parts_html()]))

    def _repr_html_(self) -> str:
        return self.to_html()

    def plot(self) -> Any:
        """A matplotlib Figure."""
        if not self.over_picture and (self.query is not None or len(self.panels) == 1):
            drawn = _one_map(self)
        elif len({layer for layer, _ in self.panels}) > 1:
            drawn = _all_layers(self)
        else:
            drawn = _heads(self)
        fitting = int(12 * drawn.get_figwidth())  # letters in a line
        lines = (textwrap.fill(line, fitting) for line in self._title())
        drawn.suptitle("\n".join(lines), fontsize="medium", parse_math=False)
        return drawn

    # ---- what is shown -----------------------------------------------------------------------------------------------

    def _row_of(self, panel: Panel) -> np.ndarray:
        """(key,) weights of the chosen query; the mean of all where none stands out."""
        matrix = self.matrix(*panel)
        return matrix.mean(0) if self.query is None else matrix[self.query]

    def _shown(self, panel: Panel) -> np.ndarray:
        """What a map shows: the patches' weights on their grid, or (query, key)."""
        if not self.over_picture:
            return self.matrix(*panel)
        return self._row_of(panel)[self._on_picture()].reshape(self.maps.input.grid)

    def _on_picture(self) -> list[int]:
        """The keys that are patches, row by row."""
        place = {feature: n for n, feature in enumerate(self.maps.members(self.streams[1]))}
        return [place[feature] for feature in image.patches(self.maps.input).tolist()]

    def _table(self) -> tuple[list[str], list[str], np.ndarray]:
        """Names of rows and columns, and the weights: of one map, or of one query in several."""
        if self.query is None:
            return self.rows, self.columns, self.matrix(*self.panels[0])
        names = [self.rows[self.query]] if len(self.panels) == 1 else [_name(panel) for panel in self.panels]
        return names, self.columns, np.stack([self._row_of(panel) for panel in self.panels])

    @property
    def _scale(self) -> float:
        if self.query is not None and not self.over_picture:
            return largest(self._table()[2])
        return max(largest(self._shown(panel)) for panel in self.panels)

    def _title(self) -> list[str]:
        facts = dict(self._facts())
        named = ", ".join(
            text if text.startswith(("all", "mean")) else f"{what} {text}" for what, text in list(facts.items())[1:3]
        )
        return [
            f"{facts['model']}: attention, {named}",
            *(f"{name}: {facts[name]}" for name in ("query", "elsewhere", "streams", "sink") if name in facts),
        ]

    def _facts(self) -> list[tuple[str, str]]:
        layers, heads = self.maps.weights[self.streams].shape[:2]
        layer, head = self.panels[0]
        all_layers, all_heads = self.panels[-1][0] != layer, self.panels[-1][1] != head
        facts = [
            ("model", self.maps.model or "not named"),
            ("layer", f"all {layers} layers" if all_layers else f"{layer} of 0-{layers - 1}"),
            (
                "head",
                f"all {heads} heads"
                if all_heads
                else f"mean of {heads} heads"
                if head is None
                else f"{head} of 0-{heads - 1}",
            ),
        ]
        if self.query is not None:
            facts.append(("query", f"{self.rows[self.query]} (number {self.query})"))
        elif self.over_picture:
            facts.append(("query", f"mean of {len(self.rows)}"))
        if len(self.panels) == 1 and self.over_picture:
            facts += [("elsewhere", self._elsewhere())]
        facts += [("streams", self._streams_text()), ("scale", f"largest weight {number(self._scale)}")]
        lost = max(float((1 - self.matrix(*panel).sum(-1)).max()) for panel in self.panels)
        if lost > 1e-2:
            facts.append(("sink", f"rows sum to less than 1: up to {lost:.2f} went to a learned sink"))
        facts += [("note", note) for note in self.maps.input.notes]
        return [(label, printable(text)) for label, text in facts if text]

    def _streams_text(self) -> str:
        query, key = self.streams
        if query == key and len(self.maps.weights) == 1:
            return ""
        text = f"{query} looks at {key}"
        later = "; a row is the token that is read, and decides the next one" if query == "target" else ""
        return text + (later if self.query is None else "")

    def _elsewhere(self) -> str:
        """The keys beside the picture, the strongest first."""
        row, names = self._row_of(self.panels[0]), self.columns
        others = sorted(set(range(len(row))) - set(self._on_picture()), key=lambda n: -row[n])
        rest = f", and {len(others) - 6} more" if len(others) > 6 else ""
        return ", ".join(f"{names[n]} {weight(row[n], largest(row))}" for n in others[:6]) + rest

    # ---- the terminal ------------------------------------------------------------------------------------------------

    def _parts(self) -> Iterator[Any]:
        scale = self._scale
        if len(self.panels) == 1 and self.over_picture:
            yield from image.grid_lines(self.maps.input, self._shown(self.panels[0]), scale, against=False)
        elif len(self.panels) == 1 and self.query is not None:
            row = zip(self.columns, self._row_of(self.panels[0]), strict=True)
            yield tokens.Strip(
                [tokens.Cell(n, weight(v, scale), tokens.terminal_style(v, scale), False) for n, v in row]
            )
        elif self.over_picture or (len(self.panels) > 1 and self.query is None):
            yield _SmallMaps([(panel, _pooled(self._shown(panel))) for panel in self.panels], scale)
        else:
            yield _Table(*self._table(), scale)

    # ---- the page ----------------------------------------------------------------------------------------------------

    def _parts_html(self) -> Iterator[str]:
        scale = self._scale
        if self.over_picture:
            x = self.maps.input
            shown = (image.overlay_html(x, self._shown(panel), scale, _name(panel)) for panel in self.panels)
            yield "\n".join(['<div class="pictures">', image.picture_html(x), *shown, "</div>"])
        elif self.query is not None:
            yield _table_html(*self._table(), scale)
        else:
            for panel in self.panels:
                yield f"<h4>{_name(panel)}</h4>" * (len(self.panels) > 1)
                yield _table_html(self.rows, self.columns, self.matrix(*panel), scale)


def _name(panel: Panel) -> str:
    layer, head = panel
    return f"layer {layer}, " + ("mean of heads" if head is None else f"head {head}")


# --- The terminal -----------------------------------------------------------------------------------------------------


class _Table:
    """Rows and columns with names and numbers; the narrower the terminal, the less of them."""

    def __init__(self, rows: list[str], columns: list[str], matrix: np.ndarray, scale: float) -> None:
        self.rows, self.columns, self.matrix, self.scale = rows, columns, matrix, scale

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.cells import cell_len
        from rich.text import Text

        digits = len(str(max(self.matrix.shape) - 1))
        name = min(LABEL, max(map(cell_len, self.rows)))
        behind = any(map(tokens.right_to_left, self.rows))  # in front of the cells, they would change places with them
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
                shade, figures = _written(value, self.scale, cell)
                line.append(shade, style=image.terminal_colour(value)).append(figures)
                line.append(" " * (cell in (2, 3) or cell > 4))
            yield line.append(" " + _fitted(label, name) if behind else "")
        if cell < widest and self.rows != self.columns:
            keys = "  ".join(f"{n} {column}" for n, column in enumerate(self.columns))
            yield Text(f"\ncolumns: {keys}", style="dim")
        if self.scale:
            limits = (f"{s} {number(self.scale * part)}" for s, part in zip(image.SHADES[1], image.LIMITS, strict=True))
            yield Text(f"\nweight from  {'  '.join(limits)}   · less   blank 0", style="dim")

    def _heads(self, cell: int) -> Iterator[str]:
        """Numbers above the columns, and names where there is room for them."""
        if cell >= 4:
            gap = " " * (cell > 4)
            yield "".join(f"{n:>{cell - len(gap)}}{gap}" for n in range(len(self.columns)))
            # Terminals reorder neighbouring right-to-left words, away from their columns.
            if not any(map(tokens.right_to_left, self.columns)):
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
                line.append("  ").append(written, style=tokens.terminal_style(values[column], self.scale))
            yield line
        columns = len(self.columns)
        yield Text(f"\nonly the strongest of {columns} columns are shown; a saved figure shows them all", style="dim")


class _SmallMaps:
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
                            shade = image.shade(value, self.scale)
                            line.append(shade * across, style=image.terminal_colour(value))
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
    shade = image.shade(value, scale)
    if cell < 4:
        return shade * max(1, cell - 1), ""
    digits = "" if value == 0 else "·" if value < 0.005 else f"{value:.2f}".removeprefix("0")[:3]
    return shade.replace("·", "").rjust(max(4, cell - 1) - len(digits)), digits


def _pooled(values: np.ndarray) -> np.ndarray:
    """Means of neighbouring cells, so that a small map fits."""
    for axis in (0, 1):
        count = values.shape[axis]
        if count > POOLED:
            edges = np.linspace(0, count, POOLED + 1).astype(int)
            sums = np.add.reduceat(values, edges[:-1], axis)
            values = sums / np.expand_dims(np.diff(edges), 1 - axis)
    return values


# --- The page ---------------------------------------------------------------------------------------------------------


def _table_html(rows: list[str], columns: list[str], matrix: np.ndarray, scale: float) -> str:
    heads = "".join(f'<th class="column"><span dir="auto">{escape(name)}</span></th>' for name in columns)
    lines = []
    for name, values in zip(rows, matrix, strict=True):
        cells = "".join(
            f'<td title="{escape(name)} → {escape(key)}: {number(value)}"{tokens.css_colour(value, scale)}>'
            f"{weight(value, scale)}</td>"
            for key, value in zip(columns, values, strict=True)
        )
        lines.append(f'<tr><th dir="auto" class="name">{escape(name)}</th>{cells}</tr>')
    body = "\n".join(lines)
    return f'<div class="wide"><table><thead><tr><th></th>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>'


# --- The figure -------------------------------------------------------------------------------------------------------


def _one_map(view: View) -> Any:
    """A heat map with names at both axes."""
    rows, columns, matrix = view._table()
    cell = min(CELL, MAP / max(matrix.shape))
    size = (max(5.0, 2.8 + cell * len(columns)), max(2.0, 2.0 + cell * len(rows)))
    drawn = views.figure_class()(figsize=size, layout="constrained")
    axes = drawn.subplots()
    _heat(axes, matrix, view._scale, aspect="equal")
    _label(axes, rows, columns, cell)
    axes.set(xlabel="key", ylabel="query" if view.query is None else "")
    _colour_bar(drawn, axes, view, view._scale, 0.9)
    return drawn


def _heads(view: View) -> Any:
    """The heads of a layer side by side, or one map over the picture."""
    count = len(view.panels)
    across = math.ceil(math.sqrt(count))
    down = math.ceil(count / across)
    rows, columns = view._shown(view.panels[0]).shape
    named = not view.over_picture and max(rows, columns) <= 24
    side = 4.5 if count == 1 else max(2.2, 0.16 * columns) if named else 2.2
    tall = side * _slimness(rows, columns)
    margin = 1.0 if named else 0.3
    size = (max(5.0, 1.2 + margin + side * across), 1.0 + margin + (tall + 0.25) * down)
    drawn = views.figure_class()(figsize=size, layout="constrained")
    grid = drawn.subplots(down, across, squeeze=False)
    for axes in grid.ravel()[count:]:
        axes.set_axis_off()
    scale = view._scale
    for place, (panel, axes) in enumerate(zip(view.panels, grid.ravel(), strict=False)):
        first, last = place % across == 0, place + across >= count
        if view.over_picture:
            axes.imshow(_overlaid(view, panel, scale))
            axes.set(xticks=[], yticks=[])
            _frame_query(axes, view)
        else:
            _heat(axes, view.matrix(*panel), scale, aspect="auto")
            axes.tick_params(labelleft=first, labelbottom=last, labelsize="small")
        if named:
            _label(axes, view.rows if first else [], view.columns if last else [], side / columns)
        if count > 1:
            axes.set_title(f"head {panel[1]}", fontsize="small")
    _colour_bar(drawn, grid, view, scale, 0.9 if down < 3 else 0.5)
    return drawn


def _all_layers(view: View) -> Any:
    """Layers from top to bottom, heads from left to right, as one picture: so many axes would take long to draw."""
    layers, heads = view.panels[-1][0] + 1, len(view.panels) // (view.panels[-1][0] + 1)
    scale = view._scale
    draw = (lambda panel: _overlaid(view, panel, scale) / 255) if view.over_picture else view._shown
    tiles = [draw(panel) for panel in view.panels]
    down, across = tiles[0].shape[:2]
    gap = max(1, round(0.06 * max(down, across)))
    edges = ((0, gap), (0, gap), (0, 0))[: tiles[0].ndim]
    padded = [np.pad(tile.astype(float), edges, constant_values=1.0 if view.over_picture else np.nan) for tile in tiles]
    rows = [np.concatenate(padded[start : start + heads], 1) for start in range(0, len(padded), heads)]
    whole = np.concatenate(rows, 0)[:-gap, :-gap]
    tall = SMALL * _slimness(down, across)
    size = (max(5.0, 2.0 + SMALL * heads), max(2.5, 1.2 + tall * layers))
    drawn = views.figure_class()(figsize=size, layout="constrained")
    axes = drawn.subplots()
    if view.over_picture:
        axes.imshow(whole, aspect="auto")
    else:
        _heat(axes, whole, scale, aspect="auto")
    axes.set_xticks([n * (across + gap) + (across - 1) / 2 for n in range(heads)], [f"head {n}" for n in range(heads)])
    axes.set_yticks([n * (down + gap) + (down - 1) / 2 for n in range(layers)], [f"layer {n}" for n in range(layers)])
    axes.tick_params(top=False, bottom=False, left=False, labeltop=True, labelbottom=False, labelsize="small")
    axes.spines[:].set_visible(False)
    _colour_bar(drawn, axes, view, scale, 0.9 if layers < 3 else 0.5)
    return drawn


def _slimness(rows: int, columns: int) -> float:
    """Height of a map by its width, within reason."""
    return min(3.0, max(1 / 3, rows / columns))


def _heat(axes: Any, matrix: np.ndarray, scale: float, aspect: str) -> None:
    shown = np.ma.masked_invalid(matrix)
    axes.imshow(shown, aspect=aspect, interpolation="nearest", cmap=_colours(*SHADES), vmin=0, vmax=scale or 1.0)


def _overlaid(view: View, panel: Panel, scale: float) -> np.ndarray:
    return image.overlay(image.picture(view.maps.input), view._shown(panel), scale)


def _frame_query(axes: Any, view: View) -> None:
    """A frame around the query where it is a patch."""
    from matplotlib.patches import Rectangle

    rows, patches = view.maps.members(view.streams[0]), image.patches(view.maps.input).tolist()
    if view.query is None or rows[view.query] not in patches:
        return
    grid, picture = view.maps.input.grid or (1, 1), image.picture(view.maps.input)
    down, across = divmod(patches.index(rows[view.query]), grid[1])
    height, width = picture.shape[0] / grid[0], picture.shape[1] / grid[1]
    corner = (across * width - 0.5, down * height - 0.5)
    axes.add_patch(Rectangle(corner, width, height, fill=False, edgecolor="darkorange", linewidth=2))


def _colour_bar(drawn: Any, axes: Any, view: View, scale: float, shrink: float) -> None:
    from matplotlib.cm import ScalarMappable

    shown = ScalarMappable(cmap=_colours(*(OVER_PICTURE if view.over_picture else SHADES)))
    shown.set_clim(0, scale or 1.0)
    drawn.colorbar(shown, ax=axes, label="attention weight", shrink=shrink)


def _colours(*colours: tuple[int, int, int]) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    ends = [tuple(c / 255 for c in colour) for colour in colours]
    return LinearSegmentedColormap.from_list("weight", ends).with_extremes(bad="0.75")


def _label(axes: Any, rows: list[str], columns: list[str], cell: float) -> None:
    """Names at the axes, in a size that fits the cells (of so many inches); only some where that were too small."""
    size = min(9.0, cell * 72 * 0.8)
    step = math.ceil(5.5 / size)
    for axis, names, turn in ((axes.yaxis, rows, 0), (axes.xaxis, columns, 90)):
        chosen = range(0, len(names), step)
        labels = [names[n] if len(names[n]) <= 24 else names[n][:23] + "…" for n in chosen]
        axis.set_ticks(list(chosen), labels, fontsize=max(size, 5.5), rotation=turn, parse_math=False)
