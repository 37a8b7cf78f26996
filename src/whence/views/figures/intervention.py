"""An intervention as a figure: the probabilities of classes without it and under it."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.results import Attribution
from whence.views.colours import FOR, in_figure
from whence.views.content.intervention import share
from whence.views.figures.headings import chosen_row, heading
from whence.views.figures.layout import INCH, Millimetres, new_figure, tick, wrapped_to

SMALL = 8.0  # points


@display.figure.register(Attribution, "intervention")
def figure(a: Attribution, *, width: Millimetres = 130, row: int = 0) -> Any:
    """Two bars per class: the model as it is, and with attention to the ignored words closed."""
    done = a.intervention
    number, said = chosen_row(a, row)
    if done is None:
        raise ValueError("there is nothing to draw 'intervention' of: no words were ignored; name them with ignore=")
    known = done.predictions[number or 0] if done.predictions else ()
    if not known:
        raise ValueError("there is nothing to draw 'intervention' of: the result has no probabilities of classes")
    across = width / INCH - 0.1
    head = [line for text in (*said, *heading(a, number)) for line in wrapped_to(text, across, SMALL)]
    drawn = new_figure(width / INCH, 1.0 + 0.4 * len(known) + 0.15 * len(head))
    drawn.suptitle("\n".join(head), fontsize=SMALL, x=0.01, ha="left", parse_math=False)
    axes = drawn.subplots()
    for place, one in enumerate(known):
        for shift, value, colour in ((-0.19, one.without, "0.65"), (0.19, one.under, in_figure(FOR))):
            axes.barh(place + shift, value, 0.36, color=colour)
            axes.text(value + 0.01, place + shift, share(value), fontsize=SMALL - 1, va="center_baseline", color="0.25")
    axes.set_yticks(range(len(known)), [tick(one.name) for one in known], fontsize=SMALL, parse_math=False)
    axes.set_ylim(len(known) - 0.5, -0.5)
    axes.set_xlim(0, 1.12)
    axes.set_xlabel("probability", fontsize=SMALL)
    for colour, label in (("0.65", "as it is"), (in_figure(FOR), "under the intervention")):
        axes.barh([0], [0], color=colour, label=label)
    axes.legend(fontsize=SMALL - 1, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False)
    axes.tick_params(axis="x", labelsize=SMALL)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return drawn
