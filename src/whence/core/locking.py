"""A lock between processes, which is released when its process ends, in whatever way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

POLL = 0.2  # seconds between two looks at a lock that somebody holds


class Busy(ValueError):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a file. If another process holds it: with `wait`, wait until it is free; else raise `Busy`.

    The operating system releases the lock when its process ends, so a killed run leaves nothing to clear away.
    """
    with path.open("a+b") as file, held(file, wait):
        yield


@contextmanager
def held(file: IO[bytes], wait: bool = False) -> Iterator[None]:
    """Hold the lock of an open file."""
    tries = 0
    while not _taken(file):
        tries += 1
        if not wait and tries > 1:  # `is_locked` of another process holds a free lock for a moment
            raise Busy(f"another process holds {file.name}")
        time.sleep(POLL)
    try:
        yield
    finally:
        _release(file)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file at this moment."""
    with suppress(OSError), path.open("r+b") as file:
        if not _taken(file):
            return True
        _release(file)
    return False


def _taken(file: IO[bytes]) -> bool:
    """Take the lock, if it is free."""
    try:
        import fcntl
    except ImportError:  # Windows locks bytes of a file
        import msvcrt

        file.seek(0)
        with suppress(OSError):
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            return True
        return False
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _release(file: IO[bytes]) -> None:
    try:
        import fcntl
    except ImportError:
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)  # type: ignore[attr-defined]
        return
    fcntl.flock(file, fcntl.LOCK_UN)
