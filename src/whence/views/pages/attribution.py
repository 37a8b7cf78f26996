"""An Attribution as a page: a sentence, the picture under its scores, tokens of every level, or generated text."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from whence.core import display
from whence.core.looks import Look
from whence.core.results import Attribution
from whence.views.content.attribution import (
    apart,
    colour_scale,
    explained_name,
    facts,
    off_picture,
    over_picture,
    pictures,
    row_names,
    row_targets,
    sections,
    shown,
)
from whence.views.content.intervention import side_by_side
from whence.views.content.reading import leads_to_output, reading
from whence.views.content.steps import steps
from whence.views.content.tokens import share, texts
from whence.views.pages import layout
from whence.views.pages.layout import Part, rendered
from whence.views.text import largest, number, printable, signed, writing

QUIET = 40  # with more tokens, numbers below them would break up the text


@display.title.register(Attribution)
def title(a: Attribution) -> str:
    """The title of its page."""
    return f"Where {explained_name(a)} came from: {printable(a.method)}"


@display.fragment.register(Attribution)
def fragment(a: Attribution, look: Look | None = None) -> str:
    """The body of its page."""
    return rendered(part(a, look))


def part(a: Attribution, look: Look | None = None) -> Part:
    """The part of a page that shows an attribution."""
    levels, a = _levels(a) if a.scores.ndim == 1 else [], shown(a)
    scale, others, grids = colour_scale(a), off_picture(a), pictures(a)
    over = zip(grids, over_picture(a, look), strict=True)
    told = facts(a)
    given = {
        "lead": reading(_read(a, dict(levels))),
        "warnings": [text for label, text in told if label == "warning"],
        "facts": [fact for fact in told if fact[0] != "warning"],
        "beside": side_by_side(a),
        "signed": a.signed,
        "pictures": layout.pictures(a.input, [(name or "scores", grid, overlay) for (name, grid), overlay in over])
        if grids
        else None,
        "levels": [_level(name, shown(own), leads_to_output(a)) for name, own in levels] if others else [],
        "quiet": len(others) > QUIET,
        "matrix": _matrix(a, others, scale) if a.scores.ndim == 2 else None,
        "limit": number(scale) if scale and others else None,
        "some_hidden": not a.visible.all(),
        "some_apart": any(apart(a, i) for i in others),
    }
    return Part("attribution.html", given)


def _read(a: Attribution, levels: dict[str, Attribution]) -> Attribution:
    """The attribution that a reading is made of: whole words, where their sums are finite."""
    words = shown(levels.get("words", a))
    return words if np.isfinite(words.scores).all() else a


def _levels(a: Attribution) -> list[tuple[str, Attribution]]:
    """The attribution as it is, over words and over sentences, where these differ and there are several."""
    if a.input.level:  # the caller chose a level: no other levels are offered
        return [(f"{a.input.level}s", a)]
    found = [("pieces", a)]
    for name, merged in (("words", a.words()), ("sentences", a.sentences())):
        if len(merged.features) < len(found[-1][1].features):
            if name == "words" or (~merged.special[off_picture(merged)]).sum() > 1:
                found.append((name, merged))
        elif name == "words":
            found = [("words", a)]
    return found


def _level(name: str, a: Attribution, leads: bool) -> dict[str, Any]:
    """The values for the template: tokens of one level, and the steps from base to f(x)."""
    scale = colour_scale(a)
    own = texts(a.input, off_picture(a), a.scores, scale, a.signed, partial(apart, a))
    limit = number(scale) if scale else ""
    return {"name": name, "texts": own, "limit": limit, "steps": _steps(a) if leads and scale else []}


def _steps(a: Attribution) -> list[dict[str, str]]:
    """The steps of a waterfall, in percent of the way between the lowest and the highest point."""
    found = steps(a)
    points = [point for step in found for point in (step.start, step.end)]
    low, width = min(points), (max(points) - min(points)) or 1.0
    scale = max(map(abs, points))
    rows = []
    for step in found:
        left, right = sorted((step.start, step.end))
        write = number(step.value) if step.kind in ("base", "output") else signed(step.value, scale)
        place = f"left:{(left - low) / width:.2%};width:{(right - left) / width:.2%}"
        rows.append({"name": step.name, "kind": step.kind, "place": place, "value": write})
    return rows


def _matrix(a: Attribution, indices: list[int], scale: float) -> dict[str, Any]:
    """Generated tokens as rows, features as columns; the cell of what a row could not see is None."""
    per_row = {"f(x)": a.output, "base": a.base, "residual": a.residual}
    per_row = {name: values for name, values in per_row.items() if values is not None}
    write, rows = writing(a.signed), []
    for row, (name, target) in enumerate(zip(row_names(a), row_targets(a), strict=True)):
        scores = a.scores[row]
        cells = [_cell(a, i, scores[i], scale, write) if a.visible[row, i] else None for i in indices]
        numbers = [number(values[row]) for values in per_row.values()] + [number(largest(scores))]
        own = {"name": name, "target": printable(str(target)), "cells": cells, "numbers": numbers}
        rows.append({**own, "reading": reading(a, row)})
    row_of = {feature: row for row, feature in reversed(list(enumerate(a.input.generated)))}
    return {
        "texts": texts(a.input, indices, apart=partial(apart, a)),
        "row_of": row_of,
        "groups": [(printable(label), len(members)) for label, members in sections(a.input, indices)],
        "columns": [(printable(a.features[i]), _class_of(a, i)) for i in indices],
        "number_names": [*per_row, "largest |score|"],
        "rows": rows,
    }


def _cell(a: Attribution, i: int, score: float, scale: float, write: Callable[[float, float], str]) -> tuple[str, str]:
    """A cell of the matrix: its share of the scale, which makes its colour, and its text."""
    return "" if apart(a, i) else share(score, scale), write(score, scale)


def _class_of(a: Attribution, i: int) -> str:
    """The CSS class of special tokens and attention sinks."""
    return " ".join(filter(None, ("special" if a.special[i] else "", "sink" if apart(a, i) else "")))
