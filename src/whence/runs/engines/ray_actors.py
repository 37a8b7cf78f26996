"""The engine that runs chunks on Ray, on this machine or on a cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from whence.core import display
from whence.core.wording import in_one_line
from whence.runs.engines.events import Died, Done, Event, Failed, Ready
from whence.runs.plans import Plan
from whence.runs.workers import Task, Worker

OBJECT_STORE = 256 * 2**20  # bytes of a cluster that is started here: rows and names of files go through it, no tables


class RayEngine:
    """Workers are Ray actors, which Ray restarts when they die; they stage tables as files and send none."""

    def __init__(self, plan: Plan, staging: Path, workers: int, threads: int | None, address: str | None) -> None:
        display.need("ray", "ray", "--engine ray")
        import ray

        self._ray, self.workers = ray, workers
        self.name = f"ray, {workers} worker{'s' * (workers != 1)}"
        self._owns_cluster = not ray.is_initialized()
        own = threads or 1
        if self._owns_cluster:
            _connect(ray, workers * own, address)
        needs: dict[str, Any] = {
            "num_cpus": own,
            "num_gpus": int(str(plan.device or "").startswith("cuda")),
        }  # Ray hides other GPUs
        actor: Any = ray.remote(max_restarts=-1, max_task_retries=0, **needs)(_Actor)
        given = plan.as_elsewhere(), str(staging.resolve()), own
        self._actors = [actor.remote(number, *given) for number in range(workers)]
        self._asked = {one.ready.remote(): number for number, one in enumerate(self._actors)}

    def submit(self, worker: int, task: Task) -> None:
        self._asked[self._actors[worker].run.remote(task)] = worker

    def wait(self, seconds: float) -> list[Event]:
        finished, _ = self._ray.wait(list(self._asked), num_returns=len(self._asked), timeout=0)
        if not finished:
            finished, _ = self._ray.wait(list(self._asked), num_returns=1, timeout=seconds)
        return [self._event(reference) for reference in finished]

    def _event(self, reference: Any) -> Event:
        """The event that a finished call of an actor stands for."""
        worker = self._asked.pop(reference)
        try:
            event: Event = self._ray.get(reference)
            return event
        except self._ray.exceptions.RayTaskError as error:
            return Failed(worker, in_one_line(error))
        except self._ray.exceptions.RayError as error:  # raised for the actor, its node, its memory or the object store
            self._asked[self._actors[worker].ready.remote()] = worker  # Ray begins the actor again
            return Died(worker, f"its actor ended: {in_one_line(error)}")

    def close(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        if self._owns_cluster:
            self._ray.shutdown()


class _Actor:
    """A worker in a process of Ray's; errors become events, because Ray would wrap them in pages of text.

    The model is loaded by the first call, not when the actor begins: if loading kills the process, that call
    fails, whereas Ray would silently restart an actor that dies when it begins.
    """

    def __init__(self, number: int, plan: dict[str, Any], staging: str, threads: int) -> None:
        self._number, self._given = number, (plan, staging, threads)
        self._worker: Worker | None = None

    def _loaded(self) -> Worker:
        if self._worker is None:
            plan, staging, threads = self._given
            self._worker = Worker(Plan.from_dict(plan), Path(staging), f"ray {self._number}", threads)
        return self._worker

    def ready(self) -> Event:
        try:
            worker = self._loaded()
            return Ready(self._number, worker.hashes, worker.subject.name, worker.subject.generates)
        except Exception as error:
            return Failed(self._number, _sentence(error))

    def run(self, task: Task) -> Event:
        try:
            return Done(self._number, self._loaded().run(task))
        except Exception as error:
            return Failed(self._number, _sentence(error))


def _sentence(error: Exception) -> str:
    text = str(error) if isinstance(error, (ValueError, TypeError, OSError, ImportError)) else repr(error)
    return " ".join(text.split())


def _connect(ray: Any, processors: int, address: str | None) -> None:
    """Join the cluster at an address, or start one on this machine that claims to have `processors` processors."""
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported that the user did not ask for
        paths = os.pathsep.join(path for path in sys.path if path)  # workers import what can be imported here
        settings |= {"num_cpus": processors, "include_dashboard": False, "object_store_memory": OBJECT_STORE}
        settings["_system_config"] = {"worker_niceness": 0}  # Ray's own default is that of background work
        settings["runtime_env"] = {"env_vars": {"PYTHONPATH": paths}}
    try:
        ray.init(address=address or "local", **settings)
    except ConnectionError as error:
        raise ValueError(f"no Ray cluster answers at {address!r}: {in_one_line(error)}") from error
