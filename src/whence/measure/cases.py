"""Metrics ask for the model's answer to masked inputs; equal ones, of all metrics and methods, are run once.

A metric is a generator: it yields an `Ask`, or a list of inputs it made itself, and is sent the logits, (variant,
class), as often as it likes, and returns its value. A `Runner` drives many of them at once.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import expit, log_expit, log_softmax, logsumexp, softmax

from whence.core.geometry import on_grid
from whence.core.inputs import Input, Target
from whence.core.registry import Record
from whence.core.results import Attribution
from whence.measure.rationales import marks
from whence.model import masked_inputs
from whence.model.batching import MAX_TOKENS, ids_of
from whence.model.loan import lent
from whence.model.masked_inputs import Way
from whence.model.subject import Subject

MAX_KNOWN = 2**30  # bytes of answers that a Runner remembers: those of a language model are long
MAX_ASKED = 1024  # variants answered at a time


class Unknown(ValueError):
    """What a metric compares with was not given for an input."""


@dataclass(frozen=True)
class Ask:
    """Which features to keep, (variant, feature) bool, how the others are hidden, and whether special ones may be.

    What a model itself adds to a picture, as a class token, is in no argument that could be masked: it always stays.
    """

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
    method: str = ""  # the spec of what made the scores
    region: np.ndarray | None = None  # (height, width) bool: what decides, of the picture the model saw or the original
    multi_label: bool = False  # every class has a sigmoid of its own

    @property
    def free(self) -> np.ndarray:
        """The numbers of the features that are not special."""
        return np.flatnonzero(~self.item.special)

    @property
    def tokens(self) -> np.ndarray:
        """The numbers of the features that are not special, and of special tokens of texts."""
        return np.flatnonzero(~_added(self.item))

    def ordered(self, scores: np.ndarray) -> np.ndarray:
        """Numbers of features from the highest score to the lowest; equal ones in a random order, by seed and input."""
        names = zlib.crc32("\0".join(self.item.features).encode("utf-8", "surrogatepass"))
        return np.lexsort((np.random.default_rng([self.seed, names]).random(len(scores)), -scores))

    def probability(self, logits: np.ndarray) -> np.ndarray:
        """p of the target's class: (variant,)."""
        if logits.shape[-1] == 1:
            return expit(logits[:, 0])
        return expit(logits[:, self.index]) if self.multi_label else softmax(logits, -1)[:, self.index]

    def value(self, logits: np.ndarray) -> np.ndarray:
        """The target itself, where it is a logit, a probability or a difference of logits: (variant,)."""
        kind, index = self.target.kind, self.index
        alone = logits.shape[-1] == 1 or self.multi_label  # the class has a sigmoid
        if kind == "logit":
            return logits[:, index]
        if kind == "probability":
            return self.probability(logits)
        if kind == "log_probability":
            return log_expit(logits[:, index]) if alone else log_softmax(logits, -1)[:, index]
        others = np.delete(logits, index, -1)
        if kind == "log_odds":
            return logits[:, index] if alone else logits[:, index] - logsumexp(others, -1)
        if kind == "margin":
            return logits[:, index] - others.max(-1)
        if kind == "contrast":
            return logits[:, index] - logits[:, int(self.target.against or 0)]
        raise ValueError("metrics need a target that names a class or token; a function of the logits has none")

    @property
    def index(self) -> int:
        """The number of the target's class or token."""
        if self.target.index is None:
            raise ValueError("metrics need a target that names a class or token; a function of the logits has none")
        return int(self.target.index)


@dataclass(frozen=True, eq=False)
class Curve:
    """What a metric that watches the model while features come or go returns: the area is its value."""

    values: np.ndarray  # at equal distances, from share 0 of the features to the share `end`
    end: float = 1.0

    def __float__(self) -> float:
        """The area under the curve, by trapezoids."""
        return float(np.trapezoid(self.values, dx=self.end / (len(self.values) - 1)))

    def at(self, shares: np.ndarray) -> np.ndarray:
        """The values at these shares, not a number beyond the end."""
        return np.interp(shares, np.linspace(0, self.end, len(self.values)), self.values, right=np.nan)


Metric = Generator[Ask | list[Input], np.ndarray, float | Curve]


