"""Long inputs: attention and its gradient are computed one head and a few rows at a time, and never kept whole.

The model runs on its fused path, `scaled_dot_product_attention`. Its backward pass computes weights A and gradients G
again, tile by tile, and hands each tile to a fold over layers, last to first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.model.batching import Batch
from whence.model.passes import Request
from whence.model.precision import accumulation
from whence.model.rules import Rules
from whence.model.subject import Subject
from whence.model.targets import Aim

LONG_BYTES = 2**30  # of attention weights and their gradients; beyond that, attention is folded instead of kept

_TILE_BYTES = 2**22  # of one tile of weights: about the size of a core's cache


@dataclass(frozen=True)
class Fold:
    """A method as a fold over attention blocks, last to first; the state is (batch, row, feature).

    `start(deciding)` makes the state from the tokens that the output reads, stream -> (batch, token) bool.
    `tile(state, added, rows, keys, weights, gradient, share)` adds the contribution of some heads and queries to
    `added`: `weights` and `gradient` are (batch, head, query, key), `rows` and `keys` the places of queries and keys
    among the features, and `share` is 1 / heads. `merge(state, added, queries)` makes the next state.
    """

    start: Callable[[dict[str, Tensor]], Tensor]
    tile: Callable[[Tensor, Tensor, slice, slice, Tensor, Any, float], None]
    merge: Callable[[Tensor, Tensor, slice], Tensor]


def fold_attention(subject: Subject, batch: Batch, aim: Aim, fold: Fold, start_layer: int = 0) -> Tensor | None:
    """The result of a fold over all attention, in memory that does not grow with the number of layers.

    None where keeping attention is cheaper, or where folding is not possible: the model has several streams, its fused
    path does not make the same logits, or an intervention changes attention, which the fused path does not show.
    """
    if subject.change(batch) is not None:
        return None
    layers = len(subject.structure(batch).connections)
    weights = len(batch) * batch.mask.shape[1] ** 2 * layers * subject.heads
    worthwhile = len(batch.streams) == 1 and weights * 8 >= LONG_BYTES
    if not worthwhile or not 0 <= start_layer < layers or not has_fused_path(subject, batch):
        return None
    if aim.states and len({aim.key(row) for row in range(len(batch))}) > 1:
        return None  # the targets may end in different layers, and the fold starts once for all examples
    rules = TiledAttention(fold, next(iter(batch.streams)), start_layer)
    subject.run(batch, aim, Request(frozenset({"gradient:word"}), rules=rules))
    return rules.result


def has_fused_path(subject: Subject, batch: Batch) -> bool:
    """Whether the fused path makes all of the model's attention, and the same logits as the eager one: tried once."""
    discovery = subject.discovery(batch)

    def try_it() -> bool:
        rules = TiledAttention()
        plain = subject.logits(discovery.probe_batch, path="eager")
        fused = subject.logits(discovery.probe_batch, rules=rules)
        self_attention = all(query == key != "" for query, key in discovery.structure.connections)
        same = torch.allclose(plain, fused, rtol=1e-3, atol=1e-3)
        return same and self_attention and rules.calls == len(discovery.structure.connections)

    return discovery.remember("the fused path makes all attention", try_it)


class TiledAttention(Rules):
    """A pass on the fused path whose backward pass feeds a fold.

    `result` is the state of the fold, `calls` the number of attention blocks so far.
    """

    attention_path = "sdpa"

    def __init__(self, fold: Fold | None = None, stream: str = "", start_layer: int = 0) -> None:
        super().__init__()
        self.fold, self.stream, self.start_layer = fold, stream, start_layer
        self.calls = 0
        self.result: Tensor | None = None

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention:
            return func(*args, **kwargs)
        self.calls += 1
        if self.fold is None or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        given = dict(zip(names, args, strict=False)) | kwargs
        query, mask, scale = given["query"], given.get("attn_mask"), given.get("scale")
        if mask is not None and mask.dtype == torch.bool:  # a row of padding that sees no key would make NaN
            mask = mask | ~mask.any(-1, keepdim=True)
        return _Attention.apply(
            query,
            given["key"],
            given["value"],
            mask,
            bool(given.get("is_causal")),
            query.shape[-1] ** -0.5 if scale is None else scale,
            self,
            self.calls - 1,
        )


class _Attention(torch.autograd.Function):
    """Fused attention whose backward pass goes through tiles of weights and gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float,
        rules: TiledAttention,
        layer: int,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.options = (causal, scale, rules, layer)
        grouped = query.shape[1] != key.shape[1]
        return F.scaled_dot_product_attention(query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=grouped)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        query, key, value, mask = ctx.saved_tensors
        causal, scale, rules, layer = ctx.options
        d_out = gradients[0]
        batch, heads, tokens, _ = query.shape
        group = heads // key.shape[1]
        d_query, d_key, d_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        size = max(1, min(tokens, _TILE_BYTES // (4 * batch * key.shape[2])))
        if rules.result is None:
            rules.result = rules.fold.start({rules.stream: (d_out != 0).any(-1).any(1)})
        added = torch.zeros_like(rules.result)
        everything = slice(0, tokens)
        for head in range(heads):
            k, v = (t[:, head // group].to(accumulation(t.dtype)) for t in (key, value))
            for begin in range(0, tokens, size):
                rows = slice(begin, min(begin + size, tokens))
                q, d_o = (t[:, head, rows].to(accumulation(t.dtype)) for t in (query, d_out))
                weights = torch.baddbmm(_mask(mask, causal, head, rows, k, q), q, k.transpose(1, 2), alpha=scale)
                weights = weights.softmax(-1)
                gradient = d_o @ v.transpose(1, 2)
                if layer >= rules.start_layer:
                    part, change = weights[:, None], gradient[:, None]
                    rules.fold.tile(rules.result, added, rows, everything, part, change, 1 / heads)
                d_value[:, head // group] += (weights.transpose(1, 2) @ d_o).to(value.dtype)
                d_scores = gradient.mul_(weights)
                d_scores.sub_(weights.mul_(d_scores.sum(-1, keepdim=True)))
                d_query[:, head, rows] = (d_scores @ k).mul_(scale).to(query.dtype)
                d_key[:, head // group] += (d_scores.transpose(1, 2) @ q).mul_(scale).to(key.dtype)
        if layer >= rules.start_layer:
            rules.result = rules.fold.merge(rules.result, added, everything)
        return d_query, d_key, d_value, None, None, None, None, None


def _mask(mask: Tensor | None, causal: bool, head: int, rows: slice, k: Tensor, q: Tensor) -> Tensor:
    """The mask that is added to the scores of some rows of a head: (batch, row, key), or a shape that broadcasts."""
    if causal:
        row = torch.arange(rows.start, rows.stop, device=k.device)[:, None]
        future = torch.arange(k.shape[1], device=k.device)[None] > row
        return torch.zeros_like(future, dtype=q.dtype).masked_fill_(future, float("-inf"))
    if mask is None:
        return q.new_zeros(1)
    head_mask = mask[:, head if mask.shape[1] > 1 else 0]
    head_mask = head_mask[:, rows] if head_mask.shape[1] > 1 else head_mask
    if head_mask.dtype != torch.bool:
        return head_mask.to(q.dtype)
    return q.new_zeros(head_mask.shape).masked_fill_(~head_mask, float("-inf"))
