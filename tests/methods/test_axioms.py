"""The axioms of attribution: which methods keep them, and examples on which the others break them.

Completeness: the scores sum to f(x) - f(x0). Sensitivity: (a) one feature differs and f does too, then it scores;
(b) a feature that f does not depend on scores 0. Implementation invariance: equal functions, equal scores. Linearity:
the scores of a f + b g are a times those of f plus b times those of g. Symmetry: what f treats alike scores alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whence
from families import fresh
from whence.core.results import Attribution

# Both follow the straight line, by a fixed number of gradients, so that equal functions get equal scores
STRAIGHT = ["integrated_gradients(steps=32)", "path_gradients(points=4, steps=8)"]
WIDTH = 4


class Formula(nn.Module):
    """Word embeddings, the first one zero, and a formula of them: (batch, word, width) to (batch, class).

    Every word attends to itself alone, which changes nothing; relevance propagation looks for attention.
    """

    def __init__(self, formula: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.word = nn.Embedding(8, WIDTH, dtype=torch.float64)
        self.formula = formula
        with torch.no_grad():
            drawn = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            self.word.weight.copy_(drawn).index_fill_(0, torch.tensor([0]), 0.0)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.word(input_ids)
        others = ~torch.eye(x.shape[1], dtype=torch.bool)
        weights = (x @ x.transpose(1, 2)).masked_fill(others, float("-inf")).softmax(-1)
        out = self.formula(weights @ x)
        return out if out.ndim == 2 else out[:, None]


def encode(raw: tuple[int, ...]) -> dict[str, Any]:
    return {"tensors": {"input_ids": np.array(raw)}, "features": {"text": [str(number) for number in raw]}}


def explained(
    formula: Callable[[Tensor], Tensor], raw: tuple[int, ...], method: str, target: Any = 0, **options: Any
) -> Attribution:
    """Every method at the word embeddings; those with a baseline start from zero."""
    if "integrated" in method or "path" in method:
        options = {"baseline": "zero", **options}
    return whence.explain(whence.wrap(Formula(formula), encode=encode), raw, method, target, at="word", **options)


def network(hidden: int, *, bias: bool, seed: int = 1) -> nn.Sequential:
    """A small network of three words that rectifies, with random weights; three classes."""
    generator = torch.Generator().manual_seed(seed)
    layers = nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * WIDTH, hidden, bias=bias, dtype=torch.float64),
        nn.ReLU(),
        nn.Linear(hidden, 3, bias=bias, dtype=torch.float64),
    )
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
    return layers


RAW = (1, 5, 2)


# ---- completeness ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["integrated_gradients(tolerance=1e-4)", "path_gradients(points=64, steps=8)"])
@pytest.mark.parametrize("name", ["bert", "vit"])
def test_straight_paths_are_complete_on_transformers(name: str, method: str) -> None:
    made = fresh(name)
    a = whence.explain(whence.wrap(made.model.double(), made.processor), made.inputs[1], method)
    assert a.scores.sum() == pytest.approx(a.output - a.base, abs=1e-4 * np.abs(a.scores).sum())
    product = whence.explain(whence.wrap(made.model, made.processor), made.inputs[1], "gradient_x_input(at='word')")
    assert abs(product.residual) > 0.1 * np.abs(product.scores).sum()


@pytest.mark.parametrize("method", STRAIGHT)
def test_the_error_of_a_smooth_path_falls_with_the_steps(method: str) -> None:
    name = method.split("(")[0]
    errors = []
    for steps in (1, 3, 9):
        a = explained(lambda x: torch.tanh(x.sum((1, 2))) + torch.exp(-x.square().sum((1, 2))), RAW, name, steps=steps)
        errors.append(abs(a.residual))
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-6


def test_gradient_x_input_is_complete_where_the_network_is_homogeneous() -> None:
    """Without biases a network of ReLUs grows in proportion with its input; with them it does not."""
    free, biased = network(6, bias=False), network(6, bias=True)
    a = explained(free, RAW, "gradient_x_input")
    assert a.scores.sum() == pytest.approx(a.output) and abs(a.output) > 0.1
    for method in STRAIGHT:
        np.testing.assert_allclose(explained(free, RAW, method).scores, a.scores, atol=1e-12)
    b = explained(biased, RAW, "gradient_x_input")
    assert abs(b.scores.sum() - (b.output - explained(biased, RAW, STRAIGHT[0]).base)) > 0.1


def test_lrp_is_complete_without_biases_only() -> None:
    a, b = (explained(network(6, bias=bias), RAW, "lrp") for bias in (False, True))
    assert abs(a.residual) < 1e-12 and abs(b.residual) > 0.1


# ---- sensitivity -----------------------------------------------------------------------------------------------------


def saturated(x: Tensor) -> Tensor:
    """1 - ReLU(1 - |x|^2 of the first word): 0 at 0, and flat once the word is longer than 1."""
    return 1 - F.relu(1 - x[:, 0].square().sum(-1))


@pytest.mark.parametrize("method", STRAIGHT)
def test_a_path_sees_what_has_saturated(method: str) -> None:
    a = explained(saturated, RAW, method)
    assert a.output == 1 and a.base == 0
    assert a.scores[0] == pytest.approx(1, abs=0.1) and (a.scores[1:] == 0).all()


@pytest.mark.parametrize("method", ["gradient", "gradient_x_input", "lrp"])
def test_gradients_at_the_input_do_not(method: str) -> None:
    """One feature differs from the baseline, the output differs by 1, and nothing is found."""
    a = explained(saturated, RAW, method)
    assert a.output == 1 and explained(saturated, (0, 5, 2), method).output == 0
    assert (a.scores == 0).all()


@pytest.mark.parametrize("method", [*STRAIGHT, "gradient", "gradient_x_input", "lrp"])
def test_what_is_not_used_scores_nothing(method: str) -> None:
    def formula(x: Tensor) -> Tensor:
        return (torch.tanh(x[:, 0]) * torch.relu(x[:, 2] + 0.5)).sum(-1)

    a = explained(formula, RAW, method)
    assert a.scores[1] == 0 and a.scores[0] != 0 and a.scores[2] != 0


@pytest.mark.parametrize("method", STRAIGHT)
def test_what_does_not_differ_from_the_baseline_scores_nothing(method: str) -> None:
    scores = explained(network(6, bias=True), (1, 0, 2), method).scores
    assert scores[1] == 0 and scores[0] != 0


# ---- implementation invariance ---------------------------------------------------------------------------------------


def split(linear: nn.Linear) -> nn.Sequential:
    """Two linear layers that come to the same: W = (W M^-1) M."""
    size, kind = linear.in_features, linear.weight.dtype
    mix = torch.randn(size, size, generator=torch.Generator().manual_seed(2), dtype=kind) + 4 * torch.eye(size)
    first = nn.Linear(size, size, bias=False, dtype=kind)
    second = nn.Linear(size, linear.out_features, dtype=kind)
    with torch.no_grad():
        first.weight.copy_(mix)
        second.weight.copy_(linear.weight @ torch.linalg.inv(mix))
        second.bias.copy_(linear.bias)
    return nn.Sequential(first, second)


class Act(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def written(how: str) -> nn.Sequential:
    """The same network in other words."""
    flat, first, relu, last = network(6, bias=True)
    return {
        "split": nn.Sequential(flat, split(first), relu, split(last)),
        "maximum": nn.Sequential(flat, first, Act(lambda z: torch.maximum(z, torch.zeros_like(z))), last),
        "halves": nn.Sequential(flat, first, Act(lambda z: (z + z.abs()) / 2), last),
    }[how]


@pytest.mark.parametrize("how", ["split", "maximum", "halves"])
@pytest.mark.parametrize("method", [*STRAIGHT, "gradient", "gradient_x_input"])
def test_scores_do_not_depend_on_how_a_network_is_written(method: str, how: str) -> None:
    one, two = explained(network(6, bias=True), RAW, method), explained(written(how), RAW, method)
    assert two.output == pytest.approx(one.output, abs=1e-12)
    np.testing.assert_allclose(two.scores, one.scores, atol=1e-12)
    assert np.abs(one.scores).min() > 1e-3


@pytest.mark.parametrize("method", [*STRAIGHT, "gradient", "gradient_x_input"])
def test_nor_on_how_a_transformer_is_written(method: str) -> None:
    made = fresh("from-scratch")
    model: Any = made.model.double()
    options = {"target": 0, "at": "word"}
    one = whence.explain(whence.wrap(model, **made.kwargs), made.inputs[0], method, **options)
    for block in model.blocks:
        first, _, last = block.network
        block.network = nn.Sequential(split(first), Act(lambda z: (z + z.abs()) / 2), split(last))
    two = whence.explain(whence.wrap(model, **made.kwargs), made.inputs[0], method, **options)
    np.testing.assert_allclose(two.scores, one.scores, atol=1e-10)


def with_activation(function: Callable[[Tensor], Tensor]) -> nn.Sequential:
    flat, first, _, last = network(6, bias=True)
    return nn.Sequential(flat, first, Act(function), last)


TWICE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "tanh": (torch.tanh, lambda z: 2 * torch.sigmoid(2 * z) - 1),
    "gelu": (F.gelu, lambda z: z * (1 + torch.erf(z / 2**0.5)) / 2),
    "silu": (F.silu, lambda z: z * torch.sigmoid(z)),
}


class Inline(nn.Module):
    """A network that applies its activation between its layers itself."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.flat, self.first, _, self.last = network(6, bias=True)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(self.flat(x))))


