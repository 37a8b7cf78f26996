"""Pages of attention in a real browser: choosing, pointing, thumbnails, drawings, long texts, pictures, phones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import whence
from browser import accessibility_faults, overflow
from results_by_hand import maps_example, picture_example
from whence.views.pages import attention_data
from whence.views.pages.attention_data import plan

COLOURS = "[...new Set([...document.querySelectorAll('.lines path')].map(p => p.getAttribute('stroke')))]"
LINES = (
    "[...document.querySelectorAll('.lines path')].reduce((n, p) => n - 1 + p.getAttribute('d').split('M').length, 0)"
)
SVG = "{http://www.w3.org/2000/svg}"


def drawn(count: int, layers: int = 2, heads: int = 3, sharp: float = 0.3, pair: bool = False) -> whence.AttentionMaps:
    """Random maps of so many tokens, the first of them special; with `pair`, the second half is another sentence."""
    x = whence.Input(
        raw="",
        features=("[CLS]", *(f"token{i}" for i in range(1, count))),
        streams=("text",) * count,
        special=np.arange(count) == 0,
        tensors={},
        words=np.full(count, -1),
        offsets=np.full((count, 2), -1),
        parts=("", *("pair" if pair and i >= count // 2 else "text" for i in range(1, count))),
    )
    weights = np.random.default_rng(0).dirichlet(np.full(count, sharp), (layers, heads, count))
    return whence.AttentionMaps({("text", "text"): weights.astype(np.float32)}, x, "drawn")


def encoder_decoder() -> whence.AttentionMaps:
    """Maps of three pairs of streams: 4 source tokens, 3 target tokens."""
    names, streams = tuple("abcdxyz"), ("source",) * 4 + ("target",) * 3
    x = whence.Input("", names, streams, np.zeros(7), {}, np.full(7, -1), np.full((7, 2), -1), ("",) * 7)
    lengths, drawing = {"source": 4, "target": 3}, np.random.default_rng(1)
    pairs = [("source", "source"), ("target", "target"), ("target", "source")]
    weights = {(q, k): drawing.dirichlet(np.ones(lengths[k]), (2, 2, lengths[q])) for q, k in pairs}
    return whence.AttentionMaps(weights, x, "pairs")


def reading(page: Any) -> str:
    return page.locator(".reading").inner_text()


def saved(page: Any, tmp_path: Path) -> tuple[str, ElementTree.Element]:
    """The drawing that the page hands out: the file's name and its root."""
    with page.expect_download() as waiting:
        page.get_by_role("button", name="Save as SVG").click()
    file = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(file)
    return file.name, ElementTree.parse(file).getroot()


def test_layers_and_heads_are_chosen_and_tokens_show_their_own_lines(browser: Any) -> None:
    maps = drawn(6)
    page = browser.show(maps.to_html(layer=0, head=1))
    title = page.locator(".chosen-heads h2")
    assert title.inner_text() == "Layer 0, head 1"
    page.get_by_label("Layer", exact=True).select_option("1")
    page.locator(".chips").get_by_role("button", name="2", exact=True).click()
    assert title.inner_text() == "Layer 1, heads 1, 2"
    assert len(page.evaluate(COLOURS)) == 2
    page.locator(".chips").get_by_role("button", name="1", exact=True).click()
    assert page.evaluate(LINES) == 36
    query = page.get_by_role("listbox", name="queries").get_by_role("option").nth(3)
    query.hover()
    row = maps.matrix(1, 2)[3]
    tip = page.get_by_role("tooltip").inner_text().splitlines()
    names = maps.input.features
    assert tip[0] == "token3 (3) looks at" and tip[-1] == "shown: 100 % of its weight"
    expected = [f"{row[n]:.3f} {names[n]} ({n})" for n in np.argsort(-row)]
    assert [" ".join(line.split()) for line in tip[1:-1]] == [line for line in expected if not line.startswith("0.000")]
    assert page.evaluate(LINES) <= 6
    query.focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tooltip").inner_text().startswith("token3 (3) is looked at by")


def test_shares_of_weight_are_those_of_the_maps(browser: Any) -> None:
    maps = drawn(30)
    page = browser.show(maps.to_html(layer=1, head=0))
    matrix = maps.matrix(1, 0)
    largest = -np.sort(-matrix, axis=1)
    share, least = largest[:, :10].sum(1).mean(), largest[:, :10].sum(1).min()
    assert f"Lines carry {100 * share:.0f} % of the weight (the 10 largest of every query" in reading(page)
    assert f"at least {int(100 * least)} % of each query's" in reading(page)
    assert f"{100 * matrix[:, 0].sum() / 30:.0f} % on special tokens" in reading(page)
    page.get_by_label("Lines of a query").select_option("1 largest")
    assert f"Lines carry {100 * largest[:, 0].mean():.0f} % of the weight" in reading(page)
    page.get_by_label("Lines of a query").select_option("all kept")
    assert "Lines carry 100 % of the weight (all of them)" in reading(page)


