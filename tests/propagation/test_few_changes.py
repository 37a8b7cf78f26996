"""Linear layers of states that differ in few directions between copies, beside the same layers of the whole states."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from whence.model.tap import AttentionRecord
from whence.propagation.few_changes import Changed, FewChanges

COPIES, SIZE, TOKENS, WIDTH = 3, 2, 5, 8


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


W, V, G = numbers(WIDTH, WIDTH, seed=1), numbers(11, WIDTH, seed=2), numbers(WIDTH, seed=3)


def same(copies: int) -> Tensor:
    """Numbers that are equal in all copies."""
    return numbers(SIZE, TOKENS, WIDTH, seed=4).repeat(copies, 1, 1)


def in_place(x: Tensor) -> Tensor:
    residual = same(len(x) // SIZE)
    residual += x
    return residual


def changed_in_place(x: Tensor) -> Tensor:
    return x.mul_(2.0) if x.requires_grad else x.add_(1.0)


def only_in_some_copies(x: Tensor) -> Tensor:
    return x + numbers(*x.shape, seed=5)


def by_hand(x: Tensor) -> Tensor:
    return G * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


OPERATIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x + same(len(x) // SIZE),
    lambda x: same(len(x) // SIZE) + x,
    in_place,
    changed_in_place,
    only_in_some_copies,
    by_hand,
    lambda x: G * x,
    lambda x: x * 2,
    lambda x: x - same(len(x) // SIZE),
    lambda x: x + x,
    lambda x: x * x,
    lambda x: F.layer_norm(x, (WIDTH,), G, 2 * G),
    lambda x: F.layer_norm(F.layer_norm(x, (WIDTH,), G, 2 * G), (WIDTH,)),
    lambda x: G * F.layer_norm(x, (WIDTH,), G, 2 * G),
    lambda x: F.layer_norm(x, (WIDTH,), G, G) + same(len(x) // SIZE),
    lambda x: F.layer_norm(x, normalized_shape=(TOKENS, WIDTH)),
    lambda x: F.rms_norm(x, (WIDTH,), G),
    lambda x: F.gelu(x),
    lambda x: F.dropout(x, 0.5, False).contiguous().clone(),
    lambda x: F.dropout(x, 0.0, True),
    lambda x: x.float().double(),
    lambda x: x.flip(1),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_linear_layers(operation: Callable[[Tensor], Tensor]) -> None:
    """Whatever comes between, linear layers give what they give of the whole states, in every run."""
    fixed, factors = numbers(SIZE, TOKENS, WIDTH, seed=6), numbers(COPIES * SIZE, TOKENS, 2, seed=7)
    factors[:, :2] = 0.0  # rows that the change does not reach
    changes = [
        Changed(fixed, 0 * factors[:SIZE], numbers(SIZE, 2, WIDTH)),
        Changed(fixed, factors, numbers(6, 2, WIDTH)),
    ]
    few = FewChanges(0, SIZE, 0.6)
    for product in changes:
        whole = product.value()

        def layer(x: Tensor) -> Tensor:
            return F.linear(F.gelu(F.linear(operation(F.linear(x, W, G)), V, V[:, 0])), V.T)

        expected = layer(whole)
        few.next_run(product)
        with few:
            few.seen(AttentionRecord(0, ""), whole, whole, whole[:, None], lambda tensor: tensor)
            found = layer(whole)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
