"""Gradients along other paths than the straight one, and in a cloud around the input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from whence.core.registry import Explained, method
from whence.core.specs import Between
from whence.methods.gradient import (
    At,
    Baseline,
    Reduce,
    Straight,
    Streams,
    along,
    baseline_states,
    nodes_of,
    placed,
    reduced,
    refined,
    unfinished_notes,
    width_axis,
)
from whence.model.batching import Batch
from whence.model.precision import wide
from whence.model.subject import Subject
from whence.model.targets import Aim

Path = Callable[[Tensor, Tensor, float], Tensor]  # (x0, x, share from 0 to 1) -> states


@method(family="gradient", needs=("state:{at}",), paper="arXiv:1706.03825")
def smoothgrad(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    of: Literal["gradient", "gradient_x_input", "integrated_gradients"] = "gradient_x_input",
    form: Literal["mean", "square", "variance"] = "mean",
    samples: Annotated[int, Between(1, 10_000)] = 16,
    noise: Annotated[float, Between(0, 100)] = 0.1,
    reduce: Reduce | None = None,
    at: At = "embeddings",
) -> Explained:
    """SmoothGrad: the mean of a gradient method over x + e, e normal, its deviation `noise` times the range of x.

    `form` takes the mean, the mean of squares (SmoothGrad^2) or the variance (VarGrad) of every entry; entries of a
    feature are then reduced, the gradient by its L2 norm and the others by their sum unless `reduce` says otherwise.
    Integrated gradients take 16 steps from the default baseline. Only means of sums of the latter two have a sign.
    """
    x = subject.trace(batch, target).states[at]
    draws = (_noisy(x, batch, generators, noise) for generators in _generators(batch, samples))  # one at a time
    total: Streams = {}
    squares: Streams = {}
    for point in draws:
        for stream, entries in _entries(subject, batch, target, of, at, point).items():
            total[stream] = total[stream] + entries if stream in total else entries
            squares[stream] = squares[stream] + entries.square() if stream in squares else entries.square()
    by_stream = {}
    for stream in total:
        mean, square = total[stream] / samples, squares[stream] / samples
        entries = {"mean": mean, "square": square, "variance": (square - mean.square()).clamp(min=0)}[form]
        by_stream[stream] = reduced(entries, reduce or ("l2" if of == "gradient" else "sum"))
    signed = form == "mean" and of != "gradient" and reduce in (None, "sum")
    return replace(placed(subject, batch, by_stream), signed=signed)


@method(family="gradient", needs=("state:{at}",), paper="arXiv:1703.01365")
def path_gradients(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    path: Literal["straight", "words"] | Path = "straight",
    points: Annotated[int, Between(1, 1_000)] = 8,
    steps: Annotated[int, Between(1, 1_000)] | None = None,
    tolerance: Annotated[float, Between(0, 100)] = 0.01,
    baseline: Baseline | None = None,
    at: At = "word",
) -> Explained:
    """The integral of df/dx along a path from the baseline x0 to the input x; the straight path is that of IG.

    A path is a function of x0, x and a share from 0 to 1 that returns states; it is followed through `points` + 1
    places and on straight lines from one to the next, so that on any path the scores sum to f(x) - f(x0). As many
    gradients are taken as it needs for that, to within `tolerance` of max(|f(x) - f(x0)|, 0.1); with `steps`, that many
    on every line. A note says where the scores still miss more. "words" goes through real words: at every place the
    word embedding nearest to the straight line.
    """
    x = subject.trace(batch, target).states[at]
    x0 = baseline_states(subject, batch, at, x, baseline)
    base = subject.values_at(batch, target, at, x0)
    places = [x0, *(_between(subject, batch, path, at, x0, x, n / points) for n in range(1, points)), x]
    if callable(path):
        _check_ends(path, x0, x)
    if steps is None:
        return _followed(subject, batch, target, at, places, base, tolerance)
    total: Streams = {}
    for start, end in pairwise(places):
        for stream, part in along(subject, batch, target, at, start, end, *nodes_of("gausslegendre", steps)).items():
            total[stream] = total[stream] + part if stream in total else part
    found = placed(subject, batch, {stream: part.sum(width_axis(part)) for stream, part in total.items()})
    error = _error(subject, batch, target, found.scores, base)
    note = f"the scores miss {float(error.max()):.0%} of f(x) - f(x0): take more steps, or leave steps open"
    notes = (note,) if bool((error > tolerance).any()) else ()
    return Explained(found.scores, base=base, details=found.details | {"completeness_error": error}, notes=notes)


def _followed(
    subject: Subject, batch: Batch, target: Aim, at: At, places: list[Streams], base: Tensor, tolerance: float
) -> Explained:
    """The lines between places, each halved until its scores sum to its change of f."""
    gap = (subject.values(batch, target).to(base) - base).abs().double().cpu().numpy()
    wanted = tolerance * np.maximum(gap, 0.1) / (len(places) - 1)
    lines: list[Explained] = []
    missing, rounding, used = np.zeros(len(batch)), np.zeros(len(batch)), np.zeros(len(batch), int)
    for start, end in pairwise(places):
        line = Straight(subject, batch, target, at, start, end, None)
        found = refined(line, tolerance, 2, wanted)
        lines.append(line.explained(found.weights, torch.from_numpy(found.start)))
        missing, rounding = missing + found.missing, np.maximum(rounding, found.rounding)
        used += np.bincount(line.rows, minlength=len(batch))
    scores = torch.stack([line.scores for line in lines]).sum(0)
    details: dict[str, Tensor] = {"steps": torch.from_numpy(used)}
    details["completeness_error"] = _error(subject, batch, target, scores, base)
    if "pixels" in lines[0].details:
        details["pixels"] = torch.stack([line.details["pixels"] for line in lines]).sum(0)
    count = len(places) - 1
    unfinished = unfinished_notes(line, missing, wanted * count, rounding * count, tolerance)
    return Explained(scores, base=base, details=details, notes=(*lines[0].notes, *unfinished))


def _error(subject: Subject, batch: Batch, target: Aim, scores: Tensor, base: Tensor) -> Tensor:
    """How much of f(x) - f(x0) the scores miss, as a share of max(|f(x) - f(x0)|, 0.1): (batch,)."""
    base = base.to(scores)
    gap = subject.values(batch, target).to(base) - base
    return (scores.sum(1) - gap).abs() / gap.abs().clamp(min=0.1)


def _generators(batch: Batch, samples: int) -> list[list[np.random.Generator]]:
    """For every sample one generator per example, so that an example's noise does not depend on its batch."""
    return [list(row) for row in zip(*(g.spawn(samples) for g in batch.generators()), strict=True)]


