"""Value zeroing: how far the output of a layer turns when the value vector of one token is taken away."""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence.core.registry import method
from whence.methods.attention import Read, finished, readers, steps
from whence.model.batching import Batch
from whence.model.loan import eager, lent
from whence.model.passes import Trace
from whence.model.subject import Subject
from whence.model.tap import Edit, Record, Tap
from whence.model.targets import Aim

TOKENS = 2048  # of all copies of a batch that go through a layer at once


@method(family="attention", signed=False, needs=("attention", "values", "deciding"), paper="arXiv:2301.12971")
def value_zeroing(
    subject: Subject, batch: Batch, target: Aim, *, layer: int | list[int] | None = None, read: Read = "row"
) -> Tensor:
    """Value zeroing: how far each layer's output turns when one token's value vectors are zero, rolled out.

    C_ij = 1 - cos(x~_i, x_i): x is the output of the whole layer (the module call around the attention), x~ the same
    from the same input and attention weights, with the values of token j set to zero in all heads. Rows are divided by
    their sums and multiplied over layers, later ones on the left; no identity is added, since the residual is inside
    the layer. In a layer with several attentions (self and cross, co-attention) the values of one at a time are zeroed,
    the output of the stream of its queries is compared, and a row is divided by its sum over the keys of all of them.
    A row in which nothing changes keeps its weight in place. `layer` takes the map of one layer, or the mean of those
    of several, instead of the rollout: numbers among the layers of the stream that decides; `read` is as in
    `attention`.
    """
    trace = subject.trace(batch, target, ("attention", "values", "deciding"))
    steps(subject, trace)
    state = readers(subject, trace, batch, read)  # (batch, row, feature): the rows of the product that are read
    with lent(subject.model), eager(subject.model), torch.no_grad():
        layers = found_layers(subject, batch, trace)
        if layer is None:
            for one in reversed(layers):
                state = state @ shares(zeroed(subject, batch, one))
        else:
            state = state @ _mean(subject, batch, trace, layers, layer)
    return finished(state, batch, trace, read)


@dataclass(eq=False)
class Layer:
    """One call of a module that is a layer: what it was given and gave, and the attentions inside."""

    module: nn.Module
    streams: dict[str, str | int]  # stream -> the argument that holds its state
    given: tuple[tuple[Any, ...], dict[str, Any]]
    output: Any = None
    records: list[Record] = field(default_factory=list)
    wider: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})  # given for one example more: tells where examples are

    def states(self, output: Any) -> dict[str, Tensor]:
        """The states among what the layer gave, in the order of its arguments: stream -> (batch, token, width)."""
        parts = output if isinstance(output, (tuple, list)) else [output]
        rest = [part for part in parts if isinstance(part, Tensor) and part.ndim == 3]
        order = [*range(len(self.given[0])), *self.given[1]]
        found = {}
        for stream in sorted(self.streams, key=lambda stream: order.index(self.streams[stream])):
            moved, like = [part.movedim(self.axis(stream), 0) for part in rest], self.entering(stream)
            place = next((n for n, part in enumerate(moved) if part.shape[1:] == like.shape[1:]), None)
            if place is not None:
                found[stream] = moved[place]
                del rest[place]
        return found

    def entering(self, stream: str) -> Tensor:
        """(batch, token, width)"""
        return _picked(self.given, self.streams[stream]).movedim(self.axis(stream), 0)

    def axis(self, stream: str) -> int:
        """Where the examples are in the state of a stream."""
        key = self.streams[stream]
        return _axis(_picked(self.given, key), _picked(self.wider, key)) or 0


