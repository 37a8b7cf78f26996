"""The protocol of engines, and the events that an engine reports to the loop that hands out chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from whence.runs.workers import Staged, Task


@dataclass(frozen=True)
class Ready:
    """A worker has loaded its model."""

    worker: int
    hashes: dict[str, str]
    model: str  # its name
    generates: bool


@dataclass(frozen=True)
class Done:
    """A worker has staged a chunk."""

    worker: int
    staged: Staged


@dataclass(frozen=True)
class Failed:
    """A worker cannot load the model or stage a chunk, for the `reason` given; trying again would not help."""

    worker: int
    reason: str


@dataclass(frozen=True)
class Died:
    """A worker died, and the chunk that it ran is lost; the engine has started another worker in its place."""

    worker: int
    reason: str


Event = Ready | Done | Failed | Died


class Engine(Protocol):
    """Workers, numbered from 0; each takes one chunk at a time, once it has reported `Ready`."""

    name: str  # in words: "local", "local, 2 processes", "ray, 2 workers"
    workers: int

    def submit(self, worker: int, task: Task) -> None:
        """Give a chunk to a worker that has none."""

    def wait(self, seconds: float) -> list[Event]:
        """The events since the last call; waits for one, but no longer than `seconds`."""

    def close(self) -> None:
        """End all workers."""
