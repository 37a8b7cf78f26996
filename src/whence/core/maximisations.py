"""What excites a unit of a model most: inputs made for it, and those of a data set. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.core.inputs import Target
from whence.core.results import Result


@dataclass(frozen=True, eq=False, repr=False)
class Maximisation(Result):
    """Inputs that were changed step by step until they excite units as much as can be, one for each unit."""

    targets: tuple[Target, ...]  # the units: classes, neurons, heads, channels, directions
    made: tuple[Any, ...]  # of each unit: a picture (height, width, 3) uint8, or a text
    free: np.ndarray  # (unit,): the target at the end of the search, of pixels or embeddings before rounding
    real: np.ndarray  # (unit,): the target of `made`, given to the model as any input is
    start: np.ndarray  # (unit,): the target before the first step
    curves: np.ndarray  # (unit, step): the mean target of all views of a step
    examples: tuple[Any, ...] = ()  # of each unit: the given examples that excite it most, strongest first
    excited: np.ndarray | None = None  # (unit, example): the target of these
    model: str = ""
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Maximisation({', '.join(map(str, self.targets))} of {self.model})"
