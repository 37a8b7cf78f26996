"""Runs over data sets, measured: throughput, Ray beside independent processes, overhead, memory, and a cost model.

    python benchmarks/runs.py --data FOLDER        (with sst2/ in it; about 15 minutes in all)

Everything is measured on one machine in one go, so ratios can be compared; seconds cannot. `--only` names one part.
The last part simulates runs of many workers with the constants that were measured, and checks itself on real runs.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import whence
from whence.measure.datasets import read
from whence.runs.shards import read_facts

SENTENCES = 500
METHODS = ("gae", "lrp", "integrated_gradients", "leave_one_out")
WORKERS = (1, 10, 100, 1_000)
MILLIONS = 10


def sentences(data: Path, count: int = SENTENCES) -> list[str]:
    """Sentences of SST-2, of mixed length."""
    return [str(text) for text in read(data / "sst2" / "dev.tsv", count)[0]]


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    found = call()
    return time.perf_counter() - started, found


def throughput(data: Path, folder: Path) -> dict[str, float]:
    """The local engine beside a loop over `explain`, one sentence after the other, on the same model and thread."""
    import torch

    torch.set_num_threads(1)
    subject, texts = whence.load("sst2"), sentences(data)
    whence.explain(subject, texts[0], method="gae")  # the model is known from here on
    found = {}
    for method in ("gae", "leave_one_out"):
        count = len(texts) if method == "gae" else 100
        plan = whence.Plan(subject, texts[:count], [method], folder=folder / f"throughput-{method}")
        ours, run = timed(lambda plan=plan: whence.run(plan, threads=1))
        loop, alone = timed(lambda m=method, c=count: [whence.explain(subject, text, method=m) for text in texts[:c]])
        close = max(float(np.abs(a.scores - b.scores).max()) for a, b in zip(run, alone, strict=True))
        found |= {
            f"{method}: loop / run": loop / ours,
            f"{method}: a second": count / ours,
            f"{method}: differs by": close,
        }
    return found


def scaling(data: Path, folder: Path) -> dict[str, float]:
    """What a second worker gains: on Ray, as a process of ours, and as two runs that know nothing of each other."""
    file = folder / "sentences.jsonl"
    texts = sentences(data)
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    halves = [folder / f"half-{number}.jsonl" for number in (0, 1)]
    for number, half in enumerate(halves):
        half.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[number::2]))
    seconds = {}
    for engine, workers in (("ray", 1), ("ray", 2), ("local", 1), ("local", 2)):
        out = folder / f"{engine}-{workers}"
        _command(file, out, "--engine", engine, "--workers", str(workers)).wait()
        seconds[f"{engine} {workers}"] = whence.load_run(out).summary().seconds
    both = [_command(half, folder / f"alone-{n}") for n, half in enumerate(halves)]
    for process in both:
        process.wait()
    apart = max(whence.load_run(folder / f"alone-{n}").summary().seconds for n in (0, 1))
    gains = {name: seconds[f"{name} 1"] / seconds[f"{name} 2"] for name in ("ray", "local")}
    gains["two apart"] = seconds["local 1"] / apart
    return {
        **{f"gain of {k}": v for k, v in gains.items()},
        "ray / apart": gains["ray"] / gains["two apart"],
        **seconds,
    }


def _command(data: Path, out: Path, *more: str, method: str = "gae", model: str = "sst2") -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "whence", "run", str(data), "--model", model, "--method", method, "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    log = (out.parent / f"{out.name}.log").open("wb")
    return subprocess.Popen([*line, "--chunk", "32", "--out", str(out), *more], stdout=log, stderr=log, env=environment)


def overhead(data: Path, folder: Path) -> dict[str, float]:
    """What a chunk costs beyond its own work, in the process that hands chunks out and commits them."""
    texts = ["a good day"] * 512
    subject = whence.load("planted")
    run = whence.run(whence.Plan(subject, texts, ["random"], chunk=4, folder=folder / "overhead"), threads=1)
    facts = [read_facts(path) for path in run.folder.files()]
    ends = sorted(one.finished for one in facts)
    busy = sum(one.seconds for one in facts[1:])
    size = sum(path.stat().st_size for path in run.folder.files()) / len(texts)
    return {"seconds a chunk": (ends[-1] - ends[0] - busy) / (len(facts) - 1), "bytes a row of 4 features": size}


def memory(data: Path, folder: Path, rows: int = 200_000) -> dict[str, float]:
    """The resident memory of a run over many rows, after every fifth of them."""
    file = folder / "many.jsonl"
    with file.open("w") as lines:
        lines.writelines(f'{{"text": "number {n} is a good day"}}\n' for n in range(rows))
    out = folder / "many"
    process = _command(file, out, "--chunk", "1000", "--no-inputs", method="random", model="planted")
    seen: list[tuple[int, float]] = []
    while process.poll() is None:
        done = 1000 * len(list((out / "explanations").glob("*.parquet")))
        status = Path(f"/proc/{process.pid}/status")
        resident = (
            [line for line in status.read_text().splitlines() if line.startswith("VmRSS")] if status.exists() else []
        )
        if resident:
            seen.append((done, int(resident[0].split()[1]) / 1024))
        time.sleep(0.5)
    assert process.returncode == 0, (out.parent / f"{out.name}.log").read_text()[-500:]
    found = {f"MiB at {share:.0%}": max(m for d, m in seen if d <= share * rows) for share in (0.2, 0.4, 0.6, 0.8, 1.0)}
    return {**found, "rows": float(rows), "seconds": whence.load_run(out).summary().seconds}


def costs(data: Path, folder: Path) -> dict[str, Any]:
    """Seconds of an example by its number of tokens, fitted to chunks of texts of one length each: a + b n + c n^2."""
    import torch

    torch.set_num_threads(1)
    subject = whence.load("sst2")
    words = " ".join(sentences(data, 200)).split()
    found: dict[str, Any] = {}
    for method in METHODS:
        points = []
        for length in (8, 32, 96) if method == "leave_one_out" else (8, 32, 96, 240):
            texts = [" ".join(words[start : start + length]) for start in range(0, 8 * length, length)][:4]
            whence.explain(subject, texts[0], method=method)
            seconds, results = timed(lambda t=texts, m=method: whence.explain(subject, t, method=m))
            points.append((float(np.mean([len(a.features) for a in results])), seconds / len(texts)))
        lengths, taken = np.array(points).T
        terms = np.stack([np.ones_like(lengths), lengths, lengths**2], 1)
        weights = 1 / taken  # relative errors: short texts count as much as long ones
        from scipy.optimize import nnls

        fit, _ = nnls(terms * weights[:, None], taken * weights)
        found[method] = {"points": points, "a": fit[0], "b": fit[1], "c": fit[2]}
    return found


def simulated(chunks: np.ndarray, workers: int, start: float, driver: float) -> float:
    """Seconds of a run: workers that start, take chunks one after the other, and a driver that serves one at a time."""
    ready = [start] * workers
    free = 0.0  # when the driver has served the last request
    end = 0.0
    for seconds in chunks:
        asked = heapq.heappop(ready)
        free = max(free, asked) + driver
        end = max(end, free + seconds)
        heapq.heappush(ready, free + seconds)
    return end


def simulation(data: Path, folder: Path) -> dict[str, Any]:
    """Runs of 10 million sentences on many workers, by constants that are measured here; checked on 1 and 2 workers."""
    constants = overhead(data, folder)
    driver = max(1e-4, constants["seconds a chunk"])
    one = [read_facts(path) for path in whence.load_run(folder / "ray-1").folder.files()]
    chunks = np.array([facts.seconds for facts in one])
    real = {n: whence.load_run(folder / f"ray-{n}").summary().seconds for n in (1, 2)}
    checked = {n: simulated(chunks, n, 0.0, driver) for n in (1, 2)}
    start = _start_up(folder)
    rows = MILLIONS * 10**6
    # chunks of 1,000 sentences, of the mean cost that was measured, varying as those measured did
    per_row = chunks.sum() / sum(facts.examples for facts in one)
    drawn = np.random.default_rng(0).choice(chunks / chunks.mean(), rows // 1_000) * per_row * 1_000
    table = {n: simulated(drawn, n, start, driver) for n in WORKERS}
    return {
        "driver, seconds a chunk": driver,
        "start, seconds": start,
        "seconds a sentence": per_row,
        "simulated / real": {n: checked[n] / real[n] for n in real},
        "hours": {n: seconds / 3600 for n, seconds in table.items()},
        "efficiency": {n: table[1] / seconds / n for n, seconds in table.items()},
        "workers that one driver serves": float(per_row * 1_000 / driver),
        "rows a second that the driver reads": _reading(folder),
    }


def _start_up(folder: Path) -> float:
    """Seconds until a Ray worker is ready: a whole command on one sentence."""
    file = folder / "one.jsonl"
    file.write_text('{"text": "a good day"}\n')
    seconds, _ = timed(lambda: _command(file, folder / "one", "--engine", "ray").wait())
    return seconds


def _reading(folder: Path) -> float:
    """Rows a second of the first pass over the data, which lays out the chunks and takes their digest."""
    from whence.measure.datasets import stream
    from whence.runs.chunks import laid_out

    file = folder / "reading.jsonl"
    with file.open("w") as lines:
        lines.writelines(f'{{"text": "number {n} is a good day at the zoo"}}\n' for n in range(20_000))
    seconds, layout = timed(lambda: laid_out(stream(file), 1_000))
    return float(layout.rows / seconds)


PARTS = {f.__name__: f for f in (throughput, scaling, overhead, memory, costs, simulation)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", choices=PARTS, action="append")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="whence-runs-"))
    try:
        for name in given.only or PARTS:
            if name == "simulation" and not (folder / "ray-2").exists():
                scaling(given.data, folder)
            print(name, json.dumps(PARTS[name](given.data, folder), indent=1, default=float), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
