"""Runs methods over inputs: batches them, lets methods share passes, and wraps scores with their provenance."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from whence.core.inputs import Input, Target, has_inline_picture
from whence.core.interventions import Intervention, joined
from whence.core.registry import Explained, Record
from whence.core.results import Attribution
from whence.methods.interventions import interventions, notes_of, set_against
from whence.methods.mixing import unseen_notes
from whence.methods.sinks import inside_units, marked, sinks_of
from whence.model.batching import Batch, cut, shown, tensors_up_to
from whence.model.masked_runs import MaskedRuns
from whence.model.pointing import pointed
from whence.model.shared_rows import row_batches
from whence.model.statements import statement_rows
from whence.model.subject import Subject
from whence.model.target_specs import of_generated
from whence.model.targets import Aim

# The methods that are used when the caller names none; docs/faithfulness.md says why.
HIDING_METHOD = "leave_one_out"  # for short inputs, and where a model has no gradients
LONG_METHOD = "integrated_gradients"  # beyond SHORT features, where hiding them one by one would cost more
PICTURE_METHOD = "gae"  # where there is nothing but a picture, and attention spans it
SHORT = 48  # features; hiding so many one by one costs as much as the sixteen gradients of LONG_METHOD

Spec = tuple[Record, dict[str, Any]]  # a method or metric with its options


def as_list(inputs: Any) -> list[Any] | None:
    """Several inputs as a list: a list, a table's column (as a pandas Series), an array of texts. None for one input.

    A tuple is one input: a text and its pair, for instance.
    """
    if isinstance(inputs, list):
        return inputs
    if isinstance(inputs, np.ndarray):
        return list(inputs) if inputs.ndim == 1 and inputs.dtype.kind in "OTU" else None
    return list(inputs.to_list()) if hasattr(inputs, "to_list") else None


def encoded(
    subject: Subject,
    raws: Sequence[Any],
    truncate: bool,
    single: bool,
    progress: bool = False,
    targets: Sequence[Any] | None = None,
) -> list[Input]:
    """Raw inputs encoded, as their targets need them; an error names the number of the input in its list."""
    items = []
    for number, (raw, target) in enumerate(zip(raws, targets or [None] * len(raws), strict=True)):
        try:
            items.append(subject.encode(raw, truncate=truncate, progress=progress, target=target))
        except (ValueError, TypeError, OSError, LookupError) as error:
            if single:
                raise
            kind = type(error) if type(error) in (TypeError, FileNotFoundError) else ValueError
            raise kind(f"input {number} of the list: {error or repr(error)}") from error
    return items


def usual_method(subject: Subject, items: list[Input]) -> str:
    """The method that is used when the caller names none; it depends on the inputs and on the model."""
    if not items:
        return HIDING_METHOD
    first = next((row for row, _ in subject.rows(items[0])), items[0])
    batch = subject.batch([first])
    found = subject.structure(batch)
    if subject.discovery(batch).quantised or batch.streams.keys() - found.roots.keys():
        return HIDING_METHOD
    if first.grid is None or first.texts:
        long_method = PICTURE_METHOD if has_inline_picture(first) else LONG_METHOD  # the path of words leaves pictures
        return HIDING_METHOD if max(map(unit_count, items)) <= SHORT else long_method
    spans = bool(found.deciding) and all(query for query, _ in found.connections)
    return PICTURE_METHOD if spans else LONG_METHOD


def unit_count(item: Input) -> int:
    """How many units an input has at its level: its features where it has no level."""
    return len(item.features) if item.units is None else len(np.unique(item.units))


@dataclass(frozen=True)
class Settings:
    """How methods are run in one call."""

    seed: int = 0
    batch_size: int | None = None
    progress: bool = False
    notes: tuple[str, ...] = ()  # what every attribution of the call says about itself
    masked_runs: MaskedRuns | None = None  # an engine that other callers share; None: a new one per batch
    # Spec -> seconds, which are added up if given. A pass that methods share counts for the first that needs it.
    seconds: dict[str, float] | None = None


@dataclass(eq=False)
class Rows:
    """The rows to explain: an input, or one generated token of an input, each with its target and its row of scores."""

    inputs: list[Input] = field(default_factory=list)
    targets: list[Any] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)  # for each input, the numbers of its rows


def explained(
    subject: Subject, items: list[Input], specs: list[Spec], targets: list[Any], settings: Settings
) -> list[list[Attribution]]:
    """Every method on every input: attributions[input][method]. Methods share the passes of every batch."""
    check_tasks(subject, specs)
    rows = rows_of(subject, items, targets)
    if not rows.inputs:
        return []
    found: list[list[Attribution]] = [[] for _ in rows.inputs]  # [row][method]
    with subject.lent():
        attention = any(need.startswith("attention") for record, options in specs for need in record.wanted(options))
        sizes = (settings.batch_size, settings.seed)
        groups = list(row_batches(subject, rows.inputs, rows.targets, *sizes, attention=attention))
        for numbers, batch in tracked(groups, settings.progress):
            aim = subject.aim([rows.targets[number] for number in numbers])
            for by_row in _explained_batch(subject, batch, aim, specs, settings):
                for number, attribution in zip(numbers, by_row, strict=True):
                    found[number].append(attribution)
        sinks = sinks_of(subject, items) if subject.decoder_only else [None] * len(items)
        unseen = [unseen_notes(subject, items[0], record) for record, _ in specs]
    joined = [_joined(item, [found[row] for row in own]) for item, own in zip(items, rows.places, strict=True)]
    return [
        [
            _at_level(marked(replace(a, notes=(*a.notes, *notes)), of_item, record), record)
            for a, (record, _), notes in zip(own, specs, unseen, strict=True)
        ]
        for own, of_item in zip(joined, sinks, strict=True)
    ]


def _at_level(a: Attribution, record: Record) -> Attribution:
    """The attribution over the units of its input's level, with a note how their scores came about."""
    if a.input.units is None:
        return a
    kind = f"{a.input.level}s"
    whole = record.family == "perturbation"
    if whole:
        return a.units(f"{kind} were hidden as wholes")
    a = replace(a, notes=(*a.notes, *inside_units(a)))
    return a.units(f"scores of {kind} are the sums of their tokens'")


