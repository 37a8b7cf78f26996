"""Masked variants of inputs: some features hidden, the others as they were, and the target's value on each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from whence.core.geometry import on_grid, patch_of_pixels, patch_size
from whence.core.inputs import Input
from whence.model.batching import MAX_TOKENS, Batch, ids_of, is_sequence, stream_names, stream_of
from whence.model.encoding import mask_ids
from whence.model.subject import Subject
from whence.model.targets import Aim

Way = Literal["auto", "mask", "unknown", "pad", "delete", "zero", "mean", "black", "blur"]
Unit = Literal["piece", "word"]

MAX_BYTES = 2**26  # of masked inputs that wait for their turn
MAX_ROWS = 128  # in one pass
_TOKENS = ("mask", "unknown", "pad")
_WAYS: dict[str, tuple[str, ...]] = {
    "tokens": (*_TOKENS, "delete", "zero"),
    "pixels": ("zero", "mean", "black", "blur"),
    "vectors": ("zero", "mean", "delete"),
}


@dataclass(frozen=True, eq=False, repr=False)
class Zeroed(Input):
    """An input some of whose word embeddings are set to zero, which no token id can say."""

    zeroed: np.ndarray | None = None  # (feature,) bool


class _Filling(NamedTuple):
    """What is put in place of a stream's hidden features: `fill`, into the entries of the argument `key`."""

    key: str
    feature: np.ndarray  # that each entry of the argument belongs to
    fill: np.ndarray


# ---- units -----------------------------------------------------------------------------------------------------------


def units(item: Input, unit: Unit = "piece") -> np.ndarray:
    """The unit that each feature is hidden with, (feature,): numbered from 0, -1 for special ones, which stay.

    A word is one unit; patches, regions and what belongs to no word are units of their own.
    """
    numbers = np.full(len(item.features), -1)
    number, previous = -1, None
    for i, special in enumerate(item.special):
        if special:
            previous = None
            continue
        word = item.words[i] if unit == "word" else -1
        key = (item.streams[i], item.parts[i], int(word))
        if word < 0 or key != previous:
            number += 1
        numbers[i], previous = number, key
    return numbers


