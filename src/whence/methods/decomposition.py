"""Decompositions: every state is a sum of vectors, one per token, whose sizes tell how much each token contributed.

Attention weights and the deviations of norms are held at their true values, under which a layer is linear. Local
methods take single layers apart and are read at one layer, or rolled out over all (without an identity, because the
residual is inside); DecompX carries the parts through the whole model to the logit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from whence.core.registry import Explained, method
from whence.methods.attention import LayerNumbers, Read, finished, readers
from whence.methods.rollouts import collapse_notes, from_logs, rolled_out, with_halves
from whence.methods.sinks import Sinks, sink_tokens, square_without_sinks
from whence.model.batching import Batch
from whence.model.passes import Trace
from whence.model.subject import Subject
from whence.model.targets import Aim
from whence.propagation.layer_parts import Layers
from whence.propagation.source_parts import Sources, Split

AT_TOKENS = ("token-classification", "question-answering", "masked-lm")
TASKS = ("text-classification", "image-classification", "causal-lm", "image-text-lm", *AT_TOKENS, "module")
_MOST_BYTES = 2**28  # the most bytes of the parts of examples that are processed together

Reduce = Callable[[Tensor, Tensor], Tensor]  # parts (source and rest, batch, token, width), whole -> (batch, to, from)


@method(family="decomposition", signed=False, needs=("deciding",), paper="arXiv:2004.10102", tasks=TASKS)
def value_norms(subject: Subject, batch: Batch, target: Aim, *, layer: LayerNumbers = -1, read: Read = "row") -> Tensor:
    """The length of what attention moves: |sum_h A_ij f_h(x_j)|, with f the value and output projections.

    Heads are summed before the norm is taken; of several layers the mean. `read` is as in `attention`.
    """
    return _read(subject, batch, target, _maps(subject, batch, target, "attention", _lengths), layer, read)


@method(family="decomposition", signed=False, needs=("deciding",), paper="arXiv:2109.07152", tasks=TASKS)
def residual_norms(
    subject: Subject, batch: Batch, target: Aim, *, layer: LayerNumbers = -1, read: Read = "row"
) -> Explained:
    """The length of what a token adds to another through attention, the residual and the norm that follows them.

    z_ij = LN(sum_h A_ij f_h(x_j) + [i=j] x_i), the norm at its true deviation and without its bias. Where norms come
    first (pre-LN), the sum itself is measured. `layer` and `read` are as in `attention`. The mixing ratio of every
    layer and token, |sum_{j!=i} z_ij| / (that + |z_ii|), is in the details.
    """

    def both(parts: Tensor, whole: Tensor) -> Tensor:
        return torch.cat([_lengths(parts, whole), _mixing(parts)[..., None]], -1)

    maps = torch.stack(_maps(subject, batch, target, "residual", both), 1)  # (batch, layer, to, from and ratio)
    scores = _read(subject, batch, target, list(maps[..., :-1].unbind(1)), layer, read)
    ratios = [row[:, mask] for row, mask in zip(maps[..., -1], batch.mask, strict=True)]
    return Explained(scores, details={"mixing_ratio": ratios})


@method(family="decomposition", signed=False, needs=("deciding",), paper="arXiv:2205.03286", tasks=TASKS)
def globenc(subject: Subject, batch: Batch, target: Aim, *, read: Read = "row", sinks: Sinks = "keep") -> Explained:
    """GlobEnc: lengths of what tokens add to a layer's output (both norms, the feed-forward part left out), rolled out.

    The paper's values grow with every layer and only their order counts: here the scores are scaled to a sum of 1.
    `sinks` is as in `rollout`.
    """
    return _rolled(subject, batch, target, _maps(subject, batch, target, "block", _lengths), read, sinks)


@method(family="decomposition", signed=False, needs=("deciding",), paper="arXiv:2203.04212", tasks=TASKS)
def alti(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    distance: Literal["l1", "l2"] = "l1",
    read: Read = "row",
    sinks: Sinks = "keep",
) -> Explained:
    """ALTI: how much nearer a token's part brings the state, max(0, |y_i| - |y_i - z_ij|), rows to 1, rolled out.

    z is as in `residual_norms`, y the state itself with biases; distances are sums of absolute differences, or
    Euclidean. `sinks` is as in `rollout`.
    """

    def nearer(parts: Tensor, whole: Tensor) -> Tensor:
        order = 1 if distance == "l1" else 2
        distances = torch.stack([(whole - part).norm(order, dim=-1) for part in parts[:-1]], -1)
        gains = (whole.norm(order, dim=-1)[..., None] - distances).clamp(min=0)
        return gains / gains.sum(-1, keepdim=True).clamp(min=torch.finfo(gains.dtype).tiny)

    return _rolled(subject, batch, target, _maps(subject, batch, target, "residual", nearer), read, sinks)


@method(family="decomposition", complete=True, paper="arXiv:2306.02873", tasks=TASKS)
def decompx(subject: Subject, batch: Batch, target: Aim, *, bias: Split = "absdot") -> Tensor:
    """DecompX: vectors x_{i<-k} carried through every layer, biases included, to each token's share of the logit.

    Attention weights, norms' deviations, gates of gated layers and the weights that mix experts are held, activations
    go as act(u)/u.
    Biases are divided in proportion to |<x_{i<-k}, b>| ("absdot"), to |x_{i<-k}| ("norm") or equally; "none" leaves
    them out: they are then the residual.
    """
    _check_one_stream(subject, batch)
    if target.states:
        raise ValueError("decompx divides logits, and the target reads a state inside the model; use lrp or a gradient")
    if any(one.of_statement for one in target.targets):
        raise ValueError(
            "decompx divides logits, and a statement is log-probabilities of several; use lrp or a gradient"
        )
    scores = torch.zeros(batch.mask.shape, dtype=subject.accumulation, device=batch.mask.device)
    classes = subject.trace(batch, target).logits.shape[-1]  # the pass also fixes a target that was left open
    for rows in _groups(batch, subject, 4, classes):
        group, aim = batch.chosen(rows), target.chosen(rows)
        rules = Sources(subject.name, bias)
        with torch.no_grad():
            trace = subject.trace(group, aim, ("state:embeddings",), rules=rules)
        assert rules.logits is not None
        logits = trace.logits.to(scores.dtype).requires_grad_()
        with torch.enable_grad():
            value = aim(logits, group)
            slope = torch.autograd.grad(value.sum(), logits)[0]
        straight = (slope * logits.detach()).sum(-1) - value.detach()
        if bool((straight.abs() > 1e-3 * (slope * logits.detach()).abs().sum(-1)).any()):
            raise ValueError(
                "decompx divides logits; explain a logit, a margin or a contrast: this target is not linear in logits"
            )
        share = (rules.logits.to(scores.dtype) * slope).sum(-1)[:-1].T  # (batch, source)
        scores[rows] = share.masked_fill(~group.mask, 0.0)
    return scores


def _lengths(parts: Tensor, whole: Tensor) -> Tensor:
    """The length of every source's part: (batch, to, from)."""
    return torch.stack([part.norm(dim=-1) for part in parts[:-1]], -1)


