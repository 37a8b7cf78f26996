"""A worker: loads the model of a plan once, then runs chunk after chunk and stages their shards."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.core.provenance import versions
from whence.core.wording import in_one_line, shown
from whence.runs.plans import Plan, names_function
from whence.runs.shards import Facts, write_shard

if TYPE_CHECKING:
    from whence.measure.datasets import Row
    from whence.model.subject import Subject


@dataclass(frozen=True)
class Task:
    """A chunk to be run."""

    run: str  # the identity of the run
    chunk: int
    first: int
    rows: list[Row]


@dataclass(frozen=True)
class Staged:
    """A chunk that was run: its shard waits to be committed."""

    path: str
    facts: Facts


class Worker:
    """A model that runs chunks; one per process, or per Ray actor."""

    def __init__(
        self, plan: Plan, staging: Path, name: str, threads: int | None = None, subject: Subject | None = None
    ) -> None:
        """`subject` is the model where it exists in this process; else it is loaded as the plan says."""
        import torch

        from whence.core import registry
        from whence.methods.explaining import check_tasks
        from whence.model.identity import model_hashes

        if threads is not None:
            torch.set_num_threads(threads)
        self.plan, self.staging, self.name = plan, staging, name
        self.threads = torch.get_num_threads()
        self.subject = loaded(plan) if subject is None else subject
        check_tasks(self.subject, [registry.resolve("method", method) for method in plan.methods])
        self.hashes = model_hashes(self.subject)

    def run(self, task: Task) -> Staged:
        """Run a chunk and stage its shard."""
        from whence.runs.work import run_chunk

        started = time.perf_counter()
        result = run_chunk(self.plan, task.rows, self.subject)
        reasons = Counter(result.failures.values())
        facts = Facts(
            run=task.run,
            chunk=task.chunk,
            first=task.first,
            examples=len(task.rows),
            failed=len(result.failures),
            failures=dict(reasons) if self.plan.inputs else {"failed": len(result.failures)} if reasons else {},
            method_seconds=result.method_seconds,
            seconds=time.perf_counter() - started,
            worker=self.name,
            finished=time.time(),
            threads=self.threads,
            versions=versions(),
        )
        return Staged(str(write_shard(result.table, facts, self.staging)), facts)


def staged_failure(plan: Plan, task: Task, reason: str, generates: bool, staging: Path) -> Staged:
    """Stage a chunk that no worker survives: every row is recorded as failed for `reason`."""
    from whence.runs.work import failed_chunk

    table = failed_chunk(plan, task.rows, reason, generates)
    facts = Facts(
        run=task.run,
        chunk=task.chunk,
        first=task.first,
        examples=len(task.rows),
        failed=len(task.rows),
        failures={reason: len(task.rows)},
        method_seconds=dict.fromkeys(plan.questions(), 0.0),
        seconds=0.0,
        worker="none",
        finished=time.time(),
        threads=0,
        versions=versions(),
    )
    return Staged(str(write_shard(table, facts, staging)), facts)


def loaded(plan: Plan) -> Subject:
    """The model that a plan names."""
    from whence.model.loading import load
    from whence.model.subject import Subject

    name = str(plan.model)
    if not names_function(name) or os.path.exists(name):
        dtype: Any = plan.dtype
        return load(plan.model, device=plan.device, dtype=dtype, trust_remote_code=plan.trust_remote_code)  # type: ignore[arg-type]
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where users keep the module that makes their model
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"there is no function {shown(name)} that makes a model: {in_one_line(error)}") from error
    subject = found() if callable(found) else found
    if not isinstance(subject, Subject):
        raise TypeError(f"{name} gives a {type(subject).__name__}, not a Subject; return what whence.wrap makes")
    return subject
