"""A measurement as a plan: an immutable description, cut into chunks of examples that can be run anywhere.

`run_chunk` is a pure function of the plan, the chunk and the model: engines differ only in where they call it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from whence.core import registry
from whence.core.checksums import digest_of
from whence.core.inputs import Input, Target
from whence.core.results import Attribution
from whence.core.statistics import larger_is_better, means_of
from whence.measure.metric_protocol import Case, Curve
from whence.measure.metric_runs import Measure, MetricRuns, cases_of, fitted, hidden_by
from whence.measure.rationales import marks
from whence.methods.explaining import Settings, explained
from whence.model.masked_runs import MaskedRuns
from whence.model.subject import Subject
from whence.model.target_specs import resolve
from whence.model.targets import Function

MAX_EXAMPLES = 8  # in a chunk
MAX_COST = 2**17  # of a chunk: features x features x explanations, as metrics ask for about one variant per feature
MAX_KEPT = 2**28  # bytes of encoded inputs that are kept from planning until they are run
SHARES = np.linspace(0, 1, 21)  # of the features, where curves are kept

Keep = Literal["", "first", "instance", "label"]


@dataclass(frozen=True, eq=False)
class Example:
    """One example of a plan: the raw input, the targets to explain, and the truth on what decides, if known."""

    raw: Any
    targets: tuple[Any, ...]  # labels, indices, kinds or functions; None for what the model predicts
    truth: Any = None
    size: int = 0  # features of the encoded input, times generated tokens: its cost grows with this


@dataclass(frozen=True, eq=False)
class Plan:
    """Every method on every target of every example, measured by every metric."""

    model: str  # the subject's name
    weights: str  # the hash of the model, weights and all, which tells models of one name apart
    examples: tuple[Example, ...]
    methods: tuple[str, ...]  # resolved specs
    metrics: tuple[str, ...]
    seed: int = 0
    truncate: bool = False
    # Which explanations a chunk hands back: none, those of the first method, or of the best method by the first metric
    # for each instance or each label.
    keep: Keep = ""
    judges: tuple[str, ...] = ()  # metrics of the explanations that are kept

    def chunks(self) -> list[range]:
        """Numbers of examples that are run together: few enough that a stop loses seconds.

        The first chunk is one example, so that errors and progress show at once.
        """
        chunks: list[range] = []
        start = cost = 0
        for number, example in enumerate(self.examples):
            example_cost = max(1, example.size) ** 2 * len(self.methods) * len(example.targets)
            full = number - start >= MAX_EXAMPLES or cost + example_cost > MAX_COST or start == 0
            if number > start and full:
                chunks.append(range(start, number))
                start, cost = number, 0
            cost += example_cost
        return [*chunks, range(start, len(self.examples))]

    def heading(self) -> dict[str, Any]:
        """A description of the plan in JSON values, for result files; equal for plans that give the same results."""
        data = [[e.raw, e.targets, e.truth, e.size] for e in self.examples]
        return {
            "format": 2,
            "model": self.model,
            "weights": self.weights,
            "methods": list(self.methods),
            "metrics": list(self.metrics),
            "examples": len(self.examples),
            "chunks": len(self.chunks()),
            "data": digest_of([data, self.truncate, self.keep, self.judges]),
            "seed": self.seed,
        }


@dataclass(frozen=True, eq=False)
class Measurements:
    """The results of a chunk, or of a whole plan."""

    values: np.ndarray  # (method, metric, example, target); NaN where a metric is not defined
    curves: np.ndarray  # (method, metric, share): the sum over the examples that have a curve
    curve_counts: np.ndarray  # (method, metric): how many examples have a curve
    chosen: np.ndarray | None = None  # (example, target): numbers of the methods whose explanations are kept
    explanations: tuple[Attribution, ...] = ()  # the kept ones, in the order of examples and their targets
    judged: np.ndarray | None = None  # (judge, example, target)

    @property
    def examples(self) -> int:
        """How many examples were measured."""
        return int(self.values.shape[2])

    def mean_curves(self) -> np.ndarray:
        """(method, metric, share), not a number where a metric has no curve."""
        counts = np.where(self.curve_counts, self.curve_counts, np.nan)
        return np.asarray(self.curves / counts[..., None])


def joined(results: Sequence[Measurements]) -> Measurements:
    """The results of chunks, in their order, as one."""
    judged = [result.judged for result in results if result.judged is not None]
    chosen = [result.chosen for result in results if result.chosen is not None]
    return Measurements(
        values=np.concatenate([result.values for result in results], 2),
        curves=np.sum([result.curves for result in results], 0),
        curve_counts=np.sum([result.curve_counts for result in results], 0),
        chosen=np.concatenate(chosen) if chosen else None,
        explanations=tuple(one for result in results for one in result.explanations),
        judged=np.concatenate(judged, 1) if judged else None,
    )


# ---- making a plan ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Encoded:
    """The encoded inputs of a plan, kept so that they need not be encoded again."""

    first: Input  # the first input that is run: for generated text, the part that the first token could see
    items: Mapping[int, Input]  # by the number of the example, as many as fit into `MAX_KEPT`
    cut: int  # how many inputs were cut to the model's length


def encode_examples(
    subject: Subject, raws: Sequence[Any], targets: Sequence[Sequence[Any]], truths: Sequence[Any], truncate: bool
) -> tuple[tuple[Example, ...], Encoded]:
    """Examples of a plan, each encoded once; an example that cannot be read raises before anything is run."""
    examples, items, first, cut, size = [], {}, None, 0, 0
    for number, (raw, aims, truth) in enumerate(zip(raws, targets, truths, strict=True)):
        try:
            item = subject.encode(raw, truncate=truncate)
            aims = [_with_its_state(subject, aim, item) for aim in aims]
            if truth is not None and not subject.generates:  # generated tokens add rows and features
                marks(item, truth, (len(item.features),))
        except (ValueError, TypeError, OSError, LookupError) as error:
            kind = type(error) if type(error) in (TypeError, FileNotFoundError) else ValueError
            raise kind(f"example {number}: {error or repr(error)}") from error
        first = first or next((row for row, _ in subject.rows(item)), item)
        cut += any(" cut from " in note for note in item.notes)
        examples.append(Example(raw, tuple(aims), truth, len(item.features) * max(1, len(item.generated))))
        size += sum(array.nbytes for array in (*item.tensors.values(), item.image) if array is not None)
        if size <= MAX_KEPT:
            items[number] = item
    assert first is not None
    return tuple(examples), Encoded(first, items, cut)


def _with_its_state(subject: Subject, target: Any, item: Input) -> Any:
    """A target as it was given. One of a state inside the model becomes a Target, which holds the vector of a file."""
    known = resolve(target, subject, None if item.generated else item)
    return known if isinstance(known, Target) and known.of_state else target


def fitted_metrics(subject: Subject, first: Input, metrics: Sequence[str]) -> list[Measure]:
    """Metrics with their options, fitted to inputs of this kind."""
    return [fitted(subject, first, *registry.resolve("metric", metric)) for metric in metrics]


def specs_of(measures: Sequence[Measure]) -> tuple[str, ...]:
    """The specs of metrics or methods with their options."""
    return tuple(record.spec(options) for record, options in measures)


def hidden_by_each(subject: Subject, first: Input, metrics: Sequence[str]) -> tuple[str, ...]:
    """How each metric of a plan hides features; "" where it hides none."""
    return tuple(hidden_by(subject, first, *registry.resolve("metric", metric)) for metric in metrics)


# ---- running a chunk -------------------------------------------------------------------------------------------------


def run_chunk(
    plan: Plan,
    chunk: range,
    subject: Subject,
    items: Mapping[int, Input] | None = None,
    engine: MaskedRuns | None = None,
) -> Measurements:
    """The examples of a chunk, explained and measured: the same result wherever and in whatever order it is called.

    Methods share passes, and all methods and metrics share the answers to masked inputs. Two arguments save work and
    change no result: `items` are inputs that are encoded already, by the number of their example, and `engine` knows
    answers to masked inputs from other chunks or plans.
    """
    engine = engine or MaskedRuns(subject)
    metrics = MetricRuns(engine, partly=any(example.truth is not None for example in plan.examples))
    attributions = _explained(plan, chunk, subject, items or {}, engine)  # [question][method]
    examples = [plan.examples[number] for number in chunk]
    questions = [(example, target) for example in examples for target in example.targets]
    cases = [
        [_cases(subject, a, example, target, plan.seed) for a in by_method]
        for by_method, (example, target) in zip(attributions, questions, strict=True)
    ]
    shape = (len(chunk), len(examples[0].targets))
    result = measured(metrics, plan.metrics, [list(of_method) for of_method in zip(*cases, strict=True)], shape)
    if not plan.keep:
        return result
    chosen = _chosen(result.values, plan)
    numbers = chosen.ravel()
    kept = [by_method[number] for by_method, number in zip(attributions, numbers, strict=True)]
    kept_cases = [by_method[number] for by_method, number in zip(cases, numbers, strict=True)]
    judged = measured(metrics, plan.judges, [kept_cases], shape).values[0] if plan.judges else None
    return replace(result, chosen=chosen, explanations=tuple(kept), judged=judged)


def _explained(
    plan: Plan, chunk: range, subject: Subject, items: Mapping[int, Input], engine: MaskedRuns
) -> list[list[Attribution]]:
    """[question][method], a question being a target of an example; methods share the passes of every batch."""
    inputs: list[Input] = []
    targets: list[Any] = []
    for number in chunk:
        example = plan.examples[number]
        item = items.get(number) or subject.encode(example.raw, truncate=plan.truncate)
        inputs += [item] * len(example.targets)
        targets += example.targets
    specs = [registry.resolve("method", method) for method in plan.methods]
    return explained(subject, inputs, specs, targets, Settings(seed=plan.seed, masked_runs=engine))


def _cases(subject: Subject, a: Attribution, example: Example, target: Any, seed: int) -> list[Case]:
    function: Function | None = target if callable(target) else None
    return cases_of(subject, a, example.truth, seed, function=function, checked=True)


def measured(
    metrics: MetricRuns, specs: Sequence[str], cases: list[list[list[Case]]], shape: tuple[int, int]
) -> Measurements:
    """Values and curves of cases [method][question][row].

    `shape` is the number of examples and of the targets of each; the value of a question is the mean over its rows.
    """
    measures = [registry.resolve("metric", spec) for spec in specs]
    values = np.full((len(cases), len(specs), *shape), np.nan)
    curves = np.full((*values.shape, len(SHARES)), np.nan)
    flat = [(m, q, case) for m, questions in enumerate(cases) for q, rows in enumerate(questions) for case in rows]
    by_metric = metrics.scored(measures, [case for _, _, case in flat])
    for n, by_case in enumerate(by_metric):
        rows: dict[tuple[int, int], list[float | Curve]] = {}
        for (m, q, _), value in zip(flat, by_case, strict=True):
            rows.setdefault((m, q), []).append(value)
        for (m, q), question_values in rows.items():
            place = (m, n, *divmod(q, shape[1]))
            values[place] = means_of(np.array([float(value) for value in question_values]))
            drawn = [value.at(SHARES) for value in question_values if isinstance(value, Curve)]
            if drawn:
                curves[place] = np.mean(drawn, 0)
    by_example = means_of(np.moveaxis(curves, 3, -1))  # (method, metric, example, share): the mean over targets
    has_curve = ~np.isnan(by_example).all(-1)
    return Measurements(values, np.where(has_curve[..., None], by_example, 0.0).sum(2), has_curve.sum(2))


def _chosen(values: np.ndarray, plan: Plan) -> np.ndarray:
    """(example, target): the number of the method whose explanation is kept."""
    if plan.keep == "first":
        return np.zeros(values.shape[2:], int)
    better = registry.resolve("metric", plan.metrics[0])[0].better
    compared = values[:, 0] if plan.keep == "label" else means_of(values[:, 0])[..., None]
    return np.broadcast_to(np.argmax(larger_is_better(compared, better), 0), values.shape[2:])
