"""A Verification as a figure: a histogram of relative differences by powers of ten."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.run_summaries import Verification
from whence.views.colours import AGAINST, FOR, in_figure
from whence.views.content.verification import decades, reading
from whence.views.figures.layout import new_figure, wrapped


@display.figure.register(Verification)
def figure(v: Verification) -> Any:
    """A bar per power of ten; rows beyond the tolerance are red."""
    found = decades(v)
    drawn = new_figure(max(5.0, 1.5 + 0.62 * len(found)), 3.4)
    title = f"{wrapped(v.name, 70)}\n{wrapped(reading(v), 70)}"
    drawn.suptitle(title, fontsize="small", parse_math=False)
    axes = drawn.subplots()
    if not found:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no row was compared", ha="center", fontsize="small")
        return drawn
    places, within = range(len(found)), [decade.count - decade.beyond for decade in found]
    axes.bar(places, within, 0.8, color=in_figure(FOR), alpha=0.75, label="within the tolerance")
    if any(decade.beyond for decade in found):
        beyond = [decade.beyond for decade in found]
        axes.bar(places, beyond, 0.8, within, color=in_figure(AGAINST), alpha=0.75, label=f"beyond {v.tolerance:g}")
        axes.legend(fontsize="x-small", frameon=False)
    axes.set_xticks(places, [decade.name.replace(" to ", "\nto ") for decade in found], fontsize="x-small")
    axes.set_xlabel("difference relative to the largest score of a row", fontsize="small")
    axes.set_ylabel("rows", fontsize="small")
    axes.tick_params(axis="y", labelsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    return drawn
