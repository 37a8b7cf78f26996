"""Relevance propagation: the target is handed down through the model, layer by layer, until it lies on the inputs.

Layer-wise relevance propagation (LRP) is reported to be patented in places; see NOTICE before using it in a product.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from whence.core.registry import Explained, method
from whence.core.specs import Between
from whence.methods.attention import FirstLayer, finished, readers, steps
from whence.methods.gradient import At, placed, width_axis
from whence.model.batching import Batch
from whence.model.passes import Trace
from whence.model.precision import wide
from whence.model.subject import Subject
from whence.model.targets import Aim
from whence.propagation.backward_rules import Conserving, Positive
from whence.propagation.long_inputs import has_fused_path, is_long


@method(family="relevance", paper="arXiv:2202.07304")
def lrp(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    rules: Literal["both", "ah", "ln", "none"] = "both",
    epsilon: Annotated[float, Between(0, 10**6)] = 0.0,
    gamma: Annotated[float, Between(0, 10**6)] = 0.0,
    at: At = "embeddings",
    heads: bool = False,
    neurons: str | list[str] | None = None,
) -> Explained:
    """LRP for transformers: attention weights (AH) and norms' deviations (LN) are constants, then x_i df/dx_i.

    Activations go as act(x)/x; gates of gated layers and the weights that mix experts are constants. Without biases
    the scores sum to the target; the contribution of biases is the residual. `rules` takes both or one of AH and
    LN; "none" is plain gradient x input. `epsilon` and `gamma` belong to LRP's rule for linear layers and convolutions,
    R_i = sum_j x_i w_ij / (z_j + epsilon) R_j with w + gamma w^+ for w; gamma wants an epsilon beside it, since its
    sums may come near 0. The same pass gives the relevance inside the model, z dR/dz of any state z. `heads` puts the
    relevance of every attention head, (layer, head), into `details["heads"]`; where several pairs of streams are
    connected, into one entry each, as "heads target source". `neurons` names a module or several: the relevance of the
    module's output, (token, width), is then in `details["neurons NAME"]`; a list where the module runs more than once.
    LRP is reported to be patented in places (see NOTICE).
    """
    backward = None
    if rules != "none":
        attention = "hold" if rules in ("both", "ah") else None
        fused = _runs_fused(subject, batch, heads)
        norms = rules in ("both", "ln")
        backward = Conserving(heads=attention, norms=norms, epsilon=epsilon, gamma=gamma, fused=fused)
    return _relevance(subject, batch, target, at, backward, heads, neurons)


@method(family="relevance", paper="arXiv:2402.05602")
def attnlrp(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    epsilon: Annotated[float, Between(0, 10**6)] = 0.0,
    gamma: Annotated[float, Between(0, 10**6)] = 0.0,
    at: At = "embeddings",
    heads: bool = False,
    neurons: str | list[str] | None = None,
) -> Explained:
    """AttnLRP: products of two states (queries and keys, weights and values, gates) give half to each, norms as in LRP.

    The softmax passes relevance on by its Taylor expansion, x (R - s sum R), which does not conserve it: the scores do
    not sum to the target. `epsilon`, `gamma`, `heads` and `neurons` are as in `lrp`. LRP is reported to be patented in
    places (see NOTICE).
    """
    backward = Conserving(heads="half", epsilon=epsilon, gamma=gamma, fused=_runs_fused(subject, batch, heads))
    return _relevance(subject, batch, target, at, backward, heads, neurons)


@method(
    family="relevance",
    signed=False,
    needs=("attention_gradient", "deciding"),
    paper="arXiv:2012.09838",
    tasks=("text-classification", "image-classification", "token-classification", "question-answering", "masked-lm"),
)
def transformer_attribution(
    subject: Subject, batch: Batch, target: Aim, *, start_layer: FirstLayer = 0, normalise: bool = False
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
    change = torch.zeros_like(start)  # rows of the product minus I: small entries keep their digits
    for record in reversed(blocks):
        span = batch.span(record.query)
        maps = (record.gradient * ruled.attention[record.order].gradient).clamp(min=0).mean(1).to(change.dtype)
        if normalise:
            total = 1 + maps.sum(-1, keepdim=True)
            both = (start + change)[:, :, span] @ (
                (maps + torch.eye(maps.shape[-1], dtype=maps.dtype, device=maps.device)) / total
            )
            change[:, :, span] = both - start[:, :, span]
        else:
            change[:, :, span] += (start + change)[:, :, span] @ maps
    return finished(change, batch, trace, "row")


def _runs_fused(subject: Subject, batch: Batch, heads: bool) -> bool:
    """Whether a pass under rules runs fused and keeps no attention: on long inputs, unless heads are asked for."""
    return not heads and is_long(subject, batch) and has_fused_path(subject, batch)


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
    features = placed(subject, batch, {s: p.sum(width_axis(p)) for s, p in _products(trace, at).items()})
    inside = _head_relevance(batch, trace) if heads else {}
    inside |= {f"neurons {name}": _module_relevance(subject, batch, trace, name) for name in names}
    return replace(features, details=features.details | inside)


def _products(trace: Trace, at: str | int) -> dict[str, Tensor]:
    """State x gradient at a place, entry by entry, by stream."""
    return {key: wide(trace.states[at][key]) * wide(gradient) for key, gradient in trace.gradients[at].items()}


def _head_relevance(batch: Batch, trace: Trace) -> dict[str, Any]:
    """Relevance of attention heads, by pair of streams: z dR/dz of z = A V, summed over queries and width."""
    by_streams: dict[str, list[Tensor]] = {}
    for record in trace.attention:
        products = torch.cat([wide(z) * wide(gradient) for z, gradient in record.mixed], 1).sum(-1)
        if record.query:
            real = batch.mask[:, batch.span(record.query)]
            products = products.masked_fill(~real[:, None], 0.0)
        layer = products.sum(-1).unflatten(0, (len(batch), -1)).sum(1)  # (batch, head): summed over windows
        by_streams.setdefault(f"heads {record.query} {record.key}", []).append(layer)
    if len(by_streams) == 1:
        by_streams = {"heads": next(iter(by_streams.values()))}
    return {name: _stacked(layers) for name, layers in by_streams.items()}


def _stacked(layers: list[Tensor]) -> Any:
    """(batch, layer, head); where layers differ in their number of heads, a list of layers for every example."""
    if len({layer.shape[1] for layer in layers}) == 1:
        return torch.stack(layers, 1)
    return list(map(list, zip(*(layer.cpu().numpy() for layer in layers), strict=True)))


def _module_relevance(subject: Subject, batch: Batch, trace: Trace, name: str) -> list[Any]:
    """By example, the relevance of a module's output without padding; a list of outputs where the module runs often."""
    at = f"module:{name}"
    products, sites = _products(trace, at), subject.sites(batch, at)
    calls = []
    for call, product in products.items():
        stream = sites[call].stream
        masks = batch.mask[:, batch.span(stream)] if stream else [...] * len(batch)
        calls.append([product[row][mask].cpu().numpy() for row, mask in enumerate(masks)])
    return calls[0] if len(calls) == 1 else list(map(list, zip(*calls, strict=True)))
