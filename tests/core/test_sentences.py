"""Where sentences begin and end, and attributions whose features are sentences."""

from dataclasses import replace

import numpy as np
import pytest

from results_by_hand import attributed, encoded, generated_example, pair_example, picture_example, pieces, special
from whence.core.results import Attribution
from whence.core.sentences import sentence_spans

SPLIT = {
    "stops": "It works. Does it? Yes! Good.|It works.|Does it?|Yes!|Good.",
    "several stops": "What?! No!!! Fine.|What?!|No!!!|Fine.",
    "no stop at the end": "One. Two|One.|Two",
    "decimals and addresses": "It costs $3.14 at example.com today. Cheap.|It costs $3.14 at example.com today.|Cheap.",
    "titles": "Mr. Smith met Dr. Jones. They left.|Mr. Smith met Dr. Jones.|They left.",
    "abbreviations": "Fruit, e.g. Apples, is good. See No. 5.|Fruit, e.g. Apples, is good.|See No. 5.",
    "no is a word, too": "He said no. Then he left.|He said no.|Then he left.",
    "initials": "J. K. Rowling wrote it. It was I. So.|J. K. Rowling wrote it.|It was I.|So.",
    "U.S. before a small letter": "The U.S. army won in the U.S. He left.|The U.S. army won in the U.S.|He left.",
    "etc.": "Tea, milk, etc. are here. Tea, etc. The end.|Tea, milk, etc. are here.|Tea, etc.|The end.",
    "ellipses": "Well... maybe. Well... Maybe… So be it|Well... maybe.|Well...|Maybe…|So be it",
    "quotes after the stop": '"Really?" he asked. "Yes!" So. (Good.) So|"Really?" he asked.|"Yes!"|So.|(Good.)|So',
    "quotes before the next": "It ended. “Good.” ‘Yes.’|It ended.|“Good.”|‘Yes.’",
    "no capitals": "a dull film . great , mr . smith ! fine|a dull film .|great , mr . smith !|fine",
    "Chinese": "今天很好。「好！」他说。走吧|今天很好。|「好！」|他说。|走吧",
    "Arabic": "هل هذا جيد؟ نعم.|هل هذا جيد؟|نعم.",
    "Hindi": "यह अच्छा है। हाँ।|यह अच्छा है।|हाँ।",
    "numbered lines": "1. First thing\n2. Second. More|1. First thing|2. Second.|More",
    "blank lines": "A title\n\nand then text|A title|and then text",
    "wrapped lines": "A line that\ngoes on here\nAnother|A line that\ngoes on here|Another",
    "only stops": "...|...",
}


@pytest.mark.parametrize("kind", SPLIT)
def test_a_text_is_split_into_its_sentences(kind: str) -> None:
    text, *expected = SPLIT[kind].split("|")
    assert [text[start:end] for start, end in sentence_spans(text)] == expected


@pytest.mark.parametrize("text", ["", " \n\t\n ", "\n"])
def test_white_space_has_no_sentences(text: str) -> None:
    assert sentence_spans(text) == []


@pytest.mark.parametrize("text", ["e.g. " * 20_000, ". \n" * 20_000, " " * 60_000, '."' * 30_000, "A. " * 20_000])
def test_odd_texts_take_no_time_that_grows_with_the_square_of_their_length(text: str) -> None:
    spans = sentence_spans(text)
    assert all(start < end for start, end in spans) and (not spans or spans[-1][1] <= len(text))


def example(text: str = "It works. Is it any good? Yes", **more: object) -> Attribution:
    return attributed(encoded([special("[CLS]"), *pieces(text), special("[SEP]")], {"text": text}), **more)


def test_sentences_sum_their_pieces_and_leave_special_tokens_apart() -> None:
    a = example()
    assert a.features == ("[CLS]", "It", "work", "##s.", "Is", "it", "any", "good", "##?", "Yes", "[SEP]")
    sentences = a.sentences()
    assert sentences.features == ("[CLS]", "It works.", "Is it any good?", "Yes", "[SEP]")
    np.testing.assert_allclose(sentences.scores, np.add.reduceat(a.scores, [0, 1, 4, 9, 10]))
    assert sentences.special.tolist() == [True, False, False, False, True]
    assert sentences.residual == a.residual and sentences.notes == ("pieces merged into sentences by sum",)
    text = a.input.texts["text"]
    assert [text[start:end] for start, end in sentences.input.offsets[1:4]] == list(sentences.features[1:4])
    assert sentences.sentences() == sentences and sentences.words().features == sentences.features


@pytest.mark.parametrize(("reduce", "expected"), [("max", 3.0), ("mean", 1.0)])
def test_sentences_by_max_and_mean_leave_no_residual(reduce: str, expected: float) -> None:
    scores = np.zeros(11)
    scores[1:4] = [3.0, -1.0, 1.0]
    sentences = example(scores=scores).sentences(reduce)
    assert sentences.scores[1] == expected and sentences.residual is None
    with pytest.raises(ValueError, match="'sum', 'max' or 'mean', got 'median'"):
        example().sentences("median")


def test_sentences_of_words_are_those_of_their_pieces() -> None:
    a = example()
    words = a.words().sentences()
    assert words.features == a.sentences().features
    np.testing.assert_allclose(words.scores, a.sentences().scores)


def test_a_piece_with_the_space_before_it_belongs_to_its_own_sentence() -> None:
    text = "It is. So it is.\n"
    spans = [(0, 2), (2, 5), (5, 6), (6, 9), (9, 12), (12, 15), (15, 16), (16, 17)]
    rows = [(text[a:b], "text", False, -1 if b == 17 else i, (a, b), "text") for i, (a, b) in enumerate(spans)]
    assert attributed(encoded(rows, {"text": text})).sentences().features == ("It is.", "So it is.")


def test_a_special_token_inside_a_sentence_parts_it() -> None:
    text = "It is [MASK] good. Yes."
    rows = pieces(text)
    rows[2:4] = [("[MASK]", "text", True, 2, (6, 12), "text")]
    assert attributed(encoded(rows, {"text": text})).sentences().features == ("It is", "[MASK]", "good.", "Yes.")


def test_sentences_without_offsets_join_their_pieces() -> None:
    x = replace(example().input, offsets=np.full((11, 2), -1))
    assert attributed(x).sentences().features == ("[CLS]", "It work##s.", "Is it any good##?", "Yes", "[SEP]")


def test_sentences_stay_in_their_texts_and_leave_pictures_and_rows_alone() -> None:
    assert pair_example().sentences().features == ("[CLS]", "is it worth watching", "watching paint dries", "[SEP]")
    picture = picture_example(text="a moon. So. A")
    assert picture.sentences().features == ("a moon.", "So.", "A", *picture.features[-7:])
    generated = generated_example()
    sentences = generated.sentences()
    assert sentences.features == ("the capital is", "Paris !") and sentences.scores.shape == (3, 2)
    assert sentences.input.generated == (1, 1, 1) and sentences.visible[:, 1].tolist() == [False, True, True]
    np.testing.assert_allclose(sentences.scores.sum(1), generated.scores.sum(1))
