"""The engine that runs chunks in this process, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from whence.runs.engines.events import Done, Event, Ready
from whence.runs.plans import Plan
from whence.runs.workers import Task, Worker

if TYPE_CHECKING:
    from whence.model.subject import Subject


class HereEngine:
    """One worker: this process. It is the only engine that runs a model which exists only in memory."""

    name, workers = "local", 1

    def __init__(self, plan: Plan, staging: Path, threads: int | None, subject: Subject | None) -> None:
        import torch

        self._threads_before = torch.get_num_threads()
        self._worker = Worker(plan, staging, "here", threads, subject)
        known = self._worker.subject
        self._events: list[Event] = [Ready(0, self._worker.hashes, known.name, known.generates)]
        self._task: Task | None = None

    def submit(self, worker: int, task: Task) -> None:
        self._task = task

    def wait(self, seconds: float) -> list[Event]:
        if self._task is not None:
            task, self._task = self._task, None
            self._events.append(Done(0, self._worker.run(task)))
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        import torch

        torch.set_num_threads(self._threads_before)
