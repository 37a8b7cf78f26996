"""One encoded example, the scalar that is explained, and how pieces are grouped into words and sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from whence.core.sentences import sentence_spans
from whence.core.storage import Storable


@dataclass(frozen=True, eq=False, repr=False)
class Input(Storable):
    """One encoded example: what was given, its named features, and what the model is fed."""

    raw: Any  # what was given: a string, an image array (of at most 1024 pixels a side), or a dict with named parts
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
    box: tuple[float, float, float, float] | None = None  # left, top, right, bottom of `image` in the original
    size: tuple[int, int] | None = None  # width and height of the original picture
    generated: tuple[int, ...] = ()  # features that were generated, one row of scores each
    # Numbers of the tokens whose outputs the decision is read from: one, or all of an answer's context; -1 for a token
    # that was deleted. Empty where the model decides once for the whole input.
    decides: tuple[int, ...] = ()
    ignored: tuple[int, ...] = ()  # features that must not count: attention to them is closed in every pass
    # Token ids whose log-probabilities are read at the tokens `decides`, one each: a statement of the output.
    answer: tuple[int, ...] = ()
    # The number of the unit that every token belongs to, as of its sentence, where tokens are not explained one by one.
    units: np.ndarray | None = None
    level: str = ""  # what a unit is: "word", "sentence", "message", "document", "span"; "" where there are none
    pieces: Input | None = None  # where features are units, the input with tokens; `unmerged` joins both
    notes: tuple[str, ...] = ()  # changes that encoding made to the input, such as truncation

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.units is not None:
            self._set("units", np.asarray(self.units, dtype=np.int64))
            check_axis("Input.units", "token", len(self.units), len((self.pieces or self).features))
        self._set("special", np.asarray(self.special, dtype=bool))
        self._set("words", np.asarray(self.words, dtype=np.int64))
        self._set("offsets", np.asarray(self.offsets, dtype=np.int64).reshape(-1, 2))
        for name in ("streams", "special", "words", "offsets", "parts"):
            check_axis(f"Input.{name}", "feature", len(getattr(self, name)), len(self.features))

    def __repr__(self) -> str:
        return f"Input({len(self.features)} features: {' '.join(self.features[:12])!a})"


@dataclass(frozen=True, eq=False)
class Target(Storable):
    """The scalar that is explained, by name; `model/targets.py` computes it.

    Of the outputs: a logit, probability, log_probability, log_odds, margin or contrast of classes or tokens, or a
    function. Of a state inside the model: a neuron, a channel, a direction, an attention head. A model that decides at
    single tokens is read at a `position`; an extractive answer is `of` its "start", its "end" or both ("span"); the
    "output" of a regression is a number that belongs to no class.
    """

    kind: str = "logit"
    index: int | None = None  # class or token; of a neuron, channel or head its number
    name: str = ""  # its label or text
    against: int | None = None  # the other class or token of a contrast
    against_name: str = ""
    predicted: bool = False  # the caller named no class: it is what the model predicted
    # where the state is: a module's name, the number of a block, "embeddings", "word", "mlp:NUMBER" or "heads:NUMBER"
    site: str = ""
    position: str | int | None = None  # "deciding", "mean", "max" or the number of a token; None: deciding, else mean
    place: str = ""  # the token whose output is read, as views call it: "'Obama'", "'the' (token 7)"
    of: str = ""  # "start", "end", "span" of an answer; "output" of a regression; "label" where several may hold
    vector: np.ndarray | None = None  # (width,) of a direction

    @classmethod
    def neuron(cls, site: str | int, index: int, at: str | int | None = None) -> Target:
        """One entry of a state: of what a module gives, of what enters a block, or of a feed-forward part ("mlp:3")."""
        return cls("neuron", index, f"neuron {index} of {site}", site=str(site), position=_position(at))

    @classmethod
    def channel(cls, site: str | int, index: int, at: str | int | None = "mean") -> Target:
        """One entry of a state, the mean over all real tokens or over the places of a feature map unless `at` says."""
        return cls("channel", index, f"channel {index} of {site}", site=str(site), position=_position(at))

    @classmethod
    def direction(cls, site: str | int, vector: Any, at: str | int | None = None, name: str = "") -> Target:
        """The scalar product of a state with a vector, (width,)."""
        array = np.asarray(vector, dtype=float)
        if array.ndim != 1 or not array.size or not np.isfinite(array).all():
            raise ValueError(f"a direction is a vector of finite numbers, shape (width,), not {array.shape}")
        name = name or f"direction in {site}"
        return cls("direction", None, name, site=str(site), position=_position(at), vector=array)

    @classmethod
    def head(cls, layer: int, index: int, at: str | int | None = None) -> Target:
        """How much an attention head adds: the length of its output before the block's output projection."""
        return cls("head", index, f"head {index} of block {layer}", site=f"heads:{layer}", position=_position(at))

    @property
    def of_state(self) -> bool:
        """The target reads a state inside the model, not its outputs."""
        return bool(self.site)

    @property
    def open(self) -> bool:
        """The target waits for a prediction to know its class or token."""
        return self.index is None and self.kind != "function" and not self.of_state

    @property
    def of_statement(self) -> bool:
        """The target is a part of a generated text, or an answer against another."""
        return self.kind.startswith("statement")

    def __str__(self) -> str:
        if self.kind == "function":
            return self.name
        if self.of_state:
            places: dict[Any, str] = {
                None: "",
                "deciding": " at the deciding token",
                "mean": ", mean",
                "max": ", maximum",
            }
            return self.name + places.get(self.position, f" at token {self.position}")
        if self.of_statement:
            kind = {"statement_probability": "probability", "statement_log_odds": "log-odds"}.get(
                self.kind, "log-probability"
            )
            return f"{kind} of {self.name!r}" + (f" minus that of {self.against_name!r}" if self.against_name else "")
        words = {"log_probability": "log-probability", "log_odds": "log-odds", "margin": "margin to the runner-up"}
        kind = words.get(self.kind, "logit" if self.kind == "contrast" else self.kind)
        forms = {"": f"{kind} of", "label": f"{kind} of", "output": "output", "span": f"{kind} of the answer"}
        of = forms.get(self.of, f"{kind} of the {self.of} of")
        bare = self.of == "output" and (not self.name or self.name.startswith("output"))  # it has no name of its own
        names = [name or "output" if bare else f"{of} {name!r}" for name in (self.name, self.against_name)]
        return (" minus ".join(names) if self.kind == "contrast" else names[0]) + f" at {self.place}" * bool(self.place)


