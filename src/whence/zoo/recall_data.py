"""Prompts that list keys with their values and end with one of the keys: `k3 v7 k1 v2 k3` goes on with `v7`.

The truth is the queried key's earlier occurrence and its value. The query at the end decides too, but is not part of
the truth: it is the question, and stands in every prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from whence.zoo.example import Example

KEYS = tuple(f"k{i}" for i in range(16))
VALUES = tuple(f"v{i}" for i in range(16))
UNKNOWN = "<unk>"
PAIRS = (3, 10)  # the fewest and the most in a prompt


def examples(n: int, seed: int) -> list[Example]:
    """Prompts of 3 to 10 pairs in which no key and no value comes twice, and a query."""
    random = Random(seed)
    return [_example(random) for _ in range(n)]


def answer(words: Sequence[str]) -> str:
    """The value by the rule: the word after the query's earlier occurrence, unknown where there is none."""
    *listed, query = words
    known = dict(zip(listed[::2], listed[1::2], strict=True))
    value = known.get(query) if query in KEYS else None
    return value if value in VALUES else UNKNOWN


def _example(random: Random) -> Example:
    """A prompt with a random number of pairs, one of whose keys is asked for."""
    count = random.randint(*PAIRS)
    keys, values = random.sample(KEYS, count), random.sample(VALUES, count)
    asked = random.randrange(count)
    words = [word for pair in zip(keys, values, strict=True) for word in pair] + [keys[asked]]
    truth = np.zeros(1 + len(words), dtype=bool)  # <s> comes first
    truth[[1 + 2 * asked, 2 + 2 * asked]] = True
    return Example(" ".join(words), answer(words), truth)
