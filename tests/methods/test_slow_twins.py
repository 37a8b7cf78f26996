"""Slow twins: every formula written out in its plainest form, one example and one point at a time.

The plain side never calls whence. Twins with one deliberate mistake must differ from what whence gives, so that a small
distance to the right one means something.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from families import fresh, plain_inputs

CLOSE = {torch.float32: 1e-5, torch.float64: 1e-10}
FAR = 1e-4  # ten times what rounding may do in float32
NAMES = ["bert", "gpt2", "from-scratch"]
DTYPES = [torch.float32, torch.float64]


# ---- the plain side --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plain:
    """One example on a plain model: f as a function of the state at a site, and the attention of every layer."""

    states: dict[str, Tensor]  # site -> (token, width)
    logits: Callable[[str, Tensor], Tensor]  # the logits with that state instead: (class,)
    attention: list[Tensor]  # (head, query, key) of every layer
    deciding: int  # the token that the output reads
    special: Tensor  # (token,) bool
    pad: Tensor | None  # (width,) word embedding of the padding token

    @cached_property
    def ranked(self) -> list[int]:
        """The classes, most likely first."""
        return self.logits("word", self.states["word"]).argsort(descending=True).tolist()

    def f(self, site: str, state: Tensor, rank: int = 0) -> Tensor:
        """The logit of the predicted class, or of a runner-up."""
        return self.logits(site, state)[self.ranked[rank]]

    def gradient(self, site: str, state: Tensor, rank: int = 0) -> Tensor:
        """df / dstate: (token, width)."""
        x = state.detach().clone().requires_grad_()
        return torch.autograd.grad(self.f(site, x, rank), x)[0]


# name -> where the word embeddings, the state that enters the first layer and the one that enters the last come out
SITES = {
    "bert": {
        "word": "bert.embeddings.word_embeddings",
        "embeddings": "bert.embeddings",
        "last": "bert.encoder.layer.0",
    },
    "gpt2": {"word": "transformer.wte", "embeddings": "transformer.drop", "last": "transformer.h.0"},
}


def of_transformers(name: str, raw: str, dtype: torch.dtype) -> Plain:
    """The model as transformers runs it, with a hook that reads or replaces the output of one module."""
    made = fresh(name)
    model: Any = made.model.to(dtype)
    tensors = plain_inputs(made, raw)

    def run(site: str, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        seen = []

        def hook(module: nn.Module, args: Any, out: Any) -> Any:
            seen.append(out[0] if isinstance(out, tuple) else out)
            if state is None:
                return None
            return (state[None], *out[1:]) if isinstance(out, tuple) else state[None]

        handle = model.get_submodule(SITES[name][site]).register_forward_hook(hook)
        logits = model(**tensors).logits
        handle.remove()
        return (logits[0] if logits.ndim == 2 else logits[0, -1]), seen[0][0].detach()

    states = {site: run(site)[1] for site in SITES[name]}
    model.set_attn_implementation("eager")
    attention = [maps[0].detach() for maps in model(**tensors, output_attentions=True).attentions]
    model.set_attn_implementation("sdpa")
    count = len(states["word"])
    special = torch.zeros(count, dtype=torch.bool)
    if name == "bert":
        special[[0, -1]] = True
    pad = made.processor.pad_token_id
    word = None if pad is None else model.get_submodule(SITES[name]["word"]).weight[pad].detach()
    return Plain(states, lambda *at: run(*at)[0], attention, 0 if name == "bert" else count - 1, special, word)


def by_hand(raw: str, dtype: torch.dtype) -> Plain:
    """The module with a class per head, its whole forward pass written again."""
    made = fresh("from-scratch")
    model: Any = made.model.to(dtype)
    ids = plain_inputs(made, raw)["input"][0]
    position = model.position.weight[: len(ids)].detach()

    def norm(x: Tensor, module: Any) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + module.eps).sqrt() * module.weight + module.bias

    def attend(x: Tensor, head: Any) -> Tensor:
        query, key = x @ head.query.weight.T, x @ head.key.weight.T
        rows = []
        for i in range(len(x)):  # token i sees those up to itself
            powers = (key[: i + 1] @ query[i] / math.sqrt(query.shape[1])).exp()
            rows.append(torch.cat([powers / powers.sum(), x.new_zeros(len(x) - i - 1)]))
        return torch.stack(rows)  # (query, key)

    def run(hidden: Tensor, maps: list[Tensor], blocks: Any) -> Tensor:
        for block in blocks:
            x = norm(hidden, block.attention_norm)
            maps.append(torch.stack([attend(x, head) for head in block.attention.heads]))
            heads = [m @ x @ h.value.weight.T for m, h in zip(maps[-1], block.attention.heads, strict=True)]
            project = block.attention.project
            hidden = hidden + torch.cat(heads, -1) @ project.weight.T + project.bias
            first, _, second = block.network
            inner = (norm(hidden, block.network_norm) @ first.weight.T + first.bias).clamp(min=0)
            hidden = hidden + inner @ second.weight.T + second.bias
        return hidden

    def logits(site: str, state: Tensor) -> Tensor:
        hidden = state + position if site == "word" else state
        hidden = run(hidden, [], model.blocks[1:] if site == "last" else model.blocks)
        return norm(hidden, model.norm)[-1] @ model.head.weight.T + model.head.bias

    word = model.word.weight[ids].detach()
    attention: list[Tensor] = []
    run(word + position, attention, model.blocks)
    last = run(word + position, [], model.blocks[:1]).detach()
    special = torch.zeros(len(ids), dtype=torch.bool)
    special[[0, -1]] = True
    states = {"word": word, "embeddings": word + position, "last": last}
    return Plain(states, logits, [maps.detach() for maps in attention], len(ids) - 1, special, None)


def plain(name: str, raw: str, dtype: torch.dtype) -> Plain:
    return by_hand(raw, dtype) if name == "from-scratch" else of_transformers(name, raw, dtype)


def texts(name: str) -> list[str]:
    return [raw for raw in fresh(name).inputs[:3] if isinstance(raw, str)]


def explained(name: str, dtype: torch.dtype, inputs: Any, method: str) -> Any:
    made = fresh(name)
    return whence.explain(whence.wrap(made.model.to(dtype), made.processor, **made.kwargs), inputs, method=method)


def compare(found: np.ndarray, right: Tensor, dtype: torch.dtype, broken: dict[str, Tensor]) -> None:
    """Close to the right twin, far from every broken one."""
    assert found.dtype == right.numpy().dtype
    scale = max(1.0, right.abs().max().item())
    assert np.abs(found - right.numpy()).max() <= CLOSE[dtype] * scale
    for mistake, scores in broken.items():
        assert scores.shape == right.shape, mistake
        assert np.abs(found - scores.numpy()).max() > FAR, mistake


# ---- attention -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_attention(name: str, dtype: torch.dtype) -> None:
    for raw in texts(name):
        side = plain(name, raw, dtype)
        first, last, row = side.attention[0], side.attention[-1], side.deciding
        compare(
            explained(name, dtype, raw, "attention").scores,
            last.mean(0)[row],
            dtype,
            {
                "columns for rows": last.mean(0)[:, row],
                "first layer": first.mean(0)[row],
                "mean of layers": (first + last).mean(0)[row] / 2,
                "first head": last[0, row],
                "largest head": last.amax(0)[row],
                "other token": last.mean(0)[len(last[0]) - 1 - row],
                "mean of rows": last.mean(0).mean(0),
            },
        )


@pytest.mark.parametrize("name", NAMES)
def test_readings_of_attention(name: str) -> None:
    raw, dtype = texts(name)[0], torch.float32
    side = plain(name, raw, dtype)
    first, last, row = side.attention[0], side.attention[-1], side.deciding
    readings = {
        "layer=0": first.mean(0)[row],
        "layer=[0, 1]": (first.mean(0)[row] + last.mean(0)[row]) / 2,
        "heads='max'": last.amax(0)[row],
        "heads='min'": last.amin(0)[row],
        "heads='sum'": last.sum(0)[row],
        "heads=2": last[2, row],
        "heads=[0, 3]": (last[0, row] + last[3, row]) / 2,
        "read='column'": last.mean(0)[:, row],
        "read='received'": last.mean(0).mean(0),
        "read='received_sum'": last.mean(0).sum(0),
        "read='received_max'": last.mean(0).amax(0),
    }
    for option, right in readings.items():
        others = {other: scores for other, scores in readings.items() if other != option}
        compare(explained(name, dtype, raw, f"attention({option})").scores, right, dtype, others)


# ---- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("at", ["embeddings", "word"])
@pytest.mark.parametrize("name", NAMES)
def test_gradient(name: str, at: str, dtype: torch.dtype) -> None:
    inputs = texts(name)
    for raw, a in zip(inputs, explained(name, dtype, inputs, f"gradient(at={at!r})"), strict=True):
        side = plain(name, raw, dtype)
        g = side.gradient(at, side.states[at])
        late = side.gradient("last", side.states["last"])
        other = side.gradient(at, side.states[at], rank=1)
        compare(
            a.scores,
            torch.stack([torch.linalg.vector_norm(row) for row in g]),
            dtype,
            {
                "squared": g.square().sum(-1),
                "absolute": g.abs().sum(-1),
                "plain sum": g.sum(-1),
                "last layer": late.norm(dim=-1),
                "runner-up": other.norm(dim=-1),
                "times input": (side.states[at] * g).sum(-1),
            },
        )


@pytest.mark.parametrize("name", NAMES)
def test_sizes_of_a_gradient(name: str) -> None:
    raw, dtype = texts(name)[0], torch.float32
    side = plain(name, raw, dtype)
    g = side.gradient("embeddings", side.states["embeddings"])
    compare(explained(name, dtype, raw, "gradient(reduce='l1')").scores, g.abs().sum(-1), dtype, {"l2": g.norm(dim=-1)})
    compare(explained(name, dtype, raw, "gradient(reduce='sum')").scores, g.sum(-1), dtype, {"l1": g.abs().sum(-1)})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("at", ["embeddings", "word"])
@pytest.mark.parametrize("name", NAMES)
def test_gradient_x_input(name: str, at: str, dtype: torch.dtype) -> None:
    inputs = texts(name)
    for raw, a in zip(inputs, explained(name, dtype, inputs, f"gradient_x_input(at={at!r})"), strict=True):
        side = plain(name, raw, dtype)
        x = side.states[at]
        g = side.gradient(at, x)
        late = side.states["last"]
        compare(
            a.scores,
            torch.stack([sum(x[i, k] * g[i, k] for k in range(x.shape[1])) for i in range(len(x))]),
            dtype,
            {
                "no input": g.sum(-1),
                "no gradient": x.sum(-1),
                "no sign": (x * g).abs().sum(-1),
                "last layer": (late * side.gradient("last", late)).sum(-1),
                "runner-up": (x * side.gradient(at, x, rank=1)).sum(-1),
                "next token": (x.roll(1, 0) * g).sum(-1),
            },
        )


@pytest.mark.parametrize("name", NAMES)
def test_gradient_x_input_without_autograd(name: str) -> None:
    raw, dtype, h = texts(name)[1], torch.float64, 1e-5
    side = plain(name, raw, dtype)
    x = side.states["embeddings"]
    found = explained(name, dtype, raw, "gradient_x_input").scores
    for token, score in enumerate(found):
        step = torch.zeros_like(x)
        step[token] = h * x[token]
        with torch.no_grad():
            slope = (side.f("embeddings", x + step) - side.f("embeddings", x - step)) / (2 * h)
        assert score == pytest.approx(slope.item(), abs=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_a_later_block(name: str) -> None:
    raw, dtype = texts(name)[0], torch.float32
    side = plain(name, raw, dtype)
    late, early = side.states["last"], side.states["embeddings"]
    compare(
        explained(name, dtype, raw, "gradient_x_input(at=-1)").scores,
        (late * side.gradient("last", late)).sum(-1),
        dtype,
        {"first block": (early * side.gradient("embeddings", early)).sum(-1)},
    )


# ---- integrated gradients --------------------------------------------------------------------------------------------


def baseline(side: Plain, new: Tensor | float) -> Tensor:
    """The word embeddings with `new` in place of all that is not special."""
    x0 = side.states["word"].clone()
    for token in range(len(x0)):
        if not side.special[token]:
            x0[token] = new
    return x0


def mean_gradient(side: Plain, x0: Tensor, rule: str, steps: int) -> Tensor:
    """The mean of df/dx over the points of the path from x0 to x, one point at a time."""
    if rule == "gausslegendre":
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        points = [((node + 1) / 2, weight / 2) for node, weight in zip(nodes, weights, strict=True)]
    elif rule == "trapezoid":
        points = [(k / (steps - 1), (0.5 if k in (0, steps - 1) else 1) / (steps - 1)) for k in range(steps)]
    else:
        offset = {"left": 0.0, "midpoint": 0.5, "right": 1.0}[rule]
        points = [((k + offset) / steps, 1 / steps) for k in range(steps)]
    x = side.states["word"]
    total = torch.zeros_like(x)
    for alpha, weight in points:
        total += weight * side.gradient("word", x0 + alpha * (x - x0))
    return total


def integrated(side: Plain, x0: Tensor, rule: str, steps: int) -> Tensor:
    """(x - x0) times the mean gradient along the path."""
    return ((side.states["word"] - x0) * mean_gradient(side, x0, rule, steps)).sum(-1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_integrated_gradients(name: str, dtype: torch.dtype) -> None:
    inputs = texts(name)[:2]
    found = explained(name, dtype, inputs, "integrated_gradients(steps=5, rule='midpoint', baseline='zero')")
    for raw, a in zip(inputs, found, strict=True):
        side = plain(name, raw, dtype)
        x, x0 = side.states["word"], baseline(side, 0.0)
        mean = mean_gradient(side, x0, "midpoint", 5)
        broken = {
            "left for midpoint": integrated(side, x0, "left", 5),
            "a step less": integrated(side, x0, "midpoint", 4),
            "gradient at the end only": ((x - x0) * side.gradient("word", x)).sum(-1),
            "no difference": mean.sum(-1),
            "from the input to the baseline": ((x0 - x) * mean).sum(-1),
        }
        if side.special.any():
            broken["special tokens not kept"] = integrated(side, torch.zeros_like(x), "midpoint", 5)
        compare(a.scores, ((x - x0) * mean).sum(-1), dtype, broken)
        assert a.base == pytest.approx(side.f("word", x0).item(), abs=CLOSE[dtype])
        assert a.output == pytest.approx(side.f("word", x).item(), abs=CLOSE[dtype])


@pytest.mark.parametrize("name", NAMES)
def test_rules_of_integrated_gradients(name: str) -> None:
    raw, dtype = texts(name)[1], torch.float64
    side = plain(name, raw, dtype)
    x0 = baseline(side, 0.0)
    rules = ["gausslegendre", "midpoint", "trapezoid", "left", "right"]
    twins = {rule: integrated(side, x0, rule, 4) for rule in rules}
    for rule in rules:
        found = explained(name, dtype, raw, f"integrated_gradients(steps=4, rule={rule!r}, baseline='zero')")
        compare(found.scores, twins[rule], dtype, {other: twins[other] for other in rules if other != rule})


def test_integrated_gradients_from_the_padding_token() -> None:
    raw, dtype = texts("bert")[0], torch.float64
    side = plain("bert", raw, dtype)
    assert side.pad is not None
    right = integrated(side, baseline(side, side.pad), "gausslegendre", 6)
    zero = integrated(side, baseline(side, 0.0), "gausslegendre", 6)
    for option in ("", ", baseline='pad'"):
        compare(
            explained("bert", dtype, raw, f"integrated_gradients(steps=6{option})").scores, right, dtype, {"zero": zero}
        )


def test_many_steps_are_complete() -> None:
    raw, dtype = texts("bert")[1], torch.float64
    side = plain("bert", raw, dtype)
    assert side.pad is not None
    x0 = baseline(side, side.pad)
    gap = side.f("word", side.states["word"]) - side.f("word", x0)
    assert integrated(side, x0, "gausslegendre", 64).sum().item() == pytest.approx(gap.item(), abs=1e-6)
    a = explained("bert", dtype, raw, "integrated_gradients(tolerance=1e-6)")
    assert a.scores.sum() == pytest.approx(gap.item(), abs=1e-6 * max(0.1, abs(gap.item())))


# ---- pixels ----------------------------------------------------------------------------------------------------------


def test_pixels_are_summed_to_patches() -> None:
    made = fresh("vit")
    for raw in made.inputs[:2]:
        pixels = plain_inputs(made, raw)["pixel_values"].requires_grad_()
        logits = made.model(pixel_values=pixels).logits[0]
        (g,) = torch.autograd.grad(logits[logits.argmax()], pixels)
        x, g = pixels.detach()[0], g[0]  # (colour, height, width)
        scores, sizes, turned = torch.zeros(17), torch.zeros(17), torch.zeros(17)  # [CLS], then 4 x 4 patches
        for row in range(4):
            for column in range(4):
                patch = (slice(None), slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8))
                scores[1 + 4 * row + column] = (x[patch] * g[patch]).sum()
                sizes[1 + 4 * row + column] = g[patch].square().sum(0).sqrt().sum()
                turned[1 + 4 * column + row] = scores[1 + 4 * row + column]
        found = whence.explain(whence.wrap(made.model, made.processor), raw, method="gradient_x_input(at='pixels')")
        compare(found.scores, scores, torch.float32, {"turned": turned, "special last": scores.roll(-1)})
        np.testing.assert_allclose(found.details["pixels"], (x * g).sum(0).numpy(), atol=1e-5)
        found = whence.explain(whence.wrap(made.model, made.processor), raw, method="gradient(at='pixels')")
        compare(found.scores, sizes, torch.float32, {"times input": scores})
