"""Masked variants of inputs: some features hidden, the others as they were. `masked_runs` asks the model about them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.ndimage import gaussian_filter

from whence.core.geometry import on_grid, patch_of_pixels, patch_size, patches
from whence.core.inputs import Input, has_inline_picture, unmerged
from whence.model.batching import Batch, ids_of, is_sequence, stream_names, stream_of
from whence.model.encoding import mask_ids
from whence.model.subject import Subject

Way = Literal["auto", "mask", "unknown", "pad", "delete", "zero", "mean", "black", "blur"]
PixelWay = Literal["auto", "zero", "mean", "black", "blur"]

_TOKENS = ("mask", "unknown", "pad")
_WAYS: dict[str, tuple[str, ...]] = {
    "tokens": (*_TOKENS, "delete", "zero"),
    "pixels": ("zero", "mean", "black", "blur"),
    "vectors": ("zero", "mean", "delete"),
}


@dataclass(frozen=True, eq=False, repr=False)
class Zeroed(Input):
    """An input some of whose word embeddings are set to zero; token ids alone cannot express that."""

    zeroed: np.ndarray | None = None  # (feature,) bool


class _Filling(NamedTuple):
    """How a stream's features are hidden in one of the model's arguments."""

    key: str  # name of the argument
    feature: np.ndarray  # the number of the feature that each entry of the argument belongs to
    fill: np.ndarray  # what replaces the entries of hidden features


# ---- units -----------------------------------------------------------------------------------------------------------


def units(item: Input) -> np.ndarray:
    """The number of each feature's unit, (feature,), from 0; special features, which are never hidden, have -1.

    Features of a unit are hidden together: those of a word or a sentence where the input is explained at such a level
    (`core/levels.py`), else every feature is a unit by itself.
    """
    numbers = np.full(len(item.features), -1)
    of_level = np.arange(len(item.features)) if item.units is None else item.units
    _, numbers[~item.special] = np.unique(of_level[~item.special], return_inverse=True)
    return numbers


def expanded(keep: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Kept units (variant, unit) to kept features (variant, feature)."""
    return np.concatenate([keep, np.ones((len(keep), 1), bool)], 1)[:, numbers]  # unit -1 is the column of ones


