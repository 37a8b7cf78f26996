"""Signs in views: red, plus and "against" are for signed scores alone; what is hidden is hidden in views only."""

import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from results_by_hand import comparison, generated_example, maps_example, picture_example, text_example
from whence.core.results import Attribution, Comparison

EXAMPLES = {
    "text": text_example,
    "picture": picture_example,
    "picture and text": lambda: picture_example(text="a yellow moon"),
    "generated": generated_example,
}


def unsigned(a: Attribution) -> Attribution:
    """The same scores, by a method whose signs mean nothing."""
    return replace(a, method="gradient", base=None, residual=None)


def body(page: str) -> str:
    """A page without its style sheet and its script."""
    return page.partition("</style>")[2].partition("<script>")[0]


def of_terminal(result: object) -> set[tuple[int, int, int]]:
    """The colours on a terminal with a few of them, where pictures are shades."""
    console = Console(force_terminal=True, color_system="standard", width=90, file=io.StringIO())
    styles = [part.style for part in console.render(result) if part.style]
    return {tuple(c.triplet) for style in styles for c in (style.color, style.bgcolor) if c and c.triplet}


def reddest(shades: set[tuple[int, int, int]]) -> int:
    """How much redder than blue the reddest colour is."""
    return max((red - blue for red, _, blue in shades), default=0)


def of_figure(figure: object) -> list[str]:
    """All that a figure says."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text)]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_scores_without_a_sign_have_no_plus_and_no_red(kind: str) -> None:
    a = EXAMPLES[kind]()
    assert reddest(of_terminal(a)) > 50 and "+" in str(a)  # the same scores with signs: the test can fail
    plain = unsigned(a)
    assert "+" not in str(plain) and "against " not in str(plain).replace("nor against the target", "")
    assert reddest(of_terminal(plain)) <= 0
    page = body(plain.to_html())
    against = "--s:-"  # a score that the style sheet colours red
    assert against in body(a.to_html()) or kind == "picture"
    assert against not in page and ">+" not in page and "against <" not in page and 'class="bar"' not in page
    assert 'class="size"' in page
    said = " ".join(" ".join(of_figure(plain.plot())).split())  # without line breaks
    assert {"picture": "against", "generated": ""}.get(kind, "red") in " ".join(of_figure(a.plot()))
    assert "red" not in said and "against" not in said.replace("nor against the target", "")


def test_sizes_are_shown_and_scores_are_kept() -> None:
    plain = unsigned(text_example(scores=[0.0, 0.5, -1.0, 0.25, 0.0, 0.0]))
    text = str(plain)
    assert "1.00" in text and "-1.00" not in text and "sizes are shown" in text
    np.testing.assert_array_equal(plain.scores, [0, 0.5, -1, 0.25, 0, 0])
    assert plain.to_frame()["score"].tolist() == plain.scores.tolist()
    whole = unsigned(text_example(scores=[0.0, 0.5, 1.0, 0.25, 0.0, 0.0]))
    assert "sizes are shown" not in str(whole)


def test_signs_are_shown_when_asked_for_and_hidden_when_not() -> None:
    a = text_example(scores=[0.0, 0.5, -1.0, 0.25, 0.0, 0.0])
    plain = unsigned(a)
    assert (a.signed, plain.signed) == (True, False)
    assert "-1.00" in str(plain.with_signs()) and "+0.50" in str(plain.with_signs())
    assert "-1.00" not in str(a.with_signs(False))
    assert str(a.with_signs()) == str(a)


def test_a_figure_of_generated_text_starts_at_zero_without_signs() -> None:
    a = generated_example()
    for one, lowest in ((a, -np.abs(a.scores).max()), (unsigned(a), 0.0)):
        assert one.plot().axes[0].images[0].get_clim()[0] == pytest.approx(lowest)


def test_columns_with_and_without_signs_side_by_side() -> None:
    c = comparison()
    rows = {line.split()[0]: line.split()[1:] for line in str(c).splitlines() if line}
    assert rows["mast"][0].startswith(("+", "-")) and not rows["mast"][1].startswith(("+", "-"))
    assert "attention: colour tells how much, neither for nor against" in str(c) and "order and sign" in str(c)
    page = body(c.to_html())
    assert "without a sign: attention" in page and 'class="bar"' in page
    none = Comparison(tuple(map(unsigned, c)))
    page = body(none.to_html())
    assert "+" not in str(none) and "compare order, not size" in str(none) and reddest(of_terminal(none)) <= 0
    assert 'class="bar"' not in page and "without a sign" not in page
    assert "against" not in page.replace("nor against", "")
    assert "colour tells" not in str(none)


def test_pictures_side_by_side_keep_to_their_own_signs() -> None:
    a = picture_example()
    c = Comparison((a, unsigned(a)))
    first, second = str(c).split("gradient\n")[0], str(c).split("gradient\n")[-1]
    assert "against" in first.split("Largest")[1] and "against" not in second.partition("feature")[0]
    assert ["against" in " ".join(of_figure(axes)) for axes in c.plot().axes if axes.child_axes] == [True, False]


def test_attention_maps_have_no_signs() -> None:
    for maps in (maps_example(), maps_example(picture_example())):
        assert "+" not in str(maps) and "against" not in str(maps) and reddest(of_terminal(maps)) <= 0


def test_scores_that_are_not_numbers_are_not_red() -> None:
    broken = unsigned(picture_example())
    broken = replace(broken, scores=np.full(7, np.nan))
    assert reddest(of_terminal(broken)) <= 0


def test_files_of_older_versions_have_signs_where_they_have_a_base(tmp_path) -> None:
    for a in (text_example(), unsigned(text_example())):
        old = a.to_dict()
        assert old.pop("signs") is None
        again = Attribution.from_dict(old)
        assert again == a and again.signed == a.signed
    asked = unsigned(text_example()).with_signs()
    asked.save(tmp_path / "a.json")
    assert Attribution.load(tmp_path / "a.json").signed
