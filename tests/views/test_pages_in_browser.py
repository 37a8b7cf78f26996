"""Pages in a real browser: they open without a complaint, in light and dark, on a phone and inside a notebook."""

import pytest

from browser import accessibility_faults, overflow
from results_by_hand import text_example


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_a_page_opens_in_light_and_dark_on_a_phone_and_a_wide_screen(browser, width, dark):
    page = browser.show(text_example().to_html(), width=width, dark=dark)
    assert overflow(page) <= 0
    assert not accessibility_faults(page)
    back = page.evaluate("getComputedStyle(document.querySelector('.whence')).backgroundColor")
    assert back == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")


def test_styles_of_a_notebook_and_of_a_page_leave_each_other_alone(browser):
    inside = text_example()._repr_html_()
    page = browser.show(f"<style>* {{ font-size: 77px }}</style><h1>my notebook</h1>{inside}")
    size = "getComputedStyle(document.querySelector('h1')).fontSize"
    assert page.evaluate(size) == "77px"
    frame = page.frames[1]
    assert frame.evaluate(size) == "22.5px"
    frame.wait_for_function("Math.abs(frameElement.clientHeight - document.documentElement.offsetHeight) < 10")


def test_a_page_is_readable_without_scripts(browser):
    page = browser.show(text_example("a masterful film").to_html(), java_script_enabled=False)
    assert "erful" in page.locator("main").inner_text()


def test_a_script_that_is_not_the_page_s_own_does_not_run(browser):
    broken = text_example().to_html().replace("<h1", "<script>document.title = 'broken in'</script><h1")
    page = browser.show(broken)
    assert page.title() != "broken in"
    assert any("Content Security Policy" in said for said in browser.complaints)
    browser.complaints.clear()
