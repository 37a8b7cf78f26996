"""Jobs: the state of each, the bounded queue in which they wait, and the one thread that does their work."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from whence.core import stopping
from whence.web.inputs import Gone
from whence.web.limits import Limits

LOG = logging.getLogger("whence.web")
FORESEEN = (ValueError, TypeError, OSError, ImportError, LookupError)  # errors that are sentences for the user
PAUSE = 1.0  # seconds before libraries are imported: importing slows down answers, and the page comes first
ENDED = ("done", "cancelled", "failed")


class Full(RuntimeError):
    """The queue takes no more jobs."""


class TooMany(RuntimeError):
    """One client has too many jobs under way."""


@dataclass(eq=False)
class Job:
    """One piece of work: what was asked for, its state and events, and its results."""

    kind: str  # "explain", "attention" or "measure"
    asked: Any
    client: str
    seconds: float  # that it may run
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    state: str = "waiting"  # then "running", then one of ENDED
    error: str = ""
    results: list[Any] = field(default_factory=list)
    facts: list[dict[str, Any]] = field(default_factory=list)  # one per result
    about: dict[str, Any] = field(default_factory=dict)  # prediction, features, truth
    events: list[dict[str, Any]] = field(default_factory=list)
    watchers: int = 0
    seen: float = field(default_factory=time.monotonic)
    began: float = 0.0
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _wakers: set[Callable[[], None]] = field(default_factory=set)

    @property
    def ended(self) -> bool:
        """Whether the job has ended, so that no more events come."""
        return self.state in ENDED

    @property
    def late(self) -> bool:
        """Whether the job has run for longer than it may."""
        return bool(self.began) and time.monotonic() > self.began + self.seconds

    def unwanted(self) -> bool:
        """Whether its work shall stop: it was cancelled, or its time is up."""
        return self._cancelled.is_set() or self.late

    def cancel(self) -> None:
        """Ask the work to stop."""
        self._cancelled.set()

    def tell(self, event: str, **facts: Any) -> None:
        """Add an event and wake those who wait for one."""
        with self._lock:
            self.events.append({"event": event, **facts})
            wakers = list(self._wakers)
        for wake in wakers:
            wake()

    def watch(self) -> tuple[asyncio.Event, Callable[[], None]]:
        """An asyncio event that is set when the job has news, and a function that ends the watching."""
        loop, happened = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(happened.set)

        with self._lock:
            self._wakers.add(wake)
            self.watchers += 1

        def leave() -> None:
            with self._lock:
                self._wakers.discard(wake)
                self.watchers -= 1
            self.seen = time.monotonic()

        return happened, leave

    @property
    def size(self) -> int:
        """Roughly the bytes of the results."""
        return sum(map(bytes_of, self.results))


def bytes_of(value: Any) -> int:
    """The bytes of all arrays inside a result."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(map(bytes_of, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(bytes_of, value))
    return bytes_of(vars(value)) if hasattr(value, "__dataclass_fields__") else 0


def sentence(error: BaseException) -> str:
    """The message of an error on one line."""
    text = " ".join(str(error.args[0] if isinstance(error, KeyError) and error.args else error).split())
    return text[:600] or type(error).__name__


Work = Callable[[Job], None]


