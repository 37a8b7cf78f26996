"""What relevance propagation keeps and what it loses: conservation in whole models, and the identities of each rule."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import relevance_by_hand as hand
import whence
from families import fresh, kept_in, plain_inputs
from relevance_cases import without_biases
from whence.propagation.backward_rules import Conserving, Positive
from whence.propagation.operations import ACTIVATION, MULTIPLY, NORM, is_elementwise, through

SINGLE, DOUBLE = torch.float32, torch.float64
# without biases, relevance sums to the output up to rounding, relative to the sum of absolute relevance
KEPT = {SINGLE: 1e-5, DOUBLE: 1e-12}


# ---- whole models ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
@pytest.mark.parametrize(
    "name", ["bert", "vit", "llama", "t5", "gpt2", "gemma3", "gemma2", "qwen3", "bart", "clip", "bloom"]
)
def test_without_biases_relevance_sums_to_the_output(name: str, dtype: torch.dtype) -> None:
    subject = without_biases(name, dtype)
    with kept_in(dtype):
        found = whence.explain(subject, fresh(name).inputs[:2], "lrp")
    for a in found:
        scores = np.atleast_2d(a.scores)
        lost = np.abs(scores.sum(1) - a.output)
        assert (lost <= KEPT[dtype] * np.abs(scores).sum(1)).all()
        np.testing.assert_allclose(a.residual, a.output - scores.sum(1), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2"])
def test_gradient_x_input_and_attnlrp_lose_relevance(name: str) -> None:
    for spec in ("gradient_x_input", "attnlrp"):
        a = whence.explain(without_biases(name, SINGLE), fresh(name).inputs[0], spec)
        scores = np.atleast_2d(a.scores)
        assert (np.abs(scores.sum(1) - a.output) > 0.01 * np.abs(scores).sum(1)).all()


@pytest.mark.parametrize("options", [{}, {"gamma": 0.25}], ids=str)
@pytest.mark.parametrize("name", ["bert", "vit"])
def test_with_biases_the_residual_is_their_relevance(name: str, options: dict[str, float]) -> None:
    made = fresh(name)
    model: Any = made.model.double()
    raw = made.inputs[0]
    spec = f"lrp({', '.join(f'{key}={value}' for key, value in options.items())})"
    with kept_in(DOUBLE):
        a = whence.explain(whence.wrap(model, made.processor), raw, spec)
        tensors = {k: t.double() if t.is_floating_point() else t for k, t in plain_inputs(made, raw).items()}
        with torch.no_grad():
            net = getattr(hand, name)(model, tensors)
    rules = hand.Lrp(**options)
    logits = net.steps[-1].value
    net.explained(rules, int(logits.argmax()), logits.max().item())
    assert abs(rules.biases) > 0.01
    assert a.residual == pytest.approx(rules.biases, rel=1e-9)


@pytest.mark.parametrize("name", ["t5", "bert", "llama"])
def test_no_rules_are_gradient_x_input(name: str) -> None:
    inputs = fresh(name).inputs[:2]
    subject = without_biases(name, SINGLE)
    found = [whence.explain(subject, inputs, spec) for spec in ("gradient_x_input", "lrp(rules='none')")]
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-5 * np.abs(a.scores).max())


def test_a_state_of_zeros_has_no_relevance_under_gamma() -> None:
    found = fresh("llama")
    empty = found.processor("a film")["input_ids"][2]
    with torch.no_grad():
        found.model.model.embed_tokens.weight[empty] = 0  # its linear layers, without biases, give 0 as well
    scores = whence.explain(whence.wrap(found.model, found.processor), "a film", "lrp(gamma=0.25)").scores
    assert np.isfinite(scores).all() and scores[..., 2] == 0


# ---- broken rules ----------------------------------------------------------------------------------------------------


class MeanHeld(Conserving):
    """The mean of a norm is a constant too."""

    def ruled(self, func: Any, args: Any, kwargs: Any) -> Any:
        if func not in NORM:
            return super().ruled(func, args, kwargs)
        y, x = func(*args, **kwargs), args[0]
        deviation = (x.var(-1, unbiased=False, keepdim=True) + kwargs["eps"]).sqrt().detach()
        return through(y, (x - x.mean(-1, keepdim=True).detach()) / deviation * kwargs["weight"])


class OneNormMissed(Conserving):
    """The second norm is left to the gradient."""

    norms = 0

    def ruled(self, func: Any, args: Any, kwargs: Any) -> Any:
        a_norm = func in NORM or func is torch.rsqrt
        self.norms += a_norm
        return func(*args, **kwargs) if a_norm and self.norms == 2 else super().ruled(func, args, kwargs)


class WeightAlone(Conserving):
    """Norms that multiply by 1 + weight are read as multiplying by the weight."""

    def ruled(self, func: Any, args: Any, kwargs: Any) -> Any:
        out = super().ruled(func, args, kwargs)
        scaled = func in MULTIPLY and isinstance(args[1], Tensor) and args[1].ndim == 1
        return through(out, args[0] * (args[1] - 1)) if scaled else out


class Tangent(Conserving):
    """Activations by their derivative."""

    def activated(self, x: Tensor, y: Tensor, function: Any) -> Tensor:
        return y


class WeightsFree(Conserving):
    """Attention weights are not held."""

    def edit(self, record: Any, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return weights, values


def leak(name: str, rules: type[Conserving]) -> float:
    """What is lost, relative to the sum of absolute relevance."""
    subject = without_biases(name, SINGLE)
    batch = subject.batch([subject.encode(fresh(name).inputs[0])])
    aim = subject.aim([None])
    subject.values(batch, aim)
    trace = subject.trace(batch, aim, ("gradient:embeddings",), rules=rules())
    pairs = zip(trace.states["embeddings"].values(), trace.gradients["embeddings"].values(), strict=True)
    relevance = torch.cat([(x * g).flatten() for x, g in pairs])
    return float((relevance.sum() - trace.value[0]).abs() / relevance.abs().sum())


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("bert", MeanHeld),
        ("vit", MeanHeld),
        ("bert", OneNormMissed),
        ("vit", OneNormMissed),
        ("llama", OneNormMissed),
        ("gemma3", WeightAlone),
        ("bert", Tangent),
        ("vit", Tangent),
        ("gpt2", Tangent),
        ("bert", WeightsFree),
        ("llama", WeightsFree),
    ],
)
def test_a_broken_rule_leaks(name: str, rules: type[Conserving]) -> None:
    assert leak(name, Conserving) <= 1e-5
    assert leak(name, rules) > 1e-3


# ---- single rules ----------------------------------------------------------------------------------------------------


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def relevance(rules: Conserving | None, function: Any, u: Tensor, *inputs: Tensor) -> list[Tensor]:
    """Gradient x input of u.f(inputs), under rules."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    with rules or contextlib.nullcontext():
        out = function(*leaves)
    return [x.detach() * g for x, g in zip(leaves, torch.autograd.grad((u * out).sum(), leaves), strict=True)]


