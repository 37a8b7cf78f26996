"""Pictures to `Input`: what the image processor makes, the patches, and what of the picture the model saw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from whence.core.geometry import Box
from whence.core.inputs import Input
from whence.core.wording import first_sentence
from whence.model.encoding.building import as_input
from whence.model.encoding.features import Feature
from whence.model.encoding.tokens import part_of_processor


@dataclass(frozen=True)
class Layout:
    """How a vision model lays out its tokens: special ones, a grid of patches, special ones."""

    prefix: tuple[str, ...]
    rows: int
    cols: int
    suffix: tuple[str, ...] = ()


def encode_picture(processor: Any, picture: Image.Image, layout: Layout | None, task: str) -> Input:
    """A picture as the image processor gives it, its patches named row by row; no features without a layout."""
    processor = part_of_processor(processor, "image_processor", "preprocess")
    if processor is None:
        raise ValueError(f"{task} needs an image processor: pass whence.wrap(model, image_processor)")
    try:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # pixels are looked at below
            outputs = processor(images=picture, return_tensors="np")
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise ValueError(
            f"the image processor cannot work on a picture of {picture.width} x {picture.height}: "
            f"{first_sentence(error)}; look at its settings"
        ) from error
    tensors = {key: np.asarray(value)[0] for key, value in outputs.items()}
    pixels = tensors["pixel_values"]
    if not np.isfinite(pixels).all():
        raise ValueError(
            "the image processor must give finite pixels, but some are infinite or NaN: look at its image_mean, "
            "image_std and rescale_factor"
        )
    return as_input(
        [] if layout is None else _features(layout),
        "image",
        tensors,
        {},
        grid=None if layout is None else (layout.rows, layout.cols),
        image=seen(processor, pixels),
        box=seen_box(processor, picture.size, pixels.shape),
        size=picture.size,
    )


def _features(layout: Layout) -> list[Feature]:
    """The tokens of a layout, in the model's order."""
    patches = [Feature(f"patch {row},{column}") for row in range(layout.rows) for column in range(layout.cols)]
    before, after = ([Feature(name, special=True) for name in names] for names in (layout.prefix, layout.suffix))
    return [*before, *patches, *after]


def seen(processor: Any, pixels: np.ndarray) -> np.ndarray | None:
    """The picture that the model saw, (height, width, 3) uint8: the processor's normalisation undone."""
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        return None
    values = pixels.astype(np.float64).transpose(1, 2, 0)  # (height, width, channel)
    if getattr(processor, "do_normalize", False):
        values = values * np.asarray(processor.image_std) + np.asarray(processor.image_mean)
    if getattr(processor, "do_rescale", False):
        values = values / processor.rescale_factor
    if getattr(processor, "do_flip_channel_order", False):
        values = values[..., ::-1]
    picture = np.clip(np.round(values), 0, 255).astype(np.uint8)
    return np.broadcast_to(picture, (*picture.shape[:2], 3)).copy()


def seen_box(processor: Any, size: tuple[int, int], shape: tuple[int, ...]) -> Box | None:
    """The rectangle of the original that the model saw, in pixels of the original; None where it is not known.

    It may reach outside the original where the processor padded.
    """
    width, height = size
    if getattr(processor, "do_pad", False) and getattr(processor, "pad_size", None):
        return None
    if not getattr(processor, "do_center_crop", False):
        return (0.0, 0.0, float(width), float(height))
    resized = _resized(processor, width, height)
    crop = processor.crop_size
    if resized is None or (crop["height"], crop["width"]) != shape[-2:]:
        return None
    across, down = width / resized[0], height / resized[1]  # pixels of the original per pixel after resizing
    left, top = (resized[0] - crop["width"]) // 2, (resized[1] - crop["height"]) // 2
    return (left * across, top * down, (left + crop["width"]) * across, (top + crop["height"]) * down)


def _resized(processor: Any, width: int, height: int) -> tuple[int, int] | None:
    """Width and height after the processor's resizing, None where its class resizes in a way of its own."""
    if not getattr(processor, "do_resize", False):
        return width, height
    resize = getattr(type(processor), "resize", None)
    overridden = resize is not None and resize.__qualname__.startswith(type(processor).__name__)
    if getattr(processor, "crop_pct", None) or overridden:
        return None
    size = {key: value for key, value in dict(processor.size).items() if value}
    if set(size) == {"height", "width"}:
        return size["width"], size["height"]
    if set(size) != {"shortest_edge"}:
        return None
    short, long = size["shortest_edge"], int(size["shortest_edge"] * max(width, height) / min(width, height))
    return (short, long) if width <= height else (long, short)
