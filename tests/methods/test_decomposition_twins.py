"""Slow twins of the decompositions: the papers' formulas, token by token and head by head, from the model's weights.

States and attention come from what the model itself returns, one example at a time, without padding and without
whence; whence explains a padded batch. A twin can be told to make one mistake; then it must be far off. A second kind
of twin freezes what decompositions hold (attention, deviations, gates, slopes) and differentiates: without biases,
DecompX is gradient x input of that frozen model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from scipy.special import erf
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import whence
from families import fresh, gpt2_tokenizer, kept_in, plain_inputs
from whence.propagation import deferred, source_parts, sums_of_parts

SINGLE, DOUBLE = torch.float32, torch.float64
DECIDING = {"bert": 0, "distilbert": 0, "vit": 0, "gpt2": -1, "llama": -1, "bloom": -1, "falcon": -1}
EXPERTS = ["mixtral", "qwen3-moe"]
PARALLEL = ["falcon-multi-query", "falcon-grouped"]
TOLERANCE = {(name, dtype): close for name in DECIDING for dtype, close in ((SINGLE, 1e-5), (DOUBLE, 1e-10))}
CASES = list(TOLERANCE)
FAR = 1e-3
SKIPPED = "deviation without the feed-forward part"
Function = Callable[[np.ndarray], np.ndarray]


# ---- what the model is -----------------------------------------------------------------------------------------------


def gelu(u: np.ndarray) -> np.ndarray:
    return u * (1 + erf(u / np.sqrt(2))) / 2


def gelu_of_gpt2(u: np.ndarray) -> np.ndarray:
    return u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3))) / 2


def gelu_of_bloom(u: np.ndarray) -> np.ndarray:
    return u * (1 + np.tanh(0.79788456 * u * (1 + 0.044715 * u**2))) / 2


def silu(u: np.ndarray) -> np.ndarray:
    return u / (1 + np.exp(-u))


def relu(u: np.ndarray) -> np.ndarray:
    return np.maximum(u, 0)


@dataclass(frozen=True)
class Linear:
    W: np.ndarray  # (out, in)
    b: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.W @ x + self.b


@dataclass(frozen=True)
class Norm:
    gamma: np.ndarray
    beta: np.ndarray
    eps: float
    centred: bool = True

    def deviation(self, x: np.ndarray) -> float:
        return float(np.sqrt(np.mean((x - x.mean() * self.centred) ** 2) + self.eps))

    def part(self, part: np.ndarray, whole: np.ndarray, wrong: str = "") -> np.ndarray:
        """What the norm of the whole makes of one part of it, without beta."""
        deviation = self.deviation(part if wrong == "deviation of the part" else whole)
        beta = self.beta if wrong == "beta included" else 0
        return (part - part.mean() * self.centred) / deviation * self.gamma + beta

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.part(x, x) + self.beta


@dataclass(frozen=True)
class Layer:
    values: list[Linear]  # of each head
    outs: list[np.ndarray]  # of each head: (width, head width)
    bias: np.ndarray  # of the output projection
    norms: tuple[Norm, Norm]
    up: Linear
    act: Function
    down: Linear
    gate: Linear | None = None  # of gated feed-forward parts

    def feed_forward(self, x: np.ndarray) -> np.ndarray:
        return self.down(self.act(self.gate(x)) * self.up(x) if self.gate else self.act(self.up(x)))


@dataclass(frozen=True)
class Model:
    layers: list[Layer]
    post: bool  # norms follow the sums
    head: list[Linear | Norm | Function]  # from the last state of the deciding token to the logits
    token: int
    parallel: bool = False  # attention and feed-forward part read the same state


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def linear(module: Any, transposed: bool = False) -> Linear:
    W = array(module.weight)
    W = W.T if transposed else W
    return Linear(W, np.zeros(len(W)) if module.bias is None else array(module.bias))


def norm(module: Any) -> Norm:
    if hasattr(module, "variance_epsilon"):
        return Norm(array(module.weight), np.zeros(len(module.weight)), module.variance_epsilon, centred=False)
    return Norm(array(module.weight), array(module.bias), module.eps)


def layer(value: Linear, out: Linear, *rest: Any, heads: int = 4, gate: Linear | None = None) -> Layer:
    """Values and output cut into heads; of grouped values, each serves heads that stand side by side."""
    size = out.W.shape[1] // heads
    per = heads // (len(value.W) // size)
    of_head = [slice(h // per * size, (h // per + 1) * size) for h in range(heads)]
    values = [Linear(value.W[rows], value.b[rows]) for rows in of_head]
    return Layer(values, [out.W[:, h * size : (h + 1) * size] for h in range(heads)], out.b, *rest, gate)


def bert(m: Any) -> Model:
    layers = [
        layer(
            linear(x.attention.self.value),
            linear(x.attention.output.dense),
            (norm(x.attention.output.LayerNorm), norm(x.output.LayerNorm)),
            linear(x.intermediate.dense),
            gelu,
            linear(x.output.dense),
        )
        for x in m.bert.encoder.layer
    ]
    return Model(layers, True, [linear(m.bert.pooler.dense), np.tanh, linear(m.classifier)], 0)


def distilbert(m: Any) -> Model:
    layers = [
        layer(
            linear(x.attention.v_lin),
            linear(x.attention.out_lin),
            (norm(x.sa_layer_norm), norm(x.output_layer_norm)),
            linear(x.ffn.lin1),
            gelu,
            linear(x.ffn.lin2),
        )
        for x in m.distilbert.transformer.layer
    ]
    return Model(layers, True, [linear(m.pre_classifier), relu, linear(m.classifier)], 0)


def vit(m: Any) -> Model:
    layers = [
        layer(
            linear(x.attention.v_proj),
            linear(x.attention.o_proj),
            (norm(x.layernorm_before), norm(x.layernorm_after)),
            linear(x.mlp.fc1),
            gelu,
            linear(x.mlp.fc2),
        )
        for x in m.vit.layers
    ]
    return Model(layers, False, [norm(m.vit.layernorm), linear(m.classifier)], 0)


def gpt2(m: Any) -> Model:
    layers = []
    for x in m.transformer.h:
        qkv = linear(x.attn.c_attn, transposed=True)
        third = len(qkv.W) // 3
        layers.append(
            layer(
                Linear(qkv.W[2 * third :], qkv.b[2 * third :]),
                linear(x.attn.c_proj, transposed=True),
                (norm(x.ln_1), norm(x.ln_2)),
                linear(x.mlp.c_fc, transposed=True),
                gelu_of_gpt2,
                linear(x.mlp.c_proj, transposed=True),
            )
        )
    return Model(layers, False, [norm(m.transformer.ln_f), linear(m.lm_head)], -1)


def llama(m: Any) -> Model:
    layers = [
        layer(
            linear(x.self_attn.v_proj),
            linear(x.self_attn.o_proj),
            (norm(x.input_layernorm), norm(x.post_attention_layernorm)),
            linear(x.mlp.up_proj),
            silu,
            linear(x.mlp.down_proj),
            gate=linear(x.mlp.gate_proj),
        )
        for x in m.model.layers
    ]
    return Model(layers, False, [norm(m.model.norm), linear(m.lm_head)], -1)


def value_rows(fused: Linear, groups: int, size: int) -> Linear:
    """The values of fused queries, keys and values: the last head of every group."""
    W, b = fused.W.reshape(groups, -1, size, fused.W.shape[1]), fused.b.reshape(groups, -1, size)
    return Linear(W[:, -1].reshape(-1, fused.W.shape[1]), b[:, -1].reshape(-1))


def bloom(m: Any) -> Model:
    layers = [
        layer(
            value_rows(linear(x.self_attention.query_key_value), 4, 8),
            linear(x.self_attention.dense),
            (norm(x.input_layernorm), norm(x.post_attention_layernorm)),
            linear(x.mlp.dense_h_to_4h),
            gelu_of_bloom,
            linear(x.mlp.dense_4h_to_h),
        )
        for x in m.transformer.h
    ]
    return Model(layers, False, [norm(m.transformer.ln_f), linear(m.lm_head)], -1)


FALCON_NORMS = ("input_layernorm", "ln_attn", "post_attention_layernorm", "ln_mlp")


def falcon(m: Any) -> Model:
    config = m.config
    groups = config.num_kv_heads if config.new_decoder_architecture else 1 if config.multi_query else 4
    layers = [
        layer(
            value_rows(linear(x.self_attention.query_key_value), groups, 8),
            linear(x.self_attention.dense),
            (norms[0], norms[-1]),  # one norm may serve both parts
            linear(x.mlp.dense_h_to_4h),
            gelu,
            linear(x.mlp.dense_4h_to_h),
        )
        for x in m.transformer.h
        for norms in [[norm(getattr(x, name)) for name in FALCON_NORMS if hasattr(x, name)]]
    ]
    head: list[Any] = [norm(m.transformer.ln_f), linear(m.lm_head)]
    return Model(layers, False, head, -1, config.parallel_attn)


READ = {"bert": bert, "distilbert": distilbert, "vit": vit, "gpt2": gpt2, "llama": llama, "bloom": bloom}
READ |= dict.fromkeys(("falcon", *PARALLEL), falcon)


@dataclass(frozen=True, eq=False)
class Plain:
    """One example: the model, the states that enter its layers (and leave the last), attention, logits."""

    model: Model
    states: list[np.ndarray]  # (token, width)
    A: list[np.ndarray]  # (head, query, key)
    logits: np.ndarray

    @property
    def size(self) -> int:
        return len(self.states[0])

    def depth(self) -> range:
        return range(len(self.model.layers))


def plain(name: str, model: Any, raw: Any, made: Any) -> Plain:
    tensors = {k: t.to(model.dtype) if t.is_floating_point() else t for k, t in plain_inputs(made, raw).items()}
    with torch.no_grad(), kept_in(model.dtype):
        out = model(**tensors, output_attentions=True, output_hidden_states=True)
    logits = out.logits[0] if out.logits.ndim == 2 else out.logits[0, -1]
    states = [array(h[0]) for h in out.hidden_states]
    return Plain(READ[name](model), states, [array(A[0]) for A in out.attentions], array(logits))


def raws(name: str) -> list[Any]:
    return fresh(name).inputs[:2]  # a longer and a shorter


@cache
def sides(name: str, dtype: torch.dtype) -> list[Plain]:
    made = fresh(name)
    model: Any = made.model.to(dtype)
    model.set_attn_implementation("eager")
    return [plain(name, model, raw, made) for raw in raws(name)]


@cache
def subject(name: str, dtype: torch.dtype) -> Any:
    made = fresh(name)
    return whence.wrap(made.model.to(dtype), made.processor, **made.kwargs)


@cache
def explained(name: str, dtype: torch.dtype, spec: str) -> list[Any]:
    of = subject(name, dtype)  # made outside: its first weights are float32's
    with kept_in(dtype):
        return whence.explain(of, raws(name), method=spec)


def distance(found: np.ndarray, right: np.ndarray) -> float:
    """The largest difference, relative to the largest score."""
    return float(np.abs(found - right).max() / np.abs(right).max())


# ---- twins of the local decompositions -------------------------------------------------------------------------------


@cache
def moved(side: Plain, number: int, wrong: str = "") -> np.ndarray:
    """sum_h A_ij f_h(x_j), f_h(x) = W_O^h (W_V^h x + b_V^h): (i, j, width); pre-LN, x_j is normed first."""
    part, x, A = side.model.layers[number], side.states[number], side.A[number]
    pre = not side.model.post and wrong != "first norm left out"
    given = [part.norms[0](x_j) if pre else x_j for x_j in x]
    F = np.zeros((side.size, side.size, x.shape[1]))
    for i in range(side.size):
        for j in range(side.size):
            for h, (value, out) in enumerate(zip(part.values, part.outs, strict=True)):
                f = out @ (value.W @ given[j] if wrong == "value bias left out" else value(given[j]))
                f = out @ value(x[i]) if wrong == "values of the query" else f
                F[i, j] += A[h, j, i] * f if wrong == "columns" else A[h, i, j] * f
    return F


@cache
def sums(side: Plain, number: int) -> np.ndarray:
    """y_i = sum_j ... + b_O + x_i: (i, width)"""
    return moved(side, number).sum(1) + side.model.layers[number].bias + side.states[number]


@cache
def mixed(side: Plain, number: int, wrong: str = "") -> np.ndarray:
    """z_ij: what attention moves, the residual and, post-LN, the norm at the deviation of y_i: (i, j, width)."""
    z = moved(side, number, wrong).copy()
    for i in range(side.size):
        z[i, i] += 0 if wrong == "no residual" else side.states[number][i]
    if not side.model.post or wrong == "no norm":
        return z
    y, first = sums(side, number), side.model.layers[number].norms[0]
    return np.array([[first.part(z[i, j], y[i], wrong) for j in range(side.size)] for i in range(side.size)])


@cache
def between(side: Plain, number: int) -> np.ndarray:
    """The state between attention and the feed-forward part: (i, width)"""
    y, part = sums(side, number), side.model.layers[number]
    if side.model.parallel:
        return y + np.array([part.feed_forward(part.norms[1](x)) for x in side.states[number]])
    return np.array([part.norms[0](y_i) for y_i in y]) if side.model.post else y


def slope(act: Function, u: np.ndarray, wrong: str = "") -> np.ndarray:
    if wrong == "tangent slope":
        return (act(u + 1e-5) - act(u - 1e-5)) / 2e-5
    return act(u) / u


def encoded(side: Plain, number: int, wrong: str = "") -> np.ndarray:
    """z_ij at the layer's output, the feed-forward part left out but for its effect on the deviation."""
    z, s, part = mixed(side, number, wrong), between(side, number), side.model.layers[number]
    out = np.zeros_like(z)
    for i in range(side.size):
        entering = s[i] if side.model.post else part.norms[1](s[i])
        after = s[i] + part.feed_forward(entering)
        hold = part.act(part.gate(entering)) if part.gate else slope(part.act, part.up(entering))
        for j in range(side.size):
            out[i, j] = z[i, j]
            if wrong == "feed-forward kept":
                given = z[i, j] if side.model.post else part.norms[1].part(z[i, j], s[i])
                out[i, j] += part.down.W @ (hold * (part.up.W @ given))
            if side.model.post and wrong not in ("no norm", "second norm left out"):
                whole = s[i] if wrong == SKIPPED else after
                out[i, j] = part.norms[1].part(out[i, j], whole, wrong)
    return out


