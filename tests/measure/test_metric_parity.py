"""Metrics beside those of other packages: captum as it is, ferret and Quantus by figures that they gave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from captum.metrics import infidelity, sensitivity_max
from torch import nn

import whence
from families import bert_tokenizer, family
from whence.core.inputs import Target
from whence.core.results import Attribution

TEXT = "nobody laughed at the jokes because the ending was slow"
SIGNED = np.array([0.4, -0.7, 0.15, 0.9, -0.05, 0.3, 1.1, -0.2, 0.6, -1.3])
POSITIVE = np.array([0.4, 0.7, 0.15, 0.9, 0.05, 0.3, 1.1, 0.2, 0.6, 1.3])


class Waves(nn.Module):
    """Two logits of tokens and of neighbours, by a formula: the same numbers everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(400, 2)
        places = torch.arange(400, dtype=torch.float64)[:, None]
        self.word.weight = nn.Parameter(torch.sin(1.3 * places + torch.tensor([0.0, 2.1], dtype=torch.float64)))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.word(input_ids)
        return 0.4 * x.sum(1) + (x[:, 1:] * x[:, :-1]).sum(1)


class Six(nn.Module):
    """Two logits of six numbers, which are the embeddings of six tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(6, 1)
        self.word.weight = nn.Parameter(torch.tensor([[0.8], [-1.2], [0.5], [2.0], [-0.6], [1.1]], dtype=torch.float64))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.decide(self.word(input_ids)[..., 0])

    @staticmethod
    def decide(x: torch.Tensor) -> torch.Tensor:
        """(batch, 6) to (batch, 2)"""
        scale = torch.tensor([0.7, -0.4, 1.2, 0.5, -1.1, 0.3], dtype=x.dtype)
        return torch.stack([(x[:, 1:] * x[:, :-1]).sum(1), (x * scale).sum(1) + 0.2], 1)


def given(model: nn.Module, encoded: dict[str, Any], scores: np.ndarray, target: Target) -> tuple[Any, Attribution]:
    """The subject and an attribution with these scores; special tokens get none."""
    subject = whence.wrap(model, encode=lambda raw: encoded)
    item = subject.encode("")
    every = np.zeros(len(item.features))
    every[~item.special] = scores
    output = float(subject.values(subject.batch([item]), subject.aim([target]))[0])
    return subject, Attribution(every, item, "given", target, output)


# ---- ferret ----------------------------------------------------------------------------------------------------------


def sentence(scores: np.ndarray) -> tuple[Any, Attribution]:
    ids = bert_tokenizer()(TEXT)["input_ids"]
    encoded = {"tensors": {"input_ids": np.array(ids)}, "features": {"text": ["[CLS]", *TEXT.split(), "[SEP]"]}}
    encoded["special"] = {"text": [True, *[False] * 10, True]}
    return given(Waves(), encoded, scores, Target("probability", 1, "1"))


# Figures of ferret-xai 0.4.2: its evaluators with their defaults (the top 10 % to 100 % of the tokens are removed, or
# alone are left; the mean over these), on the model and the sentence above. The package does not install beside
# transformers 5, so its module `evaluators.faithfulness_measures` was imported by itself, with a helper that runs the
# model on one text at a time. Its rationales hold positive scores only, hence `POSITIVE`.
FERRET = {"comprehensiveness": 0.4586126290486061, "sufficiency": 0.4583623903457043}
FERRET_TAU = [(POSITIVE, -0.1111111111111111), (SIGNED, 0.4666666666666666)]


@pytest.mark.parametrize("metric", FERRET)
def test_ferret_removes_the_same_tokens(metric: str) -> None:
    subject, a = sentence(POSITIVE)
    tenths = [k / 10 for k in range(1, 11)]
    assert whence.score(subject, a, metric, bins=tenths).value == pytest.approx(FERRET[metric], abs=1e-9)
    turned = replace(a, scores=-a.scores)
    assert abs(whence.score(subject, turned, metric, bins=tenths).value - FERRET[metric]) > 0.01


def test_ferret_ranks_leave_one_out_the_same() -> None:
    for scores, tau in FERRET_TAU:
        subject, a = sentence(scores)
        assert whence.score(subject, a, "loo_agreement(mask='delete')").value == pytest.approx(tau, abs=1e-9)


# ---- Quantus ---------------------------------------------------------------------------------------------------------

# Figures of Quantus 0.6.0, which does not install here (it was imported with empty modules in place of OpenCV and
# scikit-image): PixelFlipping(features_in_step=1, normalise=False, perturb_baseline=0.0), softmax=True, on the six
# numbers as a picture of one row, in float32. Its curve begins after the first pixel is flipped, and its area has steps
# of one.
FLIPPED = [0.9936315417, 0.9715294838, 0.9205614328, 0.7558389306, 0.6899744868, 0.5498339534]
FLIPPED_AREA = 4.1096370816
FLIPPING = np.array([0.9, 0.3, -0.5, 1.4, 0.1, -0.2])


def six() -> tuple[Any, Attribution]:
    encoded = {"tensors": {"input_ids": np.arange(6)}, "features": {"text": list("abcdef")}}
    return given(Six(), encoded, FLIPPING, Target("probability", 1, "1"))


def test_quantus_flips_the_same_pixels() -> None:
    subject, a = six()
    drops = [
        whence.score(subject, a, "comprehensiveness", bins=[count / 6], mask="zero").value for count in range(1, 7)
    ]
    assert a.output - np.array(drops) == pytest.approx(FLIPPED, abs=1e-6)
    area = whence.score(subject, a, "deletion(mask='zero')").value
    assert 6 * area - (a.output + FLIPPED[0]) / 2 == pytest.approx(FLIPPED_AREA, abs=1e-6)


# ---- captum ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scaled", [False, True])
def test_captum_measures_the_same_infidelity(scaled: bool) -> None:
    """With features hidden by zero, I is the input where it is hidden, and scores include the input's factor."""
    subject, a = six()
    x = Six().word.weight.detach().T
    a = replace(a, target=Target("logit", 1, "1"), output=Six.decide(x)[0, 1].item())
    rng = np.random.default_rng([0, 2])
    hidden = torch.tensor(rng.random((64, 6)) < 0.3)

    def perturb(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return hidden.to(inputs.dtype), inputs.masked_fill(hidden, 0.0)

    scores = torch.tensor(a.scores)[None]
    options: dict[str, Any] = {"n_perturb_samples": 64, "target": 1, "normalize": scaled}
    expected = infidelity(Six.decide, perturb, x, scores, **options)
    found = whence.score(subject, a, "infidelity(mask='zero')", scaled=scaled).value
    assert found == pytest.approx(expected.item(), rel=1e-9) and found > 0.01


@pytest.mark.parametrize("method", ["gradient", "gradient_x_input(at='word')"])
def test_captum_measures_the_same_sensitivity(method: str) -> None:
    """The largest of ten shifts within 0.05 of every entry of the word embeddings."""
    made = family("bert")
    subject = whence.wrap(made.model, made.processor)
    at = method if "at=" in method else f"{method}(at='word')"
    a = whence.explain(subject, "a masterful film", at, 1)
    ids = torch.tensor(a.input.tensors["input_ids"])[None]
    words = made.model.get_input_embeddings()(ids).detach()
    rng = np.random.default_rng([0, 5])
    shifts = torch.tensor(np.stack([rng.uniform(-0.05, 0.05, words.shape[1:]) for _ in range(10)])).float()

    def explained(embedded: Any) -> tuple[torch.Tensor]:
        state = (embedded[0] if isinstance(embedded, tuple) else embedded).detach().requires_grad_()
        with torch.enable_grad():
            logits = made.model(inputs_embeds=state, attention_mask=torch.ones(state.shape[:2])).logits[:, 1].sum()
            (gradient,) = torch.autograd.grad(logits, state)
        return (gradient.norm(dim=-1) if at.startswith("gradient(") else (gradient * state).sum(-1).detach(),)

    expected = sensitivity_max(explained, words, lambda inputs, radius: inputs + shifts, perturb_radius=0.05)
    found = whence.score(subject, a, "max_sensitivity", radius=0.05, draws=10).value
    assert found == pytest.approx(expected.item(), rel=1e-3) and found > 0.01
