"""The sentences that pages begin with, steps from base to f(x), agreement between methods, sizes of pages."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import kendalltau

from pages import Page
from results_by_hand import attributed, comparison, encoded, generated_example, pieces, text_example
from whence.core.results import Attribution, Comparison
from whence.views.content.reading import agreement_in_words, leads_to_output, reading
from whence.views.content.steps import steps

SIGNED = np.array([0.0, 0.5, 1.0, -1.0, -0.25, 0.125])  # of text_example: [CLS] a mast ##erful film [SEP]


def lead(result: object) -> str:
    page = result.to_html()
    return page.partition('<p class="lead" dir="auto">')[2].partition("</p>")[0].replace("&#39;", "'")


def test_a_page_begins_with_what_was_explained_and_what_speaks_for_and_against_it() -> None:
    a = text_example(scores=SIGNED, output=2.5, residual=0.1)
    said = "lrp(rules='ah') on the logit of 'positive' (f(x) = 2.5): ‘mast’ (+1), ‘a’ (+0.5) and ‘[SEP]’ (+0.125) speak"
    rest = " for it most, ‘##erful’ (-1) and ‘film’ (-0.25) against it"
    assert reading(a) == f"{said}{rest}; 0.1 is left unexplained (3% of the sum of |scores|)."
    words = "‘a’ (+0.5) and ‘[SEP]’ (+0.125) speak for it most, ‘film’ (-0.25) against it"  # masterful: 1 - 1
    assert words in lead(a)
    assert "‘mast’ (+1) speaks for it most; nothing is left" in reading(
        text_example(scores=[0, 0, 1.0, 0, 0, 0], output=1.0, residual=0.0)
    )


def test_a_method_without_signs_is_read_by_sizes() -> None:
    a = text_example(scores=np.abs(SIGNED), base=None, residual=None, method="attention", output=2.0)
    assert (
        "gives most weight to ‘mast’ (35%), ‘##erful’ (35%) and ‘a’ (17%); its scores tell how much, neither"
        in reading(a)
    )


@pytest.mark.parametrize("scores", [np.zeros(6), np.full(6, np.nan), np.full(6, np.inf), np.full(6, 1e300)])
def test_odd_scores_have_a_sentence_and_a_page(scores: np.ndarray) -> None:
    a = text_example(scores=scores, output=1.0, residual=None)
    assert ("all scores are 0" in lead(a)) == (not scores.any())
    assert ("no score is finite but those that are 0" in lead(a)) == (not np.isfinite(scores).all())
    assert all(word not in lead(a) for word in ("nan", "inf"))
    if not np.isfinite(scores).all():
        assert "warning: 6 of 6 scores are not finite" in a.to_html()
    Page(Comparison((a, replace(a, method="other"))).to_html())


def test_a_sum_that_is_not_finite_is_not_read_as_nothing() -> None:
    a = text_example(scores=[0, 0, 0.5, -np.inf, 0, 0], output=1.0, residual=None)
    assert "‘mast’ (+0.5) speaks for it most." in lead(a)  # the word masterful has no finite score


def test_names_from_right_to_left_keep_their_numbers_beside_them() -> None:
    text = "סרט טוב"
    a = attributed(encoded(pieces(text), {"text": text}), [1.0, 0.5])
    assert "\u2068‘סרט’\u2069 (+1) and \u2068‘טוב’\u2069 (+0.5) speak" in reading(a)


def test_generated_text_names_its_strongest_link_and_reads_every_row() -> None:
    a = generated_example()
    row, column = np.unravel_index(np.abs(a.scores).argmax(), a.scores.shape)
    names = ["Pari", "##s", "!"]
    assert f"from ‘{a.features[column]}’ to ‘{names[row]}’ ({a.scores[row, column]:+.3g})" in lead(a)
    rows = [given["data-reading"] for given in Page(a.to_html()).find("tr") if "data-reading" in given]
    assert rows == [reading(a, row) for row in range(3)]
    assert "log-probability of 'Pari'" in rows[0] and "##s" not in rows[0]


# --- steps from base to f(x) ----------------------------------------------------------------------------------------


def test_steps_lead_from_base_to_f_of_x() -> None:
    a = text_example(scores=SIGNED, output=1.5, base=1.0, residual=0.125)
    found = steps(a)
    assert [step.name for step in found] == ["base", "mast", "##erful", "a", "film", "[SEP]", "not explained", "f(x)"]
    assert [step.kind for step in found[:3]] == ["base", "for", "against"]
    assert [step.value for step in found] == pytest.approx([1, 1, -1, 0.5, -0.25, 0.125, 0.125, 1.5])
    assert all(before.end == step.start for before, step in pairwise(found[:-1]))
    page = Page(a.to_html())
    assert [given["class"] for given in page.find("tr") if given.get("class") in ("base", "left", "output")][:3] == [
        "base",
        "left",
        "output",
    ]


def test_weak_features_share_a_step() -> None:
    a = attributed(encoded(pieces(" ".join("abcdefghijklmnopqrstuvwxyz")), {}), np.linspace(1, 2, 26), residual=0.0)
    a = replace(a, output=float(a.scores.sum()))
    found = steps(a)
    assert len(found) == 15 and found[13].name == "14 others" and found[1].name == "z"
    assert sum(step.value for step in found[1:-1]) == pytest.approx(a.output)


@pytest.mark.parametrize(
    "change",
    [{"residual": None, "base": None}, {"residual": 2.0}, {"signs": False}, {"residual": float("nan")}],
)
def test_scores_that_do_not_lead_to_f_of_x_are_no_steps(change: dict) -> None:
    a = text_example(scores=SIGNED)
    assert leads_to_output(a) and "From base to f(x)" in a.to_html()
    assert not leads_to_output(replace(a, **change)) and "From base to f(x)" not in replace(a, **change).to_html()


# --- agreement ------------------------------------------------------------------------------------------------------


def three(first: object, second: object, third: object) -> Comparison:
    a, named = text_example("a b c d e"), {"x": first, "y": second, "z": third}
    return Comparison(tuple(replace(a, method=name, scores=[9.0, *own, -9.0]) for name, own in named.items()))


def test_agreement_is_kendall_s_tau_without_special_tokens() -> None:
    c = three([1, 2, 3, 4, 5], [1, 2, 2, 4, 9], [5, -4, 3, -2, 1])
    taus = c.agreement()
    expected = kendalltau([1, 2, 3, 4, 5], [1, 2, 2, 4, 9]).statistic
    assert taus[0, 1] == taus[1, 0] == pytest.approx(expected) and np.diag(taus) == pytest.approx(1)
    assert taus[0, 2] == pytest.approx(kendalltau([1, 2, 3, 4, 5], [5, -4, 3, -2, 1]).statistic)
    assert agreement_in_words(c, taus) == f"x and y agree ({expected:.2f}); z stands apart."
    unsigned = Comparison((c[0], c[1], replace(c[2], base=None, residual=None)))
    assert unsigned.agreement()[0, 2] == pytest.approx(-1)  # by the sizes 5 4 3 2 1


def test_agreement_of_generated_text_is_the_mean_over_rows_of_what_was_seen() -> None:
    a = generated_example()
    b = replace(a, method="b", scores=np.where(a.visible, a.scores[::-1], 77.0))
    rows = zip(a.scores, b.scores, a.visible, strict=True)
    expected = np.mean([kendalltau(one[seen], other[seen]).statistic for one, other, seen in rows])
    assert Comparison((a, b)).agreement()[0, 1] == pytest.approx(expected)


def test_a_ranking_that_is_not_defined_has_no_agreement() -> None:
    c = three([1, 2, 3, 4, 5], [7, 7, 7, 7, 7], [1, np.inf, np.nan, 4, 5])
    assert np.isnan(c.agreement()).sum() == 5 and c.agreement()[0, 2] == pytest.approx(1)  # of what is finite
    nothing = three([0] * 5, [7] * 5, [np.nan] * 5)
    assert agreement_in_words(nothing, nothing.agreement()) == ""
    assert "none" in Page(c.to_html()).texts


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (([1, 2, 3, 4, 6], [1, 2, 3, 5, 4]), "All methods agree (0.80 to 1.00)."),
        (([5, 4, 3, 2, 1], [2, 1, 5, 4, 3]), "No two methods agree: x and z do most (0.20)."),
        (([2, 1, 4, 3, 5], [5, 4, 3, 2, 1]), "x and y agree (0.60); z stands apart."),
    ],
)
def test_agreement_in_words(others: tuple, expected: str) -> None:
    c = three([1, 2, 3, 4, 5], *others)
    assert agreement_in_words(c, c.agreement()) == expected
    assert lead(c).endswith(expected)


@pytest.mark.parametrize(
    ("other", "kind"),
    [([1, 2, 3, 5, 4], "agree"), ([3, 1, 2, 5, 4], "agree in part"), ([5, 4, 3, 2, 1], "rank in opposite order")],
)
def test_two_methods_in_words(other: list, kind: str) -> None:
    c = Comparison(three([1, 2, 3, 4, 5], other, other).attributions[:2])
    assert agreement_in_words(c, c.agreement()).startswith(f"x and y {kind} (")


# --- levels and sizes of pages --------------------------------------------------------------------------------------


def levels(a: Attribution) -> list[str]:
    return [given["data-level"] for given in Page(a.to_html()).find("div", "level")]


def test_pieces_words_and_sentences_are_in_the_page_where_they_differ() -> None:
    assert levels(text_example()) == ["pieces", "words"]
    assert levels(text_example("A film. It is good.")) == ["pieces", "words", "sentences"]
    assert levels(text_example("A. Bc. De.")) == ["words", "sentences"]
    assert levels(text_example("a b c")) == levels(text_example("a")) == ["words"]
    first, *others = Page(text_example("A film. It is good.").to_html()).find("div", "level")
    assert "hidden" not in first and all("hidden" in given for given in others)


def long_example(count: int = 512) -> Attribution:
    text = " ".join(f"fabulous{i}." if i % 15 == 0 else f"word{i}" for i in range(count))
    return text_example(" ".join(text.split()[: count // 2 - 1]))


def test_a_page_of_512_tokens_is_small() -> None:
    a = long_example()
    assert len(a.features) >= 510
    assert len(a.to_html()) < 300_000
    methods = tuple(replace(a, method=f"integrated_gradients(steps={i})") for i in range(10))
    assert len(Comparison(methods).to_html()) < 1_000_000


def test_a_comparison_has_a_coloured_text_per_method_and_a_table_on_demand() -> None:
    page = Page(comparison().to_html())
    assert len(page.find("div", "line")) == 2 and len(page.find("div", "method")) == 2
    assert len(page.find("details")) == 1 and "open" not in page.find("details")[0]
    assert len([given for given in page.find("b") if "special" in given.get("class", "")]) == 4
