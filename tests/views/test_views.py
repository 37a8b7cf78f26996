"""Views of results: plain text, the coloured terminal, HTML, figures, and the heat map of a picture."""

import base64
import hashlib
import html
import io
import math
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from pages import Page
from results_by_hand import (
    attributed,
    comparison,
    encoded,
    generated_example,
    pair_example,
    picture_example,
    pieces,
    text_example,
)
from whence.core.geometry import upsample
from whence.core.inputs import Target
from whence.core.results import Attribution, Comparison
from whence.views import colours
from whence.views import text as writing
from whence.views.content.attribution import row_names
from whence.views.content.comparison import scale_note

BLUE, RED = colours.FOR, colours.AGAINST
SIGNED = np.array([0.0, 0.5, 1.0, -1.0, -0.25, 0.125])  # of text_example: [CLS] a mast ##erful film [SEP]


def backgrounds(result: object, width: int = 80) -> dict[str, tuple[int, int, int]]:
    """The background of every piece of text that has one, on a terminal with a few colours: pictures are shades."""
    console = Console(force_terminal=True, color_system="standard", width=width, file=io.StringIO())
    styled = [part for part in console.render(result) if part.style and part.style.bgcolor]
    return {part.text.strip(): tuple(part.style.bgcolor.triplet) for part in styled if part.text.strip()}


def bilinear(grid: np.ndarray, height: int, width: int) -> np.ndarray:
    """A plain transcription: every pixel's centre in units of cells, between the centres of four cells."""
    found = np.zeros((height, width))
    rows, columns = grid.shape
    for i in range(height):
        for j in range(width):
            y = min(max((i + 0.5) * rows / height - 0.5, 0), rows - 1)
            x = min(max((j + 0.5) * columns / width - 0.5, 0), columns - 1)
            top, left = math.floor(y), math.floor(x)
            low, right = min(top + 1, rows - 1), min(left + 1, columns - 1)
            up = grid[top, left] * (1 - x + left) + grid[top, right] * (x - left)
            down = grid[low, left] * (1 - x + left) + grid[low, right] * (x - left)
            found[i, j] = up * (1 - y + top) + down * (y - top)
    return found


# --- the heat map ---------------------------------------------------------------------------------------------------


def test_upsampling_does_not_align_corners():
    np.testing.assert_allclose(upsample(np.array([[0.0, 1.0]]), 1, 4), [[0, 0.25, 0.75, 1]])
    np.testing.assert_allclose(upsample(np.array([[0.0], [1.0]]), 4, 1), [[0], [0.25], [0.75], [1]])


@pytest.mark.parametrize("size", [(8, 12), (7, 5), (2, 3), (1, 1), (3, 40)])
def test_the_heat_map_is_bilinear(size):
    a = picture_example(image=np.zeros((*size, 3), dtype=np.uint8))
    assert a.heatmap().shape == size
    np.testing.assert_allclose(a.heatmap(), bilinear(a.scores[1:].reshape(2, 3), *size))


def test_special_tokens_and_text_are_not_on_the_heat_map():
    a = picture_example(text="a yellow moon")
    others = replace(a, scores=np.where([s == "image" for s in a.streams] & ~a.special, a.scores, 99.0))
    np.testing.assert_array_equal(a.heatmap(), others.heatmap())


def test_the_heat_map_goes_back_to_the_original():
    a = picture_example()
    back = a.heatmap(original=True)
    assert back.shape == (10, 20)
    np.testing.assert_allclose(back[1:9, 4:16], a.heatmap())  # the box has as many pixels as the picture
    back[1:9, 4:16] = 0
    assert not back.any()


def test_a_box_that_is_larger_than_the_original_is_cut():
    a = picture_example(box=(-5.0, -3.0, 25.0, 13.0))  # the picture was padded: 30 x 16 around 20 x 10
    full = upsample(a.scores[1:].reshape(2, 3), 16, 30)
    np.testing.assert_allclose(a.heatmap(original=True), full[3:13, 5:25])


