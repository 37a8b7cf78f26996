"""The zoo's `photos`: its files by plain transformers classes, and the drawings that stand in for its photos."""

from __future__ import annotations

import numpy as np
import torch
from transformers import AutoImageProcessor, AutoModelForImageClassification

import whence
from whence import zoo
from whence.zoo import photos_data as data


def test_drawings_repeat_by_seed_and_differ_between_seeds() -> None:
    first, again, other = (zoo.examples("photos", 6, seed) for seed in (1, 1, 2))
    for a, b, c in zip(first, again, other, strict=True):
        assert a.label == b.label and np.array_equal(a.input, b.input) and np.array_equal(a.truth, b.truth)
        assert not np.array_equal(a.input, c.input)
    assert {example.label for example in zoo.examples("photos", 5)} == set(data.DRAWINGS)


def test_truth_marks_the_patches_of_the_thing() -> None:
    subject = whence.load("photos")
    for example in zoo.examples("photos", 5, 4):
        x = subject.encode(example.input)
        assert example.input.shape == (data.DRAWN, data.DRAWN, 3) and x.grid == (8, 8)
        assert example.truth.shape == (len(x.features),) and not example.truth[x.special].any()
        assert 6 <= example.truth.sum() <= 48


def test_the_shipped_files_know_most_of_the_drawings() -> None:
    folder = zoo.folder("photos")
    model = AutoModelForImageClassification.from_pretrained(folder)
    assert str(model.dtype) == "torch.float32" and set(data.DRAWINGS) < set(model.config.label2id)
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 12e6
    examples = zoo.examples("photos", 50, 3)
    with torch.inference_mode():
        processor = AutoImageProcessor.from_pretrained(folder)
        pixels = processor(images=[example.input for example in examples], return_tensors="pt")
        found = model.eval()(**pixels).logits.argmax(-1).tolist()
    right = [model.config.id2label[i] == example.label for i, example in zip(found, examples, strict=True)]
    assert np.mean(right) >= 0.6  # drawings are not what it was trained on; chance is 1/16
