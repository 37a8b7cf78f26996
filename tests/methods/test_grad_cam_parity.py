"""Parity with pytorch-grad-cam, by figures that were made beside OpenCV; peers/grad_cam_figures.py says how."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import whence
from peers.grad_cam_figures import FIGURES, MODELS, SIDE, made, pictures
from whence.core.geometry import upsample
from whence.core.results import Attribution
from whence.model.subject import Subject

LAYERS = [(name, number) for name in MODELS for number in range(len(MODELS[name][3]))]


@cache
def subject(name: str) -> Subject:
    special = MODELS[name][2]
    side = SIDE // (MODELS[name][1]["patch_size"])
    names = [f"extra {number}" for number in range(special)] + [f"patch {number}" for number in range(side * side)]

    def encode(pixels: np.ndarray) -> dict[str, Any]:
        marks = [number < special for number in range(len(names))]
        return {
            "tensors": {"pixel_values": pixels},
            "features": {"image": names},
            "special": {"image": marks},
            "grid": (side, side),
            "image": np.zeros((SIDE, SIDE, 3), np.uint8),
        }

    return whence.wrap(made(name), encode=encode)


@cache
def figures(name: str) -> dict[str, Any]:
    return json.loads(FIGURES.read_text())[name]


def explained(name: str, **options: Any) -> list[Attribution]:
    return whence.explain(subject(name), list(pictures()), "grad_cam", 1, **options)


def on_grid(name: str, a: Attribution) -> np.ndarray:
    """The scores as a map, special tokens cut off."""
    special = MODELS[name][2]
    assert not a.scores[:special].any()
    side = round(len(a.scores[special:]) ** 0.5)
    return a.scores[special:].reshape(side, side)


def away(found: np.ndarray, expected: np.ndarray) -> float:
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("name", "layer"), LAYERS)
def test_maps_of_features(name: str, layer: int) -> None:
    signed, plain = explained(name, layer=layer, relu=False), explained(name, layer=layer)
    for number, theirs in enumerate(figures(name)[str(layer)]):
        assert signed[number].output == pytest.approx(figures(name)["logits"][number], rel=1e-4)
        side = len(on_grid(name, signed[number]))
        expected = upsample(np.array(theirs), side, side)  # the later stage of Swin has a coarser grid
        assert away(on_grid(name, signed[number]), expected) <= 1e-4
        positive = upsample(np.maximum(theirs, 0), side, side)
        assert away(on_grid(name, plain[number]), positive) <= 1e-4


def test_what_a_user_sees() -> None:
    def scaled(pixels: np.ndarray) -> np.ndarray:
        return (pixels - pixels.min()) / np.ptp(pixels)

    ours = scaled(upsample(scaled(on_grid("vit", explained("vit")[0])), SIDE, SIDE))
    theirs = np.array(figures("vit")["seen"])
    assert np.abs(ours - theirs).max() <= 1e-4
    assert np.abs(scaled(explained("vit")[0].heatmap()) - theirs).max() <= 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_the_default_is_the_last_block(name: str) -> None:
    last = len(MODELS[name][3]) - 1
    for default, named, other in zip(
        explained(name), explained(name, layer=last), explained(name, layer=0), strict=True
    ):
        assert np.array_equal(default.scores, named.scores)
        assert away(other.scores, named.scores) > 0.02


def test_another_class_is_told_apart() -> None:
    (other, _) = whence.explain(subject("vit"), list(pictures()), "grad_cam(relu=False)", 0)
    assert away(on_grid("vit", other), np.array(figures("vit")["1"][0])) > 0.02
