"""The weights of attention maps as a page holds them: rounded, all where they are few, else each query's largest.

A map is a record: `m` the largest weight, `w` codes from which a script makes weights, m * (code / top) ** 2. A map
that is not kept in full also has `k`, the key of every code, and `s`, the share (in 255ths) of each query's weight that
is kept. `a` holds the shares of all weight on special tokens, the first key, the query itself, the token before it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.core.attention_maps import AttentionMaps, AttentionSelection, Panel
from whence.views.colours import FOR
from whence.views.content.attention import Shares, shares

BUDGET = 2_000_000  # bytes of codes on a page; base64 takes a third more
ASKED = 1_000_000  # bytes of codes for maps that are kept in full because they were asked for
LEAST = 4  # keys of every query; where fewer would fit, the page holds only the layers that were asked for
FEWEST = 2  # keys of every query on a page of all layers, however large it becomes
THUMBNAIL, SMALL, MANY = 32, 16, 256  # most rows and columns of a thumbnail; SMALL with more than MANY heads
LINE = (128, 128, 128, 60)  # between thumbnails

Pair = tuple[str, str]


@dataclass(frozen=True)
class Plan:
    """Which weights of the maps a page holds, and how precisely."""

    size: int  # bytes of a code
    kept: int | None  # keys of every query; None: all
    only: tuple[int, ...] | None = None  # the only layers held, of the chosen streams; None: all layers of all

    @property
    def top(self) -> int:
        """The code of the largest weight."""
        return 256**self.size - 1


def plan(selection: AttentionSelection) -> Plan:
    """The most precise plan that fits: all weights in two bytes, in one byte, or the largest weights of every query."""
    cells = sum(_maps_of(w) * w.shape[2] * w.shape[3] for w in selection.maps.weights.values())
    rows = sum(_maps_of(w) * w.shape[2] for w in selection.maps.weights.values())
    layers = tuple(sorted({panel[0] for panel in selection.panels}))
    if 2 * cells <= BUDGET:
        return Plan(2, None)
    if cells <= BUDGET:
        return Plan(1, None)
    fits = _fitting(rows)
    if len(layers) > 1:
        return Plan(1, max(FEWEST, fits))
    if fits >= LEAST:
        return Plan(1, fits)
    chosen = selection.maps.weights[selection.streams]
    return Plan(1, max(FEWEST, _fitting(_maps_of(chosen[:1]) * chosen.shape[2])), layers)


def _maps_of(weights: np.ndarray) -> int:
    """How many maps there are: a head each, and the mean of every layer."""
    layers, heads = weights.shape[:2]
    return layers * (heads + 1)


def _fitting(rows: int) -> int:
    """How many keys per query fit: each takes a byte for the weight and two for the key; a query one for its share."""
    return (BUDGET // max(1, rows) - 1) // 3


def packed_pair(selection: AttentionSelection, pair: Pair, own: Plan) -> dict[str, Any]:
    """The maps between two streams: records by layer and head; the last record of a layer is the mean of its heads."""
    maps = selection.maps
    layers, heads = maps.weights[pair].shape[:2]
    asked = _asked(selection) if pair == selection.streams else set()
    held = range(layers) if own.only is None else own.only if pair == selection.streams else ()
    records = {}
    for layer in held:
        panels: list[Panel] = [*((layer, head) for head in range(heads)), (layer, None)]
        records[layer] = [_record(maps, pair, panel, own, panel in asked) for panel in panels]
    return {
        "streams": list(pair),
        "rows": list(maps.members(pair[0])),
        "columns": list(maps.members(pair[1])),
        "layers": layers,
        "heads": heads,
        "maps": records,
    }


def _asked(selection: AttentionSelection) -> set[Panel]:
    """The maps that were asked for and fit in full: with their whole layer, alone, or none."""
    rows, columns = selection.matrix(selection.panels[0]).shape
    layer, heads = selection.panels[0][0], selection.maps.weights[selection.streams].shape[1]
    whole: set[Panel] = {*((layer, head) for head in range(heads)), (layer, None)}
    candidates = [whole, set(selection.panels)] if set(selection.panels) <= whole else [set(selection.panels)]
    return next((found for found in candidates if len(found) * rows * columns <= ASKED), set())


def _record(maps: AttentionMaps, pair: Pair, panel: Panel, own: Plan, asked: bool) -> dict[str, Any]:
    weights = maps.weights[pair][panel[0]]
    exact = weights.mean(0) if panel[1] is None else weights[panel[1]]
    about = shares(maps, pair, exact)
    matrix = np.nan_to_num(np.maximum(exact, 0), nan=0.0, posinf=0.0)  # (query, key)
    largest = float(matrix.max(initial=0.0))
    record = {"m": float(f"{largest:.6g}"), "a": _about(about)}

    def codes(some: np.ndarray) -> np.ndarray:
        return np.round(np.sqrt(some / (largest or 1.0)) * own.top)

    if own.kept is None or asked or matrix.shape[1] <= 3 * own.kept:
        return record | {"w": _letters(codes(matrix), own.size)}
    keys = np.argpartition(-matrix, own.kept, axis=1)[:, : own.kept]  # (query, kept)
    kept, total = np.take_along_axis(matrix, keys, 1), matrix.sum(1)
    carried = kept.sum(1) / np.where(total > 0, total, 1)
    return record | {
        "w": _letters(codes(kept), own.size),
        "k": _letters(keys, 2),
        "s": _letters(np.floor(carried * 255 + 1e-6), 1),
    }


def _about(found: Shares) -> list[float | None]:
    named = (found.special, found.first, found.itself, found.before)
    return [None if share is None else round(share, 4) for share in named]


def _letters(codes: np.ndarray, size: int) -> str:
    """Whole numbers as letters: little-endian bytes in base64."""
    return base64.b64encode(np.ascontiguousarray(codes).astype(f"<u{size}").tobytes()).decode("ascii")


def sheet(selection: AttentionSelection, pair: Pair) -> np.ndarray:
    """(height, width, 4) uint8: a thumbnail of every head, layers below each other, each by its own largest weight.

    Where weights lie over a picture, a thumbnail is the picture's grid; else it is the matrix of queries and keys, of
    which neighbours are pooled to the largest.
    """
    layers, heads = selection.maps.weights[pair].shape[:2]
    side = SMALL if layers * heads > MANY else THUMBNAIL
    over_picture = selection.over_picture and pair == selection.streams
    lines = []
    for layer in range(layers):
        panels: list[Panel] = [(layer, head) for head in range(heads)]
        shown = [selection.weights(p) if over_picture else selection.maps.weights[pair][p[0], p[1]] for p in panels]
        lines.append(np.concatenate([_thumbnail(matrix, side) for matrix in shown], axis=1))
    return np.concatenate(lines)


def _thumbnail(matrix: np.ndarray, side: int) -> np.ndarray:
    """(height, width, 4) uint8: the weights as opacity, with a line at the right and at the bottom."""
    small = np.nan_to_num(np.maximum(matrix, 0), nan=0.0, posinf=0.0)
    for axis in (0, 1):
        count = small.shape[axis]
        if count > side:
            small = np.maximum.reduceat(small, np.arange(side) * count // side, axis=axis).repeat(2, axis=axis)
        else:
            small = small.repeat(max(1, 2 * side // count), axis=axis)
    largest = small.max(initial=0.0)
    pixels = np.empty((*small.shape, 4), dtype=np.uint8)
    pixels[..., :3] = FOR
    pixels[..., 3] = np.round(255 * small / (largest or 1.0))
    framed = np.full((small.shape[0] + 1, small.shape[1] + 1, 4), LINE, dtype=np.uint8)
    framed[:-1, :-1] = pixels
    return framed
