"""A tenth of the load of `benchmarks/serve.py`: nothing is lost, and memory does not grow."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script `benchmarks/serve.py`."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import serve

    yield serve
    sys.modules.pop("serve", None)


@pytest.mark.slow
def test_a_hundred_mixed_requests_of_eight_clients(bench: Any) -> None:
    with bench.server() as (address, process, began):
        times = bench.start_times(address, began)
        assert times["first answer"] <= times["form"] <= times["first method"]
        found = bench.load(address, process, 100, 8)
    assert not found.lost
    assert sum(found.answered.values()) == 100
    warm, _, end = found.memory
    assert end - warm < 60, found.memory  # megabytes; the kept results of twenty jobs would be few of them
