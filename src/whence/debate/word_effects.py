"""The words of a data set with their attributions, and exact tests of how decisions and labels go with words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from whence.core.inputs import Input, word_starts
from whence.core.results import Attribution


@dataclass(frozen=True, eq=False)
class SeenText:
    """One text: its words in order, what each is attributed, and what the model decides."""

    item: Input
    words: tuple[str, ...]  # (word,)
    features: tuple[slice, ...]  # of each word
    parts: tuple[str, ...]  # of each word: the part of the input that it stands in
    scores: np.ndarray  # (word,)
    predicted: int
    label: int | None = None

    @property
    def shares(self) -> np.ndarray:
        """Scores as shares of the sum of their sizes, (word,); all 0 where every score is."""
        return self.scores / (np.abs(self.scores).sum() or 1.0)

    def where(self, word: str) -> list[int]:
        """The places of a word."""
        return [place for place, own in enumerate(self.words) if own == word]


def seen(a: Attribution, lower: bool, predicted: int, label: int | None) -> SeenText:
    """The words of one attribution; special tokens and what belongs to no text are left out."""
    x = a.input
    starts = word_starts(x)
    ends = [*starts[1:], len(x.features)]
    found: list[tuple[str, slice, str]] = []
    for first, end in zip(starts, ends, strict=True):
        text = x.texts.get(x.parts[first], "")[max(int(x.offsets[first, 0]), 0) : max(int(x.offsets[end - 1, 1]), 0)]
        word = text.strip()
        if word and not x.special[first]:
            found.append((word.lower() if lower else word, slice(int(first), int(end)), x.parts[first]))
    scores = np.array([float(np.asarray(a.scores)[own].sum()) for _, own, _ in found])
    words, features, parts = zip(*found, strict=True) if found else ((), (), ())
    return SeenText(x, words, features, parts, scores, predicted, label)


@dataclass(eq=False)
class Stands:
    """Where a word stands: numbers of texts, and in every one of them its places."""

    word: str
    places: dict[int, list[int]] = field(default_factory=dict)  # text -> places of the word

    @property
    def texts(self) -> list[int]:
        """Numbers of the texts."""
        return list(self.places)


def words_of(texts: Sequence[SeenText], least: int) -> list[Stands]:
    """Every word that stands in `least` texts or more, in the order in which they appear."""
    found: dict[str, Stands] = {}
    for number, text in enumerate(texts):
        for place, word in enumerate(text.words):
            found.setdefault(word, Stands(word)).places.setdefault(number, []).append(place)
    return [own for own in found.values() if len(own.places) >= least]


def strongest(texts: Sequence[SeenText], own: Stands) -> tuple[np.ndarray, np.ndarray]:
    """In which of its texts a word has the greatest score, and how probable that is by chance: two arrays (text,).

    The word must be above every other word; a tie does not count. By chance, scores are dealt to the words of a text
    at random, so a word that stands k times among m words has the greatest score with probability k / m.
    """
    hits, chances = [], []
    for number, places in own.places.items():
        scores = texts[number].scores
        others = np.delete(scores, places)
        hits.append(bool(len(others)) and float(scores[places].max()) > float(others.max()))
        chances.append(len(places) / len(scores) if len(others) else 0.0)
    return np.array(hits), np.array(chances)


def at_least(count: int, chances: np.ndarray) -> float:
    """The probability that `count` or more of independent events happen, whose probabilities are `chances`; exact."""
    if count <= 0:
        return 1.0
    exactly = np.ones(1)  # exactly[k]: the probability that k of the events so far happened
    for chance in chances:
        grown = np.append(exactly * (1 - chance), 0.0)
        grown[1:] += exactly * chance
        exactly = grown
    return float(min(exactly[count:].sum(), 1.0))


def pulled_class(texts: Sequence[SeenText], own: Stands, classes: int) -> int:
    """The class that a word speaks for: its shares in texts decided for that class most exceed those in other texts."""
    evidence = np.zeros(classes)
    for number, places in own.places.items():
        share = float(texts[number].shares[places].sum())
        evidence -= share / max(classes - 1, 1)
        evidence[texts[number].predicted] += share * (1 + 1 / max(classes - 1, 1))
    return int(evidence.argmax())


def greater(hits: int, count: int, other_hits: int, other_count: int) -> float:
    """Fisher's exact test, one-sided: p of a share hits / count that is greater than the other by chance alone."""
    if not count or not other_count:
        return float("nan")
    total, marked = count + other_count, hits + other_hits
    return float(min(stats.hypergeom.sf(hits - 1, total, marked, count), 1.0))


def greater_paired(first: np.ndarray, second: np.ndarray) -> float:
    """McNemar's exact test, one-sided: p of more events in the first of two runs over the same texts, (text,) bool."""
    only_first, only_second = int((first & ~second).sum()), int((second & ~first).sum())
    if only_first + only_second == 0:
        return 1.0
    return float(stats.binom.sf(only_first - 1, only_first + only_second, 0.5))


def exact_interval(hits: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share by Clopper and Pearson; NaN without events."""
    if not count:
        return float("nan"), float("nan")
    low = 0.0 if hits == 0 else float(stats.beta.ppf(0.025, hits, count - hits + 1))
    high = 1.0 if hits == count else float(stats.beta.ppf(0.975, hits + 1, count - hits))
    return low, high
