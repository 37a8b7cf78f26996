"""The floating-point type in which sums are taken: float64 for double-precision models, float32 for all others.

Sums over half-precision products lose digits, so states and gradients are widened before they are added up.
"""

from __future__ import annotations

import torch
from torch import Tensor


def accumulation(dtype: torch.dtype) -> torch.dtype:
    """The type in which sums over numbers of this type are taken."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def wide(tensor: Tensor) -> Tensor:
    """The tensor in its accumulation type."""
    return tensor.to(accumulation(tensor.dtype))
