"""Pictures: any of them as upright RGB, and what of it the model saw."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps


def picture(value: Any) -> Image.Image:
    """Any picture as an upright RGB image; what is transparent shows white."""
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


def _from_array(array: np.ndarray) -> Image.Image:
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
    picture = ImageOps.exif_transpose(picture)
    if picture.mode[0] in "IF":  # 16 and 32 bits, which Pillow would clip at 255
        values = np.asarray(picture).astype(np.float64)
        tops = {"F": (1, 255), "I": (255, 65535)}.get(picture.mode, (65535,))
        top = next((top for top in tops if values.max() <= top), tops[-1])
        return Image.fromarray(np.clip(np.round(values * (255 / top)), 0, 255).astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return picture.convert("RGB")


def seen(processor: Any, pixels: np.ndarray) -> np.ndarray | None:
    """The picture the model saw: the processor's normalisation undone."""
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        return None
    values = pixels.astype(np.float64).transpose(1, 2, 0)  # (height, width, channel)
    if getattr(processor, "do_normalize", False):
        values = values * np.asarray(processor.image_std) + np.asarray(processor.image_mean)
    if getattr(processor, "do_rescale", False):
        values = values / processor.rescale_factor
    if getattr(processor, "do_flip_channel_order", False):
        values = values[..., ::-1]
    seen = np.clip(np.round(values), 0, 255).astype(np.uint8)
    return np.broadcast_to(seen, (*seen.shape[:2], 3)).copy()


def box(processor: Any, size: tuple[int, int], shape: tuple[int, ...]) -> tuple[float, float, float, float] | None:
    """What the model saw, in pixels of the original; it may reach outside where the processor padded."""
    width, height = size
    if getattr(processor, "do_pad", False) and getattr(processor, "pad_size", None):
        return None
    if not getattr(processor, "do_center_crop", False):
        return (0.0, 0.0, float(width), float(height))
    resized = _resized(processor, width, height)
    crop = processor.crop_size
    if resized is None or (crop["height"], crop["width"]) != shape[-2:]:
        return None
    across, down = width / resized[0], height / resized[1]
    left, top = (resized[0] - crop["width"]) // 2, (resized[1] - crop["height"]) // 2
    return (left * across, top * down, (left + crop["width"]) * across, (top + crop["height"]) * down)


def _resized(processor: Any, width: int, height: int) -> tuple[int, int] | None:
    """Width and height after the processor's resizing, None where it has a way of its own."""
    if not getattr(processor, "do_resize", False):
        return width, height
    own = getattr(type(processor), "resize", None)
    if getattr(processor, "crop_pct", None) or (own and own.__qualname__.startswith(type(processor).__name__)):
        return None
    size = {key: value for key, value in dict(processor.size).items() if value}
    if set(size) == {"height", "width"}:
        return size["width"], size["height"]
    if set(size) != {"shortest_edge"}:
        return None
    short, long = size["shortest_edge"], int(size["shortest_edge"] * max(width, height) / min(width, height))
    return (short, long) if width <= height else (long, short)
