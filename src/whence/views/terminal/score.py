"""A Score in the terminal: one line."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.scoreboards import Score
from whence.views.content.score import line


@display.terminal.register(Score)
def terminal(score: Score) -> Any:
    """The line of the score."""
    from rich.text import Text

    return Text(line(score))


@display.text.register(Score)
def text(score: Score) -> str:
    """The line of the score, however long it is."""
    return line(score)
