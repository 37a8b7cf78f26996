"""Terminals of any width: comparisons, pictures and attention fit, numbers stay whole, and no colours mean numbers."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from results_by_hand import comparison, generated_example, maps_example, picture_example, text_example
from whence.core import display
from whence.core.results import Comparison
from whence.views import colours

WIDTHS = (40, 80, 120, 200)
METHODS = (
    "lrp(rules='ah')",
    "attention",
    "integrated_gradients(steps=16, baseline='mask')",
    "gradient_x_input",
    "shap",
)


def printed(shown: Any, width: int, colour: str | None = "truecolor", **more: Any) -> str:
    """What a terminal of so many columns shows, without the codes of colours."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, color_system=colour, legacy_windows=False, **more)
    console.print(shown)
    return re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())


def compared(a: Any) -> Comparison:
    return Comparison(tuple(replace(a, method=method) for method in METHODS))


RESULTS = {
    "text": compared(text_example("a masterful film about extraordinarily long words " * 3)),
    "generated text": compared(generated_example()),
    "picture": compared(picture_example()),
    "picture and text": compared(picture_example(text="a moon")),
    "one picture": picture_example(),
    "all layers": maps_example().view(all_layers=True),
    "attention over a picture": maps_example(picture_example()).view(),
}


@pytest.mark.parametrize("colour", ["truecolor", "standard"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", RESULTS)
def test_every_line_fits(name: str, width: int, colour: str) -> None:
    shown = printed(RESULTS[name], width, colour)
    assert max(map(cell_len, shown.splitlines())) <= width


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["text", "generated text"])
def test_no_number_is_broken(name: str, width: int) -> None:
    c = RESULTS[name]
    shown = printed(display.terminal(c, kind="values"), width)
    assert max(map(cell_len, shown.splitlines())) <= width
    rows = [a.scores[-1] for a in c] if c[0].scores.ndim == 2 else [a.scores for a in c]
    numbers = re.findall(r"[+-]\d+\.\d\d\b", shown)
    for scores in rows:
        assert numbers.count(f"{scores[1]:+.2f}") >= len(METHODS)


def test_methods_are_rows_of_text_and_values_come_on_demand() -> None:
    c = comparison()
    rows = printed(c, 100)
    assert re.search(r"lrp\(rules='ah'\) +\[CLS\] a masterful film \[SEP\]", rows)
    assert re.search(r"attention +\[CLS\] a masterful film \[SEP\]", rows) and "--values" in rows
    assert not re.search(r"[+-]\d\.\d", rows)
    assert re.search(r"mast +[+-]\d\.\d+ +\d+\.\d+", printed(display.terminal(c, kind="values"), 100))


def test_rows_have_the_colours_of_their_scores() -> None:
    a = text_example(scores=np.array([0.0, 0.5, 1.0, -1.0, -0.01, 0.125]))
    c = Comparison((a, replace(a, method="large", scores=1000 * a.scores)))
    console = Console(force_terminal=True, color_system="truecolor", width=100, file=io.StringIO())
    found = [(part.text, part.style.bgcolor) for part in console.render(c) if part.style]
    for piece, colour in (("mast", colours.FOR), ("erful", colours.AGAINST)):
        assert [tuple(ground.triplet) for text, ground in found if text == piece] == [colour, colour]
    assert all(ground is None for text, ground in found if text == "film")  # too weak for a colour


@pytest.mark.parametrize("more", [{"colour": None}, {"no_color": True}, {"colour": "standard"}])
def test_without_colours_there_are_numbers_and_shades(more: dict[str, Any]) -> None:
    assert re.search(r"mast +[+-]\d\.\d+ +\d+\.\d+", printed(comparison(), 100, **more))
    for result in (RESULTS["picture"], RESULTS["one picture"], RESULTS["all layers"]):
        shown = printed(result, 100, **more)
        assert "▀" not in shown and "░" in shown
    assert "▀" not in str(RESULTS["one picture"]) and "▀" in printed(RESULTS["one picture"], 100)


def test_half_blocks_are_the_pixels_of_the_photo() -> None:
    grey = np.full((8, 12, 3), 200, dtype=np.uint8)
    grey[4:] = 50
    a = picture_example(image=grey)
    console = Console(force_terminal=True, color_system="truecolor", width=80, file=io.StringIO())
    blocks = [part.style for part in console.render(replace(a, scores=np.zeros(7))) if part.text == "▀"]
    shades = {tuple(colour.triplet) for style in blocks for colour in (style.color, style.bgcolor)}
    assert shades == {(200, 200, 200), (50, 50, 50)}


def test_all_layers_are_thumbnails_with_the_way_to_one_map() -> None:
    weights = np.zeros((6, 12, 30, 30))
    weights[..., 0] = 1.0
    maps = maps_example(text_example(" ".join(["a"] * 28)))
    shown = printed(replace(maps, weights={("*", "*"): weights}).view(all_layers=True), 80, None)
    assert len(shown.splitlines()) < 50 and "--layer 1 --head 0" in shown
    first = next(line for line in shown.splitlines() if line.startswith("layer 0"))
    assert first.count("█") == 12  # the first key alone has weight, in every head
