"""Running one layer of a model again on its arguments of a pass: copies side by side, with attention edited."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence.model.batching import Batch
from whence.model.forward import stoppable_modules
from whence.model.loan import attention_path, lent
from whence.model.passes import Trace
from whence.model.rules import Rules
from whence.model.subject import Subject
from whence.model.tap import AttentionRecord, Edit, Tap
from whence.model.watching import hooked

Given = tuple[tuple[Any, ...], dict[str, Any]]  # args and kwargs


@dataclass(eq=False)
class Layer:
    """One call of a module that is a layer: its arguments, its output and the attentions inside."""

    subject: Subject
    module: nn.Module
    streams: dict[str, str | int]  # stream -> the argument that holds its state
    given: Given
    changes: list[Any]  # what the model had changed about itself when it called the layer
    output: Any = None
    records: list[AttentionRecord] = field(default_factory=list)
    wider: Given = ((), {})  # the arguments of a batch with one example more: they show the axis of examples
    in_place: bool = False  # the layer failed on copies that share memory, so each copy gets its own

    def states(self, output: Any) -> dict[str, Tensor]:
        """The states in the layer's output, in the order of its arguments: stream -> (batch, token, width)."""
        parts = output if isinstance(output, (tuple, list)) else [output]
        candidates = [part for part in parts if isinstance(part, Tensor) and part.ndim == 3]
        arguments = [*range(len(self.given[0])), *self.given[1]]
        states = {}
        for stream in sorted(self.streams, key=lambda stream: arguments.index(self.streams[stream])):
            moved, entering = [part.movedim(self._axis_of(stream), 0) for part in candidates], self.entering(stream)
            number = next((n for n, part in enumerate(moved) if part.shape[1:] == entering.shape[1:]), None)
            if number is not None:
                states[stream] = moved[number]
                del candidates[number]
        return states

    def entering(self, stream: str) -> Tensor:
        """The state of a stream among the layer's arguments: (batch, token, width)."""
        return _argument(self.given, self.streams[stream]).movedim(self._axis_of(stream), 0)

    def _axis_of(self, stream: str) -> int:
        """The axis of examples in the state of a stream."""
        key = self.streams[stream]
        return _example_axis(_argument(self.given, key), _argument(self.wider, key)) or 0

    def run(self, copies: int, examples: int, edit: Edit, rules: Rules | None = None) -> dict[str, Tensor]:
        """The layer on copies of its arguments, with its attention edited: stream -> (copy * batch, token, width).

        `record.order` counts the attentions of this layer only, from 0. Queries, keys and values of one example are the
        same in all copies and computed once, unless the layer works on its arguments in place. `rules` see the run.
        """
        if examples == 1 and not self.in_place:
            try:
                return self._run(copies, examples, edit, rules, _expanded)
            except RuntimeError:  # expanded copies share memory: they cannot be written to, and some views fail
                self.in_place = True
        return self._run(copies, examples, edit, rules, repeated)

    def _run(
        self, copies: int, examples: int, edit: Edit, rules: Rules | None, copied: Callable[..., Tensor]
    ) -> dict[str, Tensor]:
        args, kwargs = _copied(self.given, self.wider, copies, copied)
        model, self_changes = self.subject.model, self.subject.self_changes
        tap = Tap(model, copies * examples, edit=edit, seen=None if rules is None else rules.seen)
        under = contextlib.nullcontext() if rules is None else rules
        stoppable = stoppable_modules(self.module)
        as_called = self_changes.undone(self.changes)
        lending = lent(model), attention_path(model, "eager")
        with lending[0], lending[1], as_called, torch.no_grad(), _OneForAll(), under, tap, stoppable:
            return self.states(self.module(*args, **kwargs))