def found_layers(subject: Subject, batch: Batch, trace: Trace) -> list[Layer]:
    """The layers of the model in the order in which it runs them, from two passes."""
    places: dict[int, int] = {}  # attention -> layer
    with _watched(subject, batch) as (layers, running):

        def seen(record: Record, *rest: Any) -> None:
            if running:
                places[record.order] = running[-1]
            record.parts.clear()  # the trace has them

        with Tap(subject.model, len(batch), seen=seen):
            subject.logits(batch)
    with _watched(subject, batch) as (others, _):
        subject.logits(batch.chosen([*range(len(batch)), 0]))
    for layer, other in zip(layers, others, strict=True):
        layer.wider = other.given
    for record in trace.attention:
        place = places.get(record.order)
        if place is None or record.query not in layers[place].states(layers[place].output):
            raise ValueError(_no_layer(subject))
        layers[place].records.append(record)
    return layers


def zeroed(subject: Subject, batch: Batch, layer: Layer) -> Tensor:
    """Cosine distances of a layer, (batch, feature, feature): 0 in the rows of streams that it does not move."""
    _check_residual(subject, batch, layer)
    (size, features), plain = batch.mask.shape, layer.states(layer.output)
    raw = torch.zeros(size, features, features, dtype=_dtype(subject), device=batch.mask.device)
    for number, record in enumerate(layer.records):
        query, key = batch.span(record.query), batch.span(record.key)
        real, felt = batch.mask[:, key], _felt(layer.records[number:])
        for some in real.any(0).nonzero()[:, 0].split(max(1, TOKENS // batch.mask.numel())):
            gone = F.one_hot(some, real.shape[1]).bool().repeat_interleave(size, 0)[:, None, :, None]
            states = _run(subject, layer, len(some), size, _without(layer, number, gone))[record.query]
            distances = _distance(states.unflatten(0, (len(some), size)), plain[record.query], raw.dtype)
            raw[:, query, key][..., some] += distances.movedim(0, -1) * felt[..., some]
        raw[:, query, key] *= real[:, None]
    return raw


def shares(raw: Tensor) -> Tensor:
    """Rows divided by their sums; a row of zeros keeps its weight in place."""
    total = raw.sum(-1, keepdim=True)
    still = torch.eye(raw.shape[-1], dtype=raw.dtype, device=raw.device)
    return torch.where(total > 0, raw / torch.where(total > 0, total, 1.0), still)


def _mean(subject: Subject, batch: Batch, trace: Trace, layers: list[Layer], numbers: int | list[int]) -> Tensor:
    """The mean map of some layers of the deciding streams, whose rows alone are filled: (batch, feature, feature)."""
    chosen = numbers if isinstance(numbers, list) else [numbers]
    if not chosen:
        raise ValueError("value_zeroing: layer takes a number, a list of at least one, or None for all, not []")
    size, features = batch.mask.shape
    mean = torch.zeros(size, features, features, dtype=_dtype(subject), device=batch.mask.device)
    for stream in trace.deciding:
        own = [layer for layer in layers if any(record.query == stream for record in layer.records)]
        span = batch.span(stream)
        for number in chosen:
            if not -len(own) <= number < len(own):
                raise ValueError(f"layer {number} is out of range: {subject.name} has {len(own)} layers here, from 0")
            mean[:, span] += shares(zeroed(subject, batch, own[number]))[:, span] / len(chosen)
    return mean


@contextlib.contextmanager
def _watched(subject: Subject, batch: Batch) -> Iterator[tuple[list[Layer], list[int]]]:
    """Hooks that note the calls that are layers, and the numbers of those under way; removed on the way out."""
    wanted: dict[str, dict[int, dict[str, str | int]]] = defaultdict(lambda: defaultdict(dict))
    for sites in subject.anatomy(batch).calls.values():
        for site in sites:
            wanted[site.module][site.call][site.stream] = site.key
    modules = dict(subject.model.named_modules())
    layers: list[Layer] = []
    running: list[int] = []
    handles = []
    try:
        for name, calls in wanted.items():
            count = itertools.count()

            def before(module: Any, args: Any, kwargs: Any, calls: Any = calls, count: Any = count) -> None:
                running.append(len(layers))
                layers.append(Layer(module, calls[next(count)], (args, kwargs)))

            def after(module: Any, args: Any, output: Any) -> None:
                layers[running.pop()].output = output

            handles.append(modules[name].register_forward_pre_hook(before, with_kwargs=True))
            handles.append(modules[name].register_forward_hook(after))
        yield layers, running
    finally:
        for handle in handles:
            handle.remove()


def _run(subject: Subject, layer: Layer, copies: int, size: int, edit: Edit) -> dict[str, Tensor]:
    """The layer on copies of what it was given, with its attention edited: stream -> (copy * batch, token, width)."""
    args, kwargs = _copied(layer.given, layer.wider, copies)
    with Tap(subject.model, copies * size, edit=edit):
        return layer.states(layer.module(*args, **kwargs))


def _without(layer: Layer, number: int, gone: Tensor) -> Edit:
    """Weights as they were recorded; in one of the attentions, values without what is gone."""

    def edit(record: Record, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        part = layer.records[record.order].parts[len(record.parts)]
        weights = part.repeat(len(weights) // len(part), 1, 1, 1)
        return weights, values.masked_fill(gone, 0.0) if record.order == number else values

    return edit


def _distance(changed: Tensor, plain: Tensor, dtype: torch.dtype) -> Tensor:
    """1 - cos, (copy, batch, token), as half the squared distance of unit vectors: so small ones keep their digits."""
    return (F.normalize(changed.to(dtype), dim=-1) - F.normalize(plain.to(dtype), dim=-1)).square().sum(-1) / 2


def _felt(records: list[Record]) -> Tensor:
    """Where values of the first attention reach in the layer, (batch, query, key): a change elsewhere is rounding."""
    first, *later = records
    felt = ((first.weights != 0) & (first.values != 0).any(-1)[:, :, None]).any(1)
    for record in later:
        if record.query == record.key == first.query:
            felt = felt | ((record.weights != 0).any(1).float() @ felt.float() > 0)
    return felt


def _check_residual(subject: Subject, batch: Batch, layer: Layer) -> None:
    """Without attention a layer still tells its tokens apart; a module that does not is less than a layer."""
    bare = _run(subject, layer, 1, len(batch), lambda record, weights, values: (weights, torch.zeros_like(values)))
    for record in layer.records:
        if _alike(bare[record.query]) and not _alike(layer.entering(record.query)):
            raise ValueError(_no_layer(subject))


def _alike(states: Tensor) -> bool:
    return bool((states == states[0, 0]).all())


def _copied(given: Any, wider: Any, copies: int) -> Any:
    """Tensors that a wider batch makes wider are repeated along that axis; a cache, which would grow, is left out."""
    if isinstance(given, Tensor):
        axis = _axis(given, wider)
        return given if axis is None else torch.cat([given] * copies, axis)
    if isinstance(given, (tuple, list)):
        return type(given)(_copied(one, other, copies) for one, other in zip(given, wider, strict=True))
    if isinstance(given, dict):
        return {name: _copied(one, wider[name], copies) for name, one in given.items()}
    return None if hasattr(given, "get_seq_length") else given


def _axis(given: Tensor, wider: Tensor) -> int | None:
    """Where the examples are: the axis that a wider batch makes longer."""
    sizes = zip(given.shape, wider.shape, strict=True)
    return next((axis for axis, (size, more) in enumerate(sizes) if size != more), None)


def _picked(given: tuple[tuple[Any, ...], dict[str, Any]], key: str | int) -> Tensor:
    return given[1][key] if isinstance(key, str) else given[0][key]


def _dtype(subject: Subject) -> torch.dtype:
    return torch.promote_types(subject.dtype, torch.float32)


def _no_layer(subject: Subject) -> str:
    return (
        f"value_zeroing needs layers that are modules, with the residual connection inside, and {subject.name} has "
        "attention that is in none; use rollout, or write each layer as a module that takes states and gives them"
    )
