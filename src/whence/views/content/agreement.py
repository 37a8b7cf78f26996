"""How alike the methods of a Comparison rank the features."""

from __future__ import annotations

import numpy as np

from whence.core.results import Attribution, Comparison


def agreement(c: Comparison) -> np.ndarray:
    """(method, method) Kendall's tau-b, the mean over generated rows; NaN where a method tells nothing apart.

    Features that the tokenizer or the model added, that a row could not see, or whose score is not finite are left out;
    where one of two methods has no sign, sizes are ranked.
    """
    return np.array([[_tau(a, b) for b in c] for a in c])


def _tau(a: Attribution, b: Attribution) -> float:
    """The mean of tau-b over the rows where it is defined."""
    from scipy.stats import kendalltau

    found = []
    for first, second, seen in zip(*(np.atleast_2d(rows) for rows in (a.scores, b.scores, a.visible)), strict=True):
        kept = seen & ~a.special & np.isfinite(first) & np.isfinite(second)
        one, other = (values[kept] if a.signed and b.signed else np.abs(values[kept]) for values in (first, second))
        if kept.sum() > 1 and np.ptp(one) > 0 and np.ptp(other) > 0:
            found.append(float(kendalltau(one, other, variant="b").statistic))
    return float(np.mean(found)) if found else float("nan")
