"""Evaluation: every method by every metric over a data set, run as a plan by the local engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whence.core import registry
from whence.core.inputs import Input, Target
from whence.core.results import Comparison
from whence.core.scoreboards import Scoreboard
from whence.core.statistics import means_of
from whence.measure.datasets import as_target, assumptions, read
from whence.measure.local_engine import run_plan
from whence.measure.metric_protocol import Case
from whence.measure.metric_runs import Measure, MetricRuns, cases_of, check_model, not_judged
from whence.measure.metrics.faithfulness import P_OF_CLASS
from whence.measure.metrics.pictures import localisation
from whence.measure.plans import (
    Plan,
    encode_examples,
    fitted_metrics,
    hidden_by_each,
    measured,
    specs_of,
)
from whence.measure.rationales import marks
from whence.model.identity import model_hash
from whence.model.interventions import described
from whence.model.masked_runs import MaskedRuns
from whence.model.subject import Subject
from whence.model.target_specs import resolve
from whence.model.targets import names_class


def evaluated(
    subject: Subject,
    data: Any,
    methods: Sequence[str],
    metrics: Sequence[str],
    *,
    target: Any = None,
    limit: int | None = None,
    seed: int = 0,
    truncate: bool = False,
    resume: str | Path | None = None,
    progress: bool = False,
) -> Scoreboard:
    """Every method by every metric on a data set; the arguments are those of `whence.evaluate`."""
    names = specs_of([registry.resolve("method", method) for method in methods])
    for metric in metrics:
        registry.resolve("metric", metric)  # a wrong spec raises before any data is read
    raws, labels, truths = read(data, limit)
    targets = [as_target(subject, label) if target is None else target for label in labels]
    examples, encoded = encode_examples(subject, raws, [[one] for one in targets], truths, truncate)
    measures = fitted_metrics(subject, encoded.first, metrics)
    plan = Plan(
        model=subject.name,
        weights="" if resume is None else model_hash(subject),
        examples=examples,
        methods=names,
        metrics=specs_of(measures),
        seed=seed,
        truncate=truncate,
    )
    result, seconds = run_plan(plan, subject, encoded.items, resume=resume, progress=progress)
    return Scoreboard(
        methods=plan.methods,
        metrics=plan.metrics,
        better=tuple(record.better for record, _ in measures),
        values=means_of(result.values),
        seconds=np.repeat(seconds[:, None], len(examples), 1),
        model=plan.model,
        seed=seed,
        hidden=hidden_by_each(subject, encoded.first, plan.metrics),
        curves=result.mean_curves(),
        notes=(
            *_notes(subject, targets, target, encoded.cut),
            *not_judged(measures, names),
            *_chance(subject, measures, encoded.items, truths),
            *assumptions(data),
        ),
        axes=tuple(_axes(subject, encoded.first, record, options, target) for record, options in measures),
    )


def board_of(
    subject: Subject, comparison: Comparison, metrics: Sequence[str], seconds: Sequence[float], seed: int = 0
) -> Scoreboard:
    """Explanations of one input that exist already, by metrics: a Scoreboard of one example, with its curves.

    `seconds` is what each of the explanations took.
    """
    first, methods = comparison[0], tuple(attribution.method for attribution in comparison)
    measures = fitted_metrics(subject, first.input, metrics)
    cases = [[cases_of(subject, attribution, None, seed)] for attribution in comparison]
    runs = MetricRuns(MaskedRuns(subject))
    check_model(runs.engine, [case for [rows] in cases for case in rows])
    found = measured(runs, specs_of(measures), cases, (1, 1))
    target = first.target[0] if isinstance(first.target, tuple) else first.target
    return Scoreboard(
        methods=methods,
        metrics=specs_of(measures),
        better=tuple(record.better for record, _ in measures),
        values=found.values[..., 0],
        seconds=np.array(seconds, float)[:, None],
        model=subject.name,
        seed=seed,
        hidden=hidden_by_each(subject, first.input, specs_of(measures)),
        curves=found.mean_curves(),
        notes=not_judged(measures, methods),
        axes=tuple(_axes(subject, first.input, record, options, target) for record, options in measures),
    )


def _axes(
    subject: Subject, first: Input, record: registry.Record, options: dict[str, Any], target: Any
) -> tuple[str, ...]:
    """The axes of a metric's curve; a target that names no class stands in for p of the class."""
    known = resolve(target, subject, None if subject.generates else first)
    has_class = isinstance(known, Target) and names_class(known)
    return tuple("the target" if axis == P_OF_CLASS and not has_class else axis for axis in record.axes_of(options))


def _chance(
    subject: Subject, measures: Sequence[Measure], items: Mapping[int, Input], truths: Sequence[Any]
) -> tuple[str, ...]:
    """Sentences with the value of each `localisation` for a map that is the same everywhere, to compare values with."""
    found = []
    known = {number: item for number, item in items.items() if truths[number] is not None and item.grid is not None}
    for record, options in measures:
        if record.function is not localisation:
            continue
        equal = []
        for number, item in known.items():
            region = marks(item, truths[number], (len(item.features),))
            if region.ndim == 2:
                case = Case(item, np.ones(len(item.features)), Target(), 0.0, None, region=region)
                equal.append(localisation(subject, case, **options))
        if not np.isnan(equal).all():
            mean, spec = float(np.nanmean(equal)), record.spec(options)
            found.append(f"Chance, a map that is the same everywhere: {mean:.3f} by {spec}.")
    return tuple(found)


def _notes(subject: Subject, targets: list[Any], target: Any, cut: int) -> tuple[str, ...]:
    """Notes on which target was explained, and on inputs that were cut."""
    known = sum(one is not None for one in targets)
    notes = []
    if target is not None:
        notes.append(f"Explained: {getattr(target, '__name__', target)}, of all inputs.")
    elif known:
        notes.append(f"Explained: the label given, of {known} of {len(targets)} inputs.")
    elif not subject.generates:
        notes.append("Explained: the output." if subject.regression else "Explained: what the model predicts.")
    if under := described(subject):
        notes.append(f"Under an intervention on attention: {', '.join(f'{k} {v}' for k, v in under.items())}.")
    if cut:
        notes.append(f"Cut to the model's length: {cut} of {len(targets)} inputs.")
    return tuple(notes)
