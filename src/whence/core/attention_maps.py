"""All attention weights of one example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.core.inputs import Input, check_axis
from whence.core.results import Result
from whence.core.storage import floats, read_only


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

    def matrix(self, layer: int = -1, head: int | None = None, streams: Any = None) -> np.ndarray:
        """(query, key) weights of one head, or the mean over the heads."""
        view = self.view(layer=layer, head=head, streams=streams)
        return view.matrix(*view.panels[0])

    def view(self, **choice: Any) -> Any:
        """What to show: `layer`, `head`, `query`, `streams`, `all_heads`, `all_layers`; prints and plots itself.

        By default the mean over the heads of the last layer, cross-attention of an encoder-decoder; over a picture,
        what its first special token looks at. `query` is a token's number or name, or "all"; `streams` names those of
        queries and keys, as "target:source".
        """
        from whence.views.matrix import view

        return view(self, **choice)

    def __str__(self) -> str:
        return str(self.view())

    def __rich__(self) -> Any:
        return self.view().__rich__()

    def to_html(self, **choice: Any) -> str:
        """A self-contained page; takes what `view` takes."""
        return self.view(**choice).to_html()

    def plot(self, **choice: Any) -> Any:
        """A matplotlib Figure; takes what `view` takes."""
        return self.view(**choice).plot()
