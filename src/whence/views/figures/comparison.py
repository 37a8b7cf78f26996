"""A Comparison as a figure: the panels of every method, each method on its own scale."""

from __future__ import annotations

import math
from typing import Any

from whence.core import display
from whence.core.looks import Look
from whence.core.results import Comparison
from whence.views.content.attribution import only_special_beside_picture, pictures
from whence.views.content.comparison import facts, shown
from whence.views.figures.attribution import beside_picture, panels
from whence.views.figures.layout import new_figure, wrapped

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
    for number, (a, mine) in enumerate(zip(c, own, strict=True)):
        start = number * len(mine)
        for (_, _, draw), axes in zip(mine, places[start : start + len(mine)], strict=True):
            draw(axes)
        first = places[start]
        name = f"{wrapped(a.method, int(10 * widths[0]))}\n{first.get_title()}".strip()
        first.set_title(name, fontsize="small", parse_math=False)
        if abreast and number % columns:
            first.tick_params(labelleft=False)  # the features stand beside the first method of the line
    return drawn


def _title(c: Comparison, letters: int) -> list[str]:
    """The facts in lines of so many letters, and the tokens that have no place on the picture."""
    said = [f"{label}: {text}" for label, text in facts(c)]
    if only_special_beside_picture(c[0]):
        said += [f"{a.method}: {beside_picture(a)}" for a in c]
    return "\n".join(wrapped(line, letters) for line in said).splitlines()
