"""How well scores single out the features that are known, or believed, to decide."""

from __future__ import annotations

import numpy as np


def average_precision(scores: np.ndarray, truth: np.ndarray) -> float:
    """The area under the precision-recall curve: sum over thresholds of the gain in recall times the precision.

    Equal scores come in together, so that scores without an order get the share of true features.
    """
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.diff(scores[order], append=np.nan))  # the last place of each group of equal scores
    found = np.cumsum(truth[order])[ends]
    return float((np.diff(found, prepend=0) / found[-1] * found / (ends + 1)).sum())


def top_recall(scores: np.ndarray, truth: np.ndarray) -> float:
    """The share of the k true features among the k highest scores; equal scores at the border count in proportion."""
    count = int(truth.sum())
    border = np.sort(scores)[-count]
    above, at = scores > border, scores == border
    return float((truth[above].sum() + truth[at].sum() * (count - above.sum()) / at.sum()) / count)
