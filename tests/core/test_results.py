"""Results: what they check, how they compare, save, load, and merge pieces into words."""

import json
import os
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import numpy as np
import pytest

import whence
from results_by_hand import (
    POSITIVE,
    arbitration_example,
    attributed,
    comparison,
    encoded,
    generated_example,
    pair_example,
    picture_example,
    pieces,
    scoreboard_example,
    text_example,
)
from whence.core.inputs import Input, Target
from whence.core.results import Attribution, Comparison
from whence.core.scoreboards import Score

EXAMPLES = [text_example, pair_example, generated_example, picture_example]


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_saved_attribution_loads_equal(example, tmp_path):
    first = example()
    first.save(tmp_path / "a.json")
    second = Attribution.load(tmp_path / "a.json")
    assert second == first
    assert second.scores.dtype == first.scores.dtype
    assert second.features == first.features
    assert not second.scores.flags.writeable


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", "i2", "u1", "i8", "?", "c8", "U3"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (5000,)])
def test_arrays_are_saved_exactly(dtype, shape, tmp_path):
    array = np.array(np.random.default_rng(0).normal(size=shape) * 100).astype(dtype)
    loaded = _through_file({"array": array}, tmp_path)["array"]
    assert loaded.dtype == np.dtype(dtype)
    assert loaded.shape == shape
    np.testing.assert_array_equal(loaded, array)


@pytest.mark.parametrize("size", [6, 6000])
def test_nan_and_infinity_are_saved_as_standard_json(size, tmp_path):
    values = np.resize(np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, 0.1], dtype=np.float32), size)
    details = {"array": values, "one": float("nan"), "list": [float("-inf"), 1.5]}
    loaded = _through_file(details, tmp_path)
    assert loaded["array"].tobytes() == values.tobytes()
    assert np.isnan(loaded["one"])
    assert loaded["list"] == [float("-inf"), 1.5]

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    json.loads((tmp_path / "a.json").read_text(encoding="utf-8"), parse_constant=refuse)


def test_plain_values_of_details_survive(tmp_path):
    details = {
        "none": None,
        "yes": True,
        "count": 3,
        "nested": {"list": [1, "two", None, {"three": 3.0}], "pair": (1, "b"), "empty": {}},
        "by layer": {0: np.arange(3), 1: "b", (0, 1): None},
        "looks like ours": {"$array": "not an array", "$record": "Input"},
        "numpy number": np.float32(0.1),
        "numpy text": np.str_("a"),
    }
    loaded = _through_file(details, tmp_path)
    assert text_example(details=loaded) == text_example(details=details)
    assert isinstance(loaded["nested"]["pair"], tuple)
    assert type(loaded["numpy number"]) is np.float32


@pytest.mark.parametrize("text", ["lone \ud800 surrogate", "\ud83d\ude00", "nul \x00", "שלום 👍🏽 \u202e", "</script>"])
def test_odd_texts_survive(text, tmp_path):
    x = encoded([*pieces(text)], {"text": text}, raw={"text": text, text: np.arange(2)})
    first = attributed(x, notes=(text,), target=Target(name=text))
    first.save(tmp_path / "a.json")
    second = Attribution.load(tmp_path / "a.json")
    assert second == first
    assert second.input.texts["text"] == text
    assert text in second.input.raw


def test_small_arrays_are_readable_in_the_file(tmp_path):
    a = text_example(scores=np.array([0.0, 0.5, -0.25, 1.0, 2.0, 3.0]))
    a.save(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text())["scores"]["list"] == [0.0, 0.5, -0.25, 1.0, 2.0, 3.0]


def test_what_cannot_be_saved_is_named_and_leaves_no_file(tmp_path):
    with pytest.raises(TypeError, match=r"details\['a'\]\[1\] holds a object"):
        text_example(details={"a": [1, object()]}).save(tmp_path / "a.json")
    with pytest.raises(TypeError, match=r"details\['b'\] is an array of object"):
        text_example(details={"b": np.array([None])}).save(tmp_path / "a.json")
    assert not list(tmp_path.iterdir())


