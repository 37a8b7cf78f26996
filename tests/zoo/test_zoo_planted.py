"""The embedded model `planted`: its sentences, its accuracy, and that the planted words decide, and no others."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import whence
from whence.zoo import folder, planted_data

CUES = planted_data.POLARITY
SAMPLE = planted_data.examples(50, seed=11)


@cache
def shipped() -> tuple[Any, Any]:
    """Model and tokenizer as plain transformers loads them."""
    place = folder("planted")
    return AutoModelForSequenceClassification.from_pretrained(place), AutoTokenizer.from_pretrained(place)


@torch.inference_mode()
def probabilities(texts: Iterable[str]) -> torch.Tensor:
    model, tokenizer = shipped()
    return model(**tokenizer(list(texts), padding=True, return_tensors="pt")).logits.softmax(-1)


def predictions(texts: Iterable[str]) -> list[str]:
    names = shipped()[0].config.id2label
    return [names[i] for i in probabilities(texts).argmax(-1).tolist()]


def replaced(example: whence.zoo.Example, decisive: bool, swap: Any) -> str:
    """The sentence with `swap(word)` for each word that decides, or for each that does not."""
    words = zip(example.input.split(), example.truth[1:-1], strict=True)
    return " ".join(swap(word) if decides == decisive else word for word, decides in words)


def test_sentences_follow_from_the_seed():
    def drawn(n: int, seed: int) -> list[tuple[str, str | None, list[bool]]]:
        return [(e.input, e.label, e.truth.tolist()) for e in planted_data.examples(n, seed)]

    assert drawn(20, 1) == drawn(30, 1)[:20]
    assert not {text for text, *_ in drawn(50, 1)} & {text for text, *_ in drawn(50, 2)}


def test_sentences_vary():
    sample = planted_data.examples(2000, seed=3)
    lengths = {len(e.input.split()) for e in sample}
    places = {int(e.truth.argmax()) for e in sample}
    stray = [e for e in sample if sum(word in planted_data.NEGATORS for word in e.input.split()) >= e.truth.sum()]
    assert (min(lengths), max(lengths)) == (6, planted_data.LONGEST)
    assert places >= set(range(1, 17))
    assert 0.45 < np.mean([e.label == "positive" for e in sample]) < 0.55
    assert 0.45 < np.mean([e.truth.sum() == 2 for e in sample]) < 0.55
    assert len(stray) > len(sample) / 2  # negators are no sign of a negation


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("the waiter waited near that lovely river", "positive"),
        ("the waiter waited near that not lovely river", "negative"),
        ("not lovely river", "negative"),
        ("never the lovely river", "positive"),
        ("rude not", "negative"),
        ("a never rude doctor", "positive"),
        ("a doctor not", None),
    ],
)
def test_rule(text, label):
    assert planted_data.label(text.split()) == label


def test_truth_marks_the_features_that_decide():
    subject = whence.wrap(*shipped())
    for example in SAMPLE:
        features = subject.encode(example.input).features
        assert len(features) == len(example.truth)
        marked = [feature for feature, decides in zip(features, example.truth, strict=True) if decides]
        cue = next(i for i, feature in enumerate(features) if feature in CUES)
        negated = features[cue - 1] in planted_data.NEGATORS
        assert marked == list(features[cue - negated : cue + 1])
        assert sum(feature in CUES for feature in features) == 1


def test_accuracy():
    sample = planted_data.examples(400, seed=12)
    right = [found == e.label for found, e in zip(predictions(e.input for e in sample), sample, strict=True)]
    assert np.mean(right) >= 0.995


def test_weights_are_single_precision_and_the_folder_is_small():
    assert {weight.dtype for weight in shipped()[0].parameters()} == {torch.float32}
    assert sum(file.stat().st_size for file in folder("planted").iterdir()) <= 3e6


def test_other_cue_flips():
    random = Random(0)
    opposite = {"negative": planted_data.CUES["positive"], "positive": planted_data.CUES["negative"]}
    texts = [replaced(e, True, lambda w: random.choice(opposite[CUES[w]]) if w in CUES else w) for e in SAMPLE]
    assert np.mean([found != e.label for found, e in zip(predictions(texts), SAMPLE, strict=True)]) >= 0.95


def test_neutral_word_for_the_negator_flips():
    random = Random(0)
    negated = [e for e in SAMPLE if e.truth.sum() == 2]
    texts = [
        replaced(e, True, lambda w: random.choice(planted_data.NEUTRAL) if w in planted_data.NEGATORS else w)
        for e in negated
    ]
    assert len(negated) > 15
    assert np.mean([found != e.label for found, e in zip(predictions(texts), negated, strict=True)]) >= 0.95


def test_other_distractors_change_nothing():
    random = Random(0)
    texts = [replaced(e, False, lambda w: random.choice(planted_data.NEUTRAL)) for e in SAMPLE]
    assert np.mean([found == e.label for found, e in zip(predictions(texts), SAMPLE, strict=True)]) >= 0.95


@pytest.mark.parametrize("blank", ["[PAD]", "[UNK]", "[MASK]", "zebra"])
def test_blank_distractors_change_nothing_and_a_blank_cue_leaves_it_open(blank):
    kept = [replaced(e, False, lambda w: blank) for e in SAMPLE]
    assert np.mean([found == e.label for found, e in zip(predictions(kept), SAMPLE, strict=True)]) >= 0.95
    emptied = [replaced(e, True, lambda w: blank) for e in SAMPLE]
    assert probabilities(emptied).amax(-1).median() < 0.7


@pytest.mark.parametrize(
    "text", ["", " ", "Lovely, RUDE!", "İstanbul naïve 日本 🙂 \x00", "[MASK] [SEP] not", "x" * 300]
)
def test_any_text_encodes(text):
    encoded = shipped()[1](text, return_offsets_mapping=True)
    spans = [span for span, mark in zip(encoded["offset_mapping"], encoded["input_ids"], strict=True) if mark]
    assert all(0 <= start <= end <= len(text) for start, end in spans)
    assert "".join(text[start:end] for start, end in spans) == "".join(text.split())
