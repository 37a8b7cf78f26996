"""A Verification as a page: the verdict, how many rows differ by how much, damaged shards, facts."""

from __future__ import annotations

from whence.core import display
from whence.core.run_summaries import Verification
from whence.views.content.verification import decades, facts, reading
from whence.views.pages.layout import Part, rendered
from whence.views.text import printable


@display.fragment.register(Verification)
def fragment(v: Verification) -> str:
    """The body of its page."""
    found = decades(v)
    most = max((decade.count for decade in found), default=1)
    given = {
        "reading": reading(v),
        "decades": [
            {
                "name": decade.name,
                "count": f"{decade.count:,}",
                "within": f"{(decade.count - decade.beyond) / most:.2%}",
                "beyond": f"{decade.beyond / most:.2%}" if decade.beyond else "",
            }
            for decade in found
        ],
        "tolerance": f"{v.tolerance:g}",
        "damaged": [printable(shard) for shard in v.damaged],
        "reasons": [printable(reason) for reason in v.reasons],
        "facts": [(label, text) for label, text in facts(v) if label not in ("damaged", "other here")],
    }
    return rendered(Part("verification.html", given))


@display.title.register(Verification)
def title(v: Verification) -> str:
    """The title of its page."""
    return printable(f"Does the run {v.name} come out the same?")
