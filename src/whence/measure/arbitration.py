"""Which explanation does the model bear out best? Every way to read attention, and any method, against a metric."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from whence import api
from whence.core import registry, specs
from whence.core.files import PICTURES, TABLES
from whence.core.inputs import Input
from whence.core.registry import Record
from whence.core.results import Attribution
from whence.core.scoreboards import Arbitration, Scoreboard
from whence.core.statistics import comparable_means, means_of, worth
from whence.measure.cases import Runner, cases, fitted, hidden_by
from whence.measure.datasets import as_target, read
from whence.measure.evaluation import CHUNK, shown
from whence.model.subject import Subject

READS = ("row", "column", "received", "received_max")  # from and to the deciding token; mean and maximum of columns
By = Literal["instance", "label", "set"]
Labels = Literal["target", "all"]
Measure = tuple[Record, dict[str, Any]]


class _Question(NamedTuple):
    """What is to be explained of one example."""

    raw: Any
    targets: list[Any]
    truth: Any


def arbitrate(
    subject: Subject,
    data: Any,
    candidates: Sequence[str] = ("grid",),
    metric: str = "rft",
    *,
    by: By = "instance",
    labels: Labels | None = None,
    held_out: str | Sequence[str] = "comprehensiveness",
    fit: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    truncate: bool = False,
    progress: bool = False,
) -> Arbitration:
    """Choose among candidates by a metric: for every input, for every input and label, or one for the whole set.

    `data` is one input, or a list, file or folder as `evaluate` takes it. Candidates are methods; "grid" stands for
    every way to read attention (heads x layers x read-outs), "grid(scores=True)" for the same of what the softmax is
    given. Of equal ones the first is chosen. `labels="all"` asks for every class, as a choice by label does; "target"
    for the label of an example, or what is predicted. A choice for the set is made on the first `fit` examples and
    judged on the others. `held_out` metrics judge the choice, because the one that chose cannot. A metric whose usual
    mask cannot hide such inputs, as "unknown" cannot hide patches, takes mask="auto".
    """
    api._check_call(subject, seed, None)
    if by not in ("instance", "label", "set"):
        raise ValueError(f"by is 'instance', 'label' or 'set', not {by!r}")
    if fit is not None and by != "set":
        raise ValueError("fit sets examples apart for a choice for the set; give by='set' with it")
    inputs, given, truths = read(_listed(data), limit)
    if fit is not None and not 0 < fit < len(inputs):
        raise ValueError(f"fit leaves examples to judge by: it is above 0 and below {len(inputs)} here, not {fit}")
    first = subject.encode(inputs[0], truncate=truncate)
    first = next((row for row, _ in subject.rows(first)), first)
    chooser = fitted(subject, first, *registry.resolve("metric", metric))
    wanted = [held_out] if isinstance(held_out, str) else held_out
    judges = [fitted(subject, first, *registry.resolve("metric", one)) for one in wanted]
    targets = _targets(subject, given, labels or ("all" if by == "label" else "target"))
    questions = [_Question(*question) for question in zip(inputs, targets, truths, strict=True)]
    names, apart = _candidates(subject, first, candidates)
    court = _Court(subject, seed, truncate, any(truth is not None for truth in truths))
    started = time.perf_counter()
    values, choice, explanations = court.hear(questions[:fit], names, chooser, by, progress)
    seconds = (time.perf_counter() - started) / len(values[0])
    if np.isnan(values).all():
        raise ValueError(f"{metric} is defined for no candidate on these inputs; choose by another metric")

    single = int(np.argmax(worth(comparable_means(values.reshape(len(names), -1)), chooser[0].better)))
    rest = questions[fit:]
    one_for_all = by == "set" or choice.size == 1
    found, times = ({}, []) if one_for_all else ({f"chosen by {by}": explanations}, [seconds])
    for spec in dict.fromkeys([names[single], *apart]):
        started = time.perf_counter()
        found[spec] = court.explained(rest, spec)
        times.append((time.perf_counter() - started) / len(rest))
    if one_for_all:
        explanations, choice = found[names[single]], np.full((len(rest), len(targets[0])), single)
    measures = [chooser, *(judge for judge in judges if judge[0].spec(judge[1]) != chooser[0].spec(chooser[1]))]
    return Arbitration(
        by=by,
        metric=chooser[0].spec(chooser[1]),
        better=chooser[0].better,
        candidates=tuple(names),
        values=values,
        chosen=choice,
        explanations=tuple(explanations),
        board=court.board(found, rest, measures, times, first),
        notes=_notes(chooser, judges, values, fit),
    )


def grid(subject: Subject, item: Input, *, scores: bool = False) -> list[str]:
    """Every way to read attention: mean of the heads, or one; mean of the layers, their product, or one; a read-out.

    With `scores`, of what the softmax is given; those have a sign and are not multiplied. The first is the usual way:
    means of heads and layers at the deciding token.
    """
    trace = subject.trace(subject.batch([item]), subject.aim([None]), ("attention", "deciding"))
    seen = [record for record in trace.attention if record.query in trace.deciding]
    if not seen or not all(record.query for record in trace.attention):
        raise ValueError(f"{subject.name} has no attention over whole sequences to read; name other candidates")
    depths = [sum(record.key == key for record in seen) for key in {record.key for record in seen}]
    shared = min(depths)  # streams of different depth have their last layers in common
    layers = range(shared) if shared == max(depths) else range(-shared, 0)
    heads = min(record.weights.shape[1] for record in seen)
    reads = READS if all(record.query == record.key for record in seen) else tuple(r for r in READS if r != "column")
    attention, rollout = (registry.find("method", name) for name in ("attention", "rollout"))
    found = []
    for head, layer, way in product(["mean", *range(heads)], ["mean", "product", *layers], reads):
        options: dict[str, Any] = {"heads": head, "read": way}
        if layer == "product":
            found += [] if scores else [rollout.spec({"residual": 0.0, **options})]
        else:
            chosen = list(layers) if layer == "mean" else layer
            found.append(attention.spec({"layer": chosen, **options, "scores": scores}))
    return found


class _Court:
    """Explains and measures with shared answers of the model."""

    def __init__(self, subject: Subject, seed: int, truncate: bool, partly: bool) -> None:
        self.subject, self.seed, self.truncate = subject, seed, truncate
        self.runner = Runner(subject, partly=partly)

    def hear(
        self, questions: list[_Question], names: list[str], chooser: Measure, by: By, progress: bool
    ) -> tuple[np.ndarray, np.ndarray, list[Attribution]]:
        """Values (candidate, example, label), the best candidate of each (example, label), and its explanations."""
        values, choices, explanations = [], [], []
        for begin in shown(range(0, len(questions), CHUNK), progress):
            raws, targets, truths = zip(*questions[begin : begin + CHUNK], strict=True)
            found = [  # label, example, candidate
                api.compare(self.subject, list(raws), names, list(own), seed=self.seed, truncate=self.truncate)
                for own in zip(*targets, strict=True)
            ]
            part = np.array(
                [
                    [
                        self.measured(list(one), [truth] * len(names), chooser)
                        for one, truth in zip(row, truths, strict=True)
                    ]
                    for row in found
                ]
            ).transpose(2, 1, 0)
            wanted = part if by == "label" else means_of(part)[..., None]
            best = np.argmax(worth(wanted, chooser[0].better), 0)
            choice = np.broadcast_to(best, part.shape[1:])
            explanations += [found[n][e][choice[e, n]] for e, n in np.ndindex(choice.shape)]
            values.append(part)
            choices.append(choice)
        return np.concatenate(values, 1), np.concatenate(choices), explanations

    def measured(self, attributions: Sequence[Attribution], truths: Sequence[Any], measure: Measure) -> list[float]:
        """A metric of each attribution; the mean over the rows of generated text."""
        before = [None, *(a.input for a in attributions[:-1])]
        rows = [
            cases(self.subject, a, truth, self.seed, checked=a.input is last)
            for a, truth, last in zip(attributions, truths, before, strict=True)
        ]
        flat = [float(v) for v in self.runner.score(measure[0].function, [c for row in rows for c in row], measure[1])]
        ends = np.cumsum([len(row) for row in rows])[:-1]
        return [float(means_of(own)) for own in np.split(np.array(flat), ends)]

    def explained(self, questions: list[_Question], spec: str) -> list[Attribution]:
        """One method on every example and label, label by label of one example after the other."""
        raws, aims = zip(*((question.raw, aim) for question in questions for aim in question.targets), strict=True)
        return api.explain(self.subject, list(raws), spec, list(aims), seed=self.seed, truncate=self.truncate)

    def board(
        self,
        found: dict[str, list[Attribution]],
        questions: list[_Question],
        measures: list[Measure],
        times: list[float],
        first: Input,
    ) -> Scoreboard:
        """Rows of explanations by metrics; the mean over the labels of an example."""
        count, truths = len(questions), [question.truth for question in questions for _ in question.targets]
        values = [
            [means_of(np.array(self.measured(own, truths, measure)).reshape(count, -1)) for measure in measures]
            for own in found.values()
        ]
        return Scoreboard(
            methods=tuple(found),
            metrics=tuple(record.spec(options) for record, options in measures),
            better=tuple(record.better for record, _ in measures),
            values=np.array(values),
            seconds=np.repeat(times, count).reshape(len(found), count),
            model=self.subject.name,
            seed=self.seed,
            hidden=tuple(hidden_by(self.subject, first, record, options) for record, options in measures),
        )


def _listed(data: Any) -> Any:
    """One input as a list of one; a text that names a table or a folder, or any file but a picture, is data."""
    if isinstance(data, list):
        return data
    if isinstance(data, (str, Path)):
        kind = os.path.splitext(data)[1].lower()
        if kind in TABLES or (os.path.exists(data) and kind not in PICTURES):  # a table that is missing is no text
            return data
    return [data]


def _candidates(subject: Subject, item: Input, wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """The specs of all candidates, each once; and those of them that are shown: the first of a grid, named methods."""
    if isinstance(wanted, str) or not wanted:
        raise ValueError(f"candidates are a list of methods, such as ['grid', 'gae'], not {wanted!r}")
    names: list[str] = []
    apart = []
    for one in wanted:
        name, options = specs.parse(one)
        if name == "grid":
            if set(options) - {"scores"} or not isinstance(options.get("scores", False), bool):
                raise ValueError(f"grid takes one option, scores=True or scores=False, and {one!r} came")
            own = grid(subject, item, **options)
        else:
            record, options = registry.resolve("method", one)
            own = [record.spec(options)]
        apart.append(own[0])
        names += own
    return list(dict.fromkeys(names)), apart


def _targets(subject: Subject, given: list[Any], labels: Labels) -> list[list[Any]]:
    """For each example its targets: one, or every class."""
    if labels == "target":
        return [[as_target(subject, label)] for label in given]
    if labels != "all":
        raise ValueError(f"labels is 'target' or 'all', not {labels!r}")
    if not subject.labels or subject.generates:
        raise ValueError(f"labels='all' needs classes with names, and {subject.name} has none; use labels='target'")
    return [list(range(len(subject.labels)))] * len(given)


def _notes(chooser: Measure, judges: list[Measure], values: np.ndarray, fit: int | None) -> tuple[str, ...]:
    """What the numbers can be taken for."""
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