@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_layer_norm(eps: float) -> None:
    x, u = drawn(3, 8), drawn(3, 8, seed=1)
    size = [8]

    def norm(t: Tensor) -> Tensor:
        return F.layer_norm(t, size, None, None, eps)

    total = (u * norm(x)).sum(-1)
    variance = x.var(-1, unbiased=False)
    (plain,), (ruled,) = (relevance(rules, norm, u, x) for rules in (None, Conserving()))
    torch.testing.assert_close(plain.sum(-1), eps / (eps + variance) * total)
    torch.testing.assert_close(ruled.sum(-1), total)
    mean_held = (u * x).sum(-1) / (variance + eps).sqrt()
    torch.testing.assert_close(mean_held - total, x.mean(-1) * u.sum(-1) / (variance + eps).sqrt())


def test_attention_weights_held_conserve_in_every_head() -> None:
    A, V, u = drawn(2, 4, 5, 5).softmax(-1), drawn(2, 4, 5, 3, seed=1), drawn(2, 4, 5, 3, seed=2)
    (found,) = relevance(None, lambda v: A @ v, u, V)
    torch.testing.assert_close(found.sum((-1, -2)), (u * (A @ V)).sum((-1, -2)))


def test_products_give_half_to_each() -> None:
    A, V, u = drawn(2, 5, 5), drawn(2, 5, 3, seed=1), drawn(2, 5, 3, seed=2)
    total = (u * (A @ V)).sum((-1, -2))
    for part in relevance(Conserving(heads="half"), torch.matmul, u, A, V):
        torch.testing.assert_close(part.sum((-1, -2)), total / 2)
    x, y, w = drawn(4), drawn(4, seed=1), drawn(4, seed=2)
    for part in relevance(Conserving(heads="half"), torch.mul, w, x, y):
        torch.testing.assert_close(part, w * x * y / 2)