def test_loading_and_drawing_need_no_torch(tmp_path):
    picture_example(text="a yellow moon").save(tmp_path / "a.json")
    code = (
        "import sys, whence\n"
        "a = whence.Attribution.load(sys.argv[1])\n"
        "str(a), a.to_html(), a.words(), a.heatmap()\n"
        "print(sorted({'torch', 'transformers', 'matplotlib'} & set(sys.modules)))\n"
    )
    source = str(Path(whence.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", code, str(tmp_path / "a.json")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"scores: 1", "is not JSON"),
        (b"\x89PNG\r\n", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1, 2]", "is other JSON"),
        (b'{"scores": [1]}', "is other JSON"),
        (b'{"format": "whence", "version": 1, "$record": "Comparison"}', "holds a Comparison"),
        (b'{"format": "whence", "version": 99, "$record": "Attribution"}', "format version 99"),
        (b'{"format": "whence", "version": 1, "$record": "Attribution", "scores": 1}', "is damaged"),
    ],
)
def test_a_file_of_another_kind_is_refused_in_one_sentence(content, message, tmp_path):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        Attribution.load(path)
    assert "expected a file written by Attribution.save" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_damaged_array_is_refused(tmp_path):
    path = tmp_path / "a.json"
    text_example().save(path)
    content = json.loads(path.read_text())
    content["scores"]["shape"] = [3]
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is damaged"):
        Attribution.load(path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("input", "streams", 1), True),
        (("input", "features", 0), None),
        (("input", "texts", "text"), 3),
        (("target", "name"), 3),
        (("method",), None),
        (("notes",), [1]),
    ],
)
def test_a_value_of_another_type_is_refused(place, value, tmp_path):
    text_example().save(tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    holder = content
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is damaged"):
        str(Attribution.load(tmp_path / "a.json"))


@pytest.mark.parametrize(
    ("example", "change", "message"),
    [
        (scoreboard_example, {"curves": np.zeros(())}, "curves must have the axes method, metric, share"),
        (scoreboard_example, {"values": np.zeros((1, 1, 8))}, "values must have 3 entries on the method axis, got 1"),
        (scoreboard_example, {"seconds": np.zeros(3)}, "seconds must have the axes method, example"),
        (scoreboard_example, {"better": ("higher",)}, "better must have"),
        (scoreboard_example, {"hidden": ("a", "b", "c", "d", "e")}, "hidden must have"),
        (arbitration_example, {"candidates": ("gae",)}, "values must have 1 entries on the candidate axis"),
        (arbitration_example, {"chosen": np.array([[99]])}, "chosen are numbers of the"),
        (arbitration_example, {"better": "more"}, "better must be 'higher' or 'lower'"),
    ],
)
def test_boards_and_choices_whose_shapes_do_not_agree_are_refused(example, change, message):
    with pytest.raises(ValueError, match=message):
        example(**change)


def test_what_is_damaged_is_said_in_one_short_line(tmp_path):
    comparison().save(tmp_path / "c.json")
    content = json.loads((tmp_path / "c.json").read_text())
    content["attributions"][1]["method"] = "\r\n" * 3000
    content["attributions"][1]["target"]["name"] = "another"
    (tmp_path / "c.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is damaged") as error:
        Comparison.load(tmp_path / "c.json")
    assert len(str(error.value).splitlines()) == 1 and len(str(error.value)) < 1000


def test_dicts_of_inputs_and_targets_come_back_equal():
    for record in (text_example().input, picture_example().input, Target("contrast", 1, "a", 0, "b", True)):
        data = json.loads(json.dumps(record.to_dict(), allow_nan=False))
        assert type(record).from_dict(data) == record
    with pytest.raises(ValueError, match=r"written by Input\.to_dict"):
        Input.from_dict(Target().to_dict())


def test_equality_is_exact_and_treats_nan_as_equal():
    nan = text_example(scores=np.array([np.nan, 1, 2, 3, 4, 5]), output=np.nan)
    assert nan == text_example(scores=np.array([np.nan, 1, 2, 3, 4, 5]), output=np.nan)
    a = text_example()
    nudged = a.scores.copy()
    nudged[0] = np.nextafter(nudged[0], 9)
    other_ids = replace(a.input, tensors={**a.input.tensors, "input_ids": a.input.tensors["input_ids"] + 1})
    changes = [
        {"scores": nudged},
        {"input": other_ids},
        {"target": Target("logit", 0, "positive")},
        {"residual": None},
        {"details": {"steps": 3}},
        {"notes": ("a note",)},
    ]
    for change in changes:
        assert replace(a, **change) != a, change
    assert a != "an attribution"
    assert text_example(scores=np.ones(6)) != text_example(scores=np.ones(6, dtype=np.float32))
    assert replace(a, details={"x": np.arange(2)}) != replace(a, details={"x": [0, 1]})


def test_an_attribution_cannot_be_changed():
    a = generated_example()
    for name in ("scores", "visible", "output", "base", "residual"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(a, name)[0] = 1
        with pytest.raises(FrozenInstanceError):
            setattr(a, name, 1)


def test_an_attribution_keeps_a_copy_of_the_scores_it_was_given():
    given = np.ones(6)
    a = text_example(scores=given)
    given[0] = 5
    assert a.scores[0] == 1


def test_names_and_marks_come_from_the_input():
    a = text_example()
    assert a.features == ("[CLS]", "a", "mast", "##erful", "film", "[SEP]")
    assert a.streams == ("text",) * 6
    assert a.special.tolist() == [True, False, False, False, False, True]
    assert a.visible.shape == a.scores.shape
    assert a.visible.all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": np.zeros((3, 6))}, "scores must have 7 entries on the feature axis, got 6"),
        ({"scores": np.zeros((2, 7))}, "scores must have 3 entries on the generated axis"),
        (
            {"scores": np.zeros(7)},
            r"scores must have the axes \('generated', 'feature'\), got an array of shape \(7,\)",
        ),
        ({"visible": np.ones((3, 8))}, "visible must have 7 entries on the feature axis"),
        ({"output": 1.0}, r"output must have the axes \('generated',\)"),
        ({"output": None}, "output must hold numbers"),
        ({"residual": np.zeros(2)}, "residual must have 3 entries on the generated axis"),
        ({"target": (POSITIVE,)}, "target must have 3 entries on the generated axis"),
        ({"axes": ("feature", "generated")}, "axes must be"),
        ({"scores": np.full((3, 7), "a")}, "scores must hold numbers"),
    ],
)
def test_a_wrong_shape_is_told_by_its_axis(change, message):
    with pytest.raises(ValueError, match=message):
        replace(generated_example(), **change)


