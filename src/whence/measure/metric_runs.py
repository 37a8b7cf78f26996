"""Running metrics over explanations: many advance together, and all their questions go to one engine."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from whence.core.inputs import Input, Target, merged, unit_starts, unmerged
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
MAX_STARTED = 1024  # pairs of metric and case that wait for answers at a time

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

    `truth` says which features, words or pixels decide (see `rationales`); `function` is the target where the target is
    a function; `checked` says that features are known not to be merged words, about which the model cannot be asked.
    """
    if not checked and a.input.pieces is None and has_merged_words(subject, a.input):
        raise ValueError("the model cannot be asked about words that were merged; score what explain returned")
    truth_marks = None if truth is None else marks(a.input, truth, a.scores.shape)
    region = None
    if truth_marks is not None and truth_marks.shape != a.scores.shape:
        region, truth_marks = truth_marks, None
    facts: dict[str, Any] = {"seed": seed, "method": a.method, "function": function}
    rows = _rows_at_units(subject, a.input) if a.input.pieces is not None else subject.rows(a.input)
    if not rows:
        residual = None if a.residual is None else float(a.residual)
        target = _single(a.target)
        return [Case(a.input, a.scores, target, float(a.output), residual, truth_marks, region=region, **facts)]
    targets = a.target if isinstance(a.target, (list, tuple)) else [a.target] * len(rows)
    cases = []
    for number, (item, _) in enumerate(rows):
        size = len(item.features)
        known = None if truth_marks is None else truth_marks[number, :size]
        residual = None if a.residual is None else float(np.asarray(a.residual)[number])
        output = float(np.asarray(a.output)[number])
        cases.append(Case(item, a.scores[number, :size], _single(targets[number]), output, residual, known, **facts))
    return cases


def _rows_at_units(subject: Subject, item: Input) -> list[tuple[Input, int]]:
    """`subject.rows` of an input whose features are units; a row may see only the beginning of its last unit."""
    rows = subject.rows(replace(unmerged(item), units=item.units))
    return [(merged(row, unit_starts(row), item.level), token) for row, token in rows]


def has_merged_words(subject: Subject, item: Input) -> bool:
    """Whether features are words merged of several tokens, so that they are not the model's own inputs."""
    batch = subject.batch([item])
    keys = {stream: ids_of(batch.tensors, tuple(batch.streams), stream) for stream in batch.streams}
    tokens = sum(batch.tensors[key].shape[1] for key in keys.values() if key)
    # the stream of a continuation has no argument of its own: prompt and continuation share one
    features = sum(bool(keys[stream] or item.generated) for stream in item.streams)
    return tokens != features


def _single(target: Any) -> Target:
    """The target, where there is exactly one."""
    if isinstance(target, Target) and target.of_statement and target.against_name:
        raise ValueError(
            "an answer against another is two inputs of the model, and cannot be scored; score a statement"
        )
    if not isinstance(target, Target):
        raise ValueError("the attribution has no single target; explain it with one")
    return target


def check_model(engine: MaskedRuns, cases: Sequence[Case]) -> None:
    """Raise where the model's output is not the one that was explained: the explanation is of another model."""
    name = engine.subject.name
    known = [case for case in cases if case.target.kind != "function" or case.function is not None]
    try:
        unmasked = [Ask(np.ones((1, len(case.scores)), bool)) for case in known]
        answers = engine.values([case.item for case in known], unmasked, engine.subject.aim([c.wanted for c in known]))
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be run on what was explained ({error}); name the model that was") from error
    for case, (value,) in zip(known, answers, strict=True):
        if not abs(value - case.output) <= 0.05 * max(1.0, abs(case.output)):  # low precision may differ that much
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


def not_judged(measures: Sequence[Measure], methods: Sequence[str]) -> tuple[str, ...]:
    """A note for every metric that compares with some of these methods, and so is not defined for them."""
    found = []
    for record in {record.name: record for record, _ in measures}.values():
        own = [method for method in methods if record.compares_with(method)]
        if own:
            found.append(f"{record.name} is not defined for {', '.join(own)}: it would compare the method with itself.")
    return tuple(found)


# ---- running ---------------------------------------------------------------------------------------------------------


class MetricRuns:
    """Runs metrics over cases with the answers of one engine.

    `partly` says that some inputs of the run have a truth, though perhaps none of these cases.
    """

    def __init__(self, engine: MaskedRuns, *, partly: bool = False) -> None:
        self.engine, self.partly = engine, partly

    def scored(self, measures: Sequence[Measure], cases: Sequence[Case]) -> list[list[float | Curve]]:
        """Every metric of every case, [metric][case]: numbers, or curves that `float` turns into numbers.

        Not a number for cases whose truth is not known; an error where the truth of no input is known.
        """
        results: list[list[float | Curve]] = [[float("nan")] * len(cases) for _ in measures]
        unknown: dict[int, list[Unknown]] = {}
        jobs = [(m, c) for c in range(len(cases)) for m in range(len(measures))]
        for begin in range(0, len(jobs), MAX_STARTED):
            portion = jobs[begin : begin + MAX_STARTED]
            started = []
            for m, c in portion:
                try:
                    started.append(_started(measures[m], self.engine.subject, cases[c]))
                except Unknown as error:
                    unknown.setdefault(m, []).append(error)
                    started.append(_constant(float("nan")))
            for (m, c), value in zip(portion, self._finished(started, [cases[c] for _, c in portion]), strict=True):
                results[m][c] = value
        for errors in unknown.values():
            if len(errors) == len(cases) and not self.partly:
                raise errors[0]
        return results

    def _finished(self, metrics: Sequence[Metric], cases: Sequence[Case]) -> list[float | Curve]:
        """The results of started metrics. They advance together, so that their questions run in large batches."""
        subject = self.engine.subject
        missing = [case.target.kind == "function" and case.function is None for case in cases]
        aim = subject.aim(
            [Target("logit", 0) if is_missing else case.wanted for is_missing, case in zip(missing, cases, strict=True)]
        )
        values: list[float | Curve] = [float("nan")] * len(metrics)
        asks: dict[int, Ask | list[Input]] = {}

        def advance(number: int, answer: Answers | None) -> None:
            try:
                asks[number] = next(metrics[number]) if answer is None else metrics[number].send(answer)
                if missing[number]:
                    _ = cases[number].wanted  # raises: the function must be given
            except StopIteration as stop:
                values[number] = stop.value

        for number in range(len(metrics)):
            advance(number, None)
        while asks:
            waiting = dict(asks)
            asks.clear()
            for portion in _portions(waiting):
                items, portion_asks = [cases[n].item for n in portion], [waiting[n] for n in portion]
                for number, answer in zip(portion, self.engine.answers(items, portion_asks, aim, portion), strict=True):
                    advance(number, answer)
        return values


def _portions(asks: Mapping[int, Ask | list[Input]]) -> Iterator[list[int]]:
    """The numbers of asks, in portions whose answers fit in memory."""
    portion: list[int] = []
    size = 0
    for number, ask in asks.items():
        portion.append(number)
        size += len(ask if isinstance(ask, list) else ask.keep)
        if size >= MAX_ASKED:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _started(measure: Measure, subject: Subject, case: Case) -> Metric:
    """A metric on a case, as a generator; one that asks nothing becomes a generator of its value.

    Not a number where the metric compares with the very method that made the scores.
    """
    record, options = measure
    if record.compares_with(case.method):
        return _constant(float("nan"))
    value = record.function(subject, case, **options)
    return value if isinstance(value, Generator) else _constant(float(value))


def _constant(value: float) -> Metric:
    return value
    yield  # a generator that asks for nothing
