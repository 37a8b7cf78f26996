"""Scores from how far the target falls when features are hidden: one at a time, in windows or at random."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from whence.core.geometry import on_grid
from whence.core.inputs import Input
from whence.core.levels import at_level
from whence.core.registry import Explained, method
from whence.core.specs import Between
from whence.model.batching import Batch
from whence.model.masked_inputs import Way, expanded, shared, units, ways
from whence.model.masked_runs import engine_of
from whence.model.subject import Subject
from whence.model.targets import Aim


@method(family="perturbation", paper="arXiv:1612.08220")
def leave_one_out(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    mask: Way = "auto",
    coarse: Literal["word", "sentence", "message", "document"] | None = None,
    strongest: Annotated[int, Between(1, 10_000)] = 2,
) -> Explained:
    """How far the target falls without a feature: f(x) - f(x without i).

    `mask`: how features are hidden. Tokens by "mask", "unknown", "pad", "delete" or "zero" (embedding), patches by
    "zero", "mean", "black" or "blur", regions by "zero", "mean" or "delete"; "auto" is the first of mask, unknown and
    pad that the tokenizer has and that does not end the text, else zero. `details["mask"]` says what was used. At a
    level, as level="sentence", whole units are hidden. Special tokens stay. `coarse` goes from coarse to fine
    (arXiv:2411.15102): each document, say, is hidden as a whole, and only what is in the `strongest` of them one by
    one, exactly; the units of the others share their drop equally, and `details["exact"]` tells which are which.
    """
    numbers = [units(item) for item in batch.inputs]
    if coarse is None:
        return _occluded(subject, batch, target, mask, numbers, [np.eye(_count(n), dtype=bool) for n in numbers])
    groups = [_groups(item, n, coarse) for item, n in zip(batch.inputs, numbers, strict=True)]
    by_group = _drops(subject, batch, target, mask, numbers, [_one_hot(group) for group in groups])
    chosen = [
        np.isin(g, np.argsort(-np.abs(d), kind="stable")[:strongest]) for g, d in zip(groups, by_group, strict=True)
    ]
    fine = [np.eye(_count(n), dtype=bool)[own] for n, own in zip(numbers, chosen, strict=True)]
    by_unit = _drops(subject, batch, target, mask, numbers, fine)
    scores, exact, asked = [], [], []
    for number, group, drops, own, found in zip(numbers, groups, by_group, chosen, by_unit, strict=True):
        values = drops[group] / np.bincount(group)[group] if len(group) else np.zeros(0)
        values[own] = found
        scores.append(shared(values, number))
        exact.append(np.append(own | (np.bincount(group)[group] == 1), True)[number] if len(group) else number < 0)
        asked.append(f"{int(own.sum())} of {len(own)} units were hidden one by one")
    note = f"coarse to fine: {asked[0]}, those of the strongest {coarse}s; the others share the drop of their {coarse}"
    details = {"mask": [ways(subject, i, mask) for i in batch.inputs], "exact": exact}
    return Explained(placed(subject, batch, scores), details=details, notes=(note,))


@method(family="perturbation", paper="arXiv:1311.2901")
def occlusion(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    window: Annotated[int, Between(1, 10_000)] = 2,
    stride: Annotated[int, Between(1, 10_000)] = 1,
    mask: Way = "auto",
) -> Explained:
    """How far the target falls without a window of features, on average over the windows that cover a feature.

    A window's drop f(x) - f(x without the window) is shared equally by its features. Windows are runs of `window`
    neighbours in a stream, squares of `window` x `window` patches on a grid, cut off at the end; `stride` is the step
    between them. `mask` is as in leave_one_out; window=1 gives its scores. At a level, windows are runs of units.
    """
    if stride > window:
        raise ValueError(
            "occlusion: stride is at most the window, so that every feature is covered, "
            f"but window={window} and stride={stride} came"
        )
    numbers = [units(item) for item in batch.inputs]
    windows = [_windows(item, n, window, stride) for item, n in zip(batch.inputs, numbers, strict=True)]
    return _occluded(subject, batch, target, mask, numbers, windows)


@method(family="perturbation", paper="arXiv:1602.04938")
def lime(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    samples: Annotated[int, Between(2, 100_000)] = 200,
    width: Annotated[float, Between(0.001, 1_000)] = 0.25,
    mask: Way = "auto",
) -> Explained:
    """The coefficients of a linear model of f, fitted to variants of the input with random features hidden.

    Ridge regression of f(z) on z in {0, 1}^n, each of `samples` variants (x itself among them) weighted by
    exp(-(1 - cos(z, 1))^2 / width^2); how many features are hidden is drawn uniformly from 1 to n, then which. The base
    is the intercept, `details["r2"]` the weighted R^2. `mask` as in leave_one_out.
    """
    ridge = _ridge()
    numbers = [units(item) for item in batch.inputs]
    draws = [_drawn(_count(n), samples, generator) for n, generator in zip(numbers, batch.generators(), strict=True)]
    keeps = [expanded(draw, n) for draw, n in zip(draws, numbers, strict=True)]
    values = engine_of(subject, batch).masked_values(batch, target, keeps, mask)
    scores, bases, fits = [], [], []
    for draw, number, variant_values in zip(draws, numbers, values, strict=True):
        weights = np.exp(-((1 - np.sqrt(draw.mean(1))) ** 2) / width**2)  # cos(z, 1) = sqrt(share of ones)
        surrogate = ridge(alpha=1.0).fit(draw, variant_values, weights)
        scores.append(shared(surrogate.coef_, number))
        bases.append(float(surrogate.intercept_))
        fits.append(float(surrogate.score(draw, variant_values, weights)))
    details = {"r2": fits, "mask": [ways(subject, item, mask) for item in batch.inputs]}
    return Explained(placed(subject, batch, scores), torch.tensor(bases), details)


def placed(subject: Subject, batch: Batch, scores: list[np.ndarray]) -> Tensor:
    """One array (feature,) per example to (batch, feature)."""
    dtype = torch.float64 if subject.dtype == torch.float64 else torch.float32
    padded = torch.zeros(batch.mask.shape, dtype=dtype, device=batch.mask.device)
    for row, values in enumerate(scores):
        padded[row, batch.mask[row]] = torch.from_numpy(values).to(padded)
    return padded


def _occluded(
    subject: Subject, batch: Batch, target: Aim, mask: Way, numbers: list[np.ndarray], windows: list[np.ndarray]
) -> Explained:
    """Scores from the windows of every example, (window, unit) bool: True is hidden."""
    scores = []
    found = _drops(subject, batch, target, mask, numbers, windows)
    for hidden, number, drops in zip(windows, numbers, found, strict=True):
        scores.append(shared((drops / hidden.sum(1)) @ hidden / hidden.sum(0), number))
    return Explained(placed(subject, batch, scores), details={"mask": [ways(subject, i, mask) for i in batch.inputs]})


def _drops(
    subject: Subject, batch: Batch, target: Aim, mask: Way, numbers: list[np.ndarray], windows: list[np.ndarray]
) -> list[np.ndarray]:
    """How far the target falls without each window of units, (window,) for every example."""
    # The input itself is run too, with the same rounding, so that a feature without effect scores exactly 0.
    keeps = [expanded(~np.pad(hidden, ((1, 0), (0, 0))), n) for hidden, n in zip(windows, numbers, strict=True)]
    values = engine_of(subject, batch).masked_values(batch, target, keeps, mask)
    return [found[0] - found[1:] for found in values]


def _groups(item: Input, numbers: np.ndarray, coarse: str) -> np.ndarray:
    """The number of the group, as of the document, that each unit lies in: (unit,)."""
    of_token = np.asarray(at_level(replace(item, units=None), coarse).units)
    pairs = np.unique(np.stack([numbers, of_token])[:, numbers >= 0], axis=1)  # (unit, group), by unit
    if len(np.unique(pairs[0])) < pairs.shape[1]:
        raise ValueError(f"leave_one_out: a unit reaches over several {coarse}s; coarse= is coarser than the level")
    return np.unique(pairs[1], return_inverse=True)[1]


def _one_hot(groups: np.ndarray) -> np.ndarray:
    """(group, unit) bool: the units of every group."""
    return groups[None] == np.arange(_count(groups))[:, None]


def _count(numbers: np.ndarray) -> int:
    return int(numbers.max(initial=-1)) + 1


def _windows(item: Input, numbers: np.ndarray, window: int, stride: int) -> np.ndarray:
    """(window, unit) bool: runs of units, or squares of patches."""
    windows = []
    streams = np.array(item.streams)
    for stream in dict.fromkeys(item.streams):
        stream_units = np.unique(numbers[(streams == stream) & (numbers >= 0)])
        shape = item.grid if item.grid and on_grid(item, stream) else (1, len(stream_units))
        for top in _starts(shape[0], window, stride):
            for left in _starts(shape[1], window, stride):
                covered = np.zeros(shape, bool)
                covered[top : top + window, left : left + window] = True
                hidden = np.zeros(_count(numbers), bool)
                hidden[stream_units[covered.ravel()]] = True
                windows.append(hidden)
    return np.array(windows, bool).reshape(-1, _count(numbers))


def _starts(length: int, window: int, stride: int) -> range:
    """The first positions of windows that together reach the end; the last window may reach beyond it."""
    return range(0, max(length - window, 0) + stride, stride) if length else range(0)


def _drawn(count: int, samples: int, generator: np.random.Generator) -> np.ndarray:
    """(sample, unit) bool: True is kept; the first sample keeps everything."""
    hidden = generator.integers(1, count + 1, (samples, 1))
    hidden[0] = 0
    return generator.random((samples, count)).argsort(1).argsort(1) >= hidden


def _ridge() -> Any:
    try:
        from sklearn.linear_model import Ridge
    except ImportError as error:
        raise ImportError("lime needs scikit-learn; install it with pip install 'whence[concepts]'") from error
    return Ridge
