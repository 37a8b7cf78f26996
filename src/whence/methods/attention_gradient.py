"""Attention times its gradient: what is attended to, where it matters for the target."""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import Tensor

from whence.core.registry import Explained, method
from whence.methods.attention import FirstLayer, LayerNumbers, folded, reading, real, steps
from whence.methods.sinks import sink_tokens
from whence.model.batching import Batch
from whence.model.precision import wide
from whence.model.subject import Subject
from whence.model.tap import AttentionRecord
from whence.model.targets import Aim
from whence.propagation.long_inputs import Fold


@method(family="attention x gradient", signed=False, needs=("attention_gradient", "deciding"), paper="arXiv:2204.11073")
def grad_sam(subject: Subject, batch: Batch, target: Aim, *, read: Literal["query", "received"] = "query") -> Tensor:
    """Grad-SAM: the mean over layers and heads of A o ReLU(G), summed along the rows: r_i = 1/(LHN) sum_lhj H_ij.

    `read="query"` is the paper's sum over keys, which scores the token that attends; "received" is the mean over
    queries, which scores the token that is attended to. In the last layer of a CLS classifier only the CLS row has a
    gradient, so "query" puts all of that layer's share on CLS, and "received" spreads it over the keys.
    """
    depth = len(subject.structure(batch).connections)

    def fold_of(batch: Batch) -> Fold:
        def tile(
            state: Tensor, added: Tensor, rows: slice, keys: slice, weights: Tensor, gradient: Tensor, share: float
        ) -> None:
            product = (wide(weights) * wide(gradient)).clamp_(min=0)  # (batch, head, query, key)
            # On long inputs, which have one stream, a tile has a few queries and keys; means are over all of them.
            stream = (keys if read == "query" else rows) if len(batch.streams) > 1 else slice(None)
            scale = share / depth / batch.mask[:, stream].sum(1, keepdim=True).to(product.dtype)
            if read == "query":
                added[:, 0, rows] += product.sum((1, 3)) * scale
            else:
                added[:, :1, keys] += _weighted(batch.mask[:, None, rows] * scale[..., None], product)

        return Fold(lambda deciding: _zeros(subject, batch)[:, None], tile, _sum)

    return folded(subject, batch, target, fold_of)


@method(family="attention x gradient", needs=("attention_gradient", "deciding"), paper="arXiv:1906.03731")
def attention_x_gradient(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    layer: LayerNumbers | None = None,
    positive: bool = False,
    read: Literal["received", "query"] = "received",
) -> Explained:
    """The sum over layers, heads and queries of A o G: what the attention paid to a token adds to the target.

    `layer` takes one layer or some instead of all; `positive` keeps only what speaks for the target (then scores have
    no sign); `read="query"` sums over keys and scores the token that attends.
    """

    def fold_of(batch: Batch) -> Fold:
        def tile(
            state: Any, added: Tensor, rows: slice, keys: slice, weights: Tensor, gradient: Tensor, share: float
        ) -> None:
            product = wide(weights) * wide(gradient)  # (batch, head, query, key)
            product = product.clamp_(min=0) if positive else product
            if read == "query":
                added[:, 0, rows] += product.sum((1, 3)) * batch.mask[:, rows]
            else:
                added[:, :1, keys] += _weighted(batch.mask[:, None, rows], product)

        sums = None if positive else ("keys" if read == "received" else "queries", batch.mask)
        return Fold(lambda deciding: _zeros(subject, batch)[:, None], tile, _sum, sums=sums)

    if layer is None:
        return Explained(folded(subject, batch, target, fold_of), signed=not positive)
    chosen = [layer] if isinstance(layer, int) else layer
    trace = subject.trace(batch, target)
    scores = _zeros(subject, batch)[:, None]
    for record in steps(subject, trace):
        depth = 1 + max(r.layer for r in trace.attention if (r.query, r.key) == (record.query, record.key))
        wrong = [number for number in chosen if not -depth <= number < depth]
        if wrong:
            raise ValueError(f"layer {wrong[0]} is out of range: {subject.name} has {depth} layers here, from 0")
        if record.layer in [number % depth for number in chosen]:
            query, key = batch.span(record.query), batch.span(record.key)
            fold_of(batch).tile(scores, scores, query, key, record.weights, record.gradient, 0.0)
    return Explained(scores[:, 0].masked_fill(~batch.mask, 0.0), signed=not positive)


