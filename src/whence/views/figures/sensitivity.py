"""A Sensitivity as a figure: bars of scores with their intervals, a panel per layer, stars for what is significant."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.sensitivities import Sensitivity
from whence.views.colours import AGAINST, FOR, in_figure
from whence.views.content.sensitivity import Row, facts, rows
from whence.views.figures.layout import new_figure, wrapped

COLOURS: dict[str, Any] = {"for": in_figure(FOR), "against": in_figure(AGAINST), "none": "0.6", "withheld": "0.88"}
ACROSS = 4  # layers in a row


@display.figure.register(Sensitivity)
def figure(s: Sensitivity) -> Any:
    """A panel per layer."""
    shown = list(rows(s))
    panels = [[row for row in shown if row.layer == layer] for layer in dict.fromkeys(row.layer for row in shown)]
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    said = [f"{label}: {text}" for label, text in facts(s) if label in ("target", "model", "states", "p")]
    said.append("stars: for (blue) or against (red) the target, significant; pale: the probe cannot tell it apart")
    drawn = new_figure(max(7.0, 0.9 + across * (1.2 + 0.45 * len(s.concepts))), 1.0 + 2.8 * down)
    drawn.suptitle("\n".join(said), fontsize="small", parse_math=False)
    axes = drawn.subplots(down, across, squeeze=False, sharey=True).ravel()
    for axis, own in zip(axes, panels, strict=False):
        _draw(axis, own)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    for axis in axes[::across]:
        axis.set_ylabel("TCAV score", fontsize="small")
    return drawn


def _draw(axes: Any, own: list[Row]) -> None:
    """The bars of one layer."""
    axes.bar(range(len(own)), [row.score for row in own], 0.7, color=[COLOURS[row.verdict] for row in own])
    for place, row in enumerate(own):
        low, high = row.interval
        middle, half = (low + high) / 2, (high - low) / 2
        axes.errorbar(place, middle, yerr=half, fmt="none", ecolor="0.25", elinewidth=1, capsize=2.5)
        if row.verdict in ("for", "against"):
            axes.text(place, max(high, row.score) + 0.02, "*", ha="center", fontsize="large")
    axes.axhline(0.5, color="0.5", linewidth=0.8, linestyle=":")
    axes.set_ylim(0, 1.12)
    names = [wrapped(row.concept, 18) for row in own]
    axes.set_xticks(range(len(own)), names, rotation=90, fontsize="small", parse_math=False)
    axes.set_title(f"layer {own[0].layer}", fontsize="small", parse_math=False)
    axes.tick_params(labelsize="small")
    axes.spines[["top", "right"]].set_visible(False)