def lengths(z: np.ndarray) -> np.ndarray:
    return np.sqrt((z**2).sum(-1))


def value_norms(side: Plain, wrong: str = "", layers: tuple[int, ...] = (-1,), read: str = "row") -> np.ndarray:
    maps = []
    for number in [side.depth()[n] for n in layers]:
        found = lengths(moved(side, number, wrong))
        if wrong == "heads normed first":
            found = np.zeros_like(found)
            one = side.model.layers[number]
            given = [x if side.model.post else one.norms[0](x) for x in side.states[number]]
            for h, (value, out) in enumerate(zip(one.values, one.outs, strict=True)):
                found += side.A[number][h] * np.array([np.linalg.norm(out @ value(x)) for x in given])
        maps.append(found)
    found = sum(maps) / len(maps)
    return found.mean(0) if read == "received" else found[side.model.token]


def residual_norms(side: Plain, wrong: str = "") -> np.ndarray:
    return lengths(mixed(side, side.depth()[-1], wrong))[side.model.token]


def mixing_ratio(side: Plain, wrong: str = "") -> np.ndarray:
    """r_i = |sum_{j!=i} z_ij| / (that + |z_ii|), of every layer: (layer, i)"""
    ratios = np.zeros((len(side.model.layers), side.size))
    for number in side.depth():
        z = mixed(side, number, wrong)
        for i in range(side.size):
            others = np.delete(z[i], i, 0)
            apart = lengths(others).sum() if wrong == "lengths summed" else lengths(others.sum(0))
            ratios[number, i] = apart / (apart + lengths(z[i, i]))
    return ratios


