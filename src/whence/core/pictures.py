"""Pictures in any form (files, PIL images, arrays) as upright RGB."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

LONGEST = 1024  # pixels of the longer side of a picture that a result keeps to be shown


def upright_rgb(value: Any) -> Image.Image:
    """A picture, given as a path, a PIL image or an array, as an upright RGB image; what is transparent shows white."""
    try:
        if isinstance(value, str | Path):
            with Image.open(value) as file:
                file.load()
                return _rgb(file)
        if isinstance(value, Image.Image):
            return _rgb(value)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        name = f"the picture {str(value)!r}" if isinstance(value, str | Path) else "the picture"
        raise ValueError(f"{name} cannot be read ({error}): give a PNG, JPEG or other common image") from error
    if isinstance(value, np.ndarray):
        return _rgb(_from_array(value))
    raise TypeError(f"a picture must be a PIL image, an array or a path, but a {type(value).__name__} came")


def enough_pixels(width: int, height: int, longest: int = LONGEST) -> tuple[int, int]:
    """The width and height in which a picture is kept: at most `longest` pixels on the longer side."""
    share = min(1.0, longest / max(width, height))
    return max(1, round(width * share)), max(1, round(height * share))


def bounded(picture: np.ndarray, longest: int = LONGEST) -> np.ndarray:
    """A picture (height, width, 3) uint8, made smaller where it is larger than results need it."""
    height, width = picture.shape[:2]
    size = enough_pixels(width, height, longest)
    if size == (width, height):
        return picture
    return np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS))


def _from_array(array: np.ndarray) -> Image.Image:
    """An array of bytes, or of floats between 0 and 1, as a PIL image."""
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or not array.size:
        raise ValueError(
            f"a picture array must have the shape (height, width) or (height, width, 1, 3 or 4), not {array.shape}"
        )
    if np.issubdtype(array.dtype, np.floating):
        if not (array.min() >= 0 and array.max() <= 1):  # also when there are NaNs
            raise ValueError(f"a float picture must lie in [0, 1], but it goes from {array.min()} to {array.max()}")
        array = np.round(array * 255).astype(np.uint8)
    if array.dtype != np.uint8:
        raise ValueError(f"a picture array must be uint8 or float in [0, 1], but it is {array.dtype}")
    return Image.fromarray(np.ascontiguousarray(array[..., 0] if array.shape[2:] == (1,) else array))


def _rgb(picture: Image.Image) -> Image.Image:
    """A PIL image of any mode, turned as its EXIF data say, in RGB."""
    if 0 in picture.size:
        raise ValueError(f"a picture needs pixels, and this one has {picture.width} x {picture.height}")
    picture = ImageOps.exif_transpose(picture)
    if picture.mode[0] in "IF":  # 16 and 32 bits, which Pillow would clip at 255
        values = np.asarray(picture).astype(np.float64)
        # What is white depends on who wrote the file: the smallest usual value that no pixel exceeds.
        whites = {"F": (1, 255), "I": (255, 65535)}.get(picture.mode, (65535,))
        white = next((white for white in whites if values.max() <= white), whites[-1])
        return Image.fromarray(np.clip(np.round(values * (255 / white)), 0, 255).astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return picture.convert("RGB")
