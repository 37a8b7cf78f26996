"""Metrics of pictures: comparing maps of scores with a region that is known to decide, and blackening pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from scipy.ndimage import distance_transform_edt, label

from whence.core.geometry import heatmap, patches, upsample
from whence.core.registry import metric
from whence.core.specs import Between
from whence.measure.metric_protocol import Case, Curve, Metric, Unknown
from whence.measure.metrics.plausibility import average_precision
from whence.model import masked_inputs
from whence.model.masked_inputs import Way
from whence.model.subject import Subject

THRESHOLDS = np.arange(1, 20) / 20  # of a map's maximum
SHARES = np.arange(10) / 10  # of the pixels that are blackened


@metric(better="higher", family="plausibility", paper="arXiv:1608.00507")
def localisation(
    subject: Subject,
    case: Case,
    *,
    measure: Literal["pointing", "energy", "iou", "box_iou", "pixel_accuracy", "miou", "map"] = "pointing",
    tolerance: Annotated[float, Between(0, 1_000_000)] = 0,
    threshold: Annotated[float, Between(0, 1, without_least=True)] | Literal["mean", "best"] = "mean",
    base: Literal["zero", "lowest"] = "zero",
) -> float:
    """How well the map of scores, bilinear over the pixels, finds the region that decides (`truth=`, a mask or boxes).

    "pointing": whether the highest pixel lies in the region, or within `tolerance` pixels of it (the original has 15 of
    224); equal pixels count in proportion. "energy": the share of the map's sum that lies in the region
    (arXiv:1910.01279). "iou": intersection over union of the region and the pixels that reach `threshold` x the map's
    maximum; "mean" and "best" are over the thresholds 0.05, 0.1, ... 0.95, and the best threshold can be chosen only if
    the region is known. "box_iou": the same of two boxes, around the largest connected part of those pixels and around
    the region (arXiv:2001.07437). These three count a score below 0 as 0; with base="lowest" they count from the lowest
    pixel, as public code does that scales maps to [0, 1]. A map that is the same everywhere has the share of the
    picture that the region covers, for pointing, energy and iou alike: chance, which a board notes below its table.
    "pixel_accuracy" and "miou" take the pixels above the map's mean as the region that was found; "miou" is the mean
    over the region and the remaining pixels. "map": average precision of the map, scaled to [0, 1], for the region
    together with that of its complement for the other pixels. The value is that of one picture; published pixel
    accuracies and mIoUs add up the pixels of all pictures.
    """
    if case.region is None:
        raise Unknown(
            "localisation compares with a region of the picture; give it as truth=: a file, one mark per pixel, or "
            "{'box': [x0, y0, x1, y1]}"
        )
    region = case.region
    if not region.any() or region.all():
        return float("nan")
    if measure in ("energy", "iou", "box_iou"):
        return _overlap(_strengths(case, base), region, measure, threshold)
    pixels = _map(case)
    if measure == "pointing":
        near = distance_transform_edt(~region) <= tolerance
        return float(near[pixels == pixels.max()].mean())
    if measure == "map":
        span = np.ptp(pixels)
        scaled = (pixels - pixels.min()) / span if span > 0 else np.full(pixels.shape, 0.5)
        scaled = scaled.round(6)  # removes rounding, so that equal scores stay equal in 1 - x
        return average_precision(np.stack([(1 - scaled).round(6), scaled]).ravel(), np.stack([~region, region]).ravel())
    found = pixels > pixels.mean()
    if measure == "pixel_accuracy":
        return float((found == region).mean())
    return float(np.mean([_iou(a, b) for a, b in ((found, region), (~found, ~region))]))


def _overlap(strengths: np.ndarray, region: np.ndarray, measure: str, threshold: float | str) -> float:
    """The share of the strengths in the region, or how well the pixels that reach a threshold cover the region."""
    if measure == "energy":
        return float(strengths[region].sum() / strengths.sum())
    levels = THRESHOLDS if isinstance(threshold, str) else [threshold]
    found = [strengths >= level * strengths.max() for level in levels]
    if measure == "box_iou":
        found, region = [_box_around(_largest_part(marks)) for marks in found], _box_around(region)
    values = [_iou(marks, region) for marks in found]
    return float(max(values) if threshold == "best" else np.mean(values))


def _iou(a: np.ndarray, b: np.ndarray) -> float:
    return float((a & b).sum() / (a | b).sum())


def _largest_part(marks: np.ndarray) -> np.ndarray:
    """The largest connected set of marked pixels; pixels that touch at a corner are connected."""
    numbers, _ = label(marks, np.ones((3, 3)))
    return np.asarray(numbers == np.bincount(numbers[marks]).argmax())


def _box_around(marks: np.ndarray) -> np.ndarray:
    """(height, width) bool: the smallest box that holds all marked pixels."""
    rows, columns = np.flatnonzero(marks.any(1)), np.flatnonzero(marks.any(0))
    box = np.zeros_like(marks)
    box[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1] = True
    return box


@metric(
    better="lower",
    paper="arXiv:2012.09838",
    axes=("share of pixels blackened, highest score first", "{measure}"),
)
def positive_perturbation(
    subject: Subject,
    case: Case,
    *,
    measure: Literal["accuracy", "probability"] = "accuracy",
    mask: Way = "black",
) -> Metric:
    """Pixels are blackened from the highest on: area, over shares 0 to 0.9, under whether the target's class is first.

    The map is bilinear over the pixels, which are sorted one by one; "probability" takes p of the target's class, or
    the target itself where it names no class. To measure the true class, explain it. `mask` takes "mean", "blur" or
    "zero" instead of "black".
    """
    return (yield from _blackened(subject, case, case.scores, measure, mask))


@metric(
    better="higher",
    paper="arXiv:2012.09838",
    axes=("share of pixels blackened, lowest score first", "{measure}"),
)
def negative_perturbation(
    subject: Subject,
    case: Case,
    *,
    measure: Literal["accuracy", "probability"] = "accuracy",
    mask: Way = "black",
) -> Metric:
    """As `positive_perturbation`, with pixels blackened from the lowest score up."""
    return (yield from _blackened(subject, case, -case.scores, measure, mask))


def _map(case: Case) -> np.ndarray:
    """Scores over the pixels of the region's picture; pixels that the model did not see have the lowest score."""
    return _even(_over_region(case, _from_lowest(case)))


