"""Faults at random points of forward and backward: the model comes back whole, and the next call is right."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

import whence
from families import family
from option_strategies import record_of
from outcomes import Case, Hang, Injected, Interrupted, Wrong, no_sentence
from rightness import check_same
from worlds import KINDS, explained, new, plain_input

WAYS = ("module", "function", "hook", "backward", "target", "encode", "output")
ERRORS: dict[str, Callable[[], BaseException]] = {
    "error": lambda: Injected("a fault"),
    "interrupt": lambda: Interrupted("a fault"),
    "memory": lambda: MemoryError("a fault"),
    "runtime": lambda: RuntimeError("a fault"),
}


class Fuse:
    """Raises an error when it is asked for the n-th time, once."""

    def __init__(self, count: int, error: Callable[[], BaseException]) -> None:
        self.left, self.make, self.error = count, error, None

    def __call__(self, *arguments: Any) -> None:
        self.left -= 1
        if self.left == 0:
            self.error = self.make()
            raise self.error


class _Breaking(TorchFunctionMode):
    """Raises in the n-th call of a torch function, or while its result is differentiated."""

    def __init__(self, fuse: Fuse, way: str) -> None:
        super().__init__()
        self.fuse, self.way, self.calls = fuse, way, 0

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.way == "function":
            self.fuse()
        result = func(*args, **(kwargs or {}))
        if self.way == "function" or not isinstance(result, Tensor) or not result.requires_grad or result.is_leaf:
            return result
        self.calls += 1
        if self.calls % 7:  # a hook on every seventh result: hooks on all would be slow
            return result
        if self.way == "hook":
            result.register_hook(self.fuse)
            return result
        return _Broken.apply(result, self.fuse)


class _Broken(torch.autograd.Function):
    """The identity, whose derivative asks a fuse, which may raise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fuse: Fuse) -> Tensor:
        ctx.fuse = fuse
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.fuse()
        return gradient, None


@contextlib.contextmanager
def breaking(way: str, fuse: Fuse) -> Iterator[None]:
    """A scope in which calls fail where `way` says: in a module, a torch function, or the backward pass."""
    if way == "module":
        handle = torch.nn.modules.module.register_module_forward_pre_hook(lambda module, given: fuse())
        try:
            yield
        finally:
            handle.remove()
    elif way in ("function", "hook", "backward"):
        with _Breaking(fuse, way):
            yield
    else:
        yield


def _subject_that_breaks(kind: str, way: str, fuse: Fuse) -> Any:
    """A new subject whose encoder or output function asks the fuse."""
    made, options = family(kind), dict(family(kind).kwargs)
    if way == "output" and kind == "torch-sdpa":
        return whence.wrap(made.model, **{**options, "output": lambda outputs: (fuse(), outputs)[1]})
    if way == "encode" and "encode" in options:
        own = options["encode"]
        return whence.wrap(made.model, **{**options, "encode": lambda raw: (fuse(), own(raw))[1]})
    return new(kind)


@st.composite
def fault_cases(draw: st.DrawFn) -> Case:
    """An error, an interrupt or a lack of memory at a random moment of a call; the next call must be right."""
    way = draw(st.sampled_from(WAYS))
    kind = "torch-sdpa" if way in ("encode", "output") else draw(st.sampled_from(KINDS))
    record, named = draw(record_of("method")), draw(st.sampled_from(sorted(ERRORS)))
    count = draw(st.one_of(st.integers(1, 30), st.integers(1, 400))) if way != "target" else draw(st.integers(1, 6))
    fuse = Fuse(count, ERRORS[named])
    subject, raw = _subject_that_breaks(kind, way, fuse), plain_input(kind)

    def aimed(logits: Tensor, batch: Any) -> Tensor:
        fuse()
        return logits[:, 0]

    def call() -> Any:
        if subject.task not in record.tasks:
            return None  # other areas check the result
        expected = explained(kind, record.name)
        try:
            with breaking(way, fuse):
                found = whence.explain(subject, raw, record.name, aimed if way == "target" else None)
            if way != "target":  # the nodes that watch the backward pass make gradients add up in another order
                check_same(found, expected, "a call in which a fault was caught", 1e-4 if way == "backward" else 0.0)
        except (Wrong, Hang):
            raise
        except BaseException as error:
            if error is not fuse.error and no_sentence(error):
                raise
        if fuse.error is None:
            fuse.left = -1  # the call ended before the fault: the next call must not be disturbed
        check_same(whence.explain(subject, raw, record.name), expected, "the call after a fault")
        return None

    text = f"explain(<{kind}>, method={record.name!r}) with {named!r} at {way} number {count}"
    return Case("faults", text, call, subjects=(subject,))
