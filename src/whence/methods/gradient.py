"""Gradients of the target, and paths of gradients from a baseline."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from scipy.special import roots_legendre
from torch import Tensor

from whence.core.inputs import has_inline_picture
from whence.core.registry import Explained, method
from whence.core.specs import Between, Number
from whence.model.batching import Batch, enough_tokens, ids_of, like_lengths
from whence.model.passes import Trace
from whence.model.precision import wide
from whence.model.subject import Subject
from whence.model.targets import Aim
from whence.propagation.backward_rules import Softened

At = Literal["embeddings", "word", "pixels"] | Number
Sharpness = Annotated[float, Between(0, 10**9, without_least=True)]
Reduce = Literal["l2", "l1", "sum"]
Baseline = Literal["pad", "mask", "unknown", "zero"] | np.ndarray | Callable[[Tensor], Tensor]
Streams = dict[str, Tensor]  # stream -> (batch, token, width), or (batch, channel, height, width) of pixels

MAX_ROWS = 64  # points of paths that go through the model in one pass
MAX_TOKENS = 4096  # of all points in one pass, so that long inputs do not need the memory of many
ROUNDED = 4  # units in the last place of f that are taken for rounding
MAX_STEPS = 1024
FIRST_PIECES = 6  # into which integrated gradients cut their path at first
CLEAR = 4  # times the wanted error, from which on a piece is halved in any case; else only the one that misses most
SHORTEST = 1 / 8192  # pieces of the path that are shorter are not halved: the target jumps there


@method(family="gradient", signed=False, needs=("gradient:{at}",), paper="arXiv:1312.6034")
def gradient(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    reduce: Reduce = "l2",
    at: At = "embeddings",
    softplus: Sharpness | None = None,
) -> Explained:
    """How fast the target changes with a feature: ||df/dx_i|| over the width of its embedding, or the plain sum.

    With `softplus`, a sharpness b, ReLUs are differentiated as log(1 + exp(b x)) / b.
    """
    trace = traced(subject, batch, target, at, softplus)
    return placed(subject, batch, {stream: reduced(wide(g), reduce) for stream, g in trace.gradients[at].items()})


@method(family="gradient", needs=("gradient:{at}",), paper="arXiv:1605.01713")
def gradient_x_input(
    subject: Subject, batch: Batch, target: Aim, *, at: At = "embeddings", softplus: Sharpness | None = None
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
    steps: Annotated[int, Between(1, 10_000)] | None = None,
    tolerance: Annotated[float, Between(0, 100)] = 0.01,
    baseline: Baseline | list[Baseline] | None = None,
    rule: Literal["gausslegendre", "midpoint", "trapezoid", "left", "right"] | None = None,
    at: At = "word",
    softplus: Sharpness | None = None,
) -> Explained:
    """(x - x0) times the mean gradient along the straight path from the baseline x0 to the input x.

    Between the points where gradients are taken, the cubic spline through them is integrated. A piece between two
    points is halved where its scores do not sum to its change of f, until all scores sum to f(x) - f(x0) within
    `tolerance` of max(|f(x) - f(x0)|, 0.1). With `steps`, that many gradients are taken instead, at
    places set by `rule` (gausslegendre unless named; 64 steps where only a rule is given). Special tokens are kept in
    the baseline, so they score 0. `baseline` is a token, "zero", an array that is put in place of every state, or a
    function of the states; by default the first of pad, unknown and mask that the tokenizer has, and zero (the mean
    colour) for pictures. A list of baselines gives the mean over them: expected gradients. `softplus` is as in
    `gradient`; with it `steps` are taken, too.
    """
    if isinstance(baseline, list):
        options: dict[str, Any] = {"steps": steps, "tolerance": tolerance, "rule": rule, "at": at, "softplus": softplus}
        return _expected([integrated_gradients(subject, batch, target, baseline=b, **options) for b in baseline])
    if steps == 1 and rule == "trapezoid":
        raise ValueError("integrated_gradients: rule='trapezoid' takes 2 steps or more, not 1")
    halved = steps is None and rule is None and softplus is None  # softened gradients do not add up to f
    fits = batch.trace is None and len(batch) <= rows_at_once(batch.mask.shape[1])
    trace = subject.trace(batch, target, (f"gradient:{at}",) if halved and fits else ())
    x = trace.states[at]
    path = Straight(subject, batch, target, at, baseline_states(subject, batch, at, x, baseline), x, softplus)
    if halved:
        if at in trace.gradients:  # the gradient where the path ends
            path.keep(np.arange(len(batch)), np.ones(len(batch)), trace.value, trace.gradients[at])
        return _halved(path, tolerance)
    places, weights = nodes_of(rule or "gausslegendre", steps or 64)
    rows = np.repeat(np.arange(len(batch)), len(places))
    points = path.walk(rows, np.tile(places, len(batch)))
    return path.explained(np.tile(weights, len(batch))[points.argsort()], subject.values_at(batch, target, at, path.x0))


def _halved(path: Straight, tolerance: float) -> Explained:
    """The path's gradients at as many points as a spline needs to be exact enough; none is taken twice."""
    found = refined(path, tolerance)
    explained = path.explained(found.weights, torch.from_numpy(found.start))
    wanted = tolerance * np.maximum(np.abs(found.end - found.start), 0.1)
    unfinished = unfinished_notes(path, found.missing, wanted, found.rounding, tolerance)
    return replace(explained, notes=(*explained.notes, *unfinished))


