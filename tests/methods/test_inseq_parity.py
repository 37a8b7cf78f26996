"""Parity with inseq, by figures that were made beside transformers 4; peers/inseq_figures.py says how."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import whence
from peers.inseq_figures import AIMED, FIGURES, INSTEAD, LAYERS, MODELS, PIECES, TEXTS, made, tokenizer
from whence.core.inputs import Target
from whence.core.results import Attribution
from whence.model.subject import Subject

ATTENTION = [f"attention(layer={layer})" for layer in range(LAYERS)]
ZEROING = [f"value_zeroing(layer={layer})" for layer in range(LAYERS)]
GRADIENT_X_INPUT = "gradient_x_input(at='word')"
# A spec, and the same with one option that inseq does not take.
OTHERS = {
    "gradient(at='word') logit": "gradient(at='word', reduce='l1')",
    "gradient(at='word', reduce='l1') logit": "gradient(at='word')",
    "gradient_x_input(at='word') logit": "gradient_x_input(at=1)",
    "integrated_gradients(steps=6, baseline='unknown') logit": "integrated_gradients(steps=6, baseline='zero')",
    "leave_one_out(mask='unknown') logit": "leave_one_out(mask='pad')",
    ATTENTION[0]: ATTENTION[1],
    ATTENTION[1]: "attention(layer=1, heads=0)",
    ZEROING[0]: ZEROING[1],
}


@cache
def subject(name: str) -> Subject:
    return whence.wrap(made(name), tokenizer(name))


@cache
def figures(name: str) -> dict[str, Any]:
    return json.loads(FIGURES.read_text())[name]


def explained(name: str, spec: str, target: Target | str | None = None, texts: Any = TEXTS) -> list[Attribution]:
    """Both texts in one call, so that the shorter one is padded."""
    keys = ("prompt", "continuation") if name == "gpt2" else ("source", "output")
    return whence.explain(subject(name), [dict(zip(keys, text, strict=True)) for text in texts], spec, target)


def rows(a: Attribution) -> list[np.ndarray]:
    """What inseq gives for each generated token: a score for every feature that it could see."""
    seen = [scores[visible] for scores, visible in zip(a.scores, a.visible, strict=True)]
    if a.method.startswith("leave_one_out"):
        return [np.abs(row) for row in seen]
    if a.method.startswith("value_zeroing") and "</s>" in a.features:  # the cross-attention alone
        count = a.streams.count("source")
        return [row[:count] / row[:count].sum() for row in seen]
    return seen


def away(found: list[list[np.ndarray]], expected: list[list[list[float]]]) -> float:
    """The largest difference in any row, relative to the row's largest score."""
    largest = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        for row, wanted in zip(ours, theirs, strict=True):
            assert row.shape == np.shape(wanted)
            largest = max(largest, np.abs(row - wanted).max() / np.abs(wanted).max())
    return largest


@pytest.mark.parametrize(("spec", "kind"), AIMED)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_and_occlusion(name: str, spec: str, kind: str) -> None:
    found = explained(name, spec, kind)
    for a, outputs in zip(found, figures(name)[kind], strict=True):
        assert a.output == pytest.approx(outputs, rel=1e-4, abs=1e-5)
    assert away([rows(a) for a in found], figures(name)[f"{spec} {kind}"]) <= 1e-4


@pytest.mark.parametrize("spec", ATTENTION + ZEROING)
@pytest.mark.parametrize("name", MODELS)
def test_attention_and_value_zeroing(name: str, spec: str) -> None:
    if spec == ZEROING[-1] and name != "bart":
        assert spec not in figures(name)  # inseq looks at this layer through the norm above it
    else:  # inseq takes 1 - cos in float32, which leaves BART's small distances some four digits
        assert away([rows(a) for a in explained(name, spec)], figures(name)[spec]) <= 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_a_contrast_of_two_tokens(name: str) -> None:
    target = Target("contrast", against=PIECES.index(INSTEAD), against_name=INSTEAD)
    found = explained(name, GRADIENT_X_INPUT, target, [(source, output.split()[0]) for source, output in TEXTS])
    assert [a.output[0] for a in found] == pytest.approx(np.ravel(figures(name)["contrast"]), rel=1e-4)
    assert away([rows(a)[:1] for a in found], figures(name)[f"{GRADIENT_X_INPUT} contrast"]) <= 1e-4


@pytest.mark.parametrize("key", OTHERS)
@pytest.mark.parametrize("name", MODELS)
def test_another_option_is_told_apart(name: str, key: str) -> None:
    assert away([rows(a) for a in explained(name, OTHERS[key])], figures(name)[key]) > 0.02


def test_a_kind_of_target_is_not_taken_for_an_unknown_word() -> None:
    """To this tokenizer, every word that it does not know is one token."""
    s = subject("gpt2")
    assert whence.explain(s, TEXTS[0][0], "random", "probability").target.kind == "probability"
    with pytest.raises(ValueError, match="'nonsense' is not in the vocabulary"):
        whence.explain(s, TEXTS[0][0], "random", "nonsense")
    assert whence.explain(s, TEXTS[0][0], "random", INSTEAD).target.name == INSTEAD
