"""A server on a free port of this machine, in a thread of its own, for the tests of a module."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from whence.web.app import create
from whence.web.catalogue import Catalogue
from whence.web.limits import Limits
from whence.web.server import configured, listening


class Client(httpx.Client):
    """A client of a server that runs, with the few steps that most tests take."""

    def start(self, **wanted: Any) -> str:
        """Start a job and give its name."""
        answer = self.post("/api/jobs", json=wanted)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["job"])

    def ended(self, job: str, seconds: float = 60) -> dict[str, Any]:
        """The state of a job once it has ended."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            state = self.get(f"/api/jobs/{job}").json()
            if state["state"] in ("done", "cancelled", "failed"):
                return dict(state)
            time.sleep(0.02)
        raise AssertionError(f"the job has not ended: {state}")

    def running(self, job: str) -> None:
        """Wait until the job runs."""
        for _ in range(3000):
            if self.get(f"/api/jobs/{job}").json()["state"] == "running":
                return
            time.sleep(0.01)
        raise AssertionError("the job does not run")


@contextmanager
def served(limits: Limits | None = None, catalogue: Catalogue | None = None, **options: Any) -> Iterator[Client]:
    """A client of a server that is stopped afterwards."""
    socket = listening("127.0.0.1", 0, False)
    app = create(catalogue or Catalogue(), limits, **options)
    server = configured(app, limits or Limits())
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        with Client(base_url=f"http://127.0.0.1:{socket.getsockname()[1]}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A server with the usual limits."""
    with served() as one:
        yield one


@pytest.fixture(scope="session")
def serve() -> Callable[..., Any]:
    """Servers with limits of their own."""
    return served