@method(family="attention x gradient", needs=("attention", "gradient:*", "deciding"), paper="NeurIPS 2022")
def attcat(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """AttCAT: sum over layers of (h_i . dS/dh_i) times the mean attention that token i receives in that layer.

    h is the state that enters a block; attention is averaged over heads and queries. On a model of several streams, the
    attention of a token is that of its own stream's self-attention.
    """
    trace = subject.trace(batch, target)
    steps(subject, trace)  # an error where attention cannot be placed on the features
    scores = _zeros(subject, batch)
    for record in trace.attention:
        if record.query != record.key or record.layer not in trace.gradients:
            continue
        state = trace.states[record.layer].get(record.key)
        if state is None:
            continue
        gradient = trace.gradients[record.layer][record.key].to(scores.dtype)
        category = (state.to(scores.dtype) * gradient).sum(-1)  # (batch, token)
        queries = real(record, batch)[:, :, None]
        received = wide(record.weights).mean(1).masked_fill(~queries, 0.0).sum(1) / queries.sum(1)
        scores[:, batch.span(record.key)] += received * category
    return scores.masked_fill(~batch.mask, 0.0)


@method(family="attention x gradient", signed=False, needs=("attention_gradient", "deciding"), paper="arXiv:2103.15679")
def gae(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    normalise: bool = True,
    start_layer: FirstLayer = 0,
    sinks: Literal["keep", "exclude"] = "keep",
) -> Explained:
    """Generic attention explainability: relevance R carried through all layers by the head mean of (G o A)^+.

    Self-attention: R += Abar R (rules 6 and 7). Cross- and co-attention of queries s and keys q:
    R_sq += Rbar_ss^T Abar Rbar_qq and R_ss += Abar R_qs (10 and 11), where Rbar divides the rows of R - I by their sums
    and adds I (8 and 9; `normalise=False` leaves that out). The scores are the row of R - I at the
    deciding token. R of every pair of streams is in the details when there are several. `sinks="exclude"` leaves out
    what other tokens draw from attention sinks.
    """

    def tokens_of(batch: Batch) -> Tensor:
        return sink_tokens(subject, batch) if sinks != "keep" else torch.zeros_like(batch.mask)

    def fold_of(batch: Batch) -> Fold:
        tile = functools.partial(_self_attention_tile, tokens_of(batch), sinks)
        return Fold(functools.partial(_identity_and_rest, subject, batch), tile, _sum)

    if all(query == key for query, key in subject.structure(batch).connections):  # no stream attends to another
        return Explained(folded(subject, batch, target, fold_of, "row", start_layer))
    trace = subject.trace(batch, target)
    blocks = steps(subject, trace, start_layer)
    relevance = _relevance_of_pairs(blocks, batch, subject, normalise, tokens_of(batch))
    scores = _zeros(subject, batch)
    for stream, rows in trace.deciding.items():
        chosen = (rows & batch.mask[:, batch.span(stream)]).to(scores.dtype)
        share = chosen / chosen.sum(1, keepdim=True).clamp(min=1)
        for (query, key), rest in relevance.items():
            if query == stream:
                scores[:, batch.span(key)] += (share[:, None] @ rest)[:, 0]
    details = {f"R {query} {key}": _with_identity(rest, query, key, batch) for (query, key), rest in relevance.items()}
    return Explained(scores.masked_fill(~batch.mask, 0.0), details=details)


def _sum(state: Tensor, added: Tensor, queries: slice) -> Tensor:
    """The next state of a fold whose layers add up."""
    return state + added


def _identity_and_rest(subject: Subject, batch: Batch, deciding: dict[str, Tensor]) -> Tensor:
    """The state that the fold starts from: the row of I that is read, and that of R - I, which is 0.

    The two rows are kept apart because relevance that is tiny beside the 1 of I would lose its digits in the sum.
    """
    start = reading(subject, batch, deciding, "row")
    return torch.cat([start, torch.zeros_like(start)], 1)


def _self_attention_tile(
    sinks: Tensor,
    how: str,
    state: Tensor,
    added: Tensor,
    rows: slice,
    keys: slice,
    weights: Tensor,
    gradient: Tensor,
    share: float,
) -> None:
    """Rules 5 and 6, of the rows that are read: R += Abar R; sinks (batch, feature) may be left out."""
    product = (wide(weights) * wide(gradient)).clamp_(min=0)
    read = state[:, :, rows].sum(1, keepdim=True) * share
    if how == "keep":
        added[:, 1:, keys] += _weighted(read, product)
    else:
        added[:, 1:, keys] += read @ _left_out(product.sum(1), sinks, rows, keys).to(state.dtype)


def _weighted(rows: Tensor, maps: Tensor) -> Tensor:
    """The sum over heads and queries of maps (batch, head, query, key) by weights of the queries (batch, 1, query)."""
    every = rows.to(maps.dtype).repeat(1, 1, maps.shape[1])  # heads one after the other: no sum of heads is made
    return every @ maps.flatten(1, 2)


Relevance = dict[tuple[str, str], Tensor]  # (query stream, key stream) -> R, or R - I within a stream


def _left_out(maps: Tensor, sinks: Tensor, rows: slice, keys: slice) -> Tensor:
    """Maps (batch, query, key) in which other tokens draw nothing from sinks (batch, feature)."""
    places = torch.arange(sinks.shape[1], device=maps.device)
    return maps.masked_fill(sinks[:, None, keys] & (places[rows, None] != places[None, keys]), 0.0)


def _relevance_of_pairs(
    blocks: list[AttentionRecord], batch: Batch, subject: Subject, normalise: bool, sinks: Tensor
) -> Relevance:
    """Rules 6 to 11, first block to last; both blocks of a co-attention step use the matrices from before the step.

    Within a stream R - I is carried in place of R, because relevance that is tiny beside the 1 of I would lose its
    digits in the sum.
    """
    streams, size = list(batch.streams), batch.lengths
    like = _zeros(subject, batch)
    rest = {(s, q): like.new_zeros(len(batch), size[s], size[q]) for s in streams for q in streams}
    for group in _co_attention_grouped(blocks):
        added: Relevance = {}
        for record in group:
            s, q = record.query, record.key  # the paper's names of streams
            maps = _left_out(_positive(record).to(like.dtype), sinks, batch.span(s), batch.span(q))
            if s == q:
                added |= {(s, other): maps @ rest[s, other] for other in streams}
                added[s, s] = maps + added[s, s]
                continue
            of_queries, of_keys = (_normalised(rest[stream, stream], normalise) for stream in (s, q))
            added[s, q] = of_queries.transpose(1, 2) @ maps @ of_keys
            added[s, s] = maps @ rest[q, s]
        for pair, matrix in added.items():
            rest[pair] = rest[pair] + matrix
    return rest


def _with_identity(rest: Tensor, query: str, key: str, batch: Batch) -> list[Tensor]:
    """R of every example without padding: within a stream, I is added to R - I."""
    matrices = rest + torch.eye(rest.shape[-1], dtype=rest.dtype, device=rest.device) if query == key else rest
    masks = zip(matrices, batch.streams[query], batch.streams[key], strict=True)
    return [matrix[rows][:, columns] for matrix, rows, columns in masks]


def _co_attention_grouped(blocks: list[AttentionRecord]) -> list[list[AttentionRecord]]:
    """The blocks as steps: two neighbours of which each looks at the other's stream are one step of co-attention."""
    groups: list[list[AttentionRecord]] = []
    for record in blocks:
        last = groups[-1][-1] if groups else None
        mutual = last is not None and last.query != last.key and (last.query, last.key) == (record.key, record.query)
        if mutual and len(groups[-1]) == 1:
            groups[-1].append(record)
        else:
            groups.append([record])
    return groups


def _normalised(rest: Tensor, normalise: bool) -> Tensor:
    """I plus the rows of R - I divided by their sums; a row of zeros stays one (rules 8 and 9)."""
    total = rest.sum(-1, keepdim=True)
    scaled = torch.where(total != 0, rest / torch.where(total != 0, total, 1.0), 0.0) if normalise else rest
    return scaled + torch.eye(rest.shape[-1], dtype=rest.dtype, device=rest.device)


def _positive(record: AttentionRecord) -> Tensor:
    """Rule 5: the mean over heads of (G o A)^+, (batch, query, key)."""
    return (wide(record.gradient) * wide(record.weights)).clamp(min=0).mean(1)


def _zeros(subject: Subject, batch: Batch) -> Tensor:
    """Zeros for every feature, (batch, feature), in the precision in which scores are summed."""
    return torch.zeros(batch.mask.shape, dtype=subject.accumulation, device=batch.mask.device)
