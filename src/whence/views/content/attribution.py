"""What every medium says about an Attribution: its facts, its rows of scores, the texts its features belong to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from whence.core.geometry import grid_scores
from whence.core.inputs import Input, Target, has_inline_picture
from whence.core.looks import Look
from whence.core.results import Attribution
from whence.core.wording import counted
from whence.views.content import intervention
from whence.views.content.picture import Overlay, check_look, on_picture, overlays
from whence.views.text import largest, number, printable

ALL_ZERO = "all scores are 0"
SIZES = "sizes are shown: the signs of these scores speak neither for nor against the target"
SINKS_APART = "an attention sink has none"
Facts = list[tuple[str, str]]


def shown(a: Attribution) -> Attribution:
    """The attribution with the scores that views show: their sizes, where their signs are not shown."""
    pixels = a.details.get("pixels")
    if a.signed or not ((a.scores < 0).any() or (pixels is not None and (np.asarray(pixels) < 0).any())):
        return a
    details = a.details if pixels is None else {**a.details, "pixels": np.abs(pixels)}
    return replace(a, scores=np.abs(a.scores), details=details, notes=(*a.notes, SIZES))


def facts(a: Attribution) -> Facts:
    """What every medium says before it shows scores, printable."""
    found = [("method", a.method), ("target", target_text(a))]
    found += row_facts(a) if a.scores.ndim == 1 else [("scale", _scale_text(a, a.scores))]
    found += intervention.facts(a)
    broken = int((~np.isfinite(a.scores)).sum())
    if broken:
        found.append(("warning", f"{broken} of {a.scores.size} scores are not finite"))
    found += [("note", note) for note in dict.fromkeys((*a.notes, *a.input.notes))]
    return [(label, printable(text)) for label, text in found]


def row_facts(a: Attribution, row: int | None = None) -> Facts:
    """f(x), base, residual and scale of one row of scores."""
    output, base, residual, scores = (of_row(value, row) for value in (a.output, a.base, a.residual, a.scores))
    found = [("f(x)", number(output))]
    if base is not None:
        found.append(("base", number(base)))
    return [*found, ("residual", _residual_text(residual, scores)), ("scale", _scale_text(a, scores))]


def of_row(value: Any, row: int | None) -> Any:
    """The entry of a generated row; the value itself where there are no rows."""
    return value if row is None or value is None else value[row]


def explained_name(a: Attribution) -> str:
    """The explained thing, for a title: the name of the target, or the number of generated tokens."""
    targets = row_targets(a)
    if a.scores.ndim == 2:
        return f"{counted(len(targets), 'generated token')}"
    return f"‘{printable(targets[0].name or str(targets[0]))}’"


def target_text(a: Attribution) -> str:
    """What is explained, in words."""
    targets = row_targets(a)
    if a.scores.ndim == 2:
        kinds = {x.name if x.kind == "function" else x.kind.replace("_", "-") for x in targets}
        return f"{', '.join(sorted(kinds))} of {counted(len(a.scores), 'generated token')}, one row each"
    why = ", the likeliest label" if targets[0].of == "label" else ", as the model predicts"
    return f"{targets[0]}{why if targets[0].predicted else ''}"


def _residual_text(residual: float | None, scores: np.ndarray) -> str:
    if residual is None:
        return "none: these scores are not shares of f(x)"
    total = float(np.abs(scores).sum())
    if not total or not np.isfinite(total):
        return number(residual)
    return f"{number(residual)} ({abs(residual) / total:.2%} of the sum of |scores|)"


def _scale_text(a: Attribution, scores: np.ndarray) -> str:
    scale, coloured = largest(scores), colour_scale(a, scores)
    if not scale and np.isfinite(scores).all():
        return ALL_ZERO
    apart = f"; colours go up to {number(coloured)}, {SINKS_APART}" if coloured < scale else ""
    return f"largest |score| {number(scale)}{apart}"


def colour_scale(a: Attribution, scores: np.ndarray | None = None, among: Sequence[int] | None = None) -> float:
    """The |score| with the full colour: the largest finite one without attention sinks; if that is 0, the largest."""
    scores = a.scores if scores is None else scores
    indices = np.arange(len(a.features)) if among is None else np.asarray(among, dtype=int)
    return largest(scores[..., indices[~a.sinks[indices]]]) or largest(scores[..., indices])


def without_sinks(a: Attribution) -> Attribution:
    """The attribution with scores of 0 at attention sinks, for views that show colours alone."""
    if not a.sinks.any() or not np.nan_to_num(a.scores[..., ~a.sinks]).any():
        return a
    return replace(a, scores=np.where(a.sinks, np.zeros_like(a.scores), a.scores))


def apart(a: Attribution, i: int) -> bool:
    """Whether a feature is shown without a colour: it is an attention sink, and other features have scores."""
    return bool(a.sinks[i]) and bool(np.nan_to_num(a.scores[..., ~a.sinks]).any())


def row_targets(a: Attribution) -> tuple[Target, ...]:
    """The target of every row of scores."""
    return a.target if isinstance(a.target, tuple) else (a.target,) * max(1, len(a.input.generated))


def row_names(a: Attribution) -> list[str]:
    """The names of the generated tokens; those of their targets where tokens are merged into words."""
    names = [a.features[i] for i in a.input.generated]
    if len(set(a.input.generated)) < len(names):
        pairs = zip(row_targets(a), names, strict=True)
        names = [name if target.kind == "function" else target.name for target, name in pairs]
    return [printable(name) for name in names]


def sections(x: Input, indices: Iterable[int]) -> list[tuple[str, list[int]]]:
    """The features by the text they belong to, in reading order; special tokens join their neighbours."""
    labels = [part or ("" if x.special[i] else x.streams[i]) for i, part in enumerate(x.parts)]
    if has_inline_picture(x):  # patches are shown on the picture
        labels = ["" if label == "image" else label for label in labels]
    order = range(len(labels))
    for walk in (order[1:], order[-2::-1]):  # from the left, then for leading special tokens from the right
        step = -1 if walk.step > 0 else 1
        for i in walk:
            if not labels[i] and x.streams[i] == x.streams[i + step]:
                labels[i] = labels[i + step]
    named = groupby(indices, key=lambda i: labels[i] or x.streams[i])
    return [(label, list(members)) for label, members in named]


def several_texts(x: Input) -> bool:
    """Whether the texts need their names."""
    return len(sections(x, range(len(x.features)))) > 1


def off_picture(a: Attribution) -> list[int]:
    """The features that are shown as tokens."""
    patches = on_picture(a.input)
    return [i for i in range(len(a.features)) if i not in patches]


def only_special_beside_picture(a: Attribution) -> bool:
    """Whether no bars are needed: a bar alone, on a scale of its own, would look strong whatever its score is."""
    others = off_picture(a)
    return a.scores.ndim == 1 and 0 < len(others) < len(a.features) and bool(a.special[others].all())


def pictures(a: Attribution) -> list[tuple[str, np.ndarray]]:
    """The patch grid of every row of scores, by the row's name; empty without a picture."""
    if not on_picture(a.input):
        return []
    grids = grid_scores(a.input, a.scores)
    return [("", grids)] if grids.ndim == 2 else list(zip(row_names(a), grids, strict=True))


def over_picture(a: Attribution, look: Look | None = None) -> list[Overlay]:
    """Every row of scores over the picture: the method's own map of pixels where it made one, else patches."""
    check_look(a.input, look)
    grids = [grid for _, grid in pictures(a)]
    pixels = np.asarray(a.details.get("pixels", ()), dtype=float)
    own = len(grids) == 1 and pixels.ndim == 2 and pixels.size and not (look and look.patches)
    return overlays(a.input, [pixels] if own else grids, a.signed, look) if grids else []
