"""Tokens as pages show them, text by text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from whence.core.inputs import Input, word_starts
from whence.views.content.attribution import several_texts
from whence.views.content.written import passages
from whence.views.text import number, printable, strength, writing

MARK = "##"  # stands before a piece that continues a word, in WordPiece tokenizers
NEWLINE = "↵"


@dataclass(frozen=True)
class Token:
    """A feature in a text: its name and how it was written, its score as a share of the scale, written, and exact."""

    index: int
    name: str
    written: str
    special: bool
    joined: bool  # no space stands before the token
    newline: bool  # a line ends after it
    ignored: bool  # attention to it was closed
    sink: bool  # an attention sink: it has a score and no colour
    share: str = ""  # between -1 and 1; empty for none
    text: str = ""
    exact: str = ""


@dataclass(frozen=True)
class Text:
    """One of the texts of an input; its name is empty where there is only one."""

    name: str
    direction: str
    tokens: list[Token]


def share(value: float, scale: float) -> str:
    """The strength of a score with its sign, short; empty for none."""
    size = strength(value, scale)
    return f"{math.copysign(size, value):.3g}" if size else ""


def texts(
    x: Input,
    indices: Iterable[int],
    scores: np.ndarray | None = None,
    scale: float = 0.0,
    signed: bool = True,
    apart: Callable[[int], bool] = lambda i: False,
) -> list[Text]:
    """The tokens of every text, with their scores where there are any; those that are `apart` have no colour."""
    starts, several, write = set(word_starts(x).tolist()), several_texts(x), writing(signed)
    found = []
    for passage in passages(x, list(indices)):
        tokens: list[Token] = []
        space = True
        for piece in passage.pieces:
            i, name = piece.feature, x.features[piece.feature]
            inside = bool(tokens) and i not in starts  # a word whose place in the text is not known is not cut
            written = piece.text.removeprefix(MARK) if inside and piece.text != MARK else piece.text
            newline = "\n" in name and not name.strip()
            own = {} if scores is None else _of_score(float(scores[i]), scale, write)
            own |= {"share": ""} if apart(i) else {}
            shown = printable(name), NEWLINE if newline else written
            special, joined, ignored = bool(x.special[i]), inside or not space, i in x.ignored
            tokens.append(Token(i, *shown, special, joined, newline, ignored, apart(i), **own))
            space = piece.space
        direction = "rtl" if passage.right_to_left else "ltr"
        found.append(Text(passage.name if several else "", direction, tokens))
    return found


def _of_score(value: float, scale: float, write: Callable[[float, float], str]) -> dict[str, str]:
    return {"share": share(value, scale), "text": write(value, scale), "exact": number(value)}
