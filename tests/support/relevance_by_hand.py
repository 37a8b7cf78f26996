"""Relevance by hand: models written out step by step, and rules that pass relevance back from each step to its sources.

One example at a time, without padding, without gradients and without whence; only the weights are the model's. Every
rule divides and shares out as its paper writes it. A set of rules can be told to make one mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(eq=False)
class Step:
    """One operation of a forward pass: its value, its rule, and the steps that it was made from."""

    kind: str  # the name of its rule
    value: Tensor
    sources: tuple[Step, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)


class Network:
    """The steps of a forward pass in their order; states are (token, width), heads (head, token, width)."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.weights: list[Step] = []  # the softmax of every layer

    def take(self, kind: str, value: Tensor, *sources: Step, **given: Any) -> Step:
        self.steps.append(Step(kind, value.detach(), sources, given))
        return self.steps[-1]

    def linear(self, x: Step, layer: nn.Module) -> Step:
        return self.take("linear", layer(x.value), x, weight=layer.weight, bias=layer.bias)

    def norm(self, x: Step, layer: Any) -> Step:
        centred = isinstance(layer, nn.LayerNorm)
        eps = layer.eps if centred else layer.variance_epsilon
        given = {"weight": layer.weight, "bias": getattr(layer, "bias", None), "eps": eps, "centred": centred}
        return self.take("norm", layer(x.value), x, **given)

    def act(self, x: Step, function: Callable[[Tensor], Tensor]) -> Step:
        return self.take("act", function(x.value), x, function=function)

    def add(self, u: Step, v: Step) -> Step:
        return self.take("add", u.value + v.value, u, v)

    def gate(self, gate: Step, x: Step) -> Step:
        return self.take("gate", gate.value * x.value, gate, x)

    def row(self, x: Step, number: int) -> Step:
        def back(R: Tensor) -> Tensor:
            whole = torch.zeros_like(x.value)
            whole[number] = R
            return whole

        return self.take("moved", x.value[number], x, back=back)

    def heads(self, x: Step, size: int) -> Step:
        value = x.value.unflatten(-1, (-1, size)).transpose(0, 1)
        return self.take("moved", value, x, back=lambda R: R.transpose(0, 1).flatten(1))

    def merged(self, x: Step) -> Step:
        size = x.value.shape[-1]
        value = x.value.transpose(0, 1).flatten(1)
        return self.take("moved", value, x, back=lambda R: R.unflatten(-1, (-1, size)).transpose(0, 1))

    def repeated(self, x: Step, times: int) -> Step:
        """Heads of keys and values, each used by several heads of queries."""
        value = x.value.repeat_interleave(times, 0)
        return self.take("moved", value, x, back=lambda R: R.unflatten(0, (-1, times)).sum(1))

    def rotated(self, x: Step, turns: Tensor) -> Step:
        """Positions as rotations: `turns` is (token, width, width)."""
        return self.take("turned", torch.einsum("htj,tij->hti", x.value, turns), x, turns=turns)

    def attention(self, q: Step, k: Step, v: Step, scaling: float, seen: Tensor | None = None) -> Step:
        scores = self.take("scores", q.value @ k.value.transpose(1, 2), q, k)
        scaled = scores.value * scaling
        scaled = scaled if seen is None else scaled.masked_fill(~seen, -torch.inf)
        logits = self.take("moved", scaled, scores, back=lambda R: R)
        self.weights.append(self.take("softmax", logits.value.softmax(-1), logits))
        return self.take("mix", self.weights[-1].value @ v.value, self.weights[-1], v)

    def explained(self, rules: Rules, number: int, start: float) -> Tensor:
        """The relevance of each token, (token,), when the output of this number begins with `start`."""
        R = torch.zeros_like(self.steps[-1].value)
        R[number] = start
        return self.propagate(R, rules)[self.steps[0]].sum(-1)

    @torch.no_grad()
    def propagate(self, start: Tensor, rules: Rules) -> dict[Step, Tensor]:
        """The relevance of every step, `start` being that of the last."""
        found = {self.steps[-1]: start}
        for step in reversed(self.steps):
            if step not in found or not step.sources:
                continue
            for source, share in zip(step.sources, getattr(rules, step.kind)(step, found[step]), strict=True):
                found[source] = found.get(source, 0) + share  # a source that is used twice gets the sum
        return found


# ---- models ----------------------------------------------------------------------------------------------------------


def bert(model: Any, tensors: dict[str, Tensor]) -> Network:
    net = Network()
    h = net.take("input", model.bert.embeddings(tensors["input_ids"], tensors["token_type_ids"])[0])
    for layer in model.bert.encoder.layer:
        own, out = layer.attention.self, layer.attention.output
        parts = [net.heads(net.linear(h, m), own.attention_head_size) for m in (own.query, own.key, own.value)]
        mixed = net.linear(net.merged(net.attention(*parts, own.scaling)), out.dense)
        h = net.norm(net.add(mixed, h), out.LayerNorm)
        wide = net.act(net.linear(h, layer.intermediate.dense), F.gelu)
        h = net.norm(net.add(net.linear(wide, layer.output.dense), h), layer.output.LayerNorm)
    net.linear(net.act(net.linear(net.row(h, 0), model.bert.pooler.dense), torch.tanh), model.classifier)
    return net


