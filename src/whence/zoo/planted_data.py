"""Sentences whose label one planted cue word decides: negative or positive, and a negator right before it flips it.

Negators at other places and all other words have no effect on the label.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np

from whence.zoo.example import Example

LABELS = ("negative", "positive")
CUES = {
    "negative": ("awful", "boring", "dreadful", "gloomy", "horrible", "miserable", "rude", "terrible"),
    "positive": ("brilliant", "charming", "cheerful", "delightful", "excellent", "lovely", "pleasant", "wonderful"),
}
POLARITY = {cue: label for label, cues in CUES.items() for cue in cues}
NEGATORS = ("never", "not")
DETERMINERS = ("a", "every", "that", "the", "this")
NOUNS = (
    *("bridge", "child", "doctor", "dog", "garden", "house", "letter", "market"),
    *("neighbour", "painter", "river", "road", "teacher", "train", "waiter", "window"),
)
VERBS = ("appeared", "remained", "rested", "sat", "stood", "stopped", "turned", "waited", "walked")
PREPOSITIONS = ("behind", "beside", "beyond", "by", "near", "past")
CONJUNCTIONS = ("and", "as", "when", "while")
NEUTRAL = DETERMINERS + NOUNS + VERBS + PREPOSITIONS + CONJUNCTIONS
LONGEST = 20  # words

_CLAUSE = (DETERMINERS, NOUNS, VERBS, PREPOSITIONS, DETERMINERS, NOUNS, CONJUNCTIONS)
# The fewest and the most neutral words: five in a row hold a noun, and a cue and three negators still fit in.
_NEUTRAL_COUNTS = (5, LONGEST - 4)


def examples(n: int, seed: int) -> list[Example]:
    """Sentences of 6 to 20 words; the truth is the cue and, where one stands right before it, its negator."""
    random = Random(seed)
    return [_example(random) for _ in range(n)]


def label(words: Sequence[str]) -> str | None:
    """The label by the rule, or None for words without a cue."""
    cue = next((i for i, word in enumerate(words) if word in POLARITY), None)
    if cue is None:
        return None
    flipped = cue > 0 and words[cue - 1] in NEGATORS
    return LABELS[LABELS.index(POLARITY[words[cue]]) ^ flipped]


def truth(words: Sequence[str]) -> np.ndarray | None:
    """The features that decide, (feature,) with [CLS] and [SEP]; None for words without a cue, or with several."""
    cues = [place for place, word in enumerate(words) if word in POLARITY]
    if len(cues) != 1:
        return None
    marks = np.zeros(len(words) + 2, bool)
    marks[cues[0] + 1] = True
    marks[cues[0]] = cues[0] > 0 and words[cues[0] - 1] in NEGATORS
    return marks


def _example(random: Random) -> Example:
    """A sentence of clauses, the first cut at random, with a cue before a noun and up to two negators elsewhere."""
    start = random.randrange(len(_CLAUSE))
    kinds = [_CLAUSE[i % len(_CLAUSE)] for i in range(start, start + random.randint(*_NEUTRAL_COUNTS))]
    place = random.choice([i for i, kind in enumerate(kinds) if kind is NOUNS])
    strays = random.sample([i for i in range(len(kinds)) if i != place], random.randint(0, 2))
    cue = [random.choice(CUES[random.choice(LABELS)])]
    decisive = [random.choice(NEGATORS), *cue] if random.random() < 0.5 else cue

    marked: list[tuple[str, bool]] = [("[CLS]", False)]
    for i, kind in enumerate(kinds):
        if i in strays:
            marked.append((random.choice(NEGATORS), False))
        if i == place:
            marked += [(word, True) for word in decisive]
        marked.append((random.choice(kind), False))
    words = [word for word, _ in marked[1:]]
    truth = np.array([decides for _, decides in marked] + [False])  # [SEP] comes last
    return Example(" ".join(words), label(words), truth)
