"""Reading truths as people write them: marks of tokens, words or pixels, phrases and spans of a text, masks, boxes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from whence.core.inputs import Input
from whence.core.spans import Span, features_at, phrase_spans
from whence.core.wording import shown


def marks(item: Input, truth: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A truth as bools: a mark per score, in their shape, or a mark per pixel of the picture.

    For a text, the truth may name the deciding words: a phrase or a list of phrases, pairs of characters (start, end),
    or a mark per word between spaces; tokens that overlap with these places are marked, for every generated token
    alike. A truth is about the first text; {"pair": ...} names another. For a picture, it may be the file of a mask, or
    {"box": [x0, y0, x1, y1]}, or a list of such boxes: edges in pixels of the original picture (`_boxes`).
    """
    given = _mask(truth) if isinstance(truth, Path) else truth
    if isinstance(given, Mapping) and given.keys() == {"box"}:
        return _boxes(item, given["box"])
    if not isinstance(given, Mapping):
        array = _array(given)
        if array.dtype.kind in "biuf" and array.shape in (shape, *pictures(item)):
            return array.astype(bool)
        given = {next(iter(item.texts), ""): given}
    elif unknown := given.keys() - item.texts.keys():
        raise ValueError(
            f"the truth is of {shown(min(unknown, key=str))}, and the input has {', '.join(item.texts) or 'no text'}"
        )
    marked = np.zeros(len(item.features), bool)
    for part, named in given.items():
        text = item.texts.get(part, "")
        spans = _places(text, named)
        if spans is None:
            fitting = [shape, *pictures(item), *([(len(text.split()),)] if text else [])]
            raise ValueError(
                f"truth has the shape {_array(named).shape}, and {' or '.join(map(str, dict.fromkeys(fitting)))} was "
                "expected: one mark per score, per pixel or per word"
            )
        marked |= features_at(item, part, spans)
    return np.broadcast_to(marked, shape)


def pictures(item: Input) -> list[tuple[int, ...]]:
    """Heights and widths of the picture that the model saw and of the original."""
    seen = [] if item.grid is None or item.image is None else [item.image.shape[:2]]
    return seen if item.grid is None or item.size is None else [*seen, item.size[::-1]]


def _boxes(item: Input, boxes: Any) -> np.ndarray:
    """(height, width) bool: pixels of the original whose centres lie in one of the boxes x0, y0, x1, y1.

    Edges are counted from the left and top edge of the picture, so that 0, 0, width, height is all of it.
    """
    shapes = pictures(item)
    if not shapes:
        raise ValueError("a box is a part of a picture, and this input has no picture on a grid of patches")
    height, width = shapes[-1]
    marked = np.zeros((height, width), bool)
    array = _array(boxes)
    if array.dtype.kind not in "iuf" or array.ndim not in (1, 2) or array.shape[-1] != 4 or not array.size:
        raise ValueError(f"a box is four numbers, x0, y0, x1, y1, or a list of such fours, not {shown(boxes)}")
    for x0, y0, x1, y1 in array.reshape(-1, 4).tolist():
        box = f"the box {x0:g}, {y0:g}, {x1:g}, {y1:g}"
        if not (x0 < x1 and y0 < y1):
            raise ValueError(f"{box} is empty or reversed; x0 lies left of x1, and y0 above y1, which is counted down")
        if not (x0 >= 0 and x1 <= width and y0 >= 0 and y1 <= height):
            raise ValueError(f"{box} reaches outside of the picture, which is {width} x {height} pixels large")
        across, down = np.arange(width) + 0.5, np.arange(height) + 0.5
        inside = np.outer((y0 <= down) & (down <= y1), (x0 <= across) & (across <= x1))
        if not inside.any():
            raise ValueError(f"{box} holds the centre of no pixel; give edges in pixels of the original picture")
        marked |= inside
    return marked


def _array(truth: Any) -> np.ndarray:
    try:
        return np.asarray(truth)
    except ValueError as error:  # rows of different lengths
        raise ValueError("a truth is phrases of the text, or one mark per score, per pixel or per word") from error


def _places(text: str, truth: Any) -> list[Span] | None:
    """The places in a text that a truth names; None for a truth of another form."""
    given = _array([truth] if isinstance(truth, str) else truth)
    if given.dtype.kind in "UO" and all(isinstance(one, str) for one in given.flat):
        return [span for phrase in given.flat for span in _occurrences(text, str(phrase))]
    words = [word.span() for word in re.finditer(r"\S+", text)]
    if given.shape in ((len(words),), (0,)):
        return [word for word, mark in zip(words, given, strict=False) if mark]
    if given.ndim != 2 or given.shape[1] != 2 or given.dtype.kind not in "iu":
        return None
    for start, end in given:
        if not 0 <= start < end <= len(text):
            raise ValueError(f"the truth is of the characters {start} to {end}, and the text has {len(text)}")
    return [(int(start), int(end)) for start, end in given]


def _occurrences(text: str, phrase: str) -> list[Span]:
    """Every place where a phrase stands; an error where there is none."""
    if found := phrase_spans(text, phrase):
        return found
    raise ValueError(f"the truth names {shown(phrase)}, which is not in the text")


def _mask(file: Path) -> np.ndarray:
    """(height, width) bool: pixels with more than half of the highest brightness.

    In a picture that numbers its colours, pixels of any colour but the first.
    """
    with Image.open(file) as picture:
        numbered = picture.mode == "P"
        pixels = np.asarray(picture if numbered else picture.convert("L"), float)
    return np.asarray(pixels > (0 if numbered else pixels.max() / 2))