def _noisy(x: Streams, batch: Batch, generators: list[np.random.Generator], share: float) -> Streams:
    """The states with noise on real tokens; padding stays as it is."""
    noisy = {}
    for stream, state in x.items():
        span = batch.span(stream) if stream != "*" else slice(None)
        real = batch.mask[:, span] if state.ndim == 3 else torch.ones(len(state), 1, dtype=torch.bool)
        new = state.clone()
        for row, (row_state, generator) in enumerate(zip(state, generators, strict=True)):
            chosen = row_state[real[row].to(row_state.device)] if state.ndim == 3 else row_state
            drawn = torch.from_numpy(generator.standard_normal(chosen.shape)).to(chosen)
            shifted = chosen + share * (chosen.max() - chosen.min()) * drawn
            if state.ndim == 3:
                new[row, real[row].to(row_state.device)] = shifted
            else:
                new[row] = shifted
        noisy[stream] = new
    return noisy


def _entries(subject: Subject, batch: Batch, target: Aim, of: str, at: At, x: Streams) -> Streams:
    """The result of a gradient method at a point, entry by entry of the states."""
    if of == "integrated_gradients":
        x0 = baseline_states(subject, batch, at, x, None)
        return along(subject, batch, target, at, x0, x, *nodes_of("gausslegendre", 16))
    gradients = subject.gradient(batch, target, at, x)[1]
    return {s: wide(g) if of == "gradient" else wide(g) * wide(x[s]) for s, g in gradients.items()}


def _between(
    subject: Subject, batch: Batch, path: str | Path, at: At, x0: Streams, x: Streams, share: float
) -> Streams:
    """The states at a share of the way along the path."""
    if callable(path):
        return {s: _user_point(path, x0[s], x[s], share) for s in x}
    straight = {s: torch.lerp(wide(x0[s]), wide(x[s]), share).to(x[s].dtype) for s in x}
    if path == "straight":
        return straight
    if at != "word":
        raise ValueError(f"path='words' goes through word embeddings, so at must be 'word', not {at!r}")
    return {s: _nearest(subject, batch, s, point, x[s]) for s, point in straight.items()}


def _user_point(path: Path, x0: Tensor, x: Tensor, share: float) -> Tensor:
    """A point of a user's path, as a tensor of the states' type and shape."""
    point = path(x0.clone(), x.clone(), share)
    try:
        return torch.as_tensor(point).to(x).expand_as(x)
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"shape {tuple(point.shape)}" if hasattr(point, "shape") else type(point).__name__
        raise ValueError(f"a path returns states like those it is given, shape {tuple(x.shape)}, not {got}") from error


def _nearest(subject: Subject, batch: Batch, stream: str, point: Tensor, x: Tensor) -> Tensor:
    """Every token's nearest word embedding; special tokens and padding stay."""
    words = subject.vocabulary(batch, stream)
    if words is None or words.shape[1] != point.shape[-1]:
        raise ValueError(
            f"path='words' needs a table of word embeddings, and the stream {stream} has none; use 'straight'"
        )
    table = wide(words)
    near = [torch.cdist(wide(row), table).min(-1) for row in point]  # one row at a time: the table may be long
    least, nearest = (torch.stack(parts) for parts in zip(*near, strict=True))
    # half way, both ends are often equally near; the input's own word is taken, so that rounding does not decide
    is_input_word = (wide(point) - wide(x)).norm(dim=-1) <= least * (1 + 1e-4)
    stays = is_input_word | batch.special[:, batch.span(stream)].to(x.device)
    return torch.where(stays[..., None], x, table[nearest].to(x.dtype))


def _check_ends(path: Path, x0: Streams, x: Streams) -> None:
    for stream in x:
        for share, end in ((0.0, x0[stream]), (1.0, x[stream])):
            point = _user_point(path, x0[stream], x[stream], share)
            if not torch.allclose(point, end, rtol=1e-3, atol=1e-4):
                raise ValueError(
                    f"a path leads from the baseline (0) to the input (1), but at {share:g} it is elsewhere"
                )
