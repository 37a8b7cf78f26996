"""A Comparison as a figure: the panels of every method, each method on its own scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from whence.core import display
from whence.core.looks import Look
from whence.core.results import Comparison
from whence.views.colours import AGAINST, FOR, colour_map
from whence.views.content.attribution import (
    colour_scale,
    off_picture,
    only_special_beside_picture,
    pictures,
    row_names,
    without_sinks,
)
from whence.views.content.comparison import facts, shown, unsigned
from whence.views.figures.attribution import beside_picture, panels
from whence.views.figures.headings import SIGNS, SINKS_IN_GREY, SIZES, heading_of_comparison
from whence.views.figures.layout import INCH, Millimetres, new_figure, tick, wrapped, wrapped_to
from whence.views.figures.text_rows import Row, text_figure
from whence.views.text import number, printable

WHITE = (255, 255, 255)
ABREAST = 4  # methods side by side at most
BARS, PICTURE = (3.6, 1.0), (3.2, 0.75)  # width in inches of a panel among others, and the share of its height


@display.figure.register(Comparison)
def figure(c: Comparison, look: Look | None = None) -> Any:
    """Methods side by side where each has a single panel, bars or a picture; else below each other."""
    c = shown(c)
    own = [list(panels(a, look)) for a in c]
    abreast = len(own[0]) == 1 and c[0].scores.ndim == 1
    columns = min(ABREAST, len(c)) if abreast else len(own[0])
    width, shrink = (PICTURE if pictures(c[0]) else BARS) if abreast else (0.0, 1.0)
    widths = [width] * columns if abreast else [panel[0] for panel in own[0]]
    tall = max(panel[1] for panel in own[0]) * shrink + 0.3
    said = _title(c, letters=int(11 * max(sum(widths), 5.0)))
    down = math.ceil(sum(map(len, own)) / columns)
    drawn = new_figure(max(5.0, sum(widths)), down * tall + 0.2 * len(said))
    drawn.suptitle("\n".join(said), fontsize="small", parse_math=False)
    places = list(drawn.subplots(down, columns, squeeze=False, width_ratios=widths).ravel())
    for axes in places[sum(map(len, own)) :]:
        axes.set_axis_off()
    for place, (a, mine) in enumerate(zip(c, own, strict=True)):
        start = place * len(mine)
        for (_, _, draw), axes in zip(mine, places[start : start + len(mine)], strict=True):
            draw(axes)
        first = places[start]
        name = f"{wrapped(a.method, int(10 * widths[0]))}\n{first.get_title()}".strip()
        first.set_title(name, fontsize="small", parse_math=False)
        if abreast and place % columns:
            first.tick_params(labelleft=False)  # the features stand beside the first method of the line
    return drawn


def _title(c: Comparison, letters: int) -> list[str]:
    """The facts in lines of so many letters, and the tokens that have no place on the picture."""
    said = [f"{label}: {text}" for label, text in facts(c)]
    if only_special_beside_picture(c[0]):
        said += [f"{a.method}: {beside_picture(a)}" for a in c]
    return "\n".join(wrapped(line, letters) for line in said).splitlines()


@display.figure.register(Comparison, "bars")
def bars(c: Comparison, look: Look | None = None) -> Any:
    """A panel of bars, or a picture, per method."""
    return figure(c, look)


@display.figure.register(Comparison, "text")
def running_text(c: Comparison, *, width: Millimetres = 160) -> Any:
    """The same text below itself, a row per method, every method on its own scale of colours."""
    c = shown(c)
    others = off_picture(c[0])
    if not others:
        raise ValueError("a figure of coloured text needs a text, and this input has none; draw 'bars'")
    scales = [colour_scale(a, among=others) for a in c]
    c = Comparison(tuple(without_sinks(a) for a in c))
    sinks = np.flatnonzero(c[0].sinks).tolist()
    if c[0].scores.ndim == 1:
        rows = [Row(printable(a.method), a.scores, others, scale, sinks) for a, scale in zip(c, scales, strict=True)]
    else:
        rows = [
            Row(f"→ {name}: {printable(a.method)}", a.scores[n], [i for i in others if a.visible[n, i]], scale, sinks)
            for n, name in enumerate(row_names(c[0]))
            for a, scale in zip(c, scales, strict=True)
        ]
    sizes = ", ".join(f"{printable(a.method)} {number(scale)}" for a, scale in zip(c, scales, strict=True))
    foot = [(SIGNS if any(a.signed for a in c) else SIZES) + f"the method's largest |score| ({sizes})"]
    foot[0] += SINKS_IN_GREY if sinks else ""
    if unsigned(c):
        foot.append(f"no sign: {unsigned(c)}")
    return text_figure(c[0].input, rows, heading_of_comparison(c), foot, width)


@display.figure.register(Comparison, "agreement")
def agreement_matrix(c: Comparison, *, width: Millimetres = 85) -> Any:
    """How alike methods rank the features: Kendall's tau-b of every pair of methods."""
    c = shown(c)
    if len(c) < 2:
        raise ValueError("agreement is that of several methods, and one was compared; draw 'bars' or 'text'")
    taus, names = c.agreement(), [f"{tick(a.method)}  {n}" for n, a in enumerate(c, 1)]
    head = ["Kendall's tau-b of scores, special tokens left out (of sizes, where a method has no sign)"]
    head = [line for text in [*heading_of_comparison(c), *head] for line in wrapped_to(text, width / INCH - 0.1, 8)]
    drawn = new_figure(width / INCH, 0.24 * len(c) + 0.35 + 0.15 * len(head))
    drawn.suptitle("\n".join(head), fontsize=8, x=0.01, ha="left", parse_math=False)
    axes = drawn.subplots()
    shades = colour_map(AGAINST, WHITE, FOR, bad="0.85")
    axes.imshow(np.ma.masked_invalid(taus), cmap=shades, vmin=-1, vmax=1, aspect="auto")
    size = min(8.0, 26 * width / 85 / len(c) + 2.5)
    for (down, across), tau in np.ndenumerate(taus):
        written = f"{tau:.2f}".replace("0.", ".") if np.isfinite(tau) else "—"
        colour = "white" if abs(tau) > 0.6 else "black"
        axes.text(across, down, written, ha="center", va="center", fontsize=size, color=colour)
    axes.set_xticks(range(len(c)), [str(n + 1) for n in range(len(c))], fontsize=8)
    axes.set_yticks(range(len(c)), names, fontsize=8, parse_math=False)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    axes.spines[:].set_visible(False)
    return drawn
