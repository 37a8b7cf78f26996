"""The zoo's `textures`: its generator, its files, its concepts, and that nothing but the texture decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoImageProcessor, AutoModelForImageClassification

import whence
from whence import zoo
from whence.zoo import textures_data as data


@pytest.fixture(scope="module")
def shipped() -> tuple[Any, Any]:
    """Model and image processor, by plain transformers classes."""
    folder = zoo.folder("textures")
    model = AutoModelForImageClassification.from_pretrained(folder)
    return model.eval(), AutoImageProcessor.from_pretrained(folder)


def textures(shipped: tuple[Any, Any], pictures: list[np.ndarray]) -> list[str]:
    """What the model says to each picture."""
    model, processor = shipped
    with torch.inference_mode():
        found = model(**processor(images=pictures, return_tensors="pt")).logits.argmax(-1).tolist()
    return [model.config.id2label[i] for i in found]


def test_examples_repeat_by_seed_and_differ_between_seeds() -> None:
    first, again, other = (zoo.examples("textures", 10, seed) for seed in (1, 1, 2))
    for a, b, c in zip(first, again, other, strict=True):
        assert a.label == b.label and np.array_equal(a.input, b.input) and np.array_equal(a.truth, b.truth)
        assert not np.array_equal(a.input, c.input)


def test_every_texture_colour_and_shape_comes_equally_often_and_apart_from_the_others() -> None:
    chosen = data._balanced(1200, {}, np.random.default_rng(0))
    for kind, values in (("texture", data.TEXTURES), ("colour", tuple(data.COLOURS)), ("shape", data.SHAPES)):
        assert {chosen[kind].count(value) for value in values} == {1200 // len(values)}
    pairs = list(zip(chosen["texture"], chosen["colour"], strict=True))
    counts = [pairs.count((texture, colour)) for texture in data.TEXTURES for colour in data.COLOURS]
    assert min(counts) > 20 and max(counts) < 60  # 40 each on average


def test_the_mean_colour_of_a_shape_does_not_give_the_texture_away() -> None:
    rng = np.random.default_rng(3)
    n = 100
    brightness = {}
    for texture in data.TEXTURES:
        chosen = {"texture": [texture] * n, "colour": ["grey"] * n, "shape": ["round"] * n}
        pictures, covers = data.draw(chosen, rng)
        inside = covers > 0.99
        brightness[texture] = np.array([p[c].mean() for p, c in zip(pictures, inside, strict=True)])
    means = [values.mean() for values in brightness.values()]
    assert max(means) - min(means) < 15 and all(100 < mean < 140 for mean in means)


def test_truth_marks_patches_of_the_shape() -> None:
    subject = whence.load("textures")
    for example in zoo.examples("textures", 5, 4):
        x = subject.encode(example.input)
        assert example.truth.shape == (len(x.features),) and not example.truth[x.special].any()
        assert 3 <= example.truth.sum() <= 30
        assert x.grid == (6, 6)


def test_accuracy_of_the_shipped_files(shipped: tuple[Any, Any]) -> None:
    examples = zoo.examples("textures", 400, 5)
    found = textures(shipped, [example.input for example in examples])
    assert np.mean([texture == example.label for texture, example in zip(found, examples, strict=True)]) >= 0.96
    assert sum(file.stat().st_size for file in zoo.folder("textures").iterdir()) <= 2e6
    assert shipped[0].dtype == torch.float32


def test_colour_and_shape_do_not_decide(shipped: tuple[Any, Any]) -> None:
    """Every texture is told in every colour and in every shape."""
    for name in (*data.COLOURS, *data.SHAPES):
        chosen = data._balanced(40, {"colour" if name in data.COLOURS else "shape": name}, np.random.default_rng(6))
        found = textures(shipped, list(data.draw(chosen, np.random.default_rng(7))[0]))
        assert np.mean(np.array(found) == chosen["texture"]) >= 0.85, name


def test_concepts_share_what_they_say_and_repeat_by_seed() -> None:
    assert zoo.CONCEPTS == data.CONCEPTS
    for name in zoo.CONCEPTS:
        one, again, other = (zoo.concepts(name, 6, seed) for seed in (0, 0, 1))
        assert len(one) == 6 and all(p.shape == (48, 48, 3) and p.dtype == np.uint8 for p in one)
        assert np.array_equal(one, again) and not np.array_equal(one, other)
    reds = np.stack(zoo.concepts("red", 20))[:, 20:28, 20:28].astype(float).mean((1, 2))  # the middle of the pictures
    assert (reds[:, 0] > reds[:, 1:].max(1) + 30).mean() > 0.9
    middles = np.stack(zoo.concepts("orange", 20))[:, 20:28, 20:28].astype(float).mean((1, 2))
    assert ((middles[:, 0] > middles[:, 1] + 40) & (middles[:, 1] > middles[:, 2] + 20)).mean() > 0.9
    assert "orange" not in data._balanced(60, {}, np.random.default_rng(0))["colour"]  # nor in pictures of the model


def test_the_model_sees_the_texture_of_texture_concepts(shipped: tuple[Any, Any]) -> None:
    for name in data.TEXTURES:
        assert textures(shipped, zoo.concepts(name, 20, 8)).count(name) >= 17


def test_an_unknown_concept_is_told() -> None:
    with pytest.raises(ValueError, match="there is no concept 'stripy' to draw; did you mean 'striped'"):
        zoo.concepts("stripy")
