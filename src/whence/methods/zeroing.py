"""Value zeroing: how far the output of a layer turns when the value vector of one token is taken away."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.core.registry import Explained, method
from whence.methods.attention import LayerNumbers, Read, finished, readers, steps
from whence.methods.rollouts import collapse_notes, rolled_out, with_halves
from whence.methods.sinks import Sinks, sink_tokens, square_without_sinks
from whence.model.batching import Batch
from whence.model.layers import Layer, layers_of
from whence.model.passes import Trace
from whence.model.subject import Subject
from whence.model.tap import AttentionRecord, Edit
from whence.model.targets import Aim
from whence.propagation.few_changes import Changed, FewChanges

MAX_TOKENS = 2048  # the most tokens of all copies of a batch that go through a layer together


@method(family="attention", signed=False, needs=("attention", "values", "deciding"), paper="arXiv:2301.12971")
def value_zeroing(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    layer: LayerNumbers | None = None,
    read: Read = "row",
    sinks: Sinks = "keep",
) -> Explained:
    """Value zeroing: how far each layer's output turns when one token's value vectors are zero, rolled out.

    C_ij = 1 - cos(x~_i, x_i): x is the output of the whole layer (the module call around the attention), x~ the same
    from the same input and attention weights, with the values of token j set to zero in all heads. Rows are divided by
    their sums and multiplied over layers, later ones on the left; no identity is added, since the residual is inside
    the layer. In a layer with several attentions (self and cross, co-attention) the values of one at a time are zeroed,
    the output of the stream of its queries is compared, and a row is divided by its sum over the keys of all of them.
    A row in which nothing changes keeps its weight in place. `layer` takes the map of one layer, or the mean of those
    of several, instead of the rollout: numbers among the layers of the stream that decides; `read` is as in
    `attention`, `sinks` as in `rollout`.
    """
    trace = subject.trace(batch, target)
    steps(subject, trace)
    state = readers(subject, trace, batch, read)  # (batch, row, feature): the rows of the product that are read
    run, run_trace = _run(subject, batch, target, trace)
    layers = layers_of(subject, run, run_trace)
    if sum(len(one.records) for one in layers) < len(trace.attention):
        raise ValueError(_no_layer(subject))
    tokens = sink_tokens(subject, batch) if sinks != "keep" else torch.zeros_like(batch.mask)
    if layer is not None:
        chosen = square_without_sinks(batch.spread(_mean(subject, run, run_trace, layers, layer)), tokens, sinks)
        return Explained(finished(state @ chosen, batch, trace, read))
    maps = (
        square_without_sinks(batch.spread(shares(zeroed(subject, run, one))), tokens, sinks) for one in reversed(layers)
    )
    product = rolled_out(with_halves(state, batch), maps).exp()
    scores = finished(product[:, 2:], batch, trace, read)
    return Explained(scores, notes_by_example=collapse_notes(product[:, :2], scores, batch))


def _run(subject: Subject, batch: Batch, target: Aim, trace: Trace) -> tuple[Batch, Trace]:
    """The batch in which values are zeroed, and its trace; of examples that are beginnings, their whole sequences."""
    if batch.sequences is None:
        return batch, trace
    of = batch.sequences.of.tolist()
    wholes = replace(batch.sequences.wholes)  # a copy: its trace shall not outlive this call
    aim = target.anew([of.index(sequence) for sequence in range(len(wholes))])
    return wholes, subject.trace(wholes, aim, trace.needs)


def zeroed(subject: Subject, batch: Batch, layer: Layer) -> Tensor:
    """Cosine distances of a layer, (batch, feature, feature): 0 in the rows of streams that it does not move."""
    _check_residual(subject, batch, layer)
    size, features = batch.mask.shape
    raw = torch.zeros(size, features, features, dtype=subject.accumulation, device=batch.mask.device)
    for number, record in enumerate(layer.records):
        query, key = batch.span(record.query), batch.span(record.key)
        real, reached = batch.mask[:, key], _reached(layer.records[number:])
        nothing = torch.zeros_like(real)[:, None, :, None]
        few = FewChanges(number, size, float(reached.float().mean()))
        few.next_run(_product(record, real.new_zeros(0, dtype=torch.long)))
        plain = layer.run(1, size, _zeroing(layer, number, nothing), few)[record.query]
        for keys in real.any(0).nonzero()[:, 0].split(max(1, MAX_TOKENS // batch.mask.numel())):
            gone = F.one_hot(keys, real.shape[1]).bool().repeat_interleave(size, 0)[:, None, :, None]
            few.next_run(_product(record, keys))
            states = layer.run(len(keys), size, _zeroing(layer, number, gone), few)[record.query]
            distances = _distance(states.unflatten(0, (len(keys), size)), plain, raw.dtype)
            raw[:, query, key][..., keys] += distances.movedim(0, -1) * reached[..., keys]
        raw[:, query, key] *= real[:, None]
    return raw


def _product(record: AttentionRecord, keys: Tensor) -> Changed:
    """The product of an attention without the values at one of the keys, a copy for each; of no keys, the whole one."""
    weights, values = record.weights.detach(), record.values.detach()
    heads = values.shape[1]
    fixed = (weights @ values).transpose(1, 2).flatten(2)
    if not len(keys):
        size, queries, width = fixed.shape
        return Changed(fixed, fixed.new_zeros(size, queries, heads), fixed.new_zeros(size, heads, width))
    factors = -weights[..., keys].permute(3, 0, 2, 1).flatten(0, 1)  # (key * example, query, head)
    moved = values[:, :, keys].permute(2, 0, 1, 3).flatten(0, 1)  # (key * example, head, width)
    by_head = torch.eye(heads, dtype=moved.dtype, device=moved.device)
    return Changed(fixed, factors, torch.einsum("chd,hg->chgd", moved, by_head).flatten(2))


def shares(raw: Tensor) -> Tensor:
    """Rows divided by their sums; a row of zeros becomes a row of the identity."""
    total = raw.sum(-1, keepdim=True)
    identity = torch.eye(raw.shape[-1], dtype=raw.dtype, device=raw.device)
    return torch.where(total > 0, raw / torch.where(total > 0, total, 1.0), identity)


def _mean(subject: Subject, batch: Batch, trace: Trace, layers: list[Layer], numbers: int | list[int]) -> Tensor:
    """The mean map of some layers of the deciding streams, whose rows alone are filled: (batch, feature, feature)."""
    chosen = numbers if isinstance(numbers, list) else [numbers]
    size, features = batch.mask.shape
    mean = torch.zeros(size, features, features, dtype=subject.accumulation, device=batch.mask.device)
    for stream in trace.deciding:
        moved = [layer for layer in layers if any(record.query == stream for record in layer.records)]
        span = batch.span(stream)
        for number in chosen:
            if not -len(moved) <= number < len(moved):
                raise ValueError(f"layer {number} is out of range: {subject.name} has {len(moved)} layers here, from 0")
            mean[:, span] += shares(zeroed(subject, batch, moved[number]))[:, span] / len(chosen)
    return mean


def _zeroing(layer: Layer, number: int, gone: Tensor) -> Edit:
    """An edit that uses the recorded weights and, in one of the layer's attentions, zeroes the values at `gone`."""

    def edit(record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        part = layer.records[record.order].parts[len(record.parts)]
        weights = part.repeat(len(weights) // len(part), 1, 1, 1)
        return weights, values.masked_fill(gone, 0.0) if record.order == number else values

    return edit


def _distance(changed: Tensor, plain: Tensor, dtype: torch.dtype) -> Tensor:
    """1 - cos, (copy, batch, token), as half the squared distance of unit vectors: small ones keep their digits."""
    return (F.normalize(changed.to(dtype), dim=-1) - F.normalize(plain.to(dtype), dim=-1)).square().sum(-1) / 2


def _reached(records: list[AttentionRecord]) -> Tensor:
    """Which queries the value at each key can reach, (batch, query, key) bool: changes at other queries are rounding.

    The first record is of the attention whose values are zeroed, the others are later in the same layer.
    """
    first, *later = records
    reached = ((first.weights != 0) & (first.values != 0).any(-1)[:, :, None]).any(1)
    for record in later:
        if record.query == record.key == first.query:
            reached = reached | ((record.weights != 0).any(1).float() @ reached.float() > 0)
    return reached


def _check_residual(subject: Subject, batch: Batch, layer: Layer) -> None:
    """Raise for a module without the residual inside: where all values are zero, all tokens leave it with one state."""
    bare = layer.run(1, len(batch), lambda record, weights, values: (weights, torch.zeros_like(values)))
    for record in layer.records:
        if _alike(bare[record.query]) and not _alike(layer.entering(record.query)):
            raise ValueError(_no_layer(subject))


def _alike(states: Tensor) -> bool:
    return bool((states == states[0, 0]).all())


def _no_layer(subject: Subject) -> str:
    return (
        f"value_zeroing needs layers that are modules, with the residual connection inside, and {subject.name} has "
        "attention that is in none; use rollout, or write each layer as a module that takes states and gives them"
    )
