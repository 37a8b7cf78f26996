"""From the numbers of all examples to a grade and an answer: the thresholds, and how a grade is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from whence.core.audits import CrossTable, Quantity

FEWEST = 5  # examples on which a number must be defined, for a grade to be given


@dataclass(frozen=True, eq=False)
class Conclusion:
    """The grade and the answer that follow from an experiment's numbers."""

    grade: str
    answer: str  # one sentence
    tables: tuple[CrossTable, ...] = ()
    notes: tuple[str, ...] = ()


class Evidence:
    """The numbers of all examples at one place, by name."""

    def __init__(self, values: Mapping[str, np.ndarray], examples: int, seed: int = 0) -> None:
        self._values, self._examples, self.seed = values, examples, seed

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def values(self, name: str) -> np.ndarray:
        """(example,), NaN where the number is not defined."""
        return self._values.get(name, np.full(self._examples, np.nan))

    def quantity(self, name: str, values: np.ndarray | None = None) -> Quantity:
        """A number with its mean and interval; of other values, where they are given."""
        return Quantity(name, "", self.values(name) if values is None else values, self.seed)

    def mean(self, name: str) -> float:
        """The mean over examples."""
        return self.quantity(name).mean

    def said(self, name: str) -> str:
        """The mean and its interval, as answers write them."""
        return written(self.quantity(name))

    def ratio(self, above: np.ndarray, below: np.ndarray) -> tuple[float, tuple[float, float] | None]:
        """The ratio of two means over the same examples, and its 95 % interval by resampling the examples."""
        known = ~np.isnan(above) & ~np.isnan(below)
        above, below = above[known], below[known]
        if len(above) < 2 or below.mean() == 0:
            return float("nan"), None
        chosen = np.random.default_rng([self.seed, 8]).integers(len(above), size=(1000, len(above)))
        tops, bottoms = above[chosen].mean(1), below[chosen].mean(1)
        ratios = np.divide(tops, bottoms, out=np.full(len(tops), np.nan), where=np.abs(bottoms) > 1e-12)
        if np.isnan(ratios).all():
            return float("nan"), None
        low, high = np.nanquantile(ratios, [0.025, 0.975])
        return float(above.mean() / below.mean()), (float(low), float(high))


def written(quantity: Quantity) -> str:
    """A mean with its interval: `0.31 [0.22, 0.40]`."""
    if np.isnan(quantity.mean):
        return "not defined"
    interval = quantity.interval
    ends = "" if interval is None else f" [{interval[0]:.2g}, {interval[1]:.2g}]"
    return f"{quantity.mean:.2g}{ends}"


def graded(value: float, interval: tuple[float, float] | None, does_not: float, explains: float) -> str:
    """The grade of a number that speaks for attention beyond one threshold and against it beyond the other.

    `does_not` may be above `explains`: then small numbers speak for attention. An interval that reaches over both
    thresholds, or that does not exist, tells nothing.
    """
    if np.isnan(value) or interval is None:
        return "cannot tell"
    if does_not > explains:
        value, interval = -value, (-interval[1], -interval[0])
        does_not, explains = -does_not, -explains
    if interval[0] < does_not and interval[1] > explains:
        return "cannot tell"
    return "explains" if value >= explains else "does not" if value <= does_not else "partly"


def too_few(quantity: Quantity) -> Conclusion | None:
    """The conclusion where a number is defined on too few examples; None where there are enough."""
    if quantity.defined >= FEWEST:
        return None
    return Conclusion(
        "cannot tell",
        f"The experiment is defined on {quantity.defined} of {len(quantity.values)} examples, and an answer needs "
        f"{FEWEST} or more.",
    )
