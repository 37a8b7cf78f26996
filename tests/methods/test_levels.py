"""Levels: scores of words, sentences, messages, documents and a caller's own spans, by every kind of method."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whence
from families import PICTURES, family, plain_inputs, subject_of
from whence.core.inputs import unmerged
from whence.core.levels import LEVELS, at_level, passage_spans

TEXT = "the film was a quiet triumph. nobody laughed at the jokes! the weather was cold , but the house was warm."
SENTENCES = (
    "the film was a quiet triumph.",
    "nobody laughed at the jokes!",
    "the weather was cold , but the house was warm.",
)
PROMPT = {"prompt": "the film was good. nobody laughed.\n\nthe weather was", "continuation": " cold and the house"}
SOURCE = {"source": "the film was good. nobody laughed.", "output": "the house was warm"}
PICTURE = {"image": PICTURES[0], "text": "what is the colour of the ball ? is the dog listening ?"}


def raw_of(name: str) -> Any:
    return {"bert": TEXT, "gpt2": PROMPT, "llama": PROMPT, "bart": SOURCE, "vilt": PICTURE}[name]


def by_hand(name: str, raw: Any, hidden: list[int], target: int) -> float:
    """The logit of a class when the tokens of these numbers are the tokenizer's mask."""
    made = family(name)
    x = plain_inputs(made, raw)
    ids = x["input_ids"].clone()
    ids[0, hidden] = made.processor.mask_token_id
    with torch.no_grad():
        return float(made.model(**{**x, "input_ids": ids}).logits[0, target])


def test_hidden_sentences_equal_inputs_masked_by_hand() -> None:
    s = subject_of("bert")
    a = whence.explain(s, TEXT, "leave_one_out", 1, level="sentence")
    assert a.features == ("[CLS]", *SENTENCES, "[SEP]") and a.input.level == "sentence"
    tokens = unmerged(a.input)
    plain = by_hand("bert", TEXT, [], 1)
    for number, score in enumerate(a.scores):
        own = np.flatnonzero((tokens.units == number) & ~tokens.special).tolist()
        assert score == pytest.approx(plain - by_hand("bert", TEXT, own, 1), abs=1e-5)
        start, end = a.input.offsets[number]
        assert a.special[number] or TEXT[start:end] == a.features[number]


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "vilt"])
@pytest.mark.parametrize(
    "method", ["gradient_x_input", "integrated_gradients(steps=4)", "attention", "lrp", "gradient"]
)
def test_scores_of_a_level_are_sums_over_the_tokens(name: str, method: str) -> None:
    s, raw = subject_of(name), raw_of(name)
    fine = whence.explain(s, raw, method)
    for level in ("word", "sentence", "document"):
        a = whence.explain(s, raw, method, level=level)
        twin = np.zeros(a.scores.shape)
        for token, unit in enumerate(a.input.units):
            twin[..., unit] += fine.scores[..., token]
        np.testing.assert_allclose(a.scores, twin, atol=1e-5, rtol=1e-4)
        assert level == "word" or len(a.features) < len(fine.features)
        assert len(a.features) <= len(fine.features) and f"scores of {level}s are the sums of their tokens'" in a.notes
        if a.residual is not None:
            np.testing.assert_allclose(a.residual, fine.residual, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "bart", "vilt"])
def test_hiding_methods_agree_with_each_other_at_a_level(name: str) -> None:
    """Windows of one unit are leave-one-out, and two players share exactly what exact Shapley values say."""
    s, raw = subject_of(name), raw_of(name)
    one, windows = whence.compare(s, raw, ["leave_one_out", "occlusion(window=1)"], level="sentence")
    np.testing.assert_allclose(one.scores, windows.scores, atol=1e-6)
    if name != "vilt":  # its patches are too many players
        exact = whence.explain(s, raw, "shap(algorithm='exact')", level="sentence")
        np.testing.assert_allclose(exact.residual, 0, atol=1e-4)


def test_documents_and_messages() -> None:
    text = "a b\nc d\n\n  e f  \ng\n \n\nh\n"
    assert [text[a:b] for a, b in passage_spans(text)] == ["a b\nc d", "e f  \ng", "h"] and passage_spans(
        " \n\n "
    ) == []
    a = whence.explain(subject_of("gpt2"), PROMPT, "random", level="document")
    own = [name for name, special in zip(a.features, a.special, strict=True) if not special]
    assert own == ["the film was good. nobody laughed.", "the weather was", "cold and the house"]
    b = whence.explain(subject_of("gpt2"), PROMPT, "random", level="message")
    own = [name for name, special in zip(b.features, b.special, strict=True) if not special]
    assert own == [PROMPT["prompt"], "cold and the house"]