def shared(scores: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Scores of units to scores of features: the tokens of a unit get equal shares, special features 0."""
    counts = np.bincount(numbers[numbers >= 0], minlength=len(scores))
    return np.append(scores / np.maximum(counts, 1), 0.0)[numbers]


def added_by_model(item: Input) -> np.ndarray:
    """(feature,) bool: tokens that the model itself adds to a picture. They are in no argument: nothing hides them."""
    return item.special & np.array([on_grid(item, stream) for stream in item.streams], bool)


# ---- hiding ----------------------------------------------------------------------------------------------------------


def ways(subject: Subject, item: Input, how: Way = "auto") -> dict[str, str]:
    """How the features of each stream are hidden.

    Tokens: "mask", "unknown", "pad" (the token of that name), "delete" (the others close up), "zero" (the word
    embedding). Patches: "zero" (pixels after normalisation), "mean" (the picture's), "black", "blur" (as wide as a
    patch). Regions and other vectors: "zero", "mean", "delete". "auto" is the first of mask, unknown and pad that the
    tokenizer has and that does not end the text, else zero. A way that fits one stream leaves the other to "auto".
    """
    batch = subject.batch([unmerged(item)])
    kinds = {stream: _kind(batch, stream) for stream in batch.streams}
    if has_inline_picture(item):
        kinds["image"] = "pixels"
    if how != "auto" and not any(how in _WAYS[kind] for kind in kinds.values()):
        fitting = ", ".join(dict.fromkeys(way for kind in kinds.values() for way in _WAYS[kind]))
        raise ValueError(f"{' and '.join(kinds.values())} cannot be hidden by mask={how!r}; use one of {fitting}")
    return {stream: how if how in _WAYS[kind] else _usual(subject, kind) for stream, kind in kinds.items()}


def masked(subject: Subject, item: Input, keep: np.ndarray, how: Way = "auto") -> Iterator[Input]:
    """The variants of an input that keep what a row of `keep`, (variant, feature) bool, marks and hide the rest.

    Special features always stay. `ways` says how features are hidden.
    """
    return hiding(subject, item, how)(keep)


def hiding(subject: Subject, item: Input, how: Way = "auto") -> Callable[[np.ndarray], Iterator[Input]]:
    """`masked` for one input, prepared for many calls. Where the input's features are units, it hides whole units."""
    if item.pieces is not None:
        of_tokens, numbers = hiding(subject, unmerged(item), how), item.units
        return lambda keep: of_tokens(keep[:, numbers])
    way_of = ways(subject, item, how)
    filling_of = {stream: _filling(subject, item, stream, way) for stream, way in way_of.items()}
    fillings = [filling for filling in filling_of.values() if filling]
    streams = np.array(item.streams, dtype=object)
    if has_inline_picture(item):
        streams[patches(item)] = "image"
    deleted = np.isin(streams, [stream for stream, way in way_of.items() if way == "delete"])
    zeroed = np.isin(streams, [stream for stream, filling in filling_of.items() if not filling]) & ~deleted

    def make_variant(row: np.ndarray) -> Input:
        hidden = ~(row | item.special)
        tensors = dict(item.tensors)
        for key, feature, fill in fillings:
            tensors[key] = np.where(hidden[feature], fill, tensors[key])
        variant = replace(item, tensors=tensors)
        if (hidden & zeroed).any():
            variant = Zeroed(**{f.name: getattr(variant, f.name) for f in fields(Input)}, zeroed=hidden & zeroed)
        gone = _after_something(item, hidden & deleted)
        return _without(variant, gone, subject.name) if gone.any() else variant

    return lambda keep: map(make_variant, keep)


def picture_of(item: Input) -> np.ndarray | None:
    """The picture as the model is given it, (channel, height, width); None where there is none on a grid of patches."""
    stream = next((stream for stream in stream_names(item) if on_grid(item, stream)), None)
    key = None if stream is None else _pixels(item, stream)
    return None if key is None else item.tensors[key]


def blending(subject: Subject, item: Input, how: PixelWay | None = "auto") -> Callable[..., Input]:
    """Soft masks: a function of a mask m, (height, width), that gives a variant with the picture m x + (1 - m) (z + e).

    Every pixel of m is from 0, hidden, to 1, kept. z is what `how` puts in place of hidden pixels, as for whole patches
    in `ways`, or x itself where it is None; e is noise that the function may be given, (channel, height, width).
    """
    stream = next(stream for stream in stream_names(item) if on_grid(item, stream))
    positions = np.flatnonzero(np.array(item.streams) == stream)
    key, _, fill = _pixel_filling(subject, item, stream, positions, "zero" if how in ("auto", None) else str(how))
    pixels = item.tensors[key]

    def make_variant(mask: np.ndarray, noise: np.ndarray | float = 0.0) -> Input:
        hidden = (pixels if how is None else fill) + noise
        mixed = mask * pixels + (1 - mask) * hidden
        return replace(item, tensors={**item.tensors, key: mixed.astype(pixels.dtype)})

    return make_variant


def _kind(batch: Batch, stream: str) -> str:
    """What the features of a stream are: "pixels", "tokens" or "vectors"."""
    if _pixels(batch.inputs[0], stream):
        return "pixels"
    return "tokens" if ids_of(batch.tensors, tuple(batch.streams), stream) else "vectors"


def _pixels(item: Input, stream: str) -> str | None:
    """The argument that holds a stream's picture, (channel, height, width)."""
    if has_inline_picture(item):
        return "pixel_values" if stream == "image" else None
    streams = stream_names(item)
    names = (
        name
        for name, array in item.tensors.items()
        if name.startswith("pixel") and array.ndim == 3 and stream_of(name, streams) == stream
    )
    return next(names, None)


def _usual(subject: Subject, kind: str) -> str:
    """The way that "auto" stands for."""
    if kind != "tokens":
        return "zero"
    known = mask_ids(subject.processor)
    tokenizer = getattr(subject.processor, "tokenizer", subject.processor)
    # The end token hides nothing: GPT-2 names it as its unknown token, and CLIP reads its state where it first stands.
    end = getattr(tokenizer, "eos_token_id", None)
    return next((name for name in _TOKENS if known[name] not in (None, end)), "zero")


def _filling(subject: Subject, item: Input, stream: str, way: str) -> _Filling | None:
    """How features are hidden in an argument; None where they are deleted, or their word embeddings set to zero."""
    if way == "delete":
        return None
    batch = subject.batch([item])
    kind = _kind(batch, stream)
    positions = np.flatnonzero(np.array(item.streams) == stream)
    if kind == "pixels":
        return _pixel_filling(subject, item, stream, patches(item) if has_inline_picture(item) else positions, way)
    if way in _TOKENS:
        token = mask_ids(subject.processor)[way]
        if token is None:
            raise ValueError(f"the tokenizer of {subject.name} has no {way} token; use another mask, as 'zero'")
        key = str(ids_of(batch.tensors, tuple(batch.streams), stream))
        fill = np.full(len(positions), token, item.tensors[key].dtype)
        if has_inline_picture(item):  # patches are hidden in the picture, and their tokens stay
            of_picture = np.isin(positions, patches(item))
            fill[of_picture] = item.tensors[key][of_picture]
        return _Filling(key, positions, fill)
    site = subject.sites(batch, "word").get(stream)
    if site is None or (site.where != "tensor" and kind == "vectors"):
        raise ValueError(f"where the {stream} of {subject.name} enters was not found; use mask='delete'")
    if site.where != "tensor":
        return None
    vectors = item.tensors[str(site.key)]
    not_special = vectors[~item.special[positions]]
    fill = not_special.mean(0) if way == "mean" and len(not_special) else np.zeros_like(vectors[0])
    return _Filling(str(site.key), positions.reshape(-1, *[1] * (vectors.ndim - 1)), fill)


def _pixel_filling(subject: Subject, item: Input, stream: str, positions: np.ndarray, way: str) -> _Filling:
    key = str(_pixels(item, stream))
    pixels = item.tensors[key]
    grid = item.grid if on_grid(item, stream) else None
    on_it = positions[~item.special[positions]]
    if grid is None or grid[0] * grid[1] != len(on_it):
        raise ValueError(
            f"a picture is hidden patch by patch, and that of {subject.name} has no grid; give one in encode="
        )
    height, width = pixels.shape[1:]
    feature = on_it[patch_of_pixels(height, width, grid)]  # (height, width)
    if way == "black":
        fill = _black(subject).reshape(-1, 1, 1)
    elif way == "blur":
        fill = gaussian_filter(pixels, (0, *patch_size(height, width, grid)))
    else:
        fill = pixels.mean((1, 2), keepdims=True) if way == "mean" else np.zeros(())
    return _Filling(key, feature, np.asarray(fill, pixels.dtype))


def _black(subject: Subject) -> np.ndarray:
    """Black as the image processor normalises it, by channel."""
    processor = getattr(subject.processor, "image_processor", subject.processor)
    if processor is None:
        raise ValueError(f"what black is to {subject.name} is not known without an image processor; use mask='zero'")
    if not getattr(processor, "do_normalize", False):
        return np.zeros(1)
    return -np.asarray(processor.image_mean) / np.asarray(processor.image_std)


def _after_something(item: Input, gone: np.ndarray) -> np.ndarray:
    """The features to delete, (feature,) bool; one token before a statement stays, for the statement to follow."""
    if item.answer:
        before = np.array(item.streams[: item.decides[0] + 1]) == item.streams[-1]
        gone[item.decides[0]] &= not gone[: len(before)][before].all()
    return gone


def _without(item: Input, gone: np.ndarray, name: str) -> Input:
    """The input without the features `gone`, (feature,) bool; the others close up."""
    streams = stream_names(item)
    kept_of = {stream: ~gone[np.array(item.streams) == stream] for stream in streams}
    for stream, kept in kept_of.items():
        if not kept.any():
            raise ValueError(
                f"mask='delete' leaves {name} nothing of the {stream} to read; use another mask, as 'zero'"
            )
    tensors = {}
    for key, array in item.tensors.items():
        kept = kept_of[stream_of(key, streams)]
        tensors[key] = array[kept] if is_sequence(key, array, len(kept)) else array
    columns: dict[str, Any] = {name: getattr(item, name)[~gone] for name in ("special", "words", "offsets")}
    for name in ("features", "streams", "parts"):
        columns[name] = tuple(value for value, is_gone in zip(getattr(item, name), gone, strict=True) if not is_gone)
    columns["units"] = None if item.units is None else item.units[~gone]
    numbers = np.where(gone, -1, np.cumsum(~gone) - 1)
    read = np.cumsum(~gone) - 1 if item.answer else numbers  # statements are read at the last token kept
    columns["decides"] = tuple(int(read[place]) if place >= 0 else -1 for place in item.decides)
    columns["ignored"] = tuple(int(numbers[place]) for place in item.ignored if numbers[place] >= 0)
    return replace(item, tensors=tensors, **columns)


# ---- telling variants apart ------------------------------------------------------------------------------------------


def digest(item: Input) -> bytes:
    """A digest that is equal for inputs that the model cannot tell apart."""
    digest = hashlib.blake2b(digest_size=16)
    arrays = dict(item.tensors)
    if item.decides:
        arrays["$decides"] = np.array([item.decides, item.answer or item.decides])
    if item.ignored:
        arrays["$ignored"] = np.array(item.ignored)
    zeroed = getattr(item, "zeroed", None)
    for name, array in sorted(arrays.items()) if zeroed is None else [*sorted(arrays.items()), ("$zeroed", zeroed)]:
        digest.update(f"{name}{array.shape}{array.dtype.str}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
