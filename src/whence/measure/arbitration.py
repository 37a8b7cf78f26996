"""Arbitration: choosing, by a metric, among every way to read attention and any other methods."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from whence.core import registry, specs
from whence.core.inputs import Input
from whence.core.results import Attribution
from whence.core.scoreboards import Arbitration, Scoreboard
from whence.core.statistics import comparable_means, larger_is_better, means_of
from whence.core.wording import shown
from whence.measure.datasets import as_target, assumptions, names_data, read
from whence.measure.local_engine import run_plan
from whence.measure.metric_runs import Measure, not_judged
from whence.measure.plans import Encoded, Plan, encode_examples, fitted_metrics, hidden_by_each, specs_of
from whence.methods.explaining import as_list
from whence.model.masked_runs import MaskedRuns
from whence.model.subject import Subject

READS = (
    "row",
    "column",
    "received",
    "received_max",
)  # row and column of the deciding token; mean and maximum of columns
By = Literal["instance", "label", "set"]
Labels = Literal["target", "all"]


@dataclass(frozen=True, eq=False)
class _Choosing:
    """The outcome of choosing among candidates."""

    values: np.ndarray  # (candidate, example, label) of the metric that chose
    seconds: float  # per example
    chosen: np.ndarray | None  # (example, label): numbers of candidates; None for one choice for the set
    explanations: tuple[Attribution, ...]  # the chosen ones
    judged: np.ndarray | None  # (metric, example): the chosen explanations by every metric


def arbitrated(
    subject: Subject,
    data: Any,
    candidates: Sequence[str],
    metric: str,
    *,
    by: By,
    labels: Labels,
    held_out: Sequence[str],
    fit: int | None,
    limit: int | None,
    seed: int,
    truncate: bool,
    progress: bool,
) -> Arbitration:
    """Choose among candidates by a metric; the arguments are those of `whence.arbitrate`."""
    raws, given, truths = read(_as_data(data), limit)
    if fit is not None and fit >= len(raws):
        raise ValueError(f"fit leaves examples to judge by: it is above 0 and below {len(raws)} here, not {fit}")
    for spec in (metric, *held_out):
        registry.resolve("metric", spec)  # a wrong spec raises before anything is encoded
    examples, encoded = encode_examples(subject, raws, _targets(subject, given, labels), truths, truncate)
    chooser, *judges = fitted_metrics(subject, encoded.first, [metric, *held_out])
    measures = [chooser, *(judge for judge in judges if specs_of([judge]) != specs_of([chooser]))]
    names, usual = _candidates(subject, encoded.first, candidates)
    plan = Plan(subject.name, "", examples[:fit], tuple(names), specs_of([chooser]), seed, truncate)
    engine = MaskedRuns(subject)  # choosing and judging ask about many of the same masked inputs
    choosing = _choose(engine, plan, encoded, by, specs_of(measures), progress)
    if np.isnan(choosing.values).all():
        raise ValueError(f"{metric} is defined for no candidate on these inputs; choose by another metric")
    means = comparable_means(choosing.values.reshape(len(names), -1))
    single = int(np.argmax(larger_is_better(means, chooser[0].better)))
    one_for_all = choosing.chosen is None or choosing.chosen.size == 1
    shown = tuple(dict.fromkeys([names[single], *usual]))
    judging = replace(plan, examples=examples[fit:], methods=shown, metrics=specs_of(measures), keep="first")
    judged_items = {number - (fit or 0): item for number, item in encoded.items.items()}
    result, seconds = run_plan(judging, subject, judged_items, resumable=False, engine=engine)
    board = _board(judging, measures, hidden_by_each(subject, encoded.first, judging.metrics), result.values, seconds)
    return Arbitration(
        by=by,
        metric=specs_of([chooser])[0],
        better=chooser[0].better,
        candidates=tuple(names),
        values=choosing.values,
        chosen=np.full(result.values.shape[2:], single) if choosing.chosen is None or one_for_all else choosing.chosen,
        explanations=result.explanations if one_for_all else choosing.explanations,
        board=board if one_for_all else _with_choice(board, f"chosen by {by}", choosing),
        notes=(
            *_notes(chooser, judges, choosing.values, fit),
            *not_judged(measures, names),
            *assumptions(_as_data(data)),
        ),
    )


def _choose(
    engine: MaskedRuns, plan: Plan, encoded: Encoded, by: By, judges: tuple[str, ...], progress: bool
) -> _Choosing:
    """Measure every candidate by the metric that chooses; by instance or label, judge the best one by all metrics."""
    plan = plan if by == "set" else replace(plan, keep=by, judges=judges)
    started = time.perf_counter()
    result, _ = run_plan(
        plan,
        engine.subject,
        encoded.items,
        resumable=False,
        progress=progress,
        doing="arbitrating",
        timed=False,
        engine=engine,
    )
    seconds = (time.perf_counter() - started) / len(plan.examples)
    judged = None if result.judged is None else means_of(result.judged)
    return _Choosing(result.values[:, 0], seconds, result.chosen, result.explanations, judged)


def _board(
    plan: Plan, measures: Sequence[Measure], hidden: tuple[str, ...], values: np.ndarray, seconds: np.ndarray
) -> Scoreboard:
    """Single candidates by every metric; values are means over the labels of an example."""
    return Scoreboard(
        methods=plan.methods,
        metrics=plan.metrics,
        better=tuple(record.better for record, _ in measures),
        values=means_of(values),
        seconds=np.repeat(seconds[:, None], len(plan.examples), 1),
        model=plan.model,
        seed=plan.seed,
        hidden=hidden,
    )


def _with_choice(board: Scoreboard, name: str, choosing: _Choosing) -> Scoreboard:
    """The board with the chosen explanations as its first row; their seconds are the time of trying all candidates."""
    assert choosing.judged is not None
    return replace(
        board,
        methods=(name, *board.methods),
        values=np.concatenate([choosing.judged[None], board.values]),
        seconds=np.concatenate([np.full((1, board.seconds.shape[1]), choosing.seconds), board.seconds]),
    )


def grid(subject: Subject, item: Input, *, scores: bool = False) -> list[str]:
    """Every way to read attention: mean of the heads, or one; mean of the layers, their product, or one; a read-out.

    With `scores`, attention scores before the softmax are read instead of weights; they have a sign, so products over
    layers are left out. The first candidate is the usual way: means of heads and layers at the deciding token.
    """
    trace = subject.trace(subject.batch([item]), subject.aim([None]), ("attention", "deciding"))
    seen = [record for record in trace.attention if record.query in trace.deciding]
    if not seen or not all(record.query for record in trace.attention):
        raise ValueError(f"{subject.name} has no attention over whole sequences to read; name other candidates")
    depths = [sum(record.key == key for record in seen) for key in {record.key for record in seen}]
    shared = min(depths)  # streams may have different depths; layers are counted from the last
    layers = range(shared) if shared == max(depths) else range(-shared, 0)
    heads = min(record.weights.shape[1] for record in seen)
    reads = READS if all(record.query == record.key for record in seen) else tuple(r for r in READS if r != "column")
    attention, rollout = (registry.find("method", name) for name in ("attention", "rollout"))
    candidates = []
    for head, layer, readout in product(["mean", *range(heads)], ["mean", "product", *layers], reads):
        options: dict[str, Any] = {"heads": head, "read": readout}
        if layer == "product":
            candidates += [] if scores else [rollout.spec({"residual": 0.0, **options})]
        else:
            chosen = list(layers) if layer == "mean" else layer
            candidates.append(attention.spec({"layer": chosen, **options, "scores": scores}))
    return candidates


def _as_data(data: Any) -> Any:
    """Data as it is; a single input as a list of one. A text that names a table, a folder or a file is data."""
    if as_list(data) is not None:
        return as_list(data)
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # a data frame
        return data
    # the name of a missing table counts as data: the reader then raises, and the name is not explained as a text
    return data if isinstance(data, (str, Path)) and names_data(data) else [data]


def _candidates(subject: Subject, item: Input, wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """The specs of all candidates, each once; and those for the board: named methods, and the first of a grid."""
    names: list[str] = []
    usual = []
    for text in wanted:
        name, options = specs.parse(text)
        if name == "grid":
            if set(options) - {"scores"} or not isinstance(options.get("scores", False), bool):
                raise ValueError(f"grid takes one option, scores=True or scores=False, and {shown(text)} came")
            specs_of_one = grid(subject, item, **options)
        else:
            record, options = registry.resolve("method", text)
            specs_of_one = [record.spec(options)]
        usual.append(specs_of_one[0])
        names += specs_of_one
    return list(dict.fromkeys(names)), usual


def _targets(subject: Subject, given: list[Any], labels: Labels) -> list[list[Any]]:
    """For each example its targets: one, or every class."""
    if labels == "target":
        return [[as_target(subject, label)] for label in given]
    if labels != "all":
        raise ValueError(f"labels is 'target' or 'all', not {shown(labels)}")
    if not subject.labels or subject.generates:
        raise ValueError(f"labels='all' needs classes with names, and {subject.name} has none; use labels='target'")
    if subject.reads:
        raise ValueError(
            f"labels='all' needs one decision per input, and {subject.name} labels every token; use labels='target'"
        )
    return [list(range(len(subject.labels)))] * len(given)


def _notes(chooser: Measure, judges: list[Measure], values: np.ndarray, fit: int | None) -> tuple[str, ...]:
    """Notes on how far the numbers can be trusted."""
    name, count = chooser[0].name, len(values)
    notes = []
    if fit is None:
        notes.append(f"{name} chose among {count} candidates on the examples shown; its own values are the best")
    else:
        notes.append(f"{name} chose among {count} candidates on {fit} examples; the others are shown")
    same = [record for record, _ in judges if record is chooser[0]]
    if same and len(same) == len(judges):
        notes.append(f"{name} chose and judges: give another held_out metric to learn how faithful the choice is")
    elif same:
        notes.append(f"{name} chose and judges: only the other metrics tell how faithful the choice is")
    elif not judges:
        notes.append("nothing but what chose judges: give a held_out metric to learn how faithful the choice is")
    undefined = int(np.isnan(values).all(0).sum())
    if undefined:
        notes.append(f"{name} is not defined for {undefined} of {values[0].size} questions; their choice says nothing")
    return tuple(notes)
