"""Words that errors and views share: suggestions, lists, counts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

MAX_SHOWN = 200  # characters of a value in an error


def suggest(name: str, known: Iterable[object]) -> str:
    """The end of an error about an unknown name: `did you mean 'lrp'?` where a known name is near, else all names."""
    names = sorted(map(str, known))
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"there is {', '.join(names)}" if names else "there is none"


def quoted(names: Iterable[object]) -> str:
    """Names in quotation marks with commas between them: `'a', 'b'`."""
    return ", ".join(repr(name) for name in names)


def first_sentence(error: BaseException) -> str:
    """The first sentence of an error, without its full stop."""
    return re.split(r"(?<=[.!?])\s|\n", str(error).strip() or repr(error), maxsplit=1)[0].rstrip(".")


def in_one_line(error: BaseException) -> str:
    """The message of an error that another one quotes: its first letters, on one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def shown(value: Any) -> str:
    """A value as an error shows it: its repr on one line, cut where it is long."""
    try:
        text = " ".join(repr(value).split("\n"))
    except (ValueError, RecursionError):  # a number of thousands of digits; lists nested too deeply
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= MAX_SHOWN else f"{text[:80]}... ({len(text):,} letters)"


def counted(number: int, noun: str) -> str:
    """A number with its noun in the singular or plural: `1 example`, `3 examples`."""
    return f"{number} {noun}{'s' * (number != 1)}"
