"""Runs over data sets, measured: throughput, Ray beside independent processes, overhead, memory, and a cost model.

    python benchmarks/runs.py --data FOLDER --out figures.json       (with sst2/ in it; about 25 minutes in all)

Everything is measured on one machine with one thread a worker; what is compared is interleaved, so that ratios can be
trusted where seconds cannot. `--only` names parts. The part `simulation` takes the constants that the other parts wrote
to `--out`: it computes runs of many workers, and is checked by the real runs with 1 and 2 workers of `scaling`.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import resource
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
from whence.measure.datasets import read, stream
from whence.runs.chunks import laid_out
from whence.runs.shards import read_facts

SENTENCES = 500
ROUNDS = 3
FIVE = ["gae", "grad_sam", "attention_x_gradient", "rollout", "attention"]  # methods that share one pass
METHODS = ("gae", "lrp", "integrated_gradients", "leave_one_out")
WORKERS = (1, 10, 100, 1_000)
ROWS = 10_000_000
CHUNK = 500  # rows of a chunk in the simulation
Known = dict[str, Any]  # the figures of other parts


def sentences(data: Path, count: int = SENTENCES) -> list[str]:
    """Sentences of SST-2, of mixed length."""
    return [str(text) for text in read(data / "sst2" / "dev.tsv", count)[0]]


def timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds by the clock, seconds of the processor, and the result of the call."""
    started, worked = time.perf_counter(), time.process_time()
    found = call()
    return time.perf_counter() - started, time.process_time() - worked, found


def middle(values: list[float]) -> float:
    return float(np.median(values))


def throughput(data: Path, folder: Path, known: Known) -> Known:
    """The local engine beside a loop over `explain`, one sentence after the other, on the same model and thread."""
    import torch

    torch.set_num_threads(1)
    subject, texts = whence.load("sst2"), sentences(data)
    whence.explain(subject, texts[0], method="gae")  # the first call finds out about the model
    found: Known = {}
    for methods, count, rounds, size in (
        (["gae"], SENTENCES, 2, 64),
        (["gae"], SENTENCES, 2, 500),
        (["rollout"], SENTENCES, 1, 500),
        (FIVE, SENTENCES, 1, 500),
        (["leave_one_out"], 20, 1, 64),
    ):
        ratios, rates, differences = [], [], []
        for number in range(rounds):
            out = folder / f"throughput-{methods[0]}-{len(methods)}-{size}-{number}"
            plan = whence.Plan(subject, texts[:count], methods, chunk=size, folder=out)
            pairs = [(text, method) for text in texts[:count] for method in methods]
            _, ours, run = timed(lambda plan=plan: whence.run(plan, threads=1))
            _, loop, alone = timed(lambda pairs=pairs: [whence.explain(subject, t, method=m) for t, m in pairs])
            ratios.append(loop / ours)
            rates.append(count / ours)
            differences += [float(np.abs(a.scores - b.scores).max()) for a, b in zip(run, alone, strict=True)]
        found[f"{', '.join(methods)}, chunks of {size}"] = {
            "loop / run": middle(ratios),
            "all rounds": ratios,
            "sentences a second": middle(rates),
            "differs by": max(differences),
        }
    return found


def scaling(data: Path, folder: Path, known: Known) -> Known:
    """What a second worker gains: on Ray, as a process of ours, and as two runs that know nothing of each other."""
    file, texts = folder / "sentences.jsonl", sentences(data, 160)
    _write(file, texts)
    halves = [folder / f"half-{number}.jsonl" for number in (0, 1)]
    for number, half in enumerate(halves):
        _write(half, texts[number::2])
    rounds: list[dict[str, float]] = []
    for turn in range(ROUNDS):
        seconds = {}
        for engine, workers in (("ray", 1), ("ray", 2), ("local", 1), ("local", 2)):
            out = folder / f"{engine}-{workers}-{turn}"
            _command(file, out, "--engine", engine, "--workers", str(workers)).wait()
            seconds[f"{engine} {workers}"] = whence.load_run(out).summary().seconds
        both = [_command(half, folder / f"alone-{turn}-{n}") for n, half in enumerate(halves)]
        for process in both:
            process.wait()
        seconds["apart"] = max(whence.load_run(folder / f"alone-{turn}-{n}").summary().seconds for n in (0, 1))
        rounds.append(seconds)
    gains = {
        "ray": [one["ray 1"] / one["ray 2"] for one in rounds],
        "processes": [one["local 1"] / one["local 2"] for one in rounds],
        "two apart": [one["local 1"] / one["apart"] for one in rounds],
    }
    last = {n: [_facts(folder / f"ray-{n}-{turn}") for turn in range(ROUNDS)] for n in (1, 2)}
    return {
        "gains": {name: middle(values) for name, values in gains.items()},
        "ray / apart": middle([a / b for a, b in zip(gains["ray"], gains["two apart"], strict=True)]),
        "rounds": rounds,
        "chunks": {n: [[one.seconds for one in facts] for facts in runs] for n, runs in last.items()},
    }