def has_inline_picture(x: Input) -> bool:
    """Whether the patches of a picture are tokens of a text, as in a language model that looks at pictures."""
    return "image" in x.parts and "image" not in x.streams


POSITIONS = ("deciding", "mean", "max")  # where a state is read, beside the number of a token


def _position(at: Any) -> str | int | None:
    """Where a state is read: one of `POSITIONS`, a whole number, or None."""
    if at is None or at in POSITIONS:
        return at
    if isinstance(at, (int, np.integer)) and not isinstance(at, bool):
        return int(at)
    raise ValueError(f"a state is read at {', '.join(map(repr, POSITIONS))} or the number of a token, not at {at!r}")


def check_axis(name: str, axis: str, found: int, expected: int) -> None:
    """An error that names the axis on which something has another length than it should."""
    if found != expected:
        raise ValueError(f"{name} must have {expected} entries on the {axis} axis, got {found}")


def word_starts(x: Input) -> np.ndarray:
    """The number of the first feature of every word; a feature that belongs to no word counts as one."""

    def continues(i: int) -> bool:
        """Whether feature i belongs to the word of the feature before."""
        if x.words[i] < 0 or x.special[i] or x.special[i - 1]:
            return False
        return (x.streams[i], x.parts[i], x.words[i]) == (x.streams[i - 1], x.parts[i - 1], x.words[i - 1])

    return np.array([i for i in range(len(x.features)) if i == 0 or not continues(i)], dtype=np.int64)


def sentence_starts(x: Input) -> np.ndarray:
    """The number of the first feature of every sentence; special tokens, and features of no text, count as one each.

    A special token inside a sentence splits it; sentences never reach over two texts or streams.
    """
    return run_starts(x, numbers_in_text(x, sentence_spans))


def run_starts(x: Input, numbers: np.ndarray) -> np.ndarray:
    """The first feature of every run of features of one text that have the same number; those with -1 stand alone."""

    def continues(i: int) -> bool:
        """Whether feature i belongs to the run of the feature before."""
        if numbers[i] < 0 or numbers[i - 1] < 0:
            return False
        return (x.streams[i], x.parts[i], numbers[i]) == (x.streams[i - 1], x.parts[i - 1], numbers[i - 1])

    return np.array([i for i in range(len(x.features)) if i == 0 or not continues(i)], dtype=np.int64)


def numbers_in_text(x: Input, spans_of: Callable[[str], list[tuple[int, int]]]) -> np.ndarray:
    """(feature,) The number of the span, such as a sentence of its text, that a feature stands in; -1 for none."""
    numbers = np.full(len(x.features), -1)
    for stream, part in dict.fromkeys(zip(x.streams, x.parts, strict=True)):
        members = [i for i in range(len(x.features)) if (x.streams[i], x.parts[i]) == (stream, part)]
        members = [i for i in members if not x.special[i] and (x.words[i] >= 0 or x.offsets[i, 0] >= 0)]
        text, places = _written(x, members, x.texts.get(part))
        starts = [start for start, _ in spans_of(text)]
        numbers[members] = np.maximum(np.searchsorted(starts, places, side="right") - 1, 0)
    return numbers


