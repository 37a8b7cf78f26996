"""The features of a text as they were written, to be shown as running text under their scores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from whence.core.inputs import Input
from whence.core.shap_export import as_written
from whence.views.content.attribution import sections
from whence.views.text import printable, right_to_left

SPACE = "␣"  # a feature that is nothing but a space


@dataclass(frozen=True)
class Piece:
    """A feature in running text."""

    feature: int
    text: str  # printable, without spaces around it
    space: bool  # a space follows


@dataclass(frozen=True)
class Passage:
    """The pieces of one text, and its name."""

    name: str
    pieces: tuple[Piece, ...]
    right_to_left: bool


def passages(x: Input, indices: Iterable[int]) -> list[Passage]:
    """The features as running text, a passage per text that they belong to; line breaks become spaces."""
    written, found = as_written(x), []
    for name, members in sections(x, indices):
        pieces: list[Piece] = []
        for i in members:
            text = written[i]
            shown = " ".join(text.split())
            if pieces and shown and text[:1].isspace():
                pieces[-1] = Piece(pieces[-1].feature, pieces[-1].text, True)
            pieces.append(
                Piece(i, printable(shown or x.features[i].strip() or SPACE), bool(shown) and text[-1].isspace())
            )
        own = "".join(piece.text for piece in pieces if not x.special[piece.feature])
        found.append(Passage(printable(name), tuple(pieces), right_to_left(own)))
    return found
