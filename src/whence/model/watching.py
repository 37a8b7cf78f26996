"""Watching modules while they run: hooks that are always taken off again."""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Protocol

from torch import Tensor, nn

Before = Callable[[str, nn.Module, Any, Any], Any]  # name, module, args, kwargs -> nothing, or new (args, kwargs)
After = Callable[[str, nn.Module, Any, Any, Any], Any]  # name, module, args, kwargs, output -> nothing, or a new output


@dataclass(frozen=True)
class Site:
    """A place where a stream's state can be read, differentiated or replaced."""

    stream: str  # "*": all streams side by side
    where: str  # "tensor": a model input; "input" or "output" of a module's call
    module: str = ""
    call: int = 0  # which of the module's calls in one pass
    key: str | int = 0  # argument or result, by position or name
    tokens_first: bool = False  # the model keeps the state as (token, batch, width)
    in_place: bool = False  # the model goes on to change the state in place, so it is given a copy

    def turned(self, tensor: Tensor) -> Tensor:
        """From the model's order of axes to (batch, token, width), and back."""
        return tensor.transpose(0, 1) if self.tokens_first else tensor


@contextlib.contextmanager
def hooked(
    modules: Iterable[tuple[str, nn.Module]], before: Before | None = None, after: After | None = None
) -> Iterator[None]:
    """Call `before` and `after` around every call of these modules that this thread makes."""
    handles = []
    try:
        for name, module in modules:
            if before is not None:
                handles.append(module.register_forward_pre_hook(_of_this_thread(before, name), with_kwargs=True))
            if after is not None:
                handles.append(module.register_forward_hook(_of_this_thread(after, name), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _of_this_thread(call: Callable[..., Any], *first: Any) -> Callable[..., Any]:
    """A hook that leaves calls by other threads alone: a user may run a module while it is explained."""
    thread = get_ident()
    return lambda *given: call(*first, *given) if get_ident() == thread else None


@contextlib.contextmanager
def states_at(
    model: nn.Module, sites: Iterable[Site], changes: Mapping[Site, Callable[[Tensor], Tensor]]
) -> Iterator[dict[Site, Tensor]]:
    """Note the states at the sites, axes as the model has them, after changing them where asked."""
    states: dict[Site, Tensor] = {}
    by_module: dict[tuple[str, str], list[Site]] = defaultdict(list)
    for site in {*sites, *changes}:
        if site.where != "tensor":
            by_module[site.module, site.where].append(site)
    calls: dict[tuple[str, str], int] = defaultdict(int)

    def visit(name: str, where: str, holder: Any) -> Any:
        for site in by_module[name, where]:
            if site.call == calls[name, where]:
                tensor = given = picked(holder, site.key)
                if site in changes:
                    changed = changes[site](site.turned(given))
                    tensor = given if changed is given else site.turned(changed)
                states[site] = tensor
                going_on = tensor.clone() if site.in_place else tensor
                if going_on is not given:
                    holder = _replaced(holder, site.key, going_on)
        calls[name, where] += 1
        return holder

    def before(name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        return visit(name, "input", (args, kwargs))

    def after(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        return visit(name, "output", output)

    modules = dict(model.named_modules())
    entered, left = ([(n, modules[n]) for n, where in by_module if where == side] for side in ("input", "output"))
    with hooked(entered, before), hooked(left, after=after):
        yield states


class Listener(Protocol):
    """An object that is told of every module call of a pass."""

    def begin(self) -> None: ...
    def enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> Any: ...
    def leave(self, name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any: ...


@contextlib.contextmanager
def every_call(model: nn.Module, listener: Listener) -> Iterator[None]:
    """A scope in which a listener is told of every module call of every pass.

    The listener's hooks are registered only when a pass begins. They therefore run after the hooks of the pass itself,
    and the listener sees arguments and outputs as backward rules left them.
    """
    with contextlib.ExitStack() as hooks:

        def begin(module: nn.Module, args: Any, kwargs: Any) -> Any:
            hooks.close()  # the hooks of the pass before
            listener.begin()
            inside = [(name, one) for name, one in model.named_modules() if one is not model]
            hooks.enter_context(hooked([("", model)], after=listener.leave))
            hooks.enter_context(hooked(inside, listener.enter, listener.leave))
            return listener.enter("", model, args, kwargs)

        first = model.register_forward_pre_hook(_of_this_thread(begin), with_kwargs=True)
        try:
            yield
        finally:
            first.remove()


def picked(holder: Any, key: str | int) -> Tensor:
    """One tensor of a module's (args, kwargs) or of its output; -1 is the whole output."""
    if key == -1:
        return holder
    if isinstance(holder, tuple) and len(holder) == 2 and isinstance(holder[1], dict):
        return holder[1][key] if isinstance(key, str) else holder[0][key]
    return holder[key]


def _replaced(holder: Any, key: str | int, tensor: Tensor) -> Any:
    """The (args, kwargs) or the output of a module with one tensor exchanged."""
    if key == -1:
        return tensor
    if isinstance(holder, tuple) and len(holder) == 2 and isinstance(holder[1], dict):
        args, kwargs = holder
        if isinstance(key, str):
            return args, {**kwargs, key: tensor}
        return tuple(tensor if i == key else a for i, a in enumerate(args)), kwargs
    if isinstance(holder, dict):  # an output of transformers is a dict; setting an entry sets the attribute too
        made = copy.copy(holder)
        made[str(key)] = tensor
        return made
    return type(holder)(tensor if i == key else part for i, part in enumerate(holder))