def _from_lowest(case: Case) -> np.ndarray:
    """Scores above that of the lowest patch, in double precision: equal ones are exactly 0, also once interpolated."""
    scores = case.scores.astype(float)
    return scores - scores[patches(case.item)].min(initial=np.inf)


def _strengths(case: Case, base: str) -> np.ndarray:
    """The map from 0 on: scores below 0 cut off, or counted from the lowest pixel; pixels that were not seen have 0.

    Where no pixel rises above the base, the map says nothing, and all pixels that the model saw count alike.
    """
    seen = _over_region(case, np.ones(len(case.scores))) > 0
    pixels = _over_region(case, case.scores.astype(float) if base == "zero" else _from_lowest(case))
    if base == "lowest":
        pixels = np.where(seen, pixels - pixels[seen].min(), 0)
    pixels = _even(pixels).clip(0)
    return pixels if pixels.any() else seen.astype(float)


def _over_region(case: Case, scores: np.ndarray) -> np.ndarray:
    """Scores over the pixels of the region's picture, the one that the model saw or the original; 0 where unseen."""
    seen = case.item.image is not None and case.region is not None and case.region.shape == case.item.image.shape[:2]
    return heatmap(case.item, scores, original=not seen)


def _even(pixels: np.ndarray) -> np.ndarray:
    """A map scaled to 1 and rounded, so that interpolated equal scores stay equal."""
    return (pixels / (np.abs(pixels).max() or 1.0)).round(6)


def _blackened(subject: Subject, case: Case, scores: np.ndarray, measure: str, mask: Way) -> Metric:
    """The area under the curve along which pixels are blackened, the highest first; equal pixels in a random order."""
    item = case.item
    if item.grid is None:
        raise ValueError(
            f"pixels are blackened in the order of a map, and {subject.name} takes no picture on a grid here"
        )
    key = str(subject.sites(subject.batch([item]), "pixels")["image"].key)
    pixels = item.tensors[key]  # (channel, height, width)
    (black,) = masked_inputs.masked(subject, item, np.zeros((1, len(item.features)), bool), mask)
    heights = _even(upsample(scores[patches(item)].astype(float).reshape(item.grid), *pixels.shape[1:])).ravel()
    order = np.lexsort((np.random.default_rng([case.seed, 6]).random(heights.size), -heights))
    rank = np.empty(heights.size, int)
    rank[order] = np.arange(heights.size)
    counts = np.round(SHARES * heights.size)[:, None, None]
    blackened = rank.reshape(pixels.shape[1:]) < counts  # (share, height, width)
    filled = np.where(blackened[:, None], black.tensors[key], pixels)
    answers = yield [replace(item, tensors={**item.tensors, key: array}) for array in filled]
    if measure == "probability":
        return Curve(answers.probabilities, end=0.9)
    if answers.logits.shape[-1] == 1:
        raise ValueError(f"{subject.name} has one output, so no class is first; use measure='probability'")
    return Curve((answers.logits.argmax(-1) == case.index).astype(float), end=0.9)
