"""Tokens in texts: what media are given of each, text by text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from whence.core.inputs import Input, word_starts
from whence.views.content.attribution import sections, several_texts
from whence.views.text import number, printable, right_to_left, strength, writing

MARK = "##"  # of a WordPiece tokenizer, before a piece that continues a word


@dataclass(frozen=True)
class Token:
    """A feature in a text: its name without its mark, its score as a share of the scale, written, and exact."""

    index: int
    name: str
    special: bool
    joined: bool  # it continues the word of the token before
    newline: bool  # a line ends after it
    mark: str = ""  # what the name begins with where it is joined, as ##, which running text leaves out
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
    x: Input, indices: Iterable[int], scores: np.ndarray | None = None, scale: float = 0.0, signed: bool = True
) -> list[Text]:
    """The tokens of every text, with their scores where there are any."""
    several, found = several_texts(x), []
    starts = set(word_starts(x).tolist())
    write: Callable[[float, float], str] = writing(signed)
    for label, members in sections(x, indices):
        tokens = []
        for i in members:
            own = {} if scores is None else _of_score(float(scores[i]), scale, write)
            joined = i not in starts and i - 1 in members
            name = x.features[i]
            mark = MARK if joined and name.startswith(MARK) and len(name) > len(MARK) else ""
            shown, newline = printable(name.removeprefix(mark)), "\n" in name and not name.strip()
            tokens.append(Token(i, shown, bool(x.special[i]), joined, newline, mark, **own))
        # A paragraph's dir=auto does not look into children with a direction of their own, so it is decided here.
        letters = "".join(x.features[i] for i in members if not x.special[i])
        found.append(Text(printable(label) if several else "", "rtl" if right_to_left(letters) else "ltr", tokens))
    return found


def _of_score(value: float, scale: float, write: Callable[[float, float], str]) -> dict[str, str]:
    return {"share": share(value, scale), "text": write(value, scale), "exact": number(value)}
