"""An Arbitration as a page: the verdict, the explanation of a single input, the best candidates, and the board."""

from __future__ import annotations

from whence.core import display
from whence.core.scoreboards import Arbitration
from whence.views.content.arbitration import best, verdict
from whence.views.pages import attribution, scoreboard
from whence.views.pages.layout import Part, rendered
from whence.views.text import printable


@display.fragment.register(Arbitration)
def fragment(found: Arbitration) -> str:
    """The body of its page."""
    said = {"verdict": printable(verdict(found)), "notes": [printable(note) for note in found.notes]}
    ranks = {
        "count": len(found.candidates),
        "metric": printable(found.metric),
        "best": [(printable(name), value) for name, value in best(found)],
    }
    single = [attribution.part(found.explanations[0])] if len(found.explanations) == 1 else []
    return rendered(
        Part("arbitration.html", said), *single, Part("candidates.html", ranks), scoreboard.part(found.board)
    )