def rolled(side: Plain, maps: list[np.ndarray], wrong: str) -> np.ndarray:
    """The deciding row of C_L ... C_1, to a sum of 1."""
    product = np.eye(side.size)
    for one in maps[::-1] if wrong == "reversed layers" else maps:
        one = (one / one.sum(1, keepdims=True) + np.eye(side.size)) / 2 if wrong == "identity added" else one
        product = one @ product
    if wrong == "last layer only":
        product = maps[-1]
    row = product[:, side.model.token] if wrong == "column read" else product[side.model.token]
    return row / row.sum()


def globenc(side: Plain, wrong: str = "") -> np.ndarray:
    return rolled(side, [lengths(encoded(side, number, wrong)) for number in side.depth()], wrong)


def nearness(side: Plain, number: int, wrong: str = "", order: int = 1) -> np.ndarray:
    """c_ij = max(0, |y_i| - |y_i - z_ij|), rows to 1; y is the state itself, with biases."""
    z, y = mixed(side, number, wrong), between(side, number)
    y = z.sum(1) if wrong == "y without biases" else y
    c = np.zeros((side.size, side.size))
    for i in range(side.size):
        for j in range(side.size):
            gain = np.linalg.norm(y[i], order) - np.linalg.norm(y[i] - z[i, j], order)
            c[i, j] = abs(gain) if wrong == "not clamped" else max(0.0, gain)
    return c if wrong == "rows not to 1" else c / np.maximum(c.sum(1, keepdims=True), 1e-12)