def vit(model: Any, tensors: dict[str, Tensor]) -> Network:
    net = Network()
    h = net.take("input", model.vit.embeddings(tensors["pixel_values"])[0])
    for layer in model.vit.layers:
        own, x = layer.attention, net.norm(h, layer.layernorm_before)
        parts = [net.heads(net.linear(x, m), own.head_dim) for m in (own.q_proj, own.k_proj, own.v_proj)]
        h = net.add(net.linear(net.merged(net.attention(*parts, own.scaling)), own.o_proj), h)
        wide = net.act(net.linear(net.norm(h, layer.layernorm_after), layer.mlp.fc1), F.gelu)
        h = net.add(net.linear(wide, layer.mlp.fc2), h)
    net.linear(net.row(net.norm(h, model.vit.layernorm), 0), model.classifier)
    return net


def llama(model: Any, tensors: dict[str, Tensor]) -> Network:
    net = Network()
    h = net.take("input", model.model.embed_tokens(tensors["input_ids"])[0])
    tokens = h.value.shape[0]
    seen, turns = torch.ones(tokens, tokens).tril().bool(), rotations(model, tokens).to(h.value.dtype)
    for layer in model.model.layers:
        own, mlp, x = layer.self_attn, layer.mlp, net.norm(h, layer.input_layernorm)
        q, k, v = (net.heads(net.linear(x, m), own.head_dim) for m in (own.q_proj, own.k_proj, own.v_proj))
        groups = own.num_key_value_groups
        q, k, v = net.rotated(q, turns), net.repeated(net.rotated(k, turns), groups), net.repeated(v, groups)
        h = net.add(net.linear(net.merged(net.attention(q, k, v, own.scaling, seen)), own.o_proj), h)
        x = net.norm(h, layer.post_attention_layernorm)
        gated = net.gate(net.act(net.linear(x, mlp.gate_proj), F.silu), net.linear(x, mlp.up_proj))
        h = net.add(net.linear(gated, mlp.down_proj), h)
    net.linear(net.row(net.norm(h, model.model.norm), tokens - 1), model.lm_head)
    return net


def rotations(model: Any, tokens: int) -> Tensor:
    """The matrices that turn a query or key at each position: (token, width, width)."""
    speeds = model.model.rotary_emb.inv_freq
    half = len(speeds)
    turns = torch.zeros(tokens, 2 * half, 2 * half, dtype=speeds.dtype)
    for token in range(tokens):
        for i, speed in enumerate(speeds):
            sin, cos = torch.sin(token * speed), torch.cos(token * speed)
            turns[token, i, i], turns[token, i, i + half] = cos, -sin
            turns[token, i + half, i], turns[token, i + half, i + half] = sin, cos
    return turns


# ---- rules -----------------------------------------------------------------------------------------------------------


PARAMETERS = ("weight", "bias")


