"""Scores from how far the target falls when features are hidden: one at a time, in windows or at random."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from whence.core.geometry import on_grid
from whence.core.inputs import Input
from whence.core.registry import Explained, method
from whence.core.specs import Between
from whence.model.batching import Batch
from whence.model.masked_inputs import Way, expanded, shared, units, ways
from whence.model.masked_runs import engine_of
from whence.model.subject import Subject
from whence.model.targets import Aim


@method(family="perturbation", paper="arXiv:1612.08220")
def leave_one_out(subject: Subject, batch: Batch, target: Aim, *, mask: Way = "auto") -> Explained:
    """How far the target falls without a feature: f(x) - f(x without i).

    `mask`: how features are hidden. Tokens by "mask", "unknown", "pad", "delete" or "zero" (embedding), patches by
    "zero", "mean", "black" or "blur", regions by "zero", "mean" or "delete"; "auto" is the first of mask, unknown and
    pad that the tokenizer has and that does not end the text, else zero. `details["mask"]` says what was used. At a
    level, as level="sentence", whole units are hidden. Special tokens stay.
    """
    numbers = [units(item) for item in batch.inputs]
    return _occluded(subject, batch, target, mask, numbers, [np.eye(_count(n), dtype=bool) for n in numbers])


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
    between them. `mask` as in leave_one_out, which this is with window=1; windows are of units.
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
    # The input itself is run too, with the same rounding, so that a feature without effect scores exactly 0.
    keeps = [expanded(~np.pad(hidden, ((1, 0), (0, 0))), n) for hidden, n in zip(windows, numbers, strict=True)]
    values = engine_of(subject, batch).masked_values(batch, target, keeps, mask)
    scores = []
    for hidden, number, variant_values in zip(windows, numbers, values, strict=True):
        drops = (variant_values[0] - variant_values[1:]) / hidden.sum(1)
        scores.append(shared(drops @ hidden / hidden.sum(0), number))
    return Explained(placed(subject, batch, scores), details={"mask": [ways(subject, i, mask) for i in batch.inputs]})


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
