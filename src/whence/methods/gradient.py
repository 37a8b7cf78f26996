"""Gradients of the target, and paths of gradients from a baseline."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import roots_legendre
from torch import Tensor

from whence.batching import Batch, ids_of
from whence.encoding import mask_ids
from whence.registry import Explained, method
from whence.rules import Softened
from whence.subject import Subject, Trace
from whence.targets import Aim

At = Literal["embeddings", "word", "pixels"] | int
Reduce = Literal["l2", "l1", "sum"]
Baseline = Literal["pad", "mask", "unknown", "zero"] | np.ndarray | Callable[[Tensor], Tensor]
Streams = dict[str, Tensor]  # stream -> (batch, token, width), or (batch, channel, height, width) of pixels

MAX_ROWS = 64  # points of a path in one pass
MAX_STEPS = 1024


@method(family="gradient", signed=False, needs=("gradient:{at}",), paper="arXiv:1312.6034")
def gradient(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    reduce: Reduce = "l2",
    at: At = "embeddings",
    softplus: float | None = None,
) -> Explained:
    """How fast the target changes with a feature: ||df/dx_i|| over the width of its embedding, or the plain sum.

    `softplus` is the sharpness b with which ReLUs become log(1 + exp(b x)) / b in what is differentiated.
    """
    trace = traced(subject, batch, target, at, softplus)
    return placed(subject, batch, {stream: reduced(wide(g), reduce) for stream, g in trace.gradients[at].items()})


@method(family="gradient", needs=("gradient:{at}",), paper="arXiv:1605.01713")
def gradient_x_input(
    subject: Subject, batch: Batch, target: Aim, *, at: At = "embeddings", softplus: float | None = None
) -> Explained:
    """The first-order share of a feature: sum over its width of x_i df/dx_i; `softplus` is as in `gradient`."""
    trace = traced(subject, batch, target, at, softplus)
    products = {s: wide(trace.states[at][s]) * wide(g) for s, g in trace.gradients[at].items()}
    return placed(subject, batch, {stream: p.sum(width_axis(p)) for stream, p in products.items()})


@method(family="gradient", complete=True, needs=("state:{at}",), paper="arXiv:1703.01365")
def integrated_gradients(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    steps: int | None = None,
    tolerance: float = 0.01,
    baseline: Baseline | list[Baseline] | None = None,
    rule: Literal["gausslegendre", "midpoint", "trapezoid", "left", "right"] = "gausslegendre",
    at: At = "word",
    softplus: float | None = None,
) -> Explained:
    """(x - x0) times the mean gradient along the straight path from the baseline x0 to the input x.

    Without `steps`, their number doubles until the scores sum to f(x) - f(x0) within `tolerance` of
    max(|f(x) - f(x0)|, 0.1). Special tokens are kept in the baseline, so they score 0. `baseline` is a token, "zero",
    an array that is put in place of every state, or a function of the states; by default the first of pad, unknown and
    mask that the tokenizer has, and zero (the mean colour) for pictures. A list of baselines gives the mean over them:
    expected gradients. `softplus` is as in `gradient`; with it 64 steps are taken unless `steps` says otherwise.
    """
    if isinstance(baseline, list):
        options: dict[str, Any] = {"steps": steps, "tolerance": tolerance, "rule": rule, "at": at, "softplus": softplus}
        return _expected([integrated_gradients(subject, batch, target, baseline=b, **options) for b in baseline])
    if steps is not None and steps < (2 if rule == "trapezoid" else 1):
        raise ValueError(f"integrated_gradients: steps must be a positive number (2 for the trapezoid), not {steps}")
    x = subject.trace(batch, target, (f"state:{at}",)).states[at]
    x0 = baseline_states(subject, batch, at, x, baseline)
    base = subject.values_at(batch, target, at, x0)
    gap = subject.values(batch, target) - base
    scores = torch.zeros(batch.mask.shape, dtype=precision(subject), device=gap.device)
    details: dict[str, Tensor] = {}  # the map of pixels, where there is one
    used = torch.zeros(len(batch), dtype=torch.long)
    adaptive = steps is None and softplus is None  # a softened gradient adds up to another function's values
    active, count = list(range(len(batch))), steps or (8 if adaptive else 64)
    while active:
        part = batch.chosen(active)
        start, end = ({s: t[active] for s, t in ends.items()} for ends in (x0, x))
        points = nodes_of(rule, count)
        products = along(subject, part, target.chosen(active), at, start, end, *points, softplus=softplus)
        found = placed(subject, part, {stream: p.sum(width_axis(p)) for stream, p in products.items()})
        scores[active] = found.scores.to(scores.dtype)
        for name, values in found.details.items():
            details.setdefault(name, values.new_zeros(len(batch), *values.shape[1:]))[active] = values
        used[active] = count
        error = (scores.sum(1) - gap).abs() / gap.abs().clamp(min=0.1)
        active = [row for row in active if adaptive and error[row] > tolerance]
        if count >= MAX_STEPS:
            break
        count *= 2
    details |= {"steps": used, "completeness_error": error}
    notes = (f"the completeness error is still above {tolerance} after {MAX_STEPS} steps",) if active else ()
    return Explained(scores, base=base, details=details, notes=notes)


def _expected(found: list[Explained]) -> Explained:
    """The mean over several baselines."""
    if not found:
        raise ValueError("integrated_gradients: a list of baselines has at least one")
    details = {name: torch.stack([f.details[name].to(f.scores) for f in found]).mean(0) for name in found[0].details}
    notes = tuple(dict.fromkeys(note for f in found for note in f.notes))
    scores, base = (torch.stack([getattr(f, part) for f in found]).mean(0) for part in ("scores", "base"))
    return Explained(scores, base=base, details=details, notes=notes)


def traced(subject: Subject, batch: Batch, target: Aim, at: At, softplus: float | None) -> Trace:
    """The trace with states and gradients at a site."""
    rules = None if softplus is None else Softened(subject.model, softplus)
    return subject.trace(batch, target, (f"gradient:{at}",), rules=rules)


def reduced(g: Tensor, how: Reduce) -> Tensor:
    """Over the width of the embedding, or the colours."""
    if how == "sum":
        return g.sum(width_axis(g))
    return g.abs().sum(width_axis(g)) if how == "l1" else g.square().sum(width_axis(g)).sqrt()


def along(
    subject: Subject,
    batch: Batch,
    target: Aim,
    at: At,
    x0: Streams,
    x: Streams,
    nodes: np.ndarray,
    weights: np.ndarray,
    *,
    softplus: float | None = None,
) -> Streams:
    """(x - x0) times the weighted sum of the gradients at the nodes of the path."""
    total: Streams = {}
    size = max(1, MAX_ROWS // len(batch))
    for start in range(0, len(nodes), size):
        alphas = torch.tensor(nodes[start : start + size], dtype=precision(subject))
        shares = torch.tensor(weights[start : start + size], dtype=precision(subject))
        rows = [row for row in range(len(batch)) for _ in alphas]
        points = {}
        for stream in x:
            a = alphas.to(x[stream].device).reshape(1, -1, *[1] * (x[stream].ndim - 1))
            points[stream] = torch.lerp(wide(x0[stream])[:, None], wide(x[stream])[:, None], a).flatten(0, 1)
        rules = None if softplus is None else Softened(subject.model, softplus)
        _, gradients = subject.gradient(batch.chosen(rows), target.chosen(rows), at, points, rules)
        for stream, g in gradients.items():
            share = shares.to(g.device).reshape(1, -1, *[1] * (g.ndim - 1))
            step = (wide(g).unflatten(0, (len(batch), -1)) * share).sum(1)
            total[stream] = total[stream] + step if stream in total else step
    return {stream: (wide(x[stream]) - wide(x0[stream])) * total[stream] for stream in x}


@functools.cache
def nodes_of(rule: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes in [0, 1] and their weights, which sum to 1."""
    if rule == "gausslegendre":
        nodes, weights = roots_legendre(count)
        return (nodes + 1) / 2, weights / 2
    if rule == "trapezoid":
        nodes = np.linspace(0, 1, count)
        weights = np.full(count, 1 / (count - 1))
        weights[[0, -1]] /= 2
        return nodes, weights
    offset = {"left": 0.0, "midpoint": 0.5, "right": 1.0}[rule]
    return (np.arange(count) + offset) / count, np.full(count, 1 / count)


