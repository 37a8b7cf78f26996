"""Runs that are killed at random moments, and whether anything is lost: `python tests/support/kills.py --kills 50`.

A run is started as a command, as a user starts it. At a random moment a random process of the run is ended by SIGKILL:
the one that commits, or a worker. A run that ends is started again until it has finished; then its rows are compared
with those of an undisturbed run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet

METHODS = "gae,leave_one_out"


@dataclass
class Tally:
    """What happened to one run."""

    engine: str
    kills_of_driver: int = 0
    kills_of_worker: int = 0
    starts: int = 0
    lost: int = 0
    doubled: int = 0
    different: int = 0


def rows_of(folder: Path) -> dict[tuple[int, str], list[dict[str, object]]]:
    """The rows of all Parquet files of a run by example and method, without the times; `load_run` would refuse some."""
    found: dict[tuple[int, str], list[dict[str, object]]] = {}
    for file in shards(folder):
        for row in pyarrow.parquet.read_table(file).to_pylist():
            row.pop("seconds")
            found.setdefault((row["row"], row["method"]), []).append(row)
    return found


def compared(folder: Path, undisturbed: Path, tally: Tally) -> None:
    """Count the rows that are missing, there twice, or different from those of the undisturbed run."""
    wanted, found = rows_of(undisturbed), rows_of(folder)
    tally.lost += len(wanted.keys() - found.keys())
    tally.doubled += sum(len(rows) - 1 for rows in found.values())
    tally.different += sum(found[key][0] != rows[0] for key, rows in wanted.items() if key in found)


def command(data: Path, folder: Path, engine: str) -> list[str]:
    """The command of a run with two workers on an embedded model."""
    line = [sys.executable, "-m", "whence", "run", str(data), "--model", "planted", "--method", METHODS]
    return [
        *line,
        "--chunk",
        "4",
        "--out",
        str(folder),
        "--threads",
        "1",
        "--engine",
        engine,
        "--workers",
        "2",
        "--wait",
    ]


def started(line: list[str]) -> subprocess.Popen[bytes]:
    """The run in a session of its own, so that all of its processes can be found and ended."""
    with Path(line[line.index("--out") + 1]).with_suffix(".log").open("ab") as log:
        return subprocess.Popen(line, stdout=log, stderr=log, start_new_session=True)


def disturbed(data: Path, folder: Path, engine: str, kills: int, seed: int, seconds: float = 600) -> Tally:
    """A run of which `kills` processes are ended at random moments, until it finishes."""
    chance, tally, ends = random.Random(seed), Tally(engine), time.monotonic() + seconds
    line = command(data, folder, engine)
    process = started(line)
    tally.starts = 1
    try:
        while process.poll() != 0:
            if time.monotonic() > ends:
                raise TimeoutError(f"the run in {folder} did not finish within {seconds} s")
            if process.poll() is not None:
                cleared(process.pid)
                process.wait()
                process, tally.starts = started(line), tally.starts + 1
            killed = tally.kills_of_driver + tally.kills_of_worker
            before = len(shards(folder))
            # One kill of four falls anywhere, also into the start; others wait for a commit, so that the run advances.
            anywhere = chance.random() < 0.25
            moment = time.monotonic() + chance.uniform(0.0, 6.0 if anywhere else 1.2)
            while process.poll() is None and (
                time.monotonic() < moment or (not anywhere and len(shards(folder)) == before)
            ):
                time.sleep(0.01)
                if killed >= kills or time.monotonic() > ends:
                    break
            if killed < kills and process.poll() is None:
                kill_one(process.pid, chance, tally)
    finally:
        cleared(process.pid)
        process.wait()
    return tally


def kill_one(driver: int, chance: random.Random, tally: Tally) -> None:
    """End the driver or one of its workers."""
    workers = [pid for pid in descendants(driver) if is_worker(pid)]
    victim = chance.choice([driver, *workers[:2]])
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
        tally.kills_of_driver += victim == driver
        tally.kills_of_worker += victim != driver


def shards(folder: Path) -> list[Path]:
    return list((folder / "explanations").glob("part-*.parquet"))


def is_worker(pid: int) -> bool:
    """Whether a process runs chunks: one that multiprocessing spawned, or an actor of Ray's."""
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"spawn_main" in line or b"ray::_Actor" in line
    return False


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    parents = dict(_parents())
    found = [pid]
    for known in found:
        found += [child for child, parent in parents.items() if parent == known]
    return found[1:]


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                yield int(entry.name), int(fields[1])


def cleared(session: int) -> None:
    """End the processes that are left of a session that was started here."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ProcessLookupError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session:
                    os.kill(int(entry.name), signal.SIGKILL)


def written_data(file: Path, rows: int) -> Path:
    """Sentences of the planted model as a table."""
    from whence import zoo

    lines = [json.dumps({"id": f"s{n}", "text": e.input}) for n, e in enumerate(zoo.examples("planted", rows, 3))]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50, help="over both engines")
    parser.add_argument("--rows", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("out/kills"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    data = written_data(given.folder / "data.jsonl", given.rows)
    undisturbed = given.folder / f"undisturbed-{time.time_ns()}"
    subprocess.run(command(data, undisturbed, "local"), check=True, capture_output=True)
    done, number, tallies = 0, given.seed, []
    while done < given.kills:
        engine = ("local", "ray")[number % 2]
        folder = given.folder / f"{engine}-{number}-{time.time_ns()}"
        tally = disturbed(data, folder, engine, min(5, given.kills - done), number)
        compared(folder, undisturbed, tally)
        done, number = done + tally.kills_of_driver + tally.kills_of_worker, number + 1
        tallies.append(tally)
        print(json.dumps(vars(tally)), flush=True)
    total = {name: sum(getattr(one, name) for one in tallies) for name in vars(tallies[0]) if name != "engine"}
    print(f"{done} kills: {json.dumps(total)}")
    sys.exit(bool(total["lost"] or total["doubled"] or total["different"]))


if __name__ == "__main__":
    main()