def _written(x: Input, members: list[int], text: str | None) -> tuple[str, list[int]]:
    """The text of these features, or their names joined where it is not known; and where each feature begins in it."""
    places: list[int] = []
    if text is not None and (x.offsets[members, 0] >= 0).any():
        for i in members:
            start, end = x.offsets[i].tolist()
            piece = text[start:end] if start >= 0 else ""
            places.append(start + len(piece) - len(piece.lstrip()) if piece.strip() else start)
        return text, _with_those_between(places, [x.features[i] for i in members])
    joined = ""
    for i, before in zip(members, [*members[:1], *members], strict=False):
        joined += " " if x.words[i] != x.words[before] else ""
        places.append(len(joined))
        joined += x.features[i]
    return joined, places


def _with_those_between(places: list[int], names: list[str]) -> list[int]:
    """Places in a text, also for pieces that stand for none of its characters, whose place is given as -1.

    A space that a tokenizer put before a word is where the word is; any other piece is where the one before it is.
    """
    found = list(places)
    for i in reversed(range(len(found) - 1)):
        if found[i] < 0 and not names[i].strip():
            found[i] = found[i + 1]
    for i in range(len(found)):
        if found[i] < 0:
            found[i] = found[i - 1] if i else 0
    return found


def merged(x: Input, starts: np.ndarray, level: str = "") -> Input:
    """The input with words or sentences as features, which begin at the features `starts`; tensors stay as they are."""
    whole = [_whole(x, first, last) for first, last in zip(starts, [*starts[1:], len(x.features)], strict=True)]
    numbers = np.searchsorted(starts, np.arange(len(x.features)), side="right") - 1
    bare: dict[str, Any] = {
        "raw": None,
        "tensors": {},
        "texts": {},
        "image": None,
        "units": None,
        "level": "",
        "notes": (),
    }
    return replace(
        x,
        units=numbers if x.pieces is None or x.units is None else numbers[x.units],
        level=level or x.level,
        pieces=replace(x, **bare) if x.pieces is None else x.pieces,
        features=tuple(name for name, _ in whole),
        offsets=np.array([span for _, span in whole]),
        streams=tuple(x.streams[i] for i in starts),
        parts=tuple(x.parts[i] for i in starts),
        special=x.special[starts],
        words=x.words[starts],
        generated=tuple(int(np.searchsorted(starts, i, side="right")) - 1 for i in x.generated),
        decides=tuple(int(np.searchsorted(starts, i, side="right")) - 1 for i in x.decides),
        ignored=_wholly_ignored(x, starts),
    )


def unit_starts(x: Input) -> np.ndarray:
    """The number of the first token of every unit, for an input of tokens with `units`."""
    return np.flatnonzero(np.diff(np.asarray(x.units), prepend=-1))


def unmerged(x: Input) -> Input:
    """The input whose features are the model's own tokens; at a level, its `units` number the unit of each token."""
    if x.pieces is None:
        return x
    special = x.special[x.units] if x.units is not None else x.pieces.special
    shared: dict[str, Any] = {name: getattr(x, name) for name in ("raw", "tensors", "texts", "image", "level", "notes")}
    return replace(x.pieces, special=special, units=x.units if x.level else None, **shared)


def _wholly_ignored(x: Input, starts: np.ndarray) -> tuple[int, ...]:
    """The numbers of the words or sentences all of whose features are ignored."""
    ends, gone = [*starts[1:], len(x.features)], set(x.ignored)
    spans = enumerate(zip(starts, ends, strict=True))
    return tuple(number for number, (first, end) in spans if gone and gone.issuperset(range(first, end)))


def _whole(x: Input, first: int, end: int) -> tuple[str, tuple[int, int]]:
    """The original text of the features first..end-1, without spaces around it, and its offsets."""
    start, stop = int(x.offsets[first, 0]), int(x.offsets[first:end, 1].max())
    if start < 0 <= stop and not x.features[first].strip():  # a space that the tokenizer put before the text
        start = int(next(place for place in x.offsets[first:end, 0] if place >= 0))
    if end - first == 1 and x.words[first] < 0:
        return x.features[first], (start, stop)
    if start < 0 or x.parts[first] not in x.texts:
        return _written(x, list(range(first, end)), None)[0], (start, stop)
    text = x.texts[x.parts[first]][start:stop]
    if text.strip():
        start += len(text) - len(text.lstrip())
    return text.strip() or text, (start, start + len(text.strip() or text))