def test_one_base_serves_all_rows():
    assert generated_example().base.tolist() == [0, 0, 0]
    assert text_example(base=2).base == 2.0


def test_an_input_with_a_missing_entry_is_refused():
    x = text_example().input
    with pytest.raises(ValueError, match=r"Input\.parts must have 6 entries on the feature axis"):
        replace(x, parts=x.parts[1:])
    with pytest.raises(ValueError, match=r"Input\.words"):
        replace(x, words=x.words[1:])


def test_words_sum_their_pieces():
    a = text_example(scores=np.array([0.1, 0.2, 1.0, -3.0, 0.5, 0.7]))
    words = a.words()
    assert words.features == ("[CLS]", "a", "masterful", "film", "[SEP]")
    np.testing.assert_allclose(words.scores, [0.1, 0.2, -2.0, 0.5, 0.7])
    assert words.special.tolist() == [True, False, False, False, True]
    assert (words.output, words.base, words.residual) == (a.output, a.base, a.residual)
    assert words.output - words.base - words.scores.sum() == pytest.approx(words.residual)
    assert words.input.tensors is a.input.tensors
    start, end = words.input.offsets[2]
    assert a.input.texts["text"][start:end] == "masterful"
    assert words.words() == words


@pytest.mark.parametrize(("reduce", "expected"), [("max", 1.0), ("mean", -1.0)])
def test_words_by_max_and_mean_leave_no_residual(reduce, expected):
    words = text_example(scores=np.array([0.1, 0.2, 1.0, -3.0, 0.5, 0.7], dtype=np.float32)).words(reduce)
    assert words.scores[2] == expected
    assert words.scores.dtype == np.float32
    assert words.residual is None
    assert words.notes == (f"pieces merged into words by {reduce}",)


def test_words_take_no_other_reduction():
    with pytest.raises(ValueError, match="'sum', 'max' or 'mean', got 'median'"):
        text_example().words("median")


def test_words_never_merge_across_texts():
    a = pair_example()
    neighbours = replace(a.input, words=np.where(a.input.words >= 0, 0, -1))
    merged = replace(a, input=neighbours).words()
    assert merged.features == ("[CLS]", "is it worth watching", "watching paint dries", "[SEP]")
    assert a.words().features[4:6] == ("watching", "watching")


def test_words_never_merge_across_streams():
    a = text_example("ab cd")
    x = replace(a.input, words=np.array([-1, 0, 0, -1]), streams=("text", "source", "target", "text"))
    assert replace(a, input=x).words().features == ("[CLS]", "ab", "cd", "[SEP]")


