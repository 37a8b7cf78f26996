"""Attention as an explanation: raw, rolled out, and as a flow.

All three work on the joint graph of a model's streams: every attention block (self-, cross-, co-) is one step, in the
order in which the model runs the blocks. In a step, tokens of the block's query stream look at its key stream; tokens
of other streams keep their place. On a model with one stream this is the layered graph of the papers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from whence.core.registry import Explained, method
from whence.core.specs import Between, Number, Share
from whence.methods.rollouts import collapse_notes, with_halves
from whence.methods.sinks import Sinks, sink_tokens, without_sinks
from whence.model.batching import Batch
from whence.model.passes import Trace
from whence.model.precision import wide
from whence.model.subject import Subject
from whence.model.tap import AttentionRecord
from whence.model.targets import Aim
from whence.propagation.long_inputs import Fold, FoldOf, fold_attention

Heads = Literal["mean", "max", "min", "sum"] | Number | list[Number]
LayerNumbers = Number | list[Number]
FirstLayer = Annotated[int, Between(0, 10_000)]
Read = Literal["row", "received", "received_sum", "received_max", "column"]
ONE_ROW = ("row", "received", "received_sum")  # ways to read for which a fold carries a single row of state


@method(family="attention", signed=False, needs=("attention", "deciding"), paper="arXiv:1706.03762")
def attention(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    layer: LayerNumbers = -1,
    heads: Heads = "mean",
    read: Read = "row",
    scores: bool = False,
    sinks: Literal["keep", "exclude"] = "keep",
) -> Explained:
    """Raw attention weights of one layer (or the mean of several), heads reduced, read at the deciding token.

    `read`: "row" is what the deciding token attends to; "received", "received_sum" and "received_max" are the mean, sum
    and maximum over all queries of what a token receives; "column" is the attention paid to the deciding token.
    `scores` reads the scores that the softmax is given, which have a sign, in place of the weights that it makes; a
    token then receives only from the queries that may see it. `sinks="exclude"` takes attention sinks out of the map
    and scales what is left of each row to the sum that it had.
    """
    if scores and sinks != "keep":
        raise ValueError("sinks='exclude' divides what is left of attention weights, and scores=True reads none")
    trace = subject.trace(batch, target, ("scores",) if scores else ())
    tokens = sink_tokens(subject, batch) if sinks != "keep" else torch.zeros_like(batch.mask)
    layers = layer if isinstance(layer, list) else [layer]
    by_stream: dict[str, Tensor] = {}
    learned = []  # the shares of learned sinks
    for records in by_key_stream(subject, trace):
        chosen = [of_layer(records, number, subject) for number in layers]
        values = [record.scores if scores else record.weights for record in chosen]  # (batch, head, query, key) each
        maps = torch.stack([reduced(one, heads) for one in values]).mean(0)  # (batch, query, key)
        maps, _ = without_sinks(maps, tokens, sinks, batch.span(records[0].query), batch.span(records[0].key))
        # A score of 0 in every head marks a masked pair; a weight of 0 is a weight like any other.
        counts = torch.stack([(one != 0).any(1) | (not scores) for one in values]).any(0)
        by_stream[records[0].key] = _read_map(maps, counts, records[0], trace, batch, read)
        sink = torch.stack([record.sink.mean(1) for record in chosen]).mean(0)  # (batch, query)
        learned.append(mean_of_rows(sink[..., None], trace.deciding[records[0].query] & real(records[0], batch))[:, 0])
    details = _sink_details(torch.stack(learned).amax(0))
    return Explained(subject.on_features(batch, by_stream), details=details, signed=scores)


@method(family="attention", signed=False, needs=("attention", "deciding"), paper="arXiv:2005.00928")
def rollout(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    heads: Heads = "mean",
    residual: Share = 0.5,
    discard: Annotated[float, Between(0, 1, without_most=True)] = 0.0,
    start_layer: FirstLayer = 0,
    read: Read = "row",
    sinks: Sinks = "keep",
) -> Explained:
    """Attention followed through all layers: the product of (1 - w) A + w I, later layers on the left.

    `residual` is w, the share that stays in place (0.5 in the paper); `discard` drops that share of the smallest
    weights of every map and fills the rows up again; `start_layer` leaves out the first layers; `read` is as in
    `attention`. `sinks="exclude"` takes attention sinks out of every map and scales what is left of each row to the sum
    that it had; "stay" reads attention to a sink as doing nothing, so that its share stays in place.
    """

    def fold_of(batch: Batch) -> Fold:
        tokens = sink_tokens(subject, batch) if sinks != "keep" else torch.zeros_like(batch.mask)

        def tile(
            state: Tensor, added: Tensor, rows: slice, keys: slice, weights: Tensor, gradient: Any, share: float
        ) -> None:
            maps = wide(weights).sum(1) * share if heads == "mean" else reduced(weights, heads)
            maps, stays = without_sinks(_discarded(maps, discard, rows, keys, batch), tokens, sinks, rows, keys)
            added[:, :, keys] += (1 - residual) * state[:, :, rows] @ maps.to(state.dtype)
            if sinks != "keep":
                added[:, :, rows] += (1 - residual) * state[:, :, rows] * stays[:, None].to(state.dtype)

        def merge(state: Tensor, added: Tensor, queries: slice) -> Tensor:
            added += state
            added[:, :, queries] -= (1 - residual) * state[:, :, queries]
            return added

        def start(deciding: dict[str, Tensor]) -> Tensor:
            rows = reading(subject, batch, deciding, read)
            # Without a share that stays in place, entries may underflow in 32 bits.
            return with_halves(rows if residual else rows.double(), batch)

        return Fold(start, tile, merge, gradient=False)

    # Other options need whole maps.
    in_tiles = heads == "mean" and not discard and read in ONE_ROW and sinks != "exclude"
    state, trace = fold_state(subject, batch, target, fold_of, start_layer, in_tiles=in_tiles)
    scores = _of_state(state[:, 2:], batch, trace, read)
    return Explained(scores, notes_by_example=collapse_notes(state[:, :2], scores, batch))


@method(family="attention", signed=False, needs=("attention", "deciding"), paper="arXiv:2005.00928")
def flow(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    heads: Heads = "mean",
    residual: Share = 0.5,
    start_layer: FirstLayer = 0,
    scale: Annotated[int, Between(1, 10**9)] = 10**6,
    matrix: bool = False,
    sinks: Sinks = "keep",
) -> Explained:
    """The greatest flow from the deciding token to each input token, with attention as the capacities of the edges.

    Edges carry (1 - w) A + w I as in `rollout`, in units of 1 / `scale`, since the solver counts in whole numbers; the
    flows of a row are then divided by their sum. Several deciding tokens of a stream share its source equally. `matrix`
    puts the flows from every token to every other into the details. `sinks` is as in `rollout`.
    """
    from whence.methods.maxflow import Graph

    trace = subject.trace(batch, target)
    start = readers(subject, trace, batch, "row")[:, 0]  # (batch, feature)
    blocks = steps(subject, trace, start_layer)
    mask = batch.mask.cpu().numpy()
    tokens = sink_tokens(subject, batch) if sinks != "keep" else torch.zeros_like(batch.mask)
    raw = np.zeros(mask.shape)
    matrices = []
    for row in range(len(batch)):
        layers = []
        for record in blocks:
            rows, keys = batch.span(record.query), batch.span(record.key)
            maps = reduced(record.weights[row : row + 1], heads)
            maps, stays = without_sinks(maps, tokens[row : row + 1], sinks, rows, keys)
            weights = (1 - residual) * (maps + torch.diag_embed(stays) if record.query == record.key else maps)[0]
            layers.append((weights.double().cpu().numpy(), rows, keys))
        graph = Graph(layers, residual, mask[row], scale)
        if matrix:
            matrices.append(graph.matrix()[mask[row]][:, mask[row]])
        raw[row] = graph.row(start[row].double().cpu().numpy())
    total = raw.sum(1, keepdims=True)
    scores = np.divide(raw, total, out=np.zeros_like(raw), where=total > 0)
    details = {"flow": batch.unpadded(torch.from_numpy(raw))} | ({"matrix": matrices} if matrix else {})
    return Explained(torch.from_numpy(scores).float(), details=details)


def steps(subject: Subject, trace: Trace, start_layer: int = 0) -> list[AttentionRecord]:
    """The attention blocks in the order the model runs them, without the first layers of every connection."""
    depth = 1 + max(record.layer for record in trace.attention)
    if not 0 <= start_layer < depth:
        raise ValueError(f"start_layer={start_layer} is out of range: {subject.name} has {depth} layers, from 0")
    _check_spans_inputs(subject, trace)
    return [record for record in trace.attention if record.layer >= start_layer]


def folded(
    subject: Subject,
    batch: Batch,
    target: Aim,
    fold_of: FoldOf,
    read: Read = "row",
    start_layer: FirstLayer = 0,
    *,
    in_tiles: bool = True,
) -> Tensor:
    """The scores (batch, feature) of a fold over all attention blocks, last to first; `in_tiles` as in `fold_state`."""
    state, trace = fold_state(subject, batch, target, fold_of, start_layer, in_tiles=in_tiles)
    return _of_state(state, batch, trace, read)


def fold_state(
    subject: Subject, batch: Batch, target: Aim, fold_of: FoldOf, start_layer: FirstLayer = 0, *, in_tiles: bool = True
) -> tuple[Tensor, Trace | None]:
    """The state (batch, row, feature) of a fold over all attention blocks, and the trace that it was made from.

    `in_tiles` says that the fold may be given attention a head and some rows at a time; the subject then does so for
    long inputs, whose attention would not fit into memory.
    """
    state = fold_attention(subject, batch, target, fold_of, start_layer) if in_tiles else None
    if state is not None:
        return state, None
    trace = subject.trace(batch, target)
    blocks, fold = steps(subject, trace, start_layer), fold_of(batch)
    state = fold.start(trace.deciding)
    for record in reversed(blocks):
        added, queries = torch.zeros_like(state), batch.span(record.query)
        gradient = record.gradient if record.gradient_parts else None
        weights = record.weights
        fold.tile(state, added, queries, batch.span(record.key), weights, gradient, 1 / weights.shape[1])
        state = fold.merge(state, added, queries)
    return state, trace


def _of_state(state: Tensor, batch: Batch, trace: Trace | None, read: Read) -> Tensor:
    """The scores (batch, feature) of a fold's state. A fold by tiles has no trace and a single row to read."""
    if trace is None:
        return state[:, -1].masked_fill(~batch.mask, 0.0)
    return finished(state, batch, trace, read)