def alti(side: Plain, wrong: str = "", order: int = 1) -> np.ndarray:
    return rolled(side, [nearness(side, number, wrong, order) for number in side.depth()], wrong)


# ---- the twin of DecompX ---------------------------------------------------------------------------------------------


@dataclass
class Split:
    """x_{i<-k} of one token: a row per source, and the biases that are not divided yet."""

    parts: np.ndarray  # (source, width)
    rest: np.ndarray  # (width,)

    def whole(self) -> np.ndarray:
        return self.parts.sum(0) + self.rest

    def divided(self, rule: str) -> Split:
        """The rest given to the sources."""
        if rule == "none":
            return self
        share = np.zeros(len(self.parts))
        for k, part in enumerate(self.parts):
            size = np.linalg.norm(part)
            share[k] = {"absdot": abs(part @ self.rest), "norm": size, "equal": float(size > 0)}[rule]
        if not share.sum():
            return self
        return Split(self.parts + np.outer(share / share.sum(), self.rest), np.zeros_like(self.rest))

    def through(self, function: Linear | Norm | Function, rule: str, wrong: str = "") -> Split:
        """A linear layer or a norm, whose bias is divided after it; or an activation."""
        if isinstance(function, Linear):
            made = Split(self.parts @ function.W.T, function.W @ self.rest + function.b)
        elif isinstance(function, Norm):
            whole = self.whole()
            parts = [function.part(part, whole, wrong) for part in self.parts]
            made = Split(np.array(parts), function.part(self.rest, whole) + function.beta)
        else:
            held = slope(function, self.whole(), wrong)
            return Split(self.parts * held, self.rest * held)
        return made.divided(rule)

    def __add__(self, other: Split) -> Split:
        return Split(self.parts + other.parts, self.rest + other.rest)


def attended(one: Layer, A: np.ndarray, xs: list[Split], i: int) -> Split:
    """sum_h sum_s A_is W_O^h W_V^h x_{s<-k}, with the biases of values and output projection in the rest."""
    parts, rest = np.zeros_like(xs[0].parts), one.bias.copy()
    for h, (value, out) in enumerate(zip(one.values, one.outs, strict=True)):
        for s, x in enumerate(xs):
            parts += A[h, i, s] * x.parts @ value.W.T @ out.T
            rest += A[h, i, s] * (out @ (value.W @ x.rest + value.b))
    return Split(parts, rest)


def fed(one: Layer, x: Split, rule: str, wrong: str = "") -> Split:
    u = x.through(one.up, rule)
    if one.gate is None:
        u = u.through(one.act, rule, wrong)
    else:
        gate = one.act(one.gate(x.whole()))  # held
        u = Split(u.parts * gate, u.rest * gate)
    return u.through(one.down, rule)


def carried(side: Plain, rule: str, wrong: str = "") -> list[list[Split]]:
    """x_{i<-k} at the entrance of every layer and the end of the last."""
    width = side.states[0].shape[1]
    xs = []
    for i in range(side.size):
        parts = np.zeros((side.size, width))
        parts[i] = side.states[0][i]
        xs.append(Split(parts, np.zeros(width)))
    found = [xs]
    order = list(side.depth())[:: -1 if wrong == "reversed layers" else 1]
    for number in order:
        one, A = side.model.layers[number], side.A[number]
        first, second = one.norms
        given = xs if side.model.post else [x.through(first, rule, wrong) for x in xs]
        ys = []
        for i in range(side.size):
            mixed = attended(one, A, given, i)
            mixed = mixed.divided(rule) if wrong == "bias before the residual" else mixed
            y = (mixed if wrong == "no residual" else mixed + xs[i]).divided(rule)
            if side.model.post:
                y = y.through(first, rule, wrong)
                y = (y + fed(one, y, rule, wrong)).through(second, rule, wrong)
            else:
                y = y + fed(one, y.through(second, rule, wrong), rule, wrong)
            ys.append(y)
        xs = ys
        found.append(xs)
    return found


def shares(side: Plain, rule: str = "absdot", wrong: str = "") -> Split:
    """Every source's part of the logits, and the biases' where they are not divided."""
    last = carried(side, rule, wrong)[-1][side.model.token]
    for function in side.model.head:
        last = last.through(function, rule, wrong)
    return last