def test_softmax_goes_by_its_taylor_expansion() -> None:
    x, g = drawn(4, 6), drawn(4, 6, seed=1)
    s = x.softmax(-1)
    (found,) = relevance(Conserving(heads="half"), lambda t: t.softmax(-1), g, x)
    R = s * g
    torch.testing.assert_close(found, x * (R - s * R.sum(-1, keepdim=True)))
    (flat,) = relevance(Conserving(heads="half"), lambda t: t.softmax(-1), torch.ones_like(g), x)
    torch.testing.assert_close(flat, torch.zeros_like(x))  # relevance in proportion to s
    (moved,) = relevance(Conserving(heads="half"), lambda t: t.softmax(-1), g, x + 3)
    torch.testing.assert_close(moved.sum(-1), found.sum(-1))


def spelled(function: Any) -> str:
    return str(function.__qualname__)


@pytest.mark.parametrize("function", sorted(ACTIVATION, key=spelled), ids=spelled)
def test_activations_pass_relevance_on(function: Any) -> None:
    x, u = drawn(20), drawn(20, seed=1)
    (found,) = relevance(Conserving(), function, u, x)
    torch.testing.assert_close(found, u * function(x))


class ByHand(nn.Module):
    """A module that is one function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class OwnGradient(torch.autograd.Function):
    """A GELU whose operations the graph does not show, as that of BLOOM."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            return torch.autograd.grad(F.gelu(x), x, gradients[0])[0]


BY_HAND = {
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3))),
    "squared relu": lambda x: F.relu(x) ** 2,
    "swish": lambda x: x * torch.sigmoid(x),
    "own gradient": OwnGradient.apply,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_activations_written_by_hand_pass_relevance_on(name: str) -> None:
    module, x, u, rules = ByHand(BY_HAND[name]), drawn(3, 4, 5), drawn(3, 4, 5, seed=1), Conserving()
    leaf = x.clone().requires_grad_()
    with rules.on(module):
        out = module(leaf)
    torch.testing.assert_close(out, BY_HAND[name](x))
    (gradient,) = torch.autograd.grad(out, leaf, u)
    torch.testing.assert_close(x * gradient, u * BY_HAND[name](x))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x: 2 * x, id="linear"),
        pytest.param(lambda x: x + 1, id="a constant is added"),
        pytest.param(torch.sigmoid, id="not 0 at 0"),
        pytest.param(lambda x: x - x.mean(-1, keepdim=True), id="entries are mixed"),
        pytest.param(lambda x: x / x.norm(), id="all entries are mixed"),
        pytest.param(lambda x: x.softmax(-1) * x, id="a softmax"),
        pytest.param(lambda x: x.relu().transpose(1, 2), id="another shape"),
        pytest.param(lambda x: (x.relu(), x), id="two outputs"),
        pytest.param(lambda x: x.tanh_(), id="in place"),
        pytest.param(lambda x: x.view(-1, 7).relu(), id="an error"),
    ],
)
def test_other_functions_are_no_activations(function: Any) -> None:
    assert not is_elementwise(function, drawn(1, 4, 5))