def test_sentences_of_a_pair_are_told_apart(browser: Any) -> None:
    maps = drawn(8, pair=True)
    page = browser.show(maps.to_html(layer=0, head=0))
    page.get_by_label("Show", exact=True).select_option("text → pair")
    across = maps.matrix(0, 0)[:4, 4:].sum() / 8
    assert f"Lines carry {100 * across:.0f} % of the weight" in reading(page)
    page.get_by_label("Show", exact=True).select_option("between parts")
    both = across + maps.matrix(0, 0)[4:, :4].sum() / 8
    assert f"Lines carry {100 * both:.0f} % of the weight" in reading(page)


def test_thumbnails_open_heads_by_click_and_by_keyboard(browser: Any) -> None:
    page = browser.show(drawn(6).to_html(all_layers=True))
    title = page.locator(".chosen-heads h2")
    assert title.inner_text() == "Layer 1, mean of 3 heads"
    assert page.locator(".sheet button").count() == 6
    page.get_by_role("button", name="layer 0, head 2").click()
    assert title.inner_text() == "Layer 0, head 2"
    page.get_by_role("button", name="layer 0, head 0").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "on special tokens" in page.get_by_role("tooltip").inner_text()
    page.keyboard.press("Enter")
    assert title.inner_text() == "Layer 1, head 1"
    assert page.locator(".sheet button[aria-pressed=true]").get_attribute("aria-label") == "layer 1, head 1"


def test_matrix_tells_weights_to_pointer_and_keyboard(browser: Any) -> None:
    maps = drawn(6)
    page = browser.show(maps.to_html(layer=1, head=1))
    page.get_by_role("radio", name="matrix").click()
    field = page.get_by_role("application")
    field.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    told = page.get_by_role("tooltip").inner_text().splitlines()
    assert told[:2] == ["token2 → token1", f"weight {maps.matrix(1, 1)[2, 1]:.3f}"]
    assert page.locator(".matrix .chosen").all_inner_texts() == ["token1", "token2"]
    box = field.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 5.5 / 6, box["y"] + box["height"] * 0.5 / 6)
    assert page.get_by_role("tooltip").inner_text().startswith("[CLS] → token5")


def test_drawings_hold_lines_and_texts(browser: Any, tmp_path: Path) -> None:
    page = browser.show(drawn(6).to_html(layer=0, head=1))
    name, root = saved(page, tmp_path)
    assert name == "attention-layer-0-head-1.svg" and root.tag == f"{SVG}svg"
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts[0] == "drawn: layer 0, head 1" and texts.count("token5") == 2
    assert len(list(root.iter(f"{SVG}line"))) == 36
    for view, tag in (("matrix", "rect"), ("text", "rect")):
        page.get_by_role("radio", name=view).click()
        _, root = saved(page, tmp_path)
        assert len(list(root.iter(f"{SVG}{tag}"))) > 6
        assert "token5" in [text.text for text in root.iter(f"{SVG}text")]


def test_text_is_coloured_by_where_a_query_looks(browser: Any) -> None:
    maps = drawn(6)
    page = browser.show(maps.to_html(layer=0, head=1))
    page.get_by_role("radio", name="text").click()
    page.locator(".flow").get_by_role("option").nth(4).click()
    page.mouse.move(0, 0)
    assert "where token4 (4) looks" in page.locator(".running .said").inner_text()
    opacity = page.evaluate(
        "[...document.querySelectorAll('.flow span')].map(s => +(s.style.background.match(/[\\d.]+(?=\\))/) ?? [0])[0])"
    )
    row = maps.matrix(0, 1)[4]
    np.testing.assert_allclose(opacity, 0.65 * row / row.max(), atol=0.005)  # a browser keeps opacity in 8 bits


@pytest.fixture(scope="module")
def long_maps() -> whence.AttentionMaps:
    """Maps of a text of 512 tokens, too large for a page."""
    return drawn(512, layers=4, heads=4)


@pytest.mark.slow
def test_a_long_text_keeps_the_largest_weights_and_says_their_share(
    browser: Any, long_maps: whence.AttentionMaps
) -> None:
    maps = long_maps
    own = plan(maps.view(all_layers=True))
    html = maps.to_html(all_layers=True)
    assert own.kept is not None and 4 <= own.kept < 100 and len(html) < 3_000_000
    assert f"keeps the {own.kept} largest weights of every query" in html
    page = browser.show(html)
    page.get_by_role("button", name="layer 2, head 3").click()
    page.get_by_label("Lines of a query").select_option("all kept")
    largest = -np.sort(-maps.matrix(2, 3), axis=1)[:, : own.kept].sum(1)
    found = re.search(r"Lines carry (\d+) % of the weight \(the (\d+) largest", reading(page))
    assert found and abs(int(found[1]) - 100 * largest.mean()) <= 1 and int(found[2]) == own.kept
    page.get_by_role("listbox", name="queries").get_by_role("option").nth(300).hover()
    strongest = int(maps.matrix(2, 3)[300].argmax())
    beside = page.locator(".gathered li", has_text=f"token{strongest} ({strongest}) ")
    assert beside.is_visible()  # also where its own place in the list is out of sight
    assert f"shown: {100 * largest[300]:.0f} %" in page.get_by_role("tooltip").inner_text()
    page.get_by_role("radio", name="matrix").click()
    assert "Cells carry" in reading(page)