@dataclass(frozen=True)
class Refined:
    """What refining a path found, for every example; the path holds the points."""

    weights: np.ndarray  # (point,)
    start: np.ndarray  # (batch,): f where the path starts
    end: np.ndarray
    missing: np.ndarray  # the sum of all shares less the change of f
    rounding: np.ndarray  # what half precision may add to f by rounding


def refined(
    path: Straight, tolerance: float, pieces_each: int = FIRST_PIECES, wanted: np.ndarray | None = None
) -> Refined:
    """The cubic spline through the shares at some points; pieces are halved until its integral is the change of f.

    It may miss `wanted` of that change; without, `tolerance` of max(|change of f|, 0.1).
    """
    count, points_each = len(path.batch), pieces_each + 1
    first = path.walk(np.repeat(np.arange(count), points_each), np.tile(np.linspace(0, 1, points_each), count))
    start, end = path.f[first.reshape(count, -1)[:, [0, -1]]].T
    # Half precision rounds f itself: halving on would follow the rounding, not the path.
    rounding = ROUNDED * torch.finfo(path.subject.dtype).eps * np.maximum(np.abs(start), np.abs(end))
    limit = np.maximum(tolerance * np.maximum(np.abs(end - start), 0.1) if wanted is None else wanted, rounding)
    total, weights = np.zeros(count), np.zeros(0)
    unfinished = list(range(count))
    while unfinished:
        weights = np.append(weights, np.zeros(len(path.places) - len(weights)))
        halves = []
        for row in unfinished:
            points = path.points_of(row)
            shares = spline_shares(path.places[points])
            weights[points] = shares.sum(0)
            missing = shares @ path.slopes[points] - np.diff(path.f[points])
            total[row] = missing.sum()
            if np.abs(total[row]) > limit[row] and len(points) < MAX_STEPS:
                halves += [(row, place) for place in _halves(path.places[points], np.abs(missing), limit[row])]
        unfinished = list(dict.fromkeys(row for row, _ in halves))
        path.walk(np.array([row for row, _ in halves], int), np.array([place for _, place in halves]))
    return Refined(weights, start, end, total, rounding)


def _halves(places: np.ndarray, missing: np.ndarray, limit: float) -> np.ndarray:
    """The middles of the pieces between these places that miss clearly more than the limit, or most."""
    clear = min(CLEAR * limit, missing.max())  # smaller errors often cancel out once these are gone
    return ((places[:-1] + places[1:]) / 2)[(missing >= clear) & (np.diff(places) > SHORTEST)]


def spline_shares(places: np.ndarray) -> np.ndarray:
    """What the value at a place weighs in the integral of the cubic spline over a piece: (piece, place)."""
    spline = CubicSpline(places, np.eye(len(places)))
    return np.diff(spline.antiderivative()(places), axis=0)


def unfinished_notes(
    path: Straight, missing: np.ndarray, wanted: np.ndarray, rounding: np.ndarray, tolerance: float
) -> tuple[str, ...]:
    """Why scores still miss more of the change of f than was wanted, as a note; nothing where they do not."""
    if (np.abs(missing) <= wanted).all():
        return ()
    if (np.abs(missing) <= np.maximum(wanted, rounding)).all():
        why = f"the model computes in {str(path.subject.dtype).removeprefix('torch.')}"
    else:
        why = f"the target jumps along the path, or bends more than {MAX_STEPS} steps can follow"
    return (f"the completeness error is still above {tolerance}: {why}",)


