"""Soft masks of a picture's pixels, from 0 (hidden) to 1 (kept): small grids of cells, interpolated a few at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from whence.core.geometry import upsample

Size = tuple[int, int]  # height and width, in pixels
CHUNK = 2**20  # pixels of masks that are made at once


class SoftMasks:
    """Masks of pixels, kept as cells (mask, row, column) and made when they are asked for.

    Cells are interpolated bilinearly between their centres, to the picture, or to `larger` and cut out at `corners`.
    """

    def __init__(
        self, cells: np.ndarray, size: Size, larger: Size | None = None, corners: np.ndarray | None = None
    ) -> None:
        self.cells, self.size = cells, size
        self._larger = larger or size
        self._corners = np.zeros((len(cells), 2), int) if corners is None else corners  # (mask, 2): top and left

    def __len__(self) -> int:
        return len(self.cells)

    def __iter__(self) -> Iterator[np.ndarray]:
        """One mask after the other, (height, width)."""
        for _, masks in self._chunks():
            yield from masks

    def weighted_sum(self, weights: np.ndarray) -> np.ndarray:
        """The sum of all masks, each times its weight: (height, width)."""
        total = np.zeros(self.size)
        for chunk, masks in self._chunks():
            total += np.tensordot(weights[chunk], masks, 1)
        return total

    def _chunks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The masks, (mask, height, width), a few at a time."""
        height, width = self.size
        count = max(1, CHUNK // (self._larger[0] * self._larger[1]))
        for start in range(0, len(self), count):
            chunk = slice(start, start + count)
            cells = self.cells[chunk]
            large = upsample(cells.astype(np.float32) if cells.dtype == bool else cells, *self._larger)
            corners = zip(large, self._corners[chunk], strict=True)
            yield chunk, np.stack([mask[y : y + height, x : x + width] for mask, (y, x) in corners])


def random_masks(generator: np.random.Generator, count: int, cells: int, keep: float, size: Size) -> SoftMasks:
    """The masks of RISE: cells are kept with probability `keep`, and the grid is shifted by up to one cell."""
    high, wide = (-(-length // cells) for length in size)  # pixels of a cell, rounded up
    parts = -(-count * cells**2 // CHUNK)  # a number that is drawn takes eight times the memory of a cell
    grids = [generator.random((len(few), cells, cells)) < keep for few in np.array_split(np.arange(count), parts)]
    corners = np.stack([generator.integers(0, high, count), generator.integers(0, wide, count)], 1)
    return SoftMasks(np.concatenate(grids), size, ((cells + 1) * high, (cells + 1) * wide), corners)


def scaled_maps(maps: np.ndarray, size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Maps whose pixels, once interpolated, reach from 0 to 1, and which maps those are: (map,) bool.

    Interpolation is linear, and constants stay constant, so the small maps are scaled in place of the large ones.
    A map that is the same everywhere cannot be scaled and is left out.
    """
    ends = np.array([(mask.min(), mask.max()) for mask in SoftMasks(maps, size)])  # (map, 2)
    low, high = ends.reshape(-1, 2).T
    varied = high - low > 1e-9 * np.abs(ends).max(initial=0)
    span = (high - low)[varied, None, None]
    return (maps[varied] - low[varied, None, None]) / span, varied


def clustered_masks(maps: np.ndarray, size: Size, distance: float) -> SoftMasks:
    """The masks of ViT-CX: maps scaled to [0, 1], clusters of them summed, the sums scaled again.

    Complete linkage joins maps whose distance 1 - cosine, over pixels, is at most `distance`. Without any map that
    varies, one mask keeps everything.
    """
    scaled, _ = scaled_maps(maps, size)
    if not len(scaled):
        return SoftMasks(np.ones((1, *maps.shape[1:])), size)
    numbers = np.zeros(len(scaled), int)
    if len(scaled) > 1:
        apart = np.clip(1 - _cosines(scaled, size), 0, None)[np.triu_indices(len(scaled), 1)]
        numbers = fcluster(linkage(apart, "complete"), distance, "distance") - 1
    sums = np.stack([scaled[numbers == number].sum(0) for number in range(numbers.max() + 1)])
    cells, varied = scaled_maps(sums, size)
    return SoftMasks(cells if varied.any() else np.ones_like(sums[:1]), size)


def _cosines(maps: np.ndarray, size: Size) -> np.ndarray:
    """The cosines between interpolated maps, (map, map), from the small ones: interpolation is linear on each axis."""
    rows, columns = maps.shape[1:]
    down, across = upsample(np.eye(rows), size[0], rows), upsample(np.eye(columns), size[1], columns)  # (pixel, cell)
    products = np.einsum("mrc,rs,ct->mst", maps, down.T @ down, across.T @ across, optimize=True)
    gram = products.reshape(len(maps), -1) @ maps.reshape(len(maps), -1).T
    lengths = np.sqrt(np.diag(gram))
    return gram / np.outer(lengths, lengths)
