"""An attention sink is shown apart in every medium: its score is written, it has no colour, and scales leave it out."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import whence
from results_by_hand import generated_example, text_example
from whence.core.results import Attribution
from whence.views import colours
from whence.views.content.attribution import colour_scale
from whence.views.content.reading import reading


def with_sink() -> Attribution:
    a = text_example("now he runs home")
    scores = np.array([0.0, 50.0, 0.25, -1.0, 0.5, *[0.0] * 10])[: len(a.features)]
    sinks = np.arange(len(a.features)) == 1
    return replace(a, scores=scores, sinks=sinks, signs=True)


def grounds(result: Attribution) -> set[tuple[int, int, int]]:
    """The colours behind words, from the styles: Rich keeps a style's codes as the first terminal showed them."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=100)
    styles = [part.style for part in console.render(result) if part.style and part.style.bgcolor]
    return {tuple(style.bgcolor.triplet) for style in styles}


def test_scales_leave_the_sink_out() -> None:
    a = with_sink()
    assert colour_scale(a) == 1.0 and colour_scale(replace(a, sinks=None)) == 50.0
    only = replace(a, scores=np.where(a.sinks, 3.0, 0.0))
    assert colour_scale(only) == 3.0  # nothing else has a score


def test_terminal() -> None:
    a = with_sink()
    text = str(a)
    assert "[now]" in text and "sink" in text and "+50" in text
    assert "colours go up to 1, an attention sink has none" in text
    # The score of -1 has the full colour; beside 50 it would be faint.
    assert colours.AGAINST in grounds(a) and colours.AGAINST not in grounds(replace(a, sinks=None))
    assert "sink" not in str(replace(a, sinks=None))


def test_comparison_in_the_terminal() -> None:
    a = with_sink()
    text = str(whence.Comparison((a, replace(a, method="lrp"))))
    assert "now (sink)" in text


def test_page() -> None:
    page, plain = with_sink().to_html(), replace(with_sink(), sinks=None).to_html()
    sink = page[page.index('class=" sink"') :]
    assert "--s" not in sink[: sink.index("</span>")] and "+50" in sink[: sink.index("</span>")]
    assert "--s:-1" in page and "attention sink: a score, but no colour" in page
    assert 'class=" sink"' not in plain and "--s:-1" not in plain
    compared = whence.Comparison((with_sink(), replace(with_sink(), method="lrp"))).to_html()
    assert compared.count('class=" sink"') == 2


def test_generated_rows() -> None:
    a = generated_example()
    seen = np.flatnonzero(a.visible.all(0))
    sinks = np.arange(len(a.features)) == seen[0]
    a = replace(a, scores=np.where(sinks & a.visible, 1e4, a.scores), sinks=sinks)
    page = a.to_html()
    assert "sink" in page and "--s:1e" not in page
    assert "sink" in str(a)
    assert "an attention sink" in a.plot().axes[-1].get_ylabel()


def test_figures() -> None:
    axes = with_sink().plot("bars").axes[0]
    lengths = [bar.get_width() for bar in axes.patches]
    assert max(map(abs, lengths)) == pytest.approx(1.1)  # that of the sink is cut; its number is written
    assert any("sink" in label.get_text() for label in axes.get_yticklabels())
    assert any(text.get_text() == "+50.00" for text in axes.texts)
    for drawn in (with_sink().plot("text"), whence.Comparison((with_sink(),)).plot("text")):
        assert "grey: an attention sink" in " ".join(text.get_text() for text in drawn.axes[0].texts)


def test_numbers_of_a_small_scale_do_not_touch() -> None:
    a = with_sink()
    small = replace(a, scores=np.where(a.sinks, a.scores, np.abs(a.scores) * 2.57e-4))
    drawn = whence.Comparison((small, replace(small, method="lrp"), replace(small, method="gae"))).plot()
    drawn.canvas.draw()
    for axes in drawn.axes:
        low, high = axes.get_xlim()
        ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
        boxes = [label.get_window_extent() for place, label in ticks if low <= place <= high]
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_the_sentence_names_it() -> None:
    assert "‘now’, an attention sink (+50)" in reading(with_sink())


def test_long_notes_are_wrapped_in_figures() -> None:
    a = replace(with_sink(), notes=("word " * 60,))
    assert max(map(len, a.plot().get_suptitle().splitlines())) < 100