def check_tasks(subject: Subject, specs: Iterable[Spec]) -> None:
    """Refuse a method that does not work on models of this kind."""
    for record, _ in specs:
        if subject.task not in record.tasks:
            fitting = ", ".join(record.tasks)
            raise ValueError(f"{record.name} works on {fitting} models, and {subject.name} is a {subject.task} model")


def rows_of(subject: Subject, items: list[Input], targets: list[Any]) -> Rows:
    """The rows of inputs, in order."""
    rows = Rows()
    for item, target in zip(items, targets, strict=True):
        own = statement_rows(subject, item, target) or [
            (row, of_generated(subject, target, token)) for row, token in subject.rows(item)
        ]
        own = own or [(item, target)]
        rows.places.append(list(range(len(rows.inputs), len(rows.inputs) + len(own))))
        rows.inputs += [row for row, _ in own]
        rows.targets += [target for _, target in own]
    rows.inputs, rows.targets = pointed(subject, rows.inputs, rows.targets)
    return rows


def _explained_batch(
    subject: Subject, batch: Batch, aim: Aim, specs: list[Spec], settings: Settings
) -> Iterator[list[Attribution]]:
    """What every method gives for a batch, method by method; they share the batch's trace and its masked inputs."""
    batch.needs = frozenset().union(*(record.wanted(options) for record, options in specs))
    batch.masked_runs = settings.masked_runs or MaskedRuns(subject, keep_logits=False)
    done: list[Intervention | None] | None = None
    said: list[tuple[str, ...]] = []
    for record, options in specs:
        started = time.perf_counter()
        result = record(subject, batch, aim, **options)
        result = result if isinstance(result, Explained) else Explained(result)
        found = _attributions(subject, batch, aim, (record, options), result, settings.notes)
        if done is None:
            done, said = interventions(subject, batch, aim), notes_of(subject, batch, aim)
        if any(done):
            pairs = zip(found, done, said, strict=True)
            found = [replace(a, intervention=one, notes=(*a.notes, *notes)) for a, one, notes in pairs]
        if settings.seconds is not None:
            spec = record.spec(options)
            settings.seconds[spec] = settings.seconds.get(spec, 0.0) + time.perf_counter() - started
        yield found
    batch.trace = batch.masked_runs = None


