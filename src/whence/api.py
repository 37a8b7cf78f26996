"""The verbs: validate, call, wrap the results with their provenance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from whence import zoo
from whence.core import registry
from whence.core.attention_maps import AttentionMaps
from whence.core.inputs import Input, Target
from whence.core.registry import Explained, Record
from whence.core.relevance_balance import Conservation
from whence.core.results import Attribution, Comparison
from whence.core.scoreboards import Score
from whence.model.batching import cut, shown
from whence.model.loan import lent
from whence.model.subject import Subject
from whence.propagation.relevance_balance import balance

DEFAULT_METHOD = "attention_x_gradient"  # docs/faithfulness.md says why
PICTURE_METHOD = "gae"  # the default where there is nothing but a picture
PLAIN_METHOD = "gradient_x_input"  # the default where no attention spans the inputs; what conservation compares with


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
    items = _encoded(subject, raws, truncate, single)
    usual = _usual_method(subject, items) if method is None else method
    record, options = registry.resolve("method", usual, options)
    notes = () if method is not None else (f"no method was named: {usual} was used",)
    found = _run(subject, items, [(record, options)], _targets(target, raws, single), seed, batch_size, progress, notes)
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
    items = _encoded(subject, raws, truncate, single)
    found = _run(subject, items, specs, _targets(target, raws, single), seed, batch_size, progress, ())
    results = [Comparison(tuple(attributions)) for attributions in found]
    return results[0] if single else results


def attention_maps(subject: Subject, inputs: Any, *, truncate: bool = False) -> Any:
    """All attention weights of one input (AttentionMaps) or of each of a list (a list), as the model used them."""
    _check_call(subject, 0, None)
    single = not isinstance(inputs, list)
    items = _encoded(subject, [inputs] if single else inputs, truncate, single)
    with lent(subject.model):
        found = [_maps(subject, item) for item in items]
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
    items = _encoded(subject, raws, truncate, single)
    pairs = zip(items, _targets(target, raws, single), strict=True)
    found = [_conservation(subject, item, spec, aimed, token) for item, aimed in pairs]
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


def _encoded(subject: Subject, raws: Sequence[Any], truncate: bool, single: bool) -> list[Input]:
    items = []
    for number, raw in enumerate(raws):
        try:
            items.append(subject.encode(raw, truncate=truncate))
        except (ValueError, TypeError, OSError, LookupError) as error:
            if single:
                raise
            kind = type(error) if type(error) in (TypeError, FileNotFoundError) else ValueError
            raise kind(f"input {number} of the list: {error or repr(error)}") from error
    return items


def _usual_method(subject: Subject, items: list[Input]) -> str:
    """What is used when no method is named: one that reads attention, where it spans the inputs, as fits their kind."""
    if not items:
        return DEFAULT_METHOD
    first = next((row for row, _ in subject.rows(items[0])), items[0])
    found = subject.anatomy(subject.batch([first]))
    spans = bool(found.deciding) and all(query for query, _ in found.connections)
    if not spans:
        return PLAIN_METHOD
    return PICTURE_METHOD if first.grid is not None and not first.texts else DEFAULT_METHOD


def _targets(target: Any, raws: Sequence[Any], single: bool) -> list[Any]:
    if isinstance(target, list) and not single:
        if len(target) != len(raws):
            raise ValueError(f"a list of targets has one per input: {len(raws)} were expected, {len(target)} came")
        return target
    return [target] * len(raws)


def _run(
    subject: Subject,
    items: list[Input],
    specs: list[tuple[Record, dict[str, Any]]],
    targets: list[Any],
    seed: int,
    batch_size: int | None,
    progress: bool,
    notes: tuple[str, ...],
) -> list[list[Attribution]]:
    """Every method on every input: attributions[input][method]. Methods of one batch share its trace."""
    for record, _ in specs:
        if subject.task not in record.tasks:
            fitting = ", ".join(record.tasks)
            raise ValueError(f"{record.name} works on {fitting} models, and {subject.name} is a {subject.task} model")
    flat: list[Input] = []  # one entry per row of scores: an input, or a generated token of one
    wanted: list[Any] = []
    places: list[list[int]] = []
    for item, target in zip(items, targets, strict=True):
        rows = [(row, _row_target(subject, target, token)) for row, token in subject.rows(item)] or [(item, target)]
        places.append(list(range(len(flat), len(flat) + len(rows))))
        flat += [row for row, _ in rows]
        wanted += [aimed for _, aimed in rows]
    needs = frozenset().union(*(record.wanted(options) for record, options in specs)) if len(specs) > 1 else frozenset()
    rows_found: list[list[Attribution]] = [[] for _ in flat]
    if not flat:
        return []
    with lent(subject.model):
        groups = list(subject.batches(flat, batch_size, seed))
        for numbers, batch in _shown(groups, progress):
            batch.wanted = needs
            aim = subject.aim([wanted[number] for number in numbers])
            for record, options in specs:
                result = record.function(subject, batch, aim, **options)
                result = result if isinstance(result, Explained) else Explained(result)
                for row, attribution in enumerate(_attributions(subject, batch, aim, record, options, result, notes)):
                    rows_found[numbers[row]].append(attribution)
            batch.trace = None
    merged = []
    for item, numbers in zip(items, places, strict=True):
        by_method = zip(*(rows_found[number] for number in numbers), strict=True)
        merged.append([_merged(item, list(rows)) if item.generated else rows[0] for rows in by_method])
    return merged


def _maps(subject: Subject, item: Input) -> AttentionMaps:
    """The maps of one input, alone, so that nothing is padded."""
    if subject.task == "causal-lm":  # to the model, prompt and continuation are one text
        item = cut(item, len(item.features), ("text",) * len(item.features), item.tensors)
    trace = subject.trace(subject.batch([item]), subject.aim([None]), ("attention",))
    found: dict[tuple[str, str], list[np.ndarray]] = {}
    for record in trace.attention:
        if not record.query:
            raise ValueError(
                f"{subject.name} attends within windows, not over the whole sequence, so its attention cannot be "
                "placed on its features; use whence.explain with a gradient or perturbation method"
            )
        found.setdefault((record.query, record.key), []).append(_of_row(record.weights, 0))
    for (query, key), layers in found.items():
        heads = [len(layer) for layer in layers]
        if len(set(heads)) > 1:
            raise ValueError(f"maps need as many heads in every layer, and {query}:{key} of {subject.name} has {heads}")
    return AttentionMaps({pair: np.stack(layers) for pair, layers in found.items()}, item, subject.name)


def _conservation(
    subject: Subject, item: Input, spec: tuple[Record, dict[str, Any]], target: Any, token: int
) -> Conservation:
    """The books of one input, for one target."""
    rows, notes = subject.rows(item), item.notes
    if rows:
        if not -len(rows) <= token < len(rows):
            raise ValueError(f"token={token} names no generated token: there are {len(rows)}, numbered from 0")
        item, produced = rows[token]
        target = _row_target(subject, target, produced)
        notes += (f"one generated token of {len(rows)} is looked at: {subject.name_of(produced)!r}",)
    batch, aim = subject.batch([item]), subject.aim([target])
    record, options = spec
    found = tuple(balance(subject, batch, aim, record, options))
    usual, none = registry.resolve("method", PLAIN_METHOD)
    plain = () if record is usual else tuple(balance(subject, batch, aim, usual, none))
    return Conservation(
        rows=found,
        plain=plain,
        input=item,
        method=record.spec(options),
        target=aim.targets[0],
        output=float(subject.values(batch, aim)[0]),
        model=subject.name,
        notes=notes,
    )


def _row_target(subject: Subject, target: Any, token: int) -> Any:
    """The target of one generated token: that token, in the kind that was asked for."""
    name = subject.name_of(token)
    if target is None:
        return Target("logit", token, name)
    if callable(target):
        return target
    aimed = subject.aim([target]).targets[0]
    if aimed.index is not None and aimed.kind != "contrast":
        raise ValueError(
            f"every generated token is explained as itself, so the target {target!r} cannot name one; "
            "give only a kind, as 'probability', or a prompt without a continuation"
        )
    return Target(aimed.kind, token, name, aimed.against, aimed.against_name)


def _attributions(
    subject: Subject,
    batch: Any,
    aim: Any,
    record: Record,
    options: dict[str, Any],
    result: Explained,
    notes: tuple[str, ...],
) -> list[Attribution]:
    """What a method returned for a batch to one Attribution per example, padding cut."""
    shape = tuple(result.scores.shape)
    if shape[:1] + shape[-1:] != (len(batch), batch.mask.shape[1]):
        expected = f"(batch={len(batch)}, feature={batch.mask.shape[1]})"
        raise ValueError(f"{record.name} returned scores of shape {shape}; expected {expected}")
    outputs = subject.values(batch, aim).cpu().numpy()
    bases = None if result.base is None else result.base.detach().cpu().numpy()
    found = []
    for row, scores in enumerate(batch.unpadded(result.scores)):
        if not np.isfinite(scores).all():
            raise ValueError(f"{record.name} gave scores that are not finite for {shown(batch.inputs[row])}")
        target = aim.targets[row]
        output = float(outputs[row])
        base = None if not record.signed else 0.0 if bases is None else float(bases[row])
        left_open = "no target was given" if target.kind == "logit" else "no class or token was named"
        guessed = (f"{left_open}: {target} is what the model predicts",) if target.predicted else ()
        found.append(
            Attribution(
                scores=scores,
                input=batch.inputs[row],
                method=record.spec(options),
                target=target,
                output=output,
                base=base,
                residual=None if base is None else output - base - float(scores.sum()),
                details={name: _of_row(value, row) for name, value in result.details.items()},
                notes=(*notes, *guessed, *result.notes, *batch.inputs[row].notes),
            )
        )
    return found


def _of_row(value: Any, row: int) -> Any:
    """One example's share of a detail."""
    part = value[row]
    if hasattr(part, "detach"):
        part = part.detach().cpu()
        part = (part.float() if part.dtype.is_floating_point and part.dtype.itemsize < 4 else part).numpy()
        return part.item() if part.ndim == 0 else part
    return part


def _merged(item: Input, rows: list[Attribution]) -> Attribution:
    """One row per generated token; what a row could not see is 0, and False in `visible`."""
    scores = np.zeros((len(rows), len(item.features)), rows[0].scores.dtype)
    visible = np.zeros(scores.shape, bool)
    for number, row in enumerate(rows):
        scores[number, : row.scores.shape[-1]] = row.scores
        visible[number, : row.scores.shape[-1]] = True
    signed = rows[0].base is not None
    details = {name: [row.details.get(name) for row in rows] for name in rows[0].details}
    return Attribution(
        scores=scores,
        input=item,
        method=rows[0].method,
        target=tuple(row.target for row in rows),  # type: ignore[misc]
        output=np.array([row.output for row in rows]),
        base=np.array([row.base for row in rows]) if signed else None,
        residual=np.array([row.residual for row in rows]) if signed else None,
        axes=("generated", "feature"),
        visible=visible,
        details=details,
        notes=tuple(dict.fromkeys(note for row in rows for note in row.notes)),
    )


def _shown(groups: list[Any], progress: bool) -> Iterable[Any]:
    if not progress:
        return groups
    from rich.console import Console
    from rich.progress import track

    return track(groups, description="explaining", console=Console(stderr=True))
