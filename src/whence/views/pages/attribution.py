"""An Attribution as a page: its facts, the picture under its scores, tokens or a matrix of generated rows."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.looks import Look
from whence.core.results import Attribution
from whence.views.content.attribution import (
    facts,
    off_picture,
    over_picture,
    pictures,
    row_names,
    row_targets,
    sections,
    several_texts,
    shown,
)
from whence.views.pages import layout
from whence.views.pages.layout import Part, cell, rendered
from whence.views.text import largest, number, printable, right_to_left, writing


@display.fragment.register(Attribution)
def fragment(a: Attribution, look: Look | None = None) -> str:
    """The body of its page."""
    return rendered(part(a, look))


def part(a: Attribution, look: Look | None = None) -> Part:
    """The part of a page that shows an attribution."""
    a = shown(a)
    scale, others, grids = largest(a.scores), off_picture(a), pictures(a)
    over = zip(grids, over_picture(a, look), strict=True)
    given = {
        "facts": facts(a),
        "signed": a.signed,
        "pictures": layout.pictures(a.input, [(name or "scores", grid, overlay) for (name, grid), overlay in over])
        if grids
        else None,
        "texts": _texts(a, others, scale) if a.scores.ndim == 1 else [],
        "matrix": _matrix(a, others, scale) if a.scores.ndim == 2 else None,
        "limit": number(scale) if scale and others else None,
        "some_hidden": not a.visible.all(),
    }
    return Part("attribution.html", given)


def _texts(a: Attribution, indices: list[int], scale: float) -> list[dict[str, Any]]:
    """The tokens of every text, with the text's name where there are several."""
    several, found = several_texts(a.input), []
    for label, members in sections(a.input, indices):
        # A paragraph's dir=auto does not look into children with a direction of their own, so it is decided here.
        own = "".join(a.features[i] for i in members if not a.special[i])
        cells = (cell(a.scores[i], scale, writing(a.signed)) for i in members)
        tokens = [(printable(a.features[i]), bool(a.special[i]), its) for i, its in zip(members, cells, strict=True)]
        name = printable(label) if several else ""
        found.append({"name": name, "direction": "rtl" if right_to_left(own) else "ltr", "tokens": tokens})
    return found


def _matrix(a: Attribution, indices: list[int], scale: float) -> dict[str, Any]:
    """Generated tokens as rows, features as columns; the cell of what a row could not see is None."""
    features = [printable(name) for name in a.features]
    per_row = {"f(x)": a.output, "base": a.base, "residual": a.residual}
    per_row = {name: values for name, values in per_row.items() if values is not None}
    rows = []
    for row, (name, target) in enumerate(zip(row_names(a), row_targets(a), strict=True)):
        cells = [
            cell(a.scores[row, i], scale, writing(a.signed), f"{features[i]} → {name}") if a.visible[row, i] else None
            for i in indices
        ]
        numbers = [number(values[row]) for values in per_row.values()] + [number(largest(a.scores[row]))]
        rows.append({"name": name, "target": printable(str(target)), "cells": cells, "numbers": numbers})
    return {
        "groups": [(printable(label), len(members)) for label, members in sections(a.input, indices)],
        "columns": [(features[i], bool(a.special[i])) for i in indices],
        "number_names": [*per_row, "largest |score|"],
        "rows": rows,
    }
