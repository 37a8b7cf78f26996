"""Truths as people write them down: words, phrases, places and mask files come to the tokens and pixels they mean."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import whence
from families import PICTURES, subject_of
from whence import zoo
from whence.measure.datasets import read, written
from whence.measure.rationales import marks

TEXT = "an unforgettably  heartfelt film, of art"  # the second and third words are several pieces


@pytest.fixture(scope="module")
def sst2() -> whence.Subject:
    return whence.load("sst2")


def named(item: whence.types.Input, truth: Any) -> list[str]:
    found = marks(item, truth, (len(item.features),))
    return [feature for feature, mark in zip(item.features, found, strict=True) if mark]


def test_one_rationale_however_it_is_written(sst2: whence.Subject) -> None:
    item = sst2.encode(TEXT)
    start = TEXT.index("unforgettably")
    pieces = [start <= a < b <= TEXT.index(" film") for a, b in item.offsets]
    assert 4 <= sum(pieces) < len(item.features) - 5, "the words are to be several pieces"
    expected = [feature for feature, mark in zip(item.features, pieces, strict=True) if mark]
    for truth in (
        pieces,
        np.array(pieces, float),
        ["unforgettably", "heartfelt"],
        np.array(["unforgettably", "heartfelt"], object),
        "unforgettably  heartfelt",
        [[start, start + 13], [start + 15, start + 24]],
        [(start, TEXT.index(" film"))],
        [0, 1, 1, 0, 0, 0],
        np.array([0, 1, 1, 0, 0, 0], bool),
        {"text": ["unforgettably", "heartfelt"]},
    ):
        assert named(item, truth) == expected, truth
    assert named(item, []) == named(item, [0] * 6) == []


def test_whole_words_first_and_every_place(sst2: whence.Subject) -> None:
    assert named(sst2.encode("the heart of art is art"), "art") == ["art", "art"]
    assert named(sst2.encode("good, not bad."), [","]) == [","]
    assert named(sst2.encode("(good)"), "(good") == ["(", "good"]
    item = subject_of("bert").encode("filmfilm")
    assert len(named(item, "film")) == len(item.features) - 2  # nowhere a word of its own
    with pytest.raises(ValueError, match=r"names 'a\.t', which is not in the text"):
        named(sst2.encode("art"), "a.t")


def test_of_two_texts_the_first_or_the_one_that_is_named() -> None:
    item = subject_of("bert").encode({"text": "the film", "pair": "the film was good"})
    sides = np.array(item.parts)
    both = [
        marks(item, truth, sides.shape) for truth in ("film", {"pair": "film"}, {"text": "film", "pair": [1, 0, 0, 0]})
    ]
    assert [set(sides[found]) for found in both] == [{"text"}, {"pair"}, {"text", "pair"}]
    assert both[0].sum() and not (both[0] & both[1]).any() and (both[2] & both[0] == both[0]).all()
    with pytest.raises(ValueError, match="the truth is of 'hint', and the input has text, pair"):
        marks(item, {"hint": "film"}, sides.shape)


def test_generated_tokens_share_it() -> None:
    subject = subject_of("gpt2")
    raw = {"prompt": "the film was", "continuation": " good today"}
    a = whence.explain(subject, raw, "leave_one_out")
    found = marks(a.input, "film", a.scores.shape)
    assert found.shape == a.scores.shape and found.any() and (found == found[0]).all()
    by_mark = whence.score(subject, a, "plausibility", truth=np.array(found))
    np.testing.assert_array_equal(whence.score(subject, a, "plausibility", truth="film").values, by_mark.values)


@pytest.mark.parametrize(
    ("truth", "message"),
    [
        ([0, 1], r"truth has the shape \(2,\), and \(\d+,\) or \(6,\) was expected"),
        ([[3, 41]], "characters 3 to 41, and the text has 40"),
        ([[5, 5]], "characters 5 to 5"),
        ([[0.0, 4.0]], r"truth has the shape \(1, 2\)"),
        ([[0, 4], [5]], "one mark per score, per pixel or per word"),
        (["film", 1], "truth has the shape|not in the text"),
        ("  ", "which is not in the text"),
        ({"pair": "film"}, "the input has text"),
    ],
)
def test_what_fits_nothing_is_refused(sst2: whence.Subject, truth: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        named(sst2.encode(TEXT), truth)


def test_a_mask_file_is_its_bright_pixels(tmp_path: Path) -> None:
    subject = subject_of("vit")
    a = whence.explain(subject, PICTURES[0], "gradient", 1)
    region = np.zeros((32, 32), bool)
    region[8:16, 8:24] = True
    expected = whence.score(subject, a, "localisation(measure='map')", truth=region).value
    faint = Image.fromarray((region * 200 + ~region * 9).astype(np.uint8))
    numbered = Image.fromarray(region.astype(np.uint8) * 3)
    numbered.putpalette([200, 200, 200] * 3 + [9, 0, 0])  # what counts is darker than what does not
    for name, mask in (("faint.png", faint), ("marks.png", numbered), ("colour.png", faint.convert("RGB"))):
        mask.save(tmp_path / name)
        assert whence.score(subject, a, "localisation(measure='map')", truth=tmp_path / name).value == expected
    Image.new("L", (5, 4)).save(tmp_path / "small.png")
    with pytest.raises(ValueError, match=r"truth has the shape \(4, 5\), and \(17,\) or \(32, 32\) or \(32, 40\) was"):
        whence.score(subject, a, "localisation", truth=tmp_path / "small.png")


@pytest.mark.parametrize(
    ("cell", "meant"),
    [
        ("0 1 0", [False, True, False]),
        ("0,1;0", [False, True, False]),
        ("[0 1 0]", [False, True, False]),
        ("[0, 1, 0]", [0, 1, 0]),
        ("[True, False]", [True, False]),
        ("[[0, 1]]", [[0, 1]]),
        ('["a film", "art"]', ["a film", "art"]),
        ("['a film', 'art']", ["a film", "art"]),
        ('{"pair": "art"}', {"pair": "art"}),
        (" a heartfelt film ", "a heartfelt film"),
        ("[sic] a film", "[sic] a film"),
        ("masks/3.PNG", Path("there/masks/3.PNG")),
        ([1, 0], [1, 0]),
    ],
)
def test_cells(cell: Any, meant: Any) -> None:
    assert written(cell, Path("there")) == meant


def test_rationales_and_masks_of_tables(sst2: whence.Subject, tmp_path: Path) -> None:
    rows = [
        {"text": TEXT, "rationale": ["heartfelt"]},
        {"text": "dull"},
        {"text": "a dull one", "rationale": [0, 1, 0]},
    ]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    board = whence.evaluate(sst2, file, ["leave_one_out"], ["plausibility"])
    pairs = [(TEXT, "heartfelt"), ("a dull one", "dull")]
    expected = [
        whence.score(sst2, whence.explain(sst2, text, "leave_one_out"), "plausibility", truth=truth).value
        for text, truth in pairs
    ]
    np.testing.assert_allclose(board.values[0, 0], [expected[0], np.nan, expected[1]])
    rows[1]["rationale"] = "witty"
    with pytest.raises(ValueError, match="example 1: the truth names 'witty', which is not in the text"):
        whence.evaluate(sst2, rows, ["leave_one_out"], ["plausibility"])

    picture = np.asarray(zoo.examples("digits", 1)[0].input)
    Image.fromarray(picture).save(tmp_path / "digit.png")
    Image.fromarray((picture > 100).astype(np.uint8) * 255).save(tmp_path / "ink.png")
    table = tmp_path / "pictures.csv"
    table.write_text("image,truth\ndigit.png,ink.png\n")
    assert read(table)[2] == [tmp_path / "ink.png"]
    digits = whence.load("digits")
    [value] = whence.evaluate(digits, table, ["gae"], ["localisation(measure='map')"]).values[0, 0]
    a = whence.explain(digits, picture, "gae")
    assert value == whence.score(digits, a, "localisation(measure='map')", truth=picture > 100).value


@pytest.mark.parametrize("truth", ["x" * 5000, {3: "a", "b": "c"}])
def test_a_long_or_odd_truth_is_refused_in_one_short_line(truth: Any, sst2: whence.Subject) -> None:
    with pytest.raises(ValueError, match="the truth") as error:
        named(sst2.encode(TEXT), truth)
    assert len(str(error.value)) < 400 and "\n" not in str(error.value)
