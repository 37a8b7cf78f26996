"""Kinds of figures: what each draws, which results have it, and that letters stay letters in files."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from results_by_hand import (
    attributed,
    comparison,
    encoded,
    every_result,
    generated_example,
    maps_example,
    picture_example,
    pieces,
    scoreboard_example,
    text_example,
)
from whence.core import display
from whence.core.inputs import Input
from whence.core.results import Attribution, Comparison
from whence.views import colours
from whence.views.figures.flow import inches, lines_of
from whence.views.figures.forces import steps_of
from whence.views.figures.heads import kept

SCORES = np.array([0.0, 0.5, 2.0, -1.0, -0.25, 0.125])  # of text_example: [CLS] a mast ##erful film [SEP]


def texts(figure: Any) -> list[str]:
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def long_example(count: int) -> Attribution:
    words = " ".join(f"w{n}" for n in range(count))
    return attributed(encoded(pieces(words), {"text": words}), np.linspace(-1, 2, count))


# --- names ----------------------------------------------------------------------------------------------------------


def test_every_kind_of_every_result_is_drawn_or_refused_in_one_sentence(tmp_path: Path) -> None:
    drawn = set()
    for name, result in every_result().items():
        for kind in display.figure.kinds(type(result)):
            try:
                result.write(tmp_path / "a.svg", kind=kind)
                drawn.add((type(result).__name__, kind))
            except ValueError as error:
                assert "\n" not in str(error) and "draw '" in str(error), (name, kind)
    assert {kind for of, kind in drawn if of == "Attribution"} == {*display.figure.kinds(Attribution)} - {
        "intervention"
    }  # tests of interventions draw it
    assert {kind for of, kind in drawn if of == "Comparison"} == {"bars", "text", "agreement"}
    assert {("AttentionMaps", "heads"), ("AttentionSelection", "model"), ("Scoreboard", "curves")} <= drawn


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("waterfal", "a figure of the type Attribution is not 'waterfal'; did you mean 'waterfall'"),
        ("sunburst", "is not 'sunburst'; there is bars, force, intervention, matrix, picture, text, waterfall"),
        ("bars(most=0)", "most takes a whole number from 1 to 1,000, not 0"),
        ("bars(colour=1)", "the figure 'bars' has no option 'colour'; there is most, row, width"),
        ("text(width=3)", "width takes a number from 40 to 1,000, not 3"),
        ("bars(row=1)", "row names a generated token, and these scores have no rows"),
        ("picture", "needs a picture, and this input has none"),
        ("matrix", "a row per generated token"),
    ],
)
def test_what_is_no_kind_is_refused_in_one_sentence(kind: str, message: str, tmp_path: Path) -> None:
    for call in (text_example().plot, lambda kind: text_example().write(tmp_path / "a.png", kind=kind)):
        with pytest.raises(ValueError, match=re.escape(message)):
            call(kind)


def test_a_kind_goes_with_figures_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a kind of figure goes with \.png, \.svg, \.pdf, not with 'a.html'"):
        text_example().write(tmp_path / "a.html", kind="text")
    with pytest.raises(ValueError, match="the figure 'text' of the type Attribution takes no options of pictures"):
        picture_example(text="a moon").plot("text", clip=99)


@pytest.mark.parametrize("kind", ["waterfall", "force"])
def test_scores_without_a_base_have_no_way_to_f(kind: str) -> None:
    unsigned = comparison()[1]
    with pytest.raises(ValueError, match=r"leads from the base to f\(x\), and the scores of attention .*draw 'bars'"):
        unsigned.plot(kind)


# --- waterfall, force, bars -----------------------------------------------------------------------------------------


def test_a_waterfall_leads_from_the_base_to_f() -> None:
    a = text_example(scores=SCORES, base=1.0, output=1.0 + SCORES.sum() + 0.1, residual=0.1)
    axes = a.plot("waterfall(most=3)").axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["base", "mast", "erful", "a", "3 others", "residual", "f(x)"]
    ends = [(bar.get_xy()[0, 0], bar.get_xy()[2, 0]) for bar in axes.patches]
    np.testing.assert_allclose(ends, [(1, 3), (3, 2), (2, 2.5), (2.5, 2.375), (2.375, 2.475)])
    assert ends[-1][1] == pytest.approx(a.output)
    np.testing.assert_allclose(axes.patches[1].get_facecolor()[:3], np.array(colours.AGAINST) / 255)


def test_steps_always_add_up_to_f() -> None:
    for a in (text_example(), long_example(512), generated_example()):
        row = 1 if a.scores.ndim == 2 else None
        base, output = (value if row is None else value[row] for value in (a.base, a.output))
        steps = steps_of(a, row, 5, "waterfall")
        assert len(steps) <= 7 and base + sum(step.value for step in steps) == pytest.approx(output)


def test_a_force_figure_pushes_towards_f() -> None:
    a = text_example(scores=SCORES, output=SCORES.sum(), residual=0.0)
    axes = a.plot("force").axes[0]
    tips = {round(bar.get_xy()[2, 0], 6) for bar in axes.patches}  # where arrows point to
    largest = max(axes.patches, key=lambda bar: abs(np.ptp(bar.get_xy()[:, 0])))
    assert largest.get_xy()[2, 0] == pytest.approx(a.output) and len(tips) == len(axes.patches) - 1
    assert "mast  +2.00" in texts(axes) and "erful  -1.00" in texts(axes)


def test_long_texts_have_the_strongest_bars_and_one_for_the_rest() -> None:
    axes = long_example(512).plot("bars(most=10)").axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [*(f"w{n}" for n in range(502, 512)), "502 others"]
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(np.linspace(-1, 2, 512).sum())


def test_a_row_of_generated_text_is_chosen_by_its_number() -> None:
    a = generated_example()
    figure = a.plot("bars(row=-1)")
    assert "generated token 2 of 0-2: !" in figure.get_suptitle()
    assert [bar.get_width() for bar in figure.axes[0].patches] == pytest.approx(a.scores[2][a.visible[2]].tolist())
    with pytest.raises(ValueError, match="row 3 is out of range: there are 3 generated tokens"):
        a.plot("waterfall(row=3)")


@pytest.mark.parametrize("kind", ["waterfall", "force", "bars", "text"])
@pytest.mark.parametrize("scores", [np.zeros(6), np.array([np.nan, 1, np.inf, -2, 0, 0.0]), np.full(6, 1e300)])
def test_odd_scores_are_drawn(kind: str, scores: np.ndarray, tmp_path: Path) -> None:
    a = text_example(scores=scores, output=1.0, residual=0.0)
    a.write(tmp_path / "a.png", kind=kind)
    assert ("all scores are 0" in " ".join(texts(a.plot(kind)))) == (not scores.any())


# --- coloured text --------------------------------------------------------------------------------------------------


def passage(text: str) -> Any:
    from whence.views.content.written import passages

    x: Input = encoded(pieces(text), {"text": text})
    return passages(x, range(len(x.features)))[0]


def test_pieces_of_a_word_stand_together_and_lines_break_at_spaces() -> None:
    lines = lines_of(passage("a masterful film"), 1.0)
    assert [[placed.text for placed in line] for line in lines] == [["a", "mast", "erful"], ["film"]]
    first = lines[0]
    assert first[1].left + first[1].width == pytest.approx(first[2].left)
    assert first[0].left + first[0].width < first[1].left


@pytest.mark.parametrize("text", ["x" * 400, "a " * 300, "שלום עולם " * 20, "電影很好看 " * 9, "\u202e\n!"])
def test_no_line_is_wider_than_the_figure(text: str) -> None:
    lines = lines_of(passage(text), 2.0)
    assert all(placed.left >= -1e-6 and placed.left + placed.width <= 2.0 + 1e-6 for line in lines for placed in line)


def test_right_to_left_text_begins_on_the_right() -> None:
    line = lines_of(passage("שלום טוב"), 3.0)[0]
    assert line[0].left > line[-1].left and line[0].left + line[0].width == pytest.approx(3.0)


def test_text_has_the_colour_of_its_score_and_a_line_below_what_is_against() -> None:
    figure = text_example(scores=SCORES).plot("text")
    axes = figure.axes[0]
    strongest = min(axes.patches, key=lambda box: box.get_facecolor()[0])
    np.testing.assert_allclose(strongest.get_facecolor()[:3], 1 - 0.65 * (1 - np.array(colours.FOR) / 255))
    assert len(axes.patches) == 5 and len(axes.lines) == 2  # [CLS] is 0; ##erful and film are against
    assert {"mast", "erful", "film"} <= set(texts(figure))
    unsigned = comparison()[1].plot("text")
    assert not unsigned.axes[0].lines and "underlined" not in " ".join(texts(unsigned))


def test_a_comparison_has_a_row_of_text_per_method_on_its_own_scale() -> None:
    figure = comparison().plot("text")
    assert texts(figure).count("film") == 2 and {"attention", "lrp(rules='ah')"} <= set(texts(figure))
    blues = sorted(box.get_facecolor()[0] for box in figure.axes[0].patches)
    assert blues[0] == pytest.approx(blues[1])  # the strongest of both methods
    narrow, wide = comparison().plot("text(width=60)"), comparison().plot("text(width=180)")
    assert narrow.get_figwidth() == pytest.approx(60 / 25.4) and narrow.get_figheight() > wide.get_figheight()


def test_agreement_is_kendalls_tau_of_what_both_methods_score() -> None:
    a = text_example(scores=np.array([9.0, 1, 2, 3, 4, 9]))
    turned = replace(a, method="turned", scores=np.array([-9.0, -1, -2, -3, -4, 5]))
    swapped = replace(a, method="swapped", scores=np.array([0.0, 2, 1, 3, 4, 0]))
    size = replace(turned, method="size", base=None, residual=None)
    flat = replace(a, method="flat", scores=np.ones(6))
    found = Comparison((a, turned, swapped, size, flat)).agreement()
    np.testing.assert_allclose(found[0], [1, -1, 4 / 6, 1, np.nan])
    with pytest.raises(ValueError, match="agreement is that of several methods"):
        Comparison((a,)).plot("agreement")


# --- attention ------------------------------------------------------------------------------------------------------


def test_lines_between_tokens_are_the_largest_weights_and_say_their_share() -> None:
    maps = maps_example()
    view = maps.view(layer=1, head=0)
    found, share = kept(view, (1, 0), 1)
    weights = maps.matrix(1, 0)
    assert {row: key for row, key, _ in found} == dict(enumerate(weights.argmax(1).tolist()))
    assert share == pytest.approx(weights.max(1).sum() / weights.sum())
    figure = view.plot("heads(lines=1)")
    assert f"the 1 largest weights of every query, {share:.0%} of all attention" in figure.get_suptitle().replace(
        "\n", " "
    )
    assert len(figure.axes[0].collections[0].get_segments()) == 6
    one = maps.plot("heads", layer=1, head=0, query=2)
    assert {row for (_, row), _ in (s.tolist() for s in one.axes[0].collections[0].get_segments())} == {2.0}


def test_the_model_figure_has_all_layers_whatever_was_selected() -> None:
    axes = maps_example().view(layer=0, head=1).plot("model").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["layer 0", "layer 1"]
    over = maps_example(picture_example()).view().plot("matrix")
    assert over.axes[0].images[0].get_array().shape == (1, 7)  # what the special token looks at
    assert maps_example(picture_example()).plot("matrix", query="all").axes[0].images[0].get_array().shape == (7, 7)


def test_512_tokens_stay_usable(tmp_path: Path) -> None:
    a = long_example(512)
    maps = maps_example(a)
    small = replace(maps, weights={("*", "*"): maps.weights[("*", "*")][:1, :1]})
    small.write(tmp_path / "a.svg", kind="heads")
    assert (tmp_path / "a.svg").stat().st_size < 2_000_000
    for kind in ("waterfall", "force", "bars", "text"):
        assert a.plot(kind).get_figheight() < 15


def test_a_board_has_its_curves_alone_or_its_bars_alone() -> None:
    board = scoreboard_example()
    assert len(board.plot("curves").axes) == 1 and len(board.plot("bars").axes) == 2
    with pytest.raises(ValueError, match="no metric of this board has curves"):
        scoreboard_example(curves=None).plot("curves")


def test_what_is_not_told_apart_from_the_best_lies_on_one_ground() -> None:
    from matplotlib.patches import Rectangle

    def grounds(board: Any) -> int:
        patches = board.plot().axes[0].findobj(Rectangle)
        return sum(patch.get_facecolor()[:3] == (0.93, 0.93, 0.93) for patch in patches)

    assert grounds(scoreboard_example()) == 0
    tied = scoreboard_example(values=np.random.default_rng(0).normal(size=(3, 2, 8)))
    assert grounds(tied) >= 2


# --- files and notebooks --------------------------------------------------------------------------------------------


def test_vector_graphics_hold_real_text_and_settings_stay(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    text_example().write(tmp_path / "a.svg", kind="text")
    comparison().write(tmp_path / "b.pdf", kind="text")
    text_example().plot("waterfall").savefig(tmp_path / "c.svg")
    assert ">mast</text>" in (tmp_path / "a.svg").read_text() and ">mast</text>" in (tmp_path / "c.svg").read_text()
    assert b"/FontFile2" in (tmp_path / "b.pdf").read_bytes() and b"/Type3" not in (tmp_path / "b.pdf").read_bytes()
    assert dict(matplotlib.rcParams) == before


def test_figures_are_in_no_registry_and_can_be_pickled() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); from results_by_hand import text_example; " + (
        "text_example().plot(); assert 'matplotlib.pyplot' not in sys.modules"
    )
    support = str(Path(__file__).parent.parent / "support")
    subprocess.run([sys.executable, "-c", code, support], check=True)
    figure = pickle.loads(pickle.dumps(text_example().plot()))
    assert figure._repr_png_()[0].startswith(b"\x89PNG")


def test_letters_that_no_font_has_are_said_once(tmp_path: Path) -> None:
    a = text_example("\U000104b0\U000104b1 \U000104b2 film")
    with pytest.warns(UserWarning, match=r"no font that matplotlib finds has .*\(3 letters in all\)") as caught:
        a.write(tmp_path / "a.png", kind="text")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        a.write(tmp_path / "a.svg", kind="text")
    assert "\U000104b2" in (tmp_path / "a.svg").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("first", ["", "import matplotlib.pyplot as plt", "%matplotlib inline"])
def test_a_notebook_shows_a_figure_once(first: str) -> None:
    import nbclient
    import nbformat

    support = str(Path(__file__).parent.parent / "support")
    code = f"import sys; sys.path.insert(0, {support!r})\nfrom results_by_hand import text_example\n{first}"
    cells = [nbformat.v4.new_code_cell(code), nbformat.v4.new_code_cell("text_example().plot('waterfall')")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = notebook.cells[1].outputs
    assert [output.output_type for output in outputs] == ["execute_result"] and "image/png" in outputs[0].data


def test_the_width_of_a_text_grows_with_its_letters() -> None:
    assert 0 < inches("film") < inches("films") and inches("film", 18) == pytest.approx(2 * inches("film", 9), rel=0.05)


def test_a_token_that_is_a_space_is_shown_between_its_neighbours() -> None:
    from whence.views.content.written import passages

    rows = [(letter, "text", False, n, (n, n + 1), "text") for n, letter in enumerate("a 2")]
    [found] = passages(encoded(rows, {"text": "a 2"}), range(3))
    assert [(piece.text, piece.space) for piece in found.pieces] == [("a", False), ("␣", False), ("2", True)]
