"""Erasing weights: the highest one against a random one, and as many as it takes to change the decision."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from whence.core.audits import CrossTable
from whence.core.registry import experiment
from whence.core.specs import Between
from whence.debate.distances import jensen_shannon
from whence.debate.places import Heads, Layers, Place, Rows
from whence.debate.scenes import Scene, Values
from whence.debate.verdicts import Conclusion, Evidence, graded, too_few

NOTHING = 1e-6  # Jensen-Shannon divergence in nats; a smaller one counts as no effect
HARDLY = 2e-4  # nats; below, the output hardly moves: its total variation is 0.02 at most
RARELY, MOSTLY = 0.6, 0.85  # share of examples on which the highest weight has the greater effect
LITTLE, NEARLY = 0.3, 0.8  # of the way from random to the best ranking
CLOSE = 0.03  # fractions removed that differ by less are alike
FLIPS = ("both flip", "only highest flips", "only random flips", "neither flips")


def _erased(evidence: Evidence, options: dict[str, Any]) -> Conclusion:
    wins = evidence.quantity("highest has the greater effect")
    few = too_few(wins)
    if few is not None:
        return few
    shares = [evidence.mean(name) for name in FLIPS]
    table = CrossTable(
        "Does the decision change without ...?",
        ("the highest: yes", "the highest: no"),
        ("a random one: yes", "a random one: no"),
        np.array(shares).reshape(2, 2),
    )
    moves = evidence.mean("effect of highest") >= HARDLY
    return Conclusion(
        graded(wins.mean, wins.interval, RARELY, MOSTLY) if moves else "does not",
        f"Without the highest weight the output moves further than without a random other one on {wins.mean:.0%} of "
        f"the examples (Jensen-Shannon divergence {evidence.said('effect of highest')} against "
        f"{evidence.said('effect of random')}{'' if moves else ', hardly any'}); the decision changes on "
        f"{shares[0] + shares[1]:.0%} against {shares[0] + shares[2]:.0%}.",
        (table,),
    )


@experiment(
    question="Does the highest weight matter more than another one?",
    conclude=_erased,
    family="attention",
    paper="arXiv:1906.03731",
    limits=("Only one weight is erased: a decision that two tokens make together does not change.",),
)
def erasure(
    scene: Scene,
    *,
    layers: Layers = "last",
    heads: Heads = "together",
    rows: Rows = "deciding",
    special: bool = False,
) -> Values:
    """The highest weight set to zero against a random other one, the rest scaled up: effects, and flips.

    dJS = JS(p, q without the highest) - JS(p, q without a random one), in nats, beside the difference of the two
    weights. Effects that are both below 1e-6 count as a half for "highest has the greater effect".
    """

    def measure(place: Place) -> dict[str, float]:
        free = np.flatnonzero(place.free)
        weights = place.attention[free]
        highest = int(weights.argmax())
        random = int(scene.generator(f"erasure at {place.name}").choice(np.delete(np.arange(len(free)), highest)))
        gone = np.zeros((2, place.features), bool)
        gone[[0, 1], free[[highest, random]]] = True
        outputs = scene.answered(place, place.without(gone))
        effects = jensen_shannon(outputs, scene.own).mean(-1).tolist()
        flips = scene.flipped(outputs).tolist()
        cell = FLIPS[2 * (not flips[0]) + (not flips[1])]
        nothing = max(effects) < NOTHING
        return {
            "effect of highest": effects[0],
            "effect of random": effects[1],
            "difference of effects": effects[0] - effects[1],
            "difference of weights": float(weights[highest] - weights[random]),
            "highest has the greater effect": 0.5 if nothing else float(effects[0] > effects[1]),
            **{name: float(name == cell) for name in FLIPS},
        }

    return scene.at_places(layers, heads, rows, special, measure)


def _removed(evidence: Evidence, options: dict[str, Any]) -> Conclusion:
    own = evidence.quantity("removed, never as all: attention")
    few = too_few(own)
    if few is not None:
        return few
    rankings = [*RANKINGS, *(options["methods"] or [])]
    fractions = {name: evidence.values(f"removed, never as all: {name}") for name in rankings}
    means = {name: float(np.nanmean(values)) for name, values in fractions.items()}
    best = min((name for name in rankings if name != "random"), key=lambda name: means[name])
    never = evidence.mean("never: attention")
    said = ", ".join(f"{name} {means[name]:.0%}" for name in rankings)
    answer = (
        f"Of the weights, these shares must be removed, highest first, for the decision to change: {said} (all, where "
        f"it never does: {never:.0%} of the examples by attention)"
    )
    if means["random"] - means[best] < CLOSE:
        grade = "does not" if means[best] > 1 - CLOSE else "cannot tell"
        return Conclusion(grade, f"{answer}; no ranking does better than a random one.")
    gain, interval = evidence.ratio(fractions["random"] - fractions["attention"], fractions["random"] - fractions[best])
    return Conclusion(
        graded(gain, interval, LITTLE, NEARLY),
        f"{answer}: attention comes {gain:.0%} of the way from a random ranking to the best one, by {best}.",
    )


RANKINGS = ("attention", "random", "gradient", "attention x gradient")


@experiment(
    question="Are the highest weights those on which the decision hangs?",
    conclude=_removed,
    family="attention",
    paper="arXiv:1906.03731",
    limits=("A short list that changes the decision is a property of a good ranking; the shortest list is not known.",),
)
def removal(
    scene: Scene,
    *,
    draws: Annotated[int, Between(1, 1000)] = 5,
    methods: list[str] | None = None,
    layers: Layers = "last",
    heads: Heads = "together",
    rows: Rows = "deciding",
    special: bool = False,
) -> Values:
    """The share of the weights that must be removed in the order of a ranking until the decision changes.

    Rankings: random (mean over `draws`), attention, gradient (dp/da of what the model decides, with its sign),
    attention x gradient, and the scores of any `methods`. The remaining weights are scaled up. "removed" is not defined
    where the decision never changes; "never" counts these cases, and "removed, never as all" takes 1 for them.
    """

    def measure(place: Place) -> dict[str, float]:
        free = np.flatnonzero(place.free)
        gradient, product = scene.attention_gradient(place)
        rankings = {"attention": place.attention, "gradient": gradient, "attention x gradient": product}
        rankings |= {method: scene.explained(method) for method in methods or ()}
        rng = scene.generator(f"removal at {place.name}")
        names = ["random"] * draws + list(rankings)
        orders = [rng.permutation(free) for _ in range(draws)]
        orders += [free[np.argsort(-scores[free], kind="stable")] for scores in rankings.values()]
        needed = until_flip(scene, place, orders) / len(free)
        found: dict[str, float] = {}
        for name in dict.fromkeys(["attention", *names]):
            own = needed[[one == name for one in names]]
            never = np.isnan(own)
            found[f"removed: {name}"] = float(own[~never].mean()) if (~never).any() else float("nan")
            found[f"never: {name}"] = float(never.mean())
            found[f"removed, never as all: {name}"] = float(np.where(never, 1.0, own).mean())
        return found

    return scene.at_places(layers, heads, rows, special, measure)


def until_flip(scene: Scene, place: Place, orders: list[np.ndarray]) -> np.ndarray:
    """How many features of each order must go for the decision to change, (order,); NaN where it never does.

    Orders go forward together by a few features at a time; an order whose decision has changed goes no further.
    """
    needed = np.full(len(orders), np.nan)
    length, start, step = len(orders[0]), 1, 4
    while start <= length and np.isnan(needed).any():
        counts = range(start, min(start + step, length + 1))
        asked = [(number, count) for number in np.flatnonzero(np.isnan(needed)) for count in counts]
        gone = np.zeros((len(asked), place.features), bool)
        for row, (number, count) in enumerate(asked):
            gone[row, orders[number][:count]] = True
        distinct, back = np.unique(gone, axis=0, return_inverse=True)
        flips = scene.flipped(scene.answered(place, place.without(distinct))).cpu().numpy()[back.ravel()]
        for (number, count), flip in zip(asked, flips, strict=True):
            if flip and np.isnan(needed[number]):
                needed[number] = count
        start, step = start + step, step * 2
    return needed
