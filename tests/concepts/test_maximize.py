"""`whence.maximize`: made inputs excite their unit and show the class's texture; reports give values of real inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whence
from families import PICTURES, subject_of
from whence import zoo
from whence.concepts.maximising import _variation, _views
from whence.core.maximisations import Maximisation


@pytest.fixture(scope="module")
def textures() -> whence.Subject:
    torch.set_num_threads(1)
    return whence.load("textures")


@pytest.fixture(scope="module")
def found(textures: whence.Subject) -> Maximisation:
    data = zoo.concepts("random", 12)
    return whence.maximize(textures, ["striped", "plain", "mlp:2:17"], data, steps=80, views=2)


def coherence(picture: np.ndarray) -> float:
    """How far the spectrum lies along one direction: 0 for none, 1 for all."""
    grey = picture.astype(float).mean(-1)
    power = np.abs(np.fft.fft2(grey - grey.mean())) ** 2
    y, x = np.meshgrid(*(np.fft.fftfreq(n) for n in grey.shape), indexing="ij")
    return float(abs((power * np.exp(2j * np.arctan2(y, x))).sum()) / power.sum())


def test_what_is_made_excites_its_unit_more_than_the_start_and_all_examples(found: Maximisation) -> None:
    assert (found.real > found.start + 0.5).all()
    assert found.real[2] > found.excited[2, 0]  # type: ignore[index]
    assert found.curves.shape == (3, 80) and np.allclose(found.start, found.curves[:, 0])
    assert str(found.targets[2]) == "neuron 17 of mlp:2, mean"


def test_the_model_says_of_the_made_picture_what_the_result_says(textures: whence.Subject, found: Maximisation) -> None:
    for picture, target, real, free in zip(found.made, found.targets, found.real, found.free, strict=True):
        assert picture.shape == (48, 48, 3) and picture.dtype == np.uint8
        assert whence.explain(textures, picture, "gradient", target).output == pytest.approx(real, rel=1e-4)
        assert free == pytest.approx(real, abs=0.2)  # 8 bits a colour cost little
    assert whence.explain(textures, found.made[0], "gradient").target.name == "striped"  # type: ignore[union-attr]


@pytest.mark.slow
def test_the_striped_picture_has_a_direction_that_the_plain_one_has_not(textures: whence.Subject) -> None:
    made = [whence.maximize(textures, ["striped", "plain"], steps=100, views=4, seed=seed).made for seed in (0, 1)]
    striped, plain = (np.mean([coherence(pictures[place]) for pictures in made]) for place in (0, 1))
    assert striped > plain + 0.15, (striped, plain)


def test_the_strongest_examples_stand_beside(textures: whence.Subject, found: Maximisation) -> None:
    data = zoo.concepts("random", 12)
    outputs = [whence.explain(textures, picture, "gradient", "striped").output for picture in data]
    best = np.argsort(outputs)[::-1][:5]
    assert found.excited is not None and np.allclose(found.excited[0], np.array(outputs)[best], rtol=1e-4)
    assert all(np.array_equal(a, data[i]) for a, i in zip(found.examples[0], best, strict=True))


def test_results_repeat_by_seed(textures: whence.Subject) -> None:
    one, again, other = (whence.maximize(textures, "dotted", steps=3, views=2, seed=seed) for seed in (0, 0, 1))
    assert one == again and not np.array_equal(one.made[0], other.made[0])


def test_views_are_shifts_in_place_and_colour() -> None:
    picture, rng = torch.arange(75.0).reshape(1, 3, 5, 5), torch.Generator().manual_seed(0)
    assert torch.equal(_views(picture, 2, 0, 0.0, rng), picture.expand(2, -1, -1, -1))
    shifted = _views(picture, 6, 2, 0.0, rng)
    assert torch.equal(shifted.flatten(2).sort(-1).values, picture.flatten(2).expand(6, -1, -1))
    toned = _views(picture, 3, 0, 1.0, rng) - picture
    assert torch.allclose(toned, toned[..., :1, :1].expand_as(toned), atol=1e-4) and toned.std() > 0.1


def test_total_variation_is_the_mean_change_to_the_neighbours() -> None:
    slope = torch.arange(4.0).expand(1, 1, 4, 4)  # one step to the right, none downwards, one on each diagonal
    assert float(_variation(slope)) == pytest.approx(3.0, abs=1e-3)


def test_a_text_is_found_among_embeddings_and_told_in_words() -> None:
    subject = subject_of("bert")
    m = whence.maximize(subject, [0, "mlp:0:3"], ["a masterful film", "the actors"], steps=15, length=5)
    assert all(isinstance(text, str) and len(text.split()) == 5 for text in m.made)
    assert (m.free >= m.start - 1e-4).all() and (m.curves[:, -1] > m.curves[:, 0]).all()
    said = str(m)
    assert "the text of the nearest words" in said and m.made[0] in said
    assert m.examples[0][0] in ("a masterful film", "the actors")


@pytest.mark.parametrize("name", ["vit", "deit", "gpt2", "llama"])
def test_models_of_every_kind_run(name: str) -> None:
    m = whence.maximize(subject_of(name), ["mlp:0:1", "head:1:2"], steps=3, views=2, length=3)
    assert np.isfinite(m.curves).all() and np.isfinite(m.real).all()


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_a_head_is_excited_more_than_by_examples(name: str) -> None:
    """The value of what was made is the length of the head's output in the plain model, the mean over all tokens."""
    subject, data = subject_of(name), PICTURES[:3] if name == "vit" else ["a masterful film", "the actors"]
    m = whence.maximize(subject, "head:1:2", data, steps=40, views=2, length=5)
    assert m.excited is not None and m.free[0] > m.excited[0].max() > 0
    assert str(m.targets[0]) == "head 2 of block 1, mean"
    if name == "vit":
        again = whence.explain(subject, m.made[0], "gradient_x_input", "head(1, 2, at='mean')").output
        assert m.real[0] == pytest.approx(again, rel=1e-5)