def cases(subject: Subject, a: Attribution, truth: Any = None, seed: int = 0, *, checked: bool = False) -> list[Case]:
    """The rows of an attribution, each with the input that it could see.

    `truth` says which features, words or pixels decide (see `truths`); an input may be `checked` already.
    """
    if not checked and _merged(subject, a.input):
        raise ValueError("the model cannot be asked about words that were merged; score what explain returned")
    known = None if truth is None else marks(a.input, truth, a.scores.shape)
    region = None
    if known is not None and known.shape != a.scores.shape:
        region, known = known, None
    rows = subject.rows(a.input)
    if not rows:
        residual = None if a.residual is None else float(a.residual)
        sigmoids = subject.multi_label
        one = _one(a.target)
        return [Case(a.input, a.scores, one, float(a.output), residual, known, seed, a.method, region, sigmoids)]
    targets = a.target if isinstance(a.target, (list, tuple)) else [a.target] * len(rows)
    found = []
    for number, (item, _) in enumerate(rows):
        size = len(item.features)
        own = None if known is None else known[number, :size]
        residual = None if a.residual is None else float(np.asarray(a.residual)[number])
        output = float(np.asarray(a.output)[number])
        found.append(Case(item, a.scores[number, :size], _one(targets[number]), output, residual, own, seed, a.method))
    return found


def check_model(runner: Runner, found: Sequence[Case]) -> None:
    """That the model gives what was explained: else it is another one."""
    name, known = runner.subject.name, [case for case in found if case.target.kind != "function"]
    try:
        asks = [Ask(np.ones((1, len(case.scores)), bool)) for case in known]
        answers = runner.answers([case.item for case in known], asks)
        values = [float(case.value(logits)[0]) for case, logits in zip(known, answers, strict=True)]
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be run on what was explained ({error}); name the model that was") from error
    for case, value in zip(known, values, strict=True):
        if not abs(value - case.output) <= 0.05 * max(1.0, abs(case.output)):  # low precision may differ by so much
            raise ValueError(
                f"{name} gives {value:.4g} for {case.target}, and the explanation is of {case.output:.4g}: it explains "
                "another model; name that one"
            )


def fitted(subject: Subject, item: Input, record: Record, options: dict[str, Any]) -> tuple[Record, dict[str, Any]]:
    """A metric with its options; where its usual mask cannot hide such inputs, "auto"."""
    if "mask" in record.options and "mask" not in options:
        try:
            masked_inputs.hiding(subject, item, record.options["mask"].default)
        except ValueError:
            options = {**options, "mask": "auto"}
    return record, options


def hidden_by(subject: Subject, item: Input, record: Record, options: Mapping[str, Any]) -> str:
    """How a metric hides features of such inputs, in a word, or by stream where they differ; "" if it hides none."""
    if "mask" not in record.options:
        return ""
    ways = masked_inputs.ways(subject, item, options.get("mask", record.options["mask"].default))
    if len(set(ways.values())) == 1:
        return next(iter(ways.values()))
    return ", ".join(f"{stream}: {way}" for stream, way in ways.items())


def _merged(subject: Subject, item: Input) -> bool:
    """The features are not those that the model is fed."""
    batch = subject.batch([item])
    keys = {stream: ids_of(batch.tensors, tuple(batch.streams), stream) for stream in batch.streams}
    fed = sum(batch.tensors[key].shape[1] for key in keys.values() if key)
    named = sum(bool(keys[stream] or item.generated) for stream in item.streams)  # a continuation goes with its prompt
    return fed != named


def _added(item: Input) -> np.ndarray:
    """(feature,) bool: special features of streams that lie on a grid."""
    return item.special & np.array([on_grid(item, stream) for stream in item.streams], bool)


def _one(target: Any) -> Target:
    if not isinstance(target, Target):
        raise ValueError("the attribution has no single target; explain it with one")
    return target


