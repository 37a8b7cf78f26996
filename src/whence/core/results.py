"""The results of explaining: Attribution, Comparison. Numbers only: no model, no torch, no looks.

How a result is shown is found by its type in `display`; a result holds no wording and no colours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from whence.core import display, extensions, geometry, shap_export
from whence.core.agreement import rank_agreement
from whence.core.inputs import Input, Target, check_axis, merged, sentence_starts, unit_starts, word_starts
from whence.core.interventions import Intervention
from whence.core.looks import look_of
from whence.core.storage import VERSION, Storable, floats, read_only
from whence.core.wording import in_one_line, shown

S = TypeVar("S", bound="Result")
_PROVENANCE = "_provenance"  # the attribute of a result that holds its provenance
SUMMARY = "summary.json"  # the file in the folder of a run


class Result(Storable):
    """A record with a file and views of its own."""

    @property
    def provenance(self) -> dict[str, Any]:
        """Where the result came from: versions, model, hash of its weights, seed, what was asked; {} if not known."""
        return dict(self.__dict__.get(_PROVENANCE, {}))

    def stamp(self: S, provenance: dict[str, Any]) -> S:
        """Attach where the result came from; provenance counts neither for equality nor for views."""
        self._set(_PROVENANCE, provenance)
        return self

    def content(self) -> dict[str, Any]:
        """What `save` writes, as JSON values."""
        known = {"provenance": self.provenance} if self.provenance else {}
        return {"format": "whence", "version": VERSION, **known, **self.to_dict()}

    def save(self, path: str | PathLike[str]) -> None:
        """Write JSON from which `load` gives an equal result, every array exact."""
        content = self.content()
        lines = (f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, allow_nan=False)}" for k, v in content.items())
        Path(path).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

    @classmethod
    def load(cls: type[S], path: str | PathLike[str]) -> S:
        """Read what `save` wrote; needs no model and no torch. `Result.load` reads results of any type."""
        wanted = "a result that was saved" if cls is Result else f"a file written by {cls.__name__}.save"
        expected = f"expected {wanted}, but {shown(str(path))}"
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            raise ValueError(f"{expected} is not JSON") from None
        if not isinstance(content, dict) or content.get("format") != "whence":
            raise ValueError(f"{expected} is other JSON")
        if cls is not Result and content.get("$record") != cls.__name__:
            raise ValueError(f"{expected} holds a {content.get('$record')}; load it with that class")
        if content.get("version") != VERSION:
            raise ValueError(f"{expected} has format version {content.get('version')}, this whence reads {VERSION}")
        try:
            found = cls.from_dict(content)
            origin = content.get("provenance")
            return found.stamp(origin) if isinstance(origin, dict) else found
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{expected} is damaged ({in_one_line(error)}); save it again") from None

    def write(self, path: str | PathLike[str], *, kind: str | None = None, **look: Any) -> None:
        """Write the result in the form that the file's ending names; `display.endings` lists those that apply.

        `kind` is that of a figure, as `plot` takes it. A page or figure with scores over a picture takes the options of
        `Look`: clip, contour, patches.
        """
        display.write(self, path, look_of(look), kind)

    def __str__(self) -> str:
        return display.text(self)

    def __rich__(self) -> Any:
        return display.terminal(self)

    def to_html(self, **look: Any) -> str:
        """A self-contained page; with scores over a picture it takes the options of `Look`."""
        return display.page(self, look_of(look))

    def _repr_html_(self) -> str:
        return display.in_notebook(self)

    def plot(self, kind: str | None = None, **look: Any) -> Any:
        """A matplotlib Figure, which a notebook shows; with scores over a picture it takes the options of `Look`.

        `kind` names one of several figures, as "waterfall" or "waterfall(most=20, width=85)"; an error about another
        name lists those that the result has.
        """
        return display.figure(self, look_of(look), kind)

    def to_frame(self) -> Any:
        """A pandas DataFrame with the rows that a CSV file would have."""
        return display.frame(self)


def load_result(path: str | PathLike[str]) -> Result:
    """Read a saved result of any type, or the summary in the folder of a run; needs no model and no torch.

    Types that are defined outside of this package are known once their module is imported.
    """
    file = Path(path) / SUMMARY if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"expected a result that was saved, but there is no file {shown(str(file))}")
    extensions.load("view")  # views import all result types of the package
    return Result.load(file)


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
    visible: np.ndarray = None  # type: ignore[assignment]  # like scores: what each row could see; None: everything
    details: dict[str, Any] = field(default_factory=dict)  # arrays and plain values, by name
    notes: tuple[str, ...] = ()  # what the caller should know: default method, guessed target, truncation
    intervention: Intervention | None = None  # attention that was closed or edited in every pass
    signs: bool | None = None  # whether views show signs; None: if the method is signed, so that there is a base
    sinks: np.ndarray = None  # type: ignore[assignment]  # (feature,) bool: attention sinks; None: no feature is one

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.axes not in (("feature",), ("generated", "feature")):
            raise ValueError(f"axes must be ('feature',) or ('generated', 'feature'), got {self.axes!r}")
        self._set("scores", read_only(floats("scores", self.scores)))
        self._check_shape("scores", self.axes)
        visible = np.ones(self.scores.shape) if self.visible is None else self.visible
        self._set("visible", read_only(np.array(visible, dtype=bool)))
        self._check_shape("visible", self.axes)
        sinks = np.zeros(len(self.features)) if self.sinks is None else self.sinks
        self._set("sinks", read_only(np.array(sinks, dtype=bool)))
        self._check_shape("sinks", ("feature",))
        for name in ("output", "base", "residual"):
            self._set_per_row(name)
        if isinstance(self.target, tuple):
            check_axis("target", "generated", len(self.target), math.prod(self.scores.shape[:-1]))

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
            check_axis(name, axis, found, sizes[axis])

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

    @property
    def signed(self) -> bool:
        """Whether views show what speaks for the target and what against it; else they show the size of scores."""
        return self.base is not None if self.signs is None else self.signs

    def with_signs(self, shown: bool = True) -> Attribution:
        """The same scores, whose signs all views show, or hide, whatever the method promises."""
        return replace(self, signs=shown).stamp(self.provenance)

    def words(self, reduce: str = "sum") -> Attribution:
        """Scores of whole words: the pieces' sum, max or mean (hidden pieces left out of max and mean)."""
        return self._merged("words", word_starts(self.input), reduce)

    def sentences(self, reduce: str = "sum") -> Attribution:
        """Scores of whole sentences; arguments as in `words`. `core/sentences.py` says where a sentence ends."""
        return self._merged("sentences", sentence_starts(self.input), reduce)

    def units(self, note: str = "") -> Attribution:
        """Scores of the units of the input's level, as whole sentences: the sum over the tokens of each."""
        if self.input.units is None or self.input.pieces is not None:
            return self
        return self._merged(f"{self.input.level}s", unit_starts(self.input), "sum", note)

    def _merged(self, kind: str, starts: np.ndarray, reduce: str, note: str = "") -> Attribution:
        if reduce not in ("sum", "max", "mean"):
            raise ValueError(f"reduce must be 'sum', 'max' or 'mean', got {reduce!r}")
        visible = np.logical_or.reduceat(self.visible, starts, axis=-1)
        if reduce == "max":
            seen = np.where(self.visible, self.scores, -np.inf)
            scores = np.where(visible, np.maximum.reduceat(seen, starts, axis=-1), 0).astype(self.scores.dtype)
        else:
            with np.errstate(invalid="ignore", over="ignore"):  # a sum of scores that are not finite is not, either
                scores = np.add.reduceat(self.scores, starts, axis=-1)
        if reduce == "mean":
            count = np.add.reduceat(self.visible.astype(self.scores.dtype), starts, axis=-1)
            scores = scores / np.maximum(count, 1)
        note = note or f"pieces merged into {kind} by {reduce}"
        return replace(
            self,
            scores=scores,
            input=merged(self.input, starts),
            visible=visible,
            sinks=np.logical_and.reduceat(self.sinks, starts),
            residual=self.residual if reduce == "sum" else None,
            notes=self.notes if note in self.notes else (*self.notes, note),
        ).stamp(self.provenance)

    def heatmap(self, original: bool = False) -> np.ndarray:
        """(height, width) scores over the picture the model saw, or over the original; rows first if generated.

        The method's own map of pixels where it made one, else the scores of patches, between their centres bilinearly.
        """
        pixels = self.details.get("pixels")
        return geometry.heatmap(self.input, self.scores, original, None if pixels is None else np.asarray(pixels))

    def to_shap(self) -> Any:
        """A `shap.Explanation`, for shap's own plots; text that was generated has one instance per token."""
        return shap_export.explanation(self.scores, self.base, self.input)


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

    def agreement(self) -> np.ndarray:
        """(method, method) How alike two methods rank the features: Kendall's tau-b, special tokens left out.

        Of generated text the mean over its rows; by sizes where one of the two has no signs; NaN where not defined.
        """
        shape = (-1, len(self[0].features))
        seen = np.logical_and.reduce([a.visible for a in self]) & ~self[0].special
        return rank_agreement([a.scores.reshape(shape) for a in self], [a.signed for a in self], seen.reshape(shape))
