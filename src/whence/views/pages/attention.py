"""Attention maps as a page: lines between tokens, matrices, weights over the picture, thumbnails of all heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core import display
from whence.core.attention_maps import AttentionMaps, AttentionSelection
from whence.core.geometry import patches
from whence.core.looks import Look
from whence.views.colours import HEAT
from whence.views.content.attention import (
    column_names,
    facts,
    lead,
    named_matrix,
    over_picture,
    panel_name,
    parts_of,
    reading,
    row_names,
    scale,
)
from whence.views.content.picture import Overlay, canvas
from whence.views.pages import layout
from whence.views.pages.attention_data import Plan, packed_pair, plan, sheet
from whence.views.pages.layout import Part, cell, png, rendered, uri
from whence.views.text import largest, printable, weight

FEW_CELLS = 1600  # weights in tables, for a page without scripts
FEW_OVERLAYS = 4  # pictures with weights over them, for a page without scripts
NAMED = 5  # keys listed for each query where tables would be too large


@display.fragment.register(AttentionSelection)
def fragment(selection: AttentionSelection, look: Look | None = None) -> str:
    """The body of its page."""
    return rendered(part(selection, look))


@display.title.register(AttentionMaps)
@display.title.register(AttentionSelection)
def title(shown: AttentionMaps | AttentionSelection) -> str:
    """The title of its page."""
    return "Attention"


@display.fragment.register(AttentionMaps)
def fragment_of_all(maps: AttentionMaps, look: Look | None = None) -> str:
    """The maps that are selected when nothing is asked for."""
    return fragment(maps.view(), look)


def part(selection: AttentionSelection, look: Look | None = None) -> Part:
    """The part of a page that shows selected maps, and lets the reader choose among all."""
    over = over_picture(selection, look)
    own, pairs = plan(selection), list(selection.maps.weights)
    first = [selection.streams, *(pair for pair in pairs if pair != selection.streams)]
    given = {
        "lead": lead(selection),
        "reading": reading(selection),
        "facts": facts(selection),
        "data": _data(selection, own, first),
        "kept": _kept(selection, own),
        "models": [_model(selection, pair) for pair in first if own.only is None],
        "several": len({panel[0] for panel in selection.panels}) > 1,
        "looks": look is not None,
        "photo": uri(canvas(selection.maps.input).picture) if patches(selection.maps.input).size else "",
    }
    return Part("attention.html", given | _plain(selection, over, look))


def _data(selection: AttentionSelection, own: Plan, pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """What the script of the page is given."""
    x, parts = selection.maps.input, parts_of(selection.maps)
    groups = list(dict.fromkeys(parts))
    one_layer = len({panel[0] for panel in selection.panels}) == 1  # else the last layer opens, heads averaged
    found = {
        "model": printable(selection.maps.model or "attention"),
        "names": [printable(name) for name in x.features],
        "special": [int(one) for one in x.special],
        "groups": groups,
        "group": [groups.index(part) for part in parts],
        "top": own.top,
        "kept": own.kept,
        "pairs": [packed_pair(selection, pair, own) for pair in pairs],
        "layer": selection.panels[-1][0],
        "heads": [panel[1] for panel in selection.panels] if one_layer else [None],
        "query": selection.query,
        "view": "picture" if selection.over_picture else "matrix" if patches(x).size else "lines",
    }
    if patches(x).size:
        place = [round(edge, 3) for edge in canvas(x).percent()]
        found["picture"] = {"grid": list(x.grid or ()), "patches": patches(x).tolist(), "place": place, "heat": HEAT}
    return found


def _kept(selection: AttentionSelection, own: Plan) -> str:
    """A sentence on how the page rounds weights, and which weights it leaves out."""
    most = max(map(largest, selection.maps.weights.values())) / own.top
    error = np.format_float_positional(most, precision=2, fractional=False, trim="-") if most else "0"
    said = f"Weights on this page are rounded by at most {error}; the JSON file keeps them exact."
    if own.kept is not None:
        said += (
            f" Of maps as large as these the page keeps the {own.kept} largest weights of every query, and those "
            "that were asked for in full where they fit; it says which share of the weight is shown."
        )
    if own.only is not None:
        said += f" It holds layer {own.only[0]} only: all layers would not fit."
    if any(not (np.isfinite(w) & (w >= 0)).all() for w in selection.maps.weights.values()):
        said += " Weights that are below 0 or not finite are shown as 0."
    return said


def _model(selection: AttentionSelection, pair: tuple[str, str]) -> dict[str, Any]:
    """Thumbnails of all heads between two streams."""
    layers, heads = selection.maps.weights[pair].shape[:2]
    over = selection.over_picture and pair == selection.streams
    shown = "where the query looks on the picture" if over else "rows are queries, columns are keys"
    if over and selection.query is not None:
        shown = f"where {row_names(selection)[selection.query]} looks on the picture"
    return {
        "name": f"{pair[0]} looks at {pair[1]}" if len(selection.maps.weights) > 1 else "",
        "sheet": png(sheet(selection, pair)),
        "layers": layers,
        "heads": heads,
        "shown": shown,
    }


def _plain(selection: AttentionSelection, over: list[Overlay], look: Look | None) -> dict[str, Any]:
    """What the page shows where no script runs: overlays, tables of few weights, or each query's largest weights."""
    found: dict[str, Any] = {"pictures": None, "tables": [], "largest": []}
    limit = scale(selection)
    if selection.over_picture:
        if look is not None or len(selection.panels) <= FEW_OVERLAYS:
            named = zip(selection.panels, over, strict=True)
            grids = [(panel_name(panel), selection.weights(panel), overlay) for panel, overlay in named]
            found["pictures"] = layout.pictures(selection.maps.input, grids)
        return found
    if selection.query is not None:
        rows, columns, matrix = named_matrix(selection)
        return found | {"tables": [_table("", rows, columns, matrix, limit)]}
    rows, columns = row_names(selection), column_names(selection)
    if len(selection.panels) * len(rows) * len(columns) <= FEW_CELLS:
        several = len(selection.panels) > 1
        named_panels = [(panel_name(panel) if several else "", selection.matrix(panel)) for panel in selection.panels]
        return found | {"tables": [_table(name, rows, columns, matrix, limit) for name, matrix in named_panels]}
    if len(selection.panels) == 1:
        matrix = np.nan_to_num(selection.matrix(selection.panels[0]))
        best = np.argsort(-matrix, axis=1, kind="stable")[:, :NAMED]
        lines = zip(rows, matrix, best, strict=True)
        found["largest"] = [(row, [(columns[n], weight(own[n], limit)) for n in keys]) for row, own, keys in lines]
    return found


def _table(name: str, rows: list[str], columns: list[str], matrix: np.ndarray, limit: float) -> dict[str, Any]:
    lines = [
        (row, [cell(value, limit, weight, f"{row} → {key}") for key, value in zip(columns, values, strict=True)])
        for row, values in zip(rows, matrix, strict=True)
    ]
    return {"name": name, "columns": columns, "rows": lines}
