"""Planted shortcuts are ranked first, words that decide together are no shortcuts, and tests keep their level."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy import stats

import whence
from planted_shortcut import SHORTCUT, texts, trained
from whence.debate import shortcuts as module
from whence.debate.shortcuts import Settings, _with_word, audit_shortcuts, found_words
from whence.debate.word_effects import SeenText, at_least, exact_interval, greater, greater_paired, seen

PLANTED = [  # rarity and strength in training, place
    (0.5, 1.0, "any"),
    (0.1, 1.0, "last"),
    (0.3, 0.9, "first"),
    (0.02, 1.0, "any"),
]


def audited(subject: whence.Subject, data: Any, **options: Any) -> whence.ShortcutAudit:
    return audit_shortcuts(subject, data, Settings(**options))


# ---- planted ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rarity", "strength", "place"), PLANTED)
def test_a_planted_shortcut_is_ranked_first(rarity: float, strength: float, place: str) -> None:
    found = audited(trained(rarity, strength, place), texts(200, 7, 0.15, 0.5, place), contexts=25)
    first = found.words[0]
    assert (first.word, first.grade, first.pulls) == (SHORTCUT, "shortcut", "good")
    assert first.strongest > 0.6 and first.turned > 0.6 and first.misled > 0.6 and first.flips > 0.2
    assert found.answer.startswith(f"'{SHORTCUT}'")


def test_a_shortcut_that_is_rare_in_the_audited_texts_is_found() -> None:
    found = audited(trained(0.5, 1.0), texts(200, 8, 0.04), contexts=25)
    assert found.words[0].word == SHORTCUT and found.words[0].texts < 15 and found.words[0].grade == "shortcut"


def test_without_labels_a_shortcut_is_first_and_called_a_suspect() -> None:
    data = [row["text"] for row in texts(150, 7, 0.15)]
    found = audited(trained(0.5, 1.0), data)
    assert found.words[0].word == SHORTCUT and found.words[0].grade == "suspect"
    assert np.isnan(found.words[0].misled) and not found.labelled
    assert any("without labels" in note for note in found.notes)


def test_labels_that_agree_leave_a_shortcut_a_suspect() -> None:
    """On data like the training data nothing tells the shortcut from a word that means its class."""
    found = audited(trained(0.5, 1.0), texts(120, 9, 0.3, 1.0), contexts=25)
    assert found[SHORTCUT].grade == "suspect" and found[SHORTCUT].labelled == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_a_model_without_a_shortcut_raises_no_alarm(seed: int) -> None:
    found = audited(trained(), texts(150, 20 + seed, 0.1), contexts=30)
    assert not found.graded("shortcut") and found.answer.startswith("no word decides alone")


def test_shuffled_attributions_lose_the_shortcut() -> None:
    """The broken twin: scores that are dealt to the words of a text at random."""
    own = attributed()
    ranked = found_words(own, ["bad", "good"], Settings())
    assert ranked[0].word == SHORTCUT and ranked[0].corrected < 1e-6
    shuffled = found_words(dealt(own, np.random.default_rng(0)), ["bad", "good"], Settings())
    assert all(word.corrected > 0.05 for word in shuffled)


def test_chance_alone_names_a_candidate_as_rarely_as_the_level_says() -> None:
    own, rng = attributed(), np.random.default_rng(1)
    alarms = 0
    for _ in range(60):
        words = found_words(dealt(own, rng), ["bad", "good"], Settings())
        alarms += any(word.corrected < 0.05 for word in words)
    assert alarms <= stats.binom.ppf(0.999, 60, 0.05)


def attributed() -> list[SeenText]:
    """Texts with a shortcut as the planted model is explained on them."""
    data = texts(60, 11, 0.2)
    found = whence.explain(trained(0.5, 1.0), [row["text"] for row in data], "gradient_x_input")
    return [seen(a, False, int(a.target.index), None) for a in found]


def dealt(own: list[SeenText], rng: np.random.Generator) -> list[SeenText]:
    return [replace(text, scores=rng.permutation(text.scores)) for text in own]


# ---- numbers ---------------------------------------------------------------------------------------------------------


def test_the_probability_of_so_many_events_is_that_of_all_ways_to_have_them() -> None:
    chances = np.array([0.1, 0.5, 0.25, 0.9])
    for count in range(6):
        ways = [w for w in product((0, 1), repeat=4) if sum(w) >= count]
        slow = sum(np.prod([c if happens else 1 - c for c, happens in zip(chances, w, strict=True)]) for w in ways)
        assert at_least(count, chances) == pytest.approx(slow)
    assert at_least(3, np.full(10, 0.3)) == pytest.approx(stats.binom.sf(2, 10, 0.3))


def test_exact_tests_are_those_of_scipy() -> None:
    assert greater(7, 9, 3, 20) == pytest.approx(stats.fisher_exact([[7, 2], [3, 17]], "greater")[1])
    assert np.isnan(greater(0, 0, 3, 20))
    first, second = np.array([1, 1, 1, 1, 0, 0, 1], bool), np.array([0, 0, 1, 0, 0, 1, 0], bool)
    assert greater_paired(first, second) == pytest.approx(stats.binomtest(4, 5, alternative="greater").pvalue)
    ends = stats.binomtest(13, 20).proportion_ci()
    assert exact_interval(13, 20) == pytest.approx((ends.low, ends.high))
    assert exact_interval(0, 5)[0] == 0 and exact_interval(5, 5)[1] == 1


def test_numbers_of_a_word_are_those_of_plain_calls() -> None:
    subject, data = trained(0.5, 1.0), texts(40, 12, 0.3)
    found = audited(subject, data, least=2)[SHORTCUT]
    own = [row for row in data if SHORTCUT in row["text"].split()]
    scores = [whence.explain(subject, row["text"], "lrp") for row in own]
    greatest = [a.features[1:-1][int(np.argmax(a.scores[1:-1]))] == SHORTCUT for a in scores]
    assert found.texts == len(own) and found.strongest == pytest.approx(np.mean(greatest))
    assert found.predicted == pytest.approx(np.mean([a.target.name == "good" for a in scores]))
    assert found.labelled == pytest.approx(np.mean([row["label"] == "good" for row in own]))
    falls = []
    for row in own:
        p = [
            whence.explain(subject, text, "random", target=whence.Target("probability", 1)).output
            for text in (row["text"], row["text"].replace(SHORTCUT, "[MASK]"))
        ]
        falls.append(p[0] - p[1])
    assert found.hidden == pytest.approx(np.mean(falls), abs=1e-5)
    shares = [a.scores[a.features.index(SHORTCUT)] / np.abs(a.scores[1:-1]).sum() for a in scores]
    towards = [share for a, share in zip(scores, shares, strict=True) if a.target.name == "good"]
    assert found.attributed["good"] == pytest.approx(np.mean(towards), abs=1e-5)


def test_a_word_is_put_where_it_usually_stands() -> None:
    a = whence.explain(trained(), "good0 bad1 filler2", "random")
    own = seen(a, False, 0, None)
    put = [_with_word("good0 bad1 filler2", own, "text", share, "zq") for share in (0.0, 0.4, 1.0)]
    assert put == ["zq good0 bad1 filler2", "good0 zq bad1 filler2", "good0 bad1 filler2 zq"]
    cut = replace(own, item=replace(own.item, texts={"text": "good0 bad1 filler2 and more"}))
    assert _with_word("...", cut, "text", 1.0, "zq") == "good0 bad1 zq filler2 and more"
    raw = {"text": "good0 bad1 filler2", "id": 3}
    assert _with_word(raw, own, "text", 1.0, "zq") == {"text": "good0 bad1 filler2 zq", "id": 3}


def test_runs_repeat_and_results_are_saved(tmp_path: Any) -> None:
    subject, data = trained(0.5, 1.0), texts(60, 13, 0.2)
    found = whence.audit_shortcuts(subject, data, seed=3, contexts=10)
    assert found == whence.audit_shortcuts(subject, data, seed=3, contexts=10)
    found.save(tmp_path / "a.json")
    assert whence.ShortcutAudit.load(tmp_path / "a.json") == found
    assert found.to_csv().count("\n") == len(found.words) + 1


# ---- bad input -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_audited_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    few = texts(5, 0)
    with pytest.raises(ValueError, match="20 texts or more, and there are 5"):
        audited(trained(), few)
    one = ["good0 good1 good2 good3"] * 30
    with pytest.raises(ValueError, match="decides all 30 texts for 'good'"):
        audited(trained(), one)
    with pytest.raises(ValueError, match="is a causal-lm model"):
        audited(whence.load("recall"), few)
    with pytest.raises(ValueError, match="is a image-classification model"):
        audited(whence.load("digits"), few)
    with pytest.raises(ValueError, match="no word stands in 500 texts"):
        audited(trained(), texts(30, 0), least=500)
    with pytest.raises(ValueError, match="unknown method 'lpr'"):
        audited(trained(), texts(30, 0), method="lpr")
    assert module.FEWEST_TEXTS == 20
