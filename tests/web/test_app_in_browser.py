"""The page of `whence serve` in a real browser: what a person does with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import pytest

from browser import accessibility_faults, overflow
from whence import zoo
from whence.web.limits import Limits

pytestmark = pytest.mark.slow
LONG = "path_gradients(points=1000, steps=1000)"
WAIT = 60_000  # milliseconds


@pytest.fixture(scope="module")
def address(serve: Any) -> Iterator[str]:
    """The address of a server whose libraries are loaded."""
    with serve(Limits()) as client:
        client.get("/api/models/planted/methods")
        yield str(client.base_url)


def opened(browser: Any, address: str, said: str = "", **options: Any) -> Any:
    """The page, once its methods are there."""
    page = browser.open(f"{address}/{said}", **options)
    page.locator(".chip-box").first.wait_for(timeout=WAIT)
    return page


def choose(page: Any, *methods: str, own: str = "") -> None:
    """Tick these methods and no others."""
    page.get_by_text("More methods").click()
    for box in page.locator("#methods input[type=checkbox]").all():
        box.set_checked(box.input_value() in methods)
    page.get_by_text("More methods").click()
    page.get_by_label("A method with options").fill(own)


def finished(page: Any, count: int) -> None:
    """Wait until all methods have ended and are shown."""
    page.locator("#status", has_text=f"Done: {count} of").wait_for(timeout=WAIT)
    page.locator(".card .fragment").nth(count - 1).wait_for(timeout=WAIT)


def model(page: Any, name: str) -> None:
    """Choose a model and wait until its methods are there."""
    with page.expect_response(lambda answer: answer.url.endswith(f"{name}/methods")):
        page.get_by_label("Model", exact=True).select_option(name)
    page.locator("#status", has_text=re.compile("^$")).wait_for(timeout=WAIT, state="attached")


def test_type_run_edit_and_see_what_changed(browser: Any, address: str) -> None:
    page = opened(browser, address, "#model=planted")
    page.get_by_label("Text", exact=True).fill("the dog walked by a lovely garden")
    choose(page, "leave_one_out", "gae")
    page.get_by_role("button", name="Explain").click()
    finished(page, 2)
    assert page.locator(".card h2").all_inner_texts()[:1] == ["prediction"]
    assert page.locator(".bars-of .first").first.inner_text() == "positive"
    assert page.locator(".truth .decides").all_inner_texts() == ["lovely"]
    page.get_by_label("Text", exact=True).fill("the dog walked by a not lovely garden")
    page.get_by_label("Text", exact=True).press("Control+Enter")
    changed = page.get_by_role("region", name="What changed")
    changed.wait_for(timeout=WAIT)
    assert page.locator(".bars-of .first").first.inner_text() == "negative"
    assert changed.get_by_role("row", name=re.compile("^not")).locator("td").last.inner_text() == "new"
    changed.get_by_role("radio", name="gae").click()
    assert "gae" in changed.locator("caption").first.inner_text()
    assert not accessibility_faults(page)


def test_methods_arrive_one_by_one_and_a_long_one_is_cancelled(browser: Any, address: str) -> None:
    page = opened(browser, address, "#model=planted")
    choose(page, "gae", own=LONG)
    page.get_by_role("button", name="Explain").click()
    page.locator(".card:not(.pending) .fragment").first.wait_for(timeout=WAIT)
    page.get_by_text("running for").wait_for(timeout=WAIT)
    assert page.get_by_role("button", name="Explain").is_disabled()
    page.get_by_role("button", name="Cancel").click()
    page.locator("#status", has_text="Cancelled").wait_for(timeout=5_000)
    assert page.locator(".card.pending .dim").inner_text() == "cancelled"
    assert page.get_by_role("button", name="Explain").is_enabled()
    assert page.get_by_role("button", name="Cancel").is_hidden()


def test_closing_the_page_cancels_its_work(browser: Any, address: str) -> None:
    import httpx

    page = opened(browser, address, "#model=planted")
    choose(page, own=LONG)
    page.get_by_role("button", name="Explain").click()
    page.get_by_text("running for").wait_for(timeout=WAIT)
    assert httpx.get(f"{address}/api/load").json()["running"] == 1
    page.goto("about:blank")
    for _ in range(100):
        if not httpx.get(f"{address}/api/load").json()["running"]:
            return
        page.wait_for_timeout(50)
    raise AssertionError("the job goes on")


def test_results_side_by_side_measured_and_downloaded(browser: Any, address: str) -> None:
    page = opened(browser, address, "#model=planted&example=0&methods=lrp;gae")
    finished(page, 2)
    page.get_by_role("radio", name="side by side").click()
    page.get_by_role("region", name="Side by side").locator(".fragment").wait_for(timeout=WAIT)
    assert page.get_by_role("region", name="gae", exact=True).is_hidden()
    page.get_by_role("radio", name="side by side").press("ArrowLeft")
    assert page.get_by_role("region", name="gae", exact=True).is_visible()
    with page.expect_download() as downloading:
        page.get_by_role("region", name="lrp", exact=True).get_by_role("link", name="download json").click()
    assert downloading.value.suggested_filename == "whence-0.json"
    with page.expect_download() as downloading:
        page.locator(".tools").first.get_by_role("link", name="download pdf").click()
    assert downloading.value.suggested_filename == "whence-all.pdf"
    page.get_by_role("button", name="Measure this").click()
    measured = page.get_by_role("region", name="Measured")
    measured.locator(".fragment svg").first.wait_for(timeout=WAIT)
    assert "higher is better" in measured.inner_text()
    assert not accessibility_faults(page)


def test_tokens_tell_their_scores_when_pointed_at(browser: Any, address: str) -> None:
    """What the library's script does on a page of its own, it does in the app."""
    page = opened(browser, address, "#model=planted&example=0&methods=leave_one_out")
    finished(page, 1)
    token = page.locator(".fragment .tokens > span").first
    token.wait_for(timeout=WAIT)
    token.hover()
    assert re.search(r"\d", page.locator(".tip").inner_text())


