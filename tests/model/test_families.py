"""The catalogue of small models itself: models build, run and repeat, and their attention is far from uniform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from families import FAMILIES, family, fresh, plain_inputs, plain_logits, plain_outputs
from whence.core import tasks

NAMES = list(FAMILIES)
MODULES = ["torch-encoder", "torch-multihead", "torch-sdpa", "from-scratch"]
IMAGES = ["vit", "deit", "deit-teacher", "dinov2", "dinov2-registers", "beit", "swin"]
PRETRAINED = [name for name in NAMES if name not in MODULES]
WITH_TEXT = [name for name in NAMES if name not in IMAGES]
GENERATORS = ["gpt2", "gemma3", "t5", "bart", "marian"]
PADDED = [*NAMES[: NAMES.index("vit")], "gpt-neox", "gemma2", "gemma3", "gpt-oss", "t5", "bart", "marian"]
TASKS = set(tasks.NAMES)


def _attentions(outputs: Any) -> list[torch.Tensor]:
    """All attention maps in a model's output, those of its towers included."""
    maps: list[torch.Tensor] = []
    for key, value in outputs.items():
        if key.endswith("attentions"):
            maps += value
        elif hasattr(value, "items"):
            maps += _attentions(value)
    return maps


def _peak(weights: torch.Tensor) -> float:
    """The mean over rows of the largest weight, as a multiple of a uniform one over what the row can see."""
    visible = (weights > 0).sum(dim=-1)
    return (weights.max(dim=-1).values * visible)[visible > 1].mean().item()


@pytest.mark.parametrize("name", NAMES)
def test_runs_on_its_inputs(name: str) -> None:
    made = family(name)
    assert made.name == name and made.task in TASKS and len(made.inputs) == 4
    assert (made.processor is None) == ("encode" in made.kwargs)
    assert not made.model.training
    assert {parameter.dtype for parameter in made.model.parameters()} == {torch.float32}
    logits = [plain_logits(made, raw) for raw in made.inputs]
    assert all(x.isfinite().all() for x in logits)
    last = torch.stack([x.reshape(-1, x.shape[-1])[-1] for x in logits])
    assert last.std(dim=0).max() > 0.1  # the input matters


@pytest.mark.parametrize("name", NAMES)
def test_fresh_copies_are_equal_and_separate(name: str) -> None:
    state = torch.random.get_rng_state()
    one, two = fresh(name), fresh(name)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(plain_logits(one, one.inputs[0]), plain_logits(two, two.inputs[0]))
    with torch.no_grad():
        next(one.model.parameters()).add_(1)
    assert not torch.equal(next(one.model.parameters()), next(two.model.parameters()))


def test_family_is_cached() -> None:
    assert family("bert") is family("bert")


@pytest.mark.parametrize("name", PRETRAINED)
def test_attention_is_far_from_uniform(name: str) -> None:
    made = fresh(name)
    made.model.set_attn_implementation("eager")
    maps = _attentions(plain_outputs(made, made.inputs[0], output_attentions=True))
    peaks = np.array([_peak(weights) for weights in maps if weights.shape[-1] > 1])
    assert len(peaks) >= 2
    assert np.mean(peaks > 1.5) > 0.5, peaks


@pytest.mark.parametrize("name", PRETRAINED)
def test_eager_and_sdpa_agree(name: str) -> None:
    made = fresh(name)
    assert made.eager
    if not made.sdpa:
        assert made.model.config._attn_implementation == "eager"
        return
    logits = {}
    for implementation in ("eager", "sdpa"):
        made.model.set_attn_implementation(implementation)
        logits[implementation] = [plain_logits(made, raw) for raw in made.inputs]
    torch.testing.assert_close(logits["eager"], logits["sdpa"], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", WITH_TEXT)
def test_texts_split_into_pieces_and_differ_in_length(name: str) -> None:
    made = family(name)
    tensors = [plain_inputs(made, raw) for raw in made.inputs]
    lengths = [x["input_ids" if "input_ids" in x else "input"].shape[1] for x in tensors]
    assert len(set(lengths)) == 4
    parts = ("text", "pair", "question", "context")
    texts = [" ".join(raw.get(p, "") for p in parts) if isinstance(raw, dict) else raw for raw in made.inputs]
    assert any(length > len(text.split()) + 3 for length, text in zip(lengths, texts, strict=True))


@pytest.mark.parametrize("name", PADDED)
def test_padding_on_the_tokenizers_side_changes_nothing(name: str) -> None:
    made = family(name)
    pairs = made.task == "question-answering"
    texts = [raw for raw in made.inputs if isinstance(raw, str) or pairs]
    given = zip(*(raw.values() for raw in texts), strict=True) if pairs else [texts]
    batch = dict(made.processor(*map(list, given), padding=True, return_tensors="pt"))
    if made.task == "seq2seq-lm":
        batch["decoder_input_ids"] = torch.full((len(texts), 1), made.model.config.decoder_start_token_id)
    with torch.no_grad():
        outputs = made.model(**batch)
    logits = torch.stack([outputs.start_logits, outputs.end_logits], -1) if pairs else outputs.logits
    every_token = made.task in ("causal-lm", "token-classification", "question-answering", "masked-lm")
    for padded, mask, text in zip(logits, batch["attention_mask"], texts, strict=True):
        kept = padded[mask.bool()] if every_token else padded
        torch.testing.assert_close(kept, plain_logits(made, text)[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", GENERATORS)
def test_greedy_decoding_is_short(name: str) -> None:
    made = family(name)
    for raw in made.inputs:
        tensors = plain_inputs(made, raw)
        start = tensors.pop("decoder_input_ids", tensors["input_ids"]).shape[1]
        produced = made.model.generate(**tensors, do_sample=False)
        assert 1 <= produced.shape[1] - start <= 5
