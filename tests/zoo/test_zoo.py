"""The models that ship: their cards, their files by plain transformers, their accuracy on what ships with them."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoImageProcessor, AutoModelForImageClassification

import whence
from whence import zoo

loaded = functools.cache(whence.load)


@pytest.mark.parametrize("name", zoo.names())
def test_a_card_tells_the_facts(name: str) -> None:
    card = zoo.card(name)
    assert card["name"] == name and (0.68 if name == "photos" else 0.9) < card["accuracy"] <= 1
    size = sum(file.stat().st_size for file in zoo.folder(name).iterdir()) / 1e6
    assert card["size_mb"] == pytest.approx(size, abs=0.2)  # the card itself is written after the size is taken
    assert card in whence.list_models()


def test_examples_of_every_model_need_neither_torch_nor_the_floors_above() -> None:
    code = (
        "import sys; from whence import zoo; [zoo.examples(name, 1) for name in zoo.names()];"
        "print(*(name for name in sys.modules if name == 'torch' or name.startswith('whence.')))"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "whence.zoo.shapes_data" in shown
    assert [name for name in shown if not name.startswith(("whence.core", "whence.zoo"))] == []


def test_an_unknown_model_is_told() -> None:
    with pytest.raises(ValueError, match="there is no embedded model 'digit'"):
        zoo.examples("digit")


def test_digits_are_read() -> None:
    examples = zoo.examples("digits", 200, seed=1)
    assert len(examples) == 200 and {e.label for e in examples} == set("0123456789")
    model = AutoModelForImageClassification.from_pretrained(zoo.folder("digits"))
    assert (
        str(model.dtype) == "torch.float32" and zoo.folder("digits").joinpath("model.safetensors").stat().st_size < 3e6
    )
    processor = AutoImageProcessor.from_pretrained(zoo.folder("digits"))
    pictures = [np.repeat(e.input[..., None], 3, -1) for e in examples]
    found = model(**processor(pictures, return_tensors="pt")).logits.argmax(-1)
    right = np.mean([model.config.id2label[int(i)] == e.label for i, e in zip(found, examples, strict=True)])
    assert right >= 0.97


def test_a_digit_is_explained(tmp_path: Path) -> None:
    example = zoo.examples("digits", 1)[0]
    subject = whence.load("digits")
    a = whence.explain(subject, example.input, method="gae")
    assert a.input.grid == (7, 7) and a.features[0] == "[CLS]" and a.heatmap().shape == (28, 28)
    assert a.target.name == example.label  # type: ignore[union-attr]
    assert zoo.examples("digits", 5, seed=3)[0].label == zoo.examples("digits", 5, seed=3)[0].label


REAL = {
    "sst2": "text-classification",
    "digits": "image-classification",
    "photos": "image-classification",
}  # model -> task


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method"), [(name, r.name) for name in REAL for r in whence.list_methods() if REAL[name] in r.tasks]
)
def test_every_method_runs_on_the_models_of_real_data(name: str, method: str) -> None:
    example = zoo.examples(name, 1, seed=4)[0]
    found = whence.explain(loaded(name), example.input, method)
    assert np.isfinite(found.scores).all() and np.abs(found.scores).max() > 0