def _attributions(
    subject: Subject, batch: Batch, aim: Aim, spec: Spec, result: Explained, notes: tuple[str, ...]
) -> list[Attribution]:
    """What a method returned for a batch to one Attribution per example, padding cut."""
    record, options = spec
    shape = tuple(result.scores.shape)
    if shape[:1] + shape[-1:] != (len(batch), batch.mask.shape[1]):
        expected = f"(batch={len(batch)}, feature={batch.mask.shape[1]})"
        raise ValueError(f"{record.name} returned scores of shape {shape}; expected {expected}")
    signed = record.signed if result.signed is None else result.signed
    outputs = subject.values(batch, aim).cpu().numpy()
    bases = None if result.base is None else result.base.detach().cpu().numpy()
    found = []
    for row, scores in enumerate(batch.unpadded(result.scores)):
        if not np.isfinite(scores).all():
            raise ValueError(f"{record.name} gave scores that are not finite for {shown(batch.inputs[row])}")
        output = float(outputs[row])
        base = None if not (record.signed and signed) else 0.0 if bases is None else float(bases[row])
        found.append(
            Attribution(
                scores=scores,
                input=batch.inputs[row],
                method=record.spec(options),
                target=aim.targets[row],
                output=output,
                base=base,
                residual=None if base is None else output - base - float(scores.sum()),
                details={name: of_example(value, row) for name, value in result.details.items()},
                notes=(*notes, *_guess(aim.targets[row]), *result.notes, *_own(result, row), *batch.inputs[row].notes),
                signs=signed if signed != record.signed else None,
            )
        )
    return found


def _own(result: Explained, row: int) -> tuple[str, ...]:
    """The notes that a method has for one example alone."""
    return tuple(result.notes_by_example[row]) if result.notes_by_example else ()


def _guess(target: Target) -> tuple[str, ...]:
    """A note that the model's prediction is explained, where no class was named."""
    if not target.predicted:
        return ()
    left_open = "no target was given" if target.kind == "logit" else "no class or token was named"
    is_what = "is of the label that the model finds likeliest" if target.of == "label" else "is what the model predicts"
    return (f"{left_open}: {target} {is_what}",)


def of_example(value: Any, row: int) -> Any:
    """One example's share of a detail."""
    part = value[row]
    if hasattr(part, "detach"):
        part = part.detach().cpu()
        part = (part.float() if part.dtype.is_floating_point and part.dtype.itemsize < 4 else part).numpy()
        return part.item() if part.ndim == 0 else part
    return part


def _joined(item: Input, rows: list[list[Attribution]]) -> list[Attribution]:
    """The attributions of one input, one per method, from those of its rows, [row][method]."""
    by_method = zip(*rows, strict=True)
    if rows[0][0].input.answer:
        return [own[0] if len(own) == 1 else _against(*own) for own in by_method]
    return [_stacked(item, list(own)) if item.generated else own[0] for own in by_method]


def _against(one: Attribution, other: Attribution) -> Attribution:
    """The attribution of a contrast of two answers: the difference of their scores on the text before both."""
    if one.base is None or other.base is None:
        raise ValueError(
            f"{one.method} has no signs, so its scores of two answers cannot be set against each other; use a method "
            "that has, as leave_one_out, shap, lrp or integrated_gradients"
        )
    count = len(one.features) - len(one.input.answer)
    item = one.input
    before = item.streams.index("target") if "decoder_input_ids" in item.tensors else 0
    prefix = cut(item, count, item.streams[:count], tensors_up_to(item, count - before))
    prefix = replace(prefix, decides=(), answer=())
    scores, output, base = (
        a - b
        for a, b in ((one.scores[:count], other.scores[:count]), (one.output, other.output), (one.base, other.base))
    )
    target = one.target if isinstance(one.target, Target) else one.target[0]
    note = "the answers' own tokens are no features: what they were given is part of the residual"
    return replace(
        one,
        scores=scores,
        visible=one.visible[:count],
        sinks=one.sinks[:count],
        input=prefix,
        target=replace(target, against=0, against_name=getattr(other.target, "name", "")),
        output=output,
        base=base,
        residual=output - base - float(scores.sum()),
        details={name: [one.details.get(name), other.details.get(name)] for name in one.details},
        notes=(*dict.fromkeys((*one.notes, *other.notes)), note),
        intervention=set_against(one, other),
    )


def _stacked(item: Input, rows: list[Attribution]) -> Attribution:
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
        signs=rows[0].signs,
        intervention=joined([row.intervention for row in rows]),
    )


def tracked(groups: list[Any], progress: bool, what: str = "explaining") -> Iterable[Any]:
    """The groups, with a bar on stderr that shows how many are done, if asked for."""
    if not progress:
        return groups
    from rich.console import Console
    from rich.progress import track

    return track(groups, description=what, console=Console(stderr=True))
