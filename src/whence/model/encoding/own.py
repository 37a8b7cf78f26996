"""The user's own encoder, `whence.wrap(module, encode=...)`: what it returned, checked and made an `Input`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from whence.core.inputs import Input
from whence.core.pictures import upright_rgb
from whence.core.wording import first_sentence, quoted
from whence.model.encoding.features import NO_SPAN

REQUIRED = ("tensors", "features")
PER_FEATURE: dict[str, Any] = {"special": False, "words": -1, "offsets": NO_SPAN, "parts": ""}  # with what is meant
KEYS = (*REQUIRED, *PER_FEATURE, "texts", "grid", "image", "box", "size", "generated", "notes")


def from_own_encoder(raw: Any, encoder: Callable[[Any], Any]) -> Input:
    """The Input that the user's encoder describes; one sentence says what is wrong with what it returned."""
    given = encoder(raw)
    _check_keys(given)
    try:
        made = _as_input(raw, given)
    except (TypeError, ValueError) as error:
        if str(error).startswith("encode="):
            raise
        raise ValueError(f"encode= returned what cannot be read: {first_sentence(error)}") from error
    for key in made.tensors:
        _check_tokens(key, made)
    return made


def _as_input(raw: Any, given: Mapping[str, Any]) -> Input:
    features = {stream: [str(name) for name in names] for stream, names in given["features"].items()}
    if not any(features.values()):
        raise ValueError("encode= gave no features: there is nothing to score")
    columns = {key: _column(key, given.get(key, {}), features, default) for key, default in PER_FEATURE.items()}
    special = np.array(columns["special"], dtype=bool)
    streams = tuple(stream for stream, names in features.items() for _ in names)
    grid, image = given.get("grid"), given.get("image")
    if grid is not None:
        places = [part if part == "image" else stream for stream, part in zip(streams, columns["parts"], strict=True)]
        _check_grid(grid, [place for place, is_special in zip(places, special, strict=True) if not is_special])
    return Input(
        raw=_array("raw", raw) if hasattr(raw, "detach") else raw,
        features=tuple(name for names in features.values() for name in names),
        streams=streams,
        special=special,
        tensors={key: _whole(key, _array(key, value)) for key, value in given["tensors"].items()},
        words=np.array(columns["words"], dtype=int),
        offsets=np.array(columns["offsets"], dtype=int).reshape(-1, 2),
        parts=tuple(columns["parts"]),
        texts=dict(given.get("texts", {})),
        grid=None if grid is None else (int(grid[0]), int(grid[1])),
        image=None if image is None else np.asarray(upright_rgb(_array("image", image))),
        box=given.get("box"),
        size=given.get("size"),
        generated=_generated(given.get("generated", ()), len(streams)),
        notes=tuple(given.get("notes", ())),
    )


def _generated(numbers: Any, count: int) -> tuple[int, ...]:
    generated = tuple(int(number) for number in numbers)
    if any(not 0 <= number < count for number in generated):
        raise ValueError(f"encode= gave the generated features {generated}, and there are {count}, from 0")
    return generated


def _whole(key: str, array: np.ndarray) -> np.ndarray:
    """The array, token ids as torch takes them."""
    if not key.endswith("ids"):
        return array
    if array.dtype.kind not in "iu":
        raise ValueError(f"encode= must return {key!r} as whole numbers, not {array.dtype}")
    return array.astype(np.int64)


def _check_tokens(key: str, item: Input) -> None:
    """An error where token ids, or a mask of them, do not have one entry per feature of their stream."""
    names, array = tuple(dict.fromkeys(item.streams)), item.tensors[key]
    per_token = key in ("input_ids", "decoder_input_ids", "attention_mask", "decoder_attention_mask")
    if not per_token and not (key == "input" and array.dtype.kind in "iu" and array.ndim < 3):
        return
    stream = "target" if key.startswith("decoder_") and "target" in names else names[0]
    if array.shape != (item.streams.count(stream),):
        raise ValueError(
            f"encode= gave {key!r} of shape {array.shape} for the {item.streams.count(stream)} features of the stream "
            f"{stream!r}; give one entry per feature, and no axis of examples"
        )


def _check_keys(given: Any) -> None:
    """An error where the encoder did not return a dict with the required keys and none that is unknown."""
    if not isinstance(given, Mapping) or not set(REQUIRED) <= set(given) <= set(KEYS):
        came = f"the keys {quoted(given)}" if isinstance(given, Mapping) else f"a {type(given).__name__}"
        raise ValueError(
            f"encode= must return a dict with 'tensors', 'features' and of {quoted(sorted(KEYS))} what applies,"
            f" but {came} came"
        )
    for key in REQUIRED:
        if not isinstance(given[key], Mapping) or not given[key]:
            raise ValueError(f"encode= must return {key!r} as a dict that is not empty, but {given[key]!r} came")


def _column(key: str, given: Any, features: dict[str, list[str]], default: Any) -> list[Any]:
    """One value per feature, from lists by stream."""
    if not isinstance(given, Mapping) or not set(given) <= set(features):
        raise ValueError(f"encode= must return {key!r} as lists by stream, one of {quoted(features)}, not {given!r}")
    column: list[Any] = []
    for stream, names in features.items():
        values = list(given.get(stream, [default] * len(names)))
        if len(values) != len(names):
            raise ValueError(f"encode= gave {len(values)} {key} for {len(names)} features of the stream {stream!r}")
        column += values
    return column


def _check_grid(grid: Any, streams: list[str]) -> None:
    """An error where the grid has not as many cells as there are features for it; `streams` leaves out special ones."""
    count = streams.count("image") if "image" in streams else len(streams)
    if len(grid) != 2 or grid[0] * grid[1] != count:
        raise ValueError(f"encode= gave the grid {grid!r} for {count} features: rows times columns must equal them")


def _array(key: str, value: Any) -> np.ndarray:
    """A tensor or array as numpy, without importing torch."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()  # numpy has no bfloat16
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal lengths
        array = np.array(None)
    if array.dtype.kind not in "biufc":
        raise ValueError(f"encode= must return {key!r} as numbers in an array or tensor, not {type(value).__name__}")
    return array