def test_own_spans() -> None:
    s = subject_of("bert")
    a = whence.explain(s, TEXT, "leave_one_out", 1, level=["quiet triumph", (30, 58)])
    assert a.features == ("[CLS]", "the film was a", "quiet triumph", ".", SENTENCES[1], SENTENCES[2], "[SEP]")
    assert a.special.tolist() == [True, True, False, True, False, True, True]
    sentence = whence.explain(s, TEXT, "leave_one_out", 1, level="sentence")
    assert a.scores[4] == pytest.approx(sentence.scores[2], abs=1e-5)
    assert (a.scores[a.special] == 0).all()
    assert "only the spans that were given are hidden; the text around them stays in place" in a.notes


@pytest.mark.parametrize(
    ("level", "message"),
    [
        ("sentences", "unknown level 'sentences'; did you mean 'sentence'"),
        (3, "level is one of 'token'"),
        ([], "level is one of 'token'"),
        ([(5, 2)], "a span is a text of the input"),
        (["quiet", "quiet triumph"], "'quiet' and 'quiet triumph' share characters"),
        ([(6, 14), (0, 8)], r"share characters"),
        (["elephants"], "'elephants' is not in the input"),
        (["the"], "'the' is in the input 5 times"),
        ([(0, 5000)], "lies outside of the texts"),
        ([(28, 29), ("pair", 1, 2)], "lies outside of the texts"),
    ],
)
def test_refused_levels(level: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        whence.explain(subject_of("bert"), TEXT, "random", level=level)
    assert "\n" not in str(error.value)


def test_a_space_that_the_tokenizer_adds_hides_no_sentence() -> None:
    """A text whose first character is no piece: the tokenizer puts a bare space, and bytes, before the rest."""
    s = subject_of("llama")
    text = "東京。the film was good! nobody laughed."
    fine = whence.explain(s, text, "gradient_x_input", 5)
    assert (fine.input.offsets[~fine.special, 0] < 0).any(), "the test needs a token that stands for no character"
    a = whence.explain(s, text, "gradient_x_input", 5, level="sentence")
    own = [name for name, special in zip(a.features, a.special, strict=True) if not special]
    assert own == ["東京。", "the film was good!", "nobody laughed."]
    assert a.scores.sum() == pytest.approx(fine.scores.sum(), rel=1e-4)


def test_the_option_that_levels_replaced_says_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"shap has no option 'unit'; units are an option of explain .* level='word'"):
        whence.explain(subject_of("bert"), TEXT, "shap", unit="word")
    with pytest.raises(ValueError, match="units are an option of explain"):
        whence.compare(subject_of("bert"), TEXT, ["shap(level='word')"])


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "vilt"])
def test_results_of_a_level_are_saved_drawn_and_scored(name: str, tmp_path: Path) -> None:
    s = subject_of(name)
    a = whence.explain(s, raw_of(name), "leave_one_out", level="sentence")
    a.save(tmp_path / "a.json")
    again = whence.Attribution.load(tmp_path / "a.json")
    assert again == a and "sentence" in a.to_html() and str(a)
    one, other = (whence.score(s, each, "deletion").values for each in (a, again))
    np.testing.assert_array_equal(one, other)
    for metric in ("auac", "comprehensiveness(mask='auto')", "loo_agreement", "infidelity", "max_sensitivity"):
        if metric != "loo_agreement":
            assert np.isfinite(whence.score(s, a, metric).values).any()


def test_masked_runs_of_a_score_hide_whole_units() -> None:
    """The area of `deletion` over three sentences, by hand."""
    s = subject_of("bert")
    a = whence.explain(s, TEXT, "leave_one_out", 1, level="sentence")
    tokens, order = unmerged(a.input), [i for i in np.argsort(-a.scores) if not a.special[i]]
    values = []
    for count in range(4):
        hidden = np.flatnonzero(np.isin(tokens.units, order[:count])).tolist()
        made = family("bert")
        x = plain_inputs(made, TEXT)
        x["input_ids"][0, hidden] = made.processor.mask_token_id
        with torch.no_grad():
            values.append(float(made.model(**x).logits[0].softmax(-1)[1]))
    assert whence.score(s, a, "deletion").value == pytest.approx(np.trapezoid(values, dx=1 / 3), abs=1e-5)


def test_words_merged_afterwards_can_be_scored_too() -> None:
    s = subject_of("roberta")
    a = whence.explain(s, "a masterful film", "gradient_x_input", 1)
    assert np.isfinite(whence.score(s, a.words(), "auac").value)


def test_levels_nest() -> None:
    """A coarser level of the same additive scores is the sum of the finer one."""
    found = {level: whence.explain(subject_of("bert"), TEXT, "gradient_x_input", 1, level=level) for level in LEVELS}
    totals = [a.scores.sum() for a in found.values()]
    np.testing.assert_allclose(totals, totals[0], rtol=1e-5)
    assert found["token"].input.units is None and found["sentence"].sentences().features == found["sentence"].features
    item = at_level(subject_of("bert").encode(TEXT), "sentence")
    assert item.units is not None and len(item.units) == len(item.features)
