"""Places in a text: where a phrase stands, and which features of an input a place overlaps with."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from whence.core.inputs import Input

Span = tuple[int, int]  # the first character, and the one after the last


def phrase_spans(text: str, phrase: str, *, any_case: bool = False) -> list[Span]:
    """Every place where a phrase stands as whole words; without any, as in languages without spaces, every place."""
    plain, flags = re.escape(phrase.strip()), re.IGNORECASE if any_case else re.NOFLAG
    for pattern in (rf"(?<!\w){plain}(?!\w)", plain) if plain else ():
        if found := [place.span() for place in re.finditer(pattern, text, flags)]:
            return found
    return []


def features_at(item: Input, part: str, spans: Iterable[Span]) -> np.ndarray:
    """(feature,) bool: features of one of the texts that overlap with these places."""
    marked, wanted = np.zeros(len(item.features), bool), list(spans)
    for number, (feature_part, (start, end)) in enumerate(zip(item.parts, item.offsets, strict=True)):
        marked[number] = feature_part == part and any(start < after and first < end for first, after in wanted)
    return marked
