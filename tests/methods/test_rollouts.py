"""Products of many layers keep their digits, and a product that has collapsed is noted, an ordinary one is not."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import whence
from whence.methods.rollouts import collapse_notes, rolled_out, with_halves
from whence.testing import induction

DEPTH, SIZE = 30, 5


def layers(seed: int = 0) -> list[list[list[Fraction]]]:
    """Causal maps of a model with a sink: exact shares, of which the first token takes all but a millionth."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(DEPTH):
        rows = []
        for query in range(SIZE):
            small = [Fraction(int(generator.integers(1, 1000)), 10**9) for _ in range(query)]
            rows.append([1 - sum(small), *small, *[Fraction(0)] * (SIZE - 1 - query)])
        made.append(rows)
    return made


def exact(maps: list[list[list[Fraction]]]) -> list[Fraction]:
    """The last row of the product, later layers on the left, without any rounding."""
    row = [Fraction(int(i == SIZE - 1)) for i in range(SIZE)]
    for one in reversed(maps):
        row = [sum((row[k] * one[k][j] for k in range(SIZE)), Fraction(0)) for j in range(SIZE)]
    return row


def logarithm(value: Fraction) -> float:
    return math.log(value.numerator) - math.log(value.denominator)


def as_tensors(maps: list[list[list[Fraction]]]) -> list[torch.Tensor]:
    return [torch.tensor([[[float(x) for x in row] for row in one]], dtype=torch.float64) for one in maps]


def start() -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor([[SIZE - 1]]), SIZE).float()


def test_a_product_of_thirty_layers_keeps_its_digits() -> None:
    maps = layers()
    right, logs = exact(maps), rolled_out(start(), reversed(as_tensors(maps)))[0, 0]
    wanted = [logarithm(value) for value in right]
    assert min(wanted) < math.log(1e-150)  # far below what 32 bits hold
    np.testing.assert_allclose(logs, wanted, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(logs.exp(), [float(value) for value in right], rtol=1e-10)


def test_a_product_in_32_bits_does_not() -> None:
    state = start()
    for one in reversed(as_tensors(layers())):
        state = state @ one.float()
        state = state / state.amax()
    assert (state == 0).any() and not any(value == 0 for value in exact(layers()))


@pytest.mark.parametrize("wrong", ["first layer first", "transposed"])
def test_a_wrong_product_is_caught(wrong: str) -> None:
    maps = as_tensors(layers())
    maps = maps if wrong == "first layer first" else [one.transpose(1, 2) for one in reversed(maps)]
    wanted = [logarithm(value) for value in exact(layers())]
    found = rolled_out(start(), maps)[0, 0].numpy()
    assert not np.allclose(found, wanted, rtol=1e-6)


def test_zeros_stay_zeros() -> None:
    maps = [torch.tensor([[[1.0, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0.5]]])] * 2
    rows = rolled_out(torch.eye(3)[None], maps)
    np.testing.assert_allclose(rows[0].exp(), torch.linalg.matrix_power(maps[0][0].double(), 2), atol=1e-15)
    assert rows[0, 0, 1] == -math.inf and not rows.isnan().any()


def notes_of(method: str, subject: whence.Subject, raw: str) -> list[str]:
    return [note for note in whence.explain(subject, raw, method).notes if "collapsed" in note]


@pytest.mark.parametrize("method", ["rollout", "globenc", "value_zeroing"])
def test_a_collapsed_result_is_noted(method: str) -> None:
    subject, example = induction.subject(24, longest=64), induction.examples(1, words=15, pairs=2)[0]
    a = whence.explain(subject, example.input, method)
    assert notes_of(method, subject, example.input) and a.scores.argmax() == 0
    first = example.input.split()[0]
    assert f"of the weight lies on ‘{first}’" in " ".join(a.notes) and "leave_one_out" in " ".join(a.notes)
    assert (a.scores > 0).all() and len(set(a.scores.tolist())) > 10  # what is left still has an order


@pytest.mark.parametrize("method", ["rollout", "globenc", "alti", "value_zeroing"])
def test_an_ordinary_result_is_not(method: str) -> None:
    for name in ("planted", "recall", "sst2"):
        for example in whence.zoo.examples(name, 2, seed=7):
            assert not notes_of(method, whence.load(name), example.input), name


def test_sharp_rows_that_differ_have_not_collapsed() -> None:
    """Broken twin: a check that looks at the largest score alone would note this, whose rows all point elsewhere."""
    subject = whence.load("recall")
    batch = subject.batch([subject.encode("k3 v7 k1 v2 k3")])
    size = batch.mask.shape[1]
    turned = torch.eye(size).roll(1, 1)[None] * 0.999 + 0.001 / size
    product = with_halves(torch.eye(size)[None, -1:], batch) @ turned
    assert float(product[0, 2].max() / product[0, 2].sum()) > 0.99
    assert collapse_notes(product[:, :2], product[:, 2], batch) == [()]
    alike = torch.full((1, size, size), 1e-5)
    alike[..., 0] = 1.0
    product = with_halves(torch.eye(size)[None, -1:], batch) @ alike
    assert len(collapse_notes(product[:, :2], product[:, 2], batch)[0]) == 1
