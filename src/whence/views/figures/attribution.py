"""An Attribution as a figure: bars for tokens, a matrix for generated text, the picture under its scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import numpy as np

from whence.core import display
from whence.core.looks import Look
from whence.core.results import Attribution
from whence.core.specs import Between
from whence.views.colours import AGAINST, FOR, colour_map, in_figure, of_sign
from whence.views.content.attribution import (
    apart,
    colour_scale,
    facts,
    of_row,
    off_picture,
    only_special_beside_picture,
    over_picture,
    pictures,
    row_names,
    shown,
    without_sinks,
)
from whence.views.figures.headings import SINKS_IN_GREY, chosen_row, colours_meaning, heading
from whence.views.figures.layout import INCH, Millimetres, new_figure, tick, wrapped, wrapped_to
from whence.views.figures.overlay import draw_overlay, height_of
from whence.views.figures.text_rows import Row, text_figure
from whence.views.text import number, printable, writing

PICTURE = 4.5  # inches
SMALL = 8.0  # points
MOST = 48  # bars of one figure; a longer text shows those of the largest |scores|
Bars = Annotated[int, Between(1, 1000)]
WHITE = (255, 255, 255)
Panel = tuple[float, float, Callable[[Any], None]]  # width and height in inches, and a function that draws on the axes


@display.figure.register(Attribution)
def figure(a: Attribution, look: Look | None = None) -> Any:
    """The facts above panels side by side."""
    a = shown(a)
    said = [f"{label}: {text}" for label, text in facts(a)]
    if only_special_beside_picture(a):
        said.append(beside_picture(a))
    widths, heights, draw = zip(*panels(a, look), strict=True)
    said = "\n".join(wrapped(line, int(13 * max(sum(widths), PICTURE))) for line in said).splitlines()
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
    others, scale = off_picture(a), colour_scale(a)
    for overlay, (name, _) in zip(over_picture(a, look), pictures(a), strict=True):
        yield PICTURE, height_of(overlay, PICTURE), partial(draw_overlay, overlay=overlay, title=name)
    if a.scores.ndim == 2 and others:
        drawn = partial(_draw_matrix, a=a, indices=others, scale=scale)
        yield 5 + 0.35 * len(others), 1.5 + 0.3 * len(a.scores), drawn
    elif others and not only_special_beside_picture(a):
        kept = min(len(others), MOST + 1)
        yield 6.0, 0.8 + 0.24 * kept, partial(draw_bars, a=a, scores=a.scores, indices=others)


@display.figure.register(Attribution, "bars")
def bars(a: Attribution, *, most: Bars = MOST, width: Millimetres = 130, row: int = 0) -> Any:
    """A bar per feature, in reading order."""
    a = shown(a)
    number_of_row, said = chosen_row(a, row)
    scores, visible = of_row(a.scores, number_of_row), of_row(a.visible, number_of_row)
    indices = np.flatnonzero(visible).tolist()
    across = width / INCH - 0.1
    head = [line for text in (*said, *heading(a, number_of_row)) for line in wrapped_to(text, across, SMALL)]
    drawn = new_figure(width / INCH, 0.55 + 0.17 * min(len(indices), most + 1) + 0.15 * len(head))
    drawn.suptitle("\n".join(head), fontsize=SMALL, x=0.01, ha="left", parse_math=False)
    draw_bars(drawn.subplots(), a, scores, indices, most)
    return drawn


def draw_bars(axes: Any, a: Attribution, scores: np.ndarray, indices: list[int], most: int = MOST) -> None:
    """Tokens from top to bottom, a bar for each score; of very many, the strongest, and one bar for the others."""
    kept, rest = _strongest(scores, indices, most)
    values = [*scores[kept], *([scores[rest][np.isfinite(scores[rest])].sum()] if rest else [])]
    names = [*(tick(a.features[i]) + " (sink)" * apart(a, i) for i in kept), *([f"{len(rest)} others"] if rest else [])]
    lengths = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    cut = [place for place, i in enumerate(kept) if apart(a, i)]
    limit = 1.1 * max(np.abs(np.delete(lengths, cut)).max(initial=0.0), 1e-300)
    lengths[cut] = np.clip(lengths[cut], -limit, limit)
    drawn = axes.barh(range(len(names)), lengths, 0.76, color=[in_figure(of_sign(value)) for value in values])
    if rest:
        drawn[-1].set(hatch="////", edgecolor="white", linewidth=0)
    for place in cut:  # an attention sink: its bar may be cut off, with the number beside it
        drawn[place].set(facecolor="none", edgecolor="grey", hatch="....", linewidth=0.6, linestyle="--")
    axes.set_yticks(range(len(names)), names, fontsize=SMALL, parse_math=False)
    for label, i in zip(axes.get_yticklabels(), kept, strict=False):
        label.set_alpha(0.5 if a.special[i] else 1.0)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.axvline(0, color="grey", linewidth=0.8)
    _write_values(axes, values, lengths, writing(a.signed), colour_scale(a, scores))
    axes.set_xlabel("score (red: against, blue: for)" if a.signed else "score (no sign)", fontsize=SMALL)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=SMALL)
    axes.locator_params(axis="x", nbins=4)  # numbers of a small scale, as 0.00025, are wide
    axes.spines[["top", "right", "left"]].set_visible(False)


def _strongest(scores: np.ndarray, indices: list[int], most: int) -> tuple[list[int], list[int]]:
    """The features with the largest |scores| in reading order, and the others; a single other feature is shown, too."""
    if len(indices) <= most + 1:
        return indices, []
    sizes = np.nan_to_num(np.abs(scores[indices]), nan=0.0, posinf=np.inf)
    first = set(np.argsort(-sizes, kind="stable")[:most].tolist())
    return [i for n, i in enumerate(indices) if n in first], [i for n, i in enumerate(indices) if n not in first]


def _write_values(axes: Any, values: Any, lengths: np.ndarray, write: Callable[..., str], scale: float) -> None:
    """The number of every bar behind its end."""
    low, high = min(0.0, float(lengths.min(initial=0))), max(0.0, float(lengths.max(initial=0)))
    span = (high - low) or 1.0
    room = 0.16 * span
    axes.set_xlim(low - (room if low < 0 else 0.02 * span), high + room)
    for place, (value, length) in enumerate(zip(values, lengths, strict=True)):
        side = "right" if length < 0 else "left"
        at = length + (-0.012 if length < 0 else 0.012) * span
        axes.text(at, place, write(value, scale), fontsize=SMALL - 1, ha=side, va="center_baseline", color="0.25")


@display.figure.register(Attribution, "text")
def running_text(a: Attribution, *, width: Millimetres = 160) -> Any:
    """The text as it was written, every piece on the colour of its score; a row per generated token."""
    a = shown(a)
    others = off_picture(a)
    if not others:
        raise ValueError("a figure of coloured text needs a text, and this input has none; draw 'picture'")
    scale = colour_scale(a, among=others)
    head, a = heading(a), without_sinks(a)
    sinks = [i for i in others if apart(a, i)]
    rows = [Row("", a.scores, others, scale, sinks)]
    if a.scores.ndim == 2:
        names, seen = row_names(a), a.visible
        rows = [
            Row(f"→ {n}", s, [i for i in others if v[i]], scale, sinks)
            for n, s, v in zip(names, a.scores, seen, strict=True)
        ]
    foot = [colours_meaning(a.signed, number(scale)) + (SINKS_IN_GREY if sinks else "")]
    return text_figure(a.input, rows, head, foot, width)


@display.figure.register(Attribution, "matrix")
def matrix(a: Attribution) -> Any:
    """Generated tokens as rows, features as columns."""
    a = shown(a)
    others = off_picture(a)
    if a.scores.ndim == 1 or not others:
        raise ValueError("a matrix has a row per generated token, and none was generated here; draw 'bars' or 'text'")
    drawn = new_figure(5 + 0.35 * len(others), 1.5 + 0.3 * len(a.scores))
    letters = int(13 * drawn.get_figwidth())
    drawn.suptitle("\n".join(wrapped(line, letters) for line in heading(a)), fontsize="small", parse_math=False)
    _draw_matrix(drawn.subplots(), a, others, colour_scale(a, among=others))
    return drawn


@display.figure.register(Attribution, "picture")
def picture(a: Attribution, look: Look | None = None, *, width: Millimetres = 85) -> Any:
    """The scores over the picture alone, a panel per generated token."""
    a = shown(a)
    over = over_picture(a, look)
    if not over:
        raise ValueError("the figure 'picture' needs a picture, and this input has none; draw 'bars' or 'text'")
    across = width / INCH
    head = [line for text in heading(a) for line in wrapped_to(text, across - 0.1, SMALL)]
    drawn = new_figure(across, (height_of(over[0], across) + 0.2) * len(over) + 0.15 * len(head))
    drawn.suptitle("\n".join(head), fontsize=SMALL, x=0.01, ha="left", parse_math=False)
    for axes, overlay, (name, _) in zip(drawn.subplots(len(over), squeeze=False)[:, 0], over, pictures(a), strict=True):
        draw_overlay(axes, overlay, title=name)
    return drawn


def _draw_matrix(axes: Any, a: Attribution, indices: list[int], scale: float) -> None:
    """Generated tokens as rows, features as columns; what a row could not see is grey."""
    limit = scale or 1.0
    hidden = ~a.visible[:, indices] | np.array([apart(a, i) for i in indices], dtype=bool)
    cells = np.ma.masked_where(hidden, a.scores[:, indices])
    ends, lowest = ((AGAINST, WHITE, FOR), -limit) if a.signed else ((WHITE, FOR), 0.0)
    drawn = axes.imshow(cells, cmap=colour_map(*ends, bad="0.8"), vmin=lowest, vmax=limit, aspect="auto")
    axes.set_xticks(range(len(indices)), [tick(a.features[i]) for i in indices], rotation=90, parse_math=False)
    residuals = ["none"] * len(a.scores) if a.residual is None else [number(r) for r in a.residual]
    rows = zip(row_names(a), a.output, residuals, strict=True)
    labels = [f"{tick(name)}   f(x) {number(output)}, residual {residual}" for name, output, residual in rows]
    axes.set_yticks(range(len(a.scores)), labels, parse_math=False)
    sinks = ", an attention sink" if any(apart(a, i) for i in indices) else ""
    axes.figure.colorbar(drawn, ax=axes, label=f"score (grey: not seen{sinks}, or not finite)")
