"""Metrics run over explanations: many advance together, and what they ask of the model goes through one engine."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from whence.core.inputs import Input, Target
from whence.core.registry import Record
from whence.core.results import Attribution
from whence.measure.metric_protocol import Case, Curve, Metric, Unknown
from whence.measure.rationales import marks
from whence.model import masked_inputs
from whence.model.batching import ids_of
from whence.model.masked_runs import Answers, Ask, MaskedRuns
from whence.model.subject import Subject
from whence.model.targets import Function

MAX_ASKED = 1024  # variants answered at a time
MAX_STARTED = 1024  # metrics of one explanation each that wait for answers at a time

Measure = tuple[Record, dict[str, Any]]  # a metric with its options


# ---- explanations as cases -------------------------------------------------------------------------------------------


def cases_of(
    subject: Subject,
    a: Attribution,
    truth: Any = None,
    seed: int = 0,
    *,
    function: Function | None = None,
    checked: bool = False,
) -> list[Case]:
    """The rows of an attribution, each with the input that the row could see.

    `truth` says which features, words or pixels decide (see `rationales`); `function` is the target where that is a
    function; `checked` says that features of this input are known to be those that the model is fed.
    """
    if not checked and has_merged_words(subject, a.input):
        raise ValueError("the model cannot be asked about words that were merged; score what explain returned")
    known = None if truth is None else marks(a.input, truth, a.scores.shape)
    region = None
    if known is not None and known.shape != a.scores.shape:
        region, known = known, None
    facts: dict[str, Any] = {"seed": seed, "method": a.method, "function": function}
    rows = subject.rows(a.input)
    if not rows:
        residual = None if a.residual is None else float(a.residual)
        target = _single(a.target)
        return [Case(a.input, a.scores, target, float(a.output), residual, known, region=region, **facts)]
    targets = a.target if isinstance(a.target, (list, tuple)) else [a.target] * len(rows)
    found = []
    for number, (item, _) in enumerate(rows):
        size = len(item.features)
        own = None if known is None else known[number, :size]
        residual = None if a.residual is None else float(np.asarray(a.residual)[number])
        output = float(np.asarray(a.output)[number])
        found.append(Case(item, a.scores[number, :size], _single(targets[number]), output, residual, own, **facts))
    return found


def has_merged_words(subject: Subject, item: Input) -> bool:
    """The features are not those that the model is fed."""
    batch = subject.batch([item])
    keys = {stream: ids_of(batch.tensors, tuple(batch.streams), stream) for stream in batch.streams}
    fed = sum(batch.tensors[key].shape[1] for key in keys.values() if key)
    named = sum(bool(keys[stream] or item.generated) for stream in item.streams)  # a continuation goes with its prompt
    return fed != named


def _single(target: Any) -> Target:
    if not isinstance(target, Target):
        raise ValueError("the attribution has no single target; explain it with one")
    return target


def check_model(engine: MaskedRuns, found: Sequence[Case]) -> None:
    """That the model gives what was explained: else the explanation is of another model."""
    name = engine.subject.name
    known = [case for case in found if case.target.kind != "function" or case.function is not None]
    try:
        whole = [Ask(np.ones((1, len(case.scores)), bool)) for case in known]
        answers = engine.values([case.item for case in known], whole, engine.subject.aim([c.wanted for c in known]))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be run on what was explained ({error}); name the model that was") from error
    for case, (value,) in zip(known, answers, strict=True):
        if not abs(value - case.output) <= 0.05 * max(1.0, abs(case.output)):  # low precision may differ by so much
            raise ValueError(
                f"{name} gives {value:.4g} for {case.target}, and the explanation is of {case.output:.4g}: it explains "
                "another model; name that one"
            )


# ---- how a metric hides features -------------------------------------------------------------------------------------


def fitted(subject: Subject, item: Input, record: Record, options: dict[str, Any]) -> Measure:
    """A metric with its options; where its usual mask cannot hide features of such inputs, with mask="auto"."""
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


# ---- running ---------------------------------------------------------------------------------------------------------


class MetricRuns:
    """Runs metrics over cases with the answers of one engine.

    `partly`: a truth is known of some inputs, which may not be among the cases that come.
    """

    def __init__(self, engine: MaskedRuns, *, partly: bool = False) -> None:
        self.engine, self.partly = engine, partly

    def scored(self, measures: Sequence[Measure], cases: Sequence[Case]) -> list[list[float | Curve]]:
        """Every metric of every case, [metric][case]: numbers, or curves that `float` turns into numbers.

        Not a number for cases whose truth is not known, unless it is known of none.
        """
        found: list[list[float | Curve]] = [[float("nan")] * len(cases) for _ in measures]
        unknown: dict[int, list[Unknown]] = {}
        jobs = [(m, c) for c in range(len(cases)) for m in range(len(measures))]
        for begin in range(0, len(jobs), MAX_STARTED):
            some = jobs[begin : begin + MAX_STARTED]
            started = []
            for m, c in some:
                try:
                    started.append(_started(measures[m], self.engine.subject, cases[c]))
                except Unknown as error:
                    unknown.setdefault(m, []).append(error)
                    started.append(_constant(float("nan")))
            for (m, c), value in zip(some, self._finished(started, [cases[c] for _, c in some]), strict=True):
                found[m][c] = value
        for errors in unknown.values():
            if len(errors) == len(cases) and not self.partly:
                raise errors[0]
        return found

    def _finished(self, metrics: Sequence[Metric], cases: Sequence[Case]) -> list[float | Curve]:
        """What metrics return. They advance together, so that what they ask for runs in large batches."""
        subject = self.engine.subject
        missing = [case.target.kind == "function" and case.function is None for case in cases]
        aim = subject.aim(
            [Target("logit", 0) if gone else case.wanted for gone, case in zip(missing, cases, strict=True)]
        )
        values: list[float | Curve] = [float("nan")] * len(metrics)
        asks: dict[int, Ask | list[Input]] = {}

        def advance(number: int, answer: Answers | None) -> None:
            try:
                asks[number] = next(metrics[number]) if answer is None else metrics[number].send(answer)
                if missing[number]:
                    _ = cases[number].wanted  # says that the function must be given
            except StopIteration as stop:
                values[number] = stop.value

        for number in range(len(metrics)):
            advance(number, None)
        while asks:
            waiting = dict(asks)
            asks.clear()
            for some in _portions(waiting):
                items, own = [cases[n].item for n in some], [waiting[n] for n in some]
                for number, answer in zip(some, self.engine.answers(items, own, aim, some), strict=True):
                    advance(number, answer)
        return values


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


def _started(measure: Measure, subject: Subject, case: Case) -> Metric:
    record, options = measure
    made = record.function(subject, case, **options)
    return made if isinstance(made, Generator) else _constant(float(made))


def _constant(value: float) -> Metric:
    return value
    yield  # a generator that asks for nothing