def readers(subject: Subject, trace: Trace, batch: Batch, read: Read) -> Tensor:
    """The rows, (batch, row, feature), by which a product of steps is multiplied from the left to read its scores.

    One row is enough where reading is linear in the product; other ways to read need every row of the identity.
    """
    _check_spans_inputs(subject, trace)
    return reading(subject, batch, trace.deciding, read)


def reading(subject: Subject, batch: Batch, deciding: dict[str, Tensor], read: Read) -> Tensor:
    """`readers`, given the positions that the output reads, stream -> (batch, token) bool."""
    size = batch.mask.shape[1]
    dtype = subject.accumulation
    if read in ("received_max", "column"):
        return torch.eye(size, dtype=dtype, device=batch.mask.device).repeat(len(batch), 1, 1)
    state = torch.zeros(len(batch), 1, size, dtype=dtype, device=batch.mask.device)
    for stream, rows in deciding.items():
        span = batch.span(stream)
        chosen = (rows if read == "row" else torch.ones_like(rows)) & batch.mask[:, span]
        share = (
            chosen.to(dtype) if read == "received_sum" else chosen.to(dtype) / chosen.sum(1, keepdim=True).clamp(min=1)
        )
        state[:, 0, span] = share.to(dtype)
    return state


def finished(state: Tensor, batch: Batch, trace: Trace, read: Read) -> Tensor:
    """The rows that were multiplied through all steps, (batch, row, feature), to scores, (batch, feature)."""
    if read == "received_max":
        scores = state.masked_fill(~batch.mask[:, :, None], 0.0).amax(1)
    elif read == "column":
        deciding = torch.zeros_like(batch.mask)
        for stream, rows in trace.deciding.items():
            deciding[:, batch.span(stream)] = rows
        scores = mean_of_rows(state.transpose(1, 2), deciding & batch.mask)
    else:
        scores = state[:, -1]
    return scores.masked_fill(~batch.mask, 0.0)


