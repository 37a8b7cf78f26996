"""Parts as tensors, (source and rest, *state): making them, adding to the rest, comparing their sum with the state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whence.propagation.products import linear

WORTH = 0.8  # the share of rows with numbers other than 0 up to which rows of zeros are left out


def linear_map(parts: Tensor, weight: Tensor) -> Tensor:
    """`parts` times a linear layer's weight, (..., in) to (..., out), without its rows of zeros where these are many.

    In a causal model half of all rows are zero, with sliding windows more. Where every token is still its own source,
    all rows but one for each token are zero.
    """
    rows = parts.reshape(-1, parts.shape[-1])
    used = ((rows.amax(-1) != 0) | (rows.amin(-1) != 0)).nonzero()[:, 0]
    if len(used) > WORTH * len(rows):
        return linear(rows, weight).view(*parts.shape[:-1], len(weight))
    out = parts.new_zeros(len(rows), len(weight))
    out.index_copy_(0, used, linear(rows.index_select(0, used), weight))
    return out.view(*parts.shape[:-1], len(weight))


def diagonal(state: Tensor) -> Tensor:
    """The parts of a state where every token is its own source: (token and rest, batch, token, width)."""
    tokens = state.shape[1]
    parts = state.new_zeros(tokens + 1, *state.shape)
    parts[torch.arange(tokens), :, torch.arange(tokens)] = state.transpose(0, 1)
    return parts


def with_rest(parts: Tensor, more: Any) -> Tensor:
    """Parts with `more` added to the rest."""
    if more is None:
        return parts
    return torch.cat([parts[:-1], (parts[-1] + more)[None]])


def add_rest(parts: Tensor, more: Any) -> Tensor:
    """As `with_rest`, in place: for parts that nothing else refers to."""
    if more is not None:
        parts[-1] += more
    return parts


def fits(other: Tensor, into: Tensor) -> bool:
    """Whether an operation with `other` can be done in place."""
    return other.shape == into.shape and other.dtype == into.dtype


def check_sum(total: Tensor, whole: Tensor, subject: str) -> None:
    """Raise where parts do not add up to their state, which means that an operation was not understood."""
    tolerance = {torch.float64: 1e-5, torch.float32: 1e-3}.get(whole.dtype, 0.1)
    gap = float((total - whole).abs().max() / whole.abs().max().clamp(min=1e-6))
    if not gap <= tolerance:
        raise ValueError(
            f"{subject} does something to its states that decompositions do not follow (its parts miss {gap:.1%} of "
            "their sum); use value_zeroing, lrp or a gradient method"
        )
