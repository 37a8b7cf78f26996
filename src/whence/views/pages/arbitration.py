"""An Arbitration as a page: the verdict, the candidates by rank, the explanation of a single input, and the board."""

from __future__ import annotations

import math
from typing import Any

from whence.core import display
from whence.core.scoreboards import Arbitration
from whence.core.wording import counted
from whence.views.content.arbitration import LISTED, Group, groups, reading
from whence.views.content.scoreboard import CLOSE
from whence.views.pages import attribution, scoreboard
from whence.views.pages.layout import Part, rendered
from whence.views.text import number, printable

NAMED = 8  # candidates of one rank that are named at once


@display.fragment.register(Arbitration)
def fragment(found: Arbitration) -> str:
    """The body of its page."""
    ranked = groups(found)
    given = {
        "reading": reading(found),
        "notes": [printable(note) for note in found.notes],
        "heading": f"Candidates by {printable(found.metric)} ({found.better} is better)",
        "groups": [_rank(group, found) for group in ranked[:LISTED]],
        "tested": found.values[0].size > 1,
        "left_out": _left_out(ranked[LISTED:]),
        "explained": "The explanation that was chosen" if len(found.explanations) == 1 else "",
    }
    single = [attribution.part(found.explanations[0])] if given["explained"] else []
    board = scoreboard.part(found.board, "The choice beside single candidates", "")
    return rendered(Part("arbitration.html", given), *single, board)


@display.title.register(Arbitration)
def title(found: Arbitration) -> str:
    """The title of its page."""
    return f"Arbitration among {counted(len(found.candidates), 'candidate')}"


def _rank(group: Group, found: Arbitration) -> dict[str, Any]:
    """The values for the template of the candidates that share a rank."""
    names = [printable(name) for name in group.names]
    known = [p for p in group.p if not math.isnan(p)]
    return {
        "rank": group.rank,
        "tied": len(names) > 1,
        "names": names[:NAMED],
        "others": names[NAMED:],
        "mean": "not defined" if math.isnan(group.mean) else number(group.mean),
        "interval": f"{number(group.interval[0])} to {number(group.interval[1])}" if group.interval else "",
        "p": "best" if group.rank == 1 else _against_best(min(known)) if known else "",
    }


def _against_best(p: float) -> str:
    """A p-value, with a mark where it does not tell a candidate from the best."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}{' *' if p > CLOSE else ''}"


def _left_out(ranked: list[Group]) -> str:
    count = sum(len(group.names) for group in ranked)
    return f"{counted(count, 'candidate')} on lower ranks {'is' if count == 1 else 'are'} not shown." if count else ""
