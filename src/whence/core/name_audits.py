"""Whether names move a model's decision: outputs and relevance of every name in every sentence. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from whence.core import display
from whence.core.inputs import Target, check_axis
from whence.core.results import Result
from whence.core.statistics import means_of
from whence.core.storage import Storable, floats, read_only

MEASURES = {
    "change": "how far the output moves when the name takes the place of the others",
    "relevance": "the part of the output that a method gives to the name",
}


@dataclass(frozen=True, eq=False)
class GroupTest(Storable):
    """One group of names beside the others of its kind."""

    measure: str  # one of `MEASURES`
    kind: str  # by what names are grouped: "origin", "gender"
    group: str
    names: int  # in the group
    others: int
    difference: float  # the group's mean less that of the others; compares names with equal groups of other kinds
    interval: tuple[float, float]  # 95 %, by resampling names
    effect: float  # the difference in units of the spread of names within groups; NaN where they do not vary
    p: float  # by exchanging names between groups
    corrected: float  # p by Holm's correction over all tests of the audit


@dataclass(frozen=True, eq=False, repr=False)
class NameAudit(Result):
    """What each name does to the decision, in sentences in which only the name is exchanged."""

    names: tuple[str, ...]
    kinds: dict[str, tuple[str, ...]]  # kind of group -> the group of each name
    sentences: tuple[str, ...]  # with "{name}" in the place of the name
    originals: tuple[str, ...]  # of each sentence: the name that stood there; "" in a template
    target: Target
    outputs: np.ndarray  # (sentence, name)
    relevance: np.ndarray  # (sentence, name)
    predicted: np.ndarray  # (sentence, name) int: the class that the model predicts
    pieces: np.ndarray  # (name,): how many tokens the name has, mean over the sentences
    tests: tuple[GroupTest, ...]
    method: str  # what gave the relevance
    model: str = ""
    level: float = 0.05
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("outputs", "relevance", "pieces"):
            self._set(name, read_only(floats(name, getattr(self, name))))
        self._set("predicted", read_only(np.array(self.predicted, int)))
        for name in ("outputs", "relevance", "predicted"):
            array = getattr(self, name)
            if array.shape != (len(self.sentences), len(self.names)):
                raise ValueError(f"{name} must have the axes sentence, name, got an array of shape {array.shape}")
        check_axis("pieces", "name", len(self.pieces), len(self.names))
        check_axis("originals", "sentence", len(self.originals), len(self.sentences))
        for kind, groups in self.kinds.items():
            check_axis(kind, "name", len(groups), len(self.names))

    def __repr__(self) -> str:
        return f"NameAudit({self.model}: {len(self.names)} names in {len(self.sentences)} sentences)"

    @cached_property
    def changes(self) -> np.ndarray:
        """How far each output lies from the mean over all names in the same sentence, (sentence, name)."""
        return read_only(self.outputs - self.outputs.mean(1, keepdims=True))

    def of_names(self, measure: str) -> np.ndarray:
        """The mean of a measure for every name, over the sentences: (name,)."""
        if measure not in MEASURES:
            raise ValueError(f"a measure is one of {', '.join(MEASURES)}, not {measure!r}")
        return means_of((self.changes if measure == "change" else self.relevance).T)

    @property
    def spread(self) -> float:
        """How far names move the output in a sentence: the standard deviation over names, mean over sentences."""
        return float(self.outputs.std(1).mean())

    @property
    def flips(self) -> np.ndarray:
        """In every sentence the share of names that change its most frequent decision: (sentence,)."""
        return np.array([1 - np.bincount(row - row.min()).max() / len(row) for row in self.predicted])

    @property
    def answer(self) -> str:
        """What was found, in one careful sentence."""
        found = [test for test in self.tests if test.corrected < self.level]
        moved = (
            f"exchanging the name moves the {self.target} by {self.spread:.3g} (standard deviation over names) and "
            f"changes the decision in {np.mean(self.flips > 0):.0%} of the sentences"
        )
        if not found:
            return f"{moved}; no group of names differs from the others beyond chance at {self.level:g}"
        groups = dict.fromkeys(f"{test.group} ({test.kind})" for test in found)
        return f"{moved}; groups that differ from the others beyond chance: {', '.join(groups)}"

    def to_csv(self) -> str:
        """Every sentence with every name, as CSV."""
        return display.csv_text(self)
