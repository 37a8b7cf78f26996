"""Grids of pictures x methods: what they hold, and how they are drawn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from pages import Page
from results_by_hand import generated_example, grid_example, picture_example, text_example
from whence.core.inputs import Target
from whence.core.results import Comparison
from whence.views.content.picture import canvas


def test_a_figure_has_a_row_per_picture_and_a_column_per_method() -> None:
    grid = grid_example()
    drawn = grid.plot()
    assert len(drawn.axes) == 2 * 3
    np.testing.assert_array_equal(drawn.axes[0].images[0].get_array(), canvas(grid[0][0].input).picture)
    assert [axes.get_title() for axes in drawn.axes] == ["", "lrp(rules='ah')", "attention", "", "", ""]
    assert [len(axes.child_axes) for axes in drawn.axes] == [0, 1, 1, 0, 1, 1]  # every cell has its bar of colours
    assert drawn.axes[3].get_xlabel().startswith("b.png\nlogit of 'positive'\nf(x)")
    said = " ".join(text.get_text() for text in drawn.findobj(Text))
    assert "own scale" in said and "50%" not in said
    assert "50%" in " ".join(text.get_text() for text in grid.plot(contour=0.5).findobj(Text))


def test_what_is_predicted_stands_below_a_picture() -> None:
    a = replace(picture_example(), target=Target("logit", 3, "goldfish", predicted=True), output=2.5)
    grid = grid_example(comparisons=(Comparison((a,)),), names=())
    assert grid.plot().axes[0].get_xlabel() == "picture 1\npredicted: goldfish\nlogit 2.5"
    assert "predicted: goldfish" in " ".join(Page(grid.to_html()).texts) and "predicted: goldfish" in str(grid)


def test_a_page_has_every_cell_and_tells_scores() -> None:
    page = Page(grid_example().to_html(clip=95))
    assert len(page.find("div", "photo")) == 2 * 3 and len(page.find("div", "cells")) == len(page.pictures()) == 4
    assert {"a.png", "b.png", "attention"} <= {text.strip() for text in page.texts}
    assert "percentile 95" in " ".join(page.texts)


def test_notes_of_methods_and_broken_scores_are_said_once() -> None:
    a = replace(picture_example(), notes=("only a sample",), scores=np.array([0, np.nan, 1, 1, 1, 1, 1.0]))
    grid = grid_example(comparisons=(Comparison((a,)),) * 2)
    said = " ".join(Page(grid.to_html()).texts)
    assert said.count("only a sample") == 1 and "Not all scores are finite (grey): a.png, b.png." in said


def test_letters_of_a_pdf_stay_letters(tmp_path: Path) -> None:
    grid_example().write(tmp_path / "grid.svg")
    svg = (tmp_path / "grid.svg").read_text()
    assert svg.count("<image") >= 6 and ("<text" in svg or "DejaVuSans" in svg)


def test_it_loads_as_it_was_saved(tmp_path: Path) -> None:
    grid = grid_example()
    grid.save(tmp_path / "grid.json")
    assert type(grid).load(tmp_path / "grid.json") == grid
    table = grid.to_frame()
    assert table["picture"].unique().tolist() == ["a.png", "b.png"] and len(table) == 2 * 2 * 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"comparisons": ()}, "at least one picture, got none"),
        ({"comparisons": (Comparison((text_example(),)),)}, "no grid of patches"),
        ({"comparisons": (Comparison((generated_example(),)),)}, "no grid of patches"),
        ({"comparisons": (grid_example()[0], Comparison((picture_example(),)))}, "same methods for every picture"),
        ({"names": ("a",)}, "names must have 2 entries on the picture axis, got 1"),
    ],
)
def test_what_is_no_grid_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grid_example(**changes)
