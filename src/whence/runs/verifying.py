"""Whether a run comes out the same when a sample of it is computed again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.core.provenance import versions
from whence.core.run_summaries import Verification
from whence.measure.datasets import stream
from whence.runs.chunks import cut, laid_out
from whence.runs.folder import differences
from whence.runs.plans import Plan
from whence.runs.reading import Run
from whence.runs.shards import Facts
from whence.runs.workers import loaded

if TYPE_CHECKING:
    from whence.model.subject import Subject

TOLERANCE = 1e-5  # relative to the largest score of a row: float32 on another processor, or with more threads
NUMBERS = ("scores", "output", "base", "residual", "values")
EXACT = ("row", "id", "method", "token", "features", "special", "target", "error", "digest")


def verified(
    run: Run, *, chunks: int, plan: Plan | None, subject: Subject | None, threads: int | None, seed: int
) -> Verification:
    """Check the shards of a run and compute a sample of its chunks again."""
    found, damaged = run.folder.committed(run.manifest["identity"])
    known = plan if plan is not None else Plan.from_dict(run.manifest["plan"])
    layout = laid_out(stream(known.data, known.limit), known.chunk)
    _check_settings(run, known)
    model: Any = subject if subject is not None else loaded(known) if known.model_is_named else known.model
    numbers = sorted(np.random.default_rng(seed).permutation(sorted(found))[:chunks].tolist())
    reasons = _changed_since(run, known, layout.digest, model, [found[number][1] for number in numbers], threads)
    if len(layout.chunks) != run.manifest["chunks"] or "the data is another" in reasons:
        numbers = []  # nothing to compare with: the rows are not those of the run
    differences: list[float] = []
    for chunk, rows in cut(stream(known.data, known.limit), layout, set(numbers)):
        differences += _compared(known, rows, model, found[chunk.number], threads)
    missing = run.manifest["chunks"] - len(found)
    return Verification(
        name=run.folder.path.name,
        model=run.manifest["model"],
        chunks=tuple(numbers),
        rows=len(differences),
        equal=sum(difference == 0 for difference in differences),
        differences=np.array(differences, float),
        tolerance=TOLERANCE,
        reasons=tuple(reasons),
        damaged=tuple(damaged),
        notes=(f"{missing} of {run.manifest['chunks']} chunks are not there yet.",) if missing else (),
    )


def _check_settings(run: Run, plan: Plan) -> None:
    """Refuse a plan whose numbers cannot be those of the run, whatever its model and data."""
    heading = run.manifest["heading"]
    differing = differences(heading, plan.heading(heading["model"], heading["data"]))
    if differing:
        raise ValueError(f"the run was made with another plan than the one given: {differing}; give the run's own")


def _changed_since(
    run: Run, plan: Plan, data: str, model: Subject, facts: Sequence[Facts], threads: int | None
) -> list[str]:
    """What differs from when the run was made (data, model, threads, versions), in words."""
    import torch

    from whence.model.identity import model_hashes

    heading, reasons = run.manifest["heading"], []
    if data != heading["data"]:
        reasons.append("the data is another")
    now = model_hashes(model)
    reasons += [f"the model's {part} are others" for part in now if now[part] != heading["model"].get(part)]
    own = threads or torch.get_num_threads()
    reasons += [f"{count} threads then, {own} now" for count in sorted({one.threads for one in facts}) if count != own]
    here = versions()
    for name, before in sorted({pair for one in facts for pair in one.versions.items()}):
        if here.get(name) != before:
            reasons.append(f"{name} {before} then, {here.get(name, 'none')} now")
    return reasons


def _compared(
    plan: Plan, rows: list[Any], model: Subject, shard: tuple[Any, Facts], threads: int | None
) -> list[float]:
    """The largest relative difference of every row of a shard; infinite where anything but a number differs."""
    import pyarrow.parquet
    import torch

    from whence.runs.work import run_chunk

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads or before)
        again = run_chunk(plan, rows, model).table.to_pylist()
    finally:
        torch.set_num_threads(before)
    kept = pyarrow.parquet.read_table(shard[0]).to_pylist()
    if len(kept) != len(again):
        return [float("inf")] * len(kept)
    return [_difference(old, new) for old, new in zip(kept, again, strict=True)]


def _difference(old: dict[str, Any], new: dict[str, Any]) -> float:
    """The largest difference of two rows, relative to the largest score; infinite where they are not of one kind."""
    if any(old[name] != new[name] for name in EXACT):
        return float("inf")
    scale = max((abs(x) for x in _flat(old["scores"])), default=1.0) or 1.0
    largest = 0.0
    for name in NUMBERS:
        a, b = _flat(old[name]), _flat(new[name])
        if len(a) != len(b):
            return float("inf")
        largest = max([largest, *(0.0 if x == y else abs(x - y) / scale for x, y in zip(a, b, strict=True))])
    return largest


def _flat(value: Any) -> list[float]:
    """The numbers of nested lists and structs, in order; None and NaN are left out."""
    if value is None or value != value:
        return []
    if isinstance(value, (int, float)):
        return [float(value)]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [number for part in parts for number in _flat(part)]
