"""All attention weights of one example, and selections of them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from whence.core import display
from whence.core.geometry import patches
from whence.core.inputs import Input, check_axis
from whence.core.looks import NAMES as LOOK_OPTIONS
from whence.core.looks import Look, look_of
from whence.core.results import Result
from whence.core.storage import floats, read_only
from whence.core.wording import shown

Panel = tuple[int, int | None]  # layer and head; None is the mean over the heads


@dataclass(frozen=True, eq=False, repr=False)
class AttentionMaps(Result):
    """All attention weights of one example, as the model used them: a row is a query, its columns are the keys."""

    weights: dict[tuple[str, str], np.ndarray]  # (query stream, key stream) -> (layer, head, query, key); "*": all
    input: Input
    model: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.weights:
            raise ValueError("attention maps need the weights of at least one pair of streams, got none")
        kept = {pair: read_only(floats("weights", array)) for pair, array in self.weights.items()}
        for pair, array in kept.items():
            if array.ndim != 4:
                raise ValueError(f"weights of {pair} must have the axes layer, head, query, key, got {array.shape}")
            for axis, stream, found in zip(("query", "key"), pair, array.shape[2:], strict=True):
                check_axis(f"weights of {pair}", axis, found, len(self.members(stream)))
        self._set("weights", kept)

    def __repr__(self) -> str:
        shapes = (f"{':'.join(pair)} {' x '.join(map(str, array.shape))}" for pair, array in self.weights.items())
        return f"AttentionMaps({', '.join(shapes)} of {self.input!r})"

    def members(self, stream: str) -> tuple[int, ...]:
        """The features of a stream, in order: the names of a map's rows or columns."""
        return tuple(i for i, name in enumerate(self.input.streams) if stream in ("*", name))

    def matrix(
        self, layer: int = -1, head: int | None = None, streams: str | tuple[str, str] | None = None
    ) -> np.ndarray:
        """(query, key) weights of one head, or the mean over the heads."""
        chosen = self.view(layer=layer, head=head, streams=streams)
        return chosen.matrix(chosen.panels[0])

    def view(
        self,
        *,
        layer: int | None = None,
        head: int | Sequence[int] | None = None,
        query: int | str | None = None,
        streams: str | tuple[str, str] | None = None,
        all_heads: bool = False,
        all_layers: bool = False,
    ) -> AttentionSelection:
        """A selection of the maps, which prints, plots and writes itself.

        By default it is the mean over the heads of the last layer; of an encoder-decoder, its cross-attention; of a
        picture, the attention of its first special token. `head` is a number or a list of them, `query` a token's
        number or name, or "all"; `streams` names those of queries and keys, as "target:source".
        """
        pair = _pair(self, streams)
        panels = _panels(self.weights[pair].shape[:2], layer, head, all_heads, all_layers)
        rows, columns = self.members(pair[0]), self.members(pair[1])
        on_picture = set(patches(self.input).tolist())
        over_picture = bool(on_picture) and on_picture <= set(columns) and query != "all"
        return AttentionSelection(self, pair, panels, _query_row(self, rows, query, over_picture), over_picture)

    def to_html(self, **choice: Any) -> str:
        """A self-contained page; takes what `view` takes and, over a picture, the options of `Look`."""
        choice, look = _apart(choice)
        return display.page(self.view(**choice), look)

    def plot(self, kind: str | None = None, **choice: Any) -> Any:
        """A matplotlib Figure, of a kind; takes what `view` takes and, over a picture, the options of `Look`."""
        choice, look = _apart(choice)
        return display.figure(self.view(**choice), look, kind)


@dataclass(frozen=True, eq=False, repr=False)
class AttentionSelection(Result):
    """Some of the maps: layers and heads, all queries or one of them, as a matrix or over the picture."""

    maps: AttentionMaps
    streams: tuple[str, str]  # of queries and keys
    panels: tuple[Panel, ...]
    query: int | None  # the only row that is selected; None: all of them
    over_picture: bool  # whether weights are those of the patches, on their grid

    def __repr__(self) -> str:
        return f"AttentionSelection({len(self.panels)} of the maps of {self.maps!r})"

    def save(self, path: str | PathLike[str]) -> None:
        """Write JSON of all maps, from which `AttentionMaps.load(path).view(...)` makes the selection again."""
        self.maps.save(path)

    @property
    def rows(self) -> list[str]:
        """The names of the queries."""
        return [self.maps.input.features[i] for i in self.maps.members(self.streams[0])]

    @property
    def columns(self) -> list[str]:
        """The names of the keys."""
        return [self.maps.input.features[i] for i in self.maps.members(self.streams[1])]

    @property
    def patch_columns(self) -> list[int]:
        """The keys that are patches of the picture, row by row of the grid."""
        place = {feature: n for n, feature in enumerate(self.maps.members(self.streams[1]))}
        return [place[feature] for feature in patches(self.maps.input).tolist()]

    def matrix(self, panel: Panel) -> np.ndarray:
        """(query, key) weights of all queries."""
        weights = self.maps.weights[self.streams][panel[0]]
        return weights.mean(0) if panel[1] is None else weights[panel[1]]

    def row(self, panel: Panel) -> np.ndarray:
        """(key,) weights of the selected query; the mean over all queries where none is selected."""
        matrix = self.matrix(panel)
        return matrix.mean(0) if self.query is None else matrix[self.query]

    def weights(self, panel: Panel) -> np.ndarray:
        """The weights that a map shows: those of the patches on their grid, or (query, key)."""
        if not self.over_picture:
            return self.matrix(panel)
        return self.row(panel)[self.patch_columns].reshape(self.maps.input.grid)


