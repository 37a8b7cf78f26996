"""Heads with several labels that may hold together, and regressions: what is explained, and what metrics watch."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import whence
from families import TEXT_SIZE, TEXTS, _drawn, bert_tokenizer
from whence.model.masked_runs import Ask, MaskedRuns

MOODS = {"id2label": {0: "joy", 1: "fear", 2: "hope"}}
SCALES = {"id2label": {0: "valence", 1: "arousal"}}
REGRESSION, LABELS = {"problem_type": "regression"}, {"problem_type": "multi_label_classification"}
HEADS: dict[str, dict[str, Any]] = {
    "one number": {"num_labels": 1},
    "named number": {"id2label": {0: "similarity"}},
    "three numbers": {"num_labels": 3, **REGRESSION},
    "two scales": {**SCALES, **REGRESSION},
    "moods": {**MOODS, **LABELS},
    "one label": {"id2label": {0: "toxic"}, **LABELS},
    "classes": MOODS,
}


@cache
def head(name: str) -> whence.Subject:
    tokenizer = bert_tokenizer()
    config = hf.BertConfig(vocab_size=len(tokenizer), pad_token_id=0, **TEXT_SIZE, **HEADS[name])
    return whence.wrap(_drawn(lambda: hf.BertForSequenceClassification(config)), tokenizer, name=name)


def plain(name: str, text: str) -> list[float]:
    with torch.no_grad():
        return head(name).model(**bert_tokenizer()(text, return_tensors="pt")).logits[0].double().tolist()


@pytest.mark.parametrize(
    ("name", "target", "index", "shown"),
    [
        ("one number", None, 0, "output"),
        ("one number", "output", 0, "output"),
        ("one number", 0, 0, "output"),
        ("one number", whence.Target("logit", 0), 0, "output"),
        ("named number", None, 0, "output 'similarity'"),
        ("three numbers", "output 1", 1, "output 1"),
        ("three numbers", 2, 2, "output 2"),
        ("two scales", "arousal", 1, "output 'arousal'"),
    ],
)
def test_the_output_of_a_regression_is_explained_itself(name: str, target: Any, index: int, shown: str) -> None:
    a = whence.explain(head(name), TEXTS[1], "leave_one_out", target)
    assert head(name).regression and str(a.target) == shown and not a.target.predicted
    assert a.output == pytest.approx(plain(name, TEXTS[1])[index], abs=1e-5)
    assert f"target    {shown}\n" in str(a) and "logit" not in str(a) and "LABEL_" not in a.to_html()


def test_the_difference_of_two_outputs() -> None:
    a = whence.explain(head("two scales"), TEXTS[1], "gae", "contrast('valence', 'arousal')")
    valence, arousal = plain("two scales", TEXTS[1])
    assert a.output == pytest.approx(valence - arousal, abs=1e-5)
    assert str(a.target) == "output 'valence' minus output 'arousal'"


@pytest.mark.parametrize("kind", ["probability", "log_probability('output')", "log_odds", "margin"])
def test_a_regression_has_no_probabilities(kind: str) -> None:
    with pytest.raises(ValueError, match=r"one number is a regression, whose output is a number .* has no ") as error:
        whence.explain(head("one number"), TEXTS[1], "random", kind)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="is a regression"):
        whence.explain(head("one number"), TEXTS[1], "random", whence.Target("probability", 0))


def test_none_of_several_outputs_is_the_prediction() -> None:
    with pytest.raises(ValueError, match="none is the prediction; name one as target: 'valence', 'arousal'"):
        whence.explain(head("two scales"), TEXTS[1], "random")
    assert whence.attention_maps(head("two scales"), TEXTS[1]).input.features  # maps explain nothing


def test_metrics_watch_the_output_of_a_regression() -> None:
    subject = head("one number")
    a = whence.explain(subject, TEXTS[1], "gae")
    keep = np.tri(len(a.features), dtype=bool)
    found = MaskedRuns(subject).answers([a.input], [Ask(keep)], subject.aim([a.target]))[0]
    assert np.array_equal(found.probabilities, found.values) and np.array_equal(found.values, found.logits[:, 0])
    board = whence.evaluate(subject, [{"text": TEXTS[1], "label": "2.5"}], ["gae"], ["auac"])
    assert board.axes[0][1] == "the target" and "Explained: the output." in board.notes
    assert board.values[0, 0, 0] == pytest.approx(whence.score(subject, a, "auac").values[0])


def test_a_label_of_its_own_probability() -> None:
    assert head("moods").multi_label and not head("moods").regression and not head("classes").multi_label
    logits = plain("moods", TEXTS[1])
    for number, label in enumerate(MOODS["id2label"].values()):
        chance = 1 / (1 + np.exp(-logits[number]))
        values = {"probability": chance, "log_probability": np.log(chance), "log_odds": logits[number]}
        for kind, value in {**values, "logit": logits[number]}.items():
            a = whence.explain(head("moods"), TEXTS[1], "random", f"{kind}('{label}')")
            assert a.output == pytest.approx(value, abs=1e-5)
        a = whence.explain(head("moods"), TEXTS[1], "random", label)
        keep = np.tri(len(a.features), dtype=bool)
        found = MaskedRuns(head("moods")).answers([a.input], [Ask(keep)], head("moods").aim([a.target]))[0]
        np.testing.assert_allclose(found.probabilities, 1 / (1 + np.exp(-found.logits[:, number])), atol=1e-9)


def test_without_a_target_the_likeliest_label_is_explained_and_called_so() -> None:
    """Several labels may hold, or none, so the likeliest one is not what the model predicts."""
    a = whence.explain(head("moods"), TEXTS[1], "random")
    assert a.target.index == int(np.argmax(plain("moods", TEXTS[1]))) and a.target.predicted
    assert a.notes == (f"no target was given: {a.target} is of the label that the model finds likeliest",)
    assert f"target    {a.target}, the likeliest label\n" in str(a) and "predicts" not in str(a)
    kept = whence.explain(head("moods"), TEXTS[1], "random", a.target)
    assert kept.output == a.output
    chance = whence.explain(head("moods"), TEXTS[1], "random", "probability")
    assert chance.output == pytest.approx(1 / (1 + np.exp(-a.output)), abs=1e-6)
    single = whence.explain(head("classes"), TEXTS[1], "random")
    assert ", as the model predicts\n" in str(single)


def test_one_logit_may_be_a_label() -> None:
    """problem_type tells a classifier with one logit from a regression."""
    a = whence.explain(head("one label"), TEXTS[1], "random", "probability('toxic')")
    assert a.output == pytest.approx(1 / (1 + np.exp(-plain("one label", TEXTS[1])[0])), abs=1e-6)
    assert str(a.target) == "probability of 'toxic'"


def test_data_name_one_of_several_labels() -> None:
    data = [{"text": TEXTS[1], "label": "joy"}, {"text": TEXTS[0], "label": "hope"}]
    board = whence.evaluate(head("moods"), data, ["gae"], ["auac"])
    for number, row in enumerate(data):
        a = whence.explain(head("moods"), row["text"], "gae", row["label"])
        assert board.values[0, 0, number] == pytest.approx(whence.score(head("moods"), a, "auac").values[0])
    with pytest.raises(ValueError, match=r"example 0: a target is a label, .* not \['joy', 'fear'\]"):
        whence.evaluate(head("moods"), [{"text": TEXTS[1], "label": ["joy", "fear"]}], ["gae"], ["auac"])