def _mixing(parts: Tensor) -> Tensor:
    """The share of a token's state that comes from other tokens: (batch, token)."""
    own = parts[:-1].diagonal(dim1=0, dim2=2).transpose(1, 2)  # (batch, token, width)
    others = (parts[:-1].sum(0) - own).norm(dim=-1)
    return others / (others + own.norm(dim=-1)).clamp(min=torch.finfo(others.dtype).tiny)


def _maps(subject: Subject, batch: Batch, target: Aim, stage: str, reduce: Reduce) -> list[Tensor]:
    """The reduced parts of every layer, first to last; each with the batch as its first axis."""
    _check_one_stream(subject, batch)
    subject.values(batch, target)
    depth = subject.structure(batch).depth
    if not depth:
        raise ValueError(f"no layers were found in {subject.name}, so there are none to take apart; use decompx")
    tokens_first = any(site.tokens_first for site in subject.sites(batch, 0).values())
    by_group, groups = [], _groups(batch, subject, 3)
    for rows in groups:
        rules = Layers(subject.name, stage, reduce, tokens_first=tokens_first)
        group = batch.chosen(rows)
        with torch.no_grad():
            subject.trace(group, target.chosen(rows), [f"state:{n}" for n in range(depth)], rules=rules)
        by_group.append([group.spread(layer_map) for layer_map in rules.maps])
    if any(len(maps) != len(subject.structure(batch).connections) for maps in by_group):
        raise ValueError(
            f"the attention of {subject.name} could not be followed; use value_zeroing or a gradient method"
        )
    order = torch.tensor([row for rows in groups for row in rows]).argsort()
    return [pieces[0] if len(pieces) == 1 else torch.cat(pieces)[order] for pieces in zip(*by_group, strict=True)]


