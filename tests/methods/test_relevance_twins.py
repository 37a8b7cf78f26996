"""Slow twins of relevance propagation: every rule by hand, in float64, one example at a time, without gradients.

whence explains a padded batch. Rules can be told to make one mistake; then the twin must be far off.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import relevance_by_hand as hand
import whence
from families import fresh, kept_in
from relevance_cases import CLOSE, DOUBLE, FAR, ROUNDED, SINGLE, distance, plain, spelled, subject


def explained(name: str, dtype: torch.dtype, spec: str, *, alone: bool = False) -> list[np.ndarray]:
    """What whence says, one array over the tokens of each input."""
    model = subject(name, dtype)
    with kept_in(dtype):
        found = whence.explain(model, fresh(name).inputs[:3], spec, batch_size=1 if alone else None)
    return [
        np.atleast_2d(a.scores)[0][: len(net.steps[0].value)] for a, (net, *_) in zip(found, plain(name), strict=True)
    ]


# ---- transformer attribution -----------------------------------------------------------------------------------------


def attributed(name: str, wrong: str = "", *, start_layer: int = 0, normalise: bool = False) -> list[np.ndarray]:
    """The row of CLS of the product of I + mean_h (G o R)^+, without the 1 of the identity."""
    found = []
    for net, target, gradients in plain(name):
        start = torch.zeros_like(net.steps[-1].value)
        start[target] = 1.0
        R = net.propagate(start, hand.Positive(wrong))
        one = torch.eye(len(net.steps[0].value), dtype=DOUBLE)
        product = one
        layers = list(zip(net.weights, gradients, strict=True))[start_layer:]
        for weights, G in reversed(layers) if wrong == "reversed layers" else layers:
            layer = one + (G * R[weights]).clamp(min=0).mean(0)
            product = (layer / layer.sum(-1, keepdim=True) if normalise else layer) @ product
        found.append((product - one)[0].numpy())
    return found


TA_OPTIONS: list[dict[str, Any]] = [{}, {"normalise": True}, {"start_layer": 1}]


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
@pytest.mark.parametrize("options", TA_OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["bert", "vit"])
def test_transformer_attribution(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    spec = spelled("transformer_attribution", options)
    assert distance(explained(name, dtype, spec), attributed(name, **options)) <= ROUNDED[dtype]


def test_transformer_attribution_does_not_feel_padding() -> None:
    padded, alone = (explained("bert", DOUBLE, "transformer_attribution", alone=alone) for alone in (False, True))
    assert distance(padded, alone) <= 1e-9


@pytest.mark.parametrize("wrong", ["no halves", "plain shares", "the bias takes part", "reversed layers"])
@pytest.mark.parametrize("name", ["bert", "vit"])
def test_broken_twins_of_transformer_attribution(name: str, wrong: str) -> None:
    # the maps of these models are small beside the identity, so that their order is felt in the product of two alone
    far = 1e-4 if wrong == "reversed layers" else FAR
    assert distance(explained(name, DOUBLE, "transformer_attribution"), attributed(name, wrong)) > far


# ---- LRP and AttnLRP -------------------------------------------------------------------------------------------------


def propagated(name: str, wrong: str = "", **options: Any) -> list[np.ndarray]:
    """Relevance of the tokens, from the prediction's logit down."""
    return [
        net.explained(hand.Lrp(wrong, **options), target, net.steps[-1].value[target].item()).numpy()
        for net, target, _ in plain(name)
    ]


LINEAR: list[dict[str, float]] = [{}, {"epsilon": 0.05}, {"gamma": 0.25}, {"epsilon": 0.1, "gamma": 0.5}]
RULES: dict[str, dict[str, Any]] = {
    "ah": {"norms": False},
    "ln": {"weights": "free"},
}
CASES = [("lrp", options, options) for options in LINEAR]
CASES += [("lrp", {"rules": rules}, options) for rules, options in RULES.items()]
CASES += [("attnlrp", options, {"weights": "half", **options}) for options in LINEAR]


@pytest.mark.parametrize(
    ("method", "asked", "rules", "dtype"),
    [(*case, dtype) for case in CASES for dtype in (SINGLE, DOUBLE) if dtype == DOUBLE or case[1] != {"gamma": 0.25}],
    ids=str,
)
@pytest.mark.parametrize("name", ["bert", "vit", "llama"])
def test_relevance(name: str, method: str, asked: dict[str, Any], rules: dict[str, Any], dtype: torch.dtype) -> None:
    close = (ROUNDED if asked else CLOSE)[dtype]
    assert distance(explained(name, dtype, spelled(method, asked)), propagated(name, **rules)) <= close


BROKEN = [
    ("lrp", "bert", "the mean is held too"),
    ("lrp", "vit", "the mean is held too"),
    *[("lrp", name, "one norm is missed") for name in ("bert", "vit", "llama")],
    *[("lrp", name, "tangent") for name in ("bert", "vit")],
    ("lrp", "llama", "the other factor is held"),
    *[("attnlrp", name, "no halves") for name in ("bert", "vit", "llama")],
    *[("attnlrp", name, "softmax passes on") for name in ("bert", "vit", "llama")],
    ("attnlrp", "llama", "tangent"),
]


@pytest.mark.parametrize(("method", "name", "wrong"), BROKEN)
def test_broken_twins(method: str, name: str, wrong: str) -> None:
    twin = propagated(name, wrong, weights="held" if method == "lrp" else "half")
    assert distance(explained(name, DOUBLE, method), twin) > FAR


def test_relevance_does_not_feel_padding() -> None:
    for spec in ("lrp(gamma=0.25)", "attnlrp"):
        padded, alone = (explained("llama", DOUBLE, spec, alone=alone) for alone in (False, True))
        assert distance(padded, alone) <= 1e-9