def test_generated_rows_have_a_heat_map_each():
    a = picture_example()
    x = replace(a.input, generated=(0, 0))
    scores = np.stack([a.scores, -2 * a.scores])
    rows = Attribution(scores, x, "lrp", a.target, [1.0, 2.0], axes=("generated", "feature"))
    np.testing.assert_allclose(rows.heatmap(), np.stack([a.heatmap(), -2 * a.heatmap()]))


@pytest.mark.parametrize(
    ("a", "original", "message"),
    [
        (text_example(), False, r"no Input\.grid"),
        (picture_example(grid=None), False, r"no Input\.grid"),
        (picture_example(image=None), False, r"Input\.image is None"),
        (picture_example(box=None), True, r"needs Input\.box and Input\.size"),
        (picture_example(grid=(3, 3)), False, "the grid of 3 x 3 needs as many image features, got 6"),
    ],
)
def test_a_heat_map_that_cannot_be_drawn_says_why(a, original, message):
    with pytest.raises(ValueError, match=message):
        a.heatmap(original)


# --- plain text -----------------------------------------------------------------------------------------------------


def test_text_says_what_is_explained_and_what_is_not():
    a = text_example(scores=SIGNED, output=2.5, base=1.0, residual=1.125, notes=("cut to 512 tokens",))
    lines = str(replace(a, target=Target(name="good", predicted=True))).splitlines()
    assert lines[:7] == [
        "method    lrp(rules='ah')",
        "target    logit of 'good', as the model predicts",
        "f(x)      2.5",
        "base      1",
        "residual  1.125 (39.13% of the sum of |scores|)",
        "scale     largest |score| 1",
        "note      cut to 512 tokens",
    ]
    assert lines[8:] == [
        "[CLS]      a   mast  ##erful   film  [SEP]",
        "    0  +0.50  +1.00    -1.00  -0.25  +0.12",
    ]


def test_a_note_of_input_and_attribution_is_said_once():
    a = text_example()
    noted = replace(a, input=replace(a.input, notes=("cut",)), notes=("cut", "guessed"))
    assert [line for line in str(noted).splitlines() if line.startswith("note")] == [
        "note      cut",
        "note      guessed",
    ]


def test_scores_that_are_no_shares_have_no_residual():
    text = str(text_example(base=None, residual=None))
    assert "residual  none" in text
    assert "base" not in text


@pytest.mark.parametrize("example", [text_example, generated_example, picture_example])
def test_zeros_are_not_shown_as_equal_scores(example):
    a = example()
    zero = replace(a, scores=np.zeros_like(a.scores))
    assert "all scores are 0" in str(zero)
    assert "all scores are 0" in zero.to_html()
    assert "all scores are 0" not in str(a)
    assert not backgrounds(zero)
    assert "style" not in " ".join(str(given) for tag, given in Page(zero.to_html()).elements if tag in ("b", "td"))


def test_a_score_that_is_not_zero_is_not_written_as_zero():
    a = text_example(scores=np.array([0.0, 1e-9, 1.0, -1e-9, 0, 0]))
    assert str(a).splitlines()[-1].split() == ["0", "+0.00", "+1.00", "-0.00", "0", "0"]


@pytest.mark.parametrize(
    ("largest", "written"),
    [(1234.5, "+1234"), (12.345, "+12.3"), (0.0012345, "+0.00123"), (1e-7, "+1.00e-07"), (1e9, "+1.00e+09")],
)
def test_scores_keep_three_digits(largest, written):
    assert writing.signed(largest, largest) == written


def test_scores_that_are_not_finite_are_said():
    a = text_example(scores=np.array([np.nan, np.inf, -np.inf, 0.5, 0, 0]))
    text = str(a)
    assert "3 of 6 scores are not finite" in text
    assert "largest |score| 0.5" in text
    assert text.splitlines()[-1].split() == ["nan", "inf", "-inf", "+0.500", "0", "0"]
    assert "3 of 6 scores are not finite" in a.to_html()


