"""Grouping pieces into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from whence.model.encoding.features import Feature


def word_numbers(features: Sequence[Feature], texts: Mapping[str, str]) -> list[int]:
    """The number of the word that each feature belongs to; -1 for special tokens and patches.

    A new word begins with each word of the pre-tokenizer, after a special token, and where whitespace stands between
    two pieces: some tokenizers have no pre-tokenizer and take a whole text for one word. Whitespace at the beginning
    of a word belongs to that word, so it separates only from pieces that hold more than whitespace.
    """
    numbers: list[int] = []
    current = -1  # the number of the word so far
    has_letters = False  # whether the word so far holds more than whitespace
    before = (
        None  # part and pre-tokenizer's word of the feature before; None at the beginning and after a special token
    )
    ends = dict.fromkeys(texts, 0)  # for every part, the end of the last piece that was read
    for feature in features:
        if feature.special or not feature.part:
            numbers.append(-1)
            before = None
            continue
        end, whole = ends[feature.part], texts[feature.part]
        has_span = feature.span[0] >= 0
        start, stop = feature.span if has_span else (end, end)
        text = whole[start:stop] or feature.name
        separated = text[:1].isspace() or any(map(str.isspace, whole[end:start]))
        if before != (feature.part, feature.word) or (has_letters and separated):
            current, has_letters = current + 1, False
        numbers.append(current)
        before = (feature.part, feature.word)
        ends[feature.part] = stop
        has_letters = has_letters or bool(text.strip())
    return numbers