@pytest.mark.parametrize("name", TWICE)
def test_an_activation_in_a_module_of_its_own_is_known_by_what_it_does(name: str) -> None:
    one, two = (explained(with_activation(function), RAW, "lrp") for function in TWICE[name])
    np.testing.assert_allclose(one.scores, two.scores, atol=1e-12)


@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_lrp_depends_on_how_an_activation_is_written_among_other_operations(name: str) -> None:
    """Its rules are those of operations: one activation and the formula of it are handed down in two ways."""
    one, two = map(Inline, TWICE[name])
    a, b = explained(one, RAW, "lrp"), explained(two, RAW, "lrp")
    assert a.output == pytest.approx(b.output, abs=1e-12)
    assert np.abs(a.scores - b.scores).max() > 1e-2
    for method in STRAIGHT:
        x, y = explained(one, RAW, method), explained(two, RAW, method)
        np.testing.assert_allclose(x.scores, y.scores, atol=1e-12)


@pytest.mark.parametrize(("options", "same"), [({}, True), ({"gamma": 0.5}, False), ({"epsilon": 0.5}, False)])
def test_rules_of_linear_layers_see_a_layer_split_in_two(options: dict[str, float], same: bool) -> None:
    one, two = (
        explained(network(6, bias=True), RAW, "lrp", **options),
        explained(written("split"), RAW, "lrp", **options),
    )
    assert (np.abs(one.scores - two.scores).max() < 1e-10) == same
    assert same or np.abs(one.scores - two.scores).max() > 1e-2


