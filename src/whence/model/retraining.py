"""Copies of a model whose last part starts anew and learns, for experiments on what training makes of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from whence.core.inputs import Input
from whence.model.batching import Batch
from whence.model.loan import attention_path, kept_random_states
from whence.model.subject import Subject
from whence.model.tap import Edit, Tap
from whence.model.training_pass import TrainingPass, training_pass
from whence.model.weights import ShuffledWeights, duplicate, stages

__all__ = ["Learner", "TrainingPass", "edited_logits", "seen_by"]


class Learner:
    """A copy of a subject whose last blocks, and what comes after them, start from shuffled weights and can learn.

    Everything before the last `fresh` blocks stays as it was and does not learn; fresh=None starts all weights anew.
    Shuffled weights have the sizes that the model's own have, in an order without a meaning. Dropout is off.
    """

    def __init__(self, subject: Subject, item: Input, fresh: int | None, seed: int) -> None:
        self.subject = duplicate(subject)
        model = self.subject.model.eval()
        learning = {id(p) for p in model.parameters() if p.requires_grad}
        names = _fresh_modules(self.subject, item, fresh)
        modules = [model.get_submodule(name) for name in names]
        own = {id(p): p for module in modules for p in module.parameters(recurse=False) if id(p) in learning}
        fixed = {id(p) for p in model.parameters()} - set(own)
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in own)
        if not own:
            raise ValueError(f"{subject.name} has no weights behind its attention that could learn; set fresh=None")
        ShuffledWeights(self.subject, names, torch.Generator().manual_seed(seed), fixed)
        self.parameters = list(own.values())

    def learn(self, loss: Callable[[int], Tensor], steps: int, rate: float) -> list[float]:
        """Take steps of AdamW down a loss, which is given the number of the step; the values along the way.

        The rate rises over the first tenth of the steps and falls linearly to zero; gradients are clipped to 1.
        """
        optimizer = torch.optim.AdamW(self.parameters, lr=rate, weight_decay=0.0)
        found = []
        with kept_random_states():
            for step in range(steps):
                rises, falls = (step + 1) / max(0.1 * steps, 1), (steps - step) / max(0.9 * steps, 1)
                for group in optimizer.param_groups:
                    group["lr"] = rate * min(rises, falls, 1.0)
                with torch.enable_grad():
                    value = loss(step)
                    gradients = torch.autograd.grad(value, self.parameters, allow_unused=True)
                for parameter, gradient in zip(self.parameters, gradients, strict=True):
                    parameter.grad = gradient
                torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
                optimizer.step()
                found.append(float(value.detach()))
        return found


def _fresh_modules(subject: Subject, item: Input, fresh: int | None) -> list[str]:
    """The names of the modules that start anew: those called from the first of the last `fresh` blocks on."""
    groups = stages(subject, item)
    if fresh is None:
        return [name for group in groups for name in group]
    structure = subject.structure(subject.batch([item]))
    blocks = {site.module for sites in structure.calls.values() for site in sites}
    numbers = [
        number
        for number, group in enumerate(groups)
        if any(group[0] == block or group[0].startswith(f"{block}.") for block in blocks)
    ]
    if not numbers:
        return [name for group in groups for name in group]
    first = numbers[max(len(numbers) - fresh, 0)]
    return [name for group in groups[first:] for name in group]


def seen_by(subject: Subject, batch: Batch, graph: bool = False) -> TrainingPass:
    """One pass that records attention; with its graph, or detached."""
    seen = training_pass(subject, batch)
    if not graph:
        seen.logits = seen.logits.detach()
        for record in seen.attention:
            record.parts = [part.detach() for part in record.parts]
    return seen


def edited_logits(subject: Subject, batch: Batch, edit: Edit) -> Tensor:
    """The decision logits, (batch, class), with attention edited, as a function of the parameters."""
    tensors: dict[str, Any] = dict(batch.tensors)
    first = [tensors.pop("input")] if "input" in tensors else []
    connections = subject.structure(batch).connections
    with attention_path(subject.model, "eager"), Tap(subject.model, len(batch), edit=edit, connections=connections):
        outputs = subject.model(*first, **tensors)
    return subject._forward.decision(outputs, batch)
