"""What tests of relevance share: models in both precisions, their networks by hand, distances."""

from __future__ import annotations

from functools import cache
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

import relevance_by_hand as hand
import whence
from families import fresh, kept_in, plain_inputs

SINGLE, DOUBLE = torch.float32, torch.float64
# Relevance is divided by sums that nearly cancel, which makes the rounding of float32 grow: transformer attribution
# written out in float32 is 3e-4 off as well. With gamma and without epsilon such a sum is not even the output, whose
# relevance would be small too; then 1e-2 is lost, and only float64 can tell right from wrong.
CLOSE = {SINGLE: 1e-5, DOUBLE: 1e-10}
ROUNDED = {SINGLE: 1e-3, DOUBLE: 1e-10}
FAR = 0.05


@cache
def subject(name: str, dtype: torch.dtype) -> Any:
    made = fresh(name)
    return whence.wrap(made.model.to(dtype), made.processor)


@cache
def plain(name: str) -> list[tuple[hand.Network, int, list[Tensor]]]:
    """For three inputs the steps of the forward pass, the prediction, and the gradient of each layer's attention."""
    made = fresh(name)
    model: Any = made.model.double()
    model.set_attn_implementation("eager")
    found = []
    with kept_in(DOUBLE):
        for raw in made.inputs[:3]:
            tensors = {k: t.double() if t.is_floating_point() else t for k, t in plain_inputs(made, raw).items()}
            out = model(**tensors, output_attentions=True)
            logits = out.logits.flatten(0, -2)[-1]
            gradients = torch.autograd.grad(logits.max(), out.attentions)
            with torch.no_grad():
                net = getattr(hand, name)(model, tensors)
            torch.testing.assert_close(net.steps[-1].value, logits, rtol=1e-10, atol=1e-10)
            found.append((net, int(logits.argmax()), [g[0] for g in gradients]))
    return found


@cache
def without_biases(name: str, dtype: torch.dtype) -> Any:
    found = fresh(name)
    with torch.no_grad():
        for key, tensor in chain(found.model.named_parameters(), found.model.named_buffers()):
            if key.endswith("bias"):
                tensor.zero_()
    return whence.wrap(found.model.to(dtype), found.processor)


def distance(found: list[np.ndarray], right: list[np.ndarray]) -> float:
    """The largest difference, relative to the largest score of the example."""
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, right, strict=True))


def spelled(name: str, options: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in options.items())})"
