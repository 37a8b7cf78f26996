"""What an engine offers to the loop that hands out chunks, and what it tells it."""

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
    """A worker cannot load the model or stage a chunk, and says why; trying again would not help."""

    worker: int
    reason: str


@dataclass(frozen=True)
class Died:
    """A worker is gone, and with it the chunk that it had; the engine has begun another in its place."""

    worker: int
    reason: str


Event = Ready | Done | Failed | Died


class Engine(Protocol):
    """Workers, by their numbers from 0; each takes one chunk at a time, after it was ready."""

    name: str  # in words: "local", "local, 2 processes", "ray, 2 workers"
    workers: int

    def submit(self, worker: int, task: Task) -> None:
        """Give a chunk to a worker that has none."""

    def wait(self, seconds: float) -> list[Event]:
        """What happened since the last call; waits for something to happen, but not longer than this."""

    def close(self) -> None:
        """End all workers."""