def _check_one_stream(subject: Subject, batch: Batch) -> None:
    if len(batch.streams) > 1:
        streams = " and ".join(batch.streams)
        raise ValueError(f"{subject.name} has the streams {streams}; decompositions take one: use value_zeroing or gae")
    if ("", "") in subject.structure(batch).connections:
        raise ValueError(
            f"{subject.name} attends within windows, not over the whole sequence; use a gradient or perturbation method"
        )


def _groups(batch: Batch, subject: Subject, copies: int, classes: int = 0) -> list[list[int]]:
    """Groups of rows of a batch: the parts of a group, and of its logits over some classes, fit in memory together.

    Rows that share a sequence share its parts.
    """
    tokens = batch.mask.shape[1]
    most = max(1, _MOST_BYTES // (copies * tokens * tokens * subject.width * 4))
    if batch.sequences is None:
        return [list(range(start, min(start + most, len(batch)))) for start in range(0, len(batch), most)]
    of = batch.sequences.of.tolist()
    rows = sorted(range(len(batch)), key=lambda row: of[row] // most)
    size = max(1, _MOST_BYTES // max(1, tokens * classes * 4))
    found: list[list[int]] = []
    for row in rows:
        if not found or len(found[-1]) == size or of[found[-1][0]] // most != of[row] // most:
            found.append([])
        found[-1].append(row)
    return found


def _read(subject: Subject, batch: Batch, target: Aim, maps: list[Tensor], layer: LayerNumbers, read: Read) -> Tensor:
    """The mean of some layers' maps, read at the deciding token."""
    layers = layer if isinstance(layer, list) else [layer]
    chosen = torch.stack([maps[_number(n, len(maps), subject)] for n in layers]).mean(0)
    return _folded(subject, batch, subject.trace(batch, target), chosen, read)


def _rolled(subject: Subject, batch: Batch, target: Aim, maps: list[Tensor], read: Read, sinks: Sinks) -> Explained:
    """The product of all layers' maps, later layers left, read at the deciding token and scaled to a sum of 1."""
    trace = subject.trace(batch, target)
    if sinks != "keep":
        tokens = sink_tokens(subject, batch)
        maps = [square_without_sinks(one, tokens, sinks) for one in maps]
    product = from_logs(rolled_out(with_halves(readers(subject, trace, batch, read), batch), reversed(maps)))
    scores = finished(product[:, 2:], batch, trace, read)
    scores = scores / scores.sum(1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    return Explained(scores, notes_by_example=collapse_notes(product[:, :2], scores, batch))


def _folded(subject: Subject, batch: Batch, trace: Trace, one: Tensor, read: Read) -> Tensor:
    """One map, read at the deciding token."""
    state = readers(subject, trace, batch, read)
    return finished(state @ one.to(state.dtype), batch, trace, read)


def _number(number: int, count: int, subject: Subject) -> int:
    """The number of a layer, checked: there are `count` layers."""
    if not -count <= number < count:
        raise ValueError(f"layer {number} is out of range: {subject.name} has {count} layers, from 0")
    return number
