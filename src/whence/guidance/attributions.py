"""Attributions as differentiable functions of a model's parameters, computed from one training pass.

On a model in eval mode each function equals the method of the same name. Scores are (batch, feature), 0 at padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from whence.model.tap import AttentionRecord
from whence.model.training_pass import TrainingPass

Read = Literal["row", "received"]
TINY = 1e-12  # the smallest weight whose logarithm is taken


def label_logit(seen: TrainingPass) -> Tensor:
    """The logit of every example's label, or of its prediction where no labels are known: (batch,)."""
    index = seen.logits.argmax(-1) if seen.labels is None else seen.labels
    return seen.logits.gather(1, index[:, None])[:, 0]


def blocks(seen: TrainingPass, layers: Sequence[int] | None = None) -> list[AttentionRecord]:
    """The attention blocks that span whole streams, of all layers or of some; negative numbers count from the last."""
    whole = [record for record in seen.attention if record.query and record.key]
    if not whole:
        raise ValueError(
            "this model attends only within windows or to something else than its inputs, so its attention cannot be "
            "placed on the words; use a loss on gradients, as right_reasons"
        )
    if layers is None:
        return whole
    pairs = [(record.query, record.key) for record in whole]
    depth = max(map(pairs.count, pairs))
    wrong = [number for number in layers if not -depth <= number < depth]
    if wrong:
        raise ValueError(f"layer {wrong[0]} is out of range: the model has {depth} layers here, from 0")
    chosen = []
    for record in whole:
        own = pairs.count((record.query, record.key))
        if record.layer in [number % own for number in layers if -own <= number < own]:
            chosen.append(record)
    return chosen


def rows(seen: TrainingPass, record: AttentionRecord, read: Read) -> Tensor:
    """The weight of every query in what is read, (batch, query): the deciding tokens, or all real tokens equally."""
    real = seen.batch.mask[:, seen.batch.span(record.query)]
    chosen = real & seen.deciding[record.query] if read == "row" else real
    return chosen / chosen.sum(1, keepdim=True).clamp(min=1)


def by_head(seen: TrainingPass, record: AttentionRecord, read: Read, heads: Sequence[int] | None) -> Tensor:
    """Attention of each head of a block to every key, at the deciding token or over all queries, (batch, head, key)."""
    weights = weights_of(record, heads)
    return torch.einsum("bq,bhqk->bhk", rows(seen, record, read).to(weights.dtype), weights)


def weights_of(record: AttentionRecord, heads: Sequence[int] | None) -> Tensor:
    """The attention weights of all heads of a block, or of some: (batch, head, query, key)."""
    if heads is None:
        return record.weights
    count = record.weights.shape[1]
    wrong = [number for number in heads if not -count <= number < count]
    if wrong:
        raise ValueError(f"head {wrong[0]} is out of range: the model has {count} heads here, from 0")
    return record.weights[:, list(heads)]


def read_blocks(seen: TrainingPass, layers: Sequence[int] | None, read: Read) -> list[AttentionRecord]:
    """The blocks that can be read in this way; a row can be read where the output reads the block's queries."""
    found = [r for r in blocks(seen, layers) if read == "received" or r.query in seen.deciding]
    if not found:
        raise ValueError(
            "the output reads no token of the attention that was asked for; choose another layer, or read='received'"
        )
    return found


def attention(
    seen: TrainingPass,
    *,
    layers: Sequence[int] | None = (-1,),
    heads: Sequence[int] | None = None,
    read: Read = "row",
) -> Tensor:
    """Attention weights, the mean over layers and heads, at the deciding token or received from all queries."""
    chosen = read_blocks(seen, layers, read)
    counts = {key: sum(record.key == key for record in chosen) for key in {record.key for record in chosen}}
    scores = zeros(seen)
    for record in chosen:
        share = by_head(seen, record, read, heads).mean(1) / counts[record.key]
        scores = placed(seen, scores, record.key, share)
    return scores


def attention_x_gradient(seen: TrainingPass, value: Tensor) -> Tensor:
    """The sum over layers, heads and queries of A o dvalue/dA."""
    scores = zeros(seen)
    gradients = {id(r): g for r, g in zip(seen.attention, seen.attention_gradients(value), strict=True)}
    for record in blocks(seen):
        queries = seen.batch.mask[:, seen.batch.span(record.query)]
        product = (record.weights * gradients[id(record)]).sum(1) * queries[:, :, None]  # (batch, query, key)
        scores = placed(seen, scores, record.key, product.sum(1))
    return scores


def gae(seen: TrainingPass, value: Tensor) -> Tensor:
    """Relevance carried through all layers by the head mean of (A o dvalue/dA)^+, read at the deciding token."""
    chosen = blocks(seen)
    if any(record.query != record.key for record in chosen):
        raise ValueError("gae in training is for models of one stream; use attention_x_gradient or gradient_x_input")
    gradients = {id(r): g for r, g in zip(seen.attention, seen.attention_gradients(value), strict=True)}
    state = {record.key: rows(seen, record, "row") for record in chosen if record.key in seen.deciding}
    start = dict(state)
    for record in reversed(chosen):
        if record.key in state:
            maps = (record.weights * gradients[id(record)]).clamp(min=0).mean(1)  # (batch, query, key)
            before = state[record.key].to(maps.dtype)
            state[record.key] = before + torch.einsum("bq,bqk->bk", before, maps)
    scores = zeros(seen)
    for stream, row in state.items():
        scores = placed(seen, scores, stream, row - start[stream])
    return scores.masked_fill(~seen.batch.mask, 0.0)


def gradient_x_input(seen: TrainingPass, value: Tensor) -> Tensor:
    """The sum over the width of a token's embedding of x dvalue/dx."""
    scores = zeros(seen)
    for stream, gradient in seen.embedding_gradients(value).items():
        scores = placed(seen, scores, stream, (seen.embeddings[stream] * gradient).sum(-1))
    return scores.masked_fill(~seen.batch.mask, 0.0)


def squared_gradient(seen: TrainingPass, value: Tensor) -> Tensor:
    """The square of the length of dvalue/dx, of every token's embedding x."""
    scores = zeros(seen)
    for stream, gradient in seen.embedding_gradients(value).items():
        scores = placed(seen, scores, stream, gradient.square().sum(-1))
    return scores.masked_fill(~seen.batch.mask, 0.0)


def zeros(seen: TrainingPass) -> Tensor:
    """Zeros for every feature: (batch, feature)."""
    return torch.zeros(seen.batch.mask.shape, dtype=seen.logits.dtype, device=seen.logits.device)


def placed(seen: TrainingPass, scores: Tensor, stream: str, added: Tensor) -> Tensor:
    """The scores with those of a stream's tokens added."""
    span = seen.batch.span(stream)
    return scores + torch.nn.functional.pad(added.to(scores.dtype), (span.start, scores.shape[1] - span.stop))


def words(seen: TrainingPass) -> Tensor:
    """The features that are neither special nor padding: (batch, feature) bool."""
    return ~seen.batch.special


def shares(scores: Tensor, among: Tensor) -> Tensor:
    """Sizes of scores as shares of their sum over some features: (batch, feature)."""
    sizes = scores.abs() * among
    return sizes / sizes.sum(-1, keepdim=True).clamp(min=TINY)
