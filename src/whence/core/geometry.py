"""Patches, grids and pixels: where features lie on a picture."""

from __future__ import annotations

import numpy as np

from whence.core.inputs import Input

Box = tuple[float, float, float, float]  # left, top, right, bottom, in pixels


def on_grid(x: Input, stream: str) -> bool:
    """Whether the features of this stream lie on the input's grid: the picture's do, or else the first stream's.

    Patches that stand among the tokens of a text are no stream of their own; `patches` finds them.
    """
    return x.grid is not None and stream == ("image" if "image" in (*x.streams, *x.parts) else x.streams[0])


def patch_of_pixels(height: int, width: int, grid: tuple[int, int]) -> np.ndarray:
    """The number of the patch that each pixel belongs to, row by row of the grid: (height, width).

    Pixels beyond the last whole patch belong to the last patch.
    """
    rows, columns = grid
    high, wide = patch_size(height, width, grid)
    down = np.minimum(np.arange(height) // high, rows - 1)
    across = np.minimum(np.arange(width) // wide, columns - 1)
    return down[:, None] * columns + across


def patch_size(height: int, width: int, grid: tuple[int, int]) -> tuple[int, int]:
    """Height and width of a patch, in pixels."""
    return max(1, height // grid[0]), max(1, width // grid[1])


def patches(x: Input) -> np.ndarray:
    """The numbers of the features that lie on the grid, row by row.

    They are the features of the picture without special tokens, or of all streams where none is a picture. A picture
    among the tokens of a text is a part of its input, "image".
    """
    on_image = np.array(["image" in pair for pair in zip(x.streams, x.parts, strict=True)], dtype=bool)
    found = np.flatnonzero((on_image if on_image.any() else True) & ~x.special)
    if x.grid is None or not found.size:
        return found[:0]
    if found.size != x.grid[0] * x.grid[1]:
        raise ValueError(
            f"the grid of {x.grid[0]} x {x.grid[1]} needs as many image features, got {found.size}; "
            "mark the others as special or correct Input.grid"
        )
    return found


def grid_scores(x: Input, scores: np.ndarray) -> np.ndarray:
    """Scores on the patch grid, (row, column), or (generated, row, column)."""
    return scores[..., patches(x)].reshape(*scores.shape[:-1], *(x.grid or (0, 0)))


def heatmap(x: Input, scores: np.ndarray, original: bool = False, pixels: np.ndarray | None = None) -> np.ndarray:
    """Scores over every pixel of the picture that the model saw, or of the original: (..., height, width).

    `pixels` is a map of scores per pixel where a method gives one; without it the scores of patches are interpolated
    between the centres of the patches. Pixels of the original that the model did not see are 0.
    """
    if not patches(x).size:
        raise ValueError("heatmap() needs the patches of a picture on a grid, but this input has no Input.grid")
    cells = grid_scores(x, scores) if pixels is None else pixels
    if not original:
        if x.image is None:
            raise ValueError("heatmap() needs the picture the model saw, but Input.image is None; set it in encode")
        return upsample(cells, *x.image.shape[:2])
    if x.box is None or x.size is None:
        raise ValueError("heatmap(original=True) needs Input.box and Input.size, but they are None; use original=False")
    values, seen = on_box(cells, x.size[1], x.size[0], x.box)
    return np.where(seen, values, 0)


def on_box(cells: np.ndarray, height: int, width: int, box: Box, smooth: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Cells that fill a box of a picture, at every pixel: values (..., height, width), and which pixels lie in the box.

    Values are interpolated between the centres of cells, or with smooth=False those of the cell that a pixel is in.
    """
    left, top, right, bottom = box
    across = (np.arange(width) + 0.5 - left) / (right - left)
    down = (np.arange(height) + 0.5 - top) / (bottom - top)
    seen = np.outer((down >= 0) & (down <= 1), (across >= 0) & (across <= 1))
    if smooth:
        return _sample(_sample(cells, down, -2), across, -1), seen
    rows, columns = (
        np.clip(np.floor(places * count), 0, count - 1).astype(int)
        for places, count in zip((down, across), cells.shape[-2:], strict=True)
    )
    return cells[..., rows[:, None], columns], seen


def upsample(grid: np.ndarray, height: int, width: int) -> np.ndarray:
    """A grid interpolated to (..., height, width): a cell's value stands at the cell's centre, not at its corner."""
    down, across = (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width
    return _sample(_sample(grid, down, -2), across, -1)


def _sample(grid: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    """Linear interpolation along an axis (-1 or -2) at places between 0 (the first edge) and 1 (the last edge)."""
    count = grid.shape[axis]
    positions = np.clip(places * count - 0.5, 0, count - 1)  # in cells, from the centre of the first one
    low = np.floor(positions).astype(int)
    high = np.minimum(low + 1, count - 1)
    share = (positions - low).astype(grid.dtype)  # the weight of the cell above
    share = share[:, None] if axis == -2 else share  # so that it broadcasts along the other axis
    with np.errstate(invalid="ignore"):  # an infinite score spreads as NaN
        return np.take(grid, low, axis) * (1 - share) + np.take(grid, high, axis) * share
