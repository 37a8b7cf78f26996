"""Running a chunk: every method, metric and experiment on a few rows, as the rows of a shard."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from whence.core import registry
from whence.core.checksums import digest_of
from whence.core.inputs import Input, Target
from whence.core.results import Attribution
from whence.core.wording import MAX_SHOWN
from whence.debate.auditing import Row as AuditRow
from whence.debate.auditing import audited_rows
from whence.measure.datasets import Row, as_target
from whence.measure.local_engine import interrupted
from whence.measure.metric_runs import MetricRuns, cases_of
from whence.measure.plans import fitted_metrics, measured, specs_of
from whence.methods.explaining import Settings, explained
from whence.model.masked_runs import MaskedRuns
from whence.model.subject import Subject
from whence.runs.plans import Plan
from whence.runs.reading import texts_of
from whence.runs.shards import schema


@dataclass(eq=False)
class ChunkResult:
    """The rows of a shard, and the seconds that they took."""

    table: Any  # pyarrow
    failures: dict[int, str]  # number of a row -> why at least one method failed on it
    method_seconds: dict[str, float]


@dataclass(eq=False)
class _Case:
    """One row of the data while its chunk is run."""

    row: Row
    item: Input | None = None
    target: Any = None
    error: str = ""  # why nothing could be run
    found: dict[str, Attribution | str] = field(default_factory=dict)  # method -> its result, or why there is none
    values: dict[str, dict[str, float]] = field(default_factory=dict)  # method -> metric -> value
    audits: list[AuditRow] | str = ""  # of every generated token, or why there are none


def run_chunk(plan: Plan, rows: Sequence[Row], subject: Subject) -> ChunkResult:
    """Every question of the plan on these rows: the same numbers wherever and whenever it is called.

    A row that fails is recorded with its error. Where a batch fails, its rows are run one by one, so that the others
    have their results.
    """
    cases = [_encoded(plan, row, subject) for row in rows]
    seconds = dict.fromkeys(plan.questions(), 0.0)
    sound = [case for case in cases if case.item is not None]
    engine = MaskedRuns(subject)
    if sound and plan.methods:
        _explain(plan, sound, subject, engine, seconds)
    if plan.metrics:
        _measure(plan, sound, subject, engine)
    if plan.experiments:
        started = time.perf_counter()
        _audit(plan, sound, subject)
        taken = (time.perf_counter() - started) / len(plan.experiments)  # which share passes
        seconds |= dict.fromkeys(plan.experiments, taken)
    failures = {case.row.number: reason for case in cases if (reason := _failure(plan, case))}
    import pyarrow as pa

    shares = {spec: total / len(rows) for spec, total in seconds.items()}
    records = [record for case in cases for record in _records(plan, case, subject.generates, shares)]
    return ChunkResult(pa.Table.from_pylist(records, schema(subject.generates)), failures, seconds)


def failed_chunk(plan: Plan, rows: Sequence[Row], reason: str, generates: bool) -> Any:
    """The table of a chunk of which no row could be run."""
    import pyarrow as pa

    seconds = dict.fromkeys(plan.questions(), 0.0)
    cases = [_Case(row, error=row.error or reason) for row in rows]
    records = [record for case in cases for record in _records(plan, case, generates, seconds)]
    return pa.Table.from_pylist(records, schema(generates))


# ---- running ---------------------------------------------------------------------------------------------------------


def _encoded(plan: Plan, row: Row, subject: Subject) -> _Case:
    """A row encoded, with its target; a row that cannot be read keeps the reason."""
    if row.error:
        return _Case(row, error=row.error)
    try:
        target = plan.target if plan.target is not None else as_target(subject, row.label)
        item = subject.encode(row.raw, truncate=plan.truncate, target=target)
        return _Case(row, item, target)
    except Exception as error:
        return _Case(row, error=_reason(error))


def _explain(plan: Plan, cases: list[_Case], subject: Subject, engine: MaskedRuns, seconds: dict[str, float]) -> None:
    """What every method gives for every case. Methods share passes; where one fails, each case is run alone."""
    settings = Settings(seed=plan.seed, masked_runs=engine, seconds=seconds)
    specs = [registry.resolve("method", method) for method in plan.methods]
    try:
        found = explained(subject, [_item(c) for c in cases], specs, [c.target for c in cases], settings)
        for case, own in zip(cases, found, strict=True):
            case.found.update(zip(plan.methods, own, strict=True))
    except Exception as whole:
        _check_interrupt(whole)
        for case in cases:
            for method, spec in zip(plan.methods, specs, strict=True):
                try:
                    case.found[method] = explained(subject, [_item(case)], [spec], [case.target], settings)[0][0]
                except Exception as error:
                    _check_interrupt(error)
                    case.found[method] = _reason(error)


def _measure(plan: Plan, cases: list[_Case], subject: Subject, engine: MaskedRuns) -> None:
    """Every metric of every explanation; a metric that fails is not a number and says why in the notes."""
    pairs = [(case, method, a) for case in cases for method, a in case.found.items() if isinstance(a, Attribution)]
    if not pairs:
        return
    metrics = specs_of(fitted_metrics(subject, _item(pairs[0][0]), plan.metrics))
    runs = MetricRuns(engine, partly=True)
    try:
        asked = [[cases_of(subject, a, case.row.truth, plan.seed, checked=True)] for case, _, a in pairs]
        values = measured(runs, metrics, asked, (1, 1)).values[:, :, 0, 0]  # (pair, metric)
    except Exception as whole:
        _check_interrupt(whole)
        values = np.full((len(pairs), len(metrics)), np.nan)
        for number, (case, method, a) in enumerate(pairs):
            try:
                rows = cases_of(subject, a, case.row.truth, plan.seed, checked=True)
                values[number] = measured(runs, metrics, [[rows]], (1, 1)).values[0, :, 0, 0]
            except Exception as error:
                _check_interrupt(error)
                case.found[method] = _with_note(a, f"no metric could be taken: {_reason(error)}")
    for (case, method, _), own in zip(pairs, values.tolist(), strict=True):
        case.values[method] = dict(zip(metrics, own, strict=True))


def _audit(plan: Plan, cases: list[_Case], subject: Subject) -> None:
    """Every experiment on every case."""
    for case in cases:
        number = case.row.number
        label = None if subject.generates else as_target(subject, case.row.label)
        try:
            case.audits = audited_rows(subject, {number: _item(case)}, {number: label}, plan.experiments, plan.seed)
        except Exception as error:
            _check_interrupt(error)
            case.audits = _reason(error)


def _check_interrupt(error: BaseException) -> None:
    """Pass on a Ctrl-C that surfaced as another error, as it does inside torch: it is no failure of a row."""
    if interrupted(error):
        raise KeyboardInterrupt from error


def _item(case: _Case) -> Input:
    assert case.item is not None
    return case.item


def _with_note(a: Attribution, note: str) -> Attribution:
    return replace(a, notes=(*a.notes, note))


def _reason(error: BaseException) -> str:
    """Why something failed, on one line."""
    foreseen = isinstance(error, (ValueError, TypeError, OSError, LookupError)) and str(error)
    text = " ".join((str(error) if foreseen else repr(error)).split())
    return text if len(text) <= 2 * MAX_SHOWN else f"{text[: 2 * MAX_SHOWN]}..."


def _failure(plan: Plan, case: _Case) -> str:
    """Why at least one question of a row has no result; "" where all have one."""
    if case.error:
        return case.error
    reasons = [f"{method}: {found}" for method, found in case.found.items() if isinstance(found, str)]
    if plan.experiments and isinstance(case.audits, str):
        reasons.append(f"audit: {case.audits}")
    return reasons[0] if reasons else ""


# ---- rows of a shard -------------------------------------------------------------------------------------------------


def _records(plan: Plan, case: _Case, generates: bool, seconds: Mapping[str, float]) -> list[dict[str, Any]]:
    """The rows of a shard for one row of the data."""
    common: dict[str, Any] = {"row": case.row.number, "id": case.row.id, "digest": digest_of(case.row.raw)}
    if plan.inputs:
        common |= {"input": as_text(case.row.raw), "label": None if case.row.label is None else str(case.row.label)}
    found = []
    for method in plan.methods:
        a = case.error or case.found[method]
        own = {"error": _public_reason(plan, a)} if isinstance(a, str) else _explanation(plan, a, case, method)
        found.append({**common, "method": method, "experiment": False, "seconds": seconds[method], **own})
        if not isinstance(a, str) and generates and len(a.axes) == 1:  # the next token alone is one row
            for name in ("scores", "target", "output", "base", "residual"):
                found[-1][name] = None if found[-1][name] is None else [found[-1][name]]
    audits = case.error or case.audits
    for number, spec in enumerate(plan.experiments):
        facts = {**common, "method": spec, "experiment": True, "seconds": seconds[spec]}
        if isinstance(audits, str):
            found.append({**facts, "error": _public_reason(plan, audits)})
        else:
            found += [{**facts, **_experiment(plan, row, number, place)} for place, row in enumerate(audits)]
    return found


def _public_reason(plan: Plan, reason: str) -> str:
    """A reason, or a placeholder where the plan keeps inputs out: the reason may quote one."""
    return reason if plan.inputs else "failed; the reason may quote the input and is left out"


def _explanation(plan: Plan, a: Attribution, case: _Case, method: str) -> dict[str, Any]:
    """The columns of an explanation."""
    x = a.input
    targets = a.target if isinstance(a.target, tuple) else (a.target,)
    values = case.values.get(method, {}).items()
    record: dict[str, Any] = {"dtype": a.scores.dtype.str}
    found: dict[str, Any] = {
        "grid": None if x.grid is None else list(x.grid),
        "generated": list(x.generated),
        "special": x.special.tolist(),
        "streams": list(x.streams),
        "scores": a.scores.tolist(),
        "output": _plain(a.output),
        "base": _plain(a.base),
        "residual": _plain(a.residual),
        "signs": a.signs,
        "length": int((~x.special).sum()),
        "values": [{"place": "", "name": name, "value": value} for name, value in values],
        "notes": [note for note in a.notes if plan.inputs],
    }
    if plan.inputs:
        # a predicted token of a generating model is part of the text
        record |= {"targets": [target.to_dict() for target in targets], "size": x.size, "box": x.box}
        if x.texts != texts_of(
            as_text(case.row.raw), x.parts
        ):  # of a text that the model generated, or of own encodings
            record |= {"texts": x.texts}
        found |= {
            "features": [feature.encode("utf-8", "backslashreplace").decode() for feature in x.features],
            "words": x.words.tolist(),
            "starts": x.offsets[:, 0].tolist(),
            "ends": x.offsets[:, 1].tolist(),
            "parts": list(x.parts),
        }
    names = [_target_name(plan, target) for target in targets]
    return {**found, "target": names if isinstance(a.target, tuple) else names[0], "record": json.dumps(record)}


def _target_name(plan: Plan, target: Target) -> str:
    text = str(target) if plan.inputs or not target.place else str(target).removesuffix(f" at {target.place}")
    return text.encode("utf-8", "backslashreplace").decode()


def _experiment(plan: Plan, row: AuditRow, number: int, place: int) -> dict[str, Any]:
    """The columns of an experiment."""
    values = [
        {"place": where, "name": name, "value": None if math.isnan(value) else float(value)}
        for where, own in row.values[number].items()
        for name, value in own.items()
    ]
    notes = [row.undefined[number]] if row.undefined[number] else []
    return {"token": place, "target": None, "length": row.length, "values": values, "notes": notes} | (
        {"record": json.dumps({"predicted": row.predicted})} if plan.inputs else {}
    )


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def as_text(raw: Any) -> str:
    """An input as a column of texts holds it: a text, the name of a picture's file, other inputs as JSON."""
    text = str(raw) if isinstance(raw, (str, Path)) else json.dumps(raw, default=_kind, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace").decode()


def _kind(value: Any) -> str:
    """The text that stands in JSON for a value that JSON cannot hold."""
    shape = getattr(value, "shape", None) or getattr(value, "size", None)
    return str(value) if isinstance(value, Path) else f"{type(value).__name__} of {shape}"