class Straight:
    """The straight path from x0 to x of every example, with all points visited so far.

    Of each point the example (`rows`), the place on the path (0 to 1), f, the slope of f along the path, and each
    feature's share of the slope are kept.
    """

    def __init__(
        self, subject: Subject, batch: Batch, target: Aim, at: At, x0: Streams, x: Streams, softplus: float | None
    ) -> None:
        self.subject, self.batch, self.target, self.at = subject, batch, target, at
        self.x0, self.x, self.softplus = x0, x, softplus
        self.rows, self.places = np.zeros(0, int), np.zeros(0)
        self.f, self.slopes = np.zeros(0), np.zeros(0)
        self.shares: dict[str, list[Tensor]] = {stream: [] for stream in x}
        self._numbers: dict[tuple[int, float], int] = {}  # of a point, by example and place

    def walk(self, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Visit these places (0 to 1) on the paths of these examples, unless known; the points' numbers come back."""
        points = list(zip(rows.tolist(), places.tolist(), strict=True))
        new = [number for number, point in enumerate(points) if point not in self._numbers]
        rows, places = rows[new], places[new]
        for chosen in self._passes(rows, places):
            self._visit(rows[chosen], places[chosen])
        return np.array([self._numbers[point] for point in points])

    def points_of(self, row: int) -> np.ndarray:
        """The numbers of an example's points, in the order of their places."""
        points = np.flatnonzero(self.rows == row)
        return points[self.places[points].argsort()]

    def _passes(self, rows: np.ndarray, places: np.ndarray) -> Iterable[np.ndarray]:
        """The numbers of the points that go through the model together."""
        if self.batch.sequences is not None:  # beginnings of one sequence share the passes at equal places
            size, order = rows_at_once(self.batch.mask.shape[1]), places.argsort(kind="stable")
            return [order[first : first + size] for first in range(0, len(order), size)]
        lengths = np.stack([mask.sum(1).cpu().numpy() for mask in self.batch.streams.values()], 1)
        return like_lengths(lengths[rows], rows_at_once, enough_tokens(self.subject.device) // 8)

    def _visit(self, rows: np.ndarray, places: np.ndarray) -> None:
        """Take f and its gradient at these points, without positions at which all these examples are padded."""
        chosen = rows.tolist()
        alphas = torch.tensor(places, dtype=self.subject.accumulation)
        part = self.batch.chosen(chosen)
        points = {}
        for stream, x in self.x.items():
            a = alphas.to(x.device).reshape(-1, *[1] * (x.ndim - 1))
            point = torch.lerp(wide(self.x0[stream])[chosen], wide(x)[chosen], a)
            points[stream] = point[:, part.filled(stream)] if x.ndim == 3 else point
        rules = None if self.softplus is None else Softened(self.softplus)
        f, gradients = self.subject.gradient(part.trimmed(), self.target.chosen(chosen), self.at, points, rules)
        whole = {}
        for stream, g in gradients.items():
            whole[stream] = g.new_zeros(len(g), *self.x[stream].shape[1:])
            whole[stream][:, part.filled(stream) if g.ndim == 3 else slice(None)] = g
        self.keep(rows, places, f, whole)

    def keep(self, rows: np.ndarray, places: np.ndarray, f: Tensor, gradients: Streams) -> None:
        """Keep what is known of these points."""
        slopes = np.zeros(len(rows))
        for stream, g in gradients.items():
            moved = (wide(self.x[stream]) - wide(self.x0[stream]))[rows.tolist()] * wide(g)
            share = moved.sum(width_axis(moved))
            self.shares[stream].append(share)
            slopes += share.flatten(1).double().sum(1).cpu().numpy()
        for number, point in enumerate(zip(rows.tolist(), places.tolist(), strict=True), len(self.rows)):
            self._numbers[point] = number
        self.f, self.slopes = np.append(self.f, f.double().cpu().numpy()), np.append(self.slopes, slopes)
        self.rows, self.places = np.append(self.rows, rows), np.append(self.places, places)

    def explained(self, weights: np.ndarray, base: Tensor) -> Explained:
        """The scores: each example's sum of shares, weighted by point."""
        summed = {}
        for stream, shares in self.shares.items():
            share = torch.cat(shares)
            weight = torch.from_numpy(weights).to(share).reshape(-1, *[1] * (share.ndim - 1))
            rows = torch.from_numpy(self.rows).to(share.device)
            summed[stream] = share.new_zeros(len(self.batch), *share.shape[1:]).index_add(0, rows, share * weight)
        found = placed(self.subject, self.batch, summed)
        base = base.to(found.scores)
        gap = self.subject.values(self.batch, self.target).to(base) - base
        error = (found.scores.sum(1) - gap).abs() / gap.abs().clamp(min=0.1)
        used = torch.from_numpy(np.bincount(self.rows, minlength=len(self.batch)))
        details = found.details | {"steps": used, "completeness_error": error}
        return replace(found, base=base, details=details, notes=self._still_notes())

    def _still_notes(self) -> tuple[str, ...]:
        """A note where the path leaves a picture as it is, because its patches do not enter as words do."""
        if self.at != "word" or not any(map(has_inline_picture, self.batch.inputs)):
            return ()
        return (
            "the picture is the same in the baseline, so its patches score 0; at='embeddings' with baseline='zero' "
            "changes them, too",
        )


def rows_at_once(tokens: int) -> int:
    """How many points of paths of examples with so many tokens go through the model in one pass."""
    return max(1, min(MAX_ROWS, MAX_TOKENS // tokens))


def _expected(results: list[Explained]) -> Explained:
    """The mean over several baselines."""
    details = {
        name: torch.stack([r.details[name].to(r.scores) for r in results]).mean(0) for name in results[0].details
    }
    notes = tuple(dict.fromkeys(note for r in results for note in r.notes))
    scores, base = (torch.stack([getattr(r, part) for r in results]).mean(0) for part in ("scores", "base"))
    return Explained(scores, base=base, details=details, notes=notes)


def traced(subject: Subject, batch: Batch, target: Aim, at: At, softplus: float | None) -> Trace:
    """A trace with the states at a place and the gradients there."""
    rules = None if softplus is None else Softened(softplus)
    return subject.trace(batch, target, (f"gradient:{at}",), rules=rules)


def reduced(g: Tensor, how: Reduce) -> Tensor:
    """Gradients reduced over the width of the embedding, or over the colours."""
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
) -> Streams:
    """(x - x0) times the weighted sum of the gradients at the nodes of the path."""
    total: Streams = {}
    size = max(1, rows_at_once(batch.mask.shape[1]) // len(batch))
    for start in range(0, len(nodes), size):
        alphas = torch.tensor(nodes[start : start + size], dtype=subject.accumulation)
        shares = torch.tensor(weights[start : start + size], dtype=subject.accumulation)
        rows = [row for row in range(len(batch)) for _ in alphas]
        points = {}
        for stream in x:
            a = alphas.to(x[stream].device).reshape(1, -1, *[1] * (x[stream].ndim - 1))
            points[stream] = torch.lerp(wide(x0[stream])[:, None], wide(x[stream])[:, None], a).flatten(0, 1)
        _, gradients = subject.gradient(batch.chosen(rows), target.chosen(rows), at, points)
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
            new = _as_states(wanted(state.clone()) if callable(wanted) else wanted, state)
        elif wanted == "zero" or (state.ndim == 4 and wanted is None):
            new = torch.zeros_like(state)
        elif state.ndim == 4 and len(x) == 1:
            raise ValueError(f"pixels have no {wanted} token; use the baseline 'zero', an array or a function")
        elif state.ndim == 4:  # a picture beside a text: the token is meant for the text
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


def _as_states(values: object, state: Tensor) -> Tensor:
    """A user's baseline as a tensor of the states' type."""
    try:
        given = torch.as_tensor(values, dtype=state.dtype, device=state.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"a baseline is an array of numbers, not {type(values).__name__}") from error
    if not given.isfinite().all():
        raise ValueError("a baseline is made of finite numbers, and this one holds NaN or infinite ones; mend it")
    return given


def _token_states(subject: Subject, batch: Batch, at: At, stream: str, state: Tensor, name: str | None) -> Tensor:
    """The states of a sequence of baseline tokens: their word embeddings, carried on to `at`."""
    mask_ids = subject.mask_ids
    names = [name] if name else ["pad", "unknown", "mask"]
    token = next((mask_ids[n] for n in names if mask_ids.get(n) is not None), None)
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
    """Scores by stream as scores of features; a map of pixels is kept in the details."""
    pixels = next((values for values in by_stream.values() if values.ndim == 3), None)
    return Explained(subject.on_features(batch, by_stream), details={} if pixels is None else {"pixels": pixels})


def width_axis(tensor: Tensor) -> int:
    """The axis of the embedding, or of the colours."""
    return 1 if tensor.ndim == 4 else -1