class Worker:
    """Does jobs one after the other, in a thread of its own: models are lent to one at a time."""

    def __init__(self, work: Work, limits: Limits, prepare: Callable[[], None] | None = None) -> None:
        self._work, self._limits, self._prepare = work, limits, prepare
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._taken = 2.0  # seconds that a job takes, a running mean
        self._thread = threading.Thread(target=self._run, name="whence-worker", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Cancel everything and wait for the thread."""
        with self._changed:
            self._stopping = True
            for job in self._jobs.values():
                job.cancel()
            self._changed.notify_all()
        self._thread.join(timeout=10)

    def add(self, job: Job) -> Job:
        """Put a job into the queue, unless the queue or the client has too many."""
        with self._changed:
            unfinished = [other for other in self._jobs.values() if not other.ended]
            if sum(other.client == job.client for other in unfinished) >= self._limits.waiting_per_client:
                raise TooMany(
                    f"{self._limits.waiting_per_client} of your jobs are under way, which is the limit; "
                    "wait until one of them has ended, or cancel one"
                )
            if len(self._waiting) >= self._limits.waiting:
                raise Full(f"{self._limits.waiting} jobs are waiting, which is the limit; try again later")
            self._jobs[job.id] = job
            self._waiting.append(job)
            self._forget()
            job.tell("waiting", ahead=len(unfinished))
            self._changed.notify_all()
        return job

    def get(self, name: str) -> Job:
        """The job of this name, which now counts as seen."""
        with self._changed:
            job = self._jobs.get(name)
        if job is None:
            raise Gone("there is no such job, or it is not kept any more; run it again")
        job.seen = time.monotonic()
        return job

    def cancel(self, job: Job) -> None:
        """Stop a job: at once where it waits, soon where it runs."""
        job.cancel()
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                self._end(job, "cancelled")

    @property
    def patience(self) -> int:
        """Seconds after which a full queue may have room."""
        with self._changed:
            return max(1, min(600, round(self._taken * (1 + len(self._waiting) / 4))))

    @property
    def load(self) -> dict[str, int]:
        """How many jobs wait, run and are kept."""
        with self._changed:
            running = sum(job.state == "running" for job in self._jobs.values())
            return {"waiting": len(self._waiting), "running": running, "kept": len(self._jobs)}

    def cancel_unseen(self) -> None:
        """Cancel jobs that nobody has watched or asked about for a while."""
        now = time.monotonic()
        with self._changed:
            unseen = [
                job
                for job in self._jobs.values()
                if not job.ended and not job.watchers and now > job.seen + self._limits.unseen
            ]
        for job in unseen:
            self.cancel(job)

    def _forget(self) -> None:
        """Drop the oldest ended jobs, where there are too many or their results take too much room."""
        ended = [job for job in self._jobs.values() if job.ended]
        size = sum(job.size for job in ended)
        while ended and (len(ended) > self._limits.kept_jobs or size > self._limits.kept_bytes):
            oldest = ended.pop(0)
            size -= oldest.size
            del self._jobs[oldest.id]

    def _prepared(self) -> None:
        """Prepare after `PAUSE`, or once a job waits. Errors are only logged: jobs that need what failed raise them."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._stopping, PAUSE)
        if self._prepare is None or self._stopping:
            return
        try:
            self._prepare()
        except Exception:
            LOG.exception("the first model could not be loaded")

    def _run(self) -> None:
        self._prepared()
        while True:
            with self._changed:
                while not self._waiting and not self._stopping:
                    self._changed.wait()
                if self._stopping:
                    return
                job = self._waiting.popleft()
                job.state, job.began = "running", time.monotonic()
            self._do(job)
            with self._changed:
                self._taken += (time.monotonic() - job.began - self._taken) / 8

    def _do(self, job: Job) -> None:
        """Do one job; whatever happens, it ends with one event and one sentence."""
        job.tell("started")
        try:
            with stopping.stoppable(job.unwanted):
                self._work(job)
            self._end(job, "done")
        except stopping.Stopped:
            if job.late:
                self._end(job, "failed", f"the time of {job.seconds:g} seconds is up; choose fewer or cheaper methods")
            else:
                self._end(job, "cancelled")
        except FORESEEN as error:
            self._end(job, "failed", sentence(error))
        except Exception:
            LOG.exception("a job failed")
            self._end(job, "failed", "the server could not do this; its log says why")

    def _end(self, job: Job, state: str, error: str = "") -> None:
        job.error, job.state = error, state
        job.tell(state, **({"error": error} if error else {}))
