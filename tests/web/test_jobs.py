"""Cancelling, time limits, clients that go away, and the bounded queue."""

from __future__ import annotations

import time
from typing import Any

import pytest

from whence.core import stopping
from whence.web.jobs import Full, Job, TooMany, Worker
from whence.web.limits import Limits

TEXT = "the dog walked by a not lovely garden and the child sat near that river"
LONG = ["path_gradients(points=1000, steps=1000)"]  # hours, if nobody stops it
SOON = 2.0  # seconds of processor time within which it must be free, however busy the machine is


def cancelled_soon(client: Any, job: str) -> dict[str, Any]:
    """The state of a job that was just cancelled; fails where the work goes on for long."""
    began = time.process_time()
    state = client.ended(job)
    assert time.process_time() - began < SOON
    return dict(state)


@pytest.mark.parametrize(
    ("model", "given", "method"),
    [
        ("planted", {"texts": {"text": TEXT}}, LONG[0]),
        ("planted", {"texts": {"text": TEXT}}, "lime(samples=100000)"),
        ("digits", {"example": 0}, "rise(samples=50000)"),
        ("digits", {"example": 0}, "smoothgrad(samples=10000)"),
    ],
)
def test_cancelling_frees_the_processor_within_two_seconds(client: Any, model: str, given: Any, method: str) -> None:
    """Packages that a method imports when it is first used are there already: an import cannot be stopped."""
    small = method.replace("100000", "10") if method.startswith("lime") else "gae"
    client.ended(client.start(model=model, methods=[small], **given))
    job = client.start(model=model, methods=[method], **given)
    client.running(job)
    time.sleep(0.3)  # so that the method itself is under way
    assert client.delete(f"/api/jobs/{job}").status_code == 200
    assert cancelled_soon(client, job)["state"] == "cancelled"
    after = client.start(model="planted", texts={"text": TEXT}, methods=["gae"])
    assert client.ended(after)["state"] == "done"


def test_what_was_ready_before_a_cancel_stays(client: Any) -> None:
    job = client.start(model="planted", texts={"text": TEXT}, methods=["gae", *LONG])
    while not client.get(f"/api/jobs/{job}").json()["results"]:
        time.sleep(0.02)
    client.delete(f"/api/jobs/{job}")
    assert [result["method"] for result in cancelled_soon(client, job)["results"]] == ["gae"]
    assert client.get(f"/api/jobs/{job}/results/0.json").status_code == 200


def test_a_client_that_goes_away_cancels_its_job(client: Any) -> None:
    job = client.start(model="planted", texts={"text": TEXT}, methods=LONG)
    with client.stream("GET", f"/api/jobs/{job}/events") as events:
        for line in events.iter_lines():
            if line == "event: method":
                break
    assert cancelled_soon(client, job)["state"] == "cancelled"


def test_a_second_watcher_keeps_a_job_alive(client: Any) -> None:
    job = client.start(model="planted", texts={"text": TEXT}, methods=["integrated_gradients(steps=300)"])
    with client.stream("GET", f"/api/jobs/{job}/events") as staying:
        with client.stream("GET", f"/api/jobs/{job}/events") as leaving:
            next(leaving.iter_lines())
        assert [line for line in staying.iter_lines() if line.startswith("event:")][-1] == "event: done"


def test_a_job_that_nobody_asks_about_is_cancelled() -> None:
    """With `get`, the test itself would ask: the worker is looked at instead."""

    def work(job: Job) -> None:
        while True:
            stopping.check()
            time.sleep(0.01)

    worker = Worker(work, Limits(unseen=0.05))
    worker.start()
    job = worker.add(Job("explain", None, "me", 60))
    while not job.ended:
        worker.cancel_unseen()
        time.sleep(0.01)
    worker.stop()
    assert job.state == "cancelled"


def test_a_job_may_not_take_longer_than_allowed(serve: Any) -> None:
    with serve(Limits(seconds=0.5)) as client:
        client.get("/api/models/planted/methods")  # the libraries are there
        state = client.ended(client.start(model="planted", texts={"text": TEXT}, methods=LONG))
        assert state["state"] == "failed" and "0.5 seconds" in state["error"]


def test_a_full_queue_says_so_and_when_to_come_back(serve: Any) -> None:
    with serve(Limits(waiting=2, waiting_per_client=100)) as client:
        jobs = [client.start(model="planted", texts={"text": TEXT}, methods=LONG)]
        client.running(jobs[0])
        jobs += [client.start(model="planted", texts={"text": TEXT}, methods=LONG) for _ in range(2)]
        refused = client.post("/api/jobs", json={"model": "planted", "texts": {"text": TEXT}, "methods": ["gae"]})
        assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
        assert "2 jobs are waiting" in refused.json()["error"]
        for job in reversed(jobs):
            client.delete(f"/api/jobs/{job}")
        assert all(client.ended(job)["state"] == "cancelled" for job in jobs)
        assert client.ended(client.start(model="planted", texts={"text": TEXT}, methods=["gae"]))["state"] == "done"


def test_one_client_may_not_fill_the_queue(serve: Any) -> None:
    with serve(Limits(waiting_per_client=2)) as client:
        jobs = [client.start(model="planted", texts={"text": TEXT}, methods=LONG) for _ in range(2)]
        refused = client.post("/api/jobs", json={"model": "planted", "texts": {"text": TEXT}, "methods": ["gae"]})
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        for job in jobs:
            client.delete(f"/api/jobs/{job}")


def test_a_worker_that_could_not_prepare_works() -> None:
    """A damaged folder, for instance: the jobs that name it say so, and the others run."""

    def prepare() -> None:
        raise RuntimeError("damaged")

    worker = Worker(lambda job: None, Limits(), prepare)
    worker.start()
    job = worker.add(Job("explain", None, "me", 1))
    for _ in range(1000):
        time.sleep(0.005)
        if job.ended:
            break
    worker.stop()
    assert job.state == "done"


def test_clients_are_told_apart() -> None:
    worker = Worker(lambda job: None, Limits(waiting=3, waiting_per_client=1))
    worker.add(Job("explain", None, "one", 1))
    worker.add(Job("explain", None, "two", 1))
    with pytest.raises(TooMany):
        worker.add(Job("explain", None, "one", 1))
    worker.add(Job("explain", None, "three", 1))
    with pytest.raises(Full):
        worker.add(Job("explain", None, "four", 1))


def test_old_jobs_are_forgotten_by_number_and_by_size() -> None:
    import numpy as np

    worker = Worker(lambda job: job.results.append([np.zeros(1000)]), Limits(kept_jobs=3, kept_bytes=20_000))
    worker.start()

    def done() -> Job:
        job = worker.add(Job("explain", None, "me", 1))
        while not job.ended:
            time.sleep(0.001)
        return job

    jobs = [done() for _ in range(10)]
    worker.stop()
    assert worker.load["kept"] <= 4
    assert jobs[-1].size == 8000
    with pytest.raises(LookupError, match="not kept any more"):
        worker.get(jobs[0].id)


def test_an_error_nobody_foresaw_is_one_sentence_and_the_worker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def work(job: Job) -> None:
        raise RuntimeError("secret of the inside")

    worker = Worker(work, Limits())
    worker.start()
    for _ in range(2):
        job = worker.add(Job("explain", None, "me", 1))
        while not job.ended:
            time.sleep(0.001)
        assert job.error == "the server could not do this; its log says why"
    worker.stop()
    assert "secret of the inside" in caplog.text
