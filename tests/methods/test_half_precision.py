"""Models in half precision: attention times gradient is added up in float32, and scores are near those of float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import whence
from families import fresh
from whence.methods.attention import reduced
from whence.propagation import long_inputs

CLOSE = {torch.bfloat16: 0.2, torch.float16: 0.03}  # of the largest score: the model itself rounds to 3 or 4 digits
METHODS = ["attention", "rollout", "grad_sam", "attention_x_gradient", "gae", "attcat", "lrp", "gradient_x_input"]


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_near_the_scores_of_float32(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of both are those of half precision, so that only the arithmetic differs; kept and folded."""
    half, whole = fresh(name), fresh(name)
    half.model.to(dtype)
    whole.model.to(dtype).float()
    inputs = half.inputs[:2]
    right = whence.compare(whence.wrap(whole.model, whole.processor), inputs, METHODS, 1)
    found = [whence.compare(whence.wrap(half.model, half.processor), inputs, METHODS, 1)]
    monkeypatch.setattr(long_inputs, "LONG_BYTES", 0)
    found.append(whence.compare(whence.wrap(half.model, half.processor), inputs, METHODS, 1))
    for way in found:
        for row, expected in zip(way, right, strict=True):
            for a, b in zip(row, expected, strict=True):
                assert a.scores.dtype == np.float32
                gap = np.abs(a.scores - b.scores).max() / np.abs(b.scores).max()
                assert gap <= CLOSE[dtype], (a.method, gap)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "qwen3", "llava"])
def test_decompositions_near_those_of_float32(name: str, dtype: torch.dtype) -> None:
    """The eager path, on which parts are followed, rounds at other places than the model's own path does."""
    half, whole = fresh(name), fresh(name)
    half.model.to(dtype)
    whole.model.to(dtype).float()
    for method in ("decompx", "globenc", "alti", "value_zeroing"):  # alone: f is then known from the model's own path
        b = whence.explain(whence.wrap(whole.model, whole.processor), whole.inputs[0], method)
        a = whence.explain(whence.wrap(half.model, half.processor), whole.inputs[0], method, b.target)
        gap = np.abs(a.scores - b.scores).max() / np.abs(b.scores).max()
        assert gap <= CLOSE[dtype], (a.method, gap)


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_heads_are_added_up_in_float32(dtype: torch.dtype) -> None:
    weights = torch.full((1, 300, 2, 2), 1.01, dtype=dtype)
    exact = 300 * weights[0, 0, 0, 0].item()
    assert reduced(weights, "sum").dtype == torch.float32
    assert reduced(weights, "sum")[0, 0, 0].item() == pytest.approx(exact, rel=1e-6)
    assert weights.sum(1)[0, 0, 0].item() != pytest.approx(exact, rel=1e-6)