class Runner:
    """Runs masked inputs, each once; remembers the logits, and begins anew when they fill `MAX_KNOWN`.

    `partly`: the truth is known of some inputs, which may not be among the cases that come.
    """

    def __init__(self, subject: Subject, *, partly: bool = False) -> None:
        self.subject, self.partly = subject, partly
        self.asked, self.run = 0, 0  # how many answers were asked for, and how many passes of an input that took
        self._known: dict[bytes, np.ndarray] = {}  # logits of a variant, by its digest
        self._seen: dict[tuple[bytes, bytes, str], dict[bytes, bytes]] = {}  # of an input: kept features -> variant

    def finish(self, metrics: Sequence[Metric]) -> list[float | Curve]:
        """What metrics return, which advance together: what they ask for is batched."""
        values: list[float | Curve] = [float("nan")] * len(metrics)
        asks: dict[int, Ask | list[Input]] = {}
        for number, one in enumerate(metrics):
            self._advance(number, one, None, asks, values)
        while asks:
            waiting, asks = asks, {}
            for some in _portions(waiting):
                answers = self.answers([self._items[number] for number in some], [waiting[number] for number in some])
                for number, answer in zip(some, answers, strict=True):
                    self._advance(number, metrics[number], answer, asks, values)
        return values

    def score(self, function: Any, found: Sequence[Case], options: dict[str, Any]) -> list[float | Curve]:
        """One metric of many cases: numbers, or curves that `float` turns into numbers.

        Not a number for cases whose truth is not known, unless it is known of none.
        """
        self._items = [case.item for case in found]
        started: list[Metric] = []
        unknown: list[Unknown] = []
        for case in found:
            try:
                started.append(_started(function, self.subject, case, options))
            except Unknown as error:
                unknown.append(error)
                started.append(_constant(float("nan")))
        if unknown and len(unknown) == len(found) and not self.partly:
            raise unknown[0]
        return self.finish(started)

    @staticmethod
    def _advance(
        number: int, one: Metric, answer: Any, asks: dict[int, Ask | list[Input]], values: list[float | Curve]
    ) -> None:
        try:
            asks[number] = next(one) if answer is None else one.send(answer)
        except StopIteration as stop:
            values[number] = stop.value

    def answers(self, items: Sequence[Input], asks: Sequence[Ask | list[Input]]) -> list[np.ndarray]:
        """The logits of every ask's variants: (variant, class) each."""
        if sum(logits.nbytes for logits in self._known.values()) > MAX_KNOWN:
            self._known.clear()
            self._seen.clear()
        order: list[list[bytes]] = []
        waiting: dict[bytes, Input] = {}
        size = 0
        for item, ask in zip(items, asks, strict=True):
            keys, made = self._made(item, ask)
            order.append(keys)
            for key, variant in made.items():
                if key not in self._known and key not in waiting:
                    waiting[key] = variant
                    size += sum(array.nbytes for array in variant.tensors.values())
            if size > masked_inputs.MAX_BYTES:
                self._evaluate(waiting)
                size = 0
        self._evaluate(waiting)
        self.asked += sum(map(len, order))
        return [np.stack([self._known[key] for key in keys]).astype(float) for keys in order]

    def _made(self, item: Input, ask: Ask | list[Input]) -> tuple[list[bytes], dict[bytes, Input]]:
        """The keys of all variants, and the variants that were not asked for before."""
        if isinstance(ask, list):
            keys = [masked_inputs.digest(variant) for variant in ask]
            return keys, dict(zip(keys, ask, strict=True))
        item = replace(item, special=_added(item)) if ask.special else item
        seen = self._seen.setdefault((masked_inputs.digest(item), item.special.tobytes(), ask.mask), {})
        rows = [row.tobytes() for row in ask.keep]
        new = {name: row for name, row in zip(rows, ask.keep, strict=True) if name not in seen}
        made = {}
        if new:
            for name, variant in zip(
                new, masked_inputs.masked(self.subject, item, np.stack(list(new.values())), ask.mask), strict=True
            ):
                seen[name] = masked_inputs.digest(variant)
                made[seen[name]] = variant
        return [seen[name] for name in rows], made

    def _evaluate(self, waiting: dict[bytes, Input]) -> None:
        groups: dict[Any, list[bytes]] = {}
        for key, item in waiting.items():
            shapes = tuple((name, array.shape) for name, array in item.tensors.items())
            groups.setdefault((item.streams, shapes), []).append(key)
        with lent(self.subject.model):
            for (streams, _), keys in groups.items():
                size = max(1, min(masked_inputs.MAX_ROWS, MAX_TOKENS // len(streams)))
                for start in range(0, len(keys), size):
                    chosen = keys[start : start + size]
                    logits = masked_inputs.logits(self.subject, [waiting[key] for key in chosen])
                    wide = logits if logits.dtype.itemsize > 2 else logits.float()
                    self._known.update(zip(chosen, wide.cpu().numpy(), strict=True))
        self.run += len(waiting)
        waiting.clear()


def _portions(asks: Mapping[int, Ask | list[Input]]) -> Iterator[list[int]]:
    """The numbers of asks, so many together that their answers fit in memory."""
    some: list[int] = []
    size = 0
    for number, ask in asks.items():
        some.append(number)
        size += len(ask if isinstance(ask, list) else ask.keep)
        if size >= MAX_ASKED:
            yield some
            some, size = [], 0
    if some:
        yield some


def _started(function: Any, subject: Subject, case: Case, options: dict[str, Any]) -> Metric:
    made = function(subject, case, **options)
    return made if isinstance(made, Generator) else _constant(float(made))


def _constant(value: float) -> Metric:
    return value
    yield  # a generator that asks for nothing