def _apart(options: dict[str, Any]) -> tuple[dict[str, Any], Look | None]:
    """Options split into those that `view` takes and the look over a picture."""
    look = look_of({name: value for name, value in options.items() if name in LOOK_OPTIONS})
    return {name: value for name, value in options.items() if name not in LOOK_OPTIONS}, look


def _panels(
    shape: tuple[int, ...], layer: int | None, head: int | Sequence[int] | None, all_heads: bool, all_layers: bool
) -> tuple[Panel, ...]:
    """The layers and heads that were asked for; `shape` begins with how many there are."""
    layers, heads = shape
    if head is not None and (all_heads or all_layers):
        raise ValueError(f"all heads were asked for, and head {head} too; leave one of them out")
    if layer is not None and all_layers:
        raise ValueError(f"all layers were asked for, and layer {layer} too; leave one of them out")
    if all_layers:
        return tuple((one, other) for one in range(layers) for other in range(heads))
    chosen = _in_range("layer", -1 if layer is None else layer, layers)
    if all_heads:
        return tuple((chosen, other) for other in range(heads))
    if head is None:
        return ((chosen, None),)
    if not isinstance(head, (list, tuple)):
        return ((chosen, _in_range("head", head, heads)),)
    named = [_in_range("head", one, heads) for one in head]
    if not named or len(set(named)) < len(named):
        raise ValueError(f"a list of heads names at least one, each once, not {shown(list(head))}")
    return tuple((chosen, one) for one in named)


def _pair(maps: AttentionMaps, streams: str | tuple[str, str] | None) -> tuple[str, str]:
    """The streams of queries and keys; where none are named, cross-attention of a decoder, else the first."""
    if streams is None:
        return ("target", "source") if ("target", "source") in maps.weights else next(iter(maps.weights))
    pair = tuple(streams.split(":")) if isinstance(streams, str) else streams
    if not isinstance(pair, (tuple, list)):
        raise ValueError(f"streams names those of queries and keys, as 'target:source', not {shown(streams)}")
    pair = tuple(pair)
    if pair not in maps.weights:
        known = ", ".join(":".join(pair) for pair in maps.weights)
        raise ValueError(
            f"streams={':'.join(map(str, pair))!r} names no attention here (queries:keys); there is {known}"
        )
    return pair


def _in_range(what: str, wanted: Any, count: int) -> int:
    """The number of a layer, head or query, where negative numbers count from the end."""
    if isinstance(wanted, bool) or not isinstance(wanted, (int, np.integer)):
        raise ValueError(f"a {what} is named by its number, not by {shown(wanted)}")
    if not -count <= wanted < count:
        raise ValueError(f"{what} {wanted} is out of range: there are {count} here, from 0 to {count - 1}")
    return int(wanted) % count


def _query_row(maps: AttentionMaps, rows: Sequence[int], query: int | str | None, over_picture: bool) -> int | None:
    """The number of the query that is selected; None: all of them."""
    if query == "all":
        return None
    if query is None:
        return next((n for n, i in enumerate(rows) if maps.input.special[i]), None) if over_picture else None
    if not isinstance(query, str):
        return _in_range("query", query, len(rows))
    names = [maps.input.features[i] for i in rows]
    found = [n for n, name in enumerate(names) if name == query] or [
        n for n, name in enumerate(names) if name.strip() == query.strip()
    ]
    if len(found) != 1:
        near = difflib.get_close_matches(query, names, n=3)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"give a number from 0 to {len(names) - 1}"
        hint = f"it stands at {', '.join(map(str, found))}; give the number" if found else hint
        raise ValueError(f"the query {query!r} names {len(found)} tokens, and one is needed: {hint}")
    return found[0]
