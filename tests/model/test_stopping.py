"""Work that is no longer wanted stops soon, wherever it is, and the model is given back as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import whence
from whence.core import stopping
from whence.methods.maxflow import Graph


def after(calls: int) -> Callable[[], bool]:
    """Says that work is unwanted once it has been asked more often than this."""
    asked = iter(range(calls))
    return lambda: next(asked, None) is None


@pytest.fixture(scope="module")
def planted() -> whence.Subject:
    return whence.load("planted")


@pytest.fixture(scope="module")
def digits() -> whence.Subject:
    return whence.load("digits")


METHODS = (
    *("integrated_gradients(steps=100)", "leave_one_out", "lime", "decompx", "value_zeroing", "flow"),
    pytest.param("shap", marks=pytest.mark.slow),  # which compiles itself for seconds
)
PICTURE_METHODS = ("rise", "score_cam", "smoothgrad(samples=300)")


def stopped(subject: whence.Subject, raw: object, method: str, calls: int) -> None:
    """Run a method, stop it at its check of this number, and compare the model with what it was."""
    before = subject.fingerprint(full=True)
    with pytest.raises(stopping.Stopped), stopping.stoppable(after(calls)):
        whence.explain(subject, raw, method)  # type: ignore[call-overload]
    assert subject.fingerprint(full=True) == before


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("calls", [0, 3, 40])
def test_a_method_stops_at_any_point_and_leaves_the_model_as_it_was(
    planted: whence.Subject, method: str, calls: int
) -> None:
    text = "the dog walked by a not lovely garden and the child sat near that river"
    whole = whence.explain(planted, text, method).scores
    stopped(planted, text, method, calls)
    assert np.array_equal(whence.explain(planted, text, method).scores, whole)


@pytest.mark.parametrize("method", PICTURE_METHODS)
def test_a_method_over_a_picture_stops(digits: whence.Subject, method: str) -> None:
    stopped(digits, whence.zoo.examples("digits", 1)[0].input, method, 200)


def test_checks_come_often_inside_one_pass(planted: whence.Subject) -> None:
    """A large model takes seconds for a pass: every module of it asks."""
    counted: list[None] = []
    with stopping.stoppable(lambda: counted.append(None) is not None):
        planted.logits(planted.batch([planted.encode("the dog walked")]))
    assert len(counted) > 30


def test_maximum_flow_asks_for_every_token() -> None:
    """The solver touches no model, so it asks by itself."""
    steps = [(np.full((5, 5), 0.2), slice(0, 5), slice(0, 5))]
    graph = Graph(steps, 0.5, np.ones(5, bool), 1000)
    with pytest.raises(stopping.Stopped), stopping.stoppable(after(3)):
        graph.row(np.ones(5))


def test_masked_variants_that_are_only_made_are_asked_about(planted: whence.Subject) -> None:
    """Making ten thousand variants takes longer than running a batch of them."""
    from whence.model.masked_runs import MaskedRuns

    item, made = planted.encode("the dog walked"), 0

    def variants() -> Iterator[object]:
        nonlocal made
        for _ in range(50):
            made += 1
            yield item

    planted.values(planted.batch([item]), aim := planted.aim([0]))
    with pytest.raises(stopping.Stopped), stopping.stoppable(after(10)):
        MaskedRuns(planted).values([item], [variants()], aim)  # type: ignore[list-item]
    assert made < 20


def test_no_handler_of_errors_hides_it() -> None:
    assert not issubclass(stopping.Stopped, Exception)


def test_other_threads_are_not_stopped(planted: whence.Subject) -> None:
    found: list[object] = []
    with stopping.stoppable(lambda: True):
        thread = threading.Thread(target=lambda: found.append(whence.explain(planted, "the dog sat", "gae")))
        thread.start()
        thread.join(60)
    assert len(found) == 1


def test_without_a_scope_nothing_is_hooked(planted: whence.Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    from whence.model import forward

    monkeypatch.setattr(forward, "hooked", lambda *args, **kwargs: pytest.fail("hooks without a scope"))
    planted.logits(planted.batch([planted.encode("the dog walked")]))
