"""Models that decide at single tokens: what is read, where, and how it is named; all of it also computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor

import whence
from families import (
    OTHER_HEADS,
    TAGS,
    TEXTS,
    bert_tokenizer,
    family,
    fresh,
    plain_inputs,
    plain_logits,
    subject_of,
)
from whence.core import tasks
from whence.model.forward import GONE
from whence.model.loading import _task_of
from whence.model.masked_inputs import masked
from whence.model.masked_runs import Ask, MaskedRuns
from whence.model.places import answer_text, likeliest_place, span_number, span_of
from whence.model.pointing import pointed

TAGGER, ANSWERER, FILLER = "bert-tagger", "distilbert-answerer", "albert-filler"
HEADS = [TAGGER, ANSWERER, FILLER]
HOUSE = {"question": "what was it ?", "context": "it was cold , but the house was warm"}
LONGER = {"question": "who was singing in the green garden of the house ?", "context": "an old man"}


def read_by_hand(name: str, raw: Any, target: whence.Target, item: Any) -> float:
    """The logit that a target names, from the plain model's outputs."""
    rows = plain_logits(family(name), raw)[0]  # (token, class), or (token, start and end)
    if target.of == "span":
        first, last = (item.decides[place] for place in span_of(target.index))
        return (rows[first, 0] + rows[last, 1]).item()
    if target.of in ("start", "end"):
        return rows[item.decides[target.index], ["start", "end"].index(target.of)].item()
    return rows[target.position, target.index].item()


# ---- f(x) ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*HEADS, *OTHER_HEADS])
def test_the_output_is_the_logit_at_the_token_that_is_read(name: str) -> None:
    made, subject = family(name), subject_of(name)
    assert subject.task == made.task
    together = whence.explain(subject, made.inputs, "gae")
    for raw, a in zip(made.inputs, together, strict=True):
        assert a.output == pytest.approx(read_by_hand(name, raw, a.target, a.input), abs=2e-5)
        alone = whence.explain(subject, raw, "leave_one_out", a.target)
        assert alone.output == pytest.approx(a.output, abs=2e-5) and np.abs(alone.scores).max() > 0


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("name", "raws", "targets"),
    [
        (TAGGER, TEXTS[:2], ["logit('B-LOC', at='ending')", "logit('I-PER', at='film')"]),
        (ANSWERER, [HOUSE, LONGER], ["span('the house')", "start('old man')"]),
        (FILLER, ["a [MASK] film", "the actors were [MASK] , but the ending was not"], ["house", "man"]),
    ],
)
def test_padding_on_either_side_moves_the_token_along(name: str, raws: Any, targets: list[str], side: str) -> None:
    subject = subject_of(name)
    items, aims = pointed(subject, [subject.encode(raw) for raw in raws], targets)
    batch = subject.batch(items, side=side)
    assert not batch.mask.all()
    # BERT counts positions from the first column, so padding on the left must not be compared with no padding
    alone = {"input_ids", "attention_mask", "token_type_ids"} & set(batch.tensors)
    with torch.no_grad():
        outputs = subject.model(**{key: batch.tensors[key] for key in alone})
    logits = subject.logits(batch)
    for row, (item, target) in enumerate(zip(items, aims, strict=True)):
        real = batch.mask[row].nonzero()[:, 0].tolist()
        if name == ANSWERER:
            starts, ends = outputs.start_logits[row], outputs.end_logits[row]
            both = [z for place in item.decides for z in (starts[real[place]], ends[real[place]])]
            torch.testing.assert_close(logits[row, : len(both)], torch.stack(both), atol=1e-5, rtol=0)
            assert (logits[row, len(both) :] == GONE).all()
        else:
            torch.testing.assert_close(logits[row], outputs.logits[row, real[target.position]], atol=1e-5, rtol=0)


