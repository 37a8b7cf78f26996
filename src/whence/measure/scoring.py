"""Scoring: one metric over existing explanations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whence.core.registry import Record
from whence.core.results import Attribution
from whence.core.scoreboards import Score
from whence.core.statistics import bootstrap
from whence.measure.metric_runs import MetricRuns, cases_of, check_model, fitted, hidden_by
from whence.model.masked_runs import MaskedRuns
from whence.model.subject import Subject
from whence.model.targets import Function


def scored(
    subject: Subject,
    attributions: Sequence[Attribution],
    record: Record,
    options: dict[str, Any],
    *,
    truths: Sequence[Any],
    function: Function | None = None,
    seed: int = 0,
) -> Score:
    """The mean over attributions, a bootstrap interval, and the value of every row; `function` is a function target."""
    rows = [
        case
        for a, truth in zip(attributions, truths, strict=True)
        for case in cases_of(subject, a, truth, seed, function=function)
    ]
    if function is not None and all(case.target.kind != "function" for case in rows):
        raise ValueError(f"target= gives a function again, and the explanations are of {rows[0].target}; leave it out")
    for case in rows:
        if record.compares_with(case.method):
            raise ValueError(f"{record.name} would compare {case.method} with itself; choose another metric, as auac")
    engine = MaskedRuns(subject)
    check_model(engine, rows)
    record, options = fitted(subject, rows[0].item, record, options)
    values = np.array([float(value) for value in MetricRuns(engine).scored([(record, options)], rows)[0]])
    mean, interval = bootstrap(values, seed)
    hidden = hidden_by(subject, rows[0].item, record, options)
    return Score(record.spec(options), mean, record.better, values, interval, hidden)