def layers_of(subject: Subject, batch: Batch, trace: Trace) -> list[Layer]:
    """The layers of the model in the order in which it runs them, from two passes; each with its attention records.

    An attention outside all layers is in no layer's records; the caller can see which records of the trace are missing.
    """
    places: dict[int, int] = {}  # attention -> layer
    records: list[AttentionRecord] = []  # only the last record
    with lent(subject.model), attention_path(subject.model, "eager"), torch.no_grad():
        with _watched(subject, batch) as (layers, running):

            def seen(record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
                if running:
                    places[record.order] = running[-1]
                for earlier in records:
                    earlier.parts.clear()  # the trace holds the weights already
                records[:] = [record]
                return weights, values

            subject.logits(batch, edit=seen)
        with _watched(subject, batch) as (others, _):
            subject.logits(batch.chosen([*range(len(batch)), 0]))
    for layer, other in zip(layers, others, strict=True):
        layer.wider = other.given
    for record in trace.attention:
        place = places.get(record.order)
        if place is not None and record.query in layers[place].states(layers[place].output):
            layers[place].records.append(record)
    return layers


@contextlib.contextmanager
def _watched(subject: Subject, batch: Batch) -> Iterator[tuple[list[Layer], list[int]]]:
    """Two lists that fill up while the model runs: the calls that are layers, and the numbers of those under way."""
    wanted: dict[str, dict[int, dict[str, str | int]]] = defaultdict(lambda: defaultdict(dict))
    for sites in subject.structure(batch).calls.values():
        for site in sites:
            wanted[site.module][site.call][site.stream] = site.key
    layers: list[Layer] = []
    running: list[int] = []
    calls: dict[str, int] = defaultdict(int)

    def before(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        running.append(len(layers))
        changes, given = subject.self_changes.now(), (_with_copied_states(args), _with_copied_states(kwargs))
        layers.append(Layer(subject, module, wanted[name][calls[name]], given, changes))
        calls[name] += 1

    def after(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        layers[running.pop()].output = _with_copied_states(output)

    with hooked([(name, subject.model.get_submodule(name)) for name in wanted], before, after):
        yield layers, running


def _with_copied_states(holder: Any) -> Any:
    """Arguments or outputs with copies of their states (three axes), because the model may change them in place."""
    if isinstance(holder, Tensor):
        return holder.clone() if holder.ndim == 3 else holder
    if isinstance(holder, (tuple, list)):
        return tuple(_with_copied_states(part) for part in holder)
    return {name: _with_copied_states(part) for name, part in holder.items()} if isinstance(holder, dict) else holder


def _copied(given: Any, wider: Any, copies: int, copied: Callable[..., Tensor]) -> Any:
    """Arguments repeated along their axes of examples; a cache is left out, because it would grow."""
    if isinstance(given, Tensor):
        axis = _example_axis(given, wider)
        return given if axis is None else copied(given, copies, axis)
    if isinstance(given, (tuple, list)):
        pairs = zip(given, wider, strict=True)
        return type(given)(_copied(part, wider_part, copies, copied) for part, wider_part in pairs)
    if isinstance(given, dict):
        return {name: _copied(part, wider[name], copies, copied) for name, part in given.items()}
    return None if hasattr(given, "get_seq_length") else given


def repeated(given: Tensor, copies: int, axis: int) -> Tensor:
    """Copies of a tensor, one after the other along an axis."""
    return torch.cat([given] * copies, axis)


def _expanded(given: Tensor, copies: int, axis: int) -> Tensor:
    """Copies of a tensor along an axis of length 1, all in the same memory."""
    return given.expand(*given.shape[:axis], copies, *given.shape[axis + 1 :])


class _OneForAll(TorchFunctionMode):
    """Linear maps of states whose copies lie in the same place of memory are computed for one copy."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        x = args[0] if func is F.linear and args else None
        if x is None or x.ndim < 2 or len(x) < 2 or x.stride(0):
            return func(*args, **(kwargs or {}))
        return func(x[:1], *args[1:], **(kwargs or {})).expand(len(x), *x.shape[1:-1], -1)


def _example_axis(given: Tensor, wider: Tensor) -> int | None:
    """The axis of examples, which a batch with more examples makes longer; None where there is no such axis."""
    sizes = zip(given.shape, wider.shape, strict=True)
    return next((axis for axis, (size, wider_size) in enumerate(sizes) if size != wider_size), None)


def _argument(given: Given, key: str | int) -> Tensor:
    return given[1][key] if isinstance(key, str) else given[0][key]
