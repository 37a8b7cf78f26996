"""The local engine: runs the chunks of a plan one after the other, with progress, a resume file and timing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

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
    """The results of all chunks, and the seconds that each method takes per example, (method,), NaN if not `timed`.

    `resume` names a file to which the numbers of every chunk are added; a run that was stopped goes on from it.
    `resumable` is False where the caller offers no such file. `items` and `engine` are as in `run_chunk`.
    """
    file = ResumeFile(resume, plan.heading(), _as_line, _from_line) if resume is not None else None
    done = file.results if file is not None else []
    with (
        resume_hint(len(plan.examples), done, resume, resumable),
        progress_bar(doing, len(plan.examples), progress) as advance,
    ):
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
    """The seconds of one explanation by each method, (method,), measured on a few examples after the run.

    In the run itself methods share passes, so no method has a time of its own there.
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
def progress_bar(doing: str, examples: int, progress: bool) -> Iterator[Callable[[int], Any]]:
    """A progress bar that counts examples, where one is wanted; yields a function that advances it."""
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
def resume_hint(
    examples: int, done: Sequence[HasExamples], resume: str | Path | None, resumable: bool = True
) -> Iterator[None]:
    """A scope in which Ctrl-C prints which results are kept, and how to go on."""
    try:
        yield
    except BaseException as error:
        if not _interrupted(error):
            raise
        count = f"{sum(result.examples for result in done)} of {examples} examples"
        if not resumable:
            message = f"stopped after {count}; nothing of it is kept"
        elif resume is None:
            message = f"stopped after {count}; a resume file would have kept them: name one with --resume or resume="
        else:
            message = f"stopped after {count}, which {resume} keeps; run the same again with that resume file to go on"
        print(message, file=sys.stderr)
        raise KeyboardInterrupt from error


def _interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused the error: an interrupt inside torch may surface as another error."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


class HasExamples(Protocol):
    """The results of a chunk."""

    @property
    def examples(self) -> int: ...


R = TypeVar("R", bound=HasExamples)


class ResumeFile(Generic[R]):
    """A file with a heading that describes the plan, a line per finished chunk, and a last line with seconds.

    A file of another plan is refused. A line that was being written when the run was stopped is dropped. `to_line` and
    `from_line` write the results of a chunk and read them from parsed JSON.
    """

    def __init__(
        self,
        file: str | Path,
        heading: dict[str, Any],
        to_line: Callable[[R], str],
        from_line: Callable[[dict[str, Any]], R],
        what: str = "an evaluation",
    ) -> None:
        self._what = what
        self.path, self._to_line, self._from_line = Path(file), to_line, from_line
        self.results: list[R] = []
        self.seconds: np.ndarray | None = None
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        if any(line.strip() for line in lines):
            self._check(lines[0], heading)
            self._read(lines[1:])
        self._write([json.dumps(heading), *map(self._to_line, self.results)])
        if self.seconds is not None:
            self.add_seconds(self.seconds)

    def add(self, result: R) -> None:
        """Keep the results of a chunk."""
        self._append(self._to_line(result))

    def add_seconds(self, seconds: np.ndarray) -> None:
        """Keep the time of each method."""
        self._append(json.dumps({"seconds": seconds.tolist()}))

    def _check(self, first: str, heading: dict[str, Any]) -> None:
        try:
            known = json.loads(first)
        except ValueError:
            known = None
        if not isinstance(known, dict) or known.keys() != heading.keys():
            raise ValueError(
                f"{self.path.name} is no file of {self._what}; name one that was begun by one, or a new one"
            )
        if known != heading:
            raise ValueError(
                f"{self.path.name} holds {self._what} of another kind, of other data or of another model; give its "
                "settings and data again, or name a new file"
            )

    def _read(self, lines: list[str]) -> None:
        for line in lines:
            try:
                parsed = json.loads(line)
                if "seconds" in parsed:
                    self.seconds = np.array(parsed["seconds"], float)
                else:
                    self.results.append(self._from_line(parsed))
            except (ValueError, LookupError, TypeError):  # the line that was being written when the run was stopped
                return

    def _write(self, lines: list[str]) -> None:
        """Replace the file in one step, so that a stop while it is written loses nothing that was kept."""
        complete_file = self.path.with_name(f"{self.path.name}.whole")
        complete_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        complete_file.replace(self.path)

    def _append(self, line: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _as_line(result: Measurements) -> str:
    """The numbers of a chunk as JSON; NaN becomes null."""
    arrays = {"values": result.values, "curves": result.curves, "curve_counts": result.curve_counts}
    return json.dumps({name: np.where(np.isnan(a), np.array(None), a).tolist() for name, a in arrays.items()})


def _from_line(parsed: dict[str, Any]) -> Measurements:
    """The inverse of `_as_line`, after JSON was parsed."""
    values, curves = np.array(parsed["values"], float), np.array(parsed["curves"], float)
    if values.ndim != 4 or curves.ndim != 3:
        raise ValueError("the line is not whole")
    return Measurements(values, curves, np.array(parsed["curve_counts"], int))