def test_texts_that_are_cut_are_read_where_they_still_are() -> None:
    long = "the film was a quiet triumph " * 20
    a = whence.explain(subject_of(TAGGER), long, "random", "logit('B-PER', at=5)", truncate=True)
    tensors = bert_tokenizer()(long, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        rows = family(TAGGER).model(**tensors).logits[0]
    assert len(rows) == 64 and a.output == pytest.approx(rows[5, 1].item(), abs=1e-5)
    with pytest.raises(ValueError, match=r"'nobody' is not in the context \(which was cut\)"):
        raw = {"question": "who ?", "context": f"{long} nobody"}
        whence.explain(subject_of(ANSWERER), raw, "random", "nobody", truncate=True)


# ---- the default -----------------------------------------------------------------------------------------------------


def test_without_a_target_the_likeliest_entity_is_explained() -> None:
    subject = subject_of(TAGGER)
    for raw, a in zip(TEXTS, whence.explain(subject, TEXTS, "random"), strict=True):
        rows = plain_logits(family(TAGGER), raw)[0].softmax(-1)
        starts = [i for i, name in enumerate(a.features) if not name.startswith("##") and not a.special[i]]
        tagged = [i for i in starts if rows[i].argmax() != 0]
        expected = max(tagged, key=lambda i: rows[i, 1:].max().item())
        assert (a.target.position, a.target.index, a.input.decides) == (
            expected,
            rows[expected].argmax().item(),
            (expected,),
        )
        assert a.target.predicted and "is what the model predicts" in a.notes[0] and " at '" in a.notes[0]


def test_words_outside_come_last() -> None:
    probabilities = np.array([[0.1, 0.9, 0.0], [0.95, 0.05, 0.0], [0.3, 0.1, 0.6], [0.4, 0.25, 0.35]])
    assert likeliest_place(probabilities, ["B-PER", "O", "B-LOC"]) == 1
    assert likeliest_place(probabilities[:1], ["B-PER", "O", "B-LOC"]) == 0  # all are outside
    torn = np.array([[0.45, 0.5, 0.05], [0.4, 0.3, 0.3]])  # the first is rather outside, though B-PER is likelier there
    assert likeliest_place(torn, ["B-PER", "O", "B-LOC"]) == 1
    assert likeliest_place(probabilities[[0, 3]], ["B-PER", "O", "B-LOC"]) == 1
    assert likeliest_place(probabilities, ["LABEL_0", "LABEL_1", "LABEL_2"]) == 1  # none is known to be outside
    assert likeliest_place(probabilities[[0, 2]], None) == 0


def test_without_a_target_the_best_span_is_explained() -> None:
    for raw, a in zip([HOUSE, LONGER], whence.explain(subject_of(ANSWERER), [HOUSE, LONGER], "random"), strict=True):
        rows = plain_logits(family(ANSWERER), raw)[0]
        spans = [(i, j) for i, j in product(a.input.decides, repeat=2) if i <= j]
        first, last = max(spans, key=lambda span: (rows[span[0], 0] + rows[span[1], 1]).item())
        assert a.target.name == raw["context"][a.input.offsets[first, 0] : a.input.offsets[last, 1]]
        assert a.output == pytest.approx((rows[first, 0] + rows[last, 1]).item(), abs=1e-5)
        assert [a.input.parts[i] for i in a.input.decides] == ["context"] * len(a.input.decides)


# ---- kinds -----------------------------------------------------------------------------------------------------------


def slow_kinds(row: Tensor, index: int) -> dict[str, float]:
    """The formulas of targets on one row of logits, in their plainest form."""
    chances = [z.exp().item() / row.exp().sum().item() for z in row]
    others = [z for number, z in enumerate(row.tolist()) if number != index]
    return {
        "logit": row[index].item(),
        "probability": chances[index],
        "log_probability": float(np.log(chances[index])),
        "log_odds": float(np.log(chances[index] / (1 - chances[index]))),
        "margin": row[index].item() - max(others),
    }


@pytest.mark.parametrize("of", ["start", "end", "span"])
def test_kinds_of_answers_against_a_slow_twin(of: str) -> None:
    subject, raw = subject_of(ANSWERER), HOUSE
    item = subject.encode(raw)
    rows = plain_logits(family(ANSWERER), raw)[0].double()
    first, last = item.features.index("the"), item.features.index("house")
    spans = [(i, j) for j in item.decides for i in item.decides if i <= j]
    table = {
        "start": ([rows[i, 0] for i in item.decides], item.decides.index(first)),
        "end": ([rows[i, 1] for i in item.decides], item.decides.index(last)),
        "span": ([rows[i, 0] + rows[j, 1] for i, j in spans], spans.index((first, last))),
    }
    row, index = torch.stack(table[of][0]), table[of][1]
    for kind, value in slow_kinds(row, index).items():
        a = whence.explain(subject, raw, "leave_one_out", f"{kind}('the house', of='{of}')")
        assert a.target.index == index and a.output == pytest.approx(value, abs=1e-4)
    other = whence.explain(subject, raw, "random", f"contrast('the house', 'cold', of='{of}')").output
    cold = whence.explain(subject, raw, "random", f"logit('cold', of='{of}')").output
    assert other == pytest.approx(row[index].item() - cold, abs=1e-5)
    assert whence.explain(subject, raw, "random", f"{of}('the house')").output == pytest.approx(
        row[index].item(), abs=1e-5
    )


@pytest.mark.parametrize("name", [TAGGER, FILLER])
def test_kinds_at_a_token_against_a_slow_twin(name: str) -> None:
    raw, label, place = {TAGGER: (TEXTS[0], "I-LOC", 4), FILLER: ("a [MASK] film", "house", 2)}[name]
    row = plain_logits(family(name), raw)[0, place].double()
    index = whence.explain(subject_of(name), raw, "random", f"logit('{label}', at={place})").target.index
    assert isinstance(index, int)
    for kind, value in slow_kinds(row, index).items():
        a = whence.explain(subject_of(name), raw, "random", f"{kind}('{label}', at={place})")
        assert a.output == pytest.approx(value, abs=1e-4)


def test_spans_are_numbered_the_same_in_contexts_of_any_length() -> None:
    numbers = [span_number(first, last) for last in range(60) for first in range(last + 1)]
    assert numbers == list(range(len(numbers)))
    assert [span_number(*span_of(number)) for number in numbers] == numbers


# ---- scores ----------------------------------------------------------------------------------------------------------

ASKED = [
    (TAGGER, TEXTS[0], "logit('B-LOC', at='ending')"),
    (ANSWERER, HOUSE, "span('the house')"),
    (ANSWERER, HOUSE, "end('house')"),
    (FILLER, "a [MASK] film", "house"),
]


@pytest.mark.parametrize(("name", "raw", "target"), ASKED)
def test_gradients_are_those_of_the_logit_that_is_read(name: str, raw: Any, target: str) -> None:
    model: Any = fresh(name).model
    tensors = plain_inputs(family(name), raw)
    words = model.get_input_embeddings()(tensors.pop("input_ids")).detach().requires_grad_()
    a = whence.explain(subject_of(name), raw, "gradient_x_input(at='word')", target)
    outputs = model(inputs_embeds=words, **tensors)
    if name == ANSWERER:
        first, last = (a.input.features.index(word) for word in ("the", "house"))
        value = outputs.end_logits[0, last] + ("span" in target) * outputs.start_logits[0, first]
    else:
        value = outputs.logits[0, a.target.position, a.target.index]
    (gradient,) = torch.autograd.grad(value, words)
    np.testing.assert_allclose(a.scores, (gradient * words.detach()).sum(-1)[0].numpy(), atol=1e-5)


@pytest.mark.parametrize(("name", "raw", "target"), ASKED)
def test_leaving_one_out_by_hand(name: str, raw: Any, target: str) -> None:
    model, tensors = family(name).model, plain_inputs(family(name), raw)
    a = whence.explain(subject_of(name), raw, "leave_one_out", target)

    def value(ids: Tensor) -> float:
        with torch.no_grad():
            outputs = model(**tensors | {"input_ids": ids})
        if name == ANSWERER:
            first, last = (a.input.features.index(word) for word in ("the", "house"))
            return (outputs.end_logits[0, last] + ("span" in target) * outputs.start_logits[0, first]).item()
        return outputs.logits[0, a.target.position, a.target.index].item()

    ids = tensors["input_ids"]
    for number, special in enumerate(a.special):
        hidden = ids.clone()
        hidden[0, number] = subject_of(name).mask_ids["mask"]
        assert a.scores[number] == pytest.approx(0.0 if special else value(ids) - value(hidden), abs=2e-5)


@pytest.mark.parametrize(("name", "raw", "target"), ASKED)
def test_deleted_tokens_shift_the_one_that_is_read_and_never_it(name: str, raw: Any, target: str) -> None:
    model, tensors = family(name).model, plain_inputs(family(name), raw)
    a = whence.explain(subject_of(name), raw, "leave_one_out(mask='delete')", target)
    first, last = (a.input.features.index(word) for word in ("the", "house")) if name == ANSWERER else (0, 0)
    for number, special in enumerate(a.special):
        read = {first, last} if "span" in target else {last} if name == ANSWERER else {a.target.position}
        if special or number in read:
            assert a.scores[number] == 0
            continue
        kept = [i for i in range(len(a.features)) if i != number]
        with torch.no_grad():
            outputs = model(**{key: tensor[:, kept] for key, tensor in tensors.items()})
        if name == ANSWERER:
            left = outputs.end_logits[0, kept.index(last)]
            left = left + ("span" in target) * outputs.start_logits[0, kept.index(first)] if "span" in target else left
        else:
            left = outputs.logits[0, kept.index(a.target.position), a.target.index]
        assert a.scores[number] == pytest.approx(a.output - left.item(), abs=2e-5)


def test_answers_that_were_deleted_have_no_probability() -> None:
    subject = subject_of(ANSWERER)
    item = subject.encode(HOUSE)
    keep = np.ones((1, len(item.features)), bool)
    keep[0, item.features.index("cold")] = False
    (variant,) = masked(subject, item, keep, "delete")
    assert variant.decides.count(-1) == 1 and len(variant.decides) == len(item.decides)
    rows = subject.logits(subject.batch([variant]))[0].unflatten(0, (-1, 2))
    cold = item.decides.index(item.features.index("cold"))
    assert (rows[cold] == GONE).all() and (rows > GONE).sum() == rows.numel() - 2
    aim = subject.aim([pointed(subject, [item], ["probability('warm')"])[1][0]])
    (value,) = MaskedRuns(subject).values([item], [Ask(keep, "delete")], aim)[0]
    assert 0 < value < 1
    answers = MaskedRuns(subject).answers([item], [Ask(keep, "delete")], aim)[0]
    with pytest.raises(ValueError, match="answers were deleted with their tokens"):
        _ = answers.logits


def test_equal_texts_that_are_read_elsewhere_are_different_questions() -> None:
    """An engine that remembers answers must not mix up the tokens at which one text is read."""
    subject = subject_of(TAGGER)
    items, targets = pointed(subject, [subject.encode(TEXTS[0])] * 2, [f"logit('O', at={n})" for n in (2, 5)])
    engine, plain = MaskedRuns(subject), Ask(np.ones((1, len(items[0].features)), bool))
    one, two = (v.item() for v in engine.values(items, [plain, plain], subject.aim(targets)))
    rows = plain_logits(family(TAGGER), TEXTS[0])[0]
    assert (one, two) == (pytest.approx(rows[2, 0].item(), abs=1e-5), pytest.approx(rows[5, 0].item(), abs=1e-5))
    assert engine.run == 2


@pytest.mark.parametrize(
    ("name", "raw", "target", "read"),
    [
        (TAGGER, TEXTS[0], "probability('B-LOC', at='ending')", ["ending"]),
        (ANSWERER, HOUSE, "start('the house')", ["the"]),
        (ANSWERER, HOUSE, "end('the house')", ["house"]),
        (ANSWERER, HOUSE, "probability('the house')", ["the", "house"]),
        (ANSWERER, HOUSE, "contrast('cold', 'warm', of='start')", ["cold", "warm"]),
        (FILLER, "a [MASK] film", "log_odds('house')", ["[MASK]"]),
    ],
)
def test_the_deciding_token_is_the_one_that_is_read(name: str, raw: Any, target: str, read: list[str]) -> None:
    subject = subject_of(name)
    items, targets = pointed(subject, [subject.encode(raw)], [target])
    marks = subject.trace(subject.batch(items), subject.aim(targets), ("deciding",)).deciding["text"][0]
    assert [name for name, mark in zip(items[0].features, marks, strict=True) if mark] == read


def test_a_state_is_read_at_the_token_that_decides() -> None:
    subject, place = subject_of(TAGGER), 4
    items, _ = pointed(subject, [subject.encode(TEXTS[0])], [f"logit('O', at={place})"])
    named, deciding = (
        subject.values(subject.batch(items), subject.aim([f"neuron('bert.encoder.layer.1', 3, at={at!r})"])).item()
        for at in (place, "deciding")
    )
    assert named == pytest.approx(deciding, abs=1e-6)


# ---- naming ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "raw", "target", "words"),
    [
        (TAGGER, TEXTS[0], "B-PER", "labels every token, and 'B-PER' names none; .*at='the'"),
        (TAGGER, TEXTS[0], 3, "labels every token, and '3' names none"),
        (TAGGER, TEXTS[0], "logit('PER', at='ending')", "'PER' is not a label"),
        (TAGGER, TEXTS[0], "logit('O', at='zebra')", "at='zebra' is not in the text"),
        (TAGGER, TEXTS[0], "logit('O', at='wond')", "at='wond' is not in the text as whole tokens"),
        (TAGGER, TEXTS[0], "logit('O', at=20)", "at=20 names no token: there are 20"),
        (TAGGER, TEXTS[0], "logit('O', at=2.5)", "not 2.5"),
        (TAGGER, TEXTS[0], "logit('O', at='the')", "in the text 2 times; give the number of one: at=1 or at=7"),
        (TAGGER, TEXTS[0], "logit('O', of='start')", "takes at=, and .* has of="),
        (TAGGER, TEXTS[0], "contrast('O', at=2)", "takes two classes or tokens, and .* has 1"),
        (
            "bert",
            TEXTS[0],
            "logit('positive', at='ending')",
            "decides once for the whole input, not at a token",
        ),
        ("gpt2", "the old man", "logit(' man', at=1)", "decides once"),
        (ANSWERER, HOUSE, "zebra", "the answer 'zebra' is not in the context"),
        (ANSWERER, HOUSE, "what", "the answer 'what' is not in the context"),
        (ANSWERER, HOUSE, "hou", "'hou' is not in the context as whole tokens"),
        (ANSWERER, HOUSE, "was", "in the context 2 times; say where it starts: at=7 or at=13"),
        (ANSWERER, HOUSE, "span('was', at=8)", "does not start at token 8, 'cold'"),
        (ANSWERER, HOUSE, "span(at=8)", "names no answer"),
        (ANSWERER, HOUSE, "logit('cold', of='middle')", "of= is one of 'start', 'end' and 'span'"),
        (ANSWERER, HOUSE, "start('cold', of='end')", "of= is one of"),
        (ANSWERER, HOUSE, 3, "named by its words in the context, not by 3"),
        (ANSWERER, HOUSE, "contrast('was', 'cold', at=(7, 8, 9))", "one number per answer"),
        (FILLER, "a film", None, r"has no mask; write \[MASK\]"),
        (FILLER, "a [MASK] [MASK]", "house", r"has 2 masks, .*\"probability\(at=2\)\" or \"probability\(at=3\)\""),
        (FILLER, "a [MASK] film", "masterpiece", "is 10 tokens .*give one of them$"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(name: str, raw: Any, target: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        whence.explain(subject_of(name), raw, "random", target)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "raw", "target", "shown"),
    [
        (TAGGER, TEXTS[0], "logit('b-per', at='ENDING')", "logit of 'B-PER' at 'ending'"),
        (TAGGER, TEXTS[0], "log_odds('B-PER', at='disappointing')", "log-odds of 'B-PER' at 'disappointing'"),
        (TAGGER, TEXTS[0], "log_odds('B-PER', at=7)", "log-odds of 'B-PER' at 'the' (token 7)"),
        (TAGGER, TEXTS[0], "log_odds('B-PER', at=-1)", "log-odds of 'B-PER' at '[SEP]'"),
        (TAGGER, TEXTS[0], "logit('O', at='##is')", "logit of 'O' at '##is'"),
        (
            TAGGER,
            TEXTS[0],
            "contrast('B-PER', 'O', at='ending was')",
            "logit of 'B-PER' minus logit of 'O' at 'ending'",
        ),
        (TAGGER, "film", "B-PER", "logit of 'B-PER' at 'film'"),  # a single word: nothing else can be meant
        (ANSWERER, HOUSE, "start('The House')", "logit of the start of 'The House'"),
        (ANSWERER, HOUSE, "span('was', at=13)", "logit of the answer 'was'"),
        (ANSWERER, HOUSE, "probability('the house')", "probability of the answer 'the house'"),
        (
            ANSWERER,
            HOUSE,
            "contrast('was', 'was', at=(7, 13))",
            "logit of the answer 'was' minus logit of the answer 'was'",
        ),
        (FILLER, "a [MASK] film", "log_odds('house')", "log-odds of ' house' at '[MASK]'"),
        (FILLER, "a [MASK] [MASK]", "logit('house', at=3)", "logit of ' house' at '[MASK]' (token 3)"),
    ],
)
def test_what_is_read_is_shown(name: str, raw: Any, target: Any, shown: str) -> None:
    a = whence.explain(subject_of(name), raw, "random", target)
    assert str(a.target) == shown and f"target    {shown}\n" in str(a) and not a.target.predicted


def test_the_word_of_several_pieces_is_read_at_its_first() -> None:
    a = whence.explain(subject_of(TAGGER), TEXTS[0], "random", "logit('O', at='disappointing')")
    assert a.features[a.target.position : a.target.position + 2] == ("d", "##is")
    after = whence.explain(subject_of(TAGGER), "a disappointing film", "random", "logit('O', at='film')")
    assert after.words().input.features[after.words().input.decides[0]] == "film"


def test_an_answer_inside_a_word_is_taken_only_where_no_word_is_meant() -> None:
    subject = subject_of(ANSWERER)
    raw = {"question": "what ?", "context": "disappointing , is it ?"}
    item, (target,) = subject.encode(raw), pointed(subject, [subject.encode(raw)], ["is"])[1]
    assert item.features[item.decides[span_of(target.index)[0]]] == "is"
    inside = {"question": "what ?", "context": "disappointing"}
    (target,) = pointed(subject, [subject.encode(inside)], ["is"])[1]
    assert answer_text(subject.encode(inside), "span", target.index) == "is"


def test_questions_may_be_given_as_a_pair() -> None:
    subject = subject_of(ANSWERER)
    one, two = (whence.explain(subject, raw, "gae", "cold") for raw in (HOUSE, tuple(HOUSE.values())))
    assert np.array_equal(one.scores, two.scores) and two.input.raw == HOUSE
    with pytest.raises(TypeError, match="question-answering takes a tuple"):
        whence.explain(subject, "only a question ?", "gae")


# ---- through the library ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_saved_results_are_scored_where_they_were_read(name: str, tmp_path: Path) -> None:
    subject = subject_of(name)
    raw, target = next((raw, target) for kind, raw, target in ASKED if kind == name)
    a = whence.explain(subject, raw, "gradient_x_input", target)
    a.save(tmp_path / "a.json")
    again = whence.Attribution.load(tmp_path / "a.json")
    assert again == a and again.input.decides == a.input.decides and str(again.target) == str(a.target)
    for metric in ("auac", "comprehensiveness", "au_mse", "linearity", "loo_agreement", "max_sensitivity"):
        assert np.isfinite(whence.score(subject, again, metric).values).all()
    elsewhere = replace(a, input=replace(a.input, decides=(*a.input.decides[1:], 0)))  # read at other tokens
    with pytest.raises(ValueError, match="explains another model"):
        whence.score(subject, elsewhere, "auac")


def test_the_probability_that_metrics_watch_is_that_of_the_target() -> None:
    for name, raw, target in ASKED:
        subject = subject_of(name)
        a = whence.explain(subject, raw, "random", target)
        expected = whence.explain(subject, raw, "random", replace(a.target, kind="probability")).output
        engine, keep = MaskedRuns(subject), np.ones((1, len(a.features)), bool)
        found = engine.answers([a.input], [Ask(keep)], subject.aim([a.target]))[0]
        assert found.probabilities[0] == pytest.approx(expected, abs=1e-6)
        assert found.values[0] == pytest.approx(a.output, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        (TAGGER, [{"text": TEXTS[0], "label": "logit('B-LOC', at='ending')"}, {"text": TEXTS[1]}]),
        (ANSWERER, [{**HOUSE, "label": "the house"}, {**LONGER, "label": "end('old man')"}]),
        (
            FILLER,
            [
                {"text": "a [MASK] film", "label": "house"},
                {"text": "[MASK] laughed", "label": "contrast('man', 'masterpiece')"},
            ],
        ),
    ],
)
def test_data_files_name_tokens_and_answers(name: str, rows: list[dict[str, str]], tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    subject = subject_of(name)
    if name == FILLER:
        with pytest.raises(ValueError, match="example 1: the target 'masterpiece'"):
            whence.evaluate(subject, file, ["gae"], ["auac"])
        rows[1]["label"] = "contrast('man', 'house')"
        file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    board = whence.evaluate(subject, file, ["gae"], ["comprehensiveness(mask='mask')"])
    for number, row in enumerate(rows):
        raw = {key: value for key, value in row.items() if key != "label"}
        a = whence.explain(subject, raw, "gae", row.get("label"))
        assert board.values[0, 0, number] == pytest.approx(
            whence.score(subject, a, "comprehensiveness(mask='mask')").values[0], abs=1e-6
        )


def test_arbitration_conservation_and_maps_work_on_tokens() -> None:
    for name, raw, _ in ASKED[:2] + ASKED[3:]:
        subject = subject_of(name)
        assert whence.arbitrate(subject, raw, ["gae", "random"]).explanations[0].input.decides
        k = whence.conservation(subject, raw, "gradient_x_input")
        assert k.output == pytest.approx(whence.explain(subject, raw, "random").output, abs=1e-5)
        assert whence.attention_maps(subject, raw).input.features
    with pytest.raises(ValueError, match="labels every token; use labels='target'"):
        whence.arbitrate(subject_of(TAGGER), TEXTS[0], ["gae"], labels="all")


# ---- which task a model has ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "task"),
    [
        ("BartForConditionalGeneration", "seq2seq-lm"),
        ("MBartForConditionalGeneration", "seq2seq-lm"),
        ("XLMWithLMHeadModel", "causal-lm"),
        ("BertLMHeadModel", "causal-lm"),
        ("LxmertForQuestionAnswering", "module"),
        ("LayoutLMv3ForTokenClassification", "module"),
        ("MarkupLMForQuestionAnswering", "module"),
        ("ViltForQuestionAnswering", "image-text"),
        ("BertForMaskedLM", "masked-lm"),
        ("FlaubertForQuestionAnsweringSimple", "question-answering"),
        ("LlamaForTokenClassification", "token-classification"),
    ],
)
def test_the_task_of_a_class_that_stands_in_several_tables(model: str, task: str) -> None:
    made = getattr(hf, model)
    assert _task_of(made.__new__(made)) == task and task in tasks.NAMES


def test_a_pretrained_checkpoint_with_other_heads_loads(tmp_path: Path) -> None:
    """Original checkpoints name BertForMaskedLM and hold a pooler and a head for the next sentence, too."""
    made = family("bert-filler")
    with_heads = hf.BertForPreTraining(made.model.config).eval()
    with_heads.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    made.processor.save_pretrained(tmp_path)
    subject = whence.load(tmp_path)
    a = whence.explain(subject, "a [MASK] film", "random")
    with torch.no_grad():
        rows = with_heads(**made.processor("a [MASK] film", return_tensors="pt")).prediction_logits[0]
    assert subject.task == "masked-lm" and a.output == pytest.approx(rows[2].max().item(), abs=1e-5)


@pytest.mark.parametrize("name", HEADS)
def test_a_folder_loads_with_its_task(name: str, tmp_path: Path) -> None:
    made = family(name)
    made.model.save_pretrained(tmp_path)
    made.processor.save_pretrained(tmp_path)
    subject = whence.load(tmp_path)
    one, two = (whence.explain(s, made.inputs[0], "gradient_x_input") for s in (subject, subject_of(name)))
    np.testing.assert_allclose(one.scores, two.scores, atol=1e-6)
    assert subject.labels == (tuple(TAGS) if name == TAGGER else None)


# ---- targets put together by hand ------------------------------------------------------------------------------------


def test_start_and_end_of_one_number_are_different_questions() -> None:
    subject = subject_of(ANSWERER)
    item, targets = subject.encode(HOUSE), [whence.Target("logit", 2, of=of) for of in ("start", "end")]
    engine, plain = MaskedRuns(subject), Ask(np.ones((1, len(subject.encode(HOUSE).features)), bool))
    values = [v.item() for v in engine.values([item, item], [plain, plain], subject.aim(targets))]
    assert values == pytest.approx(plain_logits(family(ANSWERER), HOUSE)[0, item.decides[2]].tolist(), abs=1e-5)


def test_a_target_by_hand_counts_from_the_end_too() -> None:
    a = whence.explain(subject_of(TAGGER), TEXTS[1], "random", whence.Target("logit", 1, "B-PER", position=-2))
    assert a.output == pytest.approx(plain_logits(family(TAGGER), TEXTS[1])[0, -2, 1].item(), abs=1e-5)
    assert a.input.decides == (len(a.features) - 2,)


@pytest.mark.parametrize(
    ("name", "raw", "target", "words"),
    [
        ("bert", TEXTS[0], whence.Target("logit", 0, of="span"), "Target.of is 'span'"),
        ("bert", TEXTS[0], whence.Target("logit", 0, position=3), "decides once for the whole input"),
        (ANSWERER, HOUSE, whence.Target("logit", 0), "its 'start', its 'end' or its 'span'"),
        (TAGGER, TEXTS[0], whence.Target("logit", 0, position=99), "at=99 names no token"),
        (TAGGER, TEXTS[0], "logit('O', at=' ')", "is not in the text"),
    ],
)
def test_targets_of_other_models_are_refused(name: str, raw: Any, target: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        whence.explain(subject_of(name), raw, "random", target)