def _write(file: Path, texts: list[str]) -> None:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def _facts(folder: Path) -> list[Any]:
    return [read_facts(path) for path in whence.load_run(folder).files()]


def _command(data: Path, out: Path, *more: str, method: str = "gae", model: str = "sst2") -> subprocess.Popen[bytes]:
    line = [sys.executable, "-m", "whence", "run", str(data), "--model", model, "--method", method, "--threads", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (out.parent / f"{out.name}.log").open("wb") as log:
        whole = [*line, "--chunk", "8", "--out", str(out), *more]
        return subprocess.Popen(whole, stdout=log, stderr=log, env=environment)


def overhead(data: Path, folder: Path, known: Known) -> Known:
    """What a chunk costs beyond its own work: in the process that hands out and commits, and in the worker."""
    file, rows, size = folder / "short.jsonl", 2_048, 8
    _write(file, ["a good day"] * rows)
    found: Known = {}
    for engine in ("local", "ray"):
        plan = whence.Plan("planted", file, ["random"], chunk=size, folder=folder / f"overhead-{engine}")
        own = resource.RUSAGE_SELF
        before, began = resource.getrusage(own), time.perf_counter()
        run = whence.run(plan, engine=engine, threads=1)
        after, whole = resource.getrusage(own), time.perf_counter() - began
        facts = _facts(run.folder.path)
        ends = sorted(one.finished for one in facts)
        found[engine] = {
            "seconds between chunks": (ends[-1] - ends[0] - sum(one.seconds for one in facts[1:])) / (len(facts) - 1),
            "seconds of a chunk of 8 rows": middle([one.seconds for one in facts]),
            "whole, seconds": whole,
        }
        if engine == "ray":  # the process that hands out chunks does nothing else
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            found[engine]["processor of the driver, seconds a chunk"] = spent / len(facts)
    found["bytes a row"] = _bytes_a_row(data, folder)
    found["rows a second of a pass over the data"] = _reading(data, folder)
    found["start, seconds"] = _start_up(folder)
    return found


def _bytes_a_row(data: Path, folder: Path) -> float:
    """Bytes of a row of a shard: an SST-2 sentence by one method."""
    texts = sentences(data, 128)
    run = whence.run(whence.Plan("sst2", texts, ["random"], chunk=64, folder=folder / "bytes"), threads=1)
    return sum(path.stat().st_size for path in run.files()) / len(texts)


def _reading(data: Path, folder: Path) -> float:
    """Rows a second of a pass over the data, of which a run makes two: to lay out chunks, and to hand them out."""
    file = folder / "reading.jsonl"
    _write(file, sentences(data) * 40)
    _, seconds, layout = timed(lambda: laid_out(stream(file), CHUNK))
    return float(layout.rows / seconds)


def _start_up(folder: Path) -> dict[str, float]:
    """Seconds of a whole command on one sentence: import, model, and on Ray a cluster."""
    file = folder / "one.jsonl"
    _write(file, ["a good day"])
    return {
        engine: timed(lambda e=engine: _command(file, folder / f"one-{e}", "--engine", e).wait())[0]
        for engine in ("local", "ray")
    }


def memory(data: Path, folder: Path, known: Known, rows: int = 200_000) -> Known:
    """The resident memory of a run over many rows, with its inputs, after every fifth of them."""
    file = folder / "many.jsonl"
    with file.open("w") as lines:
        lines.writelines(f'{{"text": "number {n} is a good day"}}\n' for n in range(rows))
    out, size = folder / "many", 250
    process = _command(file, out, "--chunk", str(size), method="random", model="planted")
    seen: list[tuple[int, float]] = []
    while process.poll() is None:
        done = size * len(list((out / "explanations").glob("*.parquet")))
        status = Path(f"/proc/{process.pid}/status")
        lines_of = status.read_text().splitlines() if status.exists() else []
        seen += [(done, int(line.split()[1]) / 1024) for line in lines_of if line.startswith("VmRSS")]
        time.sleep(0.5)
    assert process.returncode == 0, (out.parent / f"{out.name}.log").read_text()[-500:]
    shares = (0.1, 0.25, 0.5, 0.75, 0.99)
    found: Known = {f"MiB at {share:.0%}": min(seen, key=lambda one: abs(one[0] - share * rows))[1] for share in shares}
    summary = whence.load_run(out).summary()
    assert summary.done == rows and not summary.failed
    return {**found, "MiB at most": max(m for _, m in seen), "rows": rows, "seconds": summary.seconds}


def costs(data: Path, folder: Path, known: Known) -> Known:
    """Processor seconds of an example by its number of tokens n, fitted to chunks of equal length: a + b n + c n^2."""
    import torch
    from scipy.optimize import nnls

    from whence.runs.work import run_chunk

    torch.set_num_threads(1)
    subject = whence.load("sst2")
    words = " ".join(sentences(data, 200)).split()
    found: Known = {}
    for method in METHODS:
        points = []
        for length in (8, 24, 64):
            count = 2 if method in ("leave_one_out", "integrated_gradients") else 8
            texts = [" ".join(words[7 * n : 7 * n + length]) for n in range(count)]
            plan = whence.Plan(subject, texts, [method], folder=folder)
            rows = list(stream(texts))
            run_chunk(plan, rows[:1], subject)
            taken = [timed(lambda p=plan, r=rows: run_chunk(p, r, subject)) for _ in range(2)]
            tokens = np.mean([len(row["features"]) for row in taken[0][2].table.to_pylist()])
            points.append((float(tokens), middle([one[1] for one in taken]) / count))
        lengths, seconds = np.array(points).T
        terms = np.stack([np.ones_like(lengths), lengths, lengths**2], 1)
        fit, _ = nnls(terms / seconds[:, None], np.ones_like(seconds))  # relative errors, so long texts do not rule
        found[method] = {"points": points, "a": fit[0], "b": fit[1], "c": fit[2]}
    found["tokens"] = [len(subject.encode(text).features) for text in sentences(data)]
    return found


# ---- the simulation --------------------------------------------------------------------------------------------------


def simulated(chunks: np.ndarray, workers: int, *, start: float, driver: float) -> float:
    """Seconds of a run: workers begin at `start` and take chunk after chunk; a driver serves one of them at a time."""
    ready = [start] * workers
    free = end = 0.0  # when the driver has served its last request, when the last chunk is done
    for seconds in chunks.tolist():
        free = max(free, heapq.heappop(ready)) + driver
        end = max(end, free + seconds)
        heapq.heappush(ready, free + seconds)
    return end


def simulation(data: Path, folder: Path, known: Known) -> Known:
    """Runs of 10 million sentences by the constants of the other parts; the same simulation beside the real runs."""
    own, real = known["overhead"], known["scaling"]
    between = max(1e-4, own["ray"]["seconds between chunks"])
    reading = 1 / own["rows a second of a pass over the data"]
    checks = {}
    for workers in ("1", "2"):  # the measured seconds of a round's chunks, handed to so many workers
        ratios = [
            simulated(np.array(chunks), int(workers), start=0.0, driver=between) / seconds[f"ray {workers}"]
            for chunks, seconds in zip(real["chunks"][workers], real["rounds"], strict=True)
        ]
        checks[workers] = middle(ratios)
    start = ROWS * reading + own["start, seconds"]["ray"]  # the first pass over the data, then cluster and model
    driver = own["ray"]["processor of the driver, seconds a chunk"] + CHUNK * reading
    tokens = np.array(known["costs"]["tokens"], float)
    chance = np.random.default_rng(0)
    table = {}
    for method in METHODS:
        fit = known["costs"][method]
        rows = fit["a"] + fit["b"] * tokens + fit["c"] * tokens**2
        chunks = chance.choice(rows, (ROWS // CHUNK, CHUNK)).sum(1)
        hours = {n: simulated(chunks, n, start=start, driver=driver) / 3600 for n in WORKERS}
        table[method] = {
            "seconds a sentence": float(rows.mean()),
            "hours": hours,
            "efficiency": {n: float(chunks.sum() / 3600 / n / hours[n]) for n in WORKERS},
            "workers that keep one driver busy": float(chunks.mean() / driver),
        }
    return {
        "simulated / real": checks,
        "start, seconds": start,
        "driver, seconds a chunk": driver,
        "gigabytes": ROWS * own["bytes a row"] / 1e9,
        "methods": table,
    }


PARTS = {f.__name__: f for f in (throughput, scaling, overhead, memory, costs, simulation)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--out", type=Path, default=Path("out/runs.json"), help="what is found; parts add to it")
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="whence-runs-"))
    try:
        for name in given.only or PARTS:
            known = json.loads(given.out.read_text()) if given.out.exists() else {}
            known[name] = PARTS[name](given.data, folder, known)
            given.out.write_text(json.dumps(known, indent=1, default=float))
            print(name, json.dumps(known[name], indent=1, default=float), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
