"""A RunSummary as a figure: bars of the time by method, and below them the frequent features of every method."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.run_summaries import FrequentFeature, RunSummary
from whence.views.colours import AGAINST, FOR, METHODS, in_figure
from whence.views.content.run_summary import features_by_method, method_times, milliseconds, percent, reading
from whence.views.figures.layout import NAME, new_figure, tick, wrapped

FEATURES = 10  # most features of every method
ACROSS = 3  # methods beside each other
LINE = 0.24  # inches of a bar


@display.figure.register(RunSummary)
def figure(r: RunSummary) -> Any:
    """The times above, a panel of features per method below."""
    panels = features_by_method(r, FEATURES)
    down = -(-len(panels) // ACROSS)
    above = 0.7 + LINE * max(len(r.methods), 1)
    below = [0.9 + LINE * max(map(len, panels.values()))] * down if panels else []
    drawn = new_figure(9.5, 0.7 + above + sum(below))
    title = f"{wrapped(r.name, 110)}\n{wrapped(reading(r), 110)}"
    drawn.suptitle(title, fontsize="small", parse_math=False)
    parts = drawn.subfigures(
        1 + bool(panels), 1, height_ratios=[above, *([sum(below)] if panels else [])], squeeze=False
    )
    _draw_times(parts[0, 0].subplots(), r)
    if panels:
        axes = parts[1, 0].subplots(down, min(ACROSS, len(panels)), squeeze=False).ravel()
        for axis, (method, own) in zip(axes, panels.items(), strict=False):
            _draw_features(axis, method, own)
        for axis in axes[len(panels) :]:
            axis.set_axis_off()
    return drawn


def _draw_times(axes: Any, r: RunSummary) -> None:
    """A bar per method."""
    rows = method_times(r)
    axes.barh(range(len(rows)), [row.seconds for row in rows], 0.65, color=METHODS[0], alpha=0.75)
    labels = [
        f"{wrapped(row.spec, NAME)}  {percent(row.share)}, {milliseconds(row.each)} ms per example" for row in rows
    ]
    _arrange(axes, labels)
    axes.set_xlabel("seconds, all workers added up", fontsize="small")


def _draw_features(axes: Any, method: str, own: list[FrequentFeature]) -> None:
    """A bar per feature, blue where its mean score is for the target, red where against it."""
    colours = [in_figure(AGAINST if one.score < 0 else FOR) for one in own]
    axes.barh(range(len(own)), [one.share for one in own], 0.65, color=colours, alpha=0.75)
    _arrange(axes, [f"{tick(one.feature)} ({one.count:,})" for one in own])
    axes.set_title(wrapped(method, NAME), fontsize="small", loc="left", parse_math=False)
    axes.set_xlabel("mean share of |scores|", fontsize="small")


def _arrange(axes: Any, labels: list[str]) -> None:
    """Names at the left, the first on top, and lines that help to read the length of bars."""
    axes.set_yticks(range(len(labels)), labels, fontsize="small", parse_math=False)
    axes.set_ylim(max(len(labels), 1) - 0.4, -0.6)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize="small")
    axes.grid(axis="x", alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