class Rules:
    """What relevance R of a step's value gives to each of its sources."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong

    def moved(self, step: Step, R: Tensor) -> list[Tensor]:
        return [step.given["back"](R)]


class Lrp(Rules):
    """LRP for transformers; attention weights are "held", "half" (AttnLRP) or "free", norms' deviations held or free.

    `biases` sums up the relevance that biases kept.
    """

    def __init__(
        self,
        wrong: str = "",
        *,
        weights: str = "held",
        norms: bool = True,
        epsilon: float = 0.0,
        gamma: float = 0.0,
    ) -> None:
        super().__init__(wrong)
        self.weights, self.norms, self.epsilon, self.gamma = weights, norms, epsilon, gamma
        self.biases, self.missed = 0.0, False

    def shared(self, x: Tensor, maps: Tensor, bias: Tensor | None, R: Tensor, epsilon: float = 0.0) -> Tensor:
        """R_i = sum_j x_i w_ji / (z_j + e) R_j, the maps w being (token, out, in) or (out, in)."""
        parts = x[..., None, :] * maps  # (token, out, in)
        z = parts.sum(-1) + (0 if bias is None else bias)
        z = z + epsilon * torch.where(z >= 0, 1.0, -1.0)
        if bias is not None:
            self.biases += (bias / z * R).sum().item()
        return (parts * (R / z)[..., None]).sum(-2)

    def linear(self, step: Step, R: Tensor) -> list[Tensor]:
        weight, bias = (t if t is None else t + self.gamma * t.clamp(min=0) for t in map(step.given.get, PARAMETERS))
        return [self.shared(step.sources[0].value, weight, bias, R, self.epsilon)]

    def turned(self, step: Step, R: Tensor) -> list[Tensor]:
        return [self.shared(step.sources[0].value, step.given["turns"], None, R)]

    def norm(self, step: Step, R: Tensor) -> list[Tensor]:
        x, given = step.sources[0].value, step.given
        weight, bias = map(given.get, PARAMETERS)
        one = torch.eye(x.shape[-1], dtype=x.dtype)
        mean = one.new_full(one.shape, 1 / len(one) if given["centred"] else 0.0)
        centred = x @ (one - mean)
        deviation = (centred.square().mean(-1, keepdim=True) + given["eps"]).sqrt()
        maps = (weight / deviation)[..., None] * (one - mean)  # (token, out, in)
        if self.wrong == "the mean is held too":
            maps = (weight / deviation)[..., None] * one
            bias = bias - (x @ mean) * weight / deviation
        elif not self.norms or (self.wrong == "one norm is missed" and not self.missed):
            self.missed = True
            moves = centred[..., :, None] * centred[..., None, :] / (len(one) * deviation[..., None] ** 2)
            maps = maps - (weight / deviation)[..., None] * moves
            bias = step.value - (x[..., None, :] * maps).sum(-1)
        return [self.shared(x, maps, bias, R)]

    def add(self, step: Step, R: Tensor) -> list[Tensor]:
        u, v = (source.value for source in step.sources)
        return [u / (u + v) * R, v / (u + v) * R]

    def act(self, step: Step, R: Tensor) -> list[Tensor]:
        if self.wrong != "tangent":
            return [R]
        x = step.sources[0].value
        slope = torch.autograd.functional.jvp(step.given["function"], x, torch.ones_like(x))[1]
        return [R * x * slope / step.value]

    def gate(self, step: Step, R: Tensor) -> list[Tensor]:
        if self.weights == "half":
            return [R / 2, R / 2]
        nothing = torch.zeros_like(R)
        return [R, nothing] if self.wrong == "the other factor is held" else [nothing, R]

    def mix(self, step: Step, R: Tensor) -> list[Tensor]:
        A, V = (source.value for source in step.sources)
        to_weights, to_values = self.product(A, V.transpose(1, 2), step.value, R)
        return [torch.zeros_like(A) if self.weights == "held" else to_weights, to_values.transpose(1, 2)]

    def scores(self, step: Step, R: Tensor) -> list[Tensor]:
        q, k = (source.value for source in step.sources)
        return list(self.product(q, k, step.value, R))

    def product(self, left: Tensor, right: Tensor, Z: Tensor, R: Tensor) -> tuple[Tensor, Tensor]:
        """Z = left right^T: each factor by its shares, R_left = left o (R / Z) right; of halves, half of that."""
        share = R / Z / (2 if self.weights == "half" and self.wrong != "no halves" else 1)
        return left * (share @ right), right * (share.transpose(1, 2) @ left)

    def softmax(self, step: Step, R: Tensor) -> list[Tensor]:
        """The Taylor expansion, R_x = x (R_s - s sum R_s); masked entries get none."""
        if self.wrong == "softmax passes on":
            return [R]
        s = step.value
        return [torch.where(s > 0, step.sources[0].value, 0) * (R - s * R.sum(-1, keepdim=True))]


class Positive(Rules):
    """Transformer attribution: the alpha = 1 rule, halves at products, sums by shares with their totals set."""

    def linear(self, step: Step, R: Tensor) -> list[Tensor]:
        parts = (step.sources[0].value[..., None, :] * step.given["weight"]).clamp(min=0)  # (token, out, in)
        z = parts.sum(-1)
        if self.wrong == "the bias takes part" and step.given["bias"] is not None:
            z = z + step.given["bias"].clamp(min=0)
        return [(parts * divided(R, z)[..., None]).sum(-2)]

    def add(self, step: Step, R: Tensor) -> list[Tensor]:
        u, v = (source.value for source in step.sources)
        a, b = u * divided(R, u + v), v * divided(R, u + v)
        if self.wrong == "plain shares":
            return [a, b]
        both = a.sum().abs() + b.sum().abs()
        return [part * divided(divided(part.sum().abs(), both) * R.sum(), part.sum()) for part in (a, b)]

    def mix(self, step: Step, R: Tensor) -> list[Tensor]:
        A, V = (source.value for source in step.sources)
        share = divided(R, step.value)
        parts = A * (share @ V.transpose(1, 2)), V * (A.transpose(1, 2) @ share)
        return [part if self.wrong == "no halves" else part / 2 for part in parts]

    def scores(self, step: Step, R: Tensor) -> list[Tensor]:
        q, k = (source.value for source in step.sources)
        share = divided(R, step.value)
        parts = q * (share @ k), k * (share.transpose(1, 2) @ q)
        return [part if self.wrong == "no halves" else part / 2 for part in parts]

    def norm(self, step: Step, R: Tensor) -> list[Tensor]:
        return [R]

    act = softmax = norm


def divided(a: Tensor, b: Tensor) -> Tensor:
    """a / b, kept from 0 by 1e-9, and 0 where b is 0."""
    return torch.where(b == 0, 0, a / (b + torch.where(b >= 0, 1e-9, -1e-9)))
