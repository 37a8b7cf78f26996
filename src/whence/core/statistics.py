"""Means with their uncertainty, and tests of differences.

NaN marks an example on which a value is not defined: a metric of rationales is not, on an example without one.
"""

from __future__ import annotations

import numpy as np


def bootstrap(values: np.ndarray, seed: int = 0, draws: int = 1000) -> tuple[float, tuple[float, float] | None]:
    """The mean over examples that are not NaN, and its 95 % interval by resampling them.

    The interval is None for fewer than two examples, or where one of them is infinite.
    """
    known = values[~np.isnan(values)]
    if not len(known):
        return float("nan"), None
    if len(known) == 1:
        return float(known[0]), None
    if not np.isfinite(known).all():
        ends = set(known[np.isinf(known)].tolist())
        return (ends.pop() if len(ends) == 1 else float("nan")), None
    chosen = np.random.default_rng([seed, 4]).integers(len(known), size=(draws, len(known)))
    low, high = np.quantile(known[chosen].mean(1), [0.025, 0.975])
    return float(known.mean()), (float(low), float(high))


def sign_flips(differences: np.ndarray, seed: int = 0, draws: int = 2000) -> float:
    """Two-sided p-value of a mean paired difference: how often random signs give one as large.

    It is NaN without pairs, or where one of the differences is infinite.
    """
    known = differences[~np.isnan(differences)]
    if not len(known) or not np.isfinite(known).all():
        return float("nan")
    if not known.any():
        return 1.0
    signs = np.random.default_rng([seed, 5]).choice([-1.0, 1.0], size=(draws, len(known)))
    extreme = np.abs((signs * known).mean(1)) >= abs(known.mean()) - 1e-9 * np.abs(known).mean()
    return float((1 + extreme.sum()) / (1 + draws))


def holm(p: np.ndarray) -> np.ndarray:
    """p-values corrected by Holm's steps: they bound the chance of any false finding among all of them."""
    flat = p.ravel()
    order = np.argsort(flat, kind="stable")
    steps = np.maximum.accumulate(flat[order] * np.arange(len(flat), 0, -1))
    corrected = np.empty_like(flat)
    corrected[order] = np.minimum(steps, 1.0)
    return corrected.reshape(p.shape)


def means_of(values: np.ndarray) -> np.ndarray:
    """The mean of each row over the entries that are not NaN; NaN where a row has no others."""
    known = ~np.isnan(values)
    counts = known.sum(-1)
    sums = np.where(known, values, 0.0).sum(-1)
    return np.divide(sums, counts, out=np.full(counts.shape, np.nan), where=counts > 0)


def comparable_means(values: np.ndarray) -> np.ndarray:
    """The means of rows over the columns in which no row has NaN; rows of NaN alone are left aside.

    Where there is no such column, each mean is over the row's own entries that are not NaN.
    """
    known = ~np.isnan(values)
    shared = known[known.any(1)].all(0)
    return means_of(values[:, shared] if shared.any() else values)


def larger_is_better(values: np.ndarray, better: str) -> np.ndarray:
    """Values of a metric turned so that larger is better: negated where lower is better, and NaN as the worst."""
    return np.nan_to_num(values if better == "higher" else -values, nan=-np.inf, neginf=-np.inf)
