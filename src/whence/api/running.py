"""The verbs that run a plan over a data set, and that compute a sample of a run again."""

from __future__ import annotations

from os import PathLike
from typing import Annotated

from whence.core.run_summaries import Verification
from whence.core.specs import Between, checked
from whence.model.subject import Subject
from whence.runs.plans import Plan
from whence.runs.reading import Run
from whence.runs.running import EngineName, run_plan
from whence.runs.verifying import verified

_COUNT = Annotated[int, Between(1, 10_000)]


def run(
    plan: Plan,
    *,
    engine: EngineName = "local",
    workers: int = 1,
    threads: int | None = None,
    address: str | None = None,
    strict: bool = False,
    wait: bool = False,
    progress: bool = False,
) -> Run:
    """All methods, metrics and experiments of a plan on every row of its data, kept as Parquet in its folder: a Run.

    `engine` is "local" (this process, or `workers` processes of this machine) or "ray" (actors of the cluster at
    `address`, or of one that is started here); `threads` is the number of torch's threads in each worker. A run that
    was stopped continues where it stopped. A row that fails is recorded with its error, unless `strict`. If another run
    is writing to the folder, this one is refused, or waits if `wait` is True.
    """
    checked("threads", threads, _COUNT | None)
    for name, value in (("strict", strict), ("wait", wait), ("progress", progress)):
        checked(name, value, bool)
    return run_plan(
        plan,
        engine=engine,
        workers=workers,
        threads=threads,
        address=address,
        strict=strict,
        wait=wait,
        progress=progress,
    )


def verify(
    folder: str | PathLike[str],
    *,
    chunks: int = 3,
    plan: Plan | None = None,
    subject: Subject | None = None,
    threads: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check all shards of a run, and compute a sample of its chunks again to compare every number: a Verification.

    `plan` and `subject` are needed where the run's data or model existed only in memory. The sample is drawn by `seed`.
    """
    checked("chunks", chunks, _COUNT)
    checked("threads", threads, _COUNT | None)
    return verified(Run(folder), chunks=chunks, plan=plan, subject=subject, threads=threads, seed=seed)
