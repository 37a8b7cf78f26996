"""One thread per process, and what a quick round leaves out of sweeps over model families."""

import sys

import pytest
import torch

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
