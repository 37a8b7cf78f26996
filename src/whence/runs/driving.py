"""The loop that hands out chunks and commits their shards, the same for every engine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from whence.measure.datasets import Row
from whence.runs.chunks import Chunk, Layout
from whence.runs.engines.events import Died, Done, Engine, Event, Failed, Ready
from whence.runs.folder import RunFolder
from whence.runs.plans import Plan
from whence.runs.shards import Facts
from whence.runs.workers import Staged, Task, staged_failure

LOOK_AHEAD = 4  # chunks per worker that are read ahead; the one with the highest cost is handed out first
MAX_DEATHS = 3  # workers that may die over one chunk
SLOW = 4.0  # times the usual seconds per cost, after which a chunk is also given to an idle worker
PACES = 101  # how many of the last chunks the usual time is taken from
PATIENCE = 20.0  # seconds before a chunk can count as slow
WAIT = 0.5  # seconds between two looks at the clock


class Stopped(ValueError):
    """The run ended early, for a reason that the user can mend; committed shards stay."""


@dataclass
class Progress:
    """How far a run has come."""

    layout: Layout
    done: set[int] = field(default_factory=set)  # chunks whose shards are committed
    examples: int = 0  # of these chunks
    failed: int = 0  # examples among them of which at least one method failed
    begun: float = field(default_factory=time.monotonic)
    before: int = 0  # examples that earlier runs had done
    working: dict[int, Chunk] = field(default_factory=dict)  # worker -> its chunk
    deaths: int = 0

    def add(self, facts: Facts) -> None:
        """Count a committed chunk. Only counts are kept, because a run may have a million chunks."""
        self.done.add(facts.chunk)
        self.examples += facts.examples
        self.failed += facts.failed


@dataclass
class _Running:
    chunk: Chunk
    rows: list[Row]
    workers: dict[int, float]  # worker -> when it was given the chunk


class Driver:
    """Hands out the chunks of a run to the workers of an engine until all are committed."""

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        folder: RunFolder,
        run: str,
        progress: Progress,
        chunks: Iterator[tuple[Chunk, list[Row]]],
        *,
        first: Ready,
        strict: bool,
        report: Callable[[Progress], None],
    ) -> None:
        """`chunks` are those that are not committed yet; every worker must have the model of the `first` one."""
        self.plan, self.engine, self.folder, self.run, self.progress = plan, engine, folder, run, progress
        self._chunks, self._first, self._strict, self._report = chunks, first, strict, report
        self._waiting: dict[int, tuple[Chunk, list[Row]]] = {}  # chunks that were read and not yet given to a worker
        self._running: dict[int, _Running] = {}
        self._deaths: dict[int, int] = {}  # chunk -> workers that died over it
        self._idle: set[int] = set()
        self._paces: deque[float] = deque(maxlen=PACES)  # seconds per cost of the chunks that were done last
        self._deaths_in_a_row = 0  # of workers, since a chunk was committed

    def drive(self, ready: list[Ready]) -> None:
        """Run until every chunk is committed; `ready` are the workers that have loaded the model."""
        for known in ready:
            self._handle(known)
        while len(self.progress.done) < len(self.progress.layout.chunks):
            self._hand_out()
            for event in self.engine.wait(WAIT):
                self._handle(event)
            self._report(self.progress)

    def _hand_out(self) -> None:
        """Give every idle worker a chunk: the costliest that was read ahead, else one that is slow elsewhere."""
        while len(self._waiting) < LOOK_AHEAD * self.engine.workers:
            following = next(self._chunks, None)
            if following is None:
                break
            self._waiting[following[0].number] = following
        for worker in sorted(self._idle):
            if self._waiting:
                number = max(self._waiting, key=lambda n: (self._waiting[n][0].cost, -n))
                chunk, rows = self._waiting.pop(number)
                self._running[number] = _Running(chunk, rows, {})
            else:
                slow = self._overdue(time.monotonic())
                if slow is None:
                    continue
                number = slow
            self._give(worker, self._running[number])

    def _give(self, worker: int, running: _Running) -> None:
        self._idle.discard(worker)
        running.workers[worker] = time.monotonic()
        self.progress.working[worker] = running.chunk
        self.engine.submit(worker, Task(self.run, running.chunk.number, running.chunk.first, running.rows))

    def _overdue(self, now: float) -> int | None:
        """The number of a chunk that one worker has had for far longer than usual; None where there is none."""
        if not self._paces:
            return None
        usual = sorted(self._paces)[len(self._paces) // 2]
        for number, running in self._running.items():
            allowed = max(PATIENCE, SLOW * usual * running.chunk.cost)
            if len(running.workers) == 1 and now - min(running.workers.values()) > allowed:
                return number
        return None

    def _handle(self, event: Event) -> None:
        worker = event.worker
        if isinstance(event, Failed):
            raise Stopped(event.reason)
        if isinstance(event, Ready):
            if event.hashes != self._first.hashes:
                raise Stopped(f"worker {worker} has another model than the first one; give all workers the same files")
            self._idle.add(worker)
        elif isinstance(event, Died):
            self._worker_died(worker, event.reason)
        else:
            self._done(event)

    def _done(self, event: Done) -> None:
        """Commit a chunk, unless another worker was faster."""
        self._idle.add(event.worker)
        self.progress.working.pop(event.worker, None)
        facts, staged = event.staged.facts, Path(event.staged.path)
        running = self._running.pop(facts.chunk, None)
        if running is None:
            staged.unlink(missing_ok=True)
            return
        self._commit(event.staged)
        self._paces.append(facts.seconds / max(1.0, running.chunk.cost))

    def _commit(self, staged: Staged) -> None:
        facts = staged.facts
        if self._strict and facts.failed:
            reason = next(iter(facts.failures), "")
            raise Stopped(f"of rows {facts.first} to {facts.first + facts.examples - 1}, one failed: {reason}")
        self.folder.commit(Path(staged.path))
        self.progress.add(facts)
        self._deaths_in_a_row = 0

    def _worker_died(self, worker: int, reason: str) -> None:
        """A worker died: its chunk waits for another worker; a chunk over which too many died is recorded as failed."""
        self.progress.deaths += 1
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row > MAX_DEATHS * (self.engine.workers + 2):
            raise Stopped(
                f"{self._deaths_in_a_row} workers died one after the other ({reason}); look for a lack of memory, or "
                "take fewer workers"
            )
        self._idle.discard(worker)
        self.progress.working.pop(worker, None)
        for number, running in list(self._running.items()):
            if running.workers.pop(worker, None) is None:
                continue
            self._deaths[number] = self._deaths.get(number, 0) + 1
            if running.workers:
                continue
            del self._running[number]
            if self._deaths[number] < MAX_DEATHS:
                self._waiting[number] = running.chunk, running.rows
                continue
            told = f"a row of its chunk ended {MAX_DEATHS} workers, perhaps for lack of memory ({reason})"
            task = Task(self.run, number, running.chunk.first, running.rows)
            self._commit(staged_failure(self.plan, task, told, self._first.generates, self.folder.staging))
