"""The tokens that a decision is read from: found by their text or number, and in the context of an answer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from whence.core.inputs import Input, Target, merged, word_starts

ANSWERS = ("start", "end", "span")  # what of an answer is explained: its first token, its last token, or both
OUTSIDE = ("o", "outside")  # lower-case labels of words that a tagger leaves unmarked


def with_places(item: Input, reads: str, mask_id: int | None) -> Input:
    """The input with the tokens that are read whatever the target: an answer's context, or the only mask."""
    if reads == "span":
        context = tuple(i for i, part in enumerate(item.parts) if part == "context")
        if not context:  # of a user's own encoder: a tokenizer's features always have their parts
            raise ValueError(
                "answers are found in a context, and no feature has the part 'context'; give parts in encode="
            )
        return replace(item, decides=context)
    if reads == "mask" and len(found := masks(item, mask_id)) == 1:
        return replace(item, decides=found)
    return item


def masks(item: Input, mask_id: int | None) -> tuple[int, ...]:
    """The numbers of the tokens that are masks."""
    ids = item.tensors.get("input_ids", np.empty(0, int))
    return tuple(int(number) for number in np.flatnonzero(ids == mask_id)) if mask_id is not None else ()


# ---- tokens and answers by their text --------------------------------------------------------------------------------


def token_named(item: Input, at: Any) -> int:
    """The number of the token that a target is read at: a number, or a text whose first token is meant."""
    count = len(item.features)
    if isinstance(at, bool) or not isinstance(at, (int, np.integer, str)):
        raise ValueError(f"at= names a token, by a word of the text or by its number, not {at!r}")
    if not isinstance(at, str):
        if not -count <= at < count:
            raise ValueError(f"at={at} names no token: there are {count}, numbered from 0")
        return int(at) % count
    found = [first for first, _ in occurrences(item, at)]
    found = found or [i for i, name in enumerate(item.features) if name.strip() == at.strip()]
    if not found or not at.strip():
        raise ValueError(
            f"at={at!r} is not in the text as whole tokens; give a word of the text, or a token's number below {count}"
        )
    if len(found) > 1:
        raise ValueError(f"at={at!r} is in the text {len(found)} times; give the number of one: {_numbers(found)}")
    return found[0]


def answer_named(item: Input, answer: Any, at: Any = None) -> tuple[int, int]:
    """The first and the last token of an answer, counted among those of the context; `at` is where it starts."""
    if not isinstance(answer, str) or not answer.strip():
        raise ValueError(f"an answer is named by its words in the context, not by {answer!r}")
    found = occurrences(item, answer, "context")
    if not found:
        cut = " (which was cut)" if any(" cut from " in note for note in item.notes) else ""
        raise ValueError(
            f"the answer {answer!r} is not in the context{cut} as whole tokens; give words that stand there"
        )
    if at is not None:
        number = token_named(item, at)
        if not (found := [span for span in found if span[0] == number]):
            raise ValueError(f"the answer {answer!r} does not start at token {number}, {item.features[number]!r}")
    if len(found) > 1:
        numbers = _numbers(first for first, _ in found)
        raise ValueError(f"the answer {answer!r} is in the context {len(found)} times; say where it starts: {numbers}")
    first, last = found[0]
    return item.decides.index(first), item.decides.index(last)


def occurrences(item: Input, phrase: str, part: str = "") -> list[tuple[int, int]]:
    """First and last token of every place where whole tokens spell the phrase; whole words, where there are any.

    Case is disregarded only where that finds what is not there otherwise.
    """
    pattern = f"(?={re.escape(phrase.strip())})"
    for flags in (re.NOFLAG, re.IGNORECASE) if phrase.strip() else ():
        found: list[tuple[int, int]] = []
        whole_words: list[tuple[int, int]] = []
        for name, text in item.texts.items():
            if part in ("", name):
                starts, ends = _boundaries(item, name)
                for begin in (match.start() for match in re.finditer(pattern, text, flags)):
                    end = begin + len(phrase.strip())
                    if begin in starts and end in ends:
                        found.append((starts[begin], ends[end]))
                        if not text[begin - 1 : begin].isalnum() and not text[end : end + 1].isalnum():
                            whole_words.append(found[-1])
        if found:
            return whole_words or found
    return []