def reduced(weights: Tensor, heads: Heads) -> Tensor:
    """Attention with its heads reduced to one map: (batch, head, query, key) to (batch, query, key)."""
    weights = wide(weights)
    if isinstance(heads, (int, list)):
        chosen = [heads] if isinstance(heads, int) else heads
        if not chosen or not all(-weights.shape[1] <= head < weights.shape[1] for head in chosen):
            raise ValueError(f"heads={heads} is out of range: the layer has {weights.shape[1]} heads, from 0")
        return weights[:, chosen].mean(1)
    if heads in ("mean", "sum"):
        return weights.mean(1) if heads == "mean" else weights.sum(1)
    return weights.amax(1) if heads == "max" else weights.amin(1)


def real(record: AttentionRecord, batch: Batch) -> Tensor:
    """The queries that are not padding: (batch, query)."""
    return batch.mask[:, batch.span(record.query)]


def by_key_stream(subject: Subject, trace: Trace) -> Iterable[list[AttentionRecord]]:
    """For each stream of keys, the blocks through which the deciding streams look at it, first to last."""
    _check_spans_inputs(subject, trace)
    groups: dict[str, list[AttentionRecord]] = {}
    for record in trace.attention:
        if record.query in trace.deciding:
            groups.setdefault(record.key, []).append(record)
    return groups.values()


