"""Calls of a lent model by other threads: they wait until the loan ends; those under way are told that it began."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

PATIENCE = 60.0  # seconds that a call waits for a loan in another thread to end
_FUSED = (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention, torch.jit.ScriptModule)
_KEY: Any = "whence waits"  # of the hook, in a table where torch's own keys are numbers


def _with_hooks(module: nn.Module) -> Iterator[nn.Module]:
    """The module and those inside it, without modules whose results change in the last digits once they have hooks."""
    if isinstance(module, _FUSED):
        return
    yield module
    for child in module.children():
        yield from _with_hooks(child)


@contextlib.contextmanager
def held_back(model: nn.Module, lock: threading.RLock) -> Iterator[None]:
    """A scope in which other threads that call the model wait for the lock, which is held here.

    A call that was under way when the scope began raises at its next module: its result would come from two settings of
    the model, and be silently wrong. (Whether such a call is under way cannot be found out beforehand: reading the
    frames of other threads may crash CPython when these threads end meanwhile.)
    """
    if threading.active_count() == 1:  # there is no other thread to hold back, and hooks cost a little time
        yield
        return
    thread = threading.get_ident()
    modules = {id(module): module._forward_pre_hooks for module in _with_hooks(model)}

    def wait(module: nn.Module, args: Any) -> None:
        # No wait in the lender's own thread, once the loan is over, or for a module of a copy, which has copied hooks.
        if threading.get_ident() == thread or id(module) not in modules:
            return
        if module is not model:
            raise RuntimeError(
                f"another thread began to explain {type(model).__name__} while this call was under way, which might "
                "change its result; call the model again, and it waits until that is done"
            )
        if not lock.acquire(timeout=PATIENCE):
            raise RuntimeError(
                f"{type(model).__name__} has been explained in another thread for {PATIENCE:.0f} seconds; "
                "call it when that is done, or explain a copy of the model"
            )
        lock.release()

    tables = list(modules.values())
    for table in tables:
        table[_KEY] = wait
    try:
        yield
    finally:
        modules.clear()
        for table in tables:
            table.pop(_KEY, None)
