"""Building an `Input` from features, and joining two streams of one example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from whence.core.inputs import Input
from whence.model.encoding.features import Feature
from whence.model.encoding.words import word_numbers


def as_input(
    features: Sequence[Feature],
    streams: str | Sequence[str],
    tensors: dict[str, np.ndarray],
    texts: dict[str, str],
    **more: Any,
) -> Input:
    """An Input of these features; `streams` has one stream per feature, or the name of the only one.

    The field `raw` is None: `encode` fills it in, once all streams are joined.
    """
    return Input(
        raw=None,
        features=tuple(feature.name for feature in features),
        streams=(streams,) * len(features) if isinstance(streams, str) else tuple(streams),
        special=np.array([feature.special for feature in features], dtype=bool),
        tensors=tensors,
        words=np.array(word_numbers(features, texts), dtype=int),
        offsets=np.array([feature.span for feature in features], dtype=int).reshape(-1, 2),
        parts=tuple(feature.part for feature in features),
        texts=dict(texts),
        **more,
    )


def joined(first: Input, second: Input | None = None) -> Input:
    """Two streams of one example, one after the other; words and generated features are numbered on."""
    if second is None:
        return first
    feature_count, word_count = len(first.features), int(first.words.max(initial=-1)) + 1
    return replace(
        first,
        features=first.features + second.features,
        streams=first.streams + second.streams,
        special=np.concatenate([first.special, second.special]),
        tensors=first.tensors | second.tensors,
        words=np.concatenate([first.words, np.where(second.words < 0, -1, second.words + word_count)]),
        offsets=np.concatenate([first.offsets, second.offsets]),
        parts=first.parts + second.parts,
        texts=first.texts | second.texts,
        grid=second.grid or first.grid,
        image=first.image if second.image is None else second.image,
        box=second.box or first.box,
        size=second.size or first.size,
        generated=first.generated + tuple(feature_count + i for i in second.generated),
        notes=tuple(dict.fromkeys(first.notes + second.notes)),
    )
