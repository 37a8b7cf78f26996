"""A few hundred odd calls, the same in every run: each is right or refused with a sentence, and no model is changed."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from areas import AREAS, test_of
from outcomes import must_hold

test_of.__test__ = False  # type: ignore[attr-defined]  # makes tests, is none


@pytest.fixture(autouse=True)
def no_constants_of_loaded_modules() -> Iterator[None]:
    """Without constants that hypothesis draws from loaded modules, with which cases would depend on other tests."""
    with mock.patch.object(providers, "_get_local_constants", lambda: providers._local_constants, create=True):
        yield


@pytest.mark.parametrize("name", AREAS)
def test_odd_calls(name: str) -> None:
    area = AREAS[name]
    test_of(area, must_hold, settings(settings.get_profile("ci"), max_examples=area.count))()
