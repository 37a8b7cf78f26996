"""Single rules beside those of LXT, by figures; peers/lxt_functional_figures.py says how they were made."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peers.lxt_functional_figures import EPSILON, FIGURES, OPERATIONS, drawn, future, handed
from whence.propagation.backward_rules import Conserving


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    return scores.masked_fill(future(q), -torch.inf).softmax(-1) @ v


PLAIN: dict[str, list[Callable[..., Tensor]]] = {
    "softmax": [lambda x: x.softmax(-1), lambda x: F.softmax(x, -1)],
    "matmul": [torch.matmul, torch.bmm, lambda a, b: torch.einsum("nij,njk->nik", a, b)],
    "linear": [F.linear],
    "linear above zero": [F.linear, lambda x, weight, bias: torch.addmm(bias, x, weight.T)],
    "linear below zero": [F.linear, lambda x, weight, bias: torch.addmm(bias, x, weight.T)],
    "layer_norm": [lambda x, weight, bias: F.layer_norm(x, (6,), weight, bias, 1e-5)],
    "rms_norm": [rms_norm, lambda x, weight: F.rms_norm(x, (6,), weight, 1e-5)],
    "normalize": [
        lambda x: x / x.norm(dim=-1, keepdim=True),
        lambda x: x / x.square().sum(-1, keepdim=True).sqrt(),
        lambda x: F.normalize(x, dim=-1),
        lambda x: x / torch.linalg.vector_norm(x, dim=-1, keepdim=True),
        lambda x: x / torch.linalg.norm(x, dim=-1, keepdim=True),
    ],
    "mul2": [torch.mul, lambda a, b: a * b],
    "mul2 by a constant": [torch.mul, lambda a, b: b * a],
    "add2": [torch.add, lambda a, b: a + b],
    "mean": [lambda x: x.mean(-1, keepdim=True), lambda x: x.sum(-1, keepdim=True) / x.shape[-1]],
    "silu": [F.silu, nn.SiLU()],
    "attention": [attention],
}
# Gradient x input is already the rule of what is linear in its operands together, and of the softmax.
GRADIENT = {"softmax", "linear", "mul2 by a constant", "add2", "mean"}
CASES = [pytest.param(name, function, id=f"{name} {n}") for name in PLAIN for n, function in enumerate(PLAIN[name])]


def relevance(function: Callable[..., Tensor], name: str, rules: Any) -> dict[str, Tensor]:
    """x df/dx of every state, where f hands the relevance of the output on: df/dy = R / y."""
    states, constants = drawn(name)
    with rules:
        out = function(*states.values(), *constants.values())
    gradients = torch.autograd.grad(out, list(states.values()), handed(out) / out.detach())
    return {key: (state * g).detach() for (key, state), g in zip(states.items(), gradients, strict=True)}


def away(found: dict[str, Tensor], name: str) -> float:
    """The largest difference in any operand, relative to its largest relevance."""
    figures = json.loads(FIGURES.read_text())[name]
    assert list(figures) == list(found)
    expected = {key: torch.tensor(figures[key], dtype=torch.float64).view_as(found[key]) for key in found}
    return max(((found[key] - e).abs().max() / e.abs().max()).item() for key, e in expected.items())


@pytest.mark.parametrize(("name", "function"), CASES)
def test_a_rule_is_that_of_lxt(name: str, function: Callable[..., Tensor]) -> None:
    module = function if isinstance(function, nn.Module) else nn.Identity()
    rules = Conserving(heads="half", epsilon=EPSILON if "zero" in name else 0.0).on(module)
    assert away(relevance(function, name, rules), name) <= 1e-4


@pytest.mark.parametrize("name", PLAIN)
def test_where_the_gradient_alone_is_the_rule(name: str) -> None:
    plain = away(relevance(PLAIN[name][0], name, nullcontext()), name)
    assert plain <= 1e-4 if name in GRADIENT else plain > 0.02


def test_every_operation_is_compared() -> None:
    assert set(PLAIN) == set(OPERATIONS) == set(json.loads(FIGURES.read_text())) - {"versions"}
