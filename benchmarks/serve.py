"""`whence serve` under load: how soon it answers, whether anything is lost, and how its memory grows.

    .venv/bin/python benchmarks/serve.py --requests 1000 --clients 8

A server of its own is started on a free port of this machine and stopped at the end. Requests are mixed: texts and
pictures that are explained, runs that are cancelled, pages, files, uploads, and requests that must be refused.
"""

from __future__ import annotations

import argparse
import io
import json
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

TEXT = "the dog walked by a not lovely garden and the child sat near that river"
LONG = "path_gradients(points=1000, steps=1000)"  # takes hours unless it is cancelled
PATIENCE = 60.0  # seconds after which a request counts as lost
WARM = 0.2  # share of the requests after which memory is measured for the first time


@contextmanager
def server() -> Iterator[tuple[str, int, float]]:
    """A server in a process of its own: its address, its process, and when it was started."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "whence", "serve", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = next(word for word in process.stdout.readline().split() if word.startswith("http"))
        yield address.rstrip("/"), process.pid, began
    finally:
        process.terminate()
        process.communicate(timeout=20)


def start_times(address: str, began: float) -> dict[str, float]:
    """Seconds from the start of the process to the first answer, and to the first method that is shown."""
    with httpx.Client(base_url=address, timeout=PATIENCE) as client:
        assert client.get("/").status_code == 200
        first_answer = time.perf_counter() - began
        assert client.get("/api/models/sst2").status_code == 200
        form = time.perf_counter() - began
        job = _started(client, model="sst2", texts={"text": "a masterful film"}, methods=["leave_one_out"])
        _ended(client, job)
        assert client.get(f"/api/jobs/{job}/results/0/fragment").status_code == 200
        return {"first answer": first_answer, "form": form, "first method": time.perf_counter() - began}


def memory(process: int) -> float:
    """Megabytes that a process holds."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return float(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


# ---- the requests ----------------------------------------------------------------------------------------------------


def _started(client: httpx.Client, **wanted: Any) -> str:
    """The name of a new job; where the queue is full, wait as long as the server says."""
    for _ in range(100):
        answer = client.post("/api/jobs", json=wanted)
        if answer.status_code == 202:
            return str(answer.json()["job"])
        assert answer.status_code in (429, 503), answer.text
        time.sleep(min(float(answer.headers["retry-after"]), 2.0))
    raise AssertionError("the queue stays full")


def _ended(client: httpx.Client, job: str) -> str:
    """How a job ended, as its events tell."""
    with client.stream("GET", f"/api/jobs/{job}/events") as events:
        told = [json.loads(line[6:])["event"] for line in events.iter_lines() if line.startswith("data: ")]
    return str(told[-1])


def _explain(client: httpx.Client, **wanted: Any) -> None:
    job = _started(client, **wanted)
    assert _ended(client, job) == "done"
    assert client.get(f"/api/jobs/{job}/results/0.json").json()["$record"] == "Attribution"
    assert client.get(f"/api/jobs/{job}/results/0/fragment").status_code == 200


def text(client: httpx.Client, number: int) -> None:
    """A text, by two methods."""
    words = TEXT.split()[: 4 + number % 10]
    _explain(client, model="planted", texts={"text": " ".join(words)}, methods=["gae", "leave_one_out"])


def picture(client: httpx.Client, number: int) -> None:
    """A picture that is sent, by one method."""
    from PIL import Image

    drawn = Image.fromarray(np.random.default_rng(number).integers(0, 255, (28, 28), dtype=np.uint8))
    file = io.BytesIO()
    drawn.save(file, "PNG")
    sent = client.post("/api/pictures", content=file.getvalue()).json()["picture"]
    _explain(client, model="digits", picture=sent, methods=["gae"])


def attention(client: httpx.Client, number: int) -> None:
    """All attention of a text."""
    job = _started(client, model="planted", kind="attention", texts={"text": TEXT})
    assert _ended(client, job) == "done"


