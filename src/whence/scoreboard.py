"""Methods by metrics over a data set: read the data, explain, score with shared answers, keep what is done."""

from __future__ import annotations

import csv
import hashlib
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whence import api, registry
from whence.boards import Scoreboard
from whence.metrics.running import Curve, Runner, cases, hidden_by
from whence.subject import Subject

CHUNK = 16  # examples between two writes of what is done
SHARES = np.linspace(0, 1, 21)  # of the features, where curves are kept
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")
_PARTS = ("text", "pair", "prompt", "continuation", "source", "output", "image")


def read(data: Any, limit: int | None = None) -> tuple[list[Any], list[Any], list[Any]]:
    """Inputs, labels and truths (None where not given) of a list, a CSV, TSV, JSONL or Parquet file, or a folder.

    A file has a column per part of an input (text, pair, prompt, continuation, source, output, image; the only column
    beside `label` and `truth` is text, whatever its name), and may have `label` and `truth`. A folder holds pictures,
    or folders of them named by their labels.
    """
    rows = list(_rows(data))[:limit]
    if not rows:
        raise ValueError("there is nothing to evaluate: the data is empty")
    inputs, labels, truths = zip(*rows, strict=True)
    return list(inputs), list(labels), list(truths)


def _rows(data: Any) -> Iterator[tuple[Any, Any, Any]]:
    if not isinstance(data, (str, Path)):
        for item in data:
            yield (item.input, item.label, item.truth) if hasattr(item, "truth") else (item, None, None)
        return
    place = Path(data)
    if place.is_dir():
        files = sorted(f for f in place.rglob("*") if f.suffix.lower() in PICTURES)
        yield from ((str(f), f.parent.name if f.parent != place else None, None) for f in files)
        return
    if not place.is_file():
        raise FileNotFoundError(f"there is no file or folder {str(place)!r} to evaluate on")
    for row in _records(place):
        given = {key: value for key, value in row.items() if value is not None}
        parts = {key: given[key] for key in _PARTS if key in given}
        others = given.keys() - {"label", "truth"}
        if not parts and len(others) == 1:
            parts = {"text": given[others.pop()]}
        if not parts:
            raise ValueError(f"{place.name} has the columns {', '.join(row)}; one of {', '.join(_PARTS)} is needed")
        single = next(iter(parts.values())) if set(parts) in ({"text"}, {"image"}, {"prompt"}, {"source"}) else parts
        yield single, None if given.get("label") == "" else given.get("label"), _marks(place, given.get("truth"))


def _marks(place: Path, truth: Any) -> Any:
    """A truth as a column of text holds it: "[0, 1, 0]" or "0 1 0"; none where it is empty."""
    if not isinstance(truth, str):
        return truth
    marks = re.sub(r"[][,;\s]+", " ", truth).split()
    if not set(marks) <= {"0", "1", "true", "false", "True", "False"}:
        raise ValueError(f"{place.name}: a truth is a mark per feature, as in '0 1 0', not {truth!r}")
    return [mark in ("1", "true", "True") for mark in marks] or None


def _records(file: Path) -> Iterator[dict[str, Any]]:
    kind = file.suffix.lower()
    if kind in (".csv", ".tsv"):
        with file.open(encoding="utf-8", newline="") as lines:
            tabbed = kind == ".tsv"
            yield from csv.DictReader(
                lines, delimiter="\t" if tabbed else ",", quoting=csv.QUOTE_NONE if tabbed else csv.QUOTE_MINIMAL
            )
    elif kind in (".jsonl", ".ndjson"):
        with file.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines if line.strip())
    elif kind == ".parquet":
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise ImportError("Parquet files need pyarrow; install whence[data]") from error
        yield from pyarrow.parquet.read_table(file).to_pylist()
    else:
        raise ValueError(f"{file.name} is none of CSV, TSV, JSONL and Parquet")


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
    inputs, given, truths = read(data, limit)
    labels = [as_target(subject, label) for label in given]
    specs = [registry.resolve("method", m) for m in methods]
    measures = [registry.resolve("metric", m) for m in metrics]
    names = [record.spec(options) for record, options in specs]
    heading: dict[str, Any] = {
        "model": subject.name,
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
    first = cases(subject, api.explain(subject, inputs[0], "random", labels[0], truncate=truncate))[0].item
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
    )


def as_target(subject: Subject, label: Any) -> Any:
    """A label as a target: by name where the model has it, else by number; generated text is explained as it is."""
    if subject.task == "seq2seq-lm":
        return None
    known = subject.labels or ()
    return int(label) if isinstance(label, str) and label not in known and label.isdigit() else label


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
    if json.loads(first) != heading:
        raise ValueError(
            f"{place.name} holds an evaluation of another kind or of other data; give its settings and data again, or "
            "name a new file"
        )
    done = []
    for line in rest:
        try:
            done.append(json.loads(line))
        except ValueError:  # the line that was being written when the run was stopped
            break
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
        pixels = np.asarray(value)
        value = [type(value).__name__, pixels.shape, "" if pixels.dtype == object else pixels.tobytes().hex()]
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()
