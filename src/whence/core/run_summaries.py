"""The summary of a run over a data set: how far it has come, how long it took, what failed. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whence.core.inputs import check_axis
from whence.core.results import Result
from whence.core.scoreboards import Scoreboard
from whence.core.storage import Storable, floats, read_only

STATES = ("running", "stopped", "finished")
LARGEST = 2**53  # largest count or time: the whole numbers up to it are exact as floats


@dataclass(frozen=True, eq=False)
class WorkerShare(Storable):
    """What one worker of a run did."""

    name: str  # "process 0", "ray 1"; "here" where the run had no workers of its own
    chunks: int
    examples: int
    seconds: float  # seconds of work, without loading the model

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_amounts(chunks=self.chunks, examples=self.examples, seconds=self.seconds)


@dataclass(frozen=True, eq=False)
class FrequentFeature(Storable):
    """A feature that occurs in several examples of a run, by one method."""

    method: str
    feature: str  # a token or piece, as the model's tokenizer writes it
    count: int  # examples in which the feature occurs
    score: float  # mean of its scores, those of one example added up
    share: float  # mean share of the absolute scores of its example, 0 to 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_amounts(count=self.count, share=self.share)


@dataclass(frozen=True, eq=False, repr=False)
class RunSummary(Result):
    """A run over a data set: its plan in short, how far it has come, time by method, failures by reason."""

    name: str  # of the folder
    state: str  # one of STATES
    model: str
    weights: str  # the hash of all weights; "" where the run has not loaded the model yet
    data: str  # the files in words, or "in memory"
    methods: tuple[str, ...]  # specs of methods, then of experiments
    metrics: tuple[str, ...]
    seed: int
    engine: str  # "local", "local, 2 processes", "ray, 2 workers"
    examples: int  # of the data
    done: int  # examples whose results are kept, failed ones among them
    failed: int  # examples of which at least one method failed
    chunks: int
    chunks_done: int
    seconds: float  # from the first to the last result that is kept, pauses left out
    method_seconds: tuple[
        float, ...
    ]  # of each method over all examples; a shared pass counts for the first that needs it
    failures: dict[str, int]  # reason -> examples
    workers: tuple[WorkerShare, ...]
    features: tuple[FrequentFeature, ...] = ()  # those with the largest shares, method by method
    board: Scoreboard | None = None  # metrics over the examples that are done, where metrics were asked for
    versions: dict[str, str] | None = None  # of whence and of the libraries that the numbers depend on
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state not in STATES:
            raise ValueError(f"the state of a run is one of {', '.join(STATES)}, not {self.state!r}")
        check_axis("method_seconds", "method", len(self.method_seconds), len(self.methods))
        counts = ("examples", "done", "failed", "chunks", "chunks_done", "seconds")
        _check_amounts(**{name: getattr(self, name) for name in counts})
        for seconds in self.method_seconds:
            _check_amounts(method_seconds=seconds)
        for count in self.failures.values():
            _check_amounts(failures=count)

    def __repr__(self) -> str:
        return f"RunSummary({self.name}: {self.state}, {self.done} of {self.examples} examples, {self.failed} failed)"

    @property
    def rate(self) -> float:
        """Examples per second; NaN before anything is done."""
        return self.done / self.seconds if self.seconds > 0 else float("nan")

    @property
    def seconds_left(self) -> float:
        """How long the rest takes at the rate so far; NaN before anything is done."""
        return (self.examples - self.done) / self.rate if self.done else float("nan")


@dataclass(frozen=True, eq=False, repr=False)
class Verification(Result):
    """Whether a sample of a run comes out the same when it is computed again."""

    name: str  # of the folder
    model: str
    chunks: tuple[int, ...]  # numbers of the chunks that were computed again
    rows: int  # results compared
    equal: int  # those that are the same to the bit
    differences: np.ndarray  # (row,): the largest difference of a number, relative to the largest score of its row
    tolerance: float  # up to which different processors, threads or versions may differ
    reasons: tuple[str, ...] = ()  # what differs here from where the run was made: versions, threads, weights
    damaged: tuple[str, ...] = ()  # one sentence for each damaged shard
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("differences", read_only(floats("differences", self.differences)))
        if self.differences.ndim != 1 or (self.differences < 0).any():
            raise ValueError("differences must be a list of numbers that are not negative, one per row")
        check_axis("differences", "row", len(self.differences), self.rows)
        _check_amounts(rows=self.rows, equal=self.equal, tolerance=self.tolerance)

    def __repr__(self) -> str:
        return f"Verification({self.name}: {self.verdict})"

    @property
    def verdict(self) -> str:
        """Either "the same to the bit", "the same within 1e-05", or "different"."""
        if (
            self.damaged
            or not self.rows
            or (self.differences > self.tolerance).any()
            or np.isnan(self.differences).any()
        ):
            return "different"
        return "the same to the bit" if self.equal == self.rows else f"the same within {self.tolerance:g}"


def _check_amounts(**amounts: float) -> None:
    """An error for a count or a time that is negative, not finite, or beyond all that can be counted."""
    for name, amount in amounts.items():
        if not 0 <= amount <= LARGEST:
            raise ValueError(f"{name} must lie between 0 and {LARGEST}, got {amount}")
