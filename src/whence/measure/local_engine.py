"""The local engine: runs the chunks of a plan one after the other, with progress, a resume file and timing."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Generic, Protocol, TypeVar

import numpy as np

from whence.core import registry
from whence.core.checksums import checksum, sealed, unsealed
from whence.core.inputs import Input
from whence.core.locking import Busy, held
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
    with (
        kept_results(resume, plan.heading(), _to_record, _from_record, "an evaluation") as kept,
        resume_hint(len(plan.examples), kept.results, resume, resumable),
        progress_bar(doing, len(plan.examples), progress) as advance,
    ):
        advance(sum(result.examples for result in kept.results.values()))
        for number, chunk in enumerate(plan.chunks()):
            if number not in kept.results:
                kept.add(number, run_chunk(plan, chunk, subject, items, engine))
                advance(len(chunk))
        if kept.seconds is None:
            seconds = seconds_per_example(plan, subject, items) if timed else np.full(len(plan.methods), np.nan)
            kept.add_seconds(seconds)
    return joined(kept.in_order()), np.array(kept.seconds)


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
    examples: int, done: Mapping[int, HasExamples], resume: str | Path | None, resumable: bool = True
) -> Iterator[None]:
    """A scope in which Ctrl-C prints which results are kept, and how to go on."""
    try:
        yield
    except BaseException as error:
        if not interrupted(error):
            raise
        count = f"{sum(result.examples for result in done.values())} of {examples} examples"
        if not resumable:
            message = f"stopped after {count}; nothing of it is kept"
        elif resume is None:
            message = f"stopped after {count}; a resume file would have kept them: name one with --resume or resume="
        else:
            message = f"stopped after {count}, which {resume} keeps; run the same again with that resume file to go on"
        print(message, file=sys.stderr)
        raise KeyboardInterrupt from error


def interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused the error: an interrupt inside torch may surface as another error."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


class HasExamples(Protocol):
    """The results of a chunk."""

    @property
    def examples(self) -> int: ...


R = TypeVar("R", bound=HasExamples)


class KeptResults(Generic[R]):
    """The results of chunks by their number, each also a line of a file where there is one.

    Every line carries its chunk's number, the checksum of the plan and a checksum of its own: a line that was cut,
    changed, exchanged or copied from another file does not count, and its chunk is run again; of two lines of one chunk
    the first counts. `to_record` and `from_record` turn the results of a chunk into JSON values and back.
    """

    def __init__(
        self, file: IO[bytes] | None, plan: str, to_record: Callable[[R], Any], from_record: Callable[[Any], R]
    ) -> None:
        self._file, self._plan = file, plan
        self._to_record, self._from_record = to_record, from_record
        self.results: dict[int, R] = {}
        self.seconds: np.ndarray | None = None

    def in_order(self) -> list[R]:
        """The results in the order of their chunks."""
        return [self.results[number] for number in sorted(self.results)]

    def add(self, number: int, result: R) -> None:
        """Keep the results of a chunk."""
        self.results[number] = result
        self._append({"chunk": number, "result": self._to_record(result)})

    def add_seconds(self, seconds: np.ndarray) -> None:
        """Keep the time of each method."""
        self.seconds = seconds
        self._append({"seconds": _plain(seconds)})

    def read(self, lines: list[bytes]) -> None:
        """Take over the lines of a file that are whole and of this plan."""
        for line in lines:
            with suppress(ValueError, LookupError, TypeError, RecursionError):
                record = unsealed(json.loads(line))
                if record is None or record["plan"] != self._plan:
                    continue
                if "seconds" in record:
                    self.seconds = np.array(record["seconds"], float)
                elif record["chunk"] not in self.results:
                    self.results[record["chunk"]] = self._from_record(record["result"])

    def _append(self, record: dict[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(sealed({**record, "plan": self._plan})).encode() + b"\n")
            self._file.flush()


@contextmanager
def kept_results(
    path: str | Path | None,
    heading: dict[str, Any],
    to_record: Callable[[R], Any],
    from_record: Callable[[Any], R],
    what: str,
) -> Iterator[KeptResults[R]]:
    """A scope in which the results of chunks are kept, in memory and in the file `path` where one is named.

    A file of another plan is refused, and so is one that another process is writing. `what` names the work in errors.
    """
    plan = checksum(heading)
    if path is None:
        yield KeptResults(None, plan, to_record, from_record)
        return
    name = Path(path).name
    with Path(path).open("a+b") as file, ExitStack() as scope:
        try:
            scope.enter_context(held(file))
        except Busy:
            raise ValueError(f"{name} is in use by another run; wait for its end, or name another file") from None
        file.seek(0)
        content = file.read()
        first, *lines = content.split(b"\n")
        kept = KeptResults(file, plan, to_record, from_record)
        if first.strip():
            _check_heading(name, first, heading, what)
            kept.read(lines)
            file.write(b"" if content.endswith(b"\n") else b"\n")  # ends a line that a stopped run left unfinished
        else:
            file.truncate(0)
            file.write(json.dumps(sealed(heading)).encode() + b"\n")
        file.flush()
        yield kept


def _check_heading(name: str, first: bytes, heading: dict[str, Any], what: str) -> None:
    """Refuse a file that was begun for another plan, or by another program."""
    try:
        known = unsealed(json.loads(first))
    except (ValueError, RecursionError):
        known = None
    if known is None or known.keys() != heading.keys():
        raise ValueError(f"{name} is no file of {what}; name one that was begun by one, or a new one")
    if known != heading:
        raise ValueError(
            f"{name} holds {what} of another kind, of other data or of another model; give its settings and data "
            "again, or name a new file"
        )


def _plain(array: np.ndarray) -> Any:
    """The numbers of an array as JSON holds them; NaN becomes null."""
    return np.where(np.isnan(array), np.array(None), array).tolist()


def _to_record(result: Measurements) -> dict[str, Any]:
    """The numbers of a chunk."""
    arrays = {"values": result.values, "curves": result.curves, "curve_counts": result.curve_counts}
    return {name: _plain(array) for name, array in arrays.items()}


def _from_record(record: dict[str, Any]) -> Measurements:
    """The inverse of `_to_record`."""
    values, curves = np.array(record["values"], float), np.array(record["curves"], float)
    return Measurements(values, curves, np.array(record["curve_counts"], int))
