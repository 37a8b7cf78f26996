"""The verbs: validate, call, wrap the results with their provenance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from whence import zoo
from whence.core import registry
from whence.core.registry import Record
from whence.core.results import Attribution, Comparison
from whence.core.scoreboards import Score
from whence.methods.attention_maps import maps_of
from whence.methods.explaining import encoded, explained, usual_method
from whence.model.loan import lent
from whence.model.subject import Subject
from whence.propagation.relevance_balance import balanced


def explain(
    subject: Subject,
    inputs: Any,
    method: str | None = None,
    target: Any = None,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    truncate: bool = False,
    progress: bool = False,
    **options: Any,
) -> Any:
    """Attribute the target to the features of one input (an Attribution) or of a list of inputs (a list).

    `target`: a label, an index, a token's text, `kind(...)` such as "log_odds('positive')", a function
    `(logits, batch) -> (batch,)`, or a list with one per input; by default what the model predicts.
    """
    _check_call(subject, seed, batch_size)
    if method is not None:
        registry.resolve("method", method, options)  # what is wrong with it is said before anything is encoded
    single = not isinstance(inputs, list)
    raws = [inputs] if single else inputs
    items = encoded(subject, raws, truncate, single)
    usual = usual_method(subject, items) if method is None else method
    record, options = registry.resolve("method", usual, options)
    notes = () if method is not None else (f"no method was named: {usual} was used",)
    found = explained(
        subject, items, [(record, options)], _targets(target, raws, single), seed, batch_size, progress, notes
    )
    results = [attributions[0] for attributions in found]
    return results[0] if single else results


def compare(
    subject: Subject,
    inputs: Any,
    methods: Sequence[str],
    target: Any = None,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    truncate: bool = False,
    progress: bool = False,
) -> Any:
    """Several methods on one input (a Comparison) or on each of a list (a list): one target, shared passes."""
    _check_call(subject, seed, batch_size)
    if isinstance(methods, str) or not methods:
        raise ValueError(f"compare takes a list of methods, such as ['attention', 'gradient'], not {methods!r}")
    specs = [registry.resolve("method", spec) for spec in methods]
    single = not isinstance(inputs, list)
    raws = [inputs] if single else inputs
    items = encoded(subject, raws, truncate, single)
    found = explained(subject, items, specs, _targets(target, raws, single), seed, batch_size, progress, ())
    results = [Comparison(tuple(attributions)) for attributions in found]
    return results[0] if single else results


def attention_maps(subject: Subject, inputs: Any, *, truncate: bool = False) -> Any:
    """All attention weights of one input (AttentionMaps) or of each of a list (a list), as the model used them."""
    _check_call(subject, 0, None)
    single = not isinstance(inputs, list)
    items = encoded(subject, [inputs] if single else inputs, truncate, single)
    with lent(subject.model):
        found = [maps_of(subject, item) for item in items]
    return found[0] if single else found


def score(
    subject: Subject, attributions: Any, metric: str, *, truth: Any = None, seed: int = 0, **options: Any
) -> Score:
    """A metric of one attribution, or of each of a list: their mean, a bootstrap interval, and every value.

    `truth`, one per attribution, says what decides, for metrics that compare with it: phrases of the text, pairs of
    characters, one mark per score, word or pixel, or the file of a mask. Every row of generated text counts as an
    example. Values that are not defined are left out of the mean.
    """
    from whence.core.statistics import bootstrap
    from whence.measure.cases import Runner, cases, check_model, fitted, hidden_by

    _check_call(subject, seed, None)
    record, options = registry.resolve("metric", metric, options)
    single = isinstance(attributions, Attribution)
    found = [attributions] if single else list(attributions)
    if not found or not all(isinstance(a, Attribution) for a in found):
        raise TypeError("score takes an Attribution or a list of them, as explain returns")
    truths = [truth] if single else [None] * len(found) if truth is None else list(truth)
    if len(truths) != len(found):
        raise ValueError(f"truth has one entry per attribution: {len(found)} were expected, {len(truths)} came")
    rows = [case for a, known in zip(found, truths, strict=True) for case in cases(subject, a, known, seed)]
    runner = Runner(subject)
    check_model(runner, rows)
    record, options = fitted(subject, rows[0].item, record, options)
    values = np.array([float(v) for v in runner.score(record.function, rows, options)])
    mean, interval = bootstrap(values, seed)
    hidden = hidden_by(subject, rows[0].item, record, options)
    return Score(record.spec(options), mean, record.better, values, interval, hidden)


def conservation(
    subject: Subject, inputs: Any, method: str = "lrp", target: Any = None, *, token: int = 0, truncate: bool = False
) -> Any:
    """Where relevance leaks: what every module is given and hands on, for one input (Conservation) or a list of them.

    `method` hands relevance down in one backward pass: lrp, attnlrp, gradient_x_input, each with options; the last is
    always there to compare. Of generated text, one `token` is looked at, by its number.
    """
    _check_call(subject, 0, None)
    spec = registry.resolve("method", method)
    single = not isinstance(inputs, list)
    raws = [inputs] if single else inputs
    items = encoded(subject, raws, truncate, single)
    pairs = zip(items, _targets(target, raws, single), strict=True)
    found = [balanced(subject, item, spec, aimed, token) for item, aimed in pairs]
    return found[0] if single else found


def list_methods() -> list[Record]:
    """The record of every method: name, family, options, needs, promises, paper."""
    return registry.records("method")


def list_metrics() -> list[Record]:
    """The record of every metric."""
    return registry.records("metric")


def list_models() -> list[dict[str, Any]]:
    """The card of every model that ships with the package: name, family, task, accuracy, size, licence."""
    return [zoo.card(name) for name in zoo.names()]


def _check_call(subject: Any, seed: Any, batch_size: Any) -> None:
    if not isinstance(subject, Subject):
        kind = type(subject).__name__
        raise TypeError(f"the first argument is a Subject, not a {kind}; make one with whence.load or whence.wrap")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed must be a whole number from 0, not {seed!r}")
    if batch_size is not None and (not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1):
        raise ValueError(f"batch_size must be a positive whole number, not {batch_size!r}")


def _targets(target: Any, raws: Sequence[Any], single: bool) -> list[Any]:
    if isinstance(target, list) and not single:
        if len(target) != len(raws):
            raise ValueError(f"a list of targets has one per input: {len(raws)} were expected, {len(target)} came")
        return target
    return [target] * len(raws)
