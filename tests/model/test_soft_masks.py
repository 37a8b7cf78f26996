"""Soft masks of pixels: what they are, that few are in memory at once, and that the engine runs equal pictures once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from scipy.ndimage import gaussian_filter

from families import PICTURES, subject_of
from whence.core.geometry import upsample
from whence.core.inputs import Input
from whence.model import masked_runs, soft_masks
from whence.model.masked_inputs import blending, masked, picture_of
from whence.model.masked_runs import MaskedRuns
from whence.model.soft_masks import SoftMasks, clustered_masks, random_masks, scaled_maps

CELLS = np.random.default_rng(0).random((10, 3, 4))


def test_masks_are_made_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, at most CHUNK pixels are interpolated at once, and the sum is the same."""
    whole, weights = np.stack(list(SoftMasks(CELLS, (12, 16)))), np.arange(10.0)
    sizes: list[int] = []

    def watched(grid: np.ndarray, height: int, width: int) -> np.ndarray:
        made = upsample(grid, height, width)
        sizes.append(made.size)
        return made

    monkeypatch.setattr(soft_masks, "upsample", watched)
    monkeypatch.setattr(soft_masks, "CHUNK", 3 * 12 * 16)
    masks = SoftMasks(CELLS, (12, 16))
    assert np.array_equal(np.stack(list(masks)), whole) and len(masks) == 10
    assert np.allclose(masks.weighted_sum(weights), np.tensordot(weights, whole, 1))
    assert max(sizes) == 3 * 12 * 16 and len(sizes) == 2 * 4
    assert np.allclose(whole, upsample(CELLS, 12, 16))


def test_random_masks_keep_what_they_are_asked_to() -> None:
    masks = np.stack(list(random_masks(np.random.default_rng(0), 2000, 4, 0.3, (10, 13))))
    assert masks.shape == (2000, 10, 13) and masks.min() >= 0 and masks.max() <= 1
    assert np.abs(masks.mean(0) - 0.3).max() <= 0.05  # at every pixel, edges too
    assert len({mask.tobytes() for mask in masks[:50]}) > 45
    everything = random_masks(np.random.default_rng(0), 3, 4, 1.0, (10, 13))
    assert (np.stack(list(everything)) == 1).all()


def test_scaled_maps_reach_from_0_to_1_and_constants_are_left_out() -> None:
    maps = np.concatenate([5 * CELLS - 2, np.full((1, 3, 4), 7.0)])
    cells, varied = scaled_maps(maps, (12, 16))
    made = np.stack(list(SoftMasks(cells, (12, 16))))
    assert varied.tolist() == [True] * 10 + [False]
    assert np.allclose(made.min((1, 2)), 0) and np.allclose(made.max((1, 2)), 1)


def test_clusters() -> None:
    """Two groups of maps, each of one pattern: two masks, whatever the scale of the maps."""
    left, right = np.zeros((4, 4)), np.zeros((4, 4))
    left[:, 0], right[:, -1] = 1, 1
    maps = np.stack([left, 3 * left + 1, right, right - 5, 2 * left])
    assert len(clustered_masks(maps, (8, 8), 0.1)) == 2
    assert len(clustered_masks(maps, (8, 8), 1.0)) == 1
    assert len(clustered_masks(maps[:1], (8, 8), 0.1)) == 1
    made = np.stack(list(clustered_masks(maps, (8, 8), 0.1)))
    assert np.allclose(made.min((1, 2)), 0) and np.allclose(made.max((1, 2)), 1)


# ---- pictures seen through masks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["auto", "zero", "mean", "black", "blur", None])
def test_a_blend(how: Any) -> None:
    subject = subject_of("vit")
    item = subject.encode(PICTURES[0])
    x = picture_of(item)
    assert x is not None
    z = {
        "mean": np.broadcast_to(x.mean((1, 2), keepdims=True), x.shape),
        "black": np.full_like(x, -1.0),
        "blur": gaussian_filter(x, (0, 8, 8)),
        None: x,
    }.get(how, np.zeros_like(x))
    mask, noise = upsample(CELLS[0], 32, 32), np.random.default_rng(1).normal(0, 1, x.shape)
    for given, e in (((), 0.0), ((noise,), noise)):
        made = picture_of(blending(subject, item, how)(mask, *given))
        assert made is not None and made.dtype == x.dtype
        assert np.abs(made - (mask * x + (1 - mask) * (z + e))).max() <= 1e-5
    kept = picture_of(blending(subject, item, how)(np.ones((32, 32)), noise))
    assert np.array_equal(kept, x)  # where everything is kept, the picture is the same, bit by bit


def test_a_mask_of_whole_patches_hides_as_features_are_hidden() -> None:
    subject = subject_of("vit")
    item = subject.encode(PICTURES[0])
    keep = np.random.default_rng(0).random((1, 17)) < 0.5
    (expected,) = masked(subject, item, keep, "black")
    mask = np.kron(keep[0, 1:].reshape(4, 4), np.ones((8, 8)))
    found = blending(subject, item, "black")(mask)
    assert np.array_equal(found.tensors["pixel_values"], expected.tensors["pixel_values"])


def test_the_engine_runs_equal_pictures_once_and_takes_masks_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of("vit")
    items = [subject.encode(picture) for picture in PICTURES[:2]]
    batch, aim = subject.batch(items), subject.aim([0, 1])
    made, waiting = 0, 0
    engine = MaskedRuns(subject)

    def masks() -> Iterator[np.ndarray]:
        nonlocal made, waiting
        for number in range(12):
            made += 1
            waiting = max(waiting, made - engine.run)
            yield upsample(CELLS[number % 6], 32, 32)

    monkeypatch.setattr(masked_runs, "MAX_BYTES", 2 * 3 * 32 * 32 * 4)  # two pictures
    subject.values(batch, aim)
    found = engine.soft_values(batch, aim, [masks(), masks()])
    assert engine.asked == 24 and engine.run == 12
    assert waiting <= 24 - 12 + 3  # twelve masks were asked for again and never waited
    for values, item, index in zip(found, items, (0, 1), strict=True):
        assert np.array_equal(values[:6], values[6:])
        variants = [blending(subject, item)(upsample(cells, 32, 32)) for cells in CELLS[:6]]
        assert np.allclose(values[:6], [_logit(subject, variant, index) for variant in variants], atol=1e-5)


def _logit(subject: Any, variant: Input, index: int) -> float:
    return float(subject.logits(subject.batch([variant]))[0, index])
