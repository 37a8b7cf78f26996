"""A ShortcutAudit as a figure: how often words turn other texts, and how often they are the strongest of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core import display
from whence.core.shortcut_audits import ShortcutAudit
from whence.views.content.shortcut_audit import COLOURS, facts
from whence.views.figures.layout import new_figure, tick, wrapped

MOST = 25  # words


@display.figure.register(ShortcutAudit)
def figure(found: ShortcutAudit) -> Any:
    """Words in the order of suspicion, on the left by attribution, on the right put into other texts."""
    words = found.words[:MOST]
    drawn = new_figure(9.0, max(3.2, 1.6 + 0.22 * len(words)))
    left, right = drawn.subplots(1, 2, sharey=True)
    for place, own in enumerate(words):
        colour = COLOURS[own.grade]
        left.plot(own.chance, place, "s", color="0.6", markersize=3)
        left.plot(own.strongest, place, "o", color=colour, markersize=4)
        if not np.isnan(own.turned):
            right.plot(own.turned_interval, (place, place), color=colour, linewidth=1)
            right.plot(own.turned_by_others, place, "s", color="0.6", markersize=3)
            right.plot(own.turned, place, "o", color=colour, markersize=4)
    left.set_yticks(range(len(words)), [tick(own.word) for own in words], fontsize="x-small", parse_math=False)
    left.set_ylim(len(words) - 0.4, -0.6)
    left.set_xlabel("strongest word of its texts; square: by chance", fontsize="small")
    right.set_xlabel("turns other texts, 95 %; square: another word", fontsize="small")
    right.axvline(found.alone, color="0.6", linewidth=0.8)
    for axes in (left, right):
        axes.set_xlim(-0.04, 1.04)
        axes.tick_params(axis="x", labelsize="small")
        axes.spines[["top", "right"]].set_visible(False)
    for grade, colour in COLOURS.items():
        right.plot([], [], "o", color=colour, markersize=4, label=grade or "no grade")
    right.legend(fontsize="xx-small", loc="lower right", frameon=False)
    answer = next(text for label, text in facts(found) if label == "answer")
    title = f"{wrapped(answer, 110)}\n{wrapped(f'{found.model}, {found.method}, {found.texts} texts', 110)}"
    drawn.suptitle(title, fontsize="small", parse_math=False)
    return drawn