def test_a_picture_is_dropped_and_explained(browser: Any, address: str, tmp_path: Any) -> None:
    from PIL import Image

    page = opened(browser, address, "#model=digits")
    file = tmp_path / "seven.png"
    Image.fromarray(zoo.examples("digits", 1, seed=5)[0].input).save(file)
    page.locator(".drop").evaluate(
        """(place, bytes) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], "seven.png", {type: "image/png"}));
            place.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
        }""",
        list(file.read_bytes()),
    )
    assert page.locator(".drop span").inner_text() == "seven.png"
    choose(page, "gae")
    page.get_by_role("button", name="Explain").click()
    finished(page, 1)
    assert page.locator(".fragment img").count() >= 1
    assert "no link" in page.locator(".tools").first.inner_text()
    page.locator(".drop input").set_input_files(str(file))
    page.get_by_role("button", name="Explain").click()
    finished(page, 1)
    assert not accessibility_faults(page)


def test_what_is_no_picture_is_said(browser: Any, address: str, tmp_path: Any) -> None:
    page = opened(browser, address, "#model=digits")
    file = tmp_path / "broken.png"
    file.write_bytes(b"no picture")
    page.locator(".drop input").set_input_files(str(file))
    page.get_by_role("button", name="Explain").click()
    page.get_by_role("alert").wait_for(timeout=WAIT)
    assert "no picture that can be read" in page.get_by_role("alert").inner_text()
    browser.complaints.clear()  # the browser itself reports the answer 422


def test_a_link_reproduces_the_run(browser: Any, address: str) -> None:
    page = opened(browser, address, "#model=planted")
    page.get_by_label("Text", exact=True).fill("the dog & the child = awful")
    page.get_by_label("What to explain").select_option("negative")
    choose(page, "gae", own="integrated_gradients(steps=8)")
    page.get_by_role("button", name="Explain").click()
    finished(page, 2)
    said = {key: value[0] for key, value in parse_qs(page.url.partition("#")[2]).items()}
    assert said == {
        "model": "planted",
        "text.text": "the dog & the child = awful",
        "example": "0",
        "target": "negative",
        "methods": "gae;integrated_gradients(steps=8)",
    }
    again = opened(browser, address, "#" + page.url.partition("#")[2])
    finished(again, 2)
    assert again.get_by_label("Text", exact=True).input_value() == "the dog & the child = awful"
    assert again.get_by_label("What to explain").input_value() == "negative"
    scores = [one.locator(".fragment").first.inner_text() for one in (page, again)]
    assert scores[0] == scores[1]


def test_a_link_to_a_model_that_is_not_here_is_said(browser: Any, address: str) -> None:
    page = opened(browser, address, "#model=nowhere&methods=gae")
    assert "nowhere" in page.get_by_role("alert").inner_text()


def test_attention_is_looked_at(browser: Any, address: str) -> None:
    page = opened(browser, address, "#model=planted&example=0")
    page.get_by_role("button", name="Attention").click()
    page.get_by_role("region", name="Attention").locator(".fragment").wait_for(timeout=WAIT)
    assert "horrible" in page.get_by_role("region", name="Attention").inner_text()