def decompx(side: Plain, wrong: str = "", rule: str = "absdot") -> np.ndarray:
    return shares(side, rule, wrong).parts[:, side.logits.argmax()]


Twin = Callable[..., np.ndarray]
LOCAL = ["no residual", "columns", "value bias left out", "values of the query"]
ROLLED = ["reversed layers", "identity added", "last layer only", "column read"]
NORMED = ["no norm", "deviation of the part", "beta included"]  # after the residual: post-LN
TWINS: dict[str, tuple[Twin, list[str], list[str]]] = {  # with mistakes, and mistakes that only post-LN models show
    "value_norms": (value_norms, ["heads normed first", *LOCAL[1:]], []),
    "value_norms(layer=0)": (partial(value_norms, layers=(0,)), ["heads normed first"], []),
    "value_norms(layer=[0, 1], read='received')": (partial(value_norms, layers=(0, 1), read="received"), [], []),
    "residual_norms": (residual_norms, LOCAL, NORMED),
    "globenc": (globenc, [*LOCAL, *ROLLED, "feed-forward kept"], [*NORMED, "second norm left out", SKIPPED]),
    "alti": (alti, [*LOCAL, *ROLLED, "rows not to 1", "not clamped"], NORMED),
    "alti(distance='l2')": (partial(alti, order=2), [], []),
    "decompx": (decompx, ["no residual", "reversed layers", "deviation of the part", "tangent slope"], []),
    "decompx(bias='norm')": (partial(decompx, rule="norm"), ["bias before the residual", "beta included"], []),
    "decompx(bias='equal')": (partial(decompx, rule="equal"), [], []),
    "decompx(bias='none')": (partial(decompx, rule="none"), [], []),
}


@pytest.mark.parametrize("spec", TWINS)
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_twins(name: str, dtype: torch.dtype, spec: str) -> None:
    twin = TWINS[spec][0]
    for a, side in zip(explained(name, dtype, spec), sides(name, dtype), strict=True):
        rolled_out = spec.startswith(("globenc", "alti"))  # whose products need the range of 64 bits
        assert a.scores.dtype == (np.float64 if dtype == DOUBLE or rolled_out else np.float32)
        assert distance(np.ravel(a.scores), twin(side)) <= TOLERANCE[name, dtype]


@pytest.mark.parametrize("spec", ["value_norms", "residual_norms", "globenc", "alti"])
@pytest.mark.parametrize("name", PARALLEL)
def test_twins_where_attention_and_feed_forward_part_are_parallel(name: str, spec: str) -> None:
    for a, side in zip(explained(name, DOUBLE, spec), sides(name, DOUBLE), strict=True):
        assert distance(np.ravel(a.scores), TWINS[spec][0](side)) <= 1e-10


@pytest.mark.parametrize("name", ["bert", "distilbert", "gpt2", "llama"])
def test_the_batch_is_padded(name: str) -> None:
    of = subject(name, SINGLE)
    ((_, batch),) = of.batches([of.encode(raw) for raw in raws(name)])
    assert batch.mask.sum(1).tolist() == [side.size for side in sides(name, SINGLE)] and not batch.mask.all()


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_the_mixing_ratio(name: str, dtype: torch.dtype) -> None:
    for a, side in zip(explained(name, dtype, "residual_norms"), sides(name, dtype), strict=True):
        ratio, right = np.asarray(a.details["mixing_ratio"]), mixing_ratio(side)
        assert ratio.shape == right.shape == (len(side.model.layers), side.size)
        assert np.abs(ratio - right).max() <= TOLERANCE[name, dtype]
        assert ratio.min() >= 0 and ratio.max() <= 1
        for wrong in ["lengths summed", "no residual", *(NORMED if side.model.post else [])]:
            assert np.abs(ratio - mixing_ratio(side, wrong)).max() > FAR, wrong


@pytest.mark.parametrize("spec", TWINS)
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_broken_twins(name: str, spec: str) -> None:
    twin, wrongs, only_post = TWINS[spec]
    a, side = explained(name, SINGLE, spec)[0], sides(name, SINGLE)[0]
    for wrong in [*wrongs, *(only_post if side.model.post else ["first norm left out"] if "norms" in spec else [])]:
        assert distance(np.ravel(a.scores), twin(side, wrong)) > FAR, wrong


# ---- identities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_parts_add_up_to_the_states_of_the_model(name: str, dtype: torch.dtype) -> None:
    for side in sides(name, dtype):
        for number, one in enumerate(side.model.layers):
            y, s, z = sums(side, number), between(side, number), mixed(side, number)
            for i in range(side.size):
                if side.model.post:  # sum_j z_ij + LNpart(b_O) + beta = LN(y_i)
                    total = z[i].sum(0) + one.norms[0].part(one.bias, y[i]) + one.norms[0].beta
                else:
                    total = z[i].sum(0) + one.bias
                np.testing.assert_allclose(total, s[i], atol=1e-12)
                after = s[i] + one.feed_forward(s[i] if side.model.post else one.norms[1](s[i]))
                after = one.norms[1](after) if side.model.post else after
                if side.model.post or number < side.depth()[-1]:  # else the last state comes after one more norm
                    assert distance(after, side.states[number + 1][i]) <= TOLERANCE[name, dtype]


