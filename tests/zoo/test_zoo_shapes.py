"""The zoo's `shapes`: its generator, its encoder, its files, and that the planted truth is what the model goes by."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, LxmertForQuestionAnswering

import whence
from whence import zoo
from whence.model.encoding import encode
from whence.zoo import shapes_data as data

FOLDER = Path(data.__file__).parent / "shapes"
Asked = tuple[np.ndarray, str]  # a picture and a question


@pytest.fixture(scope="module")
def shipped() -> tuple[Any, Any]:
    """Model and tokenizer, by plain transformers classes."""
    return LxmertForQuestionAnswering.from_pretrained(FOLDER).eval(), AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def subject(shipped: tuple[Any, Any]) -> Any:
    model, tokenizer = shipped
    encode_text = functools.partial(encode, task="text-classification", processor=tokenizer, max_length=32)
    return whence.wrap(model, tokenizer, encode=zoo.encoder("shapes", encode_text))


def answers(shipped: tuple[Any, Any], asked: list[Asked]) -> list[str]:
    """What the model says to each picture and question."""
    model, tokenizer = shipped
    inputs = dict(tokenizer([text for _, text in asked], padding=True, return_tensors="pt"))
    regions = [data.visual(picture) for picture, _ in asked]
    inputs |= {name: torch.from_numpy(np.stack([r[name] for r in regions])) for name in regions[0]}
    with torch.inference_mode():
        found = model(**inputs).question_answering_score.argmax(-1).tolist()
    return [model.config.id2label[i] for i in found]


def test_examples_repeat_by_seed_and_differ_between_seeds() -> None:
    first, again, other = (data.examples(10, seed) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert (a.input["text"], a.label) == (b.input["text"], b.label)
        assert np.array_equal(a.input["image"], b.input["image"]) and np.array_equal(a.truth, b.truth)
    assert not any(np.array_equal(a.input["image"], b.input["image"]) for a, b in zip(first, other, strict=True))


def test_a_picture_shows_each_thing_in_its_cell_and_no_two_alike() -> None:
    rng = np.random.default_rng(3)
    for _ in range(100):
        things = data.scene(rng)
        assert 2 <= len(things) <= 4
        assert all(len({getattr(t, name) for t in things}) == len(things) for name in ("cell", "shape", "colour"))
        features = data.visual(data.draw(things, rng))["visual_feats"]
        looks = np.abs(features[:, :768]).reshape(16, 16, 16, 3).mean(-1)  # the colours; then what stands out
        strongest = np.sort(looks.reshape(16, -1))[:, -12:].mean(-1)  # (cell,)
        filled = np.isin(np.arange(16), [thing.cell for thing in things])
        assert strongest[~filled].max() < 0.35 < strongest[filled].min()


def test_truth_lies_on_the_features_of_whence(subject: Any) -> None:
    kinds = {*data.ASKED, "size", "color"}
    for example in data.examples(50, 4):
        x = subject.encode(example.input)
        assert example.truth.shape == (len(x.features),) and not example.truth[x.special].any()
        asked, name, region = (x.features[i] for i in np.flatnonzero(example.truth))
        assert asked in kinds and name in data.ANSWERS and region.startswith("region ")
        assert [x.texts["text"][start:stop] for start, stop in x.offsets[x.words >= 0]] == [
            feature for feature, word in zip(x.features, x.words, strict=True) if word >= 0
        ]


def test_accuracy_of_the_shipped_files(shipped: tuple[Any, Any]) -> None:
    examples = data.examples(300, 5)
    found = answers(shipped, [(example.input["image"], example.input["text"]) for example in examples])
    assert np.mean([answer == example.label for answer, example in zip(found, examples, strict=True)]) >= 0.98
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 5e6
    assert shipped[0].dtype == torch.float32


def test_what_the_truth_marks_decides_and_nothing_else(shipped: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(6)
    deciding, others = [], []
    for number in range(50):
        things = data.scene(rng)
        thing, another = things[:2]
        called = list(data.ASKED)[number % 2]
        asked, unasked = rng.permutation(data.ASKED[called]).tolist()
        words, decisive = data.question(called, asked, thing, rng)
        name, picture, text = getattr(thing, called), data.draw(things, rng), data.sentence(words)
        used = {getattr(t, asked) for t in things} if asked != "size" else {thing.size}
        values = {"colour": data.COLOURS, "shape": data.SHAPES, "size": data.SIZES}[asked]
        new = next(value for value in values if value not in used)
        redrawn = data.draw([replace(thing, **{asked: new}), *things[1:]], rng)
        spelt = next(word for word, decides in zip(words, decisive, strict=True) if decides)
        deciding += [
            ((redrawn, text), new),
            ((picture, text.replace(spelt, unasked)), getattr(thing, unasked)),
            ((picture, text.replace(name, getattr(another, called))), getattr(another, asked)),
        ]
        blank = data.sentence([w if decides else "[UNK]" for w, decides in zip(words, decisive, strict=True)])
        alone = data.draw([thing], rng)
        others += [((alone, text), getattr(thing, asked)), ((picture, blank), getattr(thing, asked))]
    for pairs in (deciding, others):
        found = answers(shipped, [asked for asked, _ in pairs])
        assert np.mean([answer == wanted for answer, (_, wanted) in zip(found, pairs, strict=True)]) >= 0.95


def test_any_picture_and_text_encodes_and_has_a_heat_map(subject: Any, tmp_path: Path) -> None:
    picture = data.draw(data.scene(np.random.default_rng(7)), np.random.default_rng(7))
    file = tmp_path / "wide.png"
    Image.fromarray(picture).resize((200, 100)).save(file)
    raws = [{"image": image, "text": "What COLOR, naïve 😀 circle"} for image in (picture, Image.open(file), str(file))]
    for raw, size in zip(raws, ((64, 64), (100, 200), (100, 200)), strict=True):
        a = whence.explain(subject, raw)
        assert a.heatmap().shape == (64, 64) and a.heatmap(original=True).shape == size
        assert [raw["text"][start:stop] for start, stop in a.input.offsets[a.input.words >= 0]] == (
            ["What", "COLOR", ",", "naïve", "😀", "circle"]
        )


def test_other_inputs_are_refused_in_a_sentence(subject: Any) -> None:
    for raw, message in (("what colour?", "a str came"), ({"image": 1}, "the keys 'image' came")):
        with pytest.raises(ValueError, match=message):
            subject.encode(raw)
