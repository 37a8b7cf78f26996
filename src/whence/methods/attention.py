"""Attention itself, as an explanation."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from whence.attention import Record
from whence.batching import Batch
from whence.registry import Explained, method
from whence.subject import Subject, Trace
from whence.targets import Aim

Heads = Literal["mean", "max", "min", "sum"] | int | list[int]
Read = Literal["row", "received", "received_sum", "received_max", "column"]


@method(family="attention", signed=False, needs=("attention", "deciding"), paper="arXiv:1706.03762")
def attention(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    layer: int | list[int] = -1,
    heads: Heads = "mean",
    read: Read = "row",
) -> Explained:
    """Raw attention weights of one layer (or the mean of several), heads reduced, read at the deciding token.

    `read`: "row" is what the deciding token attends to; "received", "received_sum" and "received_max" are the mean, sum
    and maximum over all queries of what a token receives; "column" is the attention paid to the deciding token.
    """
    trace = subject.trace(batch, target, ("attention", "deciding"))
    layers = layer if isinstance(layer, list) else [layer]
    scores: dict[str, Tensor] = {}
    sinks = []
    for records in _connections(subject, trace):
        chosen = [_numbered(records, number, subject) for number in layers]
        maps = torch.stack([_reduced(record.weights, heads) for record in chosen]).mean(0)  # (batch, query, key)
        scores[records[0].key] = _read(maps, records[0], trace, batch, read)
        sink = torch.stack([record.sink.mean(1) for record in chosen]).mean(0)  # (batch, query)
        sinks.append(_mean(sink[..., None], trace.deciding[records[0].query] & _real(records[0], batch))[:, 0])
    share = torch.stack(sinks).amax(0)
    details = {"sink": share} if share.amax() > 1e-3 else {}
    return Explained(subject.on_features(batch, scores), details=details)


def _connections(subject: Subject, trace: Trace) -> list[list[Record]]:
    """For each stream of keys, the blocks through which the deciding streams look at it, first to last."""
    if any(not record.query for record in trace.attention):
        raise ValueError(
            f"{subject.name} attends within windows, not over the whole sequence, so attention weights cannot be "
            "placed on its features; use a gradient or perturbation method such as gradient_x_input"
        )
    groups: dict[str, list[Record]] = {}
    for key in dict.fromkeys(record.key for record in trace.attention):
        for query in trace.deciding:
            found = [record for record in trace.attention if (record.query, record.key) == (query, key)]
            if found:
                groups[key] = found
    if not groups:
        raise ValueError(
            f"the output of {subject.name} reads no attention that spans its inputs; use a gradient method"
        )
    return list(groups.values())


def _numbered(records: list[Record], number: int, subject: Subject) -> Record:
    if not -len(records) <= number < len(records):
        raise ValueError(f"layer {number} is out of range: {subject.name} has {len(records)} layers here, from 0")
    return records[number]


def _reduced(weights: Tensor, heads: Heads) -> Tensor:
    """(batch, head, query, key) to (batch, query, key)."""
    if isinstance(heads, (int, list)):
        chosen = [heads] if isinstance(heads, int) else heads
        if not chosen or not all(-weights.shape[1] <= head < weights.shape[1] for head in chosen):
            raise ValueError(f"heads={heads} is out of range: the layer has {weights.shape[1]} heads, from 0")
        return weights[:, chosen].mean(1)
    if heads in ("mean", "sum"):
        return weights.mean(1) if heads == "mean" else weights.sum(1)
    return weights.amax(1) if heads == "max" else weights.amin(1)


def _read(maps: Tensor, record: Record, trace: Trace, batch: Batch, read: Read) -> Tensor:
    """(batch, query, key) to (batch, key)."""
    real = _real(record, batch)
    if read == "row":
        rows = trace.deciding[record.query] & real
        return _mean(maps, rows)
    if read == "column":
        if record.query != record.key:
            raise ValueError("read='column' needs queries and keys of one stream; use read='row' or 'received' here")
        return _mean(maps.transpose(1, 2), trace.deciding[record.query] & real)
    if read == "received":
        return _mean(maps, real)
    received = maps.masked_fill(~real[:, :, None], 0.0)
    return received.sum(1) if read == "received_sum" else received.amax(1)


def _real(record: Record, batch: Batch) -> Tensor:
    """The queries that are not padding: (batch, query)."""
    return batch.mask[:, batch.span(record.query)]


def _mean(maps: Tensor, rows: Tensor) -> Tensor:
    """The mean of the chosen rows: (batch, query, key), (batch, query) to (batch, key)."""
    chosen = rows.to(maps.dtype)
    return (chosen[:, :, None] * maps).sum(1) / chosen.sum(1, keepdim=True)
