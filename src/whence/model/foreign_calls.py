"""Calls of a lent model by other threads: they wait at the next module until the loan ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

PATIENCE = 60.0  # seconds that a call waits for a loan in another thread to end
_FUSED = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention, torch.jit.ScriptModule)
_KEY: Any = "whence waits"  # of the hook, among those that torch numbers


def _with_hooks(module: nn.Module) -> Iterator[nn.Module]:
    """The module and those inside it, but what computes otherwise, in the last digits, once it has hooks."""
    if isinstance(module, _FUSED):
        return
    yield module
    for child in module.children():
        yield from _with_hooks(child)


@contextlib.contextmanager
def held_back(model: nn.Module, lock: threading.RLock) -> Iterator[None]:
    """A scope in which other threads that call the model or one of its modules wait for the lock, which is held here.

    A call that was under way when the scope began pauses at its next module, and goes on when the model is as it was.
    Frames of other threads cannot be looked at instead: CPython may crash when they end meanwhile.
    """
    if threading.active_count() == 1:  # nobody is there to be held back, and hooks cost a little
        yield
        return
    thread = threading.get_ident()

    def wait(module: nn.Module, args: Any) -> None:
        if threading.get_ident() == thread:
            return
        if not lock.acquire(timeout=PATIENCE):
            raise RuntimeError(
                f"{type(model).__name__} has been explained in another thread for {PATIENCE:.0f} seconds; "
                "call it when that is done, or explain a copy of the model"
            )
        lock.release()

    tables = [module._forward_pre_hooks for module in _with_hooks(model)]
    for table in tables:
        table[_KEY] = wait
    try:
        yield
    finally:
        for table in tables:
            table.pop(_KEY, None)
