"""The embedded model `sst2`: its files by plain transformers, our sentences, and that any text can be spelled."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import whence
from whence import zoo

README = {
    "I like the movie": "positive",
    "She hates the book": "negative",
    "This is so boring": "negative",
    "I cannot wait for next time": "positive",
    "You look extremely confused": "negative",
}
TEXTS = [
    "",
    " ",
    "naïve façade",
    "日本の映画 was good",
    "🙂 ok",
    "\x00 a\tb\nc",
    "İstanbul ß",
    "x" * 300,
    "[CLS] [MASK] ##ing",
]


@cache
def shipped() -> tuple[Any, Any]:
    place = zoo.folder("sst2")
    return AutoModelForSequenceClassification.from_pretrained(place), AutoTokenizer.from_pretrained(place)


@torch.inference_mode()
def predictions(texts: list[str]) -> list[str]:
    model, tokenizer = shipped()
    logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    return [model.config.id2label[i] for i in logits.argmax(-1).tolist()]


def test_the_sentences_of_the_readme() -> None:
    assert predictions(list(README)) == list(README.values())
    ours = {example.input: example.label for example in zoo.examples("sst2", 1000)}
    assert README.items() <= ours.items()


def test_accuracy_on_our_sentences() -> None:
    examples = zoo.examples("sst2", 1000)
    assert len(examples) >= 60
    right = [found == e.label for found, e in zip(predictions([e.input for e in examples]), examples, strict=True)]
    assert np.mean(right) >= 0.9


def test_the_card_and_the_files() -> None:
    model, _ = shipped()
    assert zoo.card("sst2")["accuracy"] >= 0.9  # measured on SST-2 dev, which does not ship, by `make zoo`
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert (model.config.num_hidden_layers, model.config.model_type) == (6, "bert")
    assert sum(file.stat().st_size for file in zoo.folder("sst2").iterdir()) <= 32e6


@pytest.mark.parametrize("text", TEXTS)
def test_any_text_is_spelled(text: str) -> None:
    _, tokenizer = shipped()
    encoded = tokenizer(text, return_offsets_mapping=True)
    spans = [
        span for span, special in zip(encoded["offset_mapping"], encoded.word_ids(), strict=True) if special is not None
    ]
    assert all(0 <= start < end <= len(text) for start, end in spans)
    lost = {c for c in text if not c.isspace()} - {c for start, end in spans for c in text[start:end]}
    assert lost <= {"\x00"}  # the one that BERT's normaliser drops


def test_offsets_point_into_the_text() -> None:
    text = "Uncommonly good, I'd say: re-watchable!"
    a = whence.explain(whence.load("sst2"), text, method="gradient_x_input")
    for feature, (start, end), special in zip(a.features, a.input.offsets, a.special, strict=True):
        assert special or text[start:end].lower() == feature.removeprefix("##")
