"""Relevance propagation: the target is handed down through the model, layer by layer, until it lies on the inputs.

Layer-wise relevance propagation (LRP) is reported to be patented in places; see NOTICE before using it in a product.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from whence.core.registry import Explained, method
from whence.methods.attention import finished, readers, steps
from whence.methods.gradient import At, placed, width_axis
from whence.model.batching import Batch
from whence.model.passes import Trace
from whence.model.precision import wide
from whence.model.subject import Subject
from whence.model.targets import Aim
from whence.propagation.backward_rules import Conserving, Positive


@method(family="relevance", paper="arXiv:2202.07304")
def lrp(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    rules: Literal["both", "ah", "ln", "none"] = "both",
    epsilon: float = 0.0,
    gamma: float = 0.0,
    at: At = "embeddings",
    heads: bool = False,
    neurons: str | list[str] | None = None,
) -> Explained:
    """LRP for transformers: attention weights (AH) and norms' deviations (LN) are constants, then x_i df/dx_i.

    Activations go as act(x)/x; gates of gated layers and the weights that mix experts are constants. Without biases
    the scores sum to the target; with them, what biases contribute is the residual. `rules` takes both or one of AH and
    LN; "none" is plain gradient x input. `epsilon` and `gamma` are those of LRP on linear layers and convolutions,
    R_i = sum_j x_i w_ij / (z_j + epsilon) R_j with w + gamma w^+ for w; gamma wants an epsilon beside it, since its
    sums may come near 0. The same pass tells the relevance inside the model, z dR/dz of any state z. `heads` puts that
    of every attention head, (layer, head), into `details["heads"]`; where several pairs of streams are connected,
    into one entry each, as "heads target source". `neurons` names a module or several: that of all it gives, (token,
    width), is then in `details["neurons NAME"]`; a list of them where the module runs more than once. LRP is reported
    to be patented in places (see NOTICE).
    """
    backward = None
    if rules != "none":
        attention = "hold" if rules in ("both", "ah") else None
        backward = Conserving(heads=attention, norms=rules in ("both", "ln"), epsilon=epsilon, gamma=gamma)
    return _relevance(subject, batch, target, at, backward, heads, neurons)


@method(family="relevance", paper="arXiv:2402.05602")
def attnlrp(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    epsilon: float = 0.0,
    gamma: float = 0.0,
    at: At = "embeddings",
    heads: bool = False,
    neurons: str | list[str] | None = None,
) -> Explained:
    """AttnLRP: products of two states (queries and keys, weights and values, gates) give half to each, norms as in LRP.

    The softmax passes relevance on by its Taylor expansion, x (R - s sum R), which does not conserve it: the scores do
    not sum to the target. `epsilon`, `gamma`, `heads` and `neurons` are as in `lrp`. LRP is reported to be patented in
    places (see NOTICE).
    """
    backward = Conserving(heads="half", epsilon=epsilon, gamma=gamma)
    return _relevance(subject, batch, target, at, backward, heads, neurons)


@method(
    family="relevance",
    signed=False,
    needs=("attention_gradient", "deciding"),
    paper="arXiv:2012.09838",
    tasks=("text-classification", "image-classification"),
)
def transformer_attribution(
    subject: Subject, batch: Batch, target: Aim, *, start_layer: int = 0, normalise: bool = False
) -> Tensor:
    """Transformer attribution: the product over layers of I + mean_h (G o R)^+, R being the relevance of attention.

    R starts as 1 at the target and goes down by the z^+ rule in linear layers, in halves at products and by shares at
    sums; norms, activations and softmax pass it on. Read at the deciding token, the identity's 1 taken off its own
    entry. The authors' code for BERT divides rows by their sums (`normalise`) and starts at the last layer; that for
    ViT starts at layer 1. LRP is reported to be patented in places (see NOTICE).
    """
    trace = subject.trace(batch, target)
    blocks = steps(subject, trace, start_layer)
    if any(site.tokens_first for site in subject.sites(batch, "embeddings").values()):
        raise ValueError(f"{subject.name} keeps tokens before examples; transformer_attribution cannot: use gae or lrp")
    rules = Positive()
    ruled = subject.trace(batch, target, ("attention_gradient",), rules=rules)
    if rules.unknown:
        raise ValueError(
            f"{subject.name} uses {', '.join(sorted(rules.unknown))}, for which transformer_attribution has no rule; "
            "use gae or lrp"
        )
    start = readers(subject, trace, batch, "row")
    rest = torch.zeros_like(start)  # rows of the product minus I: what is tiny beside I keeps its digits
    for record in reversed(blocks):
        span = batch.span(record.query)
        maps = (record.gradient * ruled.attention[record.order].gradient).clamp(min=0).mean(1).to(rest.dtype)
        if normalise:
            total = 1 + maps.sum(-1, keepdim=True)
            both = (start + rest)[:, :, span] @ (
                (maps + torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device)) / total
            )
            rest[:, :, span] = both - start[:, :, span]
        else:
            rest[:, :, span] += (start + rest)[:, :, span] @ maps
    return finished(rest, batch, trace, "row")


def _relevance(
    subject: Subject,
    batch: Batch,
    target: Aim,
    at: At,
    rules: Conserving | None,
    heads: bool,
    neurons: str | list[str] | None,
) -> Explained:
    """x df/dx under the rules, at the features and, in the details, inside the model."""
    names = [neurons] if isinstance(neurons, str) else neurons or []
    needs = [f"gradient:{at}", *(f"gradient:module:{name}" for name in names), *(["head_gradient"] if heads else [])]
    trace = subject.trace(batch, target, needs, rules=rules)
    found = placed(subject, batch, {s: p.sum(width_axis(p)) for s, p in _products(trace, at).items()})
    inside = _by_head(batch, trace) if heads else {}
    return replace(
        found, details=found.details | inside | {f"neurons {n}": _of_module(subject, batch, trace, n) for n in names}
    )


def _products(trace: Trace, at: str | int) -> dict[str, Tensor]:
    return {key: wide(trace.states[at][key]) * wide(gradient) for key, gradient in trace.gradients[at].items()}


def _by_head(batch: Batch, trace: Trace) -> dict[str, Any]:
    """By the streams that attention connects, z dR/dz of each head's z = A V, summed over queries and width."""
    found: dict[str, list[Tensor]] = {}
    for record in trace.attention:
        products = torch.cat([wide(z) * wide(gradient) for z, gradient in record.mixed], 1).sum(-1)
        if record.query:
            real = batch.mask[:, batch.span(record.query)]
            products = products.masked_fill(~real[:, None], 0.0)
        layer = products.sum(-1).unflatten(0, (len(batch), -1)).sum(1)  # (batch, head); windows of an example together
        found.setdefault(f"heads {record.query} {record.key}", []).append(layer)
    if len(found) == 1:
        found = {"heads": next(iter(found.values()))}
    return {name: _stacked(layers) for name, layers in found.items()}


def _stacked(layers: list[Tensor]) -> Any:
    """(batch, layer, head); where layers differ in their number of heads, a list of them for every example."""
    if len({layer.shape[1] for layer in layers}) == 1:
        return torch.stack(layers, 1)
    return list(map(list, zip(*(layer.cpu().numpy() for layer in layers), strict=True)))


def _of_module(subject: Subject, batch: Batch, trace: Trace, name: str) -> list[Any]:
    """By example, the relevance of all that a module gives, padding cut; of several calls a list."""
    at = f"module:{name}"
    products, sites = _products(trace, at), subject.sites(batch, at)
    calls = []
    for call, product in products.items():
        stream = sites[call].stream
        masks = batch.mask[:, batch.span(stream)] if stream else [...] * len(batch)
        calls.append([product[row][mask].cpu().numpy() for row, mask in enumerate(masks)])
    return calls[0] if len(calls) == 1 else list(map(list, zip(*calls, strict=True)))
