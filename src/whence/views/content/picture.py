"""The picture that a model saw, under the scores of its patches."""

from __future__ import annotations

import numpy as np

from whence.core.geometry import grid_scores, patches, upsample
from whence.core.inputs import Input
from whence.views.colours import AGAINST, FOR
from whence.views.text import largest


def picture(x: Input) -> np.ndarray:
    """The picture the model saw, or an empty one where it is not kept."""
    if x.image is not None:
        return x.image
    rows, columns = x.grid or (1, 1)
    return np.full((rows * 32, columns * 32, 3), 255, dtype=np.uint8)


def overlay(image: np.ndarray, grid: np.ndarray, scale: float) -> np.ndarray:
    """The picture in pale grey under blue (for) and red (against)."""
    heat = upsample(grid, *image.shape[:2])[..., None]
    grey = 90 + 0.6 * image.mean(axis=-1, keepdims=True)
    share = 0.85 * np.clip(np.abs(np.nan_to_num(heat, nan=0.0, posinf=0.0, neginf=0.0)) / (scale or 1.0), 0, 1)
    return np.round(grey * (1 - share) + np.where(heat < 0, AGAINST, FOR) * share).astype(np.uint8)


def scale_of_patches(x: Input, scores: np.ndarray) -> float:
    """The largest |score| of a patch, over all rows of scores."""
    return largest(grid_scores(x, scores))


def on_picture(x: Input) -> set[int]:
    """The features that are patches of the picture."""
    return set(patches(x).tolist())
