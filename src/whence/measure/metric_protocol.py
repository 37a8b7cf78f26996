"""The protocol of metrics: their arguments, the questions they ask the model, and their results.

A metric is a function of a subject and a `Case`. A metric that asks the model is a generator: as often as it likes, it
yields an `Ask`, or a list of inputs that it made itself, and is sent `Answers` (logits, values of the target, p of the
target's class, one entry per variant). In the end it returns a number or a `Curve`.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from whence.core.inputs import Input, Target
from whence.model.masked_inputs import added_by_model
from whence.model.masked_runs import Answers, Ask
from whence.model.targets import Function, of_logits


class Unknown(ValueError):
    """Raised by a metric that compares with a truth, for an input without one."""


@dataclass(frozen=True, eq=False)
class Case:
    """One row of scores, of an input or of one of its generated tokens, as metrics get it."""

    item: Input
    scores: np.ndarray  # (feature,)
    target: Target
    output: float
    residual: float | None
    truth: np.ndarray | None = None  # (feature,) bool: features known, or believed, to decide
    seed: int = 0
    method: str = ""  # the spec of the method that made the scores
    region: np.ndarray | None = None  # (height, width) bool: deciding pixels of the picture, as seen or original
    function: Function | None = None  # the target itself, where it is a function

    @property
    def free(self) -> np.ndarray:
        """The numbers of the features that are not special."""
        return np.flatnonzero(~self.item.special)

    @property
    def tokens(self) -> np.ndarray:
        """The numbers of the features that are not special, and of special tokens of texts."""
        return np.flatnonzero(~added_by_model(self.item))

    def ordered(self, scores: np.ndarray) -> np.ndarray:
        """Numbers of features from the highest score to the lowest; equal scores at random, by seed and input."""
        names = zlib.crc32("\0".join(self.item.features).encode("utf-8", "surrogatepass"))
        return np.lexsort((np.random.default_rng([self.seed, names]).random(len(scores)), -scores))

    @property
    def wanted(self) -> Target | Function:
        """The target as a subject's `aim` takes it; an error where it is a function that was not given."""
        if self.target.kind != "function":
            return self.target
        if self.function is None:
            raise ValueError(
                f"the explanation is of the function {self.target.name!r}, which a result cannot hold; "
                "give the function again as target="
            )
        return self.function

    @property
    def index(self) -> int:
        """The number of the target's class or token."""
        if not of_logits(self.target) or self.target.index is None:
            raise ValueError(f"this metric needs a target that names a class or token, and {self.target} names none")
        return int(self.target.index)


@dataclass(frozen=True, eq=False)
class Curve:
    """The result of a metric that watches the model while features come or go; its value is the area."""

    values: np.ndarray  # at equal distances, from share 0 of the features to the share `end`
    end: float = 1.0

    def __float__(self) -> float:
        """The area under the curve, by trapezoids."""
        return float(np.trapezoid(self.values, dx=self.end / (len(self.values) - 1)))

    def at(self, shares: np.ndarray) -> np.ndarray:
        """The values at these shares, not a number beyond the end."""
        return np.interp(shares, np.linspace(0, self.end, len(self.values)), self.values, right=np.nan)


Metric = Generator[Ask | list[Input], Answers, float | Curve]
