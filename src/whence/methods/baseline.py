"""The baseline that any explanation must beat: random scores."""

from __future__ import annotations

import torch
from torch import Tensor

from whence.core.registry import method
from whence.model.batching import Batch
from whence.model.subject import Subject
from whence.model.targets import Aim


@method(family="baseline", signed=False)
def random(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Uniform random scores in [0, 1): the baseline that a method must beat."""
    subject.values(batch, target)  # f(x), and the target where it was left open, are part of every result
    scores = torch.zeros(batch.mask.shape)
    for row, (generator, mask) in enumerate(zip(batch.generators(), batch.mask.cpu(), strict=True)):
        scores[row, mask] = torch.from_numpy(generator.random(int(mask.sum()))).float()
    return scores