def cancelled(client: httpx.Client, number: int) -> None:
    """A run of hours that is cancelled."""
    job = _started(client, model="planted", texts={"text": TEXT}, methods=[LONG])
    client.delete(f"/api/jobs/{job}")
    assert _ended(client, job) == "cancelled"


def left(client: httpx.Client, number: int) -> None:
    """A run of hours whose client goes away."""
    job = _started(client, model="planted", texts={"text": TEXT}, methods=[LONG])
    with client.stream("GET", f"/api/jobs/{job}/events") as events:
        next(events.iter_lines())


def pages(client: httpx.Client, number: int) -> None:
    """The page and what it fetches."""
    for path in ("/", "/static/app.js", "/assets/style.css", "/api/models", "/api/models/planted"):
        assert client.get(path).status_code == 200


def refused(client: httpx.Client, number: int) -> None:
    """Requests that must be refused, with a sentence."""
    wrong = [{"model": "/etc"}, {"model": "planted", "methods": ["nothing"]}, {"model": 3}, {}]
    answer = client.post("/api/jobs", json=wrong[number % len(wrong)])
    assert answer.status_code in (404, 413, 422) and answer.json()["error"]
    assert client.post("/api/jobs", json={}, headers={"origin": "https://evil.example"}).status_code == 403


KINDS: tuple[Callable[[httpx.Client, int], None], ...] = (
    *(text, pages, picture, refused, text, pages, cancelled, text, attention, left),
)


@dataclass
class Outcome:
    """What a load of requests led to: answers, losses, memory."""

    seconds: float
    answered: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)  # megabytes: when warm, half way, at the end


def load(address: str, process: int, requests: int, clients: int) -> Outcome:
    """Send so many mixed requests from so many clients at a time."""
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(requests):
        waiting.put(number)
    found, lock = Outcome(0.0), threading.Lock()
    marks = {int(requests * share) for share in (WARM, 0.6, 1.0)}

    def work() -> None:
        with httpx.Client(base_url=address, timeout=PATIENCE) as client:
            while True:
                try:
                    number = waiting.get_nowait()
                except queue.Empty:
                    return
                kind, began = KINDS[number % len(KINDS)], time.perf_counter()
                try:
                    kind(client, number)
                    error = ""
                except Exception as problem:  # whatever went wrong, the request is lost and counted
                    error = f"{kind.__name__}: {problem!r}"
                with lock:
                    found.times.append(time.perf_counter() - began)
                    found.answered[kind.__name__] += not error
                    found.lost += [error] if error else []
                    if len(found.times) in marks:
                        found.memory.append(memory(process))

    began = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.seconds = time.perf_counter() - began
    return found


def main() -> None:
    """Start a server, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8)
    given = parser.parse_args()
    with server() as (address, process, began):
        for what, seconds in start_times(address, began).items():
            print(f"{what} after {seconds:.2f} s")
        found = load(address, process, given.requests, given.clients)
        with httpx.Client(base_url=address, timeout=PATIENCE) as client:
            for _ in range(100):
                left_over = client.get("/api/load").json()
                if not left_over["waiting"] + left_over["running"]:
                    break
                time.sleep(0.1)
    p50, p95 = np.percentile(found.times, [50, 95])
    answered = sum(found.answered.values())
    print(f"{answered} of {given.requests} answered by {given.clients} clients in {found.seconds:.0f} s")
    print(f"lost: {len(found.lost)}", *found.lost[:5], sep="\n  ")
    print(f"seconds of a request, with its run: median {p50:.2f}, 95 % below {p95:.2f}")
    print("memory of the server in MB:", ", ".join(f"{megabytes:.0f}" for megabytes in found.memory))
    print(f"afterwards: {left_over}")
    sys.exit(bool(found.lost))


if __name__ == "__main__":
    main()
