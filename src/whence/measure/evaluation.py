"""Methods by metrics over a data set: read the data, explain, score with shared answers, keep what is done."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whence import api
from whence.core import registry
from whence.core.inputs import Input
from whence.core.scoreboards import Scoreboard
from whence.measure.cases import Curve, Runner, cases, fitted, hidden_by
from whence.measure.datasets import as_target, read
from whence.measure.rationales import marks
from whence.model.subject import Subject

CHUNK = 16  # examples between two writes of what is done
SHARES = np.linspace(0, 1, 21)  # of the features, where curves are kept


def evaluate(
    subject: Subject,
    data: Any,
    methods: Sequence[str],
    metrics: Sequence[str],
    *,
    limit: int | None = None,
    seed: int = 0,
    truncate: bool = False,
    resume: str | Path | None = None,
    progress: bool = False,
) -> Scoreboard:
    """Every method by every metric on a data set; labels that are given are the targets, else what is predicted.

    `resume` names a file to which the values of every few examples are added as they are made; a run that was stopped
    goes on from it.
    """
    api._check_call(subject, seed, None)
    for name, wanted in (("methods", methods), ("metrics", metrics)):
        if isinstance(wanted, str) or not wanted:
            raise ValueError(f"{name} is a list of at least one, such as ['{wanted or 'gae'}'], not {wanted!r}")
    names = [record.spec(options) for record, options in (registry.resolve("method", m) for m in methods)]
    measures = [registry.resolve("metric", m) for m in metrics]
    inputs, given, truths = read(data, limit)
    labels, first, cut = _looked_over(subject, inputs, given, truths, truncate)
    measures = [fitted(subject, first, *measure) for measure in measures]
    heading: dict[str, Any] = {
        "model": subject.name,
        "weights": "" if resume is None else _digest([[n, _some(p)] for n, p in subject.model.named_parameters()]),
        "methods": names,
        "metrics": [record.spec(options) for record, options in measures],
        "examples": len(inputs),
        "data": _digest([inputs, labels, truths, truncate]),
        "seed": seed,
    }
    done = _resumed(resume, heading)
    start = sum(len(chunk["seconds"][0]) for chunk in done)
    for begin in shown(range(start, len(inputs), CHUNK), progress):
        chosen = slice(begin, begin + CHUNK)
        runner = Runner(subject, partly=any(truth is not None for truth in truths))  # examples share nothing
        chunk = _chunk(runner, inputs[chosen], labels[chosen], truths[chosen], names, measures, seed, truncate)
        done.append(chunk)
        if resume is not None:
            with Path(resume).open("a", encoding="utf-8") as file:
                file.write(json.dumps(chunk) + "\n")
    values = np.concatenate([np.array(chunk["values"], float) for chunk in done], -1)  # (method, metric, example)
    seconds = np.concatenate([np.array(chunk["seconds"]) for chunk in done], -1)  # (method, example)
    return Scoreboard(
        methods=tuple(names),
        metrics=tuple(heading["metrics"]),
        better=tuple(record.better for record, _ in measures),
        values=values,
        seconds=seconds,
        model=subject.name,
        seed=seed,
        hidden=tuple(hidden_by(subject, first, record, options) for record, options in measures),
        curves=_joined(done),
        notes=_notes(subject, labels, cut),
    )


def _looked_over(
    subject: Subject, inputs: list[Any], given: list[Any], truths: list[Any], truncate: bool
) -> tuple[list[Any], Input, int]:
    """Labels as targets, the first thing that is run, and how many inputs are cut; what cannot be read is said now."""
    labels, first, cut = [], None, 0
    for number, (raw, label, truth) in enumerate(zip(inputs, given, truths, strict=True)):
        try:
            item = subject.encode(raw, truncate=truncate)
            labels.append(as_target(subject, label))
            subject.aim(labels[-1:])
            if truth is not None and not subject.generates:  # what is generated adds rows and features
                marks(item, truth, (len(item.features),))
        except (ValueError, TypeError, OSError, LookupError) as error:
            kind = type(error) if type(error) in (TypeError, FileNotFoundError) else ValueError
            raise kind(f"example {number}: {error or repr(error)}") from error
        first = first or next((row for row, _ in subject.rows(item)), item)
        cut += any(" cut from " in note for note in item.notes)
    assert first is not None
    return labels, first, cut


def _some(weights: Any) -> list[float]:
    """A few entries of a parameter, by which two models are told apart."""
    flat = weights.detach().flatten()
    return [float(flat[place]) for place in (0, len(flat) // 3, -1)] if len(flat) else []


def _notes(subject: Subject, labels: list[Any], cut: int) -> tuple[str, ...]:
    """What was explained, and what was done to the inputs."""
    known = sum(label is not None for label in labels)
    notes = []
    if known:
        notes.append(f"Explained: the label given, of {known} of {len(labels)} inputs.")
    elif not subject.generates:
        notes.append("Explained: what the model predicts.")
    if cut:
        notes.append(f"Cut to the model's length: {cut} of {len(labels)} inputs.")
    return tuple(notes)


def shown(chunks: range, progress: bool) -> Iterable[int]:
    """The chunks, with a bar where one is wanted."""
    if not progress:
        return chunks
    from rich.console import Console
    from rich.progress import track

    return track(chunks, description="evaluating", console=Console(stderr=True))


def _chunk(
    runner: Runner,
    inputs: list[Any],
    labels: list[Any],
    truths: list[Any],
    methods: list[str],
    measures: list[tuple[registry.Record, dict[str, Any]]],
    seed: int,
    truncate: bool,
) -> dict[str, Any]:
    """Values (method, metric, example) and seconds (method, example) of a few examples."""
    subject = runner.subject
    values, seconds, curves = [], [], []
    for method in methods:
        started = time.perf_counter()
        found = api.explain(subject, inputs, method, labels, seed=seed, truncate=truncate)
        seconds.append([(time.perf_counter() - started) / len(inputs)] * len(inputs))
        rows = [cases(subject, a, truth, seed) for a, truth in zip(found, truths, strict=True)]
        flat, owner = [c for row in rows for c in row], [n for n, row in enumerate(rows) for _ in row]
        scored = [runner.score(record.function, flat, options) for record, options in measures]
        values.append([_means([float(v) for v in own], owner, len(inputs)) for own in scored])
        curves.append([_curve(own, owner) for own in scored])
    return {"values": values, "seconds": seconds, "curves": curves}


def _means(values: list[float], owner: list[int], count: int) -> list[float | None]:
    """The mean over the rows of each example."""
    by_example: list[list[float]] = [[] for _ in range(count)]
    for value, number in zip(values, owner, strict=True):
        if not np.isnan(value):
            by_example[number].append(value)
    return [float(np.mean(own)) if own else None for own in by_example]


def _curve(found: list[float | Curve], owner: list[int]) -> list[float] | None:
    """The mean over a chunk's examples of the mean of their rows' curves."""
    by_example: dict[int, list[np.ndarray]] = {}
    for one, number in zip(found, owner, strict=True):
        if isinstance(one, Curve):
            by_example.setdefault(number, []).append(one.at(SHARES))
    return np.mean([np.mean(own, 0) for own in by_example.values()], 0).tolist() if by_example else None


def _joined(done: list[dict[str, Any]]) -> np.ndarray:
    """The mean curves over all chunks: (method, metric, share), not a number where a metric has none."""
    weights = [len(chunk["seconds"][0]) for chunk in done]
    blank = [np.nan] * len(SHARES)
    curves = [[[own or blank for own in row] for row in chunk["curves"]] for chunk in done]
    return np.average(np.array(curves, float), axis=0, weights=weights)


def _resumed(file: str | Path | None, heading: dict[str, Any]) -> list[dict[str, Any]]:
    """What a file holds of this very run; a new file is begun with its heading."""
    if file is None:
        return []
    place = Path(file)
    if not place.exists() or not place.read_text(encoding="utf-8").strip():
        place.write_text(json.dumps(heading) + "\n", encoding="utf-8")
        return []
    first, *rest = place.read_text(encoding="utf-8").splitlines()
    try:
        known = json.loads(first)
    except ValueError:
        known = None
    if not isinstance(known, dict) or not known.keys() >= {"model", "methods", "metrics"}:
        raise ValueError(f"{place.name} is no file of an evaluation; name one that was begun by one, or a new one")
    if known != heading:
        raise ValueError(
            f"{place.name} holds an evaluation of another kind, of other data or of another model; give its settings "
            "and data again, or name a new file"
        )
    done = []
    for line in rest:
        try:
            chunk = json.loads(line)
            np.array(chunk["values"], float), chunk["seconds"][0], chunk["curves"]
        except (ValueError, LookupError, TypeError):  # the line that was being written when the run was stopped
            break
        done.append(chunk)
    whole = place.with_name(f"{place.name}.whole")  # lest a stop while it is written loses what was kept
    whole.write_text("\n".join([first, *map(json.dumps, done)]) + "\n", encoding="utf-8")
    whole.replace(place)
    return done


def _digest(value: Any) -> str:
    """Tells data apart: texts, numbers and arrays by what they hold, other things by their type."""
    if isinstance(value, Mapping):
        value = [[str(key), _digest(one)] for key, one in value.items()]
    elif isinstance(value, (list, tuple)):
        value = [_digest(one) for one in value]
    elif not isinstance(value, (str, int, float, bool, Path, type(None))):
        pixels = np.asarray(value.detach().cpu().float() if hasattr(value, "detach") else value)
        value = [type(value).__name__, pixels.shape, "" if pixels.dtype == object else pixels.tobytes().hex()]
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()