def baseline_states(subject: Subject, batch: Batch, at: At, x: Streams, wanted: object) -> Streams:
    """The states of the baseline: special tokens and padding as in the input."""
    x0 = {}
    for stream, state in x.items():
        if callable(wanted) or isinstance(wanted, np.ndarray):
            new = _given(wanted(state.clone()) if callable(wanted) else wanted, state)
        elif wanted == "zero" or (state.ndim == 4 and wanted is None):
            new = torch.zeros_like(state)
        elif state.ndim == 4 and len(x) == 1:
            raise ValueError(f"pixels have no {wanted} token; use the baseline 'zero', an array or a function")
        elif state.ndim == 4:  # a picture beside a text, for which the token is meant
            new = torch.zeros_like(state)
        else:
            new = _token_states(subject, batch, at, stream, state, None if wanted is None else str(wanted))
        try:
            new = new.expand_as(state)
        except RuntimeError as error:
            shapes = f"{tuple(new.shape)}, which does not fit states {tuple(state.shape)}"
            raise ValueError(f"the baseline has shape {shapes}; the axes are batch, token, width") from error
        if state.ndim == 3:
            new = torch.where(batch.special[:, batch.span(stream)].to(state.device)[..., None], state, new)
        x0[stream] = new
    return x0


def _given(values: object, state: Tensor) -> Tensor:
    """A user's baseline as a tensor like the states."""
    try:
        return torch.as_tensor(values, dtype=state.dtype, device=state.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"a baseline is an array of numbers, not {type(values).__name__}") from error