# ---- linearity -------------------------------------------------------------------------------------------------------


def mixed(logits: Tensor, batch: Any) -> Tensor:
    return 2.0 * logits[:, 0] - 0.7 * logits[:, 2]


@pytest.mark.parametrize("method", [*STRAIGHT, "gradient_x_input", "gradient(reduce='sum')"])
def test_scores_of_a_sum_are_the_sum_of_scores(method: str) -> None:
    f, both, g = (explained(network(6, bias=True), RAW, method, target) for target in (0, mixed, 2))
    np.testing.assert_allclose(both.scores, 2.0 * f.scores - 0.7 * g.scores, atol=1e-12)
    assert np.abs(both.scores - f.scores).max() > 1e-2
    made = fresh("bert")
    made_by, raw = whence.wrap(made.model.double(), made.processor), made.inputs[0]
    f, both, g = (whence.explain(made_by, raw, method, target) for target in (0, mixed, 2))
    np.testing.assert_allclose(both.scores, 2.0 * f.scores - 0.7 * g.scores, atol=1e-10)


def test_the_size_of_a_gradient_is_not_linear() -> None:
    f, both, g = (explained(network(6, bias=True), RAW, "gradient", target) for target in (0, mixed, 2))
    assert np.abs(both.scores - (2.0 * f.scores - 0.7 * g.scores)).max() > 1e-2