@pytest.mark.parametrize("rule", ["absdot", "norm", "equal", "none"])
@pytest.mark.parametrize("name", DECIDING)
def test_sources_add_up_in_every_layer_and_to_the_logit(name: str, rule: str) -> None:
    side = sides(name, SINGLE)[1]
    states = carried(side, rule)
    for number, xs in enumerate(states[:-1]):
        for x, right in zip(xs, side.states[number], strict=True):
            assert distance(x.whole(), right) <= 1e-5
            assert rule == "none" or not x.rest.any()
    assert distance(shares(side, rule).whole(), side.logits) <= 1e-5
    a = explained(name, SINGLE, "decompx" if rule == "absdot" else f"decompx(bias={rule!r})")[1]
    left = shares(side, rule).rest[side.logits.argmax()]
    np.testing.assert_allclose(a.residual, left, atol=1e-5)
    np.testing.assert_allclose(a.scores.sum() + left, side.logits.max(), atol=1e-5)
    if rule != "none":
        assert left == 0
    elif name != "llama":  # which has no biases
        assert abs(left) > 0.01


@pytest.mark.parametrize("name", DECIDING)
def test_bounds(name: str) -> None:
    for number, side in enumerate(sides(name, SINGLE)):
        a = explained(name, SINGLE, "value_norms")[number]
        whole = moved(side, side.depth()[-1]).sum(1)[side.model.token]
        assert a.scores.sum() >= lengths(whole) - 1e-5  # triangle inequality
        a = explained(name, SINGLE, "alti")[number]
        assert a.scores.min() >= 0
        np.testing.assert_allclose(a.scores.sum(), 1, atol=1e-6)
        for layer_number in side.depth():
            c = nearness(side, layer_number)
            assert c.min() >= 0
            np.testing.assert_allclose(c.sum(1), 1)


def test_a_single_token_mixes_nothing_and_is_all_there_is() -> None:
    of = subject("gpt2", SINGLE)
    a = whence.explain(of, "a", method="residual_norms")
    assert a.scores.size == 1 and not np.asarray(a.details["mixing_ratio"]).any()
    for method in ("alti", "globenc"):
        np.testing.assert_allclose(np.ravel(whence.explain(of, "a", method=method).scores), [1.0])


def test_a_contrast_is_divided_as_its_logits_are() -> None:
    of, text = subject("bert", DOUBLE), raws("bert")[0]
    one, other, both = (
        whence.explain(of, text, method="decompx", target=target)
        for target in ("positive", "negative", "contrast('positive', 'negative')")
    )
    np.testing.assert_allclose(both.scores, one.scores - other.scores, atol=1e-12)
    assert abs(both.residual) < 1e-12


# ---- frozen models ---------------------------------------------------------------------------------------------------

GATED = {"llama", "llama-classifier", "qwen3", "gemma2", "gemma3", "mistral", "modernbert", *EXPERTS}
FROZEN = [
    *("bert", "roberta", "albert", "electra", "modernbert", "deberta-v2", "xlnet", "mpnet", "gpt2-classifier", "vit"),
    *("llama-classifier", "deit", "deit-teacher", "dinov2", "dinov2-registers", "beit", "gpt2", "gpt-neox", "gptj"),
    *("llama", "qwen3", "gemma2", "gemma3", "mistral", "from-scratch", "torch-encoder", "torch-sdpa"),
    *("bloom", "falcon", "falcon-alibi", *PARALLEL, *EXPERTS),
]


def at_slope(x: Tensor, out: Tensor) -> Tensor:
    return x * (out / x).detach()


class Frozen(TorchFunctionMode):
    """A model that is linear in its states: attention weights, deviations, and f(u)/u of activations are constants."""

    def __init__(self, model: nn.Module, gated: bool) -> None:
        super().__init__()
        self.inside = 0
        for name, module in model.named_modules():
            kind = type(module).__module__
            known = kind in ("torch.nn.modules.activation", "transformers.activations")
            if (known and not list(module.parameters())) or type(module).__name__ == "BloomGelu":
                module.register_forward_pre_hook(self.enters)
                module.register_forward_hook(partial(self.leaves, gate=gated and "mlp" in name))

    def enters(self, module: Any, args: Any) -> None:
        self.inside += 1

    def leaves(self, module: Any, args: Any, out: Tensor, gate: bool) -> Tensor:
        self.inside -= 1
        return out.detach() if gate else at_slope(args[0], out)

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.inside:
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return multihead(*args[:7], args[11], args[12]), None
        if func is F.scaled_dot_product_attention:  # of one example, so that the mask hides nothing
            q, k, v = args
            return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1).detach() @ v
        out = func(*args, **kwargs)
        if func in (torch.softmax, Tensor.softmax, F.softmax, torch.rsqrt):
            return out.detach()
        if func in (F.layer_norm, torch.layer_norm):
            given = dict(zip(("input", "shape", "weight", "bias", "eps"), args, strict=False)) | kwargs
            centred = given["input"] - given["input"].mean(-1, keepdim=True)
            deviation = (centred.square().mean(-1, keepdim=True) + given["eps"]).sqrt().detach()
            normed = centred / deviation * given["weight"]
            return normed if given.get("bias") is None else normed + given["bias"]
        return at_slope(args[0], out) if func in (torch.tanh, F.gelu, F.relu) else out


