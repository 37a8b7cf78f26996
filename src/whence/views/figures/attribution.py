"""An Attribution as a figure: bars for tokens, a matrix for generated text, the picture under its scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from whence.core import display
from whence.core.looks import Look
from whence.core.results import Attribution
from whence.views.colours import AGAINST, FOR, colour_map, in_figure, of_sign
from whence.views.content.attribution import (
    facts,
    off_picture,
    only_special_beside_picture,
    over_picture,
    pictures,
    row_names,
    shown,
)
from whence.views.figures.layout import new_figure, tick
from whence.views.figures.overlay import draw_overlay, height_of
from whence.views.text import largest, number, printable

PICTURE = 4.5  # inches
WHITE = (255, 255, 255)
Panel = tuple[float, float, Callable[[Any], None]]  # width and height in inches, and what draws on the axes


@display.figure.register(Attribution)
def figure(a: Attribution, look: Look | None = None) -> Any:
    """The facts above panels side by side."""
    a = shown(a)
    said = [f"{label}: {text}" for label, text in facts(a)]
    if only_special_beside_picture(a):
        said.append(beside_picture(a))
    widths, heights, draw = zip(*panels(a, look), strict=True)
    drawn = new_figure(sum(widths), max(heights) + 0.2 * len(said))
    drawn.suptitle("\n".join(said), fontsize="small", parse_math=False)
    for axes, draw_on in zip(drawn.subplots(1, len(draw), squeeze=False, width_ratios=widths)[0], draw, strict=True):
        draw_on(axes)
    return drawn


def beside_picture(a: Attribution) -> str:
    """The scores of the special tokens that have no place on the picture."""
    beside = (f"{printable(a.features[i])} {number(a.scores[i])}" for i in off_picture(a))
    return f"not on the picture: {', '.join(beside)}"


def panels(a: Attribution, look: Look | None = None) -> Iterator[Panel]:
    """The pictures under their scores, and the tokens beside them."""
    others, scale = off_picture(a), largest(a.scores)
    for overlay, (name, _) in zip(over_picture(a, look), pictures(a), strict=True):
        yield PICTURE, height_of(overlay, PICTURE), partial(draw_overlay, overlay=overlay, title=name)
    if a.scores.ndim == 2 and others:
        drawn = partial(_draw_matrix, a=a, indices=others, scale=scale)
        yield 5 + 0.35 * len(others), 1.5 + 0.3 * len(a.scores), drawn
    elif others and not only_special_beside_picture(a):
        yield 6.0, 0.8 + 0.24 * len(others), partial(_draw_bars, a=a, indices=others)


def _draw_bars(axes: Any, a: Attribution, indices: list[int]) -> None:
    """Tokens from top to bottom, a bar for each score."""
    values = a.scores[indices]
    colours = [in_figure(of_sign(value)) for value in values]
    names = [tick(a.features[i]) for i in indices]
    axes.barh(range(len(indices)), np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0), color=colours)
    axes.set_yticks(range(len(indices)), names, parse_math=False)
    for label, i in zip(axes.get_yticklabels(), indices, strict=True):
        label.set_alpha(0.5 if a.special[i] else 1.0)
    axes.set_ylim(len(indices) - 0.4, -0.6)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("score (red: against, blue: for)" if a.signed else "score (no sign)")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_matrix(axes: Any, a: Attribution, indices: list[int], scale: float) -> None:
    """Generated tokens as rows, features as columns; what a row could not see is grey."""
    limit = scale or 1.0
    cells = np.ma.masked_where(~a.visible[:, indices], a.scores[:, indices])
    ends, lowest = ((AGAINST, WHITE, FOR), -limit) if a.signed else ((WHITE, FOR), 0.0)
    drawn = axes.imshow(cells, cmap=colour_map(*ends, bad="0.8"), vmin=lowest, vmax=limit, aspect="auto")
    axes.set_xticks(range(len(indices)), [tick(a.features[i]) for i in indices], rotation=90, parse_math=False)
    residuals = ["none"] * len(a.scores) if a.residual is None else [number(r) for r in a.residual]
    rows = zip(row_names(a), a.output, residuals, strict=True)
    labels = [f"{tick(name)}   f(x) {number(output)}, residual {residual}" for name, output, residual in rows]
    axes.set_yticks(range(len(a.scores)), labels, parse_math=False)
    axes.figure.colorbar(drawn, ax=axes, label="score (grey: not seen, or not finite)")
