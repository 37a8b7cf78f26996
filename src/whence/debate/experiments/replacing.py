"""Other weights in place of the model's own: exchanged at random among the tokens, or all equal."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch

from whence.core.registry import experiment
from whence.core.specs import Between
from whence.debate.distances import total_variation
from whence.debate.places import Heads, Layers, Place, Rows
from whence.debate.scenes import Scene, Values
from whence.debate.verdicts import Conclusion, Evidence, graded, too_few

LITTLE, MUCH = 0.02, 0.1  # total variation of the output; up to LITTLE, and from MUCH on, the grade is clear
LEVEL = 0.05  # of significance


def _permuted(evidence: Evidence, options: dict[str, Any]) -> Conclusion:
    change = evidence.quantity("median change")
    few = too_few(change)
    if few is not None:
        return few
    count = options["permutations"]
    return Conclusion(
        graded(change.mean, change.interval, LITTLE, MUCH),
        f"Exchanging the weights at random among the tokens changes the output by {evidence.said('median change')} "
        f"(median of {count} permutations, total variation, 1 at most), and the decision in "
        f"{evidence.mean('flips'):.0%} of them; on {evidence.mean('stands out'):.0%} of the examples the own output "
        f"stands out from the permuted ones at p <= {LEVEL}.",
    )


@experiment(
    question="Does it matter which tokens get the weights?",
    conclude=_permuted,
    family="attention",
    paper="arXiv:1902.10186",
    limits=(
        "An output that is sure of itself may stay what it is although attention matters; look at flips, too.",
        "Permuted attention is none that the model was trained with.",
    ),
)
def permutation(
    scene: Scene,
    *,
    permutations: Annotated[int, Between(1, 10_000)] = 100,
    layers: Layers = "last",
    heads: Heads = "together",
    rows: Rows = "deciding",
    special: bool = False,
) -> Values:
    """The weights exchanged at random among the tokens: how far the output moves, beside the greatest weight.

    The change is the total variation between outputs, half the sum of |dp| (the public code of a later paper halves it
    again), its median over `permutations`. All heads that are edited together are exchanged alike. "p" tells whether
    the model's own output stands out: it is the rank of its distance from the mean of all outputs, own and permuted,
    among the distances of the permuted ones. If the tokens' values are exchangeable, p <= .05 on at most 5 % of the
    examples.
    """

    def measure(place: Place) -> dict[str, float]:
        new = place.permuted(permutations, scene.generator(f"permutation at {place.name}"))
        outputs = scene.answered(place, new)
        p = outlying(torch.cat([scene.own[None], outputs]))
        shares = place.attention[place.free] / place.attention[place.free].sum()
        return {
            "median change": float(np.median(total_variation(outputs, scene.own).cpu())),
            "flips": float(scene.flipped(outputs).double().mean()),
            "greatest weight": float(shares.max()),
            "p": p,
            "stands out": float(p <= LEVEL),
        }

    return scene.at_places(layers, heads, rows, special, measure)


def outlying(outputs: torch.Tensor) -> float:
    """The p-value of the first output's distance from the mean of all, among the distances of the others."""
    distances = total_variation(outputs, outputs.mean(0))
    return float((distances >= distances[0] - 1e-12).double().mean())  # the first one counts as one of them


def _uniform(evidence: Evidence, options: dict[str, Any]) -> Conclusion:
    change = evidence.quantity("change")
    few = too_few(change)
    if few is not None:
        return few
    accuracy = ""
    if "right" in evidence:
        accuracy = f"; {evidence.mean('right'):.0%} of the decisions are right before and "
        accuracy += f"{evidence.mean('right, uniform'):.0%} after"
    return Conclusion(
        graded(change.mean, change.interval, LITTLE, MUCH),
        f"With equal weights for all tokens the output changes by {evidence.said('change')} (total variation, 1 at "
        f"most) and the decision on {evidence.mean('flips'):.0%} of the examples{accuracy}.",
    )


@experiment(
    question="Does the model need its weights, or would equal ones do?",
    conclude=_uniform,
    family="attention",
    paper="arXiv:1908.04626",
    limits=("The model was not trained with equal weights; one that was might do as well with them.",),
)
def uniform(
    scene: Scene,
    *,
    layers: Layers = "each",
    heads: Heads = "together",
    rows: Rows = "deciding",
    special: bool = False,
) -> Values:
    """Equal weights in place of the model's own, at test time: change of the output, decisions, accuracy.

    In the paper a model is trained with equal weights; here a trained one is given them, layer by layer.
    """

    def measure(place: Place) -> dict[str, float]:
        outputs = scene.answered(place, place.uniform())
        found = {
            "change": float(total_variation(outputs, scene.own)[0]),
            "flips": float(scene.flipped(outputs)[0]),
            "loss of p": float(scene.confidence(scene.own[None])[0] - scene.confidence(outputs)[0]),
        }
        if scene.label is not None:
            found["right"] = float(scene.decides(scene.own[None], scene.label)[0])
            found["right, uniform"] = float(scene.decides(outputs, scene.label)[0])
        return found

    return scene.at_places(layers, heads, rows, special, measure)
