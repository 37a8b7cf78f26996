"""Running one input many times with its attention edited: what comes before the lowest edited attention runs once.

Layers that end before the edited attention begins give the same output in every variant. They are run once; while the
variants run, side by side as one batch, these layers hand out what they gave then.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from whence.core.inputs import Input
from whence.model.batching import Batch
from whence.model.discovery import no_attention, no_gradients
from whence.model.masked_runs import CPU_TOKENS, MAX_ROWS, MAX_TOKENS
from whence.model.subject import Subject
from whence.model.tap import AttentionRecord, Edit
from whence.model.watching import hooked

Call = tuple[str, int]  # a layer's module, and which of its calls in one pass
TOLERANCE = 1e-4  # between logits of layers that were run and of layers that handed out what they gave before


@dataclass(frozen=True)
class NewWeights:
    """Weights to be used by one attention block in place of its own, at some of its queries."""

    weights: Tensor  # (variant, head, row, key)
    rows: Tensor  # (row,): numbers of the queries


@dataclass(eq=False)
class _Outputs:
    """What the layers gave in one pass, and where among them each attention block was."""

    calls: list[tuple[Call, Any]] = field(default_factory=list)  # in the order in which they ended
    ended: list[int] = field(default_factory=list)  # of each attention block: how many layers had ended before it
    inside: list[set[Call]] = field(default_factory=list)  # of each attention block: the layers that were running

    def left(self, given: Mapping[Call, Any]) -> list[int]:
        """The numbers of the attention blocks that still run when these layers do not."""
        return [number for number, around in enumerate(self.inside) if around.isdisjoint(given)]


def cannot_edit(subject: Subject, batch: Batch) -> str | None:
    """Why attention over the inputs cannot be read and edited here, as a sentence; None where it can."""
    discovery = subject.discovery(batch)
    if discovery.quantised:
        return no_gradients(subject.name)
    structure = discovery.structure
    if not structure.connections:
        return no_attention(subject.model)
    if any(not query for query, _ in structure.connections):
        return (
            f"{subject.name} attends within windows, not over the whole sequence, so its weights belong to no features"
        )
    if not structure.deciding:
        return f"{subject.name} reads no attention that spans its inputs"
    return None


class AttentionRuns:
    """One input with its own attention, and with attention that is edited.

    `trace` holds the attention blocks as the model used them, and the tokens that the output reads.
    """

    def __init__(self, subject: Subject, item: Input, target: Any = None, seed: int = 0) -> None:
        self.subject, self.batch = subject, subject.batch([item], seed)
        self.aim = subject.aim([target])
        self.trace = subject.trace(self.batch, self.aim, ("attention", "deciding"))
        self.passes = 0  # variants that went through the model

    @cached_property
    def _layers(self) -> _Outputs:
        return _outputs_of(self.subject, self.batch)

    @property
    def records(self) -> list[AttentionRecord]:
        """The attention blocks of the model on the input, in order."""
        return self.trace.attention

    def logits(
        self, edits: Mapping[int, NewWeights], *, variants: int = 1, whole: bool = False, graph: bool = False
    ) -> Tensor:
        """The decision logits of every variant, (variant, class), with these blocks' weights replaced.

        `edits` are by the number of the block. `whole` runs every layer again; `graph` keeps the graph that leads from
        the weights to the logits, and runs all variants in one pass.
        """
        first = min(edits, default=len(self.records))
        whole = whole or first == len(self.records) or not self._can_share(first)
        if graph:
            return self._pass(edits, slice(0, variants), whole, graph=True)
        tokens = CPU_TOKENS if self.subject.device.type == "cpu" else MAX_TOKENS
        size = max(1, min(MAX_ROWS, tokens // self.batch.mask.shape[1]))
        starts = range(0, variants, size)
        return torch.cat([self._pass(edits, slice(s, min(s + size, variants)), whole) for s in starts])

    def own(self, number: int, rows: Tensor) -> NewWeights:
        """The block's own weights at some queries, as the one variant of an edit."""
        return NewWeights(self.records[number].weights[:, :, rows], rows)

    def _pass(self, edits: Mapping[int, NewWeights], part: slice, whole: bool, graph: bool = False) -> Tensor:
        """The logits of some variants, from one pass."""
        count = part.stop - part.start
        self.passes += count
        batch = self.batch.chosen([0] * count)
        given = {} if whole else self._before(min(edits))
        left = range(len(self.records)) if whole else self._layers.left(given)
        chosen = {left.index(number): NewWeights(new.weights[part], new.rows) for number, new in edits.items()}
        with _handing_out(self.subject.model, given, count):
            return self.subject.decision(batch, edit=_replacing(chosen), graph=graph)[0]

    def _before(self, first: int) -> dict[Call, Any]:
        """What the layers gave that end before an attention block, with the axes of examples: call -> output."""
        ended = self._layers.calls[: self._layers.ended[first]]
        axes = _example_axes(self.subject, self.batch) if ended else {}
        return {call: _with_axes(output, axes[call]) for call, output in ended}

    def _can_share(self, first: int) -> bool:
        """Whether layers before an attention block can be left out: tried once for every kind of input.

        The weights of the block are reversed, and the logits compared with those of a model that is run whole. A model
        whose forward does more than its layers do, as keeping a memory, fails this, and is then always run whole.
        """

        def find_out() -> bool:
            if not self._layers.ended[first]:
                return False
            own = self.records[first].weights
            every = torch.arange(own.shape[2], device=own.device)
            edits = {first: NewWeights(own.flip(-1), every)}
            shared, plain = (self._pass(edits, slice(0, 1), whole).float() for whole in (False, True))
            return bool((shared - plain).abs().max() <= TOLERANCE * plain.abs().max().clamp(min=1.0))

        return self.subject.discovery(self.batch).remember(("layers can be left out before", first), find_out)


