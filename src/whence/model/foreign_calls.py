"""Calls of a lent model by other threads: they wait until the loan ends, and a loan waits for those under way."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

PATIENCE = 60.0  # seconds that a loan waits for a call in another thread


@contextlib.contextmanager
def held_back(model: nn.Module, lock: threading.RLock) -> Iterator[None]:
    """A scope in which a call of the model in another thread waits for the lock, which the caller holds.

    The waiting call then holds the lock until it is done, so that no loan begins in the middle of it. Only calls of the
    whole model wait: a call of one of its submodules runs at once, on whatever settings the loan has made.
    """
    if isinstance(model, torch.jit.ScriptModule):  # its forward is compiled, and cannot be exchanged
        yield
        return
    own = vars(model)
    before = own.get("forward")
    own["forward"] = _waiting(model, before, lock)
    try:
        _wait_for_calls(model, lock)
        yield
    finally:
        if before is None:
            own.pop("forward", None)
        else:
            own["forward"] = before


def _waiting(model: nn.Module, own_forward: Callable[..., Any] | None, lock: threading.RLock) -> Callable[..., Any]:
    """The model's forward, which asks for the lock first; the thread that holds the lock never waits."""
    if own_forward is not None:  # a forward that was put on this very object, as accelerate does

        @functools.wraps(own_forward)
        def wait_for_own(*args: Any, **kwargs: Any) -> Any:
            with lock:
                return own_forward(*args, **kwargs)

        return wait_for_own
    forward = type(model).forward

    @functools.wraps(forward)
    def wait(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        with lock:
            return forward(self, *args, **kwargs)

    return types.MethodType(wait, model)  # a deep copy of the model gets a method of the copy


def _wait_for_calls(model: nn.Module, lock: threading.RLock) -> None:
    """Wait until no other thread is inside a call of the model or of one of its modules."""
    deadline = time.monotonic() + PATIENCE
    while _runs_elsewhere(model, lock):
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"another thread has been running {type(model).__name__} for {PATIENCE:.0f} seconds; "
                "explain when it is done, or explain a copy of the model"
            )
        time.sleep(0.001)


def _runs_elsewhere(model: nn.Module, lock: threading.RLock) -> bool:
    frames = sys._current_frames()
    if len(frames) == 1:
        return False
    modules = set(map(id, model.modules()))
    return any(_inside(frame, modules, lock) for thread, frame in frames.items() if thread != threading.get_ident())


def _inside(frame: types.FrameType | None, modules: set[int], lock: threading.RLock) -> bool:
    """Whether a thread, seen from its innermost frame, runs one of these modules and does not wait for the lock."""
    while frame is not None:
        name = frame.f_code.co_name
        if name.startswith("wait") and frame.f_code.co_filename == __file__ and frame.f_locals.get("lock") is lock:
            return False
        if name in ("forward", "_call_impl") and id(frame.f_locals.get("self")) in modules:
            return True
        frame = frame.f_back
    return False
