"""Models that work in place on their inputs and states: every method gives what it gives for the out-of-place twin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from tests.support.families import LABELS, MAX_TOKENS, Classifier, _drawn, _encode_text, bert_tokenizer, gpt2_tokenizer
from torch import Tensor, nn
from torch.nn import functional as F

import whence
from whence.core import registry

TEXT = "the actors were wonderful"


class Mixing(nn.Module):
    """Attention and a projection; in place, what the projection returned becomes the state after the residual."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.norm = in_place, nn.LayerNorm(32)
        self.project, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = self.project(self.norm(x)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None, :].bool())
        y = self.out(mixed.transpose(1, 2).flatten(2))
        if self.in_place:
            y += x
            return y
        return y + x


class Scaled(Classifier):
    """A classifier that scales its word embeddings and adds positions, in place or not."""

    def __init__(self, vocabulary: int, in_place: bool) -> None:
        super().__init__(vocabulary)
        self.in_place, self.blocks = in_place, nn.ModuleList(Mixing(in_place) for _ in range(2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x, positions = self.word(input_ids), self.position(torch.arange(input_ids.shape[1]))
        if self.in_place:
            x *= 32**0.5
            x += positions
        else:
            x = x * 32**0.5 + positions
        for block in self.blocks:
            x = block(x, attention_mask)
        return self.head(x[:, 0])


def scaled(in_place: bool) -> whence.Subject:
    tokenizer = bert_tokenizer()
    model = _drawn(lambda: Scaled(len(tokenizer), in_place))

    def encode(raw: str) -> dict[str, Any]:
        encoded = _encode_text(tokenizer, raw)
        tensors = {name: encoded["tensors"][name] for name in ("input_ids", "attention_mask")}
        return {**encoded, "tensors": tensors}

    return whence.wrap(model, encode=encode, labels=LABELS, name="scaled")


SLOW_TO_IMPORT = ("shap", "lime")  # they only hide features, as leave_one_out does
RECORDS = [r for r in registry.records("method") if "module" in r.tasks and r.name not in SLOW_TO_IMPORT]
SPECS = [r.name for r in RECORDS if r.family != "vision"]  # the others explain pictures: see below
SPECS += ["gradient_x_input(at='word')", "gradient_x_input(at=1)", "integrated_gradients(at='embeddings', steps=4)"]
SPECS += ["smoothgrad(at='word', samples=2)", "lrp(neurons='blocks.0.out')", "attnlrp(at='word')"]


@pytest.fixture(scope="module")
def twins() -> tuple[whence.Subject, whence.Subject]:
    return scaled(in_place=True), scaled(in_place=False)


@pytest.mark.parametrize("spec", SPECS)
def test_every_method_gives_what_it_gives_for_the_twin(spec: str, twins: tuple[Any, Any]) -> None:
    texts = [TEXT, "a masterful film"]
    for one, other in zip(*(whence.explain(twin, texts, spec, 1) for twin in twins), strict=True):
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4, atol=1e-5)
        assert one.output == pytest.approx(other.output, abs=1e-5)


@pytest.mark.parametrize("target", ["neuron('blocks.0.out', 3)", "neuron('word', 3)"])
def test_targets_inside_are_those_of_the_twin(target: str, twins: tuple[Any, Any]) -> None:
    one, other = (whence.explain(twin, TEXT, "gradient_x_input(at='word')", target) for twin in twins)
    # 'blocks.0.out' and 'word' give the state before it is changed in place
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4, atol=1e-6)
    assert one.output == pytest.approx(other.output, abs=1e-6)


