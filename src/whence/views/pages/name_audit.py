"""A NameAudit as a page: its facts, a row per test of a group, the names in order of their mean relevance."""

from __future__ import annotations

from whence.core import display
from whence.core.name_audits import NameAudit
from whence.views.content.name_audit import HEADS, NameRow, at_the_ends, colours, facts, name_rows, reading, test_rows
from whence.views.pages.layout import Part, rendered
from whence.views.text import number, printable


@display.fragment.register(NameAudit)
def fragment(found: NameAudit) -> str:
    """The body of its page."""
    shown, left_out = at_the_ends(name_rows(found))
    low = min(0.0, *(row.interval[0] for row in shown))
    width = (max(0.0, *(row.interval[1] for row in shown)) - low) or 1.0
    own = colours(found)
    given = {
        "reading": reading(found),
        "facts": [(label, text) for label, text in facts(found) if label not in ("question", "answer")],
        "heads": HEADS,
        "tests": [{"cells": cells, "significant": significant} for cells, significant in test_rows(found)],
        "kinds": list(found.kinds),
        "zero": f"{-low / width:.2%}",
        "names": [_drawn(row, low, width, own[row.groups[0]]) for row in shown],
        "key": own,
        "left_out": left_out,
    }
    return rendered(Part("name_audit.html", given))


@display.title.register(NameAudit)
def title(found: NameAudit) -> str:
    """The title of its page."""
    return "Does a name move the decision" + (f" of {printable(found.model)}?" if found.model else "?")


def _drawn(row: NameRow, low: float, width: float, colour: str) -> dict[str, object]:
    """A name and the places of its marks, as shares of the track."""
    start, end = row.interval
    return {
        "name": row.name,
        "cells": (*row.groups, number(row.relevance), number(row.change)),
        "dot": f"{(row.relevance - low) / width:.2%}",
        "left": f"{(start - low) / width:.2%}",
        "whisker": f"{(end - start) / width:.2%}",
        "colour": colour,
    }
