"""The engine that runs chunks in several processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from whence.runs.engines.events import Died, Done, Event, Failed, Ready
from whence.runs.plans import Plan
from whence.runs.workers import Task, Worker

GRACE = 5.0  # seconds that a process has to end by itself before it is killed


@dataclass
class _Process:
    """A process and the pipe to it."""

    process: BaseProcess
    pipe: Connection


class ProcessEngine:
    """Workers are processes that are started anew, never forked: torch's threads do not survive a fork."""

    def __init__(self, plan: Plan, staging: Path, workers: int, threads: int | None) -> None:
        self.name, self.workers = f"local, {workers} processes", workers
        self._context = multiprocessing.get_context("spawn")
        own = threads or max(1, (os.cpu_count() or 1) // workers)
        self._arguments: tuple[Any, ...] = (plan.as_elsewhere(), str(staging), own)
        self._processes = [self._started(number) for number in range(workers)]

    def _started(self, number: int) -> _Process:
        here, there = self._context.Pipe()
        process = self._context.Process(
            target=_serve, args=(there, number, *self._arguments), daemon=True, name=f"whence-run-{number}"
        )
        # One thread where sums are to add up in the same order everywhere: OpenMP reads this before torch is imported.
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = str(self._arguments[-1])
        try:
            process.start()
        finally:
            if before is None:
                del os.environ["OMP_NUM_THREADS"]
            else:
                os.environ["OMP_NUM_THREADS"] = before
        there.close()
        return _Process(process, here)

    def submit(self, worker: int, task: Task) -> None:
        try:
            self._processes[worker].pipe.send(task)
        except OSError:
            return  # the process has died, and `wait` reports that

    def wait(self, seconds: float) -> list[Event]:
        pipes = {one.pipe: number for number, one in enumerate(self._processes)}
        events: list[Event] = []
        for pipe in wait(list(pipes), seconds):
            number = pipes[pipe]  # type: ignore[index]
            try:
                events.append(self._processes[number].pipe.recv())
            except (EOFError, OSError):
                events.append(self._replaced(number))
        return events

    def _replaced(self, number: int) -> Died:
        """Start another process in place of one that died, and return the event."""
        gone = self._processes[number]
        gone.process.join(GRACE)
        gone.pipe.close()
        self._processes[number] = self._started(number)
        return Died(number, f"its process ended with code {gone.process.exitcode}")

    def close(self) -> None:
        for one in self._processes:
            one.process.terminate()
        for one in self._processes:
            one.process.join(GRACE)
            if one.process.is_alive():
                one.process.kill()
                one.process.join()
            one.pipe.close()


def _serve(pipe: Connection, number: int, plan: dict[str, Any], staging: str, threads: int) -> None:
    """The work of a process: load the model, then run chunks until the pipe closes because the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the one that hands out chunks decides
    try:
        worker = Worker(Plan.from_dict(plan), Path(staging), f"process {number}", threads)
        pipe.send(Ready(number, worker.hashes, worker.subject.name, worker.subject.generates))
        while True:
            pipe.send(Done(number, worker.run(pipe.recv())))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        text = str(error) if isinstance(error, (ValueError, TypeError, OSError, ImportError)) else repr(error)
        pipe.send(Failed(number, " ".join(text.split())))
