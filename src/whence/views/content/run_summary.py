"""What every medium says about a RunSummary: progress, facts, time by method, failures, workers, features."""

from __future__ import annotations

import math
from dataclasses import dataclass

from whence.core.run_summaries import FrequentFeature, RunSummary
from whence.core.wording import counted
from whence.views.content.attribution import Facts
from whence.views.text import duration, printable

METHOD_HEADS = ("method", "seconds", "share", "ms/example")
WORKER_HEADS = ("worker", "chunks", "examples", "busy", "per s")
FEATURE_HEADS = ("feature", "share", "score", "examples")
SHOWN_OF_HASH = 16  # letters of the hash of the weights
SHARES = (
    "Share: how much of all absolute scores of an example a feature has; share and score are means over the examples "
    "that it occurs in."
)
TIMES = "The times of all workers added up; a pass that methods share counts for the first of them."


@dataclass(frozen=True)
class MethodTime:
    """The time that one method took."""

    spec: str
    seconds: float
    share: float  # of the time of all methods; NaN where none took any
    each: float  # seconds per example; NaN before anything is done

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as `METHOD_HEADS` name it, printable."""
        return (printable(self.spec), f"{self.seconds:,.3f}", percent(self.share), milliseconds(self.each))


def percent(share: float) -> str:
    """A share as it is written; a dash where it is not defined."""
    return "-" if math.isnan(share) else f"{share:.1%}"


def milliseconds(seconds: float) -> str:
    """A time per example as it is written; a dash where it is not defined."""
    return "-" if math.isnan(seconds) else f"{1000 * seconds:,.2f}"


def rate_text(rate: float) -> str:
    """Examples per second; a dash where they are not defined."""
    return "-" if math.isnan(rate) else f"{rate:,.2f}" if rate < 100 else f"{rate:,.0f}"


def many(number: int, noun: str) -> str:
    """A number with commas between its thousands, and its noun."""
    return f"{number:,} {counted(number, noun).partition(' ')[2]}"


def progress(r: RunSummary) -> tuple[float, float]:
    """Shares of the examples: those that are done, and those of them that failed."""
    whole = max(r.examples, r.done, r.failed, 1)
    return r.done / whole, r.failed / whole


def reading(r: RunSummary) -> str:
    """How far the run has come, how long that took, and whether it is still running."""
    by = counted(len(r.methods), "method")
    if not r.done:
        said = f"None of {many(r.examples, 'example')} is done yet by {by}."
    else:
        failed = f"{r.failed:,} failed" if r.failed else "none failed"
        of = f"{r.done:,} of {many(r.examples, 'example')}"
        said = f"{of} done by {by} in {duration(r.seconds)}; {failed}."
    if r.state == "running":
        left = f"; about {duration(r.seconds_left)} left" if r.done else ""
        return f"{said} The run goes on{left}."
    return f"{said} The run was stopped before its end." if r.state == "stopped" else said


def facts(r: RunSummary) -> Facts:
    """What every medium says of the run, printable."""
    found = [("state", r.state), ("model", r.model), ("weights", _short(r.weights)), ("data", r.data)]
    found += [("engine", r.engine), ("metrics", ", ".join(r.metrics)), ("seed", str(r.seed))]
    found += [("chunks", f"{r.chunks_done:,} of {r.chunks:,}")]
    if r.done:
        found.append(("rate", f"{rate_text(r.rate)} examples per second"))
    if r.failed:
        found.append(("failed", f"{many(r.failed, 'example')} of which at least one method failed"))
    found.append(("versions", ", ".join(f"{name} {version}" for name, version in (r.versions or {}).items())))
    found += [("note", note) for note in dict.fromkeys(r.notes)]
    return [(label, printable(text)) for label, text in found if text]


def _short(weights: str) -> str:
    """The first letters of the hash of the weights, which tell models apart; a saved summary holds all of them."""
    return weights if len(weights) <= SHOWN_OF_HASH else f"{weights[:SHOWN_OF_HASH]}…"


def method_times(r: RunSummary) -> list[MethodTime]:
    """The time of every method, in the order of the plan."""
    total = sum(r.method_seconds)
    return [
        MethodTime(method, seconds, _ratio(seconds, total), _ratio(seconds, r.done))
        for method, seconds in zip(r.methods, r.method_seconds, strict=True)
    ]


def failure_rows(r: RunSummary, most: int) -> tuple[list[tuple[str, int]], str]:
    """Reasons with their examples, the most frequent first, and a sentence on those that are left out."""
    ordered = sorted(r.failures.items(), key=lambda failure: -failure[1])
    rest = ordered[most:]
    examples = many(sum(count for _, count in rest), "example")
    left_out = f"{many(len(rest), 'other reason')}, in {examples}, {'is' if len(rest) == 1 else 'are'} not shown."
    return [(printable(reason), count) for reason, count in ordered[:most]], left_out if rest else ""


def worker_rows(r: RunSummary, most: int) -> tuple[list[tuple[str, ...]], str]:
    """Workers as `WORKER_HEADS` name them, and a sentence on those that are left out; none where there is only one."""
    rest = len(r.workers[most:])
    rows: list[tuple[str, ...]] = [
        (
            printable(worker.name),
            f"{worker.chunks:,}",
            f"{worker.examples:,}",
            duration(worker.seconds),
            rate_text(_ratio(worker.examples, worker.seconds)),
        )
        for worker in r.workers[:most]
    ]
    left_out = f"{many(rest, 'further worker')} {'is' if rest == 1 else 'are'} not shown." if rest else ""
    return (rows, left_out) if len(r.workers) > 1 else ([], "")


def features_by_method(r: RunSummary, most: int) -> dict[str, list[FrequentFeature]]:
    """The frequent features of every method that has some, those with the largest shares first."""
    found: dict[str, list[FrequentFeature]] = {}
    for feature in r.features:
        found.setdefault(printable(feature.method), []).append(feature)
    return {method: sorted(own, key=lambda one: -one.share)[:most] for method, own in found.items()}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
