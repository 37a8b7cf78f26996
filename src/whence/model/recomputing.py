"""Layers that keep no intermediate tensors: the backward pass runs each layer again. Less memory for more time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

from torch import nn
from torch.utils.checkpoint import checkpoint

from whence.model.batching import Batch
from whence.model.loan import lent
from whence.model.subject import Subject


class Repeats(Protocol):
    """Rules under which a part of the model may be run again."""

    calls: int

    def again(self, first: int) -> contextlib.AbstractContextManager[Any]:
        """A scope in which a part is run again whose first attention block is number `first`."""


@contextlib.contextmanager
def layers_run_again(subject: Subject, batch: Batch, rules: Repeats) -> Iterator[None]:
    """A scope in which layers keep no intermediate tensors for the backward pass, which runs each layer again."""
    calls = subject.structure(batch).calls
    names = dict.fromkeys(site.module for sites in calls.values() for site in sites if site.module)
    outermost = [name for name in names if not any(name.startswith(f"{other}.") for other in names)]
    modules = [subject.model.get_submodule(name) for name in outermost]
    if not modules:
        raise ValueError(f"no layers were found in {subject.name}, so none can be run again; set recomputes to False")
    with lent(subject.model):
        own = [vars(module).get("forward") for module in modules]
        try:
            for module in modules:
                vars(module)["forward"] = partial(_checkpointed, module.forward, rules)
            yield
        finally:
            for module, forward in zip(modules, own, strict=True):
                _put_back(module, forward)


def _checkpointed(forward: Callable[..., Any], rules: Repeats, *args: Any, **kwargs: Any) -> Any:
    first = rules.calls
    scopes = partial(_scopes, rules, first)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, context_fn=scopes, **kwargs)


def _scopes(rules: Repeats, first: int) -> tuple[Any, Any]:
    """The scopes of a layer's first run and of its second."""
    return contextlib.nullcontext(), rules.again(first)


def _put_back(module: nn.Module, forward: Any) -> None:
    if forward is None:
        del vars(module)["forward"]
    else:
        vars(module)["forward"] = forward
