"""Signs: does what attention points at speak for the decision, or against it?"""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core.registry import experiment
from whence.debate.places import Heads, Layers, Place, Rows
from whence.debate.scenes import Scene, Values
from whence.debate.verdicts import Conclusion, Evidence, graded, too_few
from whence.model.masked_inputs import Way

FEW, MANY = 0.3, 0.8  # violations as a share of those by chance; up to FEW, and from MANY on, the grade is clear
LEAST_CHANCE = 0.05  # below, hardly any feature speaks against the decision, so hardly any ranking can be wrong
ROUNDING = 1e-6  # an effect on p below this has no sign


def _signed(evidence: Evidence, options: dict[str, Any]) -> Conclusion:
    violated = evidence.quantity("violated: attention")
    few = too_few(violated)
    if few is not None:
        return few
    rankings = ["attention x gradient", "gradient x input", *(options["methods"] or [])]
    others = ", ".join(f"{name} {evidence.mean(f'violated: {name}'):.0%}" for name in rankings)
    chance = evidence.values("violated: chance")
    answer = (
        f"The token with the highest weight speaks against the decision on {violated.mean:.0%} of the examples, and "
        f"any token does so on {evidence.mean('violated: chance'):.0%} (the strongest by another explanation has the "
        f"wrong sign: {others})"
    )
    if evidence.mean("violated: chance") < LEAST_CHANCE:
        return Conclusion("cannot tell", f"{answer}: hardly any token speaks against a decision.")
    return Conclusion(graded(*evidence.ratio(violated.values, chance), MANY, FEW), f"{answer}.")


@experiment(
    question="Do the tokens that attention points at speak for the decision?",
    conclude=_signed,
    family="attention",
    paper="arXiv:2201.12114",
    limits=("Weights have no sign: an attention that points at what speaks against the decision may still be right.",),
)
def signs(
    scene: Scene,
    *,
    mask: Way | None = None,
    methods: list[str] | None = None,
    layers: Layers = "last",
    heads: Heads = "together",
    rows: Rows = "deciding",
    special: bool = False,
) -> Values:
    """The faithfulness violation test: the sign of the strongest score against the effect of leaving the token out.

    "violated" is 1 where the strongest score, among features with an effect beyond rounding, has another sign than the
    fall of p of the decision without the feature; weights count as positive. "wrong" is the share of all effects whose
    sign the scores miss, "chance" how often a feature drawn at random speaks against the decision. Beside attention:
    attention x gradient, gradient x input with attention held, and `methods`. Features are left out as in `agreement`.
    """
    free = ~scene.item.special
    drops = np.full(len(free), np.nan)
    whole = float(scene.confidence(scene.own[None])[0])
    drops[free] = whole - scene.confidence(scene.left_out(mask)).cpu().numpy()
    named = {method: scene.explained(method) for method in methods or ()}

    def measure(place: Place) -> dict[str, float]:
        own = place.free & free
        scores = {"attention": place.attention, "attention x gradient": scene.attention_gradient(place)[1]}
        scores |= {"gradient x input": scene.gradient, **named}
        found = {
            f"{name}: {ranking}": value
            for ranking, one in scores.items()
            for name, value in _violations(one[own], drops[own]).items()
        }
        effects = drops[own][np.abs(drops[own]) > ROUNDING]
        return found | {"violated: chance": float((effects < 0).mean()) if len(effects) else float("nan")}

    return scene.at_places(layers, heads, rows, special, measure)


def _violations(scores: np.ndarray, drops: np.ndarray) -> dict[str, float]:
    """Whether the strongest score has the wrong sign, and the share of effects with a wrong sign."""
    matters = np.abs(drops) > ROUNDING
    if not matters.any():
        return {"violated": float("nan"), "wrong": float("nan")}
    scores, drops = scores[matters], drops[matters]
    wrong = np.sign(scores) != np.sign(drops)
    return {
        "violated": float(wrong[np.abs(scores).argmax()]),
        "wrong": float((np.abs(drops) * wrong).sum() / np.abs(drops).sum()),
    }
