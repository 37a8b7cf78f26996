"""The embedded model `recall`: its prompts, its accuracy, and that the queried key and its value decide."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import whence
from whence.zoo import folder, recall_data

SAMPLE = recall_data.examples(50, seed=11)


@cache
def shipped() -> tuple[Any, Any]:
    """Model and tokenizer as plain transformers loads them."""
    place = folder("recall")
    return AutoModelForCausalLM.from_pretrained(place), AutoTokenizer.from_pretrained(place)


@torch.inference_mode()
def predictions(prompts: Iterable[str]) -> list[str]:
    model, tokenizer = shipped()
    logits = model(**tokenizer(list(prompts), padding=True, return_tensors="pt")).logits
    return tokenizer.convert_ids_to_tokens(logits[:, -1].argmax(-1).tolist())


def replaced(example: whence.zoo.Example, places: np.ndarray, random: Random) -> str:
    """The prompt with an unused key or value at each of these places."""
    words = example.input.split()
    unused = {kind[0][0]: [w for w in kind if w not in words] for kind in (recall_data.KEYS, recall_data.VALUES)}
    for place in places:
        pool = unused[words[place][0]]
        words[place] = pool.pop(random.randrange(len(pool)))
    return " ".join(words)


def decisive(example: whence.zoo.Example) -> np.ndarray:
    """The places of the key and its value among the words."""
    return example.truth[1:].nonzero()[0]


def test_prompts_follow_from_the_seed():
    def drawn(n: int, seed: int) -> list[tuple[str, str | None, list[bool]]]:
        return [(e.input, e.label, e.truth.tolist()) for e in recall_data.examples(n, seed)]

    assert drawn(20, 1) == drawn(30, 1)[:20]
    assert not {text for text, *_ in drawn(50, 1)} & {text for text, *_ in drawn(50, 2)}


def test_prompts_vary():
    sample = recall_data.examples(2000, seed=3)
    assert {len(e.input.split()) for e in sample} == {2 * pairs + 1 for pairs in range(3, 11)}
    assert {int(decisive(e)[0]) for e in sample} == set(range(0, 20, 2))
    assert {e.label for e in sample} == set(recall_data.VALUES)


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("k3 v7 k1 v2 k3", "v7"),
        ("k3 v7 k1 v2 k1", "v2"),
        ("k3 v7 k1 v2 k4", "<unk>"),
        ("k3 <pad> k1 v2 k3", "<unk>"),
        ("<pad> v7 k1 v2 <pad>", "<unk>"),
    ],
)
def test_rule(prompt, answer):
    assert recall_data.answer(prompt.split()) == answer
    assert predictions([prompt]) == [answer]


def test_truth_marks_the_features_that_decide():
    subject = whence.wrap(*shipped())
    for example in SAMPLE:
        features = subject.encode(example.input).features
        assert len(features) == len(example.truth)
        marked = [feature for feature, decides in zip(features, example.truth, strict=True) if decides]
        assert marked == [features[-1], example.label]
        assert not example.truth[-1]  # the query itself is not counted
        assert len(set(features)) == len(features) - 1


def test_accuracy():
    sample = recall_data.examples(400, seed=12)
    right = [found == e.label for found, e in zip(predictions(e.input for e in sample), sample, strict=True)]
    assert np.mean(right) >= 0.99


def test_heads_are_grouped():
    config = shipped()[0].config
    assert (config.model_type, config.num_attention_heads, config.num_key_value_heads) == ("llama", 4, 2)


def test_weights_are_single_precision_and_the_folder_is_small():
    assert {weight.dtype for weight in shipped()[0].parameters()} == {torch.float32}
    assert sum(file.stat().st_size for file in folder("recall").iterdir()) <= 3e6


def test_another_value_is_recalled():
    texts = [replaced(e, decisive(e)[1:], Random(i)) for i, e in enumerate(SAMPLE)]
    wanted = [text.split()[decisive(e)[1]] for text, e in zip(texts, SAMPLE, strict=True)]
    assert np.mean([found == value for found, value in zip(predictions(texts), wanted, strict=True)]) >= 0.95


def test_without_the_key_the_value_is_not_recalled():
    texts = [replaced(e, decisive(e)[:1], Random(i)) for i, e in enumerate(SAMPLE)]
    assert np.mean([found != e.label for found, e in zip(predictions(texts), SAMPLE, strict=True)]) >= 0.95


def test_other_distractors_change_nothing():
    texts = []
    for i, example in enumerate(SAMPLE):
        others = (~example.truth[1:-1]).nonzero()[0]
        texts.append(replaced(example, Random(i).sample(list(others), min(6, len(others))), Random(i)))
    assert np.mean([found == e.label for found, e in zip(predictions(texts), SAMPLE, strict=True)]) >= 0.95


@pytest.mark.parametrize("blank", ["<pad>", "<unk>", "zebra"])
def test_blank_distractors_change_nothing_and_blank_truth_is_unknown(blank):
    kept, emptied = [], []
    for example in SAMPLE:
        *words, query = example.input.split()
        marks = example.truth[1:-1]
        kept.append(" ".join([w if m else blank for w, m in zip(words, marks, strict=True)] + [query]))
        emptied.append(" ".join([blank if m else w for w, m in zip(words, marks, strict=True)] + [query]))
    assert np.mean([found == e.label for found, e in zip(predictions(kept), SAMPLE, strict=True)]) >= 0.95
    assert np.mean([found == "<unk>" for found in predictions(emptied)]) >= 0.95


def test_a_continuation_fits_after_the_longest_prompt():
    longest = max(recall_data.examples(100, seed=4), key=lambda e: len(e.input))
    item = whence.wrap(*shipped()).encode({"prompt": longest.input, "continuation": f" {longest.label}"})
    assert item.features[-1] == longest.label


@pytest.mark.parametrize("text", ["", " ", "K3, v7", "İstanbul naïve 日本 🙂 \x00", "<s> <unk>k1", "x" * 300])
def test_any_text_encodes(text):
    encoded = shipped()[1](text, return_offsets_mapping=True)
    spans = encoded["offset_mapping"]
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert "".join(text[start:end] for start, end in spans) == "".join(text.split())