def test_special_tokens_never_merge():
    x = text_example("ab cd").input
    x = replace(
        x, words=np.zeros(4, dtype=int), parts=("text",) * 4, offsets=np.array([(0, 0), (0, 2), (3, 5), (5, 5)])
    )
    assert len(attributed(x).words().features) == 3


def test_words_of_generated_text_keep_the_rows():
    a = generated_example()
    words = a.words()
    assert words.features == ("the", "capital", "is", "Paris", "!")
    assert words.scores.shape == (3, 5)
    np.testing.assert_allclose(words.scores[:, 1], a.scores[:, 1] + a.scores[:, 2])
    np.testing.assert_allclose(words.scores.sum(axis=1) + words.base + words.residual, words.output)
    assert words.input.generated == (3, 3, 4)
    assert words.target == a.target
    # The row of "##s" sees "Pari", so it sees a part of "Paris"; the row of "Pari" sees none of it.
    assert words.visible[:, 3].tolist() == [False, True, True]


@pytest.mark.parametrize(("reduce", "expected"), [("max", -0.5), ("mean", -0.5)])
def test_pieces_that_were_not_seen_do_not_count(reduce, expected):
    a = generated_example()
    scores = np.where(a.visible, -0.5, 0.0)
    words = replace(a, scores=scores).words(reduce)
    assert words.scores[1, 3] == expected
    assert words.scores[0, 3] == 0


def test_words_leave_spaces_out_but_not_within():
    text = " New York  now"
    rows = [
        ("ĠNew", "text", False, 0, (0, 4), "text"),
        ("ĠYork", "text", False, 0, (4, 9), "text"),
        ("Ġ", "text", False, 1, (9, 10), "text"),
        ("Ġnow", "text", False, 2, (10, 14), "text"),
    ]
    words = attributed(encoded(rows, {"text": text})).words()
    assert words.features == ("New York", " ", "now")
    assert [text[a:b] for a, b in words.input.offsets] == list(words.features)


def test_words_without_offsets_join_their_pieces():
    x = text_example().input
    joined = attributed(replace(x, offsets=np.full((6, 2), -1))).words()
    assert joined.features[2] == "mast##erful"


def test_patches_are_not_words():
    a = picture_example(text="a moon")
    assert a.words().features == a.features
    np.testing.assert_array_equal(a.words().scores, a.scores)


def test_a_comparison_is_a_sequence_by_place_and_by_method():
    c = comparison()
    assert len(c) == 2
    assert [a.method for a in c] == ["lrp(rules='ah')", "attention"]
    assert c["attention"] is c[1]
    assert c[-1] is c[1]
    with pytest.raises(KeyError, match="no attribution by 'shap' here, only by lrp"):
        c["shap"]


def test_a_comparison_saves_and_loads(tmp_path):
    c = comparison()
    c.save(tmp_path / "c.json")
    assert Comparison.load(tmp_path / "c.json") == c
    assert Comparison(c.attributions[:1]) != c
    with pytest.raises(ValueError, match="holds a Comparison"):
        Attribution.load(tmp_path / "c.json")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (text_example("another film"), "same features"),
        (text_example().words(), "same features"),
        (text_example(target=Target("logit", 0, "negative")), "same target"),
        (attributed(replace(text_example().input, raw="other")), "same input"),
    ],
)
def test_a_comparison_refuses_what_cannot_be_compared(other, message):
    with pytest.raises(ValueError, match=message):
        Comparison((text_example(), other))
    with pytest.raises(ValueError, match="at least one"):
        Comparison(())


def test_a_score_says_its_direction_and_interval():
    score = Score("auac(fractions=10)", 0.61234, "higher", np.array([0.5, np.nan]), (0.5, 0.7))
    assert str(score) == "auac(fractions=10) = 0.6123 [0.5, 0.7] (higher is better, 1 of 2 examples)"
    assert str(Score("auac", 1, "lower")) == "auac = 1 (lower is better)"
    assert score == Score("auac(fractions=10)", 0.61234, "higher", np.array([0.5, np.nan]), (0.5, 0.7))
    assert score != replace(score, interval=None)
    assert Score.from_dict(json.loads(json.dumps(score.to_dict()))) == score
    with pytest.raises(ValueError, match="'higher' or 'lower', got 'up'"):
        Score("auac", 1, "up")


def _through_file(details: dict, tmp_path: Path) -> dict:
    first = text_example(details=details)
    first.save(tmp_path / "a.json")
    second = Attribution.load(tmp_path / "a.json")
    assert second == first
    return second.details
