"""The verbs that measure explanations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from whence.api.checks import check_call, check_specs
from whence.api.provenance import stamped
from whence.core import registry
from whence.core.results import Attribution
from whence.core.scoreboards import Arbitration, Score, Scoreboard
from whence.core.wording import shown
from whence.measure.arbitration import By, Labels, arbitrated
from whence.measure.call_types import Data, RawInput, TargetLike, Truth
from whence.measure.evaluation import evaluated
from whence.measure.scoring import scored
from whence.model.subject import Subject
from whence.model.targets import Function


@overload
def score(
    subject: Subject,
    attributions: Attribution,
    metric: str,
    *,
    truth: Truth = ...,
    target: Function | None = ...,
    seed: int = ...,
    **options: Any,
) -> Score: ...
@overload
def score(
    subject: Subject,
    attributions: Sequence[Attribution],
    metric: str,
    *,
    truth: Sequence[Truth] | None = ...,
    target: Function | None = ...,
    seed: int = ...,
    **options: Any,
) -> Score: ...
@stamped
def score(
    subject: Subject,
    attributions: Attribution | Sequence[Attribution],
    metric: str,
    *,
    truth: Truth | Sequence[Truth] = None,
    target: Function | None = None,
    seed: int = 0,
    **options: Any,
) -> Score:
    """A metric of one attribution, or of each of a list: their mean, a bootstrap interval, and every value.

    `truth`, one per attribution, says what decides, for metrics that compare with it: phrases of the text, pairs of
    characters, one mark per score, word or pixel, the file of a mask, or {"box": [x0, y0, x1, y1]}. `target` gives a
    function that was explained again, because an attribution cannot hold it. Every row of generated text counts as an
    example. Values that are not defined are left out of the mean.
    """
    check_call(subject, seed=seed)
    record, options = registry.resolve("metric", metric, options)
    single = isinstance(attributions, Attribution)
    found = [attributions] if isinstance(attributions, Attribution) else list(attributions)
    if not found or not all(isinstance(a, Attribution) for a in found):
        raise TypeError("score takes an Attribution or a list of them, as explain returns")
    truths: list[Any] = [truth] if single else [None] * len(found) if truth is None else list(truth)  # type: ignore[arg-type]
    if len(truths) != len(found):
        raise ValueError(f"truth has one entry per attribution: {len(found)} were expected, {len(truths)} came")
    if target is not None and not callable(target):
        raise TypeError(f"an attribution knows what it explains; target= takes a function alone, not {shown(target)}")
    return scored(subject, found, record, options, truths=truths, function=target, seed=seed)


@stamped
def evaluate(
    subject: Subject,
    data: Data,
    methods: Sequence[str],
    metrics: Sequence[str],
    *,
    target: TargetLike = None,
    limit: int | None = None,
    seed: int = 0,
    truncate: bool = False,
    resume: str | Path | None = None,
    progress: bool = False,
) -> Scoreboard:
    """Every method by every metric on a data set; labels that are given are the targets, else what is predicted.

    `target`, as `explain` takes it, is explained for all examples in place of labels. Methods share passes; the seconds
    of a method are measured on a few examples, by each method alone. `resume` names a file to which values are added
    every few examples; a run that was stopped continues from it.
    """
    check_call(subject, limit=limit, seed=seed, truncate=truncate, resume=resume, progress=progress)
    check_specs("methods", methods)
    check_specs("metrics", metrics)
    return evaluated(
        subject,
        data,
        methods,
        metrics,
        target=target,
        limit=limit,
        seed=seed,
        truncate=truncate,
        resume=resume,
        progress=progress,
    )


@stamped
def arbitrate(
    subject: Subject,
    data: RawInput | Data,
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
    every way to read attention (heads x layers x read-outs), "grid(scores=True)" for every way to read attention scores
    before the softmax. Among equal candidates the first is chosen. `labels="all"` explains every class, which a choice
    by label does by default; "target" explains the label of an example, or the prediction. A choice for the set is made
    on the first `fit` examples and judged on the others. `held_out` metrics judge the choice, because the metric that
    chose cannot. A metric whose usual mask cannot hide such inputs, as "unknown" cannot hide patches, takes
    mask="auto".
    """
    check_call(subject, fit=fit, limit=limit, seed=seed, truncate=truncate, progress=progress)
    if by not in ("instance", "label", "set"):
        raise ValueError(f"by is 'instance', 'label' or 'set', not {shown(by)}")
    if fit is not None and by != "set":
        raise ValueError("fit sets examples apart for a choice for the set; give by='set' with it")
    check_specs("candidates", candidates)
    judges = [held_out] if isinstance(held_out, str) else held_out
    if judges:
        check_specs("held_out", judges)
    return arbitrated(
        subject,
        data,
        candidates,
        metric,
        by=by,
        labels=labels or ("all" if by == "label" else "target"),
        held_out=judges,
        fit=fit,
        limit=limit,
        seed=seed,
        truncate=truncate,
        progress=progress,
    )
