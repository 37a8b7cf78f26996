"""Linear layers of many rows, by the faster of the two libraries that torch was built with."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 2**27  # multiplications; in smaller products, making oneDNN's kernel for a new shape takes longer than it saves

# `F.linear` multiplies float32 matrices by MKL, which uses the wide registers of AVX-512 on Intel's processors alone;
# oneDNN uses them on all, and takes half the time on others.
_ONEDNN = torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear` up to rounding; the result has no graph."""
    rows_of_float32 = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    if _ONEDNN and rows_of_float32 and x.numel() * len(weight) >= LEAST:
        bias = None if bias is None else bias.detach()
        return torch.ops.mkldnn._linear_pointwise(x.detach(), weight.detach(), bias, "none", [], "")
    with torch.no_grad():
        return F.linear(x, weight, bias)