def expanded(keep: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Kept units (variant, unit) to kept features (variant, feature)."""
    return np.concatenate([keep, np.ones((len(keep), 1), bool)], 1)[:, numbers]  # -1 is the column that stays


def shared(scores: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Scores of units to features: the pieces of a word get equal shares, special ones 0."""
    counts = np.bincount(numbers[numbers >= 0], minlength=len(scores))
    return np.append(scores / np.maximum(counts, 1), 0.0)[numbers]


# ---- hiding ----------------------------------------------------------------------------------------------------------


def ways(subject: Subject, item: Input, how: Way = "auto") -> dict[str, str]:
    """How the features of each stream are hidden.

    Tokens: "mask", "unknown", "pad" (the token of that name), "delete" (the others close up), "zero" (its word
    embedding). Patches: "zero" (pixels after normalisation), "mean" (the picture's), "black", "blur" (as wide as a
    patch). Regions and other vectors: "zero", "mean", "delete". "auto" is the first of mask, unknown and pad that the
    tokenizer has and that does not end the text, else zero. A way that fits one stream leaves the other to "auto".
    """
    batch = subject.batch([item])
    kinds = {stream: _kind(batch, stream) for stream in batch.streams}
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
    """`masked` for one input, prepared for many calls."""
    chosen = ways(subject, item, how)
    found = {stream: _filling(subject, item, stream, way) for stream, way in chosen.items()}
    fillings = [filling for filling in found.values() if filling]
    names = np.array(item.streams)
    deleted = np.isin(names, [stream for stream, way in chosen.items() if way == "delete"])
    embedded = np.isin(names, [stream for stream, filling in found.items() if not filling]) & ~deleted

    def variant(row: np.ndarray) -> Input:
        hidden = ~(row | item.special)
        tensors = dict(item.tensors)
        for key, feature, fill in fillings:
            tensors[key] = np.where(hidden[feature], fill, tensors[key])
        made = replace(item, tensors=tensors)
        if (hidden & embedded).any():
            made = Zeroed(**{f.name: getattr(made, f.name) for f in fields(Input)}, zeroed=hidden & embedded)
        return _without(made, hidden & deleted, subject.name) if (hidden & deleted).any() else made

    return lambda keep: map(variant, keep)


def _kind(batch: Batch, stream: str) -> str:
    if _pixels(batch.inputs[0], stream):
        return "pixels"
    return "tokens" if ids_of(batch.tensors, tuple(batch.streams), stream) else "vectors"


def _pixels(item: Input, stream: str) -> str | None:
    """The argument that holds a stream's picture, (channel, height, width)."""
    streams = stream_names(item)
    own = (
        n for n, a in item.tensors.items() if n.startswith("pixel") and a.ndim == 3 and stream_of(n, streams) == stream
    )
    return next(own, None)


def _usual(subject: Subject, kind: str) -> str:
    """What "auto" stands for."""
    if kind != "tokens":
        return "zero"
    known = mask_ids(subject.processor)
    tokenizer = getattr(subject.processor, "tokenizer", subject.processor)
    end = getattr(tokenizer, "eos_token_id", None)  # GPT-2's unknown token; CLIP reads where the first one stands
    return next((name for name in _TOKENS if known[name] not in (None, end)), "zero")


def _filling(subject: Subject, item: Input, stream: str, way: str) -> _Filling | None:
    """What replaces hidden features in the model's arguments; None where they are deleted, or zeroed once embedded."""
    if way == "delete":
        return None
    batch = subject.batch([item])
    kind = _kind(batch, stream)
    place = np.flatnonzero(np.array(item.streams) == stream)
    if kind == "pixels":
        return _pixel_filling(subject, item, stream, place, way)
    if way in _TOKENS:
        token = mask_ids(subject.processor)[way]
        if token is None:
            raise ValueError(f"the tokenizer of {subject.name} has no {way} token; use another mask, as 'zero'")
        key = str(ids_of(batch.tensors, tuple(batch.streams), stream))
        return _Filling(key, place, np.asarray(token, item.tensors[key].dtype))
    site = subject.sites(batch, "word").get(stream)
    if site is None or (site.where != "tensor" and kind == "vectors"):
        raise ValueError(f"where the {stream} of {subject.name} enters was not found; use mask='delete'")
    if site.where != "tensor":
        return None
    vectors = item.tensors[str(site.key)]
    plain = vectors[~item.special[place]]
    fill = plain.mean(0) if way == "mean" and len(plain) else np.zeros_like(vectors[0])
    return _Filling(str(site.key), place.reshape(-1, *[1] * (vectors.ndim - 1)), fill)


def _pixel_filling(subject: Subject, item: Input, stream: str, place: np.ndarray, way: str) -> _Filling:
    key = str(_pixels(item, stream))
    pixels = item.tensors[key]
    grid = item.grid if on_grid(item, stream) else None
    patches = place[~item.special[place]]
    if grid is None or grid[0] * grid[1] != len(patches):
        raise ValueError(
            f"a picture is hidden patch by patch, and that of {subject.name} has no grid; give one in encode="
        )
    height, width = pixels.shape[1:]
    feature = patches[patch_of_pixels(height, width, grid)]  # (height, width)
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


def _without(item: Input, gone: np.ndarray, name: str) -> Input:
    """The input without these features; the others close up."""
    streams = stream_names(item)
    stay = {stream: ~gone[np.array(item.streams) == stream] for stream in streams}
    for stream, kept in stay.items():
        if not kept.any():
            raise ValueError(
                f"mask='delete' leaves {name} nothing of the {stream} to read; use another mask, as 'zero'"
            )
    tensors = {}
    for key, array in item.tensors.items():
        kept = stay[stream_of(key, streams)]
        tensors[key] = array[kept] if is_sequence(key, array, len(kept)) else array
    columns: dict[str, Any] = {name: getattr(item, name)[~gone] for name in ("special", "words", "offsets")}
    for name in ("features", "streams", "parts"):
        columns[name] = tuple(value for value, out in zip(getattr(item, name), gone, strict=True) if not out)
    return replace(item, tensors=tensors, **columns)


# ---- values ----------------------------------------------------------------------------------------------------------


def values(subject: Subject, inputs: Iterable[Input], aim: Aim, rows: Iterable[int]) -> np.ndarray:
    """f of inputs, (input,), each with the target that `aim` has at its number in `rows`.

    Inputs that are equal and have the same target run once. Batches hold inputs of one length, so nothing is padded,
    and inputs are taken from the iterable only as they are needed. The aim must be fixed by a pass over plain inputs.
    """
    known: dict[tuple[int, bytes], float] = {}
    order: list[tuple[int, bytes]] = []
    waiting: dict[tuple[int, bytes], Input] = {}
    size = 0

    def run() -> None:
        for keys in _alike(waiting):
            found = _run(subject, [waiting[key] for key in keys], aim.chosen([row for row, _ in keys]))
            known.update(zip(keys, found.double().tolist(), strict=True))
        waiting.clear()

    for item, row in zip(inputs, rows, strict=False):
        key = (row, digest(item))
        order.append(key)
        if key not in known and key not in waiting:
            waiting[key] = item
            size += sum(array.nbytes for array in item.tensors.values())
        if size > MAX_BYTES:
            run()
            size = 0
    run()
    return np.array([known[key] for key in order], dtype=float)


def masked_values(
    subject: Subject, batch: Batch, aim: Aim, keeps: Sequence[np.ndarray], how: Way = "auto"
) -> list[np.ndarray]:
    """f of the variants of every example, one array (variant,) each; `keeps` has one (variant, feature) per example."""
    if not aim.fixed:
        subject.values(batch, aim)
    rows = [row for row, keep in enumerate(keeps) for _ in keep]
    variants = (v for item, keep in zip(batch.inputs, keeps, strict=True) for v in masked(subject, item, keep, how))
    found = values(subject, variants, aim, rows)
    return np.split(found, np.cumsum([len(keep) for keep in keeps])[:-1])


def _alike(waiting: dict[tuple[int, bytes], Input]) -> Iterator[list[tuple[int, bytes]]]:
    """The keys of inputs that go into one pass: all of one shape."""
    groups: dict[Any, list[tuple[int, bytes]]] = {}
    for key, item in waiting.items():
        shapes = tuple((name, array.shape) for name, array in item.tensors.items())
        groups.setdefault((item.streams, shapes), []).append(key)
    for (streams, _), keys in groups.items():
        size = max(1, min(MAX_ROWS, MAX_TOKENS // len(streams)))
        yield from (keys[start : start + size] for start in range(0, len(keys), size))


def _run(subject: Subject, inputs: list[Input], aim: Aim) -> Tensor:
    """f of inputs of one length."""
    batch = subject.batch(inputs)
    states = _zeroed(subject, batch)
    return subject.values(batch, aim) if states is None else subject.values_at(batch, aim, "word", states)


def logits(subject: Subject, inputs: list[Input]) -> Tensor:
    """The logits of inputs of one length: (input, class)."""
    batch = subject.batch(inputs)
    states = _zeroed(subject, batch)
    return subject.logits(batch) if states is None else subject.logits(batch, states)


def _zeroed(subject: Subject, batch: Batch) -> dict[str, Tensor] | None:
    """The word embeddings of a batch, by stream, some of them zero; None where none is to be."""
    inputs = batch.inputs
    if not any(isinstance(item, Zeroed) for item in inputs):
        return None
    none = np.zeros(len(inputs[0].features), bool)
    marks = np.stack([none if (m := getattr(item, "zeroed", None)) is None else m for item in inputs])
    zeroed = torch.from_numpy(marks).to(batch.mask.device)  # (batch, feature)
    names = tuple(batch.streams)
    ids = {s: batch.tensors[str(ids_of(batch.tensors, names, s))] for s in names if zeroed[:, batch.span(s)].any()}
    states = subject.embedded(batch, ids)
    return {s: state.masked_fill(zeroed[:, batch.span(s), None], 0.0) for s, state in states.items()}


def digest(item: Input) -> bytes:
    """Equal for inputs that the model cannot tell apart."""
    digest = hashlib.blake2b(digest_size=16)
    arrays = dict(item.tensors)
    zeroed = getattr(item, "zeroed", None)
    for name, array in sorted(arrays.items()) if zeroed is None else [*sorted(arrays.items()), ("$zeroed", zeroed)]:
        digest.update(f"{name}{array.shape}{array.dtype.str}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()