def _replacing(edits: Mapping[int, NewWeights]) -> Edit:
    """An edit that puts new weights in place of the model's own; heads that come apart take theirs in turn."""

    def edit(record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        new = edits.get(record.order)
        if new is None:
            return weights, values
        before = sum(part.shape[1] for part in record.parts)
        heads = new.weights[:, before : before + weights.shape[1]]
        return weights.index_copy(2, new.rows, heads.to(weights.dtype)), values

    return edit


# ---- layers that hand out what they gave before ----------------------------------------------------------------------


def _outputs_of(subject: Subject, batch: Batch) -> _Outputs:
    """What every layer gives in one pass over a batch."""
    found, counts = _Outputs(), defaultdict[str, int](int)
    running: list[Call] = []
    sites = {(site.module, site.call) for own in subject.structure(batch).calls.values() for site in own}

    def before(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        running.append((name, counts[name]))
        counts[name] += 1

    def after(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call = running.pop()
        if call in sites:
            found.calls.append((call, _kept(output)))

    def seen(record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if record.order == len(found.ended):  # not a further head of the block before
            found.ended.append(len(found.calls))
            found.inside.append(set(running))
        return weights, values

    modules = [(name, subject.model.get_submodule(name)) for name in dict.fromkeys(name for name, _ in sites)]
    with subject.lent(), hooked(modules, before, after):
        subject.logits(batch, edit=seen)
    return found


def _example_axes(subject: Subject, batch: Batch) -> dict[Call, list[int | None]]:
    """The axis of examples of every tensor that a layer gives, in order; None for a tensor without one."""

    def find_out() -> dict[Call, list[int | None]]:
        one, two = (dict(_outputs_of(subject, batch.chosen([0] * count)).calls) for count in (1, 2))
        return {
            call: [_longer(a, b) for a, b in zip(_tensors(one[call]), _tensors(two[call]), strict=True)] for call in one
        }

    return subject.discovery(batch).remember("axes of examples in layers", find_out)


def _longer(one: Tensor, two: Tensor) -> int | None:
    sizes = zip(one.shape, two.shape, strict=True)
    return next((axis for axis, (a, b) in enumerate(sizes) if a != b), None)


@contextlib.contextmanager
def _handing_out(model: nn.Module, given: Mapping[Call, Any], copies: int) -> Iterator[None]:
    """A scope in which these calls of layers are not run, and return what they gave before, for so many copies."""
    patched: list[tuple[nn.Module, Any]] = []
    try:
        for name in dict.fromkeys(name for name, _ in given):
            module = model.get_submodule(name)
            patched.append((module, vars(module).get("forward")))
            module.forward = _stand_in(module.forward, name, given, copies)
        yield
    finally:
        for module, own in patched:
            if own is None:
                del module.forward
            else:
                module.forward = own


def _stand_in(forward: Callable[..., Any], name: str, given: Mapping[Call, Any], copies: int) -> Callable[..., Any]:
    """The forward of a layer that is run only in the calls whose output is not known."""
    calls = iter(range(10**9))

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        call = (name, next(calls))
        return _repeated(given[call], copies) if call in given else forward(*args, **kwargs)

    return stand_in


@dataclass(frozen=True)
class _Leaf:
    """A tensor that a layer gave, and its axis of examples."""

    tensor: Tensor
    axis: int | None


def _kept(holder: Any) -> Any:
    """An output with copies of its tensors, because the model may go on to change them in place."""
    if isinstance(holder, Tensor):
        return holder.detach().clone()
    if isinstance(holder, (tuple, list)):
        return type(holder)(_kept(part) for part in holder)
    return {name: _kept(part) for name, part in holder.items()} if type(holder) is dict else holder


def _tensors(holder: Any) -> list[Tensor]:
    """The tensors of an output, in order."""
    if isinstance(holder, Tensor):
        return [holder]
    parts = holder.values() if type(holder) is dict else holder if isinstance(holder, (tuple, list)) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _mapped(holder: Any, function: Callable[[Any], Any]) -> Any:
    """An output with a function applied to its tensors or leaves, in order."""
    if isinstance(holder, (Tensor, _Leaf)):
        return function(holder)
    if isinstance(holder, (tuple, list)):
        return type(holder)(_mapped(part, function) for part in holder)
    return {name: _mapped(part, function) for name, part in holder.items()} if type(holder) is dict else holder


def _with_axes(output: Any, axes: list[int | None]) -> Any:
    left = iter(axes)
    return _mapped(output, lambda tensor: _Leaf(tensor, next(left)))


def _repeated(output: Any, copies: int) -> Any:
    """An output of one example for so many copies of it."""
    return _mapped(output, lambda leaf: leaf.tensor if leaf.axis is None else _copies(leaf.tensor, copies, leaf.axis))


def _copies(tensor: Tensor, copies: int, axis: int) -> Tensor:
    return torch.cat([tensor] * copies, axis) if copies > 1 else tensor.clone()
