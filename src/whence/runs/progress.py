"""The progress of a run on stderr: examples per second, time left, failures, and what each worker is running."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from whence.core.wording import counted
from whence.runs.driving import Progress, Stopped
from whence.runs.engines.events import Engine
from whence.runs.folder import RunFolder

EVERY = 10.0  # seconds between two lines where stderr is no terminal


@contextmanager
def shown_progress(
    state: Progress, engine: Engine, folder: RunFolder, wanted: bool
) -> Iterator[Callable[[Progress], None]]:
    """A scope with a function that shows the progress. After a stop, a message says in any case what is kept."""
    try:
        if not wanted:
            yield lambda progress: None
        elif sys.stderr.isatty():
            with _live(engine) as show:
                yield show
        else:
            yield _Lines(state)
    except (KeyboardInterrupt, Stopped):
        print(f"stopped: {folder} keeps {sentence(state)}; run the same plan again to continue", file=sys.stderr)
        raise


def sentence(state: Progress) -> str:
    """How far a run has come, in a sentence."""
    failed = f", {state.failed} failed" if state.failed else ""
    return f"{state.examples} of {counted(state.layout.rows, 'example')}{failed}"


def rate(state: Progress) -> float:
    """Examples per second of this run; 0 before the first is done."""
    return (state.examples - state.before) / max(1e-9, time.monotonic() - state.begun)


def _left(state: Progress) -> str:
    if not rate(state):
        return ""
    seconds = round((state.layout.rows - state.examples) / rate(state))
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"


class _Lines:
    """Progress as a line every `EVERY` seconds, for files and pipes."""

    def __init__(self, state: Progress) -> None:
        self._told = time.monotonic()

    def __call__(self, state: Progress) -> None:
        finished = len(state.done) == len(state.layout.chunks)
        if finished or time.monotonic() - self._told >= EVERY:
            self._told = time.monotonic()
            died = f", {counted(state.deaths, 'worker')} died" if state.deaths else ""
            print(f"{sentence(state)}, {rate(state):.1f} a second, {_left(state)}{died}", file=sys.stderr)


@contextmanager
def _live(engine: Engine) -> Iterator[Callable[[Progress], None]]:
    """A bar and a line per worker, for terminals."""
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=4) as live:
        yield lambda state: live.update(_drawn(state, engine))


def _drawn(state: Progress, engine: Engine) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    head = Table.grid(padding=(0, 2))
    bar = ProgressBar(state.layout.rows, state.examples, width=40)
    head.add_row(bar, f"{sentence(state)}, {rate(state):.1f} a second, {_left(state)}")
    lines = []
    for worker in range(engine.workers):
        chunk = state.working.get(worker)
        doing = "waits" if chunk is None else f"rows {chunk.first} to {chunk.first + chunk.count - 1}"
        lines.append(Text(f"  worker {worker}: {doing}", style="dim"))
    if state.deaths:
        lines.append(Text(f"  {counted(state.deaths, 'worker')} died; their chunks are done again", style="yellow"))
    return Group(head, *lines)
