"""What an intervention on attention did to a prediction: the same model with and without it, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.core.inputs import Input, merged, word_starts
from whence.core.storage import Storable, floats, read_only

LIKELIEST = 3  # how many classes or tokens of each prediction are kept


@dataclass(frozen=True, eq=False)
class Prediction(Storable):
    """The probability of a class or token without an intervention and with it."""

    name: str
    without: float
    under: float


@dataclass(frozen=True, eq=False)
class Intervention(Storable):
    """Attention that a person closed or edited; what the model gives without and with it.

    `Input.ignored` has the numbers of the features to which attention was closed.
    """

    ignored: tuple[str, ...]  # the words to which attention was closed
    without: Any  # f(x) of the same target without the intervention: a float, or (generated,)
    predictions: tuple[tuple[Prediction, ...], ...] = ()  # per row: the likeliest classes of both, or none
    edit: str = ""  # the name of a function that edited attention

    def __post_init__(self) -> None:
        super().__post_init__()
        value = floats("without", self.without)
        self._set("without", read_only(value) if value.ndim else value.item())

    def likeliest(self, row: int = 0) -> tuple[str, str] | None:
        """The prediction of a row without the intervention and with it; None where outputs are no classes."""
        if row >= len(self.predictions) or not self.predictions[row]:
            return None
        known = self.predictions[row]
        return max(known, key=lambda one: one.without).name, max(known, key=lambda one: one.under).name


def ignored_words(item: Input) -> tuple[str, ...]:
    """The words, patches and tokens that an input ignores, by name; pieces of a word that go together as one."""
    starts = word_starts(item)
    whole, ends, names = merged(item, starts), [*starts[1:], len(item.features)], list[str]()
    for number, (first, end) in enumerate(zip(starts, ends, strict=True)):
        pieces = [item.features[member] for member in range(first, end) if member in item.ignored]
        names += [whole.features[number]] if number in whole.ignored else pieces
    return tuple(name.strip() or name for name in names)


def joined(rows: Sequence[Intervention | None]) -> Intervention | None:
    """The interventions of the rows of one input as one; words of the last row are those of all."""
    known = [row for row in rows if row is not None]
    if not known:
        return None
    without = np.array([row.without for row in known])
    predictions = tuple(row.predictions[0] if row.predictions else () for row in known)
    return Intervention(known[-1].ignored, without, predictions if any(predictions) else (), known[-1].edit)
