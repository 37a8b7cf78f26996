"""Runs methods over inputs: batches them, lets methods share passes, and wraps scores with their provenance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from whence.core.inputs import Input
from whence.core.registry import Explained, Record
from whence.core.results import Attribution
from whence.model.batching import Batch, shown
from whence.model.subject import Subject
from whence.model.target_specs import of_generated
from whence.model.targets import Aim

DEFAULT_METHOD = "attention_x_gradient"  # docs/faithfulness.md says why
PICTURE_METHOD = "gae"  # the default where there is nothing but a picture
PLAIN_METHOD = "gradient_x_input"  # the default where no attention spans the inputs

Spec = tuple[Record, dict[str, Any]]  # a method or metric with its options


def encoded(subject: Subject, raws: Sequence[Any], truncate: bool, single: bool) -> list[Input]:
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


def usual_method(subject: Subject, items: list[Input]) -> str:
    """What is used when no method is named: one that reads attention, where it spans the inputs, as fits their kind."""
    if not items:
        return DEFAULT_METHOD
    first = next((row for row, _ in subject.rows(items[0])), items[0])
    found = subject.structure(subject.batch([first]))
    spans = bool(found.deciding) and all(query for query, _ in found.connections)
    if not spans:
        return PLAIN_METHOD
    return PICTURE_METHOD if first.grid is not None and not first.texts else DEFAULT_METHOD


def explained(
    subject: Subject,
    items: list[Input],
    specs: list[Spec],
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
        rows = [(row, of_generated(subject, target, token)) for row, token in subject.rows(item)] or [(item, target)]
        places.append(list(range(len(flat), len(flat) + len(rows))))
        flat += [row for row, _ in rows]
        wanted += [aimed for _, aimed in rows]
    needs = frozenset().union(*(record.wanted(options) for record, options in specs)) if len(specs) > 1 else frozenset()
    rows_found: list[list[Attribution]] = [[] for _ in flat]
    if not flat:
        return []
    with subject.lent():
        groups = list(subject.batches(flat, batch_size, seed))
        for numbers, batch in tracked(groups, progress):
            batch.needs = needs
            aim = subject.aim([wanted[number] for number in numbers])
            for record, options in specs:
                result = record(subject, batch, aim, **options)
                result = result if isinstance(result, Explained) else Explained(result)
                for row, attribution in enumerate(_attributions(subject, batch, aim, record, options, result, notes)):
                    rows_found[numbers[row]].append(attribution)
            batch.trace = None
    merged = []
    for item, numbers in zip(items, places, strict=True):
        by_method = zip(*(rows_found[number] for number in numbers), strict=True)
        merged.append([_merged(item, list(rows)) if item.generated else rows[0] for rows in by_method])
    return merged


def _attributions(
    subject: Subject,
    batch: Batch,
    aim: Aim,
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
                details={name: of_example(value, row) for name, value in result.details.items()},
                notes=(*notes, *guessed, *result.notes, *batch.inputs[row].notes),
            )
        )
    return found


def of_example(value: Any, row: int) -> Any:
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


def tracked(groups: list[Any], progress: bool) -> Iterable[Any]:
    if not progress:
        return groups
    from rich.console import Console
    from rich.progress import track

    return track(groups, description="explaining", console=Console(stderr=True))
