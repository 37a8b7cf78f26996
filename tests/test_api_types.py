"""The types that the verbs promise, for mypy (which checks this file with the library) and while they run.

One input in, one result out; several inputs in, a list out. `assert_type` is mypy's at checking time and does nothing
at run time, where `isinstance` looks at the same promise.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

import whence
from whence.measure.call_types import Column, RawInput

TEXTS = ["a masterful film", "an utterly dull one"]


@pytest.fixture(scope="module")
def planted() -> whence.Subject:
    return whence.load("planted")


def test_explain(planted: whence.Subject) -> None:
    one = whence.explain(planted, TEXTS[0], "gae")
    assert_type(one, whence.Attribution)
    assert isinstance(one, whence.Attribution)
    several = whence.explain(planted, TEXTS, "gae", ["positive", 0])
    assert_type(several, list[whence.Attribution])
    assert [a.target.name for a in several if isinstance(a.target, whence.Target)] == ["positive", "negative"]
    parts = [{"text": text} for text in TEXTS]
    assert_type(whence.explain(planted, parts, "gae"), list[whence.Attribution])
    part = whence.explain(planted, {"text": TEXTS[0]}, target="log_odds('positive')", seed=1)
    assert_type(part, whence.Attribution)
    assert part.target != one.target


def test_pictures() -> None:
    digits, pixels = whence.load("digits"), whence.zoo.examples("digits", 1)[0].input
    array: npt.NDArray[np.uint8] = np.asarray(pixels, np.uint8)
    of_array = whence.explain(digits, array, "gradient")
    assert_type(of_array, whence.Attribution)
    of_picture = whence.explain(digits, Image.fromarray(array), "gradient")
    assert_type(of_picture, whence.Attribution)
    np.testing.assert_allclose(of_array.scores, of_picture.scores, atol=1e-6)
    arrays = [array, array]
    assert_type(whence.explain(digits, arrays, "gradient"), list[whence.Attribution])
    raws: list[RawInput] = [array, Image.fromarray(array)]
    of_both = whence.explain(digits, raws, "gradient")
    assert_type(of_both, list[whence.Attribution])
    assert len(of_both) == 2


def test_compare_maps_conservation(planted: whence.Subject) -> None:
    assert_type(whence.compare(planted, TEXTS[0], ["gae", "random"]), whence.Comparison)
    assert_type(whence.compare(planted, TEXTS, ["gae", "random"]), list[whence.Comparison])
    assert_type(whence.attention_maps(planted, TEXTS[0]), whence.AttentionMaps)
    assert_type(whence.attention_maps(planted, TEXTS), list[whence.AttentionMaps])
    assert_type(whence.conservation(planted, TEXTS[0]), whence.Conservation)
    assert_type(whence.conservation(planted, TEXTS), list[whence.Conservation])
    assert isinstance(whence.compare(planted, TEXTS[0], ["gae"]), whence.Comparison)
    assert [type(one) for one in whence.attention_maps(planted, TEXTS)] == [whence.AttentionMaps] * 2


def test_measuring(planted: whence.Subject) -> None:
    found = whence.explain(planted, TEXTS, "gae")
    assert_type(whence.score(planted, found[0], "plausibility", truth="masterful"), whence.Score)
    assert_type(whence.score(planted, found, "plausibility", truth=["masterful", [0, 1, 1, 0]]), whence.Score)
    assert_type(whence.evaluate(planted, TEXTS, ["gae"], ["auac"]), whence.Scoreboard)
    assert_type(whence.arbitrate(planted, TEXTS[0], ["gae", "random"]), whence.Arbitration)


@pytest.mark.parametrize("kind", ["list", "series", "column", "array", "objects"])
def test_several_inputs_are_a_list_in_many_forms(kind: str, planted: whence.Subject) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS, "label": ["positive", "negative"]}, index=[7, 3])
    forms = {
        "list": TEXTS,
        "series": pandas.Series(TEXTS),
        "column": frame["text"],
        "array": np.array(TEXTS),
        "objects": np.array(TEXTS, object),
    }
    expected = whence.explain(planted, TEXTS, "gae", ["positive", "negative"])
    for target in (["positive", "negative"], frame["label"]):
        assert whence.explain(planted, forms[kind], "gae", target) == expected
    assert len(whence.compare(planted, forms[kind], ["gae", "random"])) == 2
    assert whence.evaluate(planted, forms[kind], ["gae"], ["auac"]).values.shape == (1, 1, 2)
    assert len(whence.arbitrate(planted, forms[kind], ["gae", "random"]).explanations) == 2
    if kind == "column":
        labelled = whence.arbitrate(planted, frame, ["gae", "random"])
        assert [a.target.name for a in labelled.explanations] == ["positive", "negative"]  # type: ignore[union-attr]


def test_a_tuple_is_one_input(planted: whence.Subject, tmp_path: Path) -> None:
    column: Column = pytest.importorskip("pandas").Series(TEXTS)
    assert_type(whence.explain(planted, column, "gae"), list[whence.Attribution])
    texts: npt.NDArray[np.str_] = np.array(TEXTS)
    assert_type(whence.explain(planted, texts, "gae"), list[whence.Attribution])
    dates = whence.load("dates")
    pair = whence.explain(dates, ("3 March 2014", "2014"), "gae")
    assert_type(pair, whence.Attribution)
    assert isinstance(pair, whence.Attribution) and pair.axes == ("generated", "feature")
