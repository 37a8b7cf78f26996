"""Long runs of the harness: `python tests/robustness/fuzz.py --minutes 10 [--workers 2] [--area targets]`.

Goes round the areas with new random cases until the time is up. A failure does not end the run: it is made as small as
possible, written down once, and its like are then only counted. At the end come a table, and every failure with the
command that replays it. The exit code is 1 if there was any failure.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import random
import re
import resource
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]

import hypothesis
import torch
from hypothesis import Phase, reproduce_failure, seed, settings

from areas import AREAS, Area, test_of
from outcomes import FAILURES, VERDICTS, Case, Failure, Outcome, outcome

SECONDS = 30.0  # the most that one case may take
CASES = 40  # cases of an area before the next area has its turn
MEMORY = 12 * 2**30  # bytes of address space: a case that wants more fails, instead of the machine


@dataclass
class Found:
    """A failure and what reproduces it."""

    area: str
    outcome: Outcome
    case: str
    blob: str = ""
    times: int = 1

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells one failure from another: its kind, the line of whence, and the beginning of its message."""
        return self.outcome.verdict, self.outcome.where, re.sub(r"\d+", "#", self.outcome.message)[:50]

    def __str__(self) -> str:
        replay, what = "", self.outcome
        if self.blob:
            replay = f"\n    python tests/robustness/fuzz.py --area {self.area} --replay {self.blob}"
        shown = self.case if len(self.case) < 1500 else f"{self.case[:1000]} ... {self.case[-200:]}"
        head = f"{self.area} ({self.times} x) {what.verdict} at {what.where}: {what.message}"
        return f"{head}\n    {shown}{replay}"


@dataclass
class Tally:
    """The counts of a run: cases by area and verdict, and the failures."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: dict[tuple[str, str, str], Found] = field(default_factory=dict)

    def add(self, other: Tally) -> None:
        """Add the counts and failures of another worker."""
        self.counts += other.counts
        for key, found in other.failures.items():
            if key in self.failures:
                self.failures[key].times += found.times
            else:
                self.failures[key] = found

    def table(self) -> str:
        """Cases by area and verdict."""
        head = f"{'area':12}" + "".join(f"{name:>9}" for name in ("cases", *VERDICTS))
        names = [*dict.fromkeys(area for area, _ in self.counts)]
        rows = [(name, [self.counts[name, verdict] for verdict in VERDICTS]) for name in names]
        rows.append(("all", [sum(column) for column in zip(*(row for _, row in rows), strict=True)]))
        return "\n".join([head, *(f"{name:12}" + "".join(f"{n:>9}" for n in (sum(row), *row)) for name, row in rows)])


class Run:
    """One worker's turn: areas in a circle until the time is up."""

    def __init__(self, areas: list[Area], until: float, first_seed: int) -> None:
        self.areas, self.until, self.random, self.tally = areas, until, random.Random(first_seed), Tally()
        self.counting = True  # not while hypothesis makes a failure smaller
        self.last: Failure | None = None

    def __call__(self) -> Tally:
        while True:
            for area in self.areas:
                if time.monotonic() > self.until:
                    return self.tally
                self._turn(area)

    def _turn(self, area: Area) -> None:
        """Some cases of an area; a new failure ends the turn."""
        phases = [Phase.generate, Phase.shrink]
        profile = settings(settings.get_profile("fuzz"), max_examples=CASES, phases=phases)
        self.counting, self.last = True, None
        try:
            seed(self.random.getrandbits(64))(test_of(area, self._judge, profile))()
        except Failure as failure:
            self._keep(area.name, failure.outcome, failure.case, _blob(failure))
        except hypothesis.errors.Flaky:
            if self.last is not None:  # the case failed once, and not again
                self._keep(area.name, self.last.outcome, self.last.case, "")
        except Exception as error:  # a mistake of the harness itself must not end a long run
            broken = Outcome("raw", f"the harness: {type(error).__name__}: {error}"[:500])
            self.tally.counts[area.name, "raw"] += 1
            self._keep(area.name, broken, Case(area.name, "a case that could not be made", lambda: None), "")

    def _judge(self, case: Case) -> None:
        """Count a case; raise for a new failure, so that hypothesis makes it smaller."""
        if time.monotonic() > self.until + 60:
            return  # the time is long up: stop making it smaller
        found = outcome(case, SECONDS)
        if self.counting:
            self.tally.counts[case.area, found.verdict] += 1
        if not found.failed:
            return
        failure = Failure(case, found)
        if self.last is not None and Found("", found, "").key != Found("", self.last.outcome, "").key:
            return  # while one failure is made smaller, another is left for later
        known = self.tally.failures.get(Found(case.area, found, "").key)
        if known is not None and self.counting:
            known.times += 1
        elif found.verdict == "hang":  # too slow to make smaller
            self._keep(case.area, found, case, "")
        elif known is None:
            self.counting, self.last = False, failure
            raise failure

    def _keep(self, area: str, what: Outcome, case: Case, blob: str) -> None:
        found = Found(area, what, case.written, blob)
        if found.key not in self.tally.failures:
            print(f"found: {found}", flush=True)
            self.tally.failures[found.key] = found


def _blob(failure: Failure) -> str:
    """What hypothesis needs to make the case again, from its note on the error."""
    notes = [note for note in getattr(failure, "__notes__", ()) if "reproduce_failure" in note]
    return notes[-1].split(", ")[-1].partition(")")[0].strip("b'\"") if notes else ""


def work(names: list[str], minutes: float, first_seed: int) -> Tally:
    """One worker: a process with one thread and bounded memory."""
    warnings.simplefilter("error")  # as in tests
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    faulthandler.enable()
    return Run([AREAS[name] for name in names], time.monotonic() + 60 * minutes, first_seed)()


def replay(area: str, blob: str) -> None:
    """Run one case again; its failure comes out as an error."""

    def judge(case: Case) -> None:
        print(case)
        found = outcome(case, SECONDS)
        print(f"{found.verdict}: {found.message} [{found.where}]")
        if found.failed:
            raise Failure(case, found)

    test = test_of(AREAS[area], judge, settings.get_profile("fuzz"))
    reproduce_failure(hypothesis.__version__, blob.encode())(test)()


def main() -> int:
    """Read the command line, run, and print the table and the failures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=None, help="of the first worker; drawn anew without it")
    parser.add_argument("--area", action="append", choices=sorted(AREAS), help="only this one; may be repeated")
    parser.add_argument("--replay", help="run the one case that this text stands for")
    given: Any = parser.parse_args()
    names = given.area or list(AREAS)
    if given.replay:
        replay(names[0], given.replay)
        return 0
    first_seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    print(f"fuzzing {', '.join(names)} for {given.minutes:g} minutes, seed {first_seed}", flush=True)
    tally, context = Tally(), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(given.workers, mp_context=context) as pool:
        runs = [pool.submit(work, names, given.minutes, first_seed + number) for number in range(given.workers)]
        for run in runs:
            tally.add(run.result())
    print(tally.table())
    for found in tally.failures.values():
        print(f"\n{found}")
    failed = sum(count for (_, verdict), count in tally.counts.items() if verdict in FAILURES)
    print(f"\n{failed} of {tally.counts.total()} cases failed, in {len(tally.failures)} ways")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
