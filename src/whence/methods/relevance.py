"""Relevance propagation: the target is handed down through the model, layer by layer, until it lies on the inputs.

Layer-wise relevance propagation (LRP) is reported to be patented in places; see NOTICE before using it in a product.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from whence.batching import Batch
from whence.methods.attention import finished, readers, steps
from whence.methods.gradient import At, placed, wide, width_axis
from whence.registry import Explained, method
from whence.rules import Conserving, Positive
from whence.subject import Subject
from whence.targets import Aim


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
) -> Explained:
    """LRP for transformers: attention weights (AH) and norms' deviations (LN) are constants, then x_i df/dx_i.

    Activations go as act(x)/x, and gates of gated layers are constants. Without biases the scores sum to the target;
    with them, what biases contribute is the residual. `rules` takes both or one of AH and LN; "none" is plain gradient
    x input. `epsilon` and `gamma` are those of LRP on linear layers, R_i = sum_j x_i w_ij / (z_j + epsilon) R_j with
    w + gamma w^+ for w; gamma wants an epsilon beside it, since its sums may come near 0. LRP is reported to be
    patented in places (see NOTICE).
    """
    if rules == "none":
        return _relevance(subject, batch, target, at, None)
    heads = "hold" if rules in ("both", "ah") else None
    kept = Conserving(subject.model, heads=heads, norms=rules in ("both", "ln"), epsilon=epsilon, gamma=gamma)
    return _relevance(subject, batch, target, at, kept)


@method(family="relevance", paper="arXiv:2402.05602")
def attnlrp(
    subject: Subject, batch: Batch, target: Aim, *, epsilon: float = 0.0, gamma: float = 0.0, at: At = "embeddings"
) -> Explained:
    """AttnLRP: products of two states (queries and keys, weights and values, gates) give half to each, norms as in LRP.

    The softmax passes relevance on by its Taylor expansion, x (R - s sum R), which does not conserve it: the scores do
    not sum to the target. `epsilon` and `gamma` are as in `lrp`. LRP is reported to be patented in places (see NOTICE).
    """
    kept = Conserving(subject.model, heads="half", epsilon=epsilon, gamma=gamma)
    return _relevance(subject, batch, target, at, kept)


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
    trace = subject.trace(batch, target, ("attention_gradient", "deciding"))
    blocks = steps(subject, trace, start_layer)
    if any(site.tokens_first for site in subject.sites(batch, "embeddings").values()):
        raise ValueError(f"{subject.name} keeps tokens before examples; transformer_attribution cannot: use gae or lrp")
    rules = Positive(subject.model)
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


def _relevance(subject: Subject, batch: Batch, target: Aim, at: At, rules: Conserving | None) -> Explained:
    """x df/dx under the rules."""
    trace = subject.trace(batch, target, (f"gradient:{at}",), rules=rules)
    products = {s: wide(trace.states[at][s]) * wide(g) for s, g in trace.gradients[at].items()}
    return placed(subject, batch, {stream: p.sum(width_axis(p)) for stream, p in products.items()})