# ---- symmetry --------------------------------------------------------------------------------------------------------


def symmetric(x: Tensor) -> Tensor:
    """The first and the last word may change places."""
    return torch.tanh(x[:, 0] * x[:, 2] + x[:, 1]).sum(-1) + torch.exp(-(x[:, 0] + x[:, 2]).square()).sum(-1)


def first_word_first(x0: Tensor, x: Tensor, share: float) -> Tensor:
    """The first word goes in the first half of the way, the others in the second."""
    shares = torch.full((x.shape[1], 1), max(0.0, 2 * share - 1), dtype=x.dtype)
    shares[0] = min(1.0, 2 * share)
    return x0 + shares * (x - x0)


@pytest.mark.parametrize("method", STRAIGHT)
def test_the_straight_path_treats_alike_what_is_alike(method: str) -> None:
    same = explained(symmetric, (1, 4, 1), method)
    assert same.scores[0] == pytest.approx(same.scores[2], abs=1e-12) and abs(same.scores[0]) > 1e-2
    here, there = explained(symmetric, (1, 4, 6), method), explained(symmetric, (6, 4, 1), method)
    np.testing.assert_allclose(here.scores, there.scores[::-1], atol=1e-12)
    assert abs(here.scores[0] - here.scores[2]) > 1e-2


def test_another_path_does_not() -> None:
    a = explained(symmetric, (1, 4, 1), "path_gradients(points=8, steps=8)", path=first_word_first)
    assert abs(a.scores[0] - a.scores[2]) > 1e-2
    assert abs(a.residual) < 1e-6  # and yet it is complete


# ---- what follows ----------------------------------------------------------------------------------------------------


def quadratic(x: Tensor) -> Tensor:
    return x.sum((1, 2)).square() + (x[:, 0] * x[:, 1]).sum(-1) - x[:, 2].sum(-1)


def test_one_gradient_is_exact_where_the_target_is_quadratic() -> None:
    one = explained(quadratic, RAW, "path_gradients(points=1, steps=1)")
    assert abs(one.residual) < 1e-12
    np.testing.assert_allclose(one.scores, explained(quadratic, RAW, "path_gradients").scores, atol=1e-12)
    edge = explained(quadratic, RAW, "integrated_gradients(steps=1, rule='left')")
    assert abs(edge.residual) > 0.1


def test_the_way_back_undoes_the_way_there() -> None:
    """With input and baseline exchanged, every score changes its sign; so it does on a path that is run backwards."""

    def last_word_first(x0: Tensor, x: Tensor, share: float) -> Tensor:
        return first_word_first(x, x0, 1 - share)

    word = Formula(symmetric).word.weight.detach().numpy()
    pairs: list[tuple[Any, Any]] = [("straight", "straight"), (first_word_first, last_word_first)]
    for path, reverse in pairs:
        there = explained(symmetric, (1, 5, 2), "path_gradients", path=path, baseline=word[[3, 4, 6]])
        back = explained(symmetric, (3, 4, 6), "path_gradients", path=reverse, baseline=word[[1, 5, 2]])
        np.testing.assert_allclose(there.scores, -back.scores, atol=1e-12)
        assert np.abs(there.scores).min() > 1e-3
