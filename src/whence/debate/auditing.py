"""The audit: runs every experiment on every example of a data set, in chunks, and makes findings of the numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from whence.core import registry
from whence.core.audits import Audit, Finding, Quantity
from whence.core.checksums import digest_of
from whence.core.inputs import Input, Target
from whence.core.registry import Record
from whence.core.statistics import means_of
from whence.core.wording import counted
from whence.debate.retraining import Lesson, retraining
from whence.debate.scenes import Scene, Undefined, Values
from whence.debate.verdicts import Conclusion, Evidence
from whence.measure.datasets import as_target, assumptions, read
from whence.measure.local_engine import kept_results, progress_bar, resume_hint
from whence.measure.plans import MAX_EXAMPLES, Example, encode_examples
from whence.methods.explaining import rows_of
from whence.model.identity import model_hash
from whence.model.masked_runs import MaskedRuns
from whence.model.subject import Subject
from whence.model.target_specs import resolve
from whence.model.targets import names_class

LONGEST = 200  # characters of a text that a result keeps
READ: dict[str, dict[Any, str]] = {
    "layers": {"last": "the last layer", "each": "each layer in turn", "all": "all layers at once"},
    "heads": {"together": "its heads together", "each": "its heads one by one, averaged"},
    "rows": {"deciding": "the rows of the tokens that the output reads", "all": "all rows"},
    "special": {True: "special tokens among them", False: "special tokens keep their weight"},
    "reading": {"attention": "", "rollout": "read as rollout"},
}


@dataclass(frozen=True, eq=False)
class AuditPlan:
    """Every experiment on every example: an immutable description, cut into chunks that can be run anywhere."""

    model: str
    weights: str  # a digest of some of the subject's weights, which tells models of one name apart
    examples: tuple[Example, ...]
    experiments: tuple[str, ...]  # resolved specs
    seed: int = 0
    truncate: bool = False

    def chunks(self) -> list[range]:
        """Numbers of examples that are run together; the first chunk is one example, so that errors show at once."""
        starts = [0, *range(1, len(self.examples), MAX_EXAMPLES)]
        return [range(a, b) for a, b in zip(starts, [*starts[1:], len(self.examples)], strict=True)]

    def heading(self) -> dict[str, Any]:
        """A description of the plan in JSON values, for result files; equal for plans that give the same results."""
        return {
            "format": 1,
            "model": self.model,
            "weights": self.weights,
            "experiments": list(self.experiments),
            "examples": len(self.examples),
            "data": digest_of([[e.raw, e.targets, e.size] for e in self.examples] + [self.truncate]),
            "seed": self.seed,
        }


@dataclass(frozen=True, eq=False)
class Row:
    """One decision: an example, or one generated token of it."""

    example: int
    predicted: str
    length: int
    values: list[Values]  # of each experiment
    undefined: list[str]  # of each experiment: why it has no values; "" where it has


@dataclass(frozen=True, eq=False)
class ChunkRows:
    """The results of a chunk."""

    rows: list[Row]
    examples: int


def audited(
    subject: Subject,
    data: Any,
    experiments: Sequence[str] | None = None,
    shared: Mapping[str, Any] | None = None,
    *,
    train: Any = None,
    limit: int | None = None,
    seed: int = 0,
    truncate: bool = False,
    resume: str | Path | None = None,
    progress: bool = False,
) -> Audit:
    """Every experiment on a data set; the arguments are those of `whence.audit`, `shared` its options for all."""
    chosen = [_resolved(spec, shared or {}) for spec in experiments or usual_experiments(train is not None)]
    _check_training(chosen, train)
    asking = [spec for spec in chosen if spec[0].family != "training"]
    raws, labels, _ = read(data, limit)
    known = [[None if subject.generates else as_target(subject, label)] for label in labels]
    examples, encoded = encode_examples(subject, raws, known, [None] * len(raws), truncate)
    plan = AuditPlan(
        model=subject.name,
        weights="" if resume is None else model_hash(subject),
        examples=examples,
        experiments=tuple(record.spec(options) for record, options in asking),
        seed=seed,
        truncate=truncate,
    )
    items = [encoded.items.get(n) or subject.encode(raw, truncate=truncate) for n, raw in enumerate(raws)]
    lessons = _lessons(subject, chosen, train, items, known, seed, truncate)
    rows = _run(plan, subject, encoded.items, resume, progress)
    notes = [f"Cut to the model's length: {encoded.cut} of {len(raws)} inputs."] if encoded.cut else []
    if len(rows) > len(raws):
        notes.append(
            f"Every generated token counts as an example, {len(rows)} of {counted(len(raws), 'input')}; tokens of one "
            "text depend on each other, so intervals are too narrow."
        )
    texts = [_text(item) for item in items]
    given = ["" if label is None else str(label) for label in labels]
    return Audit(
        findings=tuple(_findings(chosen, rows, lessons, seed)),
        model=subject.name,
        examples=tuple(texts[row.example] for row in rows),
        predicted=tuple(row.predicted for row in rows),
        labels=tuple(given[row.example] for row in rows),
        lengths=np.array([row.length for row in rows]),
        seed=seed,
        notes=(*notes, *assumptions(data)),
    )


def usual_experiments(training: bool = False) -> list[str]:
    """The experiments to run when none is named: those of the family "attention", and of "training" if asked."""
    families = ("attention", "training") if training else ("attention",)
    return [record.name for record in registry.records("experiment") if record.family in families]


def _resolved(spec: str, shared: Mapping[str, Any]) -> tuple[Record, dict[str, Any]]:
    """An experiment and its options: its own, else those that the audit sets for all, else the defaults."""
    record, options = registry.resolve("experiment", spec)
    for_all = {name: value for name, value in shared.items() if name in record.options and name not in options}
    return record, registry.validate(record, {**for_all, **options})


def _check_training(chosen: Sequence[tuple[Record, dict[str, Any]]], train: Any) -> None:
    """Experiments that retrain need examples to learn from, and such examples need an experiment that retrains."""
    learning = [record.name for record, _ in chosen if record.family == "training"]
    if learning and train is None:
        raise ValueError(f"{learning[0]} trains the model again; give it labelled examples to learn from, as train=")
    if train is not None and not learning:
        names = [record.name for record in registry.records("experiment") if record.family == "training"]
        raise ValueError(f"train= is for experiments that train the model again, and none is named; add {names[0]!r}")


def _lessons(
    subject: Subject,
    chosen: Sequence[tuple[Record, dict[str, Any]]],
    train: Any,
    items: list[Input],
    known: Sequence[Sequence[Any]],
    seed: int,
    truncate: bool,
) -> dict[int, Lesson | str]:
    """The lesson of every experiment that retrains, by its number among all experiments; or why it has none."""
    learning = [number for number, (record, _) in enumerate(chosen) if record.family == "training"]
    if not learning:
        return {}
    labels = [_label(subject, own[0], item) for own, item in zip(known, items, strict=True)]
    training = retraining(subject, train, items, labels, seed, truncate)
    found: dict[int, Lesson | str] = {}
    for number in learning:
        record, options = chosen[number]
        try:
            found[number] = record.function(training, **options)
        except Undefined as reason:
            found[number] = str(reason)
    return found


def _text(item: Input) -> str:
    """An example as a result keeps it: its text, cut; a picture by its size."""
    text = " / ".join(item.texts.values())
    if not text and item.image is not None:
        return f"a picture of {item.image.shape[1]} x {item.image.shape[0]}"
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


# ---- running ---------------------------------------------------------------------------------------------------------


def _run(
    plan: AuditPlan, subject: Subject, items: Mapping[int, Input], resume: str | Path | None, progress: bool
) -> list[Row]:
    """The rows of all chunks, in order."""
    with (
        kept_results(resume, plan.heading(), _to_record, _from_record, "an audit") as kept,
        resume_hint(len(plan.examples), kept.results, resume),
        progress_bar("auditing", len(plan.examples), progress) as advance,
    ):
        advance(sum(chunk.examples for chunk in kept.results.values()))
        for number, chunk in enumerate(plan.chunks()):
            if number not in kept.results:
                kept.add(number, run_chunk(plan, chunk, subject, items))
                advance(len(chunk))
    return [row for chunk in kept.in_order() for row in chunk.rows]


def run_chunk(plan: AuditPlan, chunk: range, subject: Subject, items: Mapping[int, Input] | None = None) -> ChunkRows:
    """Every experiment on the examples of a chunk: the same result wherever and in whatever order it is called."""
    known = items or {}
    encoded = {n: known.get(n) or subject.encode(plan.examples[n].raw, truncate=plan.truncate) for n in chunk}
    targets = {number: plan.examples[number].targets[0] for number in chunk}
    return ChunkRows(audited_rows(subject, encoded, targets, plan.experiments, plan.seed), len(chunk))


def audited_rows(
    subject: Subject, items: Mapping[int, Input], targets: Mapping[int, Any], experiments: Sequence[str], seed: int
) -> list[Row]:
    """Every experiment on these examples. Their keys are numbers in the data set, on which random choices depend."""
    chosen = [registry.resolve("experiment", spec) for spec in experiments]
    for record, _ in chosen:
        if record.family == "training":
            raise ValueError(f"{record.name} trains the model again and is for whence.audit with train=; leave it out")
    engine = MaskedRuns(subject)
    found = []
    with subject.lent():
        for number, item in items.items():
            for place, one in enumerate(rows_of(subject, [item], [None]).inputs):
                label = _label(subject, targets[number], one)
                scene = partial(Scene, subject, one, engine, [seed, number, place], label)
                found.append(_row(scene, chosen, number, int((~one.special).sum())))
    return found


def _label(subject: Subject, target: Any, item: Input) -> int | None:
    """The number of the class that a label names; None without a label, or where a label names no class."""
    if target is None or subject.reads or subject.generates:
        return None
    known = resolve(target, subject, item)
    return known.index if isinstance(known, Target) and names_class(known) else None


def _row(make: Callable[[], Scene], chosen: list[tuple[Record, dict[str, Any]]], number: int, length: int) -> Row:
    """All experiments on one input."""
    values: list[Values] = []
    undefined: list[str] = []
    try:
        scene = make()
    except Undefined as reason:
        return Row(number, "", length, [{} for _ in chosen], [str(reason)] * len(chosen))
    for record, options in chosen:
        try:
            values.append(record.function(scene, **options))
            undefined.append("")
        except Undefined as reason:
            values.append({})
            undefined.append(str(reason))
    return Row(number, scene.predicted, length, values, undefined)


def _to_record(chunk: ChunkRows) -> dict[str, Any]:
    """The rows of a chunk as JSON values; NaN becomes null."""
    rows = [
        {
            **vars(row),
            "values": [{p: {n: _plain(v) for n, v in own.items()} for p, own in one.items()} for one in row.values],
        }
        for row in chunk.rows
    ]
    return {"rows": rows, "examples": chunk.examples}


def _plain(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _from_record(parsed: dict[str, Any]) -> ChunkRows:
    """The inverse of `_to_record`."""
    rows = []
    for row in parsed["rows"]:
        values = [
            {p: {n: float("nan") if v is None else v for n, v in own.items()} for p, own in one.items()}
            for one in row["values"]
        ]
        rows.append(Row(**{**row, "values": values}))
    return ChunkRows(rows, parsed["examples"])


# ---- findings --------------------------------------------------------------------------------------------------------


def _findings(
    chosen: Sequence[tuple[Record, dict[str, Any]]], rows: list[Row], lessons: Mapping[int, Lesson | str], seed: int
) -> Iterator[Finding]:
    """The finding of every experiment; those that retrain have their numbers in `lessons`."""
    asked = 0
    for number, spec in enumerate(chosen):
        lesson = lessons.get(number)
        if lesson is None:
            yield _finding(spec, [r.values[asked] for r in rows], [r.undefined[asked] for r in rows], seed)
            asked += 1
        elif isinstance(lesson, str):
            yield _finding(spec, [{} for _ in rows], [lesson] * len(rows), seed)
        else:
            found = _finding(spec, lesson.values, [""] * len(rows), seed)
            yield replace(found, tables=(*found.tables, *lesson.tables), notes=(*found.notes, *lesson.notes))


def _finding(
    spec: tuple[Record, dict[str, Any]], rows: Sequence[Values], undefined: Sequence[str], seed: int
) -> Finding:
    """The finding of an experiment over all rows."""
    record, options = spec
    facts: dict[str, Any] = {
        "experiment": record.spec(options),
        "question": record.question,
        "attention": attention_in_words(record, options),
        "limits": record.limits,
        "paper": record.paper,
    }
    reasons = dict.fromkeys(reason for reason in undefined if reason)
    by_place = _by_place(rows)
    if not any(by_place.values()):
        reason = next(iter(reasons), "no example has enough features whose weights may be edited")
        return Finding(answer=f"The question is not defined here: {reason}.", grade="cannot tell", **facts)
    assert record.conclude is not None
    settings = {name: option.default for name, option in record.options.items()} | options
    found: dict[str, Conclusion] = {
        where: record.conclude(Evidence(values, len(rows), seed), settings) for where, values in by_place.items()
    }
    headline = next(iter(found.values()))
    notes = [*headline.notes]
    if reasons:
        missing = sum(map(bool, undefined))
        notes.append(f"Not defined for {counted(missing, 'example')}: {next(iter(reasons))}.")
    return Finding(
        answer=headline.answer,
        grade=headline.grade,
        quantities=tuple(Quantity(n, where, v, seed) for where, own in by_place.items() for n, v in own.items()),
        grades={where: conclusion.grade for where, conclusion in found.items() if where},
        tables=headline.tables,
        notes=tuple(notes),
        **facts,
    )


def _by_place(rows: Sequence[Values]) -> dict[str, dict[str, np.ndarray]]:
    """The numbers of all rows, place -> name -> (example,); where there are several places, their mean first, as ""."""
    places = dict.fromkeys(place for row in rows for place in row)
    names = dict.fromkeys(name for row in rows for own in row.values() for name in own)
    found = {
        place: {name: np.array([row.get(place, {}).get(name, np.nan) for row in rows], float) for name in names}
        for place in places
    }
    if len(found) > 1:
        mean = {name: means_of(np.stack([own[name] for own in found.values()], -1)) for name in names}
        found = {"": mean, **found}
    return {place: {name: v for name, v in own.items() if not np.isnan(v).all()} for place, own in found.items()}


def attention_in_words(record: Record, options: Mapping[str, Any]) -> str:
    """What attention an experiment reads or edits, in words."""
    said = []
    for name, words in READ.items():
        if name in record.options:
            value = options.get(name, record.options[name].default)
            said.append(words.get(value, "") if isinstance(value, (str, bool)) else f"{name} {value}")
    return ", ".join(part for part in said if part)
