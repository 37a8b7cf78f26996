"""A ShortcutAudit as a page: its answer, the words that were tried elsewhere, a row per word, facts."""

from __future__ import annotations

import numpy as np

from whence.core import display
from whence.core.shortcut_audits import ShortcutAudit
from whence.views.content.shortcut_audit import COLOURS, HEADS, WordRow, facts, reading, word_rows
from whence.views.pages.layout import Part, rendered
from whence.views.text import printable


@display.fragment.register(ShortcutAudit)
def fragment(found: ShortcutAudit) -> str:
    """The body of its page."""
    rows, left_out = word_rows(found)
    given = {
        "reading": reading(found),
        "facts": [(label, text) for label, text in facts(found) if label not in ("question", "answer")],
        "heads": HEADS,
        "rows": rows,
        "alone": f"{found.alone:.2%}",
        "drawn": [_drawn(row) for row in rows if not np.isnan(row.turned)],
        "key": {grade or "no grade": colour for grade, colour in COLOURS.items()},
        "examples": [(row.cells[0], row.examples) for row in rows if row.grade in ("shortcut", "suspect")],
        "left_out": left_out,
    }
    return rendered(Part("shortcut_audit.html", given))


@display.title.register(ShortcutAudit)
def title(found: ShortcutAudit) -> str:
    """The title of its page."""
    return "Which words act as shortcuts" + (f" in {printable(found.model)}?" if found.model else "?")


def _drawn(row: WordRow) -> dict[str, str]:
    """A word and the places of its marks, as shares of the track."""
    low, high = row.interval
    return {
        "word": row.cells[0],
        "cell": row.cells[HEADS.index("put elsewhere: turns")],
        "dot": f"{row.turned:.2%}",
        "left": f"{low:.2%}",
        "whisker": f"{high - low:.2%}",
        "others": f"{np.nan_to_num(row.others):.2%}",
        "colour": COLOURS[row.grade],
    }
