"""What goes in and what comes out: Input, Target, Attribution, AttentionMaps, ... Numpy only; no model, no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from whence.core.storage import Result, Storable, floats, read_only


@dataclass(frozen=True, eq=False, repr=False)
class Input(Storable):
    """One encoded example: what was given, its named features, and what the model is fed."""

    raw: Any  # what was given: a string, an image array, or a dict with named parts
    features: tuple[str, ...]  # names: token pieces, "patch 0,3", regions
    streams: tuple[str, ...]  # the stream of each feature: "text", "image", "source", "target"
    special: np.ndarray  # (feature,) bool: put there by the tokenizer or the model, as [CLS]
    tensors: dict[str, np.ndarray]  # what the model is fed, without the batch axis
    words: np.ndarray  # (feature,) int: number of the word a piece belongs to, -1 for none
    offsets: np.ndarray  # (feature, 2) int: characters of texts[part], -1 for none
    parts: tuple[str, ...]  # the text each feature's offsets point into: "text", "pair", ..., "" for none
    texts: dict[str, str] = field(default_factory=dict)  # part -> the original text
    grid: tuple[int, int] | None = None  # rows and columns of the patches or regions
    image: np.ndarray | None = None  # (height, width, 3) uint8: the picture the model saw
    box: tuple[float, float, float, float] | None = None  # left, top, right, bottom of that in the original
    size: tuple[int, int] | None = None  # width and height of the original picture
    generated: tuple[int, ...] = ()  # features that were generated, one row of scores each
    notes: tuple[str, ...] = ()  # what was done to the input, as truncation

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("special", np.asarray(self.special, dtype=bool))
        self._set("words", np.asarray(self.words, dtype=np.int64))
        self._set("offsets", np.asarray(self.offsets, dtype=np.int64).reshape(-1, 2))
        for name in ("streams", "special", "words", "offsets", "parts"):
            _check_axis(f"Input.{name}", "feature", len(getattr(self, name)), len(self.features))

    def __repr__(self) -> str:
        return f"Input({len(self.features)} features: {' '.join(self.features[:12])!a})"


@dataclass(frozen=True)
class Target(Storable):
    """The scalar that is explained, by name; `targets.py` computes it."""

    kind: str = "logit"  # logit, probability, log_probability, log_odds, margin, contrast, function
    index: int | None = None  # class or token
    name: str = ""  # its label or text
    against: int | None = None  # the other class or token of a contrast
    against_name: str = ""
    predicted: bool = False  # not asked for: it is what the model predicted

    def __str__(self) -> str:
        if self.kind == "function":
            return self.name
        if self.kind == "contrast":
            return f"logit of {self.name!r} minus logit of {self.against_name!r}"
        words = {"log_probability": "log-probability", "log_odds": "log-odds", "margin": "margin to the runner-up"}
        return f"{words.get(self.kind, self.kind)} of {self.name!r}"


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(Result):
    """Scores of one example's features for one target, with what they explain and what they do not."""

    scores: np.ndarray  # (feature,) or (generated, feature)
    input: Input
    method: str  # the spec: name and options
    target: Target | tuple[Target, ...]  # one, or one per generated token
    output: Any  # f(x): a float, or (generated,)
    base: Any = None  # f(baseline) where the method has one, else 0.0; None for unsigned methods
    residual: Any = None  # output - base - sum of scores; None for unsigned methods
    axes: tuple[str, ...] = ("feature",)
    visible: np.ndarray = None  # type: ignore[assignment]  # like scores: what the row could see; None: everything
    details: dict[str, Any] = field(default_factory=dict)  # arrays and plain values, by name
    notes: tuple[str, ...] = ()  # what the caller should know: default method, guessed target, truncation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.axes not in (("feature",), ("generated", "feature")):
            raise ValueError(f"axes must be ('feature',) or ('generated', 'feature'), got {self.axes!r}")
        self._set("scores", read_only(floats("scores", self.scores)))
        self._check_shape("scores", self.axes)
        visible = np.ones(self.scores.shape) if self.visible is None else self.visible
        self._set("visible", read_only(np.array(visible, dtype=bool)))
        self._check_shape("visible", self.axes)
        for name in ("output", "base", "residual"):
            self._set_per_row(name)
        if isinstance(self.target, tuple):
            _check_axis("target", "generated", len(self.target), math.prod(self.scores.shape[:-1]))

    def _set_per_row(self, name: str) -> None:
        """A float, or one entry per generated row; one base may serve all rows."""
        if getattr(self, name) is None and name != "output":
            return
        value = floats(name, getattr(self, name))
        if name == "base" and value.ndim == 0:
            value = np.array(np.broadcast_to(value, self.scores.shape[:-1]))
        self._set(name, value)
        self._check_shape(name, self.axes[:-1])
        self._set(name, read_only(value) if value.ndim else value.item())

    def _check_shape(self, name: str, axes: tuple[str, ...]) -> None:
        shape = getattr(self, name).shape
        if len(shape) != len(axes):
            raise ValueError(f"{name} must have the axes {axes!r}, got an array of shape {shape}")
        sizes = {"feature": len(self.input.features), "generated": len(self.input.generated)}
        for axis, found in zip(axes, shape, strict=True):
            _check_axis(name, axis, found, sizes[axis])

    def __repr__(self) -> str:
        shape = " x ".join(f"{n} {axis}" for n, axis in zip(self.scores.shape, self.axes, strict=True))
        return f"Attribution({self.method}: {shape} scores of {self.input!r})"

    @property
    def features(self) -> tuple[str, ...]:
        """The features' names."""
        return self.input.features

    @property
    def special(self) -> np.ndarray:
        """(feature,) bool: put there by the tokenizer or the model."""
        return self.input.special

    @property
    def streams(self) -> tuple[str, ...]:
        """The stream of each feature."""
        return self.input.streams

    def words(self, reduce: str = "sum") -> Attribution:
        """Scores of whole words: the pieces' sum, max or mean (hidden pieces left out of max and mean)."""
        if reduce not in ("sum", "max", "mean"):
            raise ValueError(f"reduce must be 'sum', 'max' or 'mean', got {reduce!r}")
        starts = _word_starts(self.input)
        visible = np.logical_or.reduceat(self.visible, starts, axis=-1)
        if reduce == "max":
            seen = np.where(self.visible, self.scores, -np.inf)
            scores = np.where(visible, np.maximum.reduceat(seen, starts, axis=-1), 0).astype(self.scores.dtype)
        else:
            scores = np.add.reduceat(self.scores, starts, axis=-1)
        if reduce == "mean":
            count = np.add.reduceat(self.visible.astype(self.scores.dtype), starts, axis=-1)
            scores = scores / np.maximum(count, 1)
        note = f"pieces merged into words by {reduce}"
        return replace(
            self,
            scores=scores,
            input=_merge(self.input, starts),
            visible=visible,
            residual=self.residual if reduce == "sum" else None,
            notes=self.notes if note in self.notes else (*self.notes, note),
        )

    def heatmap(self, original: bool = False) -> np.ndarray:
        """(height, width) scores over the picture the model saw, or over the original; rows first if generated."""
        from whence.views.image import heatmap

        return heatmap(self, original)

    def plot(self) -> Any:
        """A matplotlib Figure."""
        from whence import views

        return views.figure(self)

    def to_shap(self) -> Any:
        """A `shap.Explanation`, for shap's own plots; text that was generated has one instance per token."""
        from whence.core.shap_export import explanation

        return explanation(self)