@pytest.mark.parametrize("name", ["recall", "dates", "shapes", "textures", "photos"])
def test_every_kind_of_model_is_explained_from_its_gallery(browser: Any, address: str, name: str) -> None:
    page = opened(browser, address, "#model=planted")
    model(page, name)
    page.locator("#gallery button").nth(1).click()
    assert page.locator("#gallery [aria-pressed=true]").count() == 1
    choose(page, "gae")
    page.get_by_role("button", name="Explain").click()
    finished(page, 1)
    if name != "dates":
        assert page.locator(".found").count() == 1
        assert page.locator(".truth .decides").count() >= 1


def test_errors_are_sentences_in_the_page(browser: Any, address: str) -> None:
    page = opened(browser, address, "#model=planted")
    choose(page)
    page.get_by_role("button", name="Explain").click()
    assert page.get_by_role("alert").inner_text() == "choose at least one method"
    choose(page, "gae")
    page.get_by_label("Text", exact=True).fill("")
    page.get_by_role("button", name="Explain").click()
    page.get_by_text("'text'").first.wait_for(timeout=WAIT)
    choose(page, own="no_such_method")
    page.get_by_role("button", name="Explain").click()
    page.get_by_text("no_such_method", exact=False).first.wait_for(timeout=WAIT)
    browser.complaints.clear()  # the browser itself reports the answer 422


def test_markup_that_is_typed_stays_text(browser: Any, address: str) -> None:
    page = opened(browser, address, "#model=planted")
    page.get_by_label("Text", exact=True).fill("<img src=x onerror=document.title='hacked'> the awful dog")
    choose(page, "gae")
    page.get_by_role("button", name="Explain").click()
    finished(page, 1)
    assert page.title().startswith("whence") and page.locator("#results img").count() == 0


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_the_page_fits_and_is_accessible(browser: Any, address: str, width: int, dark: bool) -> None:
    page = opened(browser, address, "#model=planted&example=0&methods=leave_one_out;lrp", width=width, dark=dark)
    finished(page, 2)
    assert overflow(page) <= 0
    assert not accessibility_faults(page)
    background = page.evaluate("getComputedStyle(document.querySelector('.whence.app')).backgroundColor")
    assert background == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")


def test_light_and_dark_are_chosen_and_remembered(browser: Any, address: str) -> None:
    page = opened(browser, address)
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.get_by_role("button", name="Light").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_everything_can_be_done_by_keyboard(browser: Any, address: str) -> None:
    page = opened(browser, address, "#model=planted")
    page.get_by_label("Model", exact=True).focus()
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
        if "run" in seen:
            break
    assert {"part-text", "target", "spec", "run"} <= seen
    page.keyboard.press("Enter")
    finished(page, 3)


def test_the_list_of_routes_is_a_page(browser: Any, address: str) -> None:
    page = browser.open(f"{address}/api/docs", width=400)
    assert page.get_by_text("POST /api/jobs", exact=True).count() == 1
    assert overflow(page) <= 0 and not accessibility_faults(page)


def test_words_are_pressed_to_be_ignored_and_both_predictions_stand_side_by_side(browser: Any, address: str) -> None:
    page = opened(browser, address, "#model=planted")
    page.get_by_label("Text", exact=True).fill("the dog walked by a not lovely garden")
    choose(page, "gae")
    page.get_by_role("button", name="Explain").click()
    finished(page, 1)
    page.get_by_text("Choose words that must not count").click()
    page.get_by_role("button", name="not", exact=True).click()
    assert page.get_by_label("Words that must not count", exact=True).first.input_value() == "not"
    page.get_by_role("button", name="Explain").click()
    page.get_by_role("region", name="ignoring ‘not’").wait_for(timeout=WAIT)
    finished(page, 1)
    assert page.get_by_role("region", name="as it is").locator(".first").first.inner_text() == "negative"
    assert page.get_by_role("region", name="ignoring ‘not’").locator(".first").first.inner_text() == "positive"
    assert page.get_by_role("button", name="not", exact=True).get_attribute("aria-pressed") == "true"
    assert "ignore=not" in page.url
    assert page.locator(".fragment .tokens .ignored").all_inner_texts()[0].startswith("not")
    assert not accessibility_faults(page)
    again = opened(browser, address, page.url.partition("/#")[2].join(("#", "")))
    finished(again, 1)
    assert again.get_by_role("region", name="ignoring ‘not’").is_visible()
