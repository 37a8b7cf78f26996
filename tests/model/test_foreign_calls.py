"""A user's own calls of a model in other threads, while the model is explained."""

from __future__ import annotations

import contextlib
import copy
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from families import Family, fresh, plain_inputs
from whence.model import foreign_calls
from whence.model.loan import difference, fingerprint, lent
from whence.model.watching import hooked


@pytest.fixture
def bert() -> Family:
    return fresh("bert")


class Noting(nn.Module):
    """A module that notes the mode it runs in."""

    def __init__(self) -> None:
        super().__init__()
        self.saw: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.saw.append(self.training)
        return x


class Slow(nn.Module):
    """A module whose call takes until it is told to end."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.end = threading.Event(), threading.Event()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        self.began.set()
        assert self.end.wait(30)
        return x * self.weight


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Another thread, which is there before a loan begins: only such threads can call the model meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        yield pool


def test_a_call_in_another_thread_waits_for_the_end_of_the_loan(bert: Family, pool: ThreadPoolExecutor) -> None:
    """It sees the model as its owner has it: in training mode, with gradients, on the owner's attention path."""
    model = bert.model.train()
    inputs = plain_inputs(bert, bert.inputs[0])
    seen: list[tuple[bool, bool]] = []
    model.get_submodule("bert").register_forward_pre_hook(
        lambda module, args: seen.append((module.training, next(module.parameters()).requires_grad))
    )
    with lent(model):
        call = pool.submit(lambda: model(**inputs).logits)
        time.sleep(0.05)
        assert not call.done() and not seen
        model(**inputs)  # the thread of the loan does not wait
        assert seen == [(False, False)]
    assert call.result(30).requires_grad and seen == [(False, False), (True, True)]


def test_a_call_under_way_is_told(pool: ThreadPoolExecutor) -> None:
    """It began before the loan, so that its result could come from two settings of the model."""
    model = nn.Sequential(Slow(), Noting()).train()
    slow: Any = model[0]
    noting: Any = model[1]
    call = pool.submit(model, torch.ones(2))
    assert slow.began.wait(30)
    with lent(model):
        slow.end.set()
        with pytest.raises(RuntimeError, match="began to explain Sequential while this call was under way"):
            call.result(30)
    assert not noting.saw and pool.submit(model, torch.ones(2)).result(30).requires_grad and noting.saw == [True]


def test_a_loan_that_never_ends_is_told(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_calls, "PATIENCE", 0.05)
    model = Noting()
    before = fingerprint(model, full=True)
    with lent(model), pytest.raises(RuntimeError, match="Noting has been explained in another thread"):
        pool.submit(model, torch.ones(2)).result(30)
    assert not difference(before, fingerprint(model, full=True))


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "t5", "clip", "torch-encoder"])
def test_forward_calls_beside_explanations_change_nothing(name: str) -> None:
    """One thread explains by methods that set hooks, edit attention and freeze weights; another runs the model.

    A run of the other thread is right or says that it is not.
    """
    made = fresh(name)
    made.model.train(False)
    methods = ["gae", "gradient_x_input", "leave_one_out"]
    subject = whence.wrap(made.model, made.processor, **made.kwargs)
    expected = [whence.explain(subject, made.inputs[0], method).scores for method in methods]
    inputs = plain_inputs(made, made.inputs[0])

    def run() -> Any:
        outputs = made.model(**inputs) if isinstance(inputs, dict) else made.model(inputs)
        outputs = outputs if isinstance(outputs, Tensor) else next(iter(outputs.values()))
        return outputs.detach().clone(), outputs.requires_grad

    plain, ended, runs = run(), threading.Event(), []

    def keep_running() -> None:
        while not ended.is_set():
            with contextlib.suppress(RuntimeError):  # the call was under way when a loan began, and was told
                runs.append(run())

    before = fingerprint(made.model, full=True)
    thread = threading.Thread(target=keep_running)
    thread.start()
    try:
        found = [whence.explain(subject, made.inputs[0], method).scores for method in methods * 3]
    finally:
        ended.set()
        thread.join()
    assert not difference(before, fingerprint(made.model, full=True))
    runs.append(run())
    assert all(torch.equal(out, plain[0]) and grad == plain[1] for out, grad in runs)
    for scores, again in zip(found, expected * 3, strict=True):
        np.testing.assert_array_equal(scores, again)


def test_hooks_are_for_the_thread_that_set_them(pool: ThreadPoolExecutor) -> None:
    """A user may call a submodule while the model is lent: it runs at once, and no hook of a pass sees it."""
    module = nn.Linear(2, 2)
    seen: list[str] = []

    def before(name: str, *call: Any) -> None:
        seen.append(name)

    def after(name: str, *call: Any) -> Tensor:
        return torch.full((1, 2), 7.0)

    with hooked([("one", module)], before, after):
        assert not (pool.submit(module, torch.zeros(1, 2)).result(30) == 7).any() and not seen
        assert (module(torch.zeros(1, 2)) == 7).all() and seen == ["one"]


def test_a_copy_made_during_a_loan_is_a_model_of_its_own(bert: Family, pool: ThreadPoolExecutor) -> None:
    """The copy has the hook that waits, and nothing to wait for once the loan of the original has ended."""
    inputs = plain_inputs(bert, bert.inputs[0])
    with lent(bert.model), torch.no_grad():
        other = copy.deepcopy(bert.model)
        for parameter in other.parameters():
            parameter.zero_()
        assert bert.model(**inputs).logits.any() and not other(**inputs).logits.any()
    with torch.no_grad():
        assert not pool.submit(lambda: other(**inputs).logits).result(30).any()
