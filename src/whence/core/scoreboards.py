"""The results of measuring: Score, Scoreboard, Arbitration. Numpy only; no model, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from whence.core import display, registry
from whence.core.inputs import check_axis
from whence.core.results import Attribution, Result
from whence.core.statistics import bootstrap, comparable_means, larger_is_better, sign_flips
from whence.core.storage import floats, read_only
from whence.core.wording import shown, suggest

LARGEST = 1e100  # largest number that counts as measured: far above any model's, and far below overflow in a sum


@dataclass(frozen=True, eq=False)
class Score(Result):
    """A metric's result."""

    metric: str  # the spec: name and options
    value: float
    better: str  # "higher" or "lower"
    values: np.ndarray | None = None  # (example,)
    interval: tuple[float, float] | None = None  # of the value, lower and upper end
    hidden: str = ""  # what stands in place of features that the metric hides

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_directions((self.better,))
        self._set("value", float(self.value))
        if self.values is not None:
            self._set("values", read_only(_measured("values", floats("values", self.values))))


@dataclass(frozen=True, eq=False, repr=False)
class Scoreboard(Result):
    """Methods by metrics over a data set."""

    methods: tuple[str, ...]  # specs
    metrics: tuple[str, ...]
    better: tuple[str, ...]  # of each metric: "higher" or "lower"
    values: np.ndarray  # (method, metric, example); NaN where a metric is not defined
    seconds: np.ndarray  # (method, example): what an explanation took
    model: str = ""
    seed: int = 0
    hidden: tuple[str, ...] = ()  # how each metric hides features; "" where it hides none
    curves: np.ndarray | None = None  # (method, metric, share of features from 0 to 1), NaN where there is none
    notes: tuple[str, ...] = ()  # what was explained, and what was done to the inputs
    axes: tuple[tuple[str, ...], ...] = ()  # names of the two axes of each metric's curve; () without a curve

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("axes", tuple(map(tuple, self.axes)))
        self._set("hidden", tuple(self.hidden) or ("",) * len(self.metrics))
        curves = None if self.curves is None else read_only(_measured("curves", np.array(self.curves, float)))
        self._set("curves", curves)
        self._set("values", read_only(_measured("values", np.array(self.values, float))))
        self._set("seconds", read_only(_measured("seconds", np.array(self.seconds, float))))
        sizes = {"method": len(self.methods), "metric": len(self.metrics)}
        _check_shape("values", self.values, sizes, ("method", "metric", "example"))
        _check_shape("seconds", self.seconds, sizes, ("method", "example"))
        if self.curves is not None:
            _check_shape("curves", self.curves, sizes, ("method", "metric", "share"))
        for name in ("better", "hidden", *(("axes",) if self.axes else ())):
            check_axis(name, "metric", len(getattr(self, name)), len(self.metrics))
        _check_directions(self.better)

    def __repr__(self) -> str:
        return f"Scoreboard({self.model}: {' x '.join(map(str, self.values.shape))} methods x metrics x examples)"

    def score(self, method: str, metric: str) -> Score:
        """The mean of one metric of one method, with its interval and all values."""
        m = _place(self.metrics, metric, "metric")
        own = self.values[_place(self.methods, method, "method"), m]
        mean, interval = bootstrap(own, self.seed)
        return Score(self.metrics[m], mean, self.better[m], own, interval, self.hidden[m])

    def best(self, metric: str) -> str:
        """The method with the best mean; the first one where the metric is defined for no method.

        Means are taken over the examples on which every method has a value; methods without any value are left aside.
        """
        m = _place(self.metrics, metric, "metric")
        return self.methods[int(larger_is_better(comparable_means(self.values[:, m]), self.better[m]).argmax())]

    def p_value(self, method: str, metric: str) -> float:
        """How likely a difference to the best method at least as large is by chance: a paired sign-flip test."""
        m = _place(self.metrics, metric, "metric")
        best, own = (self.values[_place(self.methods, name, "method"), m] for name in (self.best(metric), method))
        return sign_flips(best - own, self.seed)

    def curve(self, method: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Shares of the features and the mean value at each share; both empty for a metric without a curve."""
        if self.curves is None:
            return np.empty(0), np.empty(0)
        values = self.curves[_place(self.methods, method, "method"), _place(self.metrics, metric, "metric")]
        known = ~np.isnan(values)
        return np.linspace(0, 1, len(values))[known], values[known]

    def to_csv(self) -> str:
        """One line per method and metric: mean, interval, p against the best, examples, seconds per example."""
        return display.csv_text(self)


@dataclass(frozen=True, eq=False, repr=False)
class Arbitration(Result):
    """The explanations that a metric chose among many, and how good the choice is by metrics that did not choose."""

    by: str  # "instance", "label" or "set"
    metric: str  # the metric that chose
    better: str  # "higher" or "lower"
    candidates: tuple[str, ...]  # specs
    values: np.ndarray  # (candidate, example, label) of the metric that chose, on the examples that it chose by
    chosen: np.ndarray  # (example, label): numbers of candidates, on the examples of the board
    explanations: tuple[Attribution, ...]  # those chosen, label by label of one example after the other
    board: Scoreboard  # the choice, and single candidates, by the metric that chose and by those that did not
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("values", read_only(_measured("values", np.array(self.values, float))))
        self._set("chosen", read_only(np.array(self.chosen, int)))
        _check_shape("values", self.values, {"candidate": len(self.candidates)}, ("candidate", "example", "label"))
        _check_shape("chosen", self.chosen, {"label": self.values.shape[-1]}, ("example", "label"))
        _check_directions((self.better,))
        if self.chosen.size and not 0 <= self.chosen.min() <= self.chosen.max() < len(self.candidates):
            raise ValueError(f"chosen are numbers of the {len(self.candidates)} candidates, from 0")

    def __repr__(self) -> str:
        return f"Arbitration(by {self.by}: {len(self.candidates)} candidates, {len(self.chosen)} examples: {self.spec})"

    @property
    def spec(self) -> str:
        """The candidate with the best mean: one method for all, to be used on other examples."""
        return self.ranking()[0][0]

    def ranking(self, example: int | None = None) -> list[tuple[str, float]]:
        """The candidates with their mean value, over the examples that chose or of one, best first.

        Candidates are compared on the same examples, as methods are in `Scoreboard.best`.
        """
        values = self.values if example is None else self.values[:, [example]]
        means = comparable_means(values.reshape(len(values), -1))
        order = np.argsort(-larger_is_better(means, self.better), kind="stable")
        return [(self.candidates[i], float(means[i])) for i in order]


def _measured(name: str, array: np.ndarray) -> np.ndarray:
    """The same array; an error for finite numbers so large that their sums and figures would overflow."""
    if (np.isfinite(array) & (np.abs(array) > LARGEST)).any():
        raise ValueError(f"{name} must lie between -{LARGEST:g} and {LARGEST:g}, but one of them does not")
    return array


def _check_shape(name: str, array: np.ndarray, sizes: Mapping[str, int], axes: tuple[str, ...]) -> None:
    """An error for an array that has other axes, or other lengths of those whose size is known."""
    if array.ndim != len(axes):
        raise ValueError(f"{name} must have the axes {', '.join(axes)}, got an array of shape {array.shape}")
    for axis, found in zip(axes, array.shape, strict=True):
        check_axis(name, axis, found, sizes.get(axis, found))


def _check_directions(better: tuple[str, ...]) -> None:
    for direction in better:
        if direction not in ("higher", "lower"):
            raise ValueError(f"better must be 'higher' or 'lower', got {direction!r}")


def _place(names: tuple[str, ...], wanted: str, kind: Literal["method", "metric"]) -> int:
    """Where a spec stands, however it is spelled."""
    if wanted in names:
        return names.index(wanted)
    try:
        record, options = registry.resolve(kind, wanted)
        return names.index(record.spec(options))
    except ValueError:
        raise ValueError(f"the board has no {kind} {shown(wanted)}; {suggest(wanted, names)}") from None