def _check_spans_inputs(subject: Subject, trace: Trace) -> None:
    """An error where attention is within windows, or the output does not depend on any attention over the inputs."""
    if any(not record.query for record in trace.attention):
        raise ValueError(
            f"{subject.name} attends within windows, not over the whole sequence, so attention weights cannot be "
            "placed on its features; use a gradient or perturbation method such as gradient_x_input"
        )
    if not trace.deciding:
        raise ValueError(f"{subject.name} reads no attention that spans its inputs; use a gradient method")


def of_layer(records: list[AttentionRecord], number: int, subject: Subject) -> AttentionRecord:
    """The record of a layer, counted from the last one where the number is negative."""
    if not -len(records) <= number < len(records):
        raise ValueError(f"layer {number} is out of range: {subject.name} has {len(records)} layers here, from 0")
    return records[number]


def _read_map(maps: Tensor, counts: Tensor, record: AttentionRecord, trace: Trace, batch: Batch, read: Read) -> Tensor:
    """Maps (batch, query, key) read as scores (batch, key); `counts` marks the pairs that are not masked."""
    queries = real(record, batch)
    if read == "row":
        return mean_of_rows(maps, trace.deciding[record.query] & queries)
    if read == "column":
        if record.query != record.key:
            raise ValueError("read='column' needs queries and keys of one stream; use read='row' or 'received' here")
        return mean_of_rows(maps.transpose(1, 2), trace.deciding[record.query] & queries)
    counts = counts & queries[:, :, None]
    if read == "received_max":  # scores before the softmax may all be below 0
        return maps.masked_fill(~counts, float("-inf")).amax(1).masked_fill(~counts.any(1), 0.0)
    total = maps.masked_fill(~counts, 0.0).sum(1)
    return total / counts.sum(1).clamp(min=1) if read == "received" else total


def mean_of_rows(maps: Tensor, rows: Tensor) -> Tensor:
    """The mean of the chosen rows: (batch, query, key), (batch, query) to (batch, key)."""
    chosen = rows.to(maps.dtype)
    return (chosen[:, :, None] * maps).sum(1) / chosen.sum(1, keepdim=True).clamp(min=1)


def _sink_details(share: Tensor) -> dict[str, Tensor]:
    """The share of the row's attention that a learned sink took, for the details; nothing where there is no sink."""
    return {"sink": share} if share.amax() > 1e-3 else {}


def _discarded(maps: Tensor, share: float, queries: slice, keys: slice, batch: Batch) -> Tensor:
    """Maps without the `share` of their entries that is smallest; rows are scaled to the sums they had before."""
    if not share:
        return maps
    not_padding = batch.mask[:, queries, None] & batch.mask[:, None, keys]
    kept = maps.clone()
    for example, (entries, counts) in enumerate(zip(maps, not_padding, strict=True)):
        number = int(share * int(counts.sum()))
        if number:
            kept[example].masked_fill_(entries <= entries[counts].kthvalue(number).values, 0.0)
    remaining = kept.sum(-1, keepdim=True)
    return torch.where(remaining > 0, kept * maps.sum(-1, keepdim=True) / remaining.clamp(min=1e-12), maps)
