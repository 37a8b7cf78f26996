"""Which scores have a sign: what the record promises, and what options change about it."""

from __future__ import annotations

import pytest

import whence
from families import subject_of

UNSIGNED = [
    "attention_x_gradient(positive=True)",
    "attention_x_gradient(positive=True, layer=0)",
    "smoothgrad(samples=2, form='square')",
    "smoothgrad(samples=2, form='variance')",
    "smoothgrad(samples=2, of='gradient')",
    "smoothgrad(samples=2, reduce='l1')",
    "gradient(reduce='sum')",
    "gae",
    "attention",
]
SIGNED = ["attention_x_gradient", "attention_x_gradient(layer=0)", "smoothgrad(samples=2)", "gradient_x_input"]


@pytest.mark.parametrize("method", UNSIGNED)
def test_scores_without_a_sign_are_no_shares_of_the_target(method: str) -> None:
    a = whence.explain(subject_of("bert"), "a masterful film", method)
    assert not a.signed and a.base is None and a.residual is None
    assert (a.scores >= 0).all() or method == "gradient(reduce='sum')"


@pytest.mark.parametrize("method", SIGNED)
def test_scores_with_a_sign_have_a_residual(method: str) -> None:
    a = whence.explain(subject_of("bert"), "a masterful film", method)
    assert a.signed and a.base is not None and a.residual is not None and (a.scores < 0).any()


def test_attention_before_the_softmax_shows_its_signs_and_is_no_share_of_the_target() -> None:
    a = whence.explain(subject_of("bert"), "a masterful film", "attention(scores=True)")
    assert a.signed and a.base is None and a.residual is None and (a.scores < 0).any()


def test_generated_text_keeps_what_its_rows_say_of_signs() -> None:
    raw = {"source": "the house was warm", "output": "a ball"}
    for method, signed in (("attention(scores=True)", True), ("attention", False), ("gradient_x_input", True)):
        assert whence.explain(subject_of("t5"), raw, method).signed is signed
