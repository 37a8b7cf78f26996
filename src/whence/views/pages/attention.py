"""Attention maps as a page: every weight in a cell, or over the picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core import display
from whence.core.attention_maps import AttentionMaps, AttentionSelection
from whence.core.looks import Look
from whence.views.content.attention import column_names, facts, named_matrix, over_picture, panel_name, row_names, scale
from whence.views.pages import layout
from whence.views.pages.layout import Part, cell, rendered
from whence.views.text import weight


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
    """The part of a page that shows selected maps."""
    limit, shown, over = scale(selection), None, over_picture(selection, look)
    tables: list[dict[str, Any]] = []
    if selection.over_picture:
        named = zip(selection.panels, over, strict=True)
        grids = [(panel_name(panel), selection.weights(panel), overlay) for panel, overlay in named]
        shown = layout.pictures(selection.maps.input, grids)
    elif selection.query is not None:
        tables = [_table("", *named_matrix(selection), limit)]
    else:
        several, rows, columns = len(selection.panels) > 1, row_names(selection), column_names(selection)
        for panel in selection.panels:
            name = panel_name(panel) if several else ""
            tables.append(_table(name, rows, columns, selection.matrix(panel), limit))
    return Part("attention.html", {"facts": facts(selection), "pictures": shown, "tables": tables})


def _table(name: str, rows: list[str], columns: list[str], matrix: np.ndarray, limit: float) -> dict[str, Any]:
    lines = [
        (row, [cell(value, limit, weight, f"{row} → {key}") for key, value in zip(columns, values, strict=True)])
        for row, values in zip(rows, matrix, strict=True)
    ]
    return {"name": name, "columns": columns, "rows": lines}