def multihead(q: Tensor, k: Tensor, v: Tensor, width: int, heads: int, W: Tensor, b: Tensor, *out: Tensor) -> Tensor:
    """Multi-head attention over (token, batch, width), its weights held."""
    tokens, count, _ = q.shape
    q, k, v = (x.view(tokens, count, heads, -1).permute(1, 2, 0, 3) for x in F.linear(q, W, b).chunk(3, -1))
    weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1).detach()
    return F.linear((weights @ v).permute(2, 0, 1, 3).flatten(2), *out)


def gradient_x_input(name: str, dtype: torch.dtype, raw: Any) -> np.ndarray:
    """Of the frozen model, at the state that enters its first layer, or at the words."""
    made = fresh(name)
    model: Any = made.model.to(dtype)
    if made.eager:
        model.set_attn_implementation("eager")
    entered: list[Tensor] = []

    def enters(module: Any, args: Any, kwargs: Any) -> Any:
        if entered:  # ALBERT's layers are one module
            return None
        entered.append((args[0] if args else kwargs["hidden_states"]).detach().requires_grad_())
        return ((entered[0], *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": entered[0]})

    def embedded(module: Any, args: Any, out: Tensor) -> Tensor:
        entered.append(out.detach().requires_grad_())
        return entered[0]

    if name in ("torch-sdpa", "torch-multihead"):  # no module takes in all of the state: then words are the sources
        model.word.register_forward_hook(embedded)
    else:
        lists = [m for m in model.modules() if isinstance(m, (nn.ModuleList, nn.Sequential)) and len(m) > 0]
        first = next(m[0] for m in lists if any("att" in name for name, _ in m.named_modules()))
        first.register_forward_pre_hook(enters, with_kwargs=True)
    tensors = {k: t.to(dtype) if t.is_floating_point() else t for k, t in plain_inputs(made, raw).items()}
    positional = [tensors.pop("input")] if "input" in tensors else []
    with Frozen(model, name in GATED):
        out = model(*positional, **tensors)
    logits = out if isinstance(out, Tensor) else out.logits
    (gradient,) = torch.autograd.grad(logits[0].max() if logits.ndim == 2 else logits[0, -1].max(), entered)
    scores = (gradient * entered[0]).sum(-1)
    return array(scores[0] if len(scores) == 1 else scores[:, 0])  # XLNet keeps (token, batch, width)


@pytest.mark.parametrize("name", FROZEN)
def test_without_biases_it_is_gradient_x_input_of_the_frozen_model(name: str) -> None:
    # The parts of a branch that is not followed would join the rest, and still close: here they are missed.
    of, raw = subject(name, DOUBLE), fresh(name).inputs[0]
    found = whence.explain(of, raw, method="decompx(bias='none')")
    assert distance(np.ravel(found.scores), gradient_x_input(name, DOUBLE, raw)) <= 1e-6


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "target"),
    [
        *(("bert", target) for target in ("probability", "log_probability", "log_odds", "probability('negative')")),
        *(("gpt2", f"probability({word!r})") for word in ("a", "b", "c", "x", "y", "z")),  # all but impossible
    ],
)
def test_a_target_that_is_not_linear_in_the_logits_is_not_divided(name: str, target: str) -> None:
    with pytest.raises(ValueError, match="decompx divides logits; explain a logit, a margin or a contrast") as error:
        whence.explain(subject(name, SINGLE), raws(name)[0], method="decompx", target=target)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", ["value_norms", "residual_norms", "globenc", "alti", "decompx"])
def test_several_streams_are_not_taken(method: str) -> None:
    made = fresh("lxmert")
    of = whence.wrap(made.model, made.processor, **made.kwargs)
    with pytest.raises(ValueError, match=r"works on|has the streams") as error:
        whence.explain(of, made.inputs[0], method=method)
    assert "\n" not in str(error.value)


def overwritten(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, -1] = 2 * x[:, -1].clone()
    return x


class Odd(nn.Module):
    """An operation that no decomposition follows, between the layers and the head."""

    def __init__(self, change: Callable[[Tensor], Tensor], norm: nn.Module) -> None:
        super().__init__()
        self.change, self.norm = change, norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.change(x))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda x: x.sin(), id="another path"),
        pytest.param(overwritten, id="in place"),
        pytest.param(lambda x: x + x.sin(), id="a branch"),
        pytest.param(lambda x: x.sin().index_add(1, torch.arange(x.shape[1]), x), id="rows added"),
    ],
)
@pytest.mark.parametrize("rule", ["absdot", "none"])
def test_what_is_not_followed_gives_no_number(change: Callable[[Tensor], Tensor], rule: str) -> None:
    made = fresh("from-scratch")
    made.model.norm = Odd(change, made.model.norm)
    of = whence.wrap(made.model, made.processor, **made.kwargs)
    assert np.isfinite(whence.explain(of, made.inputs[0], method="gradient_x_input").scores).all()
    with pytest.raises(ValueError, match=r"; .*use ") as error:
        whence.explain(of, made.inputs[0], method=f"decompx(bias={rule!r})")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", ["decompx", "globenc", "alti"])
@pytest.mark.parametrize("name", EXPERTS)
def test_experts_however_they_are_computed(name: str, method: str) -> None:
    """One after the other, in groups of rows, or every row with a matrix of its own."""
    found = []
    for way in ("eager", "grouped_mm", "batched_mm"):
        made = fresh(name)
        model: Any = made.model
        model.config._experts_implementation = way
        found.append(whence.explain(whence.wrap(model, made.processor), made.inputs[0], method).scores)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-3, atol=1e-5)