class Normalised(nn.Module):
    """A model that normalises the vectors that it is given: in place, it changes its own input."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.first, self.head = in_place, nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, visual: Tensor) -> Tensor:
        if self.in_place:
            visual -= 0.5
            visual /= 0.25
        else:
            visual = (visual - 0.5) / 0.25
        return self.head(self.first(visual).tanh().mean(1))


@pytest.mark.parametrize("spec", ["gradient_x_input", "integrated_gradients(steps=8)", "leave_one_out", "random"])
def test_inputs_that_a_model_changes_are_given_as_copies(spec: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)

    def encode(raw: np.ndarray) -> dict[str, Any]:
        return {"tensors": {"visual": raw}, "features": {"visual": [f"vector {i}" for i in range(len(raw))]}}

    models = [_drawn(lambda in_place=in_place: Normalised(in_place)) for in_place in (True, False)]
    one, other = (whence.explain(whence.wrap(model, encode=encode), vectors.copy(), spec, 1) for model in models)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4, atol=1e-6)
    assert one.output == pytest.approx(other.output, abs=1e-6)


class Pictured(nn.Module):
    """A vision transformer that changes its pixels, and what its norm returned, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.cut, self.head = in_place, nn.Conv2d(1, 32, 4, 4), nn.Linear(32, 3)
        self.norms = nn.ModuleList(nn.LayerNorm(32) for _ in range(2))
        self.attentions = nn.ModuleList(nn.MultiheadAttention(32, 4, batch_first=True) for _ in range(2))

    def forward(self, pixel_values: Tensor) -> Tensor:
        if self.in_place:
            pixel_values -= 0.5
        else:
            pixel_values = pixel_values - 0.5
        state = self.cut(pixel_values).flatten(2).transpose(1, 2)
        for norm, attention in zip(self.norms, self.attentions, strict=True):
            read = norm(state)
            if self.in_place:
                read += 0.1
            else:
                read = read + 0.1
            state = state + attention(read, read, read, need_weights=False)[0]
        return self.head(state.mean(1))


@pytest.mark.parametrize("spec", ["grad_cam", "grad_cam(of='attention')", "score_cam", "rise(samples=9)", "vit_cx"])
def test_pictures_and_features_that_a_model_changes(spec: str) -> None:
    pixels = np.random.default_rng(0).normal(size=(1, 12, 12)).astype(np.float32)

    def encode(raw: np.ndarray) -> dict[str, Any]:
        names = [f"patch {i}" for i in range(9)]
        return {"tensors": {"pixel_values": raw}, "features": {"image": names}, "grid": (3, 3)}

    models = [_drawn(lambda in_place=in_place: Pictured(in_place)) for in_place in (True, False)]
    one, other = (whence.explain(whence.wrap(model, encode=encode), pixels.copy(), spec, 1) for model in models)
    np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4, atol=1e-6)
    assert one.scores.any() and one.output == pytest.approx(other.output, abs=1e-6)


def test_ctrl() -> None:
    """CTRL scales its embeddings in place; the gradient is that of autograd on embeddings which it is given."""
    tokenizer = gpt2_tokenizer()
    sizes = {"n_positions": MAX_TOKENS, "n_embd": 32, "dff": 64, "n_layer": 2, "n_head": 4}
    model: Any = _drawn(lambda: hf.CTRLLMHeadModel(hf.CTRLConfig(vocab_size=len(tokenizer), **sizes)))
    subject = whence.wrap(model, tokenizer)
    found = whence.explain(subject, "the old man", "gradient_x_input(at='word')", " was")
    words = model.transformer.w(torch.tensor(tokenizer("the old man")["input_ids"]))[None].detach().requires_grad_()
    (token,) = tokenizer(" was")["input_ids"]
    logit = model(inputs_embeds=words.clone()).logits[0, -1, token]
    (gradient,) = torch.autograd.grad(logit, words)
    np.testing.assert_allclose(found.scores, (words * gradient).sum(-1)[0].detach(), rtol=1e-4, atol=1e-5)
    for spec in ("gae", "attention_x_gradient", "lrp", "attnlrp", "integrated_gradients", "decompx", "attcat"):
        result = whence.explain(subject, "the old man", spec)
        assert spec not in ("integrated_gradients", "decompx") or abs(result.residual) < 0.02 * abs(result.output)
