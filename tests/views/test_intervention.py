"""An intervention in every medium: the prediction as it is beside the one with words ignored, also after loading."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whence
from results_by_hand import generated_example, text_example
from whence.core.interventions import Intervention, Prediction, ignored_words

BOTH = (Prediction("negative", 0.888, 0.002), Prediction("positive", 0.112, 0.998))


def intervened(a: Any, without: Any, predictions: Any = (BOTH,)) -> Any:
    """The result with its third and fourth feature ignored."""
    item = replace(a.input, ignored=(2, 3))
    return replace(a, input=item, intervention=Intervention(ignored_words(item), without, predictions))


def test_every_medium_shows_both_predictions_side_by_side(tmp_path: Path) -> None:
    a = intervened(text_example(), -0.956)  # [CLS] a mast ##erful film [SEP]
    text = str(a)
    assert "ignored" in text and "‘masterful’: attention to it is closed in every pass" in text
    assert "negative is predicted instead of positive" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["prediction", "negative", "positive"] in rows and ["negative", "88.8%", "0.2%"] in rows
    page = a.to_html()
    assert '<section class="intervention"' in page and "ignoring ‘masterful’" in page
    assert page.count('class=" ignored"') + page.count('class="joined ignored"') >= 2
    drawn = a.plot("intervention")
    said = [text.get_text() for text in drawn.axes[0].texts]
    assert {"88.8%", "0.2%", "11.2%", "99.8%"} == set(said)
    a.write(tmp_path / "a.pdf", kind="intervention")
    a.save(tmp_path / "a.json")
    assert whence.Attribution.load(tmp_path / "a.json") == a
    assert whence.Attribution.load(tmp_path / "a.json").words().input.ignored == (2,)
    compared = whence.Comparison((a, replace(a, method="other")))
    assert str(compared).count("88.8%") == 1 and compared.to_html().count('<section class="intervention"') == 1


def test_generated_text_has_a_line_per_token_and_other_results_have_none() -> None:
    a = generated_example()
    count = len(a.scores)
    text = str(intervened(a, np.arange(count) + 0.5, (BOTH,) * count))
    assert text.count("likeliest negative") == count and "f(x) 0.5, likeliest negative" in text
    assert "as it is" not in str(a) and '<section class="intervention' not in a.to_html()
    for wrong, said in (
        (text_example(), "no words were ignored"),
        (intervened(text_example(), 0.0, ()), "probabilities"),
    ):
        with pytest.raises(ValueError, match=said):
            wrong.plot("intervention")
    same = Prediction("positive", 0.6, 0.7)
    assert "positive is predicted either way" in str(intervened(text_example(), 0.0, ((same,),)))