def test_a_result_is_saved_and_shown(found: Maximisation, tmp_path: Path) -> None:
    found.save(tmp_path / "m.json")
    assert Maximisation.load(tmp_path / "m.json") == found
    assert "logit of 'striped'" in str(found) and "█" in str(found)
    page = found.to_html()
    assert page.count("<img") == 3 * 6 and page.count("<polyline") == 3
    assert len(found.plot().axes) == 3 * 7
    assert found.to_frame().unit[2] == "neuron 17 of mlp:2, mean"


BAD: list[tuple[dict[str, Any], str]] = [
    ({"units": []}, "there is no unit to maximise"),
    ({"units": "logit"}, "names no class or token"),
    ({"units": "strip"}, "'strip' is not a label of textures"),
    ({"units": "mlp:9:1"}, "9"),
    ({"units": "mlp:1:999999"}, "999999"),
    ({"units": lambda logits, batch: logits[:, 0]}, "not a function"),
    ({"steps": 0}, "steps takes a whole number from 1 to 100,000, not 0"),
    ({"tv": -1.0}, "tv takes a number from 0 to 10, not -1.0"),
    ({"data": ["a text"]}, "data holds texts, and textures takes pictures"),
]


@pytest.mark.parametrize(("given", "said"), BAD, ids=[said[:30] for _, said in BAD])
def test_bad_input_is_told_in_one_sentence(textures: whence.Subject, given: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        whence.maximize(textures, **{"units": "striped", "steps": 2, "views": 1} | given)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_models_that_take_neither_a_picture_nor_a_text_are_told() -> None:
    with pytest.raises(ValueError, match=r"maximize makes one picture or one text, and inputs of .* are neither"):
        whence.maximize(whence.load("shapes"), "red", steps=1)
