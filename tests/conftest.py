"""One thread per process, a browser for pages, and what a quick round leaves out of sweeps over model families."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import browser as browsers

os.environ.pop("NO_COLOR", None)  # tests of terminals state their colours; a developer's own wish would change them
os.environ["TERM"] = "xterm-256color"
torch.set_num_threads(1)  # the test workers fill the cores, and sums add up in the same order everywhere


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test over several model families, all but the first family are slow: `make quick` runs the test on one.

    A test that imports no families is in no such sweep, so the module is not imported here.
    """
    families = getattr(sys.modules.get("families"), "FAMILIES", ())
    first: dict[str, str] = {}  # test function -> the family it is run on first
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        named = [value for value in parameters if isinstance(value, str) and value in families]
        if named and first.setdefault(item.nodeid.partition("[")[0], named[0]) not in named:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Any]:
    """One process of Chromium for all tests of a worker."""
    with browsers.started() as chromium:
        yield chromium


@pytest.fixture
def browser(_chromium: Any) -> Iterator[browsers.Browser]:
    """A browser for one test, which fails where a page that it opened complained."""
    opened = browsers.Browser(_chromium)
    yield opened
    opened.close()
