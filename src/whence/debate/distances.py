"""Distances between distributions: total variation and Jensen-Shannon divergence, in nats, differentiable."""

from __future__ import annotations

import torch
from torch import Tensor


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """Half the sum of |p - q| over outcomes, from 0 to 1; of two classes that is |dp|.

    Outputs have the axes (..., question, outcome), and the mean over questions is taken: a classifier asks one
    question, a model with several labels one for each. The halved |dp| of some public code is half of this.
    """
    return (p - q).abs().sum(-1).mean(-1) / 2


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """H((p + q) / 2) - (H(p) + H(q)) / 2 over the last axis, in nats: from 0 to ln 2."""
    divergence = entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return divergence.clamp(min=0.0)  # rounding


def entropy(p: Tensor) -> Tensor:
    """- sum of p ln p over the last axis, in nats; an outcome with p = 0 adds nothing."""
    return -(p * torch.where(p > 0, p, 1.0).log()).sum(-1)
