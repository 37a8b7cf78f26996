"""Metrics ask for the model's answer to masked inputs; equal ones, of all metrics and methods, are run once.

A metric is a generator: it yields an `Ask` and is sent the logits, (variant, class), as often as it likes, and returns
its value. A `Runner` drives many of them at once.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from whence import masking
from whence.batching import MAX_TOKENS
from whence.hooks import lent
from whence.masking import Way
from whence.subject import Subject
from whence.types import Attribution, Input, Target


@dataclass(frozen=True)
class Ask:
    """Which features to keep, (variant, feature) bool, how the others are hidden, and whether special ones may be."""

    keep: np.ndarray
    mask: Way = "auto"
    special: bool = False


@dataclass(frozen=True, eq=False)
class Case:
    """One row of scores: of an input, or of one generated token of it."""

    item: Input
    scores: np.ndarray  # (feature,)
    target: Target
    output: float
    residual: float | None
    truth: np.ndarray | None = None  # (feature,) bool: what is known, or believed, to decide
    seed: int = 0

    @property
    def free(self) -> np.ndarray:
        """The numbers of the features that are not special."""
        return np.flatnonzero(~np.asarray(self.item.special))

    def probability(self, logits: np.ndarray) -> np.ndarray:
        """p of the target's class: (variant,)."""
        if logits.shape[-1] == 1:
            return 1 / (1 + np.exp(-logits[:, 0]))
        shifted = np.exp(logits - logits.max(-1, keepdims=True))
        return shifted[:, self._index] / shifted.sum(-1)

    def value(self, logits: np.ndarray) -> np.ndarray:
        """The target itself, where it is a logit, a probability or a difference of logits: (variant,)."""
        kind, index = self.target.kind, self._index
        if kind == "logit":
            return logits[:, index]
        if kind == "probability":
            return self.probability(logits)
        if kind == "log_probability":
            return np.log(self.probability(logits))
        if kind == "log_odds":
            p = self.probability(logits)
            return np.log(p) - np.log1p(-p)
        others = np.delete(logits, index, -1)
        if kind == "margin":
            return logits[:, index] - others.max(-1)
        if kind == "contrast":
            return logits[:, index] - logits[:, int(self.target.against or 0)]
        raise ValueError("metrics need a target that names a class or token; a function of the logits has none")

    @property
    def _index(self) -> int:
        if self.target.index is None:
            raise ValueError("metrics need a target that names a class or token; a function of the logits has none")
        return int(self.target.index)


Metric = Generator[Ask, np.ndarray, float]


def cases(subject: Subject, a: Attribution, truth: Any = None, seed: int = 0) -> list[Case]:
    """The rows of an attribution, each with the input that it could see."""
    if len(a.input.features) != a.scores.shape[-1]:
        raise ValueError("the attribution does not fit its input; score it as explain returned it, before words()")
    known = None if truth is None else np.asarray(truth, bool)
    if known is not None and known.shape != a.scores.shape:
        raise ValueError(f"truth has the shape {known.shape}, and the scores {a.scores.shape}; they must be the same")
    rows = subject.rows(a.input)
    if not rows:
        residual = None if a.residual is None else float(a.residual)
        return [Case(a.input, a.scores, _one(a.target), float(a.output), residual, known, seed)]
    targets = a.target if isinstance(a.target, (list, tuple)) else [a.target] * len(rows)
    found = []
    for number, (item, _) in enumerate(rows):
        size = len(item.features)
        own = None if known is None else known[number, :size]
        residual = None if a.residual is None else float(np.asarray(a.residual)[number])
        output = float(np.asarray(a.output)[number])
        found.append(Case(item, a.scores[number, :size], _one(targets[number]), output, residual, own, seed))
    return found


def _one(target: Any) -> Target:
    if not isinstance(target, Target):
        raise ValueError("the attribution has no single target; explain it with one")
    return target


class Runner:
    """Runs masked inputs, each once; remembers the logits of all that came."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.asked, self.run = 0, 0  # how many answers were asked for, and how many passes of an input that took
        self._known: dict[bytes, np.ndarray] = {}

    def finish(self, metrics: Sequence[Metric]) -> list[float]:
        """The values of metrics, which advance together: what they ask for is batched."""
        values: list[float] = [float("nan")] * len(metrics)
        asks: dict[int, Ask] = {}
        for number, one in enumerate(metrics):
            self._advance(number, one, None, asks, values)
        while asks:
            answers = self.answers([self._items[number] for number in asks], list(asks.values()))
            waiting, asks = list(asks), {}
            for number, answer in zip(waiting, answers, strict=True):
                self._advance(number, metrics[number], answer, asks, values)
        return values

    def score(self, function: Any, found: Sequence[Case], options: dict[str, Any]) -> list[float]:
        """One metric of many cases."""
        self._items = [case.item for case in found]
        return self.finish([_started(function, self.subject, case, options) for case in found])

    @staticmethod
    def _advance(number: int, one: Metric, answer: Any, asks: dict[int, Ask], values: list[float]) -> None:
        try:
            asks[number] = next(one) if answer is None else one.send(answer)
        except StopIteration as stop:
            values[number] = float(stop.value)

    def answers(self, items: Sequence[Input], asks: Sequence[Ask]) -> list[np.ndarray]:
        """The logits of every ask's variants: (variant, class) each."""
        order: list[list[bytes]] = []
        waiting: dict[bytes, Input] = {}
        for item, ask in zip(items, asks, strict=True):
            item = replace(item, special=np.zeros_like(item.special)) if ask.special else item
            keys = []
            for variant in masking.masked(self.subject, item, ask.keep, ask.mask):
                key = masking.digest(variant)
                keys.append(key)
                if key not in self._known:
                    waiting[key] = variant
            order.append(keys)
            if sum(a.nbytes for v in waiting.values() for a in v.tensors.values()) > masking.MAX_BYTES:
                self._evaluate(waiting)
        self._evaluate(waiting)
        self.asked += sum(map(len, order))
        return [np.stack([self._known[key] for key in keys]) for keys in order]

    def _evaluate(self, waiting: dict[bytes, Input]) -> None:
        groups: dict[Any, list[bytes]] = {}
        for key, item in waiting.items():
            shapes = tuple((name, array.shape) for name, array in item.tensors.items())
            groups.setdefault((item.streams, shapes), []).append(key)
        with lent(self.subject.model):
            for (streams, _), keys in groups.items():
                size = max(1, min(masking.MAX_ROWS, MAX_TOKENS // len(streams)))
                for start in range(0, len(keys), size):
                    chosen = keys[start : start + size]
                    logits = masking.logits(self.subject, [waiting[key] for key in chosen]).double().cpu().numpy()
                    self._known.update(zip(chosen, logits, strict=True))
        self.run += len(waiting)
        waiting.clear()


def _started(function: Any, subject: Subject, case: Case, options: dict[str, Any]) -> Metric:
    made = function(subject, case, **options)
    if isinstance(made, Generator):
        return made

    def constant() -> Metric:
        return float(made)
        yield  # a generator that asks for nothing

    return constant()
