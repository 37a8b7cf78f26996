"""Numbers and names as all media write them."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np

JOINERS = "\u200c\u200d"  # invisible, but part of how Persian words and many emoji are written


@lru_cache(maxsize=4096)
def printable(text: str) -> str:
    """The text with control characters, direction overrides and lone surrogates written as escapes."""
    shown = "".join(c if c.isprintable() or c in JOINERS else c.encode("unicode_escape").decode() for c in text)
    return shown if shown.strip() else repr(shown)


def number(value: float) -> str:
    """A value by itself, with four digits."""
    return f"{value:.4g}" if value else "0"


def signed(value: float, scale: float) -> str:
    """A score among others: the largest of them keeps three digits, and only an exact zero is written 0."""
    if value == 0 or not math.isfinite(value):
        return number(value)
    if not 1e-4 <= scale < 1e5:
        return f"{value:+.2e}"
    return f"{value:+.{max(0, 2 - math.floor(math.log10(scale)))}f}"


def writing(has_sign: bool) -> Callable[[float, float], str]:
    """How scores are written: with their signs, or as weights."""
    return signed if has_sign else weight


def weight(value: float, scale: float) -> str:
    """A weight among others, which have no sign."""
    return signed(value, scale).removeprefix("+")


def largest(scores: np.ndarray) -> float:
    """The largest finite |score|."""
    return float(np.abs(scores, where=np.isfinite(scores), out=np.zeros(scores.shape)).max(initial=0.0))


def strength(value: float, scale: float) -> float:
    """|score| as a share of the scale, between 0 and 1; 0 for scores that are not finite."""
    return min(abs(value) / scale, 1.0) if scale and math.isfinite(value) else 0.0


def right_to_left(text: str) -> bool:
    """Whether the first letter with a direction runs from right to left."""
    directions = (unicodedata.bidirectional(c) for c in text)
    return next((d != "L" for d in directions if d in ("L", "R", "AL")), False)


def listed(names: Sequence[str], most: int = 4) -> str:
    """Names in a sentence: `a, b and c`; where there are more than `most`, the rest is counted."""
    shown = list(names) if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} others"]
    return " and ".join(filter(None, [", ".join(shown[:-1]), *shown[-1:]]))


def duration(seconds: float) -> str:
    """A time by its two largest units: `0.84 s`, `3 min 20 s`, `2 h 5 min`."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = round(seconds)
    for (unit, size), (smaller, part) in pairwise((("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size:,} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{seconds:.3g} s"
