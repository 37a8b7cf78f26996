"""Relevance of single operations by LXT, frozen in lxt_functional_figures.json for the tests to compare with.

The explicit rules of LXT need torch alone:

    pip install torch==2.13.0 numpy
    pip install --no-deps lxt==2.1
    python tests/support/peers/lxt_functional_figures.py

LXT stabilises a quotient by adding epsilon whatever the sign of the denominator, whence by adding it with that sign. So
epsilon is 0 where LXT takes one, or the outputs of a layer are of one sign, negative beside a negative epsilon. The
rule of its layer norm always adds 1e-6.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FIGURES = Path(__file__).with_name("lxt_functional_figures.json")
EPSILON = 0.5
Shapes = dict[str, tuple[int, ...]]

# operation -> tensors that get relevance, tensors that do not
OPERATIONS: dict[str, tuple[Shapes, Shapes]] = {
    "softmax": ({"x": (3, 5)}, {}),
    "matmul": ({"a": (2, 3, 4), "b": (2, 4, 5)}, {}),
    "linear": ({"x": (3, 4)}, {"weight": (6, 4), "bias": (6,)}),
    "linear above zero": ({"x": (3, 4)}, {"weight": (6, 4), "bias": (6,)}),
    "linear below zero": ({"x": (3, 4)}, {"weight": (6, 4), "bias": (6,)}),
    "layer_norm": ({"x": (3, 6)}, {"weight": (6,), "bias": (6,)}),
    "rms_norm": ({"x": (3, 6)}, {"weight": (6,)}),
    "normalize": ({"x": (3, 6)}, {}),
    "mul2": ({"a": (3, 4), "b": (3, 4)}, {}),
    "mul2 by a constant": ({"a": (3, 4)}, {"b": (3, 4)}),
    "add2": ({"a": (3, 4), "b": (3, 4)}, {}),
    "mean": ({"x": (3, 5)}, {}),
    "silu": ({"x": (3, 4)}, {}),
    "attention": ({"q": (2, 4, 3), "k": (2, 4, 3), "v": (2, 4, 3)}, {}),
}


def drawn(name: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of an operation, those that get relevance as leaves; a bias decides the sign of outputs."""
    generator = np.random.default_rng(0)
    states, constants = (
        {key: torch.from_numpy(generator.normal(0, 1, shape)) for key, shape in shapes.items()}
        for shapes in OPERATIONS[name]
    )
    if "zero" in name:
        constants["bias"] += 8 if "above" in name else -8
    return {key: state.requires_grad_() for key, state in states.items()}, constants


def handed(like: Tensor) -> Tensor:
    """The relevance that the output of an operation is given."""
    return torch.from_numpy(np.random.default_rng(1).normal(0, 1, tuple(like.shape)))


def future(q: Tensor) -> Tensor:
    """True where a key comes after the query."""
    return torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)


def operations() -> dict[str, Callable[..., Tensor]]:
    """Every operation with the rule that LXT has for it."""
    import lxt.explicit.functional as lf
    from lxt.explicit.rules import identity

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = lf.mul2(lf.matmul(q, k.transpose(-1, -2), epsilon=0.0), q.shape[-1] ** -0.5)
        return lf.matmul(lf.softmax(scores.masked_fill(future(q), -torch.inf), -1), v, epsilon=0.0)

    return {
        "softmax": lambda x: lf.softmax(x, -1),
        "matmul": lambda a, b: lf.matmul(a, b, epsilon=0.0),
        "linear": lambda x, weight, bias: lf.linear_epsilon(x, weight, bias, 0.0),
        "linear above zero": lambda x, weight, bias: lf.linear_epsilon(x, weight, bias, EPSILON),
        "linear below zero": lambda x, weight, bias: lf.linear_epsilon(x, weight, bias, -EPSILON),
        "layer_norm": lambda x, weight, bias: lf.layer_norm(x, weight, bias, 1e-5),
        "rms_norm": lambda x, weight: lf.rms_norm_identity(x, weight, 1e-5),
        "normalize": lambda x: lf.normalize(x, dim=-1),
        "mul2": lf.mul2,
        "mul2 by a constant": lf.mul2,
        "add2": lambda a, b: lf.add2(a, b, epsilon=0.0),
        "mean": lambda x: lf.mean(x, -1, True, 0.0),
        "silu": lambda x: identity(torch.nn.functional.silu, x),
        "attention": attention,
    }


def main() -> None:
    versions = {name: importlib.metadata.version(name) for name in ("lxt", "torch", "numpy")}
    figures: dict[str, Any] = {"versions": versions}
    for name, operation in operations().items():
        states, constants = drawn(name)
        out = operation(*states.values(), *constants.values())
        out.backward(handed(out))
        figures[name] = {key: [float(f"{r:.10g}") for r in state.grad.flatten()] for key, state in states.items()}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
