"""Runs the chunks of a plan here, one after the other: progress, a file to resume from, and how long methods take."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from whence.core import registry
from whence.core.inputs import Input
from whence.measure.plans import Measurements, Plan, joined, run_chunk
from whence.methods.explaining import Settings, explained
from whence.model.masked_runs import MaskedRuns
from whence.model.subject import Subject

MAX_TIMED = 4  # examples on which the time of a method is measured


def run_plan(
    plan: Plan,
    subject: Subject,
    items: Mapping[int, Input],
    *,
    resume: str | Path | None = None,
    resumable: bool = True,
    progress: bool = False,
    doing: str = "evaluating",
    timed: bool = True,
    engine: MaskedRuns | None = None,
) -> tuple[Measurements, np.ndarray]:
    """All chunks of a plan, and the seconds that each method takes per example, where they are `timed`: (method,).

    `resume` names a file to which the numbers of every chunk are added as they are made; a run that was stopped goes
    on from it; not `resumable` is a run whose caller offers no such file. `items` and `engine` are as in `run_chunk`.
    """
    file = ResumeFile(resume, plan) if resume is not None else None
    done = file.results if file is not None else []
    with _told_how_to_resume(plan, done, resume, resumable), _shown(doing, len(plan.examples), progress) as advance:
        advance(sum(result.examples for result in done))
        for chunk in plan.chunks()[len(done) :]:
            done.append(run_chunk(plan, chunk, subject, items, engine))
            if file is not None:
                file.add(done[-1])
            advance(len(chunk))
        seconds = None if file is None else file.seconds
        if seconds is None:
            seconds = seconds_per_example(plan, subject, items) if timed else np.full(len(plan.methods), np.nan)
            if file is not None:
                file.add_seconds(seconds)
    return joined(done), seconds


def seconds_per_example(plan: Plan, subject: Subject, items: Mapping[int, Input]) -> np.ndarray:
    """What an explanation takes by each method alone, measured on a few examples that the run has warmed up: (method,).

    In the run itself methods share passes, so that none of them has a time of its own.
    """
    count = len(plan.examples)
    sample = np.linspace(0, count - 1, min(MAX_TIMED, max(1, count // 8))).astype(int).tolist()
    inputs = [items.get(n) or subject.encode(plan.examples[n].raw, truncate=plan.truncate) for n in sample]
    targets = [plan.examples[n].targets[0] for n in sample]
    seconds = []
    for method in plan.methods:
        spec = registry.resolve("method", method)
        started = time.perf_counter()
        explained(subject, inputs, [spec], targets, Settings(seed=plan.seed))
        seconds.append((time.perf_counter() - started) / len(sample))
    return np.array(seconds)


@contextmanager
def _shown(doing: str, examples: int, progress: bool) -> Iterator[Callable[[int], Any]]:
    """A bar that counts examples, where one is wanted; calling what comes says how many more are done."""
    if not progress:
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(doing, total=examples)
        yield lambda count: bar.advance(task, count)


@contextmanager
def _told_how_to_resume(
    plan: Plan, done: list[Measurements], resume: str | Path | None, resumable: bool
) -> Iterator[None]:
    """Ctrl-C ends with a sentence that says what is kept, and how to go on."""
    try:
        yield
    except BaseException as error:
        if not _interrupted(error):
            raise
        count = f"{sum(result.examples for result in done)} of {len(plan.examples)} examples"
        if not resumable:
            told = f"stopped after {count}; nothing of it is kept"
        elif resume is None:
            told = f"stopped after {count}; a resume file would have kept them: name one with --resume or resume="
        else:
            told = f"stopped after {count}, which {resume} keeps; run the same again with that resume file to go on"
        print(told, file=sys.stderr)
        raise KeyboardInterrupt from error


def _interrupted(error: BaseException | None) -> bool:
    """The error is Ctrl-C, or came of it: an interrupt amid torch's own bookkeeping ends in another error."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


class ResumeFile:
    """A file with a line that says what is measured, a line per chunk that is done, and a line with seconds at the end.

    A file of another plan is refused. A line that was being written when the run was stopped is dropped.
    """

    def __init__(self, file: str | Path, plan: Plan) -> None:
        self.path = Path(file)
        self.results: list[Measurements] = []
        self.seconds: np.ndarray | None = None
        heading = plan.heading()
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        if any(line.strip() for line in lines):
            self._check(lines[0], heading)
            self._read(lines[1:])
        self._write([json.dumps(heading), *map(_as_line, self.results)])
        if self.seconds is not None:
            self.add_seconds(self.seconds)

    def add(self, result: Measurements) -> None:
        """Keep what a chunk came to."""
        self._append(_as_line(result))

    def add_seconds(self, seconds: np.ndarray) -> None:
        """Keep the time of each method."""
        self._append(json.dumps({"seconds": seconds.tolist()}))

    def _check(self, first: str, heading: dict[str, Any]) -> None:
        try:
            known = json.loads(first)
        except ValueError:
            known = None
        if not isinstance(known, dict) or not known.keys() >= {"model", "methods", "metrics"}:
            raise ValueError(
                f"{self.path.name} is no file of an evaluation; name one that was begun by one, or a new one"
            )
        if known != heading:
            raise ValueError(
                f"{self.path.name} holds an evaluation of another kind, of other data or of another model; give its "
                "settings and data again, or name a new file"
            )

    def _read(self, lines: list[str]) -> None:
        for line in lines:
            try:
                found = json.loads(line)
                if "seconds" in found:
                    self.seconds = np.array(found["seconds"], float)
                else:
                    self.results.append(_of_line(found))
            except (ValueError, LookupError, TypeError):  # the line that was being written when the run was stopped
                return

    def _write(self, lines: list[str]) -> None:
        """Replace the file in one step, so that a stop while it is written loses nothing that was kept."""
        whole = self.path.with_name(f"{self.path.name}.whole")
        whole.write_text("\n".join(lines) + "\n", encoding="utf-8")
        whole.replace(self.path)

    def _append(self, line: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _as_line(result: Measurements) -> str:
    """The numbers of a chunk as JSON; what is not a number is null."""
    arrays = {"values": result.values, "curves": result.curves, "curve_counts": result.curve_counts}
    return json.dumps({name: np.where(np.isnan(a), np.array(None), a).tolist() for name, a in arrays.items()})


def _of_line(found: dict[str, Any]) -> Measurements:
    values, curves = np.array(found["values"], float), np.array(found["curves"], float)
    if values.ndim != 4 or curves.ndim != 3:
        raise ValueError("the line is not whole")
    return Measurements(values, curves, np.array(found["curve_counts"], int))
