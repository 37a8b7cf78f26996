"""A NameAudit as a figure: names in order of their mean relevance, and the differences of groups."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.name_audits import NameAudit
from whence.views.content.name_audit import at_the_ends, colours, facts, name_rows
from whence.views.figures.layout import new_figure, tick, wrapped


@display.figure.register(NameAudit)
def figure(found: NameAudit) -> Any:
    """The names on the left, the groups on the right."""
    shown, left_out = at_the_ends(name_rows(found))
    height = max(3.6, 1.4 + 0.17 * len(shown), 1.4 + 0.3 * len(found.tests))
    drawn = new_figure(9.5, height)
    names, groups = drawn.subplots(1, 2, width_ratios=(1.15, 1))
    _draw_names(names, found)
    _draw_groups(groups, found, max(len(found.tests), len(shown) // 2))
    answer = next(text for label, text in facts(found) if label == "answer")
    title = f"{wrapped(answer, 120)}\n{wrapped(f'{found.model}, {found.method}', 120)}"
    drawn.suptitle(title + (f"\n{left_out}" if left_out else ""), fontsize="small", parse_math=False)
    return drawn


def _draw_names(axes: Any, found: NameAudit) -> None:
    """A dot per name with one standard deviation over the sentences, coloured by its first group."""
    shown, _ = at_the_ends(name_rows(found))
    own = colours(found)
    for place, row in enumerate(shown):
        colour = own[row.groups[0]]
        axes.plot(row.interval, (place, place), color=colour, linewidth=0.8, alpha=0.5)
        axes.plot(row.relevance, place, "o", color=colour, markersize=3.5)
    axes.set_yticks(range(len(shown)), [tick(row.name) for row in shown], fontsize="xx-small", parse_math=False)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set_xlabel(wrapped(f"relevance for the {found.target}", 60), fontsize="small", parse_math=False)
    axes.tick_params(axis="x", labelsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    for group, colour in own.items():
        axes.plot([], [], "o", color=colour, markersize=3.5, label=tick(group))
    for text in axes.legend(fontsize="xx-small", loc="lower right", frameon=False).get_texts():
        text.set_parse_math(False)


def _draw_groups(axes: Any, found: NameAudit, places: int) -> None:
    """The difference of every group with its interval, on so many lines; a star for what is significant."""
    for place, test in enumerate(found.tests):
        axes.plot(test.interval, (place, place), color="0.3", linewidth=1)
        axes.plot(test.difference, place, "o", color="0.1", markersize=4)
    labels = [
        f"{tick(test.group)} ({tick(test.measure)}){' *' if test.corrected < found.level else ''}"
        for test in found.tests
    ]
    axes.set_yticks(range(len(labels)), labels, fontsize="x-small", parse_math=False)
    axes.set_ylim(places - 0.4, -0.6)
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set_xlabel(f"difference from the others, 95 %; * p < {found.level:g} after Holm", fontsize="small")
    axes.tick_params(axis="x", labelsize="small")
    axes.spines[["top", "right"]].set_visible(False)
