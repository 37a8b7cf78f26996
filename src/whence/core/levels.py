"""Levels of features: tokens, words, sentences, messages, documents, or a caller's own spans of the texts.

At a level the features of a result are its units. Methods that hide features hide whole units; the scores of all other
methods are summed over the tokens of a unit. A special token, and a patch of a picture, is always a unit by itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from whence.core.inputs import Input, numbers_in_text, run_starts, sentence_starts, word_starts
from whence.core.wording import shown, suggest

LEVELS = ("token", "word", "sentence", "message", "document")
OWN = "span"  # the level of a caller's own spans
MAX_SPANS = 10_000
Level = str | Sequence[Any] | None


def checked_level(level: Any) -> Level:
    """A level as callers write it, checked before anything is encoded; None for tokens."""
    if level is None or level == "token":
        return None
    if isinstance(level, str):
        if level not in LEVELS:
            raise ValueError(f"unknown level {shown(level)}; {suggest(level, LEVELS)}, or give a list of spans")
        return level
    if not isinstance(level, (list, tuple)) or not 0 < len(level) <= MAX_SPANS:
        raise ValueError(
            f"level is one of {', '.join(map(repr, LEVELS))}, or a list of spans, each a text of the input or a pair "
            f"of characters, not {shown(level)}"
        )
    for span in level:
        if not isinstance(span, str) and _characters(span) is None:
            raise ValueError(
                "a span is a text of the input, the characters (start, end), or (part, start, end) where there are "
                f"several texts, not {shown(span)}"
            )
    return list(level)


def at_level(x: Input, level: Level) -> Input:
    """The input with the unit of every token: its word, its sentence, ..., or a span that the caller gave."""
    if level is None:
        return x
    if isinstance(level, str):
        starts = {"word": word_starts, "sentence": sentence_starts, "message": _text_starts, "document": _passages}
        return _with_units(x, starts[level](x), level)
    numbers = _span_numbers(x, level)
    outside = (numbers < 0) & np.array([part in x.texts for part in x.parts], bool) & ~x.special
    # A run of tokens outside of all spans is one unit, which stays in place as special tokens do.
    filled = np.where(outside, len(level) + np.cumsum(np.diff(outside, prepend=False)), numbers)
    note = "only the spans that were given are hidden; the text around them stays in place"
    kept = replace(x, special=x.special | outside, notes=(*x.notes, note) if outside.any() else x.notes)
    return _with_units(kept, run_starts(x, filled), OWN)


def _with_units(x: Input, starts: np.ndarray, level: str) -> Input:
    if level != "word" and isinstance(x.raw, dict) and "messages" in x.raw:
        # What a chat template writes between two messages is many tokens, and none of them is asked about.
        bare = x.special & np.array([not part for part in x.parts], bool)
        starts = np.array([i for i in starts if i == 0 or not (bare[i] and bare[i - 1])], dtype=np.int64)
    numbers = np.searchsorted(starts, np.arange(len(x.features)), side="right") - 1
    return replace(x, units=numbers, level=level)


def _text_starts(x: Input) -> np.ndarray:
    """The first feature of every text: a message of a chat, or a named part of the input."""
    return run_starts(x, numbers_in_text(x, lambda text: [(0, len(text))]))


def _passages(x: Input) -> np.ndarray:
    """The first feature of every passage; blank lines separate the passages of a text."""
    return run_starts(x, numbers_in_text(x, passage_spans))


def passage_spans(text: str) -> list[tuple[int, int]]:
    """The first character and the one after the last of every passage; blank lines stand between passages."""
    spans, start = [], 0
    for gap in [*re.finditer(r"\n\s*\n", text), None]:
        own = text[start : gap.start() if gap else len(text)]
        if own.strip():
            first = start + len(own) - len(own.lstrip())
            spans.append((first, first + len(own.strip())))
        start = gap.end() if gap else start
    return spans


# ---- a caller's own spans --------------------------------------------------------------------------------------------


def _characters(span: Any) -> tuple[str, int, int] | None:
    """(part, start, end) of a span given by its characters, part "" where it is not named; None for anything else."""
    if not isinstance(span, (list, tuple)) or len(span) not in (2, 3):
        return None
    part, start, end = span if len(span) == 3 else ("", *span)
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in (start, end))
    return (part, int(start), int(end)) if isinstance(part, str) and whole and 0 <= start < end else None


def _span_numbers(x: Input, spans: Sequence[Any]) -> np.ndarray:
    """(feature,) The number of the span that a token stands in, -1 for none; spans may not share characters."""
    numbers = np.full(len(x.features), -1)
    places = [_found(x, span) for span in spans]
    for a, b in pairwise(sorted(range(len(spans)), key=places.__getitem__)):
        if places[a][0] == places[b][0] and places[b][1] < places[a][2]:
            one, other = (shown(spans[number]) for number in sorted((a, b)))
            raise ValueError(f"the spans {one} and {other} share characters; give spans that lie apart")
    for number, (span, (part, start, end)) in enumerate(zip(spans, places, strict=True)):
        own = [
            i for i in range(len(x.features)) if x.parts[i] == part and not x.special[i] and _inside(x, i, start, end)
        ]
        if not own:
            raise ValueError(f"the span {shown(span)} holds no token of the {part}; give characters of its text")
        numbers[own] = number
    return numbers


def _inside(x: Input, i: int, start: int, end: int) -> bool:
    """Whether a token begins in a span; white space before its first letter does not count."""
    first, last = (int(place) for place in x.offsets[i])
    text = x.texts[x.parts[i]][first:last]
    first += len(text) - len(text.lstrip()) if text.strip() else 0
    return first >= 0 and start <= first < end


def _found(x: Input, span: Any) -> tuple[str, int, int]:
    """The part and the characters of a span."""
    if (given := _characters(span)) is not None:
        part, start, end = given
        if not part and len(x.texts) != 1:
            raise ValueError(
                f"the input has the texts {', '.join(map(repr, x.texts))}; say whose characters {shown(span)} are, as "
                f"({next(iter(x.texts), 'text')!r}, {start}, {end})"
            )
        part = part or next(iter(x.texts))
        if part not in x.texts or end > len(x.texts[part]):
            known = ", ".join(f"{name} ({len(text)} characters)" for name, text in x.texts.items())
            raise ValueError(f"the span {shown(span)} lies outside of the texts: {known}")
        return part, start, end
    wanted = str(span).strip()
    places = (
        [(p, m.start()) for p, text in x.texts.items() for m in re.finditer(re.escape(wanted), text)] if wanted else []
    )
    if len(places) != 1:
        times = "not in the input" if not places else f"in the input {len(places)} times"
        raise ValueError(f"the span {shown(span)} is {times}; give a text that stands there once, or its characters")
    return (*places[0], places[0][1] + len(wanted))
