"""How a target depends on concepts (TCAV): scores, derivatives, significance. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.core.inputs import Target
from whence.core.results import Result
from whence.core.wording import shown, suggest

READ_AT = ("deciding", "mean", "flat")  # where states are read
TESTS = ("rank", "t")
VERDICTS = {
    "for": "the concept speaks for the target",
    "against": "the concept speaks against the target",
    "none": "no more than random concepts do",
    "withheld": "the probe cannot tell the concept apart, so nothing is said",
}


@dataclass(frozen=True, eq=False, repr=False)
class Sensitivity(Result):
    """How a target changes along concepts, at every layer that was asked for.

    A derivative is how much the target grows, to first order, when a state moves along the concept by as much as the
    concept's examples differ from the others; it is the mean over all probes of the concept.
    """

    concepts: tuple[str, ...]
    layers: tuple[str, ...]  # numbers of blocks, whose inputs are read, or names of modules
    target: Target
    scores: np.ndarray  # (concept, layer, probe): the share of examples with a positive derivative
    intervals: np.ndarray  # (concept, layer, 2): 95 % of the mean score, over probes and examples
    derivatives: np.ndarray  # (concept, layer, example)
    projections: np.ndarray  # (concept, layer, example): how far an example lies along the concept
    accuracies: np.ndarray  # (concept, layer, probe): held-out
    random_derivatives: np.ndarray  # (concept, layer, random concept): means over the examples
    random_accuracies: np.ndarray  # (concept, layer, random concept)
    p: np.ndarray  # (concept, layer)
    corrected: np.ndarray  # (concept, layer): p by Holm's correction, over all concepts and layers
    directions: tuple[np.ndarray, ...]  # of each layer: (concept, width)
    examples: tuple[Any, ...]  # of the class: texts, or small pictures
    labels: tuple[str, ...] = ()  # of the concepts, where they were probed against something: "striped, not dotted"
    at: str = "deciding"  # the token that was read, or "mean" or "flat"
    probe: str = "difference"
    test: str = "rank"
    level: float = 0.05
    model: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("at", READ_AT), ("test", TESTS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {shown(getattr(self, name))}")

    def __repr__(self) -> str:
        return f"Sensitivity({self.target} of {self.model} to {', '.join(self.concepts)} at {len(self.layers)} layers)"

    def score(self, concept: str, layer: int | str) -> float:
        """The TCAV score: the share of examples whose target grows along the concept, mean over probes."""
        return float(self.scores[self._place(concept, layer)].mean())

    def interval(self, concept: str, layer: int | str) -> tuple[float, float]:
        """The 95 % interval of the score."""
        low, high = self.intervals[self._place(concept, layer)]
        return float(low), float(high)

    def derivative(self, concept: str, layer: int | str) -> float:
        """The mean derivative of the target along the concept, over the examples."""
        return float(self.derivatives[self._place(concept, layer)].mean())

    def effect(self, concept: str, layer: int | str) -> float:
        """The mean derivative in units of the typical one of random concepts, their root mean square."""
        random = self.random_derivatives[self._place(concept, layer)]
        typical = float(np.sqrt((random**2).mean()))
        return self.derivative(concept, layer) / typical if typical else float("nan")

    def accuracy(self, concept: str, layer: int | str) -> float:
        """How often the probe is right on held-out examples, mean over probes."""
        return float(self.accuracies[self._place(concept, layer)].mean())

    def tells_apart(self, concept: str, layer: int | str) -> bool:
        """Whether the concept's probes are more accurate than 95 % of those of random concepts."""
        needed = np.quantile(self.random_accuracies[self._place(concept, layer)], 0.95)
        return self.accuracy(concept, layer) > max(0.5, float(needed))

    def p_value(self, concept: str, layer: int | str) -> float:
        """p after Holm's correction for all concepts and layers of this result."""
        return float(self.corrected[self._place(concept, layer)])

    def verdict(self, concept: str, layer: int | str) -> str:
        """One of `VERDICTS`: "for", "against", "none", "withheld"."""
        if not self.tells_apart(concept, layer):
            return "withheld"
        if self.p_value(concept, layer) > self.level:
            return "none"
        return "for" if self.derivative(concept, layer) > 0 else "against"

    def direction(self, concept: str, layer: int | str) -> Target:
        """The concept as a target for any method, which then shows where in an input the concept is."""
        number, place = self._place(concept, layer)
        if self.at == "flat":
            raise ValueError("a direction over all tokens at once is no target; probe at='deciding' or at='mean'")
        site = self.layers[place]
        return Target.direction(site, self.directions[place][number], self.at, name=f"{concept} at {site}")

    def _place(self, concept: str, layer: int | str) -> tuple[int, int]:
        """The numbers of a concept and of a layer."""
        if concept not in self.concepts:
            raise KeyError(f"no concept {concept!r} was probed; {suggest(str(concept), self.concepts)}")
        if str(layer) not in self.layers:
            raise KeyError(f"no layer {layer!r} was probed; there is {', '.join(self.layers)}")
        return self.concepts.index(concept), self.layers.index(str(layer))