def test_experts_that_are_not_followed_give_no_number() -> None:
    with pytest.raises(ValueError, match=r"; .*use "):
        whence.explain(subject("gpt-oss", SINGLE), raws("gpt-oss")[0], method="decompx")


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, ...]]:
    """How many rows of parts go through linear layers, by the shape of the layers' weight."""
    rows: Counter[tuple[int, ...]] = Counter()

    def linear(x: Tensor, weight: Tensor) -> Tensor:
        rows[tuple(weight.shape)] += len(x)
        return F.linear(x, weight)

    monkeypatch.setattr(sums_of_parts, "linear", linear)
    return rows


def test_sources_that_a_token_has_not_seen_are_left_out(
    products: Counter[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a causal model half of all parts are zero."""
    of, text = subject("llama", SINGLE), " ".join(["a masterful film"] * 8)
    found = []
    for worth in (-1.0, sums_of_parts.WORTH):
        monkeypatch.setattr(sums_of_parts, "WORTH", worth)
        products.clear()
        scores = whence.explain(of, text, "decompx").scores
        found.append((sum(rows * weight[0] * weight[1] for weight, rows in products.items()), scores))
    (all_rows, plain), (used_rows, scores) = found
    np.testing.assert_allclose(scores, plain, rtol=1e-5, atol=1e-6)
    assert used_rows < 0.65 * all_rows


def test_the_parts_of_a_gate_are_not_made(products: Counter[tuple[int, ...]]) -> None:
    """Of the three products of a gated feed-forward part two are: what the gate multiplies, and the way out."""
    of, text = subject("llama", SINGLE), " ".join(["a masterful film"] * 8)
    whence.explain(of, text, "decompx")
    hidden, wide = of.model.config.hidden_size, of.model.config.intermediate_size
    assert 0 < products[wide, hidden] < 1.3 * products[hidden, wide]


def test_after_the_last_layer_only_the_token_that_decides_is_followed(products: Counter[tuple[int, ...]]) -> None:
    """The parts of the last layer's feed-forward part are computed for one token, those of the others are not."""
    of, text = subject("bert", SINGLE), " ".join(["a masterful film"] * 8)
    a = whence.explain(of, text, "decompx")
    hidden, wide, layers = (
        getattr(of.model.config, name) for name in ("hidden_size", "intermediate_size", "num_hidden_layers")
    )
    tokens = len(a.features)
    every_token = products[wide, hidden] / (layers - 1 + 1 / tokens)  # of one layer, where each token has all sources
    assert every_token <= tokens * (tokens + 1)


@pytest.mark.parametrize("name", DECIDING)
def test_parts_computed_a_row_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows of a state are computed together, the scores are the same."""
    whole = whence.explain(subject(name, SINGLE), raws(name), "decompx", 0)
    monkeypatch.setattr(deferred, "BLOCK", 1)
    for a, b in zip(whence.explain(subject(name, SINGLE), raws(name), "decompx", 0), whole, strict=True):
        np.testing.assert_allclose(a.scores, b.scores, rtol=1e-4, atol=1e-6 * np.abs(b.scores).sum())


def test_parts_do_not_outlive_their_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are far larger than states, so a deep model must not hold more of them than a flat one."""
    held = []
    decided = source_parts.Sources.decided

    def counting(self: source_parts.Sources, logits: Tensor) -> None:
        held.append(len(self._parts))
        decided(self, logits)

    monkeypatch.setattr(source_parts.Sources, "decided", counting)
    processor = gpt2_tokenizer()
    for layers in (2, 6):
        config = hf.GPT2Config(vocab_size=len(processor), n_embd=32, n_layer=layers, n_head=4, n_positions=64)
        whence.explain(whence.wrap(hf.GPT2LMHeadModel(config).eval(), processor), "the old man", "decompx")
    assert held[0] == held[1]


class TakesGradients(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        state = self.words(input_ids)
        force = torch.autograd.grad(state.square().sum(), state, create_graph=True)[0] if state.requires_grad else 0.0
        return self.out((state + force).sum(1))


def test_a_model_that_takes_gradients_while_it_runs_is_refused() -> None:
    def encode(raw: str) -> dict[str, Any]:
        return {"tensors": {"input_ids": np.arange(len(raw)) + 1}, "features": {"text": tuple(raw)}}

    s = whence.wrap(TakesGradients().eval(), encode=encode, embedding="words")
    with pytest.raises(ValueError, match=r"takes gradients while it runs.*use leave_one_out"):
        whence.explain(s, "abc", "decompx", 0)


@pytest.mark.parametrize("method", ["alti", "residual_norms", "globenc"])
def test_a_layer_that_lays_all_tokens_in_one_row(method: str) -> None:
    """OPT flattens the tokens of a batch before its feed-forward part; rows of a batch are those of each alone."""
    processor, size = gpt2_tokenizer(), {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = hf.OPTConfig(
        vocab_size=len(processor), ffn_dim=64, word_embed_proj_dim=32, max_position_embeddings=64, **size
    )
    torch.manual_seed(0)
    model: Any = hf.OPTForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.5) if weight.ndim > 1 else weight.add_(0.1 * torch.randn_like(weight))
    s = whence.wrap(model, processor)
    whole = whence.explain(s, {"prompt": "the old man", "continuation": " was singing"}, method)
    for row, place in enumerate(whole.input.generated):
        text = "".join(whole.features[:place])
        alone = whence.explain(s, text, method, int(whole.input.tensors["input_ids"][place]))
        np.testing.assert_allclose(whole.scores[row, :place], alone.scores, rtol=1e-4, atol=1e-6)
