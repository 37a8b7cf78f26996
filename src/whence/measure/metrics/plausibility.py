"""Plausibility: how well scores single out the features that are known, or believed, to decide."""

from __future__ import annotations

from typing import Literal

import numpy as np

from whence.core.registry import metric
from whence.core.specs import Share
from whence.measure.metric_protocol import Case, Unknown
from whence.model.subject import Subject


@metric(better="higher", family="plausibility", paper="arXiv:1911.03429")
def plausibility(
    subject: Subject,
    case: Case,
    *,
    measure: Literal["average_precision", "auprc", "recall", "f1", "iou_f1"] = "average_precision",
    overlap: Share = 0.5,
) -> float:
    """How well the scores' sizes single out the features that are known or believed to decide (`truth=`).

    "average_precision": the area under the precision-recall curve by steps; "auprc": by trapezoids, as ERASER has it,
    which flatters equal scores; "recall": the share of the k true features among the top k; "f1" and "iou_f1": of the
    top k as a rationale, feature by feature, and by runs of features that overlap by that share. Special tokens are
    left out. Equal scores at the border count in proportion; for runs, some of them are drawn at random. Not a number
    where no feature decides.
    """
    if case.truth is None:
        raise Unknown(
            "plausibility compares with what decides; give it as truth=, phrases or one mark per score or word"
        )
    scores, truth = np.abs(case.scores[case.free]), case.truth[case.free]
    if not truth.any():
        return float("nan")
    if measure == "average_precision":
        return average_precision(scores, truth)
    if measure == "auprc":
        precision, recall = _precision_recall(scores, truth)
        return float(np.trapezoid([1.0, *precision], [0.0, *recall]))
    if measure in ("recall", "f1"):  # k of k features: precision, recall and F1 are equal
        return top_recall(scores, truth)
    order = case.ordered(np.abs(case.scores))
    chosen = np.zeros_like(case.truth)
    chosen[order[np.isin(order, case.free)][: truth.sum()]] = True
    return _overlapping(_runs(chosen), _runs(case.truth & ~case.item.special), overlap)


def _runs(marks: np.ndarray) -> list[set[int]]:
    """Runs of marked neighbours, each as the set of its features' numbers."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marks.astype(int), [0]])))
    return [set(range(start, stop)) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


def _overlapping(found: list[set[int]], true: list[set[int]], share: float) -> float:
    """F1 of runs; a run is found where another has at least this intersection over union with it."""
    hits = sum(any(len(f & t) >= share * len(f | t) for f in found) for t in true)
    right = sum(any(len(f & t) >= share * len(f | t) for t in true) for f in found)
    precision, recall = right / len(found), hits / len(true)
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def average_precision(scores: np.ndarray, truth: np.ndarray) -> float:
    """The area under the precision-recall curve: sum over thresholds of the gain in recall times the precision.

    Equal scores come in together, so that scores without an order get the share of true features.
    """
    precision, recall = _precision_recall(scores, truth)
    return float((np.diff(recall, prepend=0) * precision).sum())


def _precision_recall(scores: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Precision and recall of the features that score at least as high as each score, from the highest on."""
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.diff(scores[order], append=np.nan))  # the last place of each group of equal scores
    found = np.cumsum(truth[order])[ends]
    return found / (ends + 1), found / found[-1]


def top_recall(scores: np.ndarray, truth: np.ndarray) -> float:
    """The share of the k true features among the k highest scores; equal scores at the border count in proportion."""
    count = int(truth.sum())
    border = np.sort(scores)[-count]
    above, at = scores > border, scores == border
    return float((truth[above].sum() + truth[at].sum() * (count - above.sum()) / at.sum()) / count)
