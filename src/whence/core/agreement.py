"""How alike methods rank the features of one input: Kendall's tau."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def rank_agreement(scores: Sequence[np.ndarray], signed: Sequence[bool], counted: np.ndarray) -> np.ndarray:
    """(method, method) Kendall's tau-b of every pair of methods, the mean over the rows of their scores.

    Scores have the axes (row, feature); features that are not `counted`, or whose score is not finite, are left out.
    Two methods with signs are compared by their scores; where one has none, both are by the sizes of scores. A row
    counts where two or more features are left and neither method gives all of them the same; NaN where no row does.
    """
    count = len(scores)
    found = np.full((count, count), np.nan)
    for i in range(count):
        for j in range(i + 1):
            pair = scores[i], scores[j]
            pair = pair if signed[i] and signed[j] else (np.abs(pair[0]), np.abs(pair[1]))
            taus = [_tau(one[own], other[own]) for one, other, own in zip(*pair, counted, strict=True)]
            defined = [tau for tau in taus if not np.isnan(tau)]
            if defined:
                found[i, j] = found[j, i] = float(np.mean(defined))
    return found


def _tau(first: np.ndarray, second: np.ndarray) -> float:
    from scipy.stats import kendalltau

    both = np.stack([first, second])
    both = both[:, np.isfinite(both).all(axis=0)]
    if both.shape[1] < 2 or (np.ptp(both, axis=1) == 0).any():
        return float("nan")
    return float(kendalltau(*both, variant="b").statistic)
