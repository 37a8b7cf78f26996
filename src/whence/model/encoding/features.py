"""One feature of an input on its way into an `Input`."""

from __future__ import annotations

from typing import NamedTuple

Span = tuple[int, int]  # from the first character to the one after the last
NO_SPAN: Span = (-1, -1)  # of a feature that no character of the input stands for


class Feature(NamedTuple):
    """One feature with what an `Input` says of it."""

    name: str
    id: int = -1  # of the token; patches have none
    special: bool = False
    part: str = ""  # the named part of the input that the feature came from
    span: Span = NO_SPAN  # characters of the part
    word: int | None = None  # the number that the pre-tokenizer gave to the word, counted within the part
