"""Losses of training: each is a plain function of one training pass, and so of the model's parameters.

A loss is the mean over the examples on which it is defined. Losses that compare with rationales are not defined on
examples without one. Every loss has a `weight` in its spec, as "rationale(layers=[-1], weight=0.5)".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.core.registry import loss
from whence.core.specs import Number
from whence.guidance import attributions
from whence.guidance.attributions import TINY, Read, blocks, by_head, read_blocks, shares, weights_of, words
from whence.model.training_pass import TrainingPass

Distance = Literal["kl", "cross_entropy", "mass"]
Heads = Literal["outputs", "positions", "subspaces"]
Attribution = Literal["attention_x_gradient", "gae", "gradient_x_input"]


def _towards_marks(options: dict[str, Any]) -> tuple[str, int]:
    return "the marked words", -1 if options.get("away") or options.get("forbidden") == "marked" else 1


@loss(needs=("attention", "marks"), family="rationales", pulls=_towards_marks, paper="arXiv:2012.10289")
def rationale(
    seen: TrainingPass,
    *,
    layers: list[Number] | None = [-1],  # noqa: B006 - read only; its spec shows the default
    heads: list[Number] | None = None,
    read: Read = "row",
    distance: Distance = "kl",
    each: bool = False,
    away: bool = False,
) -> Tensor:
    """Attention on the words that people marked: how far what is attended to is from the marked words.

    Attention a is read at the deciding token ("row") or as the mean that a token receives, averaged over the chosen
    layers and heads, or of `each` layer and head by itself, and divided by its sum over words: special tokens are left
    out. With p the same share on every marked word: "kl" is sum p log(p / a), "cross_entropy" -sum p log a, "mass"
    -log of the sum of a over marked words. `away` turns it round: -log of the sum over the words that are not marked.
    """
    if each:
        maps = []
        for record in read_blocks(seen, layers, read):
            heads_of = by_head(seen, record, read, heads)
            maps += [
                attributions.placed(seen, attributions.zeros(seen), record.key, heads_of[:, head])
                for head in range(heads_of.shape[1])
            ]
        return torch.stack([_from_marks(seen, one, distance, away) for one in maps]).mean()
    return _from_marks(seen, attributions.attention(seen, layers=layers, heads=heads, read=read), distance, away)


@loss(
    needs=("attention",),
    pulls=lambda options: ("attention weights", 1 if options.get("sharper", True) else -1),
    paper="arXiv:2203.09192",
)
def entropy(
    seen: TrainingPass,
    *,
    sharper: bool = True,
    layers: list[Number] | None = None,
    heads: list[Number] | None = None,
    rows: Literal["deciding", "all"] = "all",
) -> Tensor:
    """The entropy of attention rows, as a share of the greatest: low where a head looks at few tokens.

    The mean over layers, heads and rows of -sum_k a_k log a_k / log n, n the tokens that a row sees. `sharper` makes it
    smaller; sharper=False makes it larger, as entropy-based attention regularisation does against over-fitting words.
    """
    values = []
    for record in read_blocks(seen, layers, "row") if rows == "deciding" else blocks(seen, layers):
        weights = weights_of(record, heads)
        seen_keys = (weights.detach() > 0).sum(-1)
        own = -(weights * weights.clamp(min=TINY).log()).sum(-1) / seen_keys.clamp(min=2).log()  # (batch, head, query)
        real = seen.batch.mask[:, seen.batch.span(record.query)]
        if rows == "deciding":
            real = real & seen.deciding[record.query]
        counted = (real[:, None] & (seen_keys > 1)).to(own.dtype)
        values.append((own * counted).sum() / counted.sum().clamp(min=1))
    mean = torch.stack(values).mean()
    return mean if sharper else -mean


@loss(needs=("attention", "values", "outputs"), paper="arXiv:1810.10183")
def disagreement(
    seen: TrainingPass,
    *,
    of: Heads = "outputs",
    layers: list[Number] | None = None,
) -> Tensor:
    """How alike the heads of a layer are, over all pairs of heads: 1/H^2 sum_ij cos(O_i, O_j), to be made small.

    "outputs" compares what heads give at every token, "subspaces" their values, and "positions" where they look:
    sum_k A_i A_j in place of the cosine. The mean over layers and tokens.
    """
    return head_likeness(seen, of, layers).mean()


def head_likeness(seen: TrainingPass, of: Heads = "outputs", layers: Sequence[int] | None = None) -> Tensor:
    """How alike the heads of a layer are, of every example: the mean over layers and tokens, (batch,)."""
    values = []
    chosen = blocks(seen, layers)
    if all(record.weights.shape[1] == 1 for record in chosen):
        raise ValueError("disagreement compares the heads of a layer, and this model has one head per layer")
    for record in chosen:
        stream = record.key if of == "subspaces" else record.query
        real = seen.batch.mask[:, seen.batch.span(stream)].to(seen.logits.dtype)  # (batch, token)
        if of == "positions":
            states = record.weights
        elif of == "subspaces":
            states = F.normalize(record.values, dim=-1)
        else:
            states = F.normalize(torch.cat([align(out) for out, align in record.outputs], 1), dim=-1)
        total = states.sum(1)  # the sum over i and j of s_i . s_j is the square of the sum over heads
        alike = total.square().sum(-1) / states.shape[1] ** 2  # (batch, token)
        values.append((alike * real).sum(1) / real.sum(1))
    return torch.stack(values).mean(0)


@loss(
    needs=("attention", "embeddings", "gradient", "marks"),
    family="gradients",
    pulls=_towards_marks,
    paper="arXiv:1703.03717",
)
def right_reasons(
    seen: TrainingPass,
    *,
    forbidden: Literal["unmarked", "marked"] = "unmarked",
    of: Literal["all", "label"] = "all",
) -> Tensor:
    """The square of the gradient by words that must not count: sum over them of |d/dx_i sum_k log p_k|^2.

    "Right for the right reasons": forbidden are the words that nobody marked or, with forbidden="marked", those that
    were, as shortcuts. The gradient, by the state that enters the blocks, is of the sum over classes of log p, as in
    the paper, or with of="label" of the label's alone.
    """
    chances = F.log_softmax(seen.logits, -1)
    value = chances.sum(-1) if of == "all" else attributions.label_logit(_with_logits(seen, chances))
    marks, marked = _marks(seen)
    wrong = words(seen) & (marks if forbidden == "marked" else ~marks)
    squares = attributions.squared_gradient(seen, value) * wrong
    return _mean(squares.sum(-1), marked)


@loss(
    needs=("attention", "embeddings", "gradient", "marks"),
    family="gradients",
    pulls=_towards_marks,
    paper="arXiv:1906.10670",
)
def attribution_prior(
    seen: TrainingPass,
    *,
    method: Attribution = "attention_x_gradient",
    distance: Distance = "mass",
    away: bool = False,
) -> Tensor:
    """An attribution of the label's logit on the words that people marked; distances are those of `rationale`.

    The sizes of the scores, divided by their sum over words, stand in place of attention.
    """
    scores = getattr(attributions, method)(seen, attributions.label_logit(seen))
    return _from_marks(seen, scores, distance, away)


@loss(needs=("base",), family="outputs", paper="arXiv:1908.04626")
def stay_close(seen: TrainingPass, *, distance: Literal["kl", "tvd"] = "kl") -> Tensor:
    """How far outputs are from those of the model before training: KL(before | now), or TVD, half of sum |p - q|."""
    if seen.base is None:
        raise ValueError("stay_close compares with the outputs before training; give them as base=, (batch, class)")
    before, now = F.softmax(seen.base, -1), F.log_softmax(seen.logits, -1)
    if distance == "tvd":
        return 0.5 * (before - now.exp()).abs().sum(-1).mean()
    return (before * (before.clamp(min=TINY).log() - now)).sum(-1).mean()


def _with_logits(seen: TrainingPass, logits: Tensor) -> TrainingPass:
    """A copy of the pass with other logits, which `label_logit` then reads."""
    return TrainingPass(seen.batch, logits=logits, labels=seen.labels)


def _marks(seen: TrainingPass) -> tuple[Tensor, Tensor]:
    """The marked features, (batch, feature) bool, and the examples that have a rationale, (batch,) bool."""
    if seen.marks is None:
        raise ValueError("this loss compares with the words that people marked; give them as marks=, (batch, feature)")
    marks = seen.marks.bool() & words(seen)
    return marks, marks.any(1) if seen.marked is None else seen.marked & marks.any(1)


def _from_marks(seen: TrainingPass, scores: Tensor, distance: Distance, away: bool) -> Tensor:
    """How far scores, as shares of their sum over words, are from the marked words."""
    marks, marked = _marks(seen)
    among = words(seen)
    share = shares(scores, among)
    if away:
        return _mean(-((share * (among & ~marks)).sum(-1)).clamp(min=TINY).log(), marked)
    if distance == "mass":
        return _mean(-((share * marks).sum(-1)).clamp(min=TINY).log(), marked)
    wanted = marks / marks.sum(-1, keepdim=True).clamp(min=1)
    crossed = -(wanted * share.clamp(min=TINY).log()).sum(-1)
    if distance == "kl":
        crossed = crossed - marks.sum(-1).clamp(min=1).log()
    return _mean(crossed, marked)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """The mean over the examples that count; 0 without any."""
    return (values * counted).sum() / counted.sum().clamp(min=1)