@dataclass(frozen=True, eq=False)
class Comparison(Result):
    """Attributions of one input and one target by several methods."""

    attributions: tuple[Attribution, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.attributions:
            raise ValueError("a comparison needs at least one attribution, got none")
        first = self.attributions[0]
        for other in self.attributions[1:]:
            for name in ("features", "axes", "target", "input"):
                if getattr(first, name) != getattr(other, name):
                    raise ValueError(
                        f"a comparison needs attributions with the same {name}, "
                        f"but those of {first.method} and {other.method} differ"
                    )

    def __len__(self) -> int:
        return len(self.attributions)

    def __iter__(self) -> Iterator[Attribution]:
        return iter(self.attributions)

    def __getitem__(self, key: int | str) -> Attribution:
        if not isinstance(key, str):
            return self.attributions[key]
        for attribution in self.attributions:
            if attribution.method == key:
                return attribution
        raise KeyError(f"no attribution by {key!r} here, only by {', '.join(a.method for a in self.attributions)}")

    @property
    def scale_note(self) -> str:
        """That every method has its own scale, and how large it is."""
        from whence.views.tokens import largest, number

        scales = ", ".join(f"{a.method} {number(largest(a.scores))}" for a in self.attributions)
        return f"Each method has its own scale: compare order and sign, not size. Largest |score|: {scales}."


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
                _check_axis(f"weights of {pair}", axis, found, len(self.members(stream)))
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


@dataclass(frozen=True, eq=False)
class ModuleRelevance(Storable):
    """What one call of a module is given of the relevance, and what becomes of it; relevance is value x gradient."""

    name: str  # of the module; "" is the whole model
    kind: str  # its class
    call: int  # number of the call, for a module that is called more than once
    depth: int  # how many modules are around it
    block: str  # the block that it is, or is part of; "" outside of all blocks
    relevance_out: float  # at its outputs, of what is made of them above
    relevance_in: float  # at its inputs, of what goes through this call; and at words or pixels that enter in it
    bias: float  # at constants that are added in it: biases, position embeddings
    leak: float  # relevance_out - relevance_in - bias
    own_leak: float  # the part of the leak that is in no module inside this one
    absolute: float  # the sum of |relevance| at its outputs or inputs, whichever is larger
    uncovered: tuple[str, ...] = ()  # its own operations, in no module inside it, that no rule makes conserve


@dataclass(frozen=True, eq=False, repr=False)
class Conservation(Result):
    """The relevance at every module of one pass: where it leaks, how much biases take, what no rule covers."""

    rows: tuple[ModuleRelevance, ...]  # in the order in which the calls begin; the first is the whole model
    plain: tuple[ModuleRelevance, ...]  # the same by gradient_x_input, to compare; empty where that is the method
    input: Input
    method: str  # the spec: name and options
    target: Target
    output: float  # f(x)
    model: str = ""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Conservation({self.method}: {len(self.rows)} module calls of {self.model}, leak {self.leak:.4g})"

    def __getitem__(self, name: str) -> ModuleRelevance:
        """The first call of a module, by its name."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no module {name!r} was called with what the target depends on")

    @property
    def reached(self) -> float:
        """The relevance that arrives at the input: words or pixels."""
        return self.rows[0].relevance_in

    @property
    def bias(self) -> float:
        """The relevance of all biases and other constants that are added."""
        return self.rows[0].bias

    @property
    def leak(self) -> float:
        """What is neither at the input nor at biases."""
        return self.rows[0].leak

    @property
    def uncovered(self) -> dict[str, tuple[str, ...]]:
        """The operations that no rule makes conserve, with the modules that use them."""
        names = dict.fromkeys(operation for row in self.rows for operation in row.uncovered)
        return {name: tuple(row.name for row in self.rows if name in row.uncovered) for name in names}

    def plot(self) -> Any:
        """A matplotlib Figure."""
        from whence.views import conservation

        return conservation.figure(self)

    def __str__(self) -> str:
        from whence.views import conservation

        return conservation.plain(self)

    def __rich__(self) -> Any:
        from whence.views import conservation

        return conservation.coloured(self)

    def to_html(self) -> str:
        """A self-contained page."""
        from whence.views import conservation

        return conservation.html(self)


def _check_axis(name: str, axis: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{name} must have {expected} entries on the {axis} axis, as the input has, got {found}")


def _word_starts(x: Input) -> np.ndarray:
    """The first feature of every word; what belongs to no word stands alone."""

    def continues(i: int) -> bool:
        if x.words[i] < 0 or x.special[i] or x.special[i - 1]:
            return False
        return (x.streams[i], x.parts[i], x.words[i]) == (x.streams[i - 1], x.parts[i - 1], x.words[i - 1])

    return np.array([i for i in range(len(x.features)) if i == 0 or not continues(i)], dtype=np.int64)


def _merge(x: Input, starts: np.ndarray) -> Input:
    """The input with words as features; what the model is fed stays."""
    merged = [_word(x, first, last) for first, last in zip(starts, [*starts[1:], len(x.features)], strict=True)]
    return replace(
        x,
        features=tuple(name for name, _ in merged),
        offsets=np.array([span for _, span in merged]),
        streams=tuple(x.streams[i] for i in starts),
        parts=tuple(x.parts[i] for i in starts),
        special=x.special[starts],
        words=x.words[starts],
        generated=tuple(int(np.searchsorted(starts, i, side="right")) - 1 for i in x.generated),
    )


def _word(x: Input, first: int, end: int) -> tuple[str, tuple[int, int]]:
    """The original text of the features first..end-1, without spaces around it, and where it stands."""
    start, stop = int(x.offsets[first, 0]), int(x.offsets[end - 1, 1])
    if x.words[first] < 0:
        return x.features[first], (start, stop)
    if start < 0 or x.parts[first] not in x.texts:
        return "".join(x.features[first:end]), (start, stop)
    text = x.texts[x.parts[first]][start:stop]
    if text.strip():
        start += len(text) - len(text.lstrip())
    return text.strip() or text, (start, start + len(text.strip() or text))