def _token_states(subject: Subject, batch: Batch, at: At, stream: str, state: Tensor, name: str | None) -> Tensor:
    """The states of a sequence of baseline tokens: their word embeddings, carried on to `at`."""
    known = mask_ids(subject.processor) if subject.processor is not None else {}
    names = [name] if name else ["pad", "unknown", "mask"]
    token = next((known[n] for n in names if known.get(n) is not None), None)
    if token is None and name:
        raise ValueError(f"the tokenizer of {subject.name} has no {name} token; choose another baseline, as 'zero'")
    words = subject.sites(batch, "word")
    streams = [stream] if stream != "*" else [s for s, site in words.items() if site.where == "output"]
    if token is None or any(words[s].where != "output" for s in streams):
        return torch.zeros_like(state)
    ids = {}
    for s in streams:
        key = ids_of(batch.tensors, tuple(batch.streams), s)
        special = batch.special[:, batch.span(s)]
        ids[s] = batch.tensors[str(key)].masked_fill(~special, token)
    embedded = subject.embedded(batch, ids)
    if at == "word":
        return embedded[stream]
    return subject.carried(batch, embedded, at)[stream]


def placed(subject: Subject, batch: Batch, by_stream: Streams) -> Explained:
    """Scores by stream to features; a map of pixels is kept as well."""
    pixels = next((values for values in by_stream.values() if values.ndim == 3), None)
    return Explained(subject.on_features(batch, by_stream), details={} if pixels is None else {"pixels": pixels})


def wide(tensor: Tensor) -> Tensor:
    """At least float32, so that sums over half-precision products keep their digits."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def precision(subject: Subject) -> torch.dtype:
    return torch.float64 if subject.dtype == torch.float64 else torch.float32


def width_axis(tensor: Tensor) -> int:
    """The axis of the embedding, or of the colours."""
    return 1 if tensor.ndim == 4 else -1