def test_long_texts_wrap_with_every_score_below_its_token():
    text = " ".join(f"word{i}" for i in range(60))
    a = attributed(encoded([(f"word{i}", "text", False, i, (0, 0), "text") for i in range(60)], {"text": text}))
    lines = str(a).splitlines()[7:]
    assert max(map(len, lines)) <= 100
    shown = []
    for names, scores in zip(lines[::2], lines[1::2], strict=True):
        ends = [found.end() for found in re.finditer(r"\S+", names)]
        assert ends == [found.end() for found in re.finditer(r"\S+", scores)]
        shown += list(zip(names.split(), scores.split(), strict=True))
    assert shown == [(name, f"{score:+.2f}") for name, score in zip(a.features, a.scores, strict=True)]


def test_wide_letters_keep_their_scores_below_them():
    lines = str(attributed(encoded(pieces("电影 好"), {"text": "电影 好"}), scores=np.array([1.0, -1.0]))).splitlines()
    assert lines[-2:] == [" 电影     好", "+1.00  -1.00"]


def test_right_to_left_words_stand_beside_their_scores():
    a = attributed(encoded(pieces("סרט טוב"), {"text": "סרט טוב"}), scores=np.array([1.0, -0.5]))
    assert [line.split() for line in str(a).splitlines()[-2:]] == [["+1.00", "סרט"], ["-0.50", "טוב"]]


