"""The verbs that explain: scores of features, attention, where relevance leaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from whence.api.checks import check_call, check_specs, encoded_inputs
from whence.api.provenance import stamped
from whence.core import registry
from whence.core.attention_maps import AttentionMaps
from whence.core.levels import Level, checked_level
from whence.core.relevance_balance import Conservation
from whence.core.results import Attribution, Comparison
from whence.measure.call_types import Ignore, Raw, RawInput, RawInputs, TargetLike, TargetLikes
from whence.methods.attention_maps import maps_of
from whence.methods.explaining import Settings, explained, usual_method
from whence.model.subject import Subject
from whence.propagation.relevance_balance import balanced


@overload
def explain(
    subject: Subject,
    inputs: RawInput,
    method: str | None = ...,
    target: TargetLike = ...,
    *,
    seed: int = ...,
    batch_size: int | None = ...,
    truncate: bool = ...,
    progress: bool = ...,
    level: Level = ...,
    ignore: Ignore = ...,
    **options: Any,
) -> Attribution: ...
@overload
def explain(
    subject: Subject,
    inputs: RawInputs[Raw],
    method: str | None = ...,
    target: TargetLikes = ...,
    *,
    seed: int = ...,
    batch_size: int | None = ...,
    truncate: bool = ...,
    progress: bool = ...,
    level: Level = ...,
    ignore: Ignore = ...,
    **options: Any,
) -> list[Attribution]: ...
@stamped
def explain(
    subject: Subject,
    inputs: RawInput | RawInputs,
    method: str | None = None,
    target: TargetLikes = None,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    truncate: bool = False,
    progress: bool = False,
    level: Level = None,
    ignore: Ignore = None,
    **options: Any,
) -> Attribution | list[Attribution]:
    """Attribute the target to the features of one input (an Attribution) or of a list of inputs (a list).

    `target`: a label, an index, a token's text, `kind(...)` such as "log_odds('positive')", at a token as
    "logit('B-PER', at='Obama')", an answer as "start('Paris')", a function
    `(logits, batch) -> (batch,)`, or a list with one per input; by default what the model predicts. `level`: what the
    features are: "token", "word", "sentence", "message", "document", or a list of spans, each a text of the input or
    its characters (start, end). Methods that hide features hide whole units; others sum the scores of a unit's tokens.
    `ignore` names words that must not count: attention to them is closed in every pass, so what is explained is the
    model that cannot attend to them. An entry is a word or phrase (every occurrence, in any case), the number of a
    feature, a pair of characters (start, end) of the first text, or {"word": ..., "occurrence": n}.
    """
    level = checked_level(level)
    check_call(subject, seed=seed, batch_size=batch_size, truncate=truncate, progress=progress)
    if method is not None:
        registry.resolve("method", method, options)  # a wrong spec raises before anything is encoded
    items, targets, single = encoded_inputs(subject, inputs, target, truncate, level, ignore, progress)
    usual = usual_method(subject, items) if method is None else method
    notes = () if method is not None else (f"no method was named: {usual} was used",)
    specs = [registry.resolve("method", usual, options)]
    results = [
        found[0] for found in explained(subject, items, specs, targets, Settings(seed, batch_size, progress, notes))
    ]
    return results[0] if single else results


@overload
def compare(
    subject: Subject,
    inputs: RawInput,
    methods: Sequence[str],
    target: TargetLike = ...,
    *,
    seed: int = ...,
    batch_size: int | None = ...,
    truncate: bool = ...,
    progress: bool = ...,
    level: Level = ...,
    ignore: Ignore = ...,
) -> Comparison: ...
@overload
def compare(
    subject: Subject,
    inputs: RawInputs[Raw],
    methods: Sequence[str],
    target: TargetLikes = ...,
    *,
    seed: int = ...,
    batch_size: int | None = ...,
    truncate: bool = ...,
    progress: bool = ...,
    level: Level = ...,
    ignore: Ignore = ...,
) -> list[Comparison]: ...
@stamped
def compare(
    subject: Subject,
    inputs: RawInput | RawInputs,
    methods: Sequence[str],
    target: TargetLikes = None,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    truncate: bool = False,
    progress: bool = False,
    level: Level = None,
    ignore: Ignore = None,
) -> Comparison | list[Comparison]:
    """Several methods on one input (a Comparison) or on each of a list (a list): one target, level and passes.

    `ignore` names words that must not count, as in `explain`.
    """
    level = checked_level(level)
    check_call(subject, seed=seed, batch_size=batch_size, truncate=truncate, progress=progress)
    check_specs("methods", methods)
    specs = [registry.resolve("method", spec) for spec in methods]
    items, targets, single = encoded_inputs(subject, inputs, target, truncate, level, ignore, progress)
    found = explained(subject, items, specs, targets, Settings(seed, batch_size, progress))
    results = [Comparison(tuple(attributions)) for attributions in found]
    return results[0] if single else results


@overload
def attention_maps(
    subject: Subject, inputs: RawInput, *, truncate: bool = ..., ignore: Ignore = ...
) -> AttentionMaps: ...
@overload
def attention_maps(
    subject: Subject, inputs: RawInputs[Raw], *, truncate: bool = ..., ignore: Ignore = ...
) -> list[AttentionMaps]: ...
@stamped
def attention_maps(
    subject: Subject, inputs: RawInput | RawInputs[Raw], *, truncate: bool = False, ignore: Ignore = None
) -> AttentionMaps | list[AttentionMaps]:
    """All attention weights of one input (AttentionMaps) or of each of a list (a list), as the model used them.

    `ignore` names words that must not count, as in `explain`.
    """
    check_call(subject, truncate=truncate)
    items, _, single = encoded_inputs(subject, inputs, None, truncate, ignore=ignore)
    with subject.lent():
        found = [maps_of(subject, item) for item in items]
    return found[0] if single else found


@overload
def conservation(
    subject: Subject,
    inputs: RawInput,
    method: str = ...,
    target: TargetLike = ...,
    *,
    token: int = ...,
    truncate: bool = ...,
) -> Conservation: ...
@overload
def conservation(
    subject: Subject,
    inputs: RawInputs[Raw],
    method: str = ...,
    target: TargetLikes = ...,
    *,
    token: int = ...,
    truncate: bool = ...,
) -> list[Conservation]: ...
@stamped
def conservation(
    subject: Subject,
    inputs: RawInput | RawInputs,
    method: str = "lrp",
    target: TargetLikes = None,
    *,
    token: int = 0,
    truncate: bool = False,
) -> Conservation | list[Conservation]:
    """Where relevance leaks: what every module is given and hands on, for one input (Conservation) or a list of them.

    `method` passes relevance down in one backward pass: lrp, attnlrp or gradient_x_input, each with options;
    gradient_x_input is always computed too, to compare. Of generated text, one `token` is looked at, by its number.
    """
    check_call(subject, token=token, truncate=truncate)
    spec = registry.resolve("method", method)
    items, targets, single = encoded_inputs(subject, inputs, target, truncate)
    found = [balanced(subject, item, spec, aimed, token) for item, aimed in zip(items, targets, strict=True)]
    return found[0] if single else found
