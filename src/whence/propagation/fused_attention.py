"""Fused attention; its weights A and their gradients G are computed again, a tile at a time.

The fused kernel keeps the logarithm of every row's sum of exponentials, so that a tile of A is one product and one
exponential. Keys that no query of a tile may see, by causality or by a sliding window, are left out of the tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.model.precision import accumulation

TILE_BYTES = 2**20  # of one tile of weights: about the size of a core's cache
ROWS = 128  # the most queries of a tile: with more, a causal tile holds more keys that its first queries cannot see
_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


@dataclass(eq=False)
class Visible:
    """An attention mask in the forms that tiles need, made once for all layers that share the mask."""

    given: Tensor  # bool or float; it is held so that no other mask gets its place in memory
    added: Tensor  # added to the scores (batch, head, query, key); each of its four axes may be 1 long
    seen: Tensor  # (query, key) bool: some head of some example may see the key
    whole: Tensor  # (query, key) bool: all heads of all examples may see it, and nothing is added

    @classmethod
    def of(cls, mask: Tensor, queries: int, like: Tensor) -> Visible:
        """The forms of a mask, as `scaled_dot_product_attention` takes it."""
        full = mask.detach()[(None,) * (4 - mask.ndim)]
        if mask.dtype == torch.bool:
            full = full | ~full.any(-1, keepdim=True)  # a row of padding that sees no key would make NaN
            added = torch.zeros_like(full, dtype=like.dtype).masked_fill_(~full, float("-inf"))
            seen, whole = full, full
        else:
            added = full.to(like.dtype)
            seen, whole = full > torch.finfo(mask.dtype).min / 2, full == 0
        shape = (queries, mask.shape[-1])
        return cls(mask, added, seen.any(0).any(0).expand(shape), whole.all(0).all(0).expand(shape))


Masks = dict[Any, Visible]  # the masks of a pass, by their place in memory


@dataclass(eq=False)
class Attended:
    """One attention block as the fused kernel ran it."""

    query: Tensor  # (batch, head, query, width)
    key: Tensor  # (batch, key head, key, width): queries of several heads may share one
    value: Tensor
    mask: Visible | None
    causal: bool
    scale: float
    log_sums: Tensor | None = None  # (batch, head, query): log sum_j exp(score_ij); None where the kernel keeps none

    @classmethod
    def of(cls, args: Any, kwargs: Any, masks: Masks) -> Attended:
        """The block of a call of `scaled_dot_product_attention`; `masks` are the masks of the pass so far."""
        given = dict(zip(_NAMES, args, strict=False)) | kwargs
        query, mask, scale = given["query"], given.get("attn_mask"), given.get("scale")
        visible = None
        if mask is not None:
            # Layers may be given slices of one mask, each a tensor of its own: they are told by their place in memory.
            place = (mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, mask._version)
            visible = None if mask.requires_grad else masks.get(place)
            visible = visible or Visible.of(mask, query.shape[2], query)
            masks[place] = visible
        return cls(
            query,
            given["key"],
            given["value"],
            visible,
            bool(given.get("is_causal")),
            query.shape[-1] ** -0.5 if scale is None else scale,
        )

    def output(self) -> Tensor:
        """The block's output, (batch, head, query, width), differentiated by the kernel's own backward pass."""
        grouped = self.query.shape[1] != self.key.shape[1]
        mask = None
        if self.mask is not None:
            mask = self.mask.given if self.mask.given.requires_grad else self.mask.added
        options = (self.query, self.key, self.value, mask, 0.0, self.causal)
        flash = int(torch._fused_sdp_choice(*options, scale=self.scale, enable_gqa=grouped)) == 1
        if not (flash and self.query.device.type == "cpu" and _keeps_log_sums()):
            return F.scaled_dot_product_attention(*options, scale=self.scale, enable_gqa=grouped)
        out, self.log_sums = _FLASH(
            self.query, self.key, self.value, 0.0, self.causal, attn_mask=mask, scale=self.scale
        )
        self.log_sums = self.log_sums.detach()
        return out

    def detach(self) -> None:
        """Cut the tensors off from the graph, so that they are freed with it."""
        self.query, self.key, self.value = self.query.detach(), self.key.detach(), self.value.detach()

    def tiles(self, needed: Tensor, d_out: Tensor | None) -> Iterator[Tile]:
        """Tiles that cover all heads at the needed queries: weights A and, given the gradient of the output, also G."""
        batch, heads = self.query.shape[:2]
        groups = self.key.shape[1]
        wide = accumulation(self.query.dtype)
        spans = self._spans(needed, batch * heads // groups)
        if not spans:
            return
        longest = max((rows.stop - rows.start) * (keys.stop - keys.start) for rows, keys in spans)
        together = max(1, min(groups, TILE_BYTES // (4 * batch * (heads // groups) * longest)))
        for first in range(0, groups, together):
            shared = slice(first, min(first + together, groups))
            own = slice(first * heads // groups, shared.stop * heads // groups)
            query, d_o = (None if t is None else t[:, own].to(wide) for t in (self.query, d_out))
            key, value = (t[:, shared].to(wide) for t in (self.key, self.value))
            assert query is not None
            for rows, keys in spans:
                weights = self._weights(query[:, :, rows], key[:, :, keys], own, rows, keys)
                gradient = None if d_o is None else _product(d_o[:, :, rows], value[:, :, keys])
                yield Tile(own, rows, keys, weights, gradient)

    def to_values(self, d_out: Tensor) -> Tensor:
        """The gradient of the values where the weights are constants: A^T times the gradient of the output."""
        wide = accumulation(d_out.dtype)
        gradient, shared = torch.zeros_like(self.value, dtype=wide), self.query.shape[1] // self.key.shape[1]
        for tile in self.tiles((d_out != 0).any(-1).any(1).any(0), None):
            heads = slice(tile.heads.start // shared, tile.heads.stop // shared)
            # Heads that share values are laid one after the other, along the axis of queries.
            weights = tile.weights.unflatten(1, (-1, shared)).flatten(2, 3)
            d_o = d_out[:, tile.heads, tile.rows].to(wide).unflatten(1, (-1, shared)).flatten(2, 3)
            gradient[:, heads, tile.keys] += weights.transpose(2, 3) @ d_o
        return gradient

    def _spans(self, needed: Tensor, matrices: int) -> list[tuple[slice, slice]]:
        """The queries of every tile that has a needed one, and the keys that some of these queries may see."""
        keys = self.key.shape[2]
        size = max(1, min(ROWS, TILE_BYTES // (4 * matrices * keys)))
        marks = needed.nonzero()[:, 0].tolist()
        if not marks:
            return []
        spans = []
        for begin in range(marks[0], marks[-1] + 1, size):
            rows = slice(begin, min(begin + size, marks[-1] + 1))
            if not needed[rows].any():
                continue
            first, last = 0, min(keys, rows.stop) if self.causal else keys
            if self.mask is not None:
                seen = self.mask.seen[rows, :last].any(0).nonzero()[:, 0]
                if not len(seen):
                    continue
                first, last = int(seen[0]), int(seen[-1]) + 1
            spans.append((rows, slice(first, last)))
        return spans

    def _weights(self, query: Tensor, key: Tensor, heads: slice, rows: slice, keys: slice) -> Tensor:
        """The weights of some heads at some queries: (batch, head, query, key)."""
        whole = self.mask is None or bool(self.mask.whole[rows, keys].all())
        added = None if whole or self.mask is None else _part(self.mask.added, heads, rows, keys)
        sums = None if self.log_sums is None else self.log_sums[:, heads, rows].to(query.dtype)
        scores = _product(query, key, self.scale, sums)
        if added is not None:
            scores.add_(added.to(scores.dtype))
        if self.causal and keys.stop > rows.start + 1:  # only the last keys of the tile lie after some of its queries
            later = scores[..., max(0, rows.start + 1 - keys.start) :]
            numbers = torch.arange(keys.stop - later.shape[-1], keys.stop, device=later.device)
            places = torch.arange(rows.start, rows.stop, device=later.device)
            later.masked_fill_(numbers > places[:, None], float("-inf"))
        return scores.softmax(-1) if sums is None else scores.exp_()


@dataclass(eq=False)
class Tile:
    """Weights of some heads at some queries and keys, and the target's gradient with respect to them."""

    heads: slice
    rows: slice
    keys: slice
    weights: Tensor  # (batch, head, query, key)
    gradient: Tensor | None