def test_text_holds_no_control_characters(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    odd = "\x1b[31mred\x00 \u202eevil \ud800"
    a = attributed(encoded(pieces(odd), {"text": odd}), notes=(odd,), target=Target(name=odd))
    for text in (str(a), str(Comparison((a,)))):
        assert all(c.isprintable() or c == "\n" for c in text)
        assert r"\x1b[31" in text
        assert r"\ud800" in text


def test_markup_in_a_token_is_shown_as_it_is():
    text = "[bold] [/red] :smile:"
    a = attributed(encoded([(word, "text", False, i, (0, 0), "text") for i, word in enumerate(text.split())], {}))
    assert str(a).splitlines()[-2].split() == text.split()
    assert ":smile:" in str(Comparison((a,)))


def test_pairs_show_both_texts():
    lines = str(pair_example()).splitlines()
    first, second = lines.index("text"), lines.index("pair")
    assert lines[first + 1].split() == ["[CLS]", "is", "it", "wort", "##h", "watc", "##hing"]
    assert lines[second + 1].split() == ["watc", "##hing", "pain", "##t", "drie", "##s", "[SEP]"]


def test_generated_text_shows_for_each_row_what_it_saw():
    a = generated_example()
    blocks = str(a).split("\n\n")[1:]
    assert len(blocks) == 3
    assert blocks[0].splitlines()[0] == "1. Pari (log-probability of 'Pari')"
    assert blocks[0].splitlines()[3].split() == ["the", "capi", "##tal", "is"]
    assert "continuation" not in blocks[0]
    assert blocks[2].splitlines()[-2].split() == ["Pari", "##s"]
    assert f"f(x) {a.output[2]:.4g} · base 0 · residual 0.1 (" in blocks[2]
    assert f"largest |score| {np.abs(a.scores[2]).max():.4g}" in blocks[2]


def test_rows_keep_their_names_when_words_are_merged():
    a = generated_example()
    assert row_names(a) == row_names(a.words()) == ["Pari", "##s", "!"]
    assert "target  log-probability of 3 generated tokens, one row each" in str(a)


def test_a_picture_is_shown_as_a_grid_with_its_strongest_patches():
    a = picture_example()
    text = str(replace(a, scores=np.array([0.3, 1.0, 0.0, -1.0, 0.05, 0.31, -0.2])))
    assert "\n  ██  ##\n  ··▒▒--\n" in text
    assert "strongest patch 0,0 +1.00, patch 0,2 -1.00, patch 1,1 +0.31, patch 1,2 -0.20\n" in text
    assert "█ 0.75" in text
    assert "# 0.75" in text
    assert text.endswith("[CLS]\n+0.30")


def test_an_image_without_a_grid_is_shown_as_a_list():
    a = picture_example(grid=None)
    assert "patch 1,2" in str(a)
    assert "patch 1,2" in a.to_html()


def test_a_grid_without_its_picture_is_still_shown():
    a = picture_example(image=None)
    assert "strongest" in str(a)
    [(photo, shown)] = Page(a.to_html()).pictures()
    assert (photo == 255).all() and not (shown == 255).all()


# --- the coloured terminal ------------------------------------------------------------------------------------------


def test_the_terminal_shows_for_in_blue_and_against_in_red():
    shown = backgrounds(text_example(scores=SIGNED))
    assert set(shown) == {"a", "mast", "##erful", "film", "[SEP]"}
    assert shown["mast"] == BLUE
    assert shown["##erful"] == RED
    half = [round((grey + blue) / 2) for grey, blue in zip(colours.GREY, BLUE, strict=True)]
    np.testing.assert_allclose(shown["a"], half, atol=1)
    assert shown["film"][0] > shown["film"][2]


def test_special_tokens_are_dimmed():
    console = Console(force_terminal=True, color_system="truecolor", file=io.StringIO())
    dim = {part.text for part in console.render(text_example(scores=SIGNED)) if part.style and part.style.dim}
    assert {"[CLS]", "[SEP]"} <= dim
    assert not {"a", "mast", "film"} & dim


def test_the_terminal_wraps_to_its_width():
    console = Console(force_terminal=True, width=30, file=io.StringIO())
    lines = console.render_lines(text_example("a masterful film with one great actor"), pad=False)
    assert max(sum(len(part.text) for part in line) for line in lines) <= 30


# --- HTML -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", [text_example, pair_example, generated_example, picture_example, comparison])
def test_a_page_is_well_formed_and_needs_nothing_else(example):
    result = example()
    page = result.to_html()
    assert html.escape(page) in result._repr_html_()
    parsed = Page(page)
    assert [tag for tag, _ in parsed.elements if tag in ("script", "link", "iframe", "object")] == ["script"]
    assert not re.search(r"https?:|@import|url\((?!data:image/)", page.replace("http://www.w3.org/2000/svg", ""))
    script = page.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = [given["content"] for given in parsed.find("meta") if "http-equiv" in given]
    assert policy == [
        f"default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    ]
    for _, given in parsed.elements:
        assert not {"href", "srcset"} & set(given)
        assert given.get("src", "data:image/png;").startswith("data:image/png;")
    words = " ".join(parsed.texts)
    assert all(word in words for word in ("f(x)", "residual", "against", "largest |score|"))


def test_everything_on_a_page_is_escaped():
    evil = "<script>alert(1)</script>\"'&"
    x = encoded([(evil, "text", False, 0, (0, 1), evil), ("b", "text", False, 1, (0, 1), "pair")], {evil: evil})
    first = attributed(x, notes=(evil,), method=evil, target=Target(name=evil))
    generated = replace(
        attributed(replace(x, generated=(1,))),
        scores=np.ones((1, 2)),
        axes=("generated", "feature"),
        visible=None,
        output=[1],
        residual=[0],
        target=(Target(name=evil),),
    )
    picture = picture_example()
    named = replace(picture, input=replace(picture.input, features=(evil,) * 7), method=evil)
    for result in (first, generated, named, Comparison((first,)), Comparison((generated,)), Comparison((named,))):
        page = result.to_html()
        assert page.count("<script") == 1
        assert evil in " ".join(Page(page).texts) + str(Page(page).find("i"))


def test_a_page_can_be_written_whatever_the_text():
    odd = "\ud800 \x00 \x1b"
    page = attributed(encoded(pieces(odd), {"text": odd}), notes=(odd,)).to_html()
    assert page.encode("utf-8")
    assert r"\ud800" in page
    assert "\x00" not in page


def test_tokens_tell_their_score_and_colour():
    page = Page(text_example(scores=SIGNED).to_html())
    tokens = [given for given in page.find("span") if "title" in given]
    pieces, words = tokens[:6], tokens[6:]
    assert [given["title"] for given in pieces] == ["0", "0.5", "1", "-1", "-0.25", "0.125"]
    assert [given["title"] for given in words] == ["0", "0.5", "0", "-0.25", "0.125"]
    shares = [given.get("style") for given in pieces]
    assert shares == [None, "--s:0.5", "--s:1", "--s:-1", "--s:-0.25", "--s:0.125"]
    assert [given.get("style") for given in words] == [None, "--s:1", None, "--s:-0.5", "--s:0.25"]
    assert len(page.find("span", "special")) == 4
    style = text_example().to_html().partition("</style>")[0]
    assert f"rgb({' '.join(map(str, BLUE))} / calc(var(--s) * {colours.OPACITY:.2g}))".replace("0.65", ".65") in style
    assert f"rgb({' '.join(map(str, RED))} / calc(var(--s) * -{colours.OPACITY:.2g}))".replace("0.65", ".65") in style


@pytest.mark.parametrize(
    ("text", "direction"), [("סרט טוב", "rtl"), ("שלום good", "rtl"), ("good סרט", "ltr"), ("123", "ltr")]
)
def test_texts_run_in_their_own_direction(text, direction):
    page = Page(attributed(encoded(pieces(text), {"text": text})).to_html())
    assert {given["dir"] for given in page.find("div", "tokens")} == {direction}
    assert all(given["dir"] == "auto" for given in page.find("b"))


def test_generated_text_is_a_table_that_marks_what_was_hidden():
    a = generated_example()
    page = Page(a.to_html())
    assert len(page.find("th", "name")) == len(a.scores)
    assert len(page.find("th", "column")) == len(a.features)
    assert len(page.find("td", "hidden")) == (~a.visible).sum()
    shares = [
        float(given["style"].removeprefix("--s:")) for given in page.find("td") if "--s:" in given.get("style", "")
    ]
    np.testing.assert_allclose(shares, a.scores[a.visible] / np.abs(a.scores).max(), rtol=0.01)
    assert [given["data-row"] for given in page.find("span") if "data-row" in given] == ["0", "1", "2"]
    assert "could not be seen" in " ".join(page.texts)


def test_a_picture_is_shown_with_its_scores_over_it():
    a = picture_example(rows=2, columns=2)
    a = replace(a, scores=np.array([9.0, 1.0, 0.0, 0.0, -1.0]))
    page = Page(a.to_html())
    [shown] = page.pictures()
    np.testing.assert_array_equal(shown[0][18::37, 18::37], a.input.image)  # enlarged, each pixel to a square
    top, bottom = shown[1][0, 0].astype(int), shown[1][-1, -1].astype(int)
    assert top[2] > top[0] + 50  # blue: for
    assert bottom[0] > bottom[2] + 50  # red: against
    np.testing.assert_array_equal(shown[1][0, -1], shown[0][0, -1])  # neither: the picture's own colour
    cells = [given["title"] for given in page.find("i") if "title" in given]
    assert cells == ["patch 0,0: 1", "patch 0,1: 0", "patch 1,0: 0", "patch 1,1: -1"]


def test_patches_whose_scores_are_not_finite_are_grey():
    a = picture_example()
    broken = replace(a, scores=np.array([0.0, np.inf, np.nan, 0.0, -np.inf, 0.0, 1.0]))
    [(photo, shown)] = Page(broken.to_html()).pictures()
    greyer = np.ptp(shown, axis=-1) < np.ptp(photo, axis=-1)
    assert greyer[:148, :296].mean() > 0.9 and greyer[148:, :148].mean() > 0.9
    np.testing.assert_array_equal(shown[:70, 300:], photo[:70, 300:])  # the neighbour of a broken patch scores 0


# --- comparisons ----------------------------------------------------------------------------------------------------


def test_a_comparison_prints_raw_numbers_and_what_each_column_leaves():
    c = comparison()
    rows = {line.split()[0]: line.split()[1:] for line in str(c).splitlines() if line}
    assert rows["feature"] == ["lrp(rules='ah')", "attention"]
    assert rows["mast"] == [writing.writing(a.signed)(a.scores[2], writing.largest(a.scores)) for a in c]
    assert rows["sum"] == [f"{a.scores.sum():.4g}" for a in c]
    assert rows["residual"] == ["0.1", "none"]
    assert rows["largest"][1:] == [f"{np.abs(a.scores).max():.4g}" for a in c]
    assert "own scale" in str(c)


def test_a_comparison_tells_each_scale():
    c = comparison()
    largest = float(np.abs(c[0].scores).max())
    note = scale_note(c)
    assert "own scale" in note
    assert f"lrp(rules='ah') {largest:.4g}" in note
    assert f"attention {20 * largest:.4g}" in note


def test_every_column_of_a_comparison_is_coloured_on_its_own_scale():
    a = text_example(scores=SIGNED)
    c = Comparison((a, replace(a, method="large", scores=a.scores * 1000)))
    shown = backgrounds(c)
    assert shown["+1.00"] == shown["+1000"] == BLUE
    page = Page(c.to_html())
    assert len([1 for given in page.find("b") if given.get("style") in ("--s:1", "--s:-1")]) == 4
    cells = " ".join(given.get("style", "none") for given in page.find("td"))
    assert "--s:1 --s:1 --s:-1 --s:-1" in cells


def test_a_method_that_gave_only_zeros_is_named_in_a_comparison():
    a = text_example()
    c = Comparison((a, replace(a, method="dead", scores=np.zeros(6))))
    assert "dead: all scores are 0" in str(c)
    assert "dead: all scores are 0" in c.to_html()


def test_a_comparison_of_many_methods_loses_nothing():
    a = text_example()
    names = [f"integrated_gradients(steps={n}, baseline='mask')" for n in range(8)]
    text = str(Comparison(tuple(replace(a, method=name) for name in names)))
    header = next(line for line in text.splitlines() if line.startswith("feature"))
    assert all(name in header for name in names)


def test_generated_text_and_pictures_are_compared_too():
    a, b = generated_example(), picture_example(text="a moon")
    tables = str(Comparison((a, replace(a, method="attention"))))
    assert [line for line in tables.splitlines() if line[1:3] == ". "] == ["1. Pari", "2. ##s", "3. !"]
    c = Comparison((b, replace(b, method="attention")))
    assert str(c).count("strongest") == 2
    assert len(Page(c.to_html()).find("div", "photo")) == 3


# --- figures --------------------------------------------------------------------------------------------------------


def _drawn(a: Attribution) -> object:
    figure = a.plot()
    figure.savefig(io.BytesIO(), format="svg")
    return figure


def test_tokens_are_drawn_as_bars():
    axes = _drawn(text_example(scores=SIGNED)).axes[0]
    assert [bar.get_width() for bar in axes.patches] == SIGNED.tolist()
    assert [label.get_text() for label in axes.get_yticklabels()] == ["[CLS]", "a", "mast", "##erful", "film", "[SEP]"]
    np.testing.assert_allclose(axes.patches[2].get_facecolor()[:3], np.array(BLUE) / 255)
    np.testing.assert_allclose(axes.patches[3].get_facecolor()[:3], np.array(RED) / 255)
    top, bottom = axes.get_ylim()
    assert top > bottom  # the first token is on top


def test_a_figure_says_what_every_view_says():
    title = text_example(output=2.5, residual=0.5).plot().get_suptitle()
    assert "f(x): 2.5" in title
    assert "residual: 0.5" in title
    assert "largest |score|" in title


def test_dollars_are_not_read_as_formulas():
    text = "$x_ $ ^{"
    _drawn(attributed(encoded(pieces(text), {"text": text}), notes=(text,), target=Target(name=text)))


def test_generated_text_is_drawn_as_a_matrix():
    a = generated_example()
    axes = _drawn(a).axes[0]
    shown = axes.images[0].get_array()
    np.testing.assert_array_equal(shown.mask, ~a.visible)
    np.testing.assert_allclose(shown.filled(0), a.scores)
    limit = np.abs(a.scores).max()
    assert axes.images[0].get_clim() == (-limit, limit)
    assert axes.get_yticklabels()[0].get_text() == f"Pari   f(x) {a.output[0]:.4g}, residual 0.1"


def test_pictures_are_drawn_under_their_scores():
    a = picture_example()
    figure = _drawn(a)
    assert len(figure.axes) == 1
    assert figure.axes[0].images[0].get_array().shape == (8 * 37, 12 * 37, 3)  # every pixel as a square
    assert f"not on the picture: [CLS] {a.scores[0]:.4g}" in figure.get_suptitle()
    both = _drawn(picture_example(text="a moon"))
    assert len(both.axes) == 2
    assert len(both.axes[1].patches) == 3


def test_a_missing_matplotlib_is_said_in_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"pip install whence\[plot\]"):
        text_example().plot()
