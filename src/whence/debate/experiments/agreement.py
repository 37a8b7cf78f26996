"""Agreement of attention with other explanations, compared with the agreement of those among themselves."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from scipy.stats import kendalltau

from whence.core.registry import experiment
from whence.core.specs import Between
from whence.debate.distances import total_variation
from whence.debate.places import AttentionReading, Heads, Layers, Place, Rows
from whence.debate.scenes import Scene, Values
from whence.debate.verdicts import Conclusion, Evidence, graded, too_few
from whence.model.masked_inputs import Way

LOW, HIGH = 0.3, 0.8  # shares of the ceiling; up to LOW, and from HIGH on, the grade is clear
LEAST_CEILING = 0.2  # below, the other explanations do not agree among themselves
LEVEL = 0.05
PAIRS = ("attention, gradient", "attention, left out", "gradient, left out")


def _agreed(evidence: Evidence, options: dict[str, Any]) -> Conclusion:
    with_gradient, with_left_out, ceiling = (evidence.quantity(f"tau: {pair}") for pair in PAIRS)
    few = too_few(with_gradient)
    if few is not None:
        return few
    both = (with_gradient.values + with_left_out.values) / 2
    ratio, interval = evidence.ratio(both, ceiling.values)
    said = [evidence.said(f"tau: {pair}") for pair in PAIRS]
    answer = (
        f"Kendall's tau of attention is {said[0]} with gradients and {said[1]} with leaving tokens out, where these "
        f"two agree with each other at {said[2]}"
    )
    if not ceiling.mean >= LEAST_CEILING:
        return Conclusion("cannot tell", f"{answer}, too little to be a measure of anything.")
    return Conclusion(graded(ratio, interval, LOW, HIGH), f"{answer}: {ratio:.0%} of what can be expected.")


@experiment(
    question="Do the tokens that attention ranks high matter by other measures?",
    conclude=_agreed,
    family="attention",
    paper="arXiv:1902.10186",
    limits=(
        "Gradients and leaving out are no truth either: they are the ceiling because they differ, too.",
        "Ranks of tokens that hardly matter count as much as those of tokens that decide; 'top' looks at the top.",
    ),
)
def agreement(
    scene: Scene,
    *,
    reading: AttentionReading = "attention",
    top: Annotated[int, Between(1, 1000)] = 5,
    mask: Way | None = None,
    layers: Layers = "last",
    heads: Heads = "together",
    rows: Rows = "deciding",
    special: bool = False,
) -> Values:
    """Kendall's tau-b of attention with gradients and with leaving one out, and of those two with each other.

    Gradient: |sum over width of x dp/dx| at the word embeddings (or pixels), with attention held as it is. Left out:
    the total variation between the outputs with and without a token, deleted as in the paper where the model decides on
    a whole text, else hidden by the `mask` "auto". Special tokens have no score by leaving out and never count. "top"
    is the share that the `top` tokens of two rankings have in common, not defined for shorter inputs; "significant" the
    share of examples with p <= .05. `reading="rollout"` ranks by attention rolled out over all layers instead.
    """
    free = ~scene.item.special
    left_out = np.full(len(free), np.nan)
    left_out[free] = total_variation(scene.left_out(mask), scene.own).cpu().numpy()
    others = {"gradient": np.abs(scene.gradient), "left out": left_out}

    def compared(attention: np.ndarray, own: np.ndarray) -> dict[str, float]:
        rankings = {"attention": attention[own]} | {name: scores[own] for name, scores in others.items()}
        return _compared(rankings, top)

    def measure(place: Place) -> dict[str, float]:
        return compared(place.attention, place.free & free)

    if reading == "rollout":
        return {"rollout": compared(scene.explained("rollout"), free)} if free.sum() > 1 else {}
    return scene.at_places(layers, heads, rows, special, measure)


def _compared(rankings: dict[str, np.ndarray], top: int) -> dict[str, float]:
    """tau-b, its significance and the overlap of the top, of every pair of rankings."""
    found: dict[str, float] = {}
    for pair in PAIRS:
        a, b = (rankings[name] for name in pair.split(", "))
        tau, p = kendalltau(a, b, variant="b") if np.ptp(a) > 0 and np.ptp(b) > 0 else (np.nan, np.nan)
        found[f"tau: {pair}"] = float(tau)
        found[f"significant: {pair}"] = float(p <= LEVEL) if not np.isnan(p) else float("nan")
        found[f"top: {pair}"] = overlap(a, b, top)
    return found


def overlap(a: np.ndarray, b: np.ndarray, top: int) -> float:
    """The share of the `top` entries of two rankings that they have in common; NaN where there are no more entries."""
    if len(a) <= top:
        return float("nan")
    first, second = (set(np.argsort(-one, kind="stable")[:top].tolist()) for one in (a, b))
    return len(first & second) / top