def _product(queries: Tensor, keys: Tensor, scale: float = 1.0, less: Tensor | None = None) -> Tensor:
    """scale * q_i . k_j minus a number for every query: (batch, head, query, key); several heads may share keys."""
    batch, heads, rows, _ = queries.shape
    shared = keys.shape[1]
    q = queries.reshape(batch * shared, heads // shared * rows, -1)
    k = keys.reshape(batch * shared, keys.shape[2], -1).transpose(1, 2)
    if less is None:
        out = torch.bmm(q * scale if scale != 1.0 else q, k)
    else:
        out = torch.baddbmm(-less.reshape(*q.shape[:2], 1).expand(-1, -1, k.shape[-1]), q, k, alpha=scale)
    return out.view(batch, heads, rows, -1)


def _part(mask: Tensor, heads: slice, rows: slice, keys: slice) -> Tensor:
    """A mask at some heads, queries and keys; an axis that is 1 long stays so."""
    for axis, part in ((1, heads), (2, rows), (3, keys)):
        if mask.shape[axis] > 1:
            mask = mask[(slice(None),) * axis + (part,)]
    return mask


_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


@cache
def _keeps_log_sums() -> bool:
    """Whether this torch's kernel, called directly, gives the output, sums and gradients of attention written out.

    The kernel is no public function of torch, so it is tried once, with two heads that share their keys.
    """
    with torch._C.DisableTorchFunction(), torch.enable_grad():
        generator = torch.Generator().manual_seed(0)
        q, k, v = (torch.randn(1, n, 5, 4, generator=generator).requires_grad_() for n in (2, 1, 1))
        scores = (q @ k.transpose(2, 3) * 0.5).masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
        plain = scores.softmax(-1) @ v
        try:
            out, sums = _FLASH(q, k, v, 0.0, True, scale=0.5)
            pairs = [(out, plain), (sums, scores.logsumexp(-1))]
            weight = torch.randn(out.shape, generator=generator)
            pairs += zip(*(torch.autograd.grad((o * weight).sum(), (q, k, v)) for o in (out, plain)), strict=True)
        except (AttributeError, RuntimeError, TypeError, ValueError):
            return False
        return all(a.shape == b.shape and torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in pairs)
