"""What every medium says about a Sensitivity: its facts, a row per concept and layer, the examples along a concept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whence.core.sensitivities import VERDICTS, Sensitivity
from whence.core.wording import counted
from whence.views.content.attribution import Facts
from whence.views.text import listed, number, printable

READ = {"deciding": "at the tokens that the output reads", "mean": "as the mean of all tokens", "flat": "all tokens"}
TESTS = {
    "rank": "rank among random concepts, Holm's correction",
    "t": "t-test of the paper, Holm's correction: it calls chance effects significant too often",
}
HEADS = ("layer", "concept", "score", "95 %", "derivative", "effect", "accuracy", "p", "verdict")
MOST = 6  # examples at each end that a page shows


@dataclass(frozen=True)
class Row:
    """A concept at a layer, as it is written."""

    layer: str
    concept: str
    score: float
    interval: tuple[float, float]
    derivative: float
    effect: float
    accuracy: float
    p: float
    verdict: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as `HEADS` name it."""
        return (
            *(self.layer, self.concept, f"{self.score:.2f}", f"{self.interval[0]:.2f} to {self.interval[1]:.2f}"),
            *(f"{self.derivative:+.3g}", "-" if np.isnan(self.effect) else f"{self.effect:+.1f}"),
            *(f"{self.accuracy:.2f}", f"{self.p:.3f}", self.verdict),
        )


def reading(s: Sensitivity) -> str:
    """Which concepts speak for or against the target, and which cannot be judged."""
    target, found = printable(str(s.target)), list(rows(s))
    speaking: list[str] = []
    groups: dict[str, list[str]] = {"none": [], "withheld": []}
    for concept in dict.fromkeys(row.concept for row in found):
        own = [row for row in found if row.concept == concept]
        for verdict in ("for", "against"):
            layers = [row.layer for row in own if row.verdict == verdict]
            if layers:
                where = f"layer{'s' * (len(layers) > 1)} {listed(layers, 8)}"
                speaking.append(f"{concept} speaks {verdict} the {target} at {where}")
        if not any(row.verdict in ("for", "against") for row in own):
            groups["none" if any(row.verdict == "none" for row in own) else "withheld"].append(concept)
    said = [f"{'; '.join(speaking)}." if speaking else f"No concept speaks for or against the {target} beyond chance."]
    randoms = s.random_derivatives.shape[-1]
    if s.test == "rank" and len(found) / (randoms + 1) > s.level:  # the smallest possible corrected p exceeds the level
        said = [f"With {counted(randoms, 'random concept')}, none of {len(found)} tests could be significant."]
    elif groups["none"]:
        said.append(f"{listed(groups['none'])}: no more than random concepts do.")
    if groups["withheld"]:
        them = "it" if len(groups["withheld"]) == 1 else "them"
        said.append(f"Of {listed(groups['withheld'])} nothing is said, since the probes cannot tell {them} apart.")
    return " ".join(said)


def facts(s: Sensitivity) -> Facts:
    """What every medium says before it shows rows, printable."""
    probes = counted(s.scores.shape[-1], "probe")
    found = [
        ("target", str(s.target)),
        ("model", s.model),
        ("examples", str(len(s.examples))),
        ("states", f"{READ[s.at]}, {probes} of each concept ({s.probe})"),
        ("p", f"{TESTS[s.test]}; {counted(s.random_derivatives.shape[-1], 'random concept')}"),
        ("effect", "the mean derivative in units of the typical one of random concepts"),
    ]
    used = {row.verdict for row in rows(s)}
    found += [(verdict, VERDICTS[verdict]) for verdict in VERDICTS if verdict in used]
    found += [("note", note) for note in dict.fromkeys(s.notes)]
    return [(label, printable(text)) for label, text in found]


def rows(s: Sensitivity) -> Iterator[Row]:
    """A row per layer and concept."""
    for layer in s.layers:
        for concept, label in zip(s.concepts, s.labels or s.concepts, strict=True):
            yield Row(
                layer=printable(layer),
                concept=printable(label),
                score=s.score(concept, layer),
                interval=s.interval(concept, layer),
                derivative=s.derivative(concept, layer),
                effect=s.effect(concept, layer),
                accuracy=s.accuracy(concept, layer),
                p=s.p_value(concept, layer),
                verdict=s.verdict(concept, layer),
            )


def ends(s: Sensitivity, concept: int) -> tuple[str, list[tuple[int, str]], list[tuple[int, str]]]:
    """The layer at which a concept is known best, and the examples most and least along it there, with captions."""
    layer = int(s.accuracies[concept].mean(-1).argmax())
    along = s.projections[concept, layer]
    order = np.argsort(-along, kind="stable").tolist()
    count = min(MOST, len(order) // 2) or 1
    captions = [(i, f"{number(along[i])}, derivative {s.derivatives[concept, layer, i]:+.3g}") for i in order]
    return s.layers[layer], captions[:count], captions[-count:][::-1]
