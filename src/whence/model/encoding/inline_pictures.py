"""Pictures whose patches are tokens of a text, as a language model that looks at pictures reads them.

Such a model's processor writes one token for a picture, and puts as many in its place as the picture has patches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from whence.core.inputs import Input
from whence.core.wording import first_sentence
from whence.model.encoding.features import NO_SPAN
from whence.model.encoding.pictures import seen, seen_box
from whence.model.encoding.tokens import call_tokenizer, readable, tokenizer_of

PART = "image"  # the part of an input that patches among tokens belong to


def picture_token(processor: Any) -> str:
    """The token that stands for a picture in a text."""
    token = getattr(processor, "image_token", None)
    if not isinstance(token, str) or not hasattr(processor, "image_processor"):
        raise ValueError(
            f"image-text-lm needs a processor with a token for pictures, and {type(processor).__name__} has none; pass "
            "whence.wrap(model, processor) with that of the model"
        )
    return token


def with_token(text: str, token: str) -> str:
    """The text with the picture's token: at the beginning where the text does not say where the picture stands."""
    return text if token in text else f"{token}\n{text}"


def with_picture(item: Input, processor: Any, picture: Image.Image, most: int | None) -> Input:
    """The text with the patches of the picture in place of its token; the model takes `most` tokens."""
    token, tokenizer = picture_token(processor), tokenizer_of(processor, "image-text-lm")
    places = np.flatnonzero(item.tensors["input_ids"] == tokenizer.convert_tokens_to_ids(token))
    if len(places) != 1:
        raise ValueError(
            f"the text holds {token} {len(places)} times, and one picture came: write it once or not at all"
        )
    block, arrays = _processed(processor, tokenizer, token, picture)
    of_patches = getattr(processor, "image_token_ids", None) or [processor.image_token_id]
    place, patches = int(places[0]), np.isin(block["input_ids"], of_patches)
    names = np.array(readable(tokenizer, block["input_ids"].tolist()), dtype=object)
    grid = _grid(int(patches.sum()), np.shape(arrays.get("pixel_values", ())), type(processor).__name__)
    names[patches] = [f"patch {row},{column}" for row in range(grid[0]) for column in range(grid[1])]
    count = len(names)
    total = len(item.features) + count - 1
    if most is not None and total > most:
        raise ValueError(f"text and picture have {total} tokens, and the model takes {most}; shorten the text")

    def put(column: Any, new: Any) -> np.ndarray:
        """A column of features with new entries in place of the picture's token."""
        return np.concatenate([np.asarray(column)[:place], new, np.asarray(column)[place + 1 :]])

    length = len(item.features)
    by_token = {name: put(array, block.get(name, array[:1].repeat(count))) for name, array in item.tensors.items()}
    further = {
        name: put(np.zeros(length, values.dtype), values) for name, values in block.items() if name not in by_token
    }
    image_processor = getattr(processor, "image_processor", processor)
    return replace(
        item,
        features=tuple(put(np.array(item.features, dtype=object), names).tolist()),
        streams=tuple(put(np.array(item.streams, dtype=object), np.array([item.streams[place]] * count, dtype=object))),
        special=put(item.special, ~patches),
        words=put(item.words, np.full(count, -1)),
        offsets=put(item.offsets, np.array([NO_SPAN] * count)),
        parts=tuple(put(np.array(item.parts, dtype=object), np.where(patches, PART, "").astype(object))),
        tensors=by_token | further | arrays,
        generated=tuple(number + count - 1 if number > place else number for number in item.generated),
        grid=grid,
        image=seen(image_processor, arrays["pixel_values"]),
        box=seen_box(image_processor, picture.size, arrays["pixel_values"].shape),
        size=picture.size,
    )


def extended(tensors: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """The arguments of a text with a picture for so many tokens more, of which none is of the picture."""
    length = len(tensors["input_ids"])
    return {
        name: np.concatenate([array, np.zeros(count, array.dtype)]) if array.shape == (length,) else array
        for name, array in tensors.items()
    }


def _processed(
    processor: Any, tokenizer: Any, token: str, picture: Image.Image
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What the processor makes of the token alone: the arguments by token, and those of the picture."""
    try:
        outputs = processor(text=token, images=picture, return_tensors="np")
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise ValueError(
            f"the processor cannot work on a picture of {picture.width} x {picture.height}: "
            f"{first_sentence(error)}; look at its settings"
        ) from error
    own = list(call_tokenizer(tokenizer, token)["input_ids"])
    before = own.index(tokenizer.convert_tokens_to_ids(token))
    length = outputs["input_ids"].shape[1]
    block, arrays = {}, {}
    for name, value in outputs.items():
        array = np.asarray(value)
        if array.shape == (1, length):
            block[name] = array[0, before : length - (len(own) - before - 1)]
        else:
            arrays[name] = array[0]
    return block, arrays


def _grid(count: int, pixels: tuple[int, ...], name: str) -> tuple[int, int]:
    """Rows and columns of the patches of a picture, which are as wide as high."""
    if len(pixels) == 3:
        rows = round((count * pixels[1] / pixels[2]) ** 0.5)
        if rows and count % rows == 0 and abs(count / rows / rows - pixels[2] / pixels[1]) < 1e-6:
            return rows, count // rows
    raise ValueError(
        f"{name} gives {count} tokens for pixels of shape {pixels}, which are no grid of patches over one picture; "
        "pass whence.wrap(..., encode=...) with the names of its features"
    )