def _boundaries(item: Input, part: str) -> tuple[dict[int, int], dict[int, int]]:
    """The characters at which tokens of a text start, and after which they end, spaces left out: with their numbers."""
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    for number in (i for i, name in enumerate(item.parts) if name == part):
        begin, end = (int(place) for place in item.offsets[number])
        text = item.texts[part][begin:end]
        if begin >= 0 and text.strip():
            starts.setdefault(begin + len(text) - len(text.lstrip()), number)
            ends[end - len(text) + len(text.rstrip())] = number
    return starts, ends


def _numbers(found: Iterable[int]) -> str:
    return " or ".join(f"at={number}" for number in found)


# ---- answers as classes ----------------------------------------------------------------------------------------------


def span_number(first: int, last: int) -> int:
    """The number of a span among all spans of a context: ordered by their last token, then by their first."""
    return last * (last + 1) // 2 + first


def span_of(number: int) -> tuple[int, int]:
    """The first and the last token of the span of a number."""
    last = int((np.sqrt(8 * number + 1) - 1) / 2)
    return number - last * (last + 1) // 2, last


def entries(target: Target) -> list[int]:
    """The entries of the decision that an answer's logits are: starts and ends alternate there."""
    numbers = [number for number in (target.index, target.against) if number is not None]
    if target.of != "span":
        return [2 * number + (target.of == "end") for number in numbers]
    return [entry for first, last in map(span_of, numbers) for entry in (2 * first, 2 * last + 1)]


def answer_text(item: Input, of: str, number: int) -> str:
    """The words of the context that an answer's number stands for."""
    first, last = (item.decides[place] for place in (span_of(number) if of == "span" else (number, number)))
    begin, end = int(item.offsets[first, 0]), int(item.offsets[last, 1])
    text = item.texts.get("context", "")[begin:end].strip() if 0 <= begin < end else ""
    return text or "".join(item.features[first : last + 1])


# ---- what a target reads ---------------------------------------------------------------------------------------------


def placed(target: Target, item: Input, number: int) -> Target:
    """The target, read at the token of this number."""
    names = words(item)
    single = names.count(names[number]) == 1
    return replace(target, position=number, place=repr(names[number]) + f" (token {number})" * (not single))


def words(item: Input) -> list[str]:
    """One text per token: the whole word where a word begins, the token itself inside a word."""
    names = [name.strip() or name for name in item.features]
    starts = word_starts(item)
    for number, word in zip(starts, merged(replace(item, decides=()), starts).features, strict=True):
        names[number] = word.strip() or word
    return names


def first_pieces(item: Input) -> list[int]:
    """The numbers of the tokens at which words begin, as taggers are trained; special tokens left out."""
    return [int(number) for number in word_starts(item) if not item.special[number]]


def likeliest_place(probabilities: np.ndarray, labels: Sequence[str] | None) -> int:
    """The number of the word with the most probable label that is not one of `OUTSIDE`; probabilities (word, label).

    Words whose likeliest label is one of `OUTSIDE` come after all others.
    """
    outside = np.array([label.casefold() in OUTSIDE for label in labels or ()], bool)
    inside = ~outside if outside.any() and not outside.all() else np.ones(probabilities.shape[1], bool)
    tagged = [number for number, row in enumerate(probabilities) if inside[row.argmax()]]
    return max(tagged or range(len(probabilities)), key=lambda number: probabilities[number, inside].max())


def tokens_read(item: Input, target: Target) -> list[int]:
    """The numbers of the tokens that a target reads, which cannot be deleted."""
    read = item.decides
    if target.of in ANSWERS and target.index is not None:
        read = tuple(item.decides[entry // 2] for entry in entries(target))
    return [number for number in read if number >= 0]
