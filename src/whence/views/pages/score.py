"""A Score as a page: its facts, a bar with its interval, and the value of every example."""

from __future__ import annotations

from whence.core import display
from whence.core.scoreboards import Score
from whence.views.colours import METHODS
from whence.views.content.score import facts, reading
from whence.views.content.scoreboard import Row, Style
from whence.views.pages.layout import Part, rendered
from whence.views.pages.scoreboard import bars
from whence.views.text import number, printable


@display.fragment.register(Score)
def fragment(score: Score) -> str:
    """The body of its page."""
    given = {
        "reading": reading(score),
        "facts": facts(score),
        "bars": bars([Row(score.metric, score)], {score.metric: Style(METHODS[0])}),
        "values": [] if score.values is None else [number(value) for value in score.values.tolist()],
    }
    return rendered(Part("score.html", given))


@display.title.register(Score)
def title(score: Score) -> str:
    """The title of its page."""
    return f"Score by {printable(score.metric)}"
