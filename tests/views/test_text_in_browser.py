"""Pages of texts in a real browser: pointing, keys, every switch, sorting, copying, choosing produced tokens."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from browser import accessibility_faults, overflow
from results_by_hand import attributed, comparison, encoded, generated_example, pieces, special, text_example
from whence.core import display
from whence.core.results import Attribution, Comparison

TEXT = "A masterful film. It is not dull."  # [CLS] A mast ##erful film ##. It is not dull ##. [SEP]
SCORES = np.array([2.0, 0.1, 1.0, 0.5, 0.25, 0.0, 0.0, 0.1, -0.5, -1.0, 0.05, 0.0])


def example(**more: Any) -> Attribution:
    return text_example(TEXT, scores=SCORES, **more)


def press(page: Any, name: str) -> None:
    page.get_by_role("radio", name=name, exact=True).click()


def seen(page: Any, of: str = ".level:not([hidden]) .tokens > span:not([hidden]) b") -> list[str]:
    return page.locator(of).all_inner_texts()


def numbers(page: Any) -> list[str]:
    return seen(page, ".level:not([hidden]) .tokens > span:not([hidden]) small")


def strength(page: Any, selector: str) -> float:
    return float(page.locator(selector).first.evaluate("e => getComputedStyle(e).getPropertyValue('--s')"))


def test_pointing_at_a_token_tells_value_rank_and_share(browser):
    page = browser.show(example().to_html())
    page.get_by_text("dull", exact=True).first.hover()
    assert page.get_by_role("tooltip").inner_text().split("\n") == [
        "dull",
        "score -1, speaks against",
        "rank 3 of 12",
        "18.2 % of the sum of |scores|",
    ]
    page.mouse.move(5, 5)
    assert page.get_by_role("tooltip").is_hidden()


def test_one_tab_stop_and_arrow_keys_reach_every_token(browser):
    page = browser.show(example().to_html())
    assert page.locator(".tokens > span[tabindex='0']:visible").count() == 1
    page.locator(".tokens > span").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tooltip").inner_text().startswith("mast\n")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.textContent") == "[SEP]0"
    page.keyboard.press("Home")
    assert page.evaluate("document.activeElement.tabIndex") == 0
    page.keyboard.press("Escape")
    assert page.get_by_role("tooltip").is_hidden()


def test_every_switch_of_an_attribution(browser):
    page = browser.show(example(output=2.5).to_html())
    press(page, "words")
    assert seen(page) == ["[CLS]", "A", "masterful", "film.", "It", "is", "not", "dull.", "[SEP]"]
    assert numbers(page)[2] == "+1.50"
    press(page, "sentences")
    assert seen(page) == ["[CLS]", "A masterful film.", "It is not dull.", "[SEP]"]
    press(page, "of largest")
    assert numbers(page) == ["+1", "+0.93", "-0.68", "0"]
    press(page, "of sum")
    assert numbers(page)[1:3] == ["35.6 %", "26.0 %"]
    press(page, "without special")
    assert seen(page) == ["A masterful film.", "It is not dull."] and numbers(page) == ["57.8 %", "42.2 %"]
    assert strength(page, ".level:not([hidden]) .tokens > span:not([hidden])") == 1  # the strongest of what is shown
    assert page.locator(".level:not([hidden]) .legend").inner_text().split() == ["against", "-1.85", "+1.85", "for"]
    press(page, "all tokens")
    press(page, "pieces")
    press(page, "scores")
    press(page, "ranked")
    assert seen(page)[:4] == ["[CLS]", "mast", "dull", "##erful"]
    widths = page.locator(".level:not([hidden]) .tokens > span").evaluate_all(
        "all => all.map(e => parseFloat(getComputedStyle(e, '::after').width))"
    )
    assert widths == sorted(widths, reverse=True) and widths[0] > 100
    assert not accessibility_faults(page)
    press(page, "as text")
    assert seen(page)[:4] == ["[CLS]", "A", "mast", "##erful"]
    press(page, "no numbers")
    assert page.get_by_text("+0.50", exact=True).first.bounding_box()["width"] <= 1


def test_copying_gives_what_is_shown_apart_by_tabs(browser):
    page = browser.show(example().to_html(), permissions=["clipboard-read", "clipboard-write"])
    press(page, "words")
    press(page, "without special")
    press(page, "ranked")
    page.get_by_role("button", name="copy").click()
    page.get_by_role("button", name="copied").wait_for()
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines[0] == "token\tscore\trank\tshare" and lines[1] == "masterful\t1.5\t1\t0.4412" and len(lines) == 8


def odd_texts() -> dict[str, Attribution]:
    """Texts that are hard to lay out."""
    long = "x" * 300
    hebrew = "סרט טוב מאוד. לא משעמם כלל."
    lines = [("good", "text", False, 0, (0, 4), "text"), ("\n", "text", False, 1, (4, 5), "text")]
    return {
        "one token": attributed(encoded(pieces("ab"), {"text": "ab"}), [0.5]),
        "a long token": attributed(encoded([(long, "text", False, 0, (0, 300), "text")], {"text": long}), [1.0]),
        "right to left": text_example(hebrew),
        "Chinese": text_example("这部 电影很好看。不无聊！"),
        "emoji": text_example("so 👩‍👩‍👧 good 🏳️‍🌈"),
        "newlines": attributed(encoded([*lines, ("bad", "text", False, 2, (5, 8), "text")], {"text": "good\nbad"})),
        "not finite": text_example(scores=[np.nan, np.inf, 0.5, -np.inf, 0, 0]),
        "zeros": text_example(scores=np.zeros(6)),
        "only special": attributed(encoded([special("[CLS]")], {})),
    }


@pytest.mark.slow
def test_odd_texts_fit_on_a_phone_in_the_dark(browser):
    found = list(odd_texts().values())
    for results in (found, [Comparison((a, replace(a, method="another"))) for a in found]):
        page = browser.show(display.shell(list(map(display.fragment, results)), "odd"), width=400, dark=True)
        assert overflow(page) <= 0 and not accessibility_faults(page)
        for ranked in page.get_by_role("radio", name="ranked").all():
            ranked.click()
        assert overflow(page) <= 0


def test_scores_without_signs_have_no_plus_and_nothing_against(browser):
    page = browser.show(replace(example(), base=None, residual=None).to_html())
    press(page, "of largest")
    assert "1" in numbers(page) and not any("+" in number or "-" in number for number in numbers(page))
    page.get_by_text("dull", exact=True).first.hover()
    assert page.get_by_role("tooltip").inner_text().split("\n")[1] == "score 1"
    assert page.locator(".level:not([hidden]) .legend").inner_text().split() == ["0", "2"]


def test_arrow_keys_follow_the_direction_of_a_text(browser):
    page = browser.show(odd_texts()["right to left"].to_html())
    page.locator(".tokens > span").first.focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.firstChild.textContent") == "סרט"


def test_pointing_at_a_token_of_a_comparison_shows_it_in_every_method(browser):
    page = browser.show(comparison().to_html())
    line = page.locator(".line").first.locator("b")
    line.nth(2).hover()
    assert page.locator(".line b.lit").all_inner_texts() == ["mast", "mast"]
    told = page.get_by_role("tooltip").inner_text().split("\n")
    assert told[0] == "mast" and [said.split()[0] for said in told[1:]] == ["lrp(rules='ah')", "attention"]
    line.first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.locator(".line b.lit").all_inner_texts() == ["a", "a"]
    assert page.locator(".line").nth(1).locator("b:focus").count() == 1


def test_every_switch_of_a_comparison(browser):
    a = text_example(scores=[2.0, 0.5, 1.0, -1.0, -0.25, 0.125])
    c = Comparison((a, replace(a, method="attention", scores=np.abs(a.scores), base=None, residual=None)))
    page = browser.show(c.to_html(), permissions=["clipboard-read", "clipboard-write"])
    assert page.locator("table").first.is_hidden()
    press(page, "without special")
    assert page.locator(".line").first.inner_text().split() == ["a", "masterful", "film"]
    assert strength(page, ".line b:not([hidden])") == 0.5
    press(page, "table")
    assert page.locator(".line").first.is_hidden() and page.locator("details table").is_visible()
    page.get_by_role("button", name="copy").click()
    page.get_by_role("button", name="copied").wait_for()
    lines = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert lines[:2] == ["token\tlrp(rules='ah')\tattention", "a\t+0.50\t0.50"] and len(lines) == 5
    assert not accessibility_faults(page)
    rows = generated_example()
    page = browser.show(Comparison((rows, replace(rows, method="attention"))).to_html())
    page.get_by_label("produced token").select_option("3. !")
    assert page.locator(".block:visible h2").all_inner_texts() == ["3. !"] and not accessibility_faults(page)


@pytest.mark.parametrize(("width", "dark"), [(400, True), (1400, False)])
def test_choosing_a_produced_token_colours_what_it_came_from(browser, width, dark):
    a = generated_example()
    page = browser.show(a.to_html(), width=width, dark=dark)
    tokens = page.locator(".tokens > span")
    names = list(a.features)
    tokens.nth(names.index("!")).click()
    shares = [strength(page, f".tokens > span >> nth={i}") for i in range(len(names))]
    np.testing.assert_allclose(shares, a.scores[2] / np.abs(a.scores[2]).max(), atol=0.01)
    assert page.get_by_role("status").inner_text().startswith("! is token 3 of 3")
    page.keyboard.press("ArrowLeft")
    assert page.get_by_role("status").inner_text().startswith("##s is token 2 of 3")
    assert page.locator(".tokens > span.unseen").all_inner_texts() == ["##s", "!"]
    page.locator(".sources tbody tr").first.locator("td").nth(1).hover()
    told = page.get_by_role("tooltip").inner_text().split("\n")
    assert told[0] == "capi → Pari" and told[1].startswith("score ")
    assert page.locator(".sources .lit").all_inner_texts() == ["capi", "Pari"]
    page.locator(".sources tbody td.hidden").first.hover()
    assert "could not be seen" in page.get_by_role("tooltip").inner_text()
    assert overflow(page) <= 0 and not accessibility_faults(page)


@pytest.mark.parametrize("level", ["words", "sentences"])
def test_every_produced_token_can_be_chosen_where_a_unit_holds_several(browser, level):
    a = getattr(generated_example(), level)()
    page = browser.show(a.to_html())
    tokens = page.get_by_role("button")
    assert tokens.all_inner_texts() == ["Pari", "##s", "!"]
    tokens.nth(1).click()
    assert page.get_by_role("status").inner_text().startswith("##s is token 2 of 3")
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("status").inner_text().startswith("! is token 3 of 3")
    assert page.locator("[aria-pressed=true]").all_inner_texts() == ["!"]
    shares = [strength(page, f".tokens > span:not([data-row]) >> nth={i}") for i in range(len(a.features))]
    np.testing.assert_allclose(shares, a.scores[2] / np.abs(a.scores[2]).max(), atol=0.01)
    assert overflow(page) <= 0 and not accessibility_faults(page)


def test_texts_are_readable_without_scripts(browser):
    page = browser.show(example().to_html(), java_script_enabled=False)
    assert (
        seen(page)[:4] == ["[CLS]", "A", "mast", "##erful"] and page.get_by_text("From base to f(x)").first.is_visible()
    )
    page = browser.show(generated_example().to_html(), java_script_enabled=False)
    assert page.locator(".sources tbody tr").count() == 3
    page = browser.show(comparison().to_html(), java_script_enabled=False)
    page.get_by_text("Table of scores").click()
    assert page.locator("details table").is_visible()
