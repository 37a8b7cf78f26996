"""Pages of every type of result in a real browser, and what readers can do on pages with pictures."""

from dataclasses import replace

import numpy as np
import pytest

from browser import accessibility_faults, overflow
from results_by_hand import every_result, grid_example, picture_example, scoreboard_example
from whence.core.attention_maps import AttentionMaps, AttentionSelection
from whence.core.reports import report
from whence.core.results import Attribution, Comparison

RESULTS = {
    name: result
    for name, result in every_result().items()
    if not isinstance(result, (Attribution, Comparison, AttentionMaps, AttentionSelection)) or name == "picture"
}
LAYER = """() => {
  const canvas = document.querySelector('canvas.layer');
  if (!canvas) return -1;
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let seen = 0;
  for (let at = 3; at < data.length; at += 4) seen += data[at] > 0;
  return seen / (canvas.width * canvas.height);
}"""


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize(("width", "dark"), [(400, False), (1400, True)])
def test_every_page_opens_without_a_fault(browser, name, width, dark):
    page = browser.show(RESULTS[name].to_html(), width=width, dark=dark)
    assert overflow(page) <= 0
    assert not accessibility_faults(page)


def picture(*scores):
    a = picture_example(rows=2, columns=2, grid=(2, 2))
    return replace(a, scores=np.array([9.0, *scores]))


def test_a_slider_leaves_weak_scores_out_and_another_shows_the_photo_through(browser):
    page = browser.show(picture(1.0, 0.0, -0.5, 0.25).to_html(patches=True))
    strength, opacity = page.get_by_label("show scores from"), page.get_by_label("opacity")
    assert page.evaluate(LAYER) == -1  # nothing is drawn anew before it is asked for
    seen = {}
    for percent in (20, 40, 80, 100, 0):
        strength.fill(str(percent))
        page.wait_for_function(f"document.querySelectorAll('output')[1].textContent.startsWith('{percent or 'all'}')")
        page.wait_for_timeout(50)
        seen[percent] = round(page.evaluate(LAYER), 2)
    assert seen == {20: 0.75, 40: 0.5, 80: 0.25, 100: 0.25, 0: 0.75}
    opacity.fill("30")
    assert page.evaluate("getComputedStyle(document.querySelector('.layer')).opacity") == "0.3"
    assert opacity.get_attribute("aria-valuetext") == "30 %"


def test_sliders_move_by_arrow_keys(browser):
    page = browser.show(picture(1.0, 0.0, -0.5, 0.25).to_html())
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowLeft")
    assert page.get_by_label("opacity").input_value() == "95"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert page.locator("output").nth(1).inner_text() == "5 % of the strongest"


def test_the_photo_alone_is_a_press_away(browser):
    page = browser.show(picture(1.0, 0.0, -0.5, 0.25).to_html(), width=400)
    button, layer = page.get_by_role("button", name="photo alone"), page.locator(".layer")
    assert layer.is_visible()
    button.click()
    assert not layer.is_visible() and button.get_attribute("aria-pressed") == "true"
    button.click()
    assert layer.is_visible()


def test_a_patch_tells_score_rank_and_share_to_mouse_and_keyboard(browser):
    page = browser.show(picture(1.0, 0.0, -0.5, 0.5).to_html())
    patches, tip = page.locator(".cells i"), page.locator(".tip")
    patches.nth(3).hover()
    assert tip.inner_text().split("\n") == [
        *("patch 1,1", "score 0.5", "rank 2 of 4 by size", "25 % of all sizes on the picture"),
    ]
    page.mouse.move(0, 0)
    assert not tip.is_visible()
    for _ in range(4):
        page.keyboard.press("Tab")  # two sliders, a button, then the strongest patch
    assert tip.inner_text().startswith("patch 0,0\nscore 1\nrank 1 of 4")
    page.keyboard.press("ArrowLeft")  # the edge of the picture: nothing moves
    page.keyboard.press("ArrowDown")
    assert tip.inner_text().startswith("patch 1,0\nscore -0.5\nrank 2 of 4")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "patch 1,0: -0.5"
    page.keyboard.press("Escape")
    assert not tip.is_visible()


def test_scores_that_are_not_finite_have_no_rank(browser):
    page = browser.show(picture(np.nan, 0.0, -0.5, 0.5).to_html())
    page.locator(".cells i").first.hover()
    assert page.locator(".tip").inner_text() == "patch 0,0\nscore nan: not finite"


def test_original_and_scores_stand_beside_each_other_or_below(browser):
    for width, beside in ((1400, True), (400, False)):
        page = browser.show(picture(1.0, 0.0, -0.5, 0.5).to_html(), width=width)
        first, second = (page.locator("figure").nth(n).bounding_box() for n in (0, 1))
        assert (first["y"] == second["y"]) == beside and first["width"] > 350


def test_without_scripts_the_scores_lie_over_the_photo(browser):
    page = browser.show(picture(1.0, 0.0, -0.5, 0.5).to_html(), java_script_enabled=False)
    layer, photo = page.locator(".layer").bounding_box(), page.locator(".overlaid .photo").bounding_box()
    assert layer == photo and photo["height"] > 100
    assert page.locator(".cells i").first.get_attribute("title") == "patch 0,0: 1"


def test_one_slider_serves_all_pictures_of_a_grid(browser):
    page = browser.show(grid_example().to_html())
    assert page.get_by_label("opacity").count() == 1
    page.get_by_label("show scores from").fill("50")
    page.wait_for_function("document.querySelectorAll('canvas.layer').length === 4")


@pytest.mark.slow
@pytest.mark.parametrize(("width", "dark"), [(400, True), (1400, False)])
def test_a_report_of_all_results_opens_without_a_fault(browser, width, dark):
    page = browser.show(report(list(RESULTS.values()), "Everything").to_html(), width=width, dark=dark)
    assert overflow(page) <= 0
    assert not accessibility_faults(page)
    assert page.get_by_label("opacity").count() == 2  # a picture and a grid, each with its own sliders


def test_the_contents_of_a_report_lead_to_its_results(browser):
    page = browser.show(report([scoreboard_example(), picture(1.0, 0.0, -0.5, 0.5), grid_example()]).to_html())
    link = page.get_by_role("link", name="2 pictures by 2 methods")
    link.focus()
    page.keyboard.press("Enter")
    heading = page.get_by_role("heading", name="3. 2 pictures by 2 methods")
    assert 0 <= heading.bounding_box()["y"] < 900 and page.url.endswith("#result-3")


def test_sliders_of_a_report_act_on_their_own_pictures(browser):
    page = browser.show(report([picture(1.0, 0.0, -0.5, 0.5), grid_example()]).to_html())
    page.get_by_label("show scores from").first.fill("50")
    page.wait_for_function("document.querySelectorAll('canvas.layer').length === 1")
    assert page.locator("img.layer").count() == 4


def test_all_module_calls_open_by_keyboard(browser):
    page = browser.show(RESULTS["conservation"].to_html())
    assert not page.get_by_role("group", name="all module calls").is_visible()
    page.locator("summary").focus()
    page.keyboard.press("Enter")
    assert page.get_by_role("group", name="all module calls").is_visible()
