"""Names exchanged in sentences: where they stand, what they receive, and whether groups of them differ by chance."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import whence
from whence.debate.group_tests import group_tests, smallest_p
from whence.debate.name_lists import name_list
from whence.debate.names import Settings, _pattern, _sentence, audit_names

NAMES = tuple(f"Name{i}" for i in range(40))
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "made", "a", "film", ".", "I", "met", *NAMES)
TEMPLATES = ["{name} made a film .", "I met {name} .", "I made a film {name} met ."]


@pytest.fixture(scope="module")
def exchangeable() -> whence.Subject:
    """A model with random embeddings of names: nothing in it knows of groups."""
    torch.manual_seed(0)
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {f"{word.strip('[]').lower()}_token": word for word in WORDS[:5]}
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        initializer_range=0.3,
    )
    return whence.wrap(
        BertForSequenceClassification(config).eval(), PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    )


def groups(*sizes: int) -> dict[str, list[str]]:
    """The first names, in groups of these sizes."""
    left = iter(NAMES)
    return {f"group {number}": [next(left) for _ in range(size)] for number, size in enumerate(sizes)}


def audited(subject: whence.Subject, names: Any, data: Any = TEMPLATES, find: Any = None, **options: Any) -> Any:
    return audit_names(subject, data, names, 1, find, Settings(**{"method": "gradient_x_input", "draws": 99} | options))


# ---- what each name receives -----------------------------------------------------------------------------------------


def test_outputs_and_relevance_are_those_of_explaining_each_sentence(exchangeable: whence.Subject) -> None:
    found = audited(exchangeable, groups(2, 2))
    for i, template in enumerate(TEMPLATES):
        for j, name in enumerate(found.names):
            a = whence.explain(exchangeable, template.replace("{name}", name), "gradient_x_input", target=1)
            assert found.outputs[i, j] == pytest.approx(a.output, abs=1e-6)
            assert found.relevance[i, j] == pytest.approx(a.scores[a.features.index(name)], abs=1e-6)
    assert np.allclose(found.changes.mean(1), 0, atol=1e-7) and found.pieces.tolist() == [1, 1, 1, 1]


def test_without_a_target_the_most_frequent_decision_is_explained(exchangeable: whence.Subject) -> None:
    found = audit_names(exchangeable, TEMPLATES, groups(3, 3), None, None, Settings(method="gradient_x_input"))
    assert found.target.index == np.bincount(found.predicted.ravel()).argmax()
    shares = [np.mean(row != np.bincount(row).argmax()) for row in found.predicted]
    assert np.allclose(found.flips, shares)


def test_a_name_of_several_pieces_receives_the_sum_of_their_scores() -> None:
    subject = whence.load("sst2")
    names = {"one": ["Damife"], "other": ["Zqxjkv"]}
    sentence = "films ({name}) of late"  # the brackets touch the name and are no part of it
    found = audit_names(subject, [sentence], names, "positive", None, Settings(method="gradient_x_input"))
    a = whence.explain(subject, sentence.format(name="Damife"), "gradient_x_input", target="positive")
    inside = [i for i, (first, last) in enumerate(a.input.offsets) if 7 <= first < last <= 13]
    assert len(inside) > 1 and found.pieces[0] == len(inside)
    assert found.relevance[0, 0] == pytest.approx(a.scores[inside].sum(), abs=1e-5)


# ---- places for names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown", "original"),
    [
        ("Ann made a film", "{name} made a film", "Ann"),
        ("with Anna and Ann", "with {name} and Ann", "Anna"),
        ("Ann met Ann's mother", "{name} met {name}'s mother", "Ann"),
        ("with ann in lower case", "with {name} in lower case", "ann"),
        ("a template of {name}", "a template of {name}", ""),
        ("Joanna made Annual films", None, None),
        ("ann beside Upper case", None, None),
    ],
)
def test_names_are_found_as_words_of_their_own(text: str, shown: str | None, original: str | None) -> None:
    found = _sentence(text, _pattern(["Ann", "Anna"]))
    assert (found and found.shown) == shown and (found and found.original) == original
    if found is not None:
        new = found.fill(found.text("Zoë"))
        assert all(new[start:end].lower() == "zoë" for start, end in found.spans("Zoë"))
        assert original == "" or new.islower() == text.islower()


def test_a_place_in_one_of_several_parts() -> None:
    found = _sentence({"text": "a film", "pair": "by Ann"}, _pattern(["Ann"]))
    assert found is not None and found.part == "pair"
    assert found.fill(found.text("Bo")) == {"text": "a film", "pair": "by Bo"}


# ---- groups ----------------------------------------------------------------------------------------------------------


def test_p_is_the_share_of_all_ways_to_choose_a_group() -> None:
    values = np.array([2.0, 1.5, 0.9, 0.1, -0.3, -0.4, 0.3])
    kinds = {"kind": ("a", "a", "a", "b", "b", "b", "b")}
    (test,) = group_tests({"change": values}, kinds, seed=0, draws=20_000)
    observed = values[:3].mean() - values[3:].mean()
    ways = [values[list(c)].mean() - np.delete(values, c).mean() for c in combinations(range(7), 3)]
    exact = np.mean(np.abs(ways) >= abs(observed) - 1e-12)
    assert test.difference == pytest.approx(observed) and test.p == pytest.approx(exact, abs=0.005)
    pooled = np.sqrt((2 * values[:3].var(ddof=1) + 3 * values[3:].var(ddof=1)) / 5)
    assert test.effect == pytest.approx(observed / pooled) and test.interval[0] < observed < test.interval[1]
    assert smallest_p(kinds, "kind", "a") == 1 / 35
    assert smallest_p({"origin": "aabb", "gender": "fmfm"}, "origin", "a") == 1 / 4  # one of two, for either gender


def test_names_of_equal_other_kinds_are_compared() -> None:
    origin = ("here",) * 8 + ("there",) * 8
    gender = ("female",) * 6 + ("male",) * 2 + ("female",) * 2 + ("male",) * 6  # most of here are female
    values = np.where(np.array(origin) == "here", 1.0, 0.0) + np.linspace(0, 1e-3, 16)
    tests = {test.kind: test for test in group_tests({"change": values}, {"origin": origin, "gender": gender}, 0, 999)}
    assert (
        tests["origin"].p < 0.01
        and abs(tests["gender"].difference) < 2e-3
        and tests["origin"].difference == pytest.approx(1, abs=2e-3)
    )
    (alone,) = group_tests({"change": values}, {"gender": gender}, 0, 999)
    assert alone.difference > 0.4  # without the origin, gender would be held responsible


def test_three_groups_are_each_tested_and_corrected_together() -> None:
    values = np.r_[np.full(8, 3.0), np.zeros(16)] + np.random.default_rng(0).normal(0, 0.1, 24)
    kinds = {"kind": ("a",) * 8 + ("b",) * 8 + ("c",) * 8}
    tests = group_tests({"change": values, "relevance": -values}, kinds, 0, 1999)
    assert [(test.measure, test.group) for test in tests[:3]] == [("change", name) for name in "abc"]
    assert tests[0].p == 1 / 2000 and tests[0].corrected == pytest.approx(6 / 2000) and tests[3].difference < 0


def test_names_that_are_exchangeable_are_called_different_no_more_often_than_by_chance(
    exchangeable: whence.Subject,
) -> None:
    found = audited(exchangeable, groups(20, 20))
    rng = np.random.default_rng(1)
    effects = {measure: found.of_names(measure) for measure in ("change", "relevance")}
    called = {measure: 0 for measure in effects}
    for _ in range(1000):
        kinds = {"kind": rng.permutation(["a"] * 20 + ["b"] * 20).tolist()}
        for measure, values in effects.items():
            (test,) = group_tests({measure: values}, kinds, int(rng.integers(2**31)), 99)
            called[measure] += test.p < 0.05
    assert max(called.values()) <= 70 and min(called.values()) >= 25  # of 1,000: 50 are expected


def test_a_group_that_is_treated_differently_is_found(exchangeable: whence.Subject) -> None:
    torch.manual_seed(1)
    words = exchangeable.model.get_input_embeddings().weight
    kept = words.detach().clone()
    first = WORDS.index("Name0")
    with torch.no_grad():
        words[first : first + 20] = words[first : first + 20] * 0.2 + torch.randn(16)
    try:
        found = audited(exchangeable, groups(20, 20), draws=999)
    finally:
        with torch.no_grad():
            words.copy_(kept)
    assert any(test.corrected < 0.05 for test in found.tests) and "group 0" in found.answer


# ---- lists of names --------------------------------------------------------------------------------------------------


def test_a_table_of_names(tmp_path: Path) -> None:
    (tmp_path / "names.csv").write_text(
        "name,origin,gender\nAnn,here,f\nBo,here,m\nCem,there,m\nAnn,there,f\nDilek,there,f\n"
    )
    found = name_list(str(tmp_path / "names.csv"), 20, 0)
    assert found.names == ("Bo", "Cem", "Dilek") and found.kinds["origin"] == ("here", "there", "there")
    assert found.kinds["gender"] == ("m", "m", "f") and "1 name that several groups share" in found.notes[0]


def test_names_are_drawn_from_every_group_by_seed() -> None:
    drawn = [name_list({"a": list(NAMES[:30]), "b": list(NAMES[30:])}, 10, seed) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and drawn[0].kinds["group"].count("a") == 10 == len(drawn[0].names) - 10


def test_names_of_faker() -> None:
    found = name_list("faker:en_US,tr_TR", 5, 0)
    assert len(found.names) == 20 and set(found.kinds["origin"]) == {"en_US", "tr_TR"}
    assert set(found.kinds["gender"]) == {"female", "male"} and list(found.kinds) == ["origin", "gender"]
    with pytest.raises(ValueError, match="faker has no names for 'xx_XX'"):
        name_list("faker:xx_XX", 5, 0)


# ---- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"only": ["Ann", "Bo"]}, "names of at least two groups are needed, and 1 group came"),
        ({"a": "Ann", "b": ["Bo"]}, "the group 'a' must hold a list of names"),
        ("nowhere.csv", "there is no table of names 'nowhere.csv'"),
        (3, "names are a table, a dict group -> names, or 'faker', not int"),
    ],
)
def test_lists_that_are_none(names: Any, sentence: str) -> None:
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=sentence):
        name_list(names, 20, 0)


def test_tables_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("person,origin\nAnn,here\n")
    with pytest.raises(ValueError, match="row 1: a column name and at least one kind of group are needed"):
        name_list(tmp_path / "n.csv", 20, 0)
    (tmp_path / "n.txt").write_text("Ann\n")
    with pytest.raises(ValueError, match=r"names are read from .*, and n\.txt is none of them"):
        name_list(tmp_path / "n.txt", 20, 0)


def test_names_that_the_tokenizer_does_not_know(exchangeable: whence.Subject) -> None:
    found = audited(exchangeable, {"a": ["Name0", "Zzz"], "b": ["Name1"]})
    assert found.names == ("Name0", "Name1") and "1 name unknown to the tokenizer left out: Zzz" in found.notes
    assert "a (group) has too few names for any difference to be significant at 0.05" in found.notes
    with pytest.raises(ValueError, match="it does not know 2 of 3 names"):
        audited(exchangeable, {"a": ["Name0"], "b": ["Zzz", "Yyy"]})


def test_texts_without_a_place(exchangeable: whence.Subject) -> None:
    with pytest.raises(ValueError, match="none of 1 text holds one of the names"):
        audited(exchangeable, groups(2, 2), ["I met a film ."])
    found = audited(exchangeable, groups(2, 2), ["I met a film ."], find=["film"])
    assert found.originals == ("film",) and found.sentences == ("I met a {name} .",)


def test_models_that_read_no_text() -> None:
    with pytest.raises(ValueError, match=r"decided on as a whole, and digits is a image-classification model"):
        audit_names(whence.load("digits"), TEMPLATES, groups(2, 2), None, None, Settings())