def test_a_product_with_a_weight_is_a_linear_layer() -> None:
    x, u, weight = drawn(2, 4, 6), drawn(2, 4, 5, seed=1), nn.Parameter(drawn(5, 6, seed=2), requires_grad=False)
    (found,) = relevance(Conserving(epsilon=0.5, gamma=0.25), lambda t: t @ weight.T, u, x)
    (right,) = relevance(Conserving(epsilon=0.5, gamma=0.25), lambda t: F.linear(t, weight), u, x)
    (plain,) = relevance(Conserving(), lambda t: t @ weight.T, u, x)
    torch.testing.assert_close(found, right)
    assert not torch.allclose(found, plain, rtol=0.1)
    (found,) = positive(lambda t: t @ weight.T, u.abs(), x)
    (right,) = positive(lambda t: F.linear(t, weight), u.abs(), x)
    torch.testing.assert_close(found, right)


def test_attention_by_hand_is_gradient_x_input_with_parts_of_gradients() -> None:
    """Queries and keys get a quarter of their gradient, values half."""
    tokens, width = 6, 8
    x, u = drawn(tokens, width), drawn(tokens, width, seed=9)
    layers = [nn.Linear(width, width, bias=False, dtype=DOUBLE) for _ in range(3)]
    for seed, layer in enumerate(layers):
        layer.weight.data = drawn(width, width, seed=seed + 1)

    def attention(t: Tensor, parts: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Tensor:
        q, k, v = (through(y, y * part) for y, part in zip((f(t) for f in layers), parts, strict=True))
        return (q @ k.T * width**-0.5).softmax(-1) @ v

    (parts,) = relevance(None, lambda t: attention(t, (0.25, 0.25, 0.5)), u, x)
    (ruled,) = relevance(Conserving(heads="half"), attention, u, x)
    net = hand.Network()
    h = net.take("input", x)
    q, k, v = (net.heads(net.linear(h, f), width) for f in layers)
    out = net.merged(net.attention(q, k, v, width**-0.5))
    explicit = net.propagate(u * out.value, hand.Lrp(weights="half"))[h]
    torch.testing.assert_close(parts, explicit)
    torch.testing.assert_close(ruled, explicit)


def positive(function: Any, R: Tensor, *inputs: Tensor) -> list[Tensor]:
    """The relevance of the inputs under the rules of transformer attribution."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    with Positive():
        out = function(*leaves)
    return list(torch.autograd.grad(out, leaves, R))


def test_positive_linear_rule() -> None:
    x, weight, bias, R = drawn(4, 6), drawn(5, 6, seed=1), drawn(5, seed=2), drawn(4, 5, seed=3).abs()
    x[0], weight[2] = x[0].abs(), -weight[2].abs()  # nothing of this output is positive: its relevance is dropped
    (found,) = positive(lambda t: F.linear(t, weight, bias), R, x)
    parts = (x[:, None] * weight).clamp(min=0).sum(-1) > 0
    assert not parts[0, 2] and parts.sum() >= 18
    assert (found >= 0).all()
    torch.testing.assert_close(found.sum(-1), (R * parts).sum(-1), rtol=1e-7, atol=0)


def test_positive_sums_keep_the_total_of_each_example_and_products_halve_it() -> None:
    u, v, R = drawn(3, 4, 5), drawn(3, 4, 5, seed=1), drawn(3, 4, 5, seed=2)
    a, b = positive(torch.add, R, u, v)
    torch.testing.assert_close((a + b).sum((1, 2)), R.sum((1, 2)), rtol=1e-6, atol=0)
    a, b = positive(torch.matmul, drawn(3, 4, 4, seed=3), u, v.transpose(1, 2))
    for part in (a, b):
        torch.testing.assert_close(part.sum((1, 2)), drawn(3, 4, 4, seed=3).sum((1, 2)) / 2, rtol=1e-6, atol=0)
