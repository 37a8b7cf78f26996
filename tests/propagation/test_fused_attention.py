"""Tiles of attention and its gradient, computed again from the fused kernel's sums: equal to attention written out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from whence.propagation import fused_attention
from whence.propagation.fused_attention import Attended

TOKENS, WIDTH = 23, 8
MASKS = ["none", "causal", "window", "padding", "bias"]


def mask_of(kind: str) -> Tensor | None:
    places = torch.arange(TOKENS)
    if kind == "window":
        back = places[:, None] - places
        return ((back >= 0) & (back < 4))[None, None]
    if kind == "padding":
        return (places < torch.tensor([[TOKENS], [TOKENS - 6]]))[:, None, None].expand(2, 1, TOKENS, TOKENS)
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, 4, TOKENS, TOKENS, generator=generator) if kind == "bias" else None


def block(kind: str, key_heads: int, dtype: torch.dtype = torch.float32) -> tuple[Attended, Tensor]:
    """An attention block of 4 heads that was run, and the gradient of its output."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, TOKENS, WIDTH, generator=generator, dtype=dtype) for n in (4, key_heads, key_heads))
    options = {"attn_mask": mask_of(kind), "is_causal": kind == "causal", "scale": 0.7, "enable_gqa": key_heads != 4}
    made = Attended.of((q, k, v), options, {})
    made.output()
    return made, torch.randn(q.shape, generator=generator, dtype=dtype)


def written_out(made: Attended, kind: str, d_out: Tensor) -> tuple[Tensor, Tensor]:
    key, value = (t.double().repeat_interleave(4 // t.shape[1], 1) for t in (made.key, made.value))
    scores = made.query.double() @ key.transpose(2, 3) * 0.7
    mask = torch.ones(TOKENS, TOKENS).tril().bool() if kind == "causal" else mask_of(kind)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1), d_out.double() @ value.transpose(2, 3)


def gathered(made: Attended, d_out: Tensor, needed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    weights, gradient, count = (torch.zeros(2, 4, TOKENS, TOKENS) for _ in range(3))
    for tile in made.tiles(needed, d_out):
        place = (slice(None), tile.heads, tile.rows, tile.keys)
        weights[place], gradient[place] = tile.weights, tile.gradient
        count[place] += 1
    return weights, gradient, count


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("key_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", MASKS)
def test_tiles(kind: str, key_heads: int, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fused` says whether the kernel's log sums are there, or the softmax is taken again."""
    monkeypatch.setattr(fused_attention, "TILE_BYTES", 4 * 2 * TOKENS * 5)
    made, d_out = block(kind, key_heads)
    made = made if fused else replace(made, log_sums=None)
    assert not fused or made.log_sums is not None
    right, slopes = written_out(made, kind, d_out)
    weights, gradient, count = gathered(made, d_out, torch.ones(TOKENS, dtype=torch.bool))
    assert (weights - right).abs().max() <= 5e-6 and count.max() == 1
    assert ((gradient - slopes) * (count > 0)).abs().max() <= 1e-5
    assert (count[right > 1e-9] == 1).all()  # no pair that is seen is left out
    if kind in ("causal", "window"):
        assert count.mean() < 0.75 if kind == "causal" else count.mean() < 0.5


def test_only_needed_queries() -> None:
    made, d_out = block("causal", 2)
    needed = torch.arange(TOKENS) == 5
    weights, _, count = gathered(made, d_out, needed)
    assert count[:, :, 5, :6].all() and count.sum() == 2 * 4 * 6
    assert (weights[:, :, 5] - written_out(made, "causal", d_out)[0][:, :, 5]).abs().max() <= 5e-6
    assert not list(made.tiles(torch.zeros(TOKENS, dtype=torch.bool), d_out))


@pytest.mark.parametrize("key_heads", [4, 2])
@pytest.mark.parametrize("kind", MASKS)
def test_the_gradient_of_values_under_held_weights(kind: str, key_heads: int) -> None:
    made, d_out = block(kind, key_heads)
    right = (written_out(made, kind, d_out)[0].transpose(2, 3) @ d_out.double()).unflatten(1, (key_heads, -1)).sum(2)
    assert (made.to_values(d_out) - right).abs().max() <= 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    """Tiles of half precision are made in float32 of the rounded queries and keys."""
    made, d_out = block("causal", 2, dtype)
    weights = gathered(made, d_out, torch.ones(TOKENS, dtype=torch.bool))[0]
    close = 5e-6 if dtype == torch.float64 else 1e-3
    assert (weights - written_out(made, "causal", d_out)[0]).abs().max() <= close