@pytest.mark.slow
def test_all_heads_of_a_large_model_are_a_small_page(browser: Any) -> None:
    html = drawn(64, layers=12, heads=12).to_html(all_layers=True)
    assert len(html) < 3_000_000
    page = browser.show(html)
    page.get_by_role("button", name="layer 7, head 9").click()
    assert page.locator(".chosen-heads h2").inner_text() == "Layer 7, head 9"


@pytest.mark.slow
def test_what_was_asked_for_is_kept_in_full(long_maps: whence.AttentionMaps) -> None:
    maps = long_maps
    assert plan(maps.view(layer=1, head=2)).kept is not None
    html = maps.to_html(layer=1, head=2)
    assert len(html) < 3_500_000
    assert html.count('"k":') == 4 * 5 - 1


def test_layers_that_do_not_fit_are_left_out_and_said(browser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    maps = drawn(30)
    monkeypatch.setattr(attention_data, "BUDGET", 2_000)
    page = browser.show(maps.to_html(layer=1, head=2))
    assert "It holds layer 1 only" in page.locator(".kept").inner_text()
    assert page.locator(".chosen-heads h2").inner_text() == "Layer 1, head 2"
    assert page.get_by_label("Layer", exact=True).locator("option").all_inner_texts() == ["1"]
    assert page.locator(".sheet").count() == 0


def test_patches_show_where_they_look(browser: Any, tmp_path: Path) -> None:
    maps = maps_example(picture_example())
    page = browser.show(maps.to_html(layer=0, head=1))
    rows, columns = maps.input.grid or (0, 0)
    field = page.get_by_role("application")
    assert page.get_by_role("button", name="[CLS]").get_attribute("aria-pressed") == "true"
    assert "[CLS]: " in page.locator(".over figcaption").last.inner_text()
    field.hover(position={"x": 4, "y": 4})
    first = next(i for i, name in enumerate(maps.input.features) if name == "patch 0,0")
    told = page.get_by_role("tooltip").inner_text().splitlines()
    assert told[0] == "patch 0,0 looks at"
    on_grid = [i for i, special in enumerate(maps.input.special) if not special]
    assert told[1].split()[0] == f"{maps.matrix(0, 1)[first, on_grid].max():.3f}"
    assert page.locator(".over .frame").first.is_visible()
    page.mouse.move(0, 0)
    field.focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tooltip").inner_text().startswith("patch 0,1 looks at")
    _, root = saved(page, tmp_path)
    assert root.find(f".//{SVG}image") is not None
    assert len(list(root.iter(f"{SVG}rect"))) >= rows * columns + 1


def test_stream_pairs_are_chosen(browser: Any) -> None:
    page = browser.show(encoder_decoder().to_html())
    sides = [page.get_by_role("listbox", name=name) for name in ("queries", "keys")]
    assert [side.inner_text().split() for side in sides] == [["x", "y", "z"], ["a", "b", "c", "d"]]
    page.get_by_role("radio", name="source → source").click()
    assert [side.inner_text().split() for side in sides] == [["a", "b", "c", "d"]] * 2
    assert "source looks at source" in page.locator(".chosen-heads h2").inner_text()
    assert page.locator(".all-heads:visible h2").inner_text() == "All heads: source looks at source"


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_pages_of_attention_fit_and_are_accessible(browser: Any, width: int, dark: bool) -> None:
    page = browser.show(drawn(20, heads=12, pair=True).to_html(all_layers=True), width=width, dark=dark)
    for view in ("lines", "text", "matrix"):
        page.get_by_role("radio", name=view).click()
        assert overflow(page) <= 0
        assert not accessibility_faults(page)
    page = browser.show(maps_example(picture_example()).to_html(), width=width, dark=dark)
    assert overflow(page) <= 0
    assert not accessibility_faults(page)


@pytest.mark.parametrize("choice", [{}, {"all_layers": True}])
def test_without_scripts_weights_or_thumbnails_are_there(browser: Any, choice: dict[str, Any]) -> None:
    maps = drawn(60)
    page = browser.show(maps.to_html(**choice), java_script_enabled=False)
    assert page.get_by_alt_text("thumbnails of 2 x 3 heads").is_visible()
    strongest = int(maps.matrix()[7].argmax())
    assert (f"token{strongest} 0." in page.locator("main").inner_text()) == (not choice)
