"""Scores over a picture: the photo under them, where patches lie, colours and their scale, clipping, contours."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import whence
from families import subject_of
from pages import Page, pixels
from results_by_hand import attributed, encoded, maps_example, picture_example, special, text_example
from whence.core.geometry import on_box
from whence.core.looks import Look
from whence.core.pictures import LONGEST, bounded
from whence.core.results import Attribution, Comparison
from whence.views.colours import HEAT, heat
from whence.views.content.attribution import over_picture, shown
from whence.views.content.picture import FINE, canvas, overlays, scale_of

RNG = np.random.default_rng(0)


def photo(width: int, height: int) -> np.ndarray:
    """A picture of noise."""
    return RNG.integers(0, 256, (height, width, 3), dtype=np.uint8)


def pictured(width: int, height: int, box: tuple[float, ...] | None = None, grid: tuple[int, int] = (2, 2)):
    """An input whose photo is kept beside a small picture that the model saw."""
    rows = [(f"patch {r},{c}", "image", False, -1, (-1, -1), "") for r in range(grid[0]) for c in range(grid[1])]
    place = {"grid": grid, "image": photo(16, 16), "size": (width, height), "box": box or (0.0, 0.0, width, height)}
    return encoded([special("[CLS]", "image"), *rows], {}, raw=photo(width, height), **place)


def lightness(colour: np.ndarray) -> float:
    """Relative luminance of an sRGB colour, as the eye weighs it, on a scale that is even to the eye."""
    linear = np.where(colour <= 10, colour / 255 / 12.92, ((colour / 255 + 0.055) / 1.055) ** 2.4)
    return float((linear @ [0.2126, 0.7152, 0.0722]) ** (1 / 3))


# --- the picture ----------------------------------------------------------------------------------------------------


def test_the_photo_keeps_its_own_size_and_colours() -> None:
    x = pictured(600, 450)
    ground = canvas(x)
    assert ground.original and ground.box == (0, 0, 600, 450) and ground.name == "the picture"
    np.testing.assert_array_equal(ground.picture, x.raw)
    [over] = overlays(x, [np.array([[0.0, 0.0], [0.0, 1.0]])], signed=False)
    np.testing.assert_array_equal(over.image[:112, :150], x.raw[:112, :150])  # nothing was found there
    assert (over.image[-1, -1] == np.round(0.15 * x.raw[-1, -1] + 0.85 * np.array(HEAT[-1]))).all()


def test_a_crop_puts_the_patches_where_the_model_saw_them() -> None:
    x = pictured(600, 450, box=(150.0, 75.0, 450.0, 375.0))
    [over] = overlays(x, [np.array([[1.0, 0.0], [0.0, 0.0]])], signed=True, look=Look(patches=True))
    assert np.isnan(over.values[:75]).all() and np.isnan(over.values[:, 450:]).all()
    assert (over.values[75:225, 150:300] == 1).all() and (over.values[225:375, 150:450] == 0).all()
    pale = np.round(x.raw[0, 0] + (255 - x.raw[0, 0].astype(float)) * 0.6)
    assert (over.image[0, 0] == pale).all() and over.legend == ["pale: what the model did not see"]


def test_a_model_that_crops_is_drawn_where_it_looked() -> None:
    given = photo(200, 100)
    a = whence.explain(subject_of("clip"), {"image": given, "text": "a moon"}, "attention")
    ground = canvas(a.input)
    left, top, right, bottom = map(round, ground.box)
    assert ground.original and (right - left, bottom - top) == (bottom, bottom) and left > 0
    seen = Image.fromarray(ground.picture[top:bottom, left:right]).resize(a.input.image.shape[1::-1])
    assert np.abs(np.asarray(seen).mean((0, 1)) - a.input.image.mean((0, 1))).max() < 8


def test_padding_shows_around_the_photo() -> None:
    x = pictured(500, 300, box=(0.0, -100.0, 500.0, 400.0))
    ground = canvas(x)
    assert ground.picture.shape == (500, 500, 3) and ground.box == (0, 0, 500, 500)
    np.testing.assert_array_equal(ground.picture[100:400], x.raw)


@pytest.mark.parametrize(("width", "height", "kept"), [(4000, 1000, (1024, 256)), (1000, 4000, (256, 1024)), (5, 3, 0)])
def test_large_photos_are_made_smaller_and_small_ones_larger(width: int, height: int, kept: tuple[int, int]) -> None:
    x = replace(pictured(5, 3), raw=photo(width, height), size=(width, height), box=(0.0, 0.0, width, height))
    ground = canvas(x)
    assert ground.original and ground.box == (0, 0, *ground.picture.shape[1::-1])
    if kept:
        assert ground.picture.shape[1::-1] == kept
    else:
        np.testing.assert_array_equal(ground.picture, x.raw.repeat(FINE // 5, 0).repeat(FINE // 5, 1))


def test_many_maps_are_drawn_on_a_smaller_picture() -> None:
    x = pictured(600, 450)
    assert overlays(x, [np.eye(2)] * 16, signed=False)[0].image.shape == (450, 600, 3)
    assert overlays(x, [np.eye(2)] * 17, signed=False)[0].image.shape == (192, 256, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"box": None},
        {"size": None},
        {"raw": "photo.png"},
        {"raw": photo(31, 20)},  # an encoder of the user's own, which was given something else
        {"raw": photo(30, 20).astype(float)},
        {"raw": photo(1, 600), "size": (1, 600), "box": (0.0, 0.0, 1.0, 600.0)},  # too narrow for patches
        {"box": (0.0, 0.0, np.nan, 20.0)},
        {"box": (5.0, 0.0, 5.0, 20.0)},
        {"box": (-1e9, -1e9, 1e9, 1e9)},
    ],
)
def test_what_the_model_saw_is_shown_where_the_photo_cannot_be(changes: dict) -> None:
    ground = canvas(replace(pictured(30, 20), **changes))
    assert not ground.original and ground.name == "what the model saw" and ground.picture.shape == (FINE, FINE, 3)


def test_a_picture_with_a_text_has_its_photo_too() -> None:
    x = pictured(600, 450)
    assert canvas(replace(x, raw={"text": "a moon", "image": x.raw})).original


@pytest.mark.parametrize(
    ("mode", "size"), [("L", (40, 30)), ("RGBA", (1, 50)), ("I;16", (300, 8)), ("1", (1, 1)), ("P", (50, 1))]
)
def test_pictures_of_any_kind_and_size_are_drawn(mode: str, size: tuple[int, int], tmp_path: Path) -> None:
    given = Image.fromarray(photo(*size))
    given = Image.fromarray(photo(*size)[..., 0].astype(np.uint16) * 257) if mode == "I;16" else given.convert(mode)
    a = whence.explain(subject_of("vit"), given, "attention")
    assert a.input.size == size
    Page(a.to_html(contour=0.5, clip=99))
    a.write(tmp_path / "a.png", contour=0.5)
    with Image.open(tmp_path / "a.png") as drawn:
        assert drawn.width < 1500 and drawn.height < 2500


# --- colours and their scale ----------------------------------------------------------------------------------------


def test_the_colours_of_sizes_grow_lighter_evenly() -> None:
    levels = [lightness(colour) for colour in heat(np.linspace(0, 1, 33))]
    steps = np.diff(levels)
    assert (steps > 0).all() and steps.max() < 3 * steps.min()


def test_signs_have_a_scale_around_zero_and_sizes_one_from_zero() -> None:
    signed, plain = (scale_of([np.array([-0.5, 0.25])], True), scale_of([np.array([0.01, 0.25])], False))
    assert (signed.low, signed.high, signed.ends) == (-0.5, 0.5, ("-0.5 against", "for 0.5"))
    assert (plain.low, plain.high, plain.ends) == (0, 0.25, ("0", "0.25"))
    np.testing.assert_allclose(signed.shares(np.array([-0.5, 0.25, 0])), [1, 0.5, 0])


def test_a_map_that_is_far_from_zero_begins_at_its_smallest_score() -> None:
    x = pictured(600, 450)
    [over] = overlays(x, [np.array([[0.5, 0.51], [0.52, 0.6]])], signed=False, look=Look(contour=0.5))
    assert over.scale.low == 0.5
    np.testing.assert_array_equal(over.image[0, 0], x.raw[0, 0])
    assert over.legend[0] == "colours begin at the smallest score, 0.5"
    assert over.legend[1] == "line: the smallest area with 50% of what lies above 0.5"
    assert over.inside is not None and not over.inside[0, 0]


@pytest.mark.parametrize("value", [0.0, 0.3, np.nan])
def test_scores_that_are_all_the_same_colour_nothing(value: float) -> None:
    x = pictured(600, 450)
    [over] = overlays(x, [np.full((2, 2), value)], signed=False, look=Look(contour=0.5))
    said = "every finite score on the picture is 0.3" if value == 0.3 else "no finite score on the picture but 0"
    assert over.scale.flat and over.legend == [said]
    assert np.isnan(value) or (over.image == x.raw).all()
    assert not over.inside.any()


def test_clipping_says_where_colours_are_full() -> None:
    values = np.arange(1.0, 102.0).reshape(1, 101)
    clipped = scale_of([values], signed=False, clip=90)
    assert clipped.high == 91 and clipped.ends == ("0", "≥ 91")
    assert scale_of([-values], signed=True, clip=90).ends == ("≤ -91 against", "for ≥ 91")
    sparse = scale_of([np.eye(20)[:1]], signed=False, clip=90)  # the percentile is 0, and would colour nothing
    assert (sparse.high, sparse.clip) == (1, 100)


def test_infinite_and_huge_scores_leave_the_rest_as_it_is() -> None:
    x = pictured(600, 450)
    for values in ([[np.inf, 1.0], [0.0, 0.0]], [[-np.inf, 1e308], [0.0, -1e308]]):
        [over] = overlays(x, [np.array(values)], signed=True, look=Look(contour=0.9))
        assert np.isfinite(over.values[~over.broken]).all() and over.broken[:225, :300].all()
        assert over.image[0, -1, 2] > 180 and over.inside[0, -1] and not over.inside[-1, 0]


# --- contour, patches, pixels ---------------------------------------------------------------------------------------


def test_the_contour_holds_the_smallest_area_with_its_share() -> None:
    x = pictured(480, 480, grid=(4, 4))
    scores = RNG.normal(size=(4, 4))
    for share in (0.3, 0.8):
        [over] = overlays(x, [scores], signed=True, look=Look(contour=share, patches=True))
        order, positive = np.sort(scores[scores > 0])[::-1], scores[scores > 0].sum()
        count = next(n for n in range(17) if order[:n].sum() >= share * positive)
        assert over.inside.sum() == count * 120**2 and (over.values[over.inside] > 0).all()


def test_patches_are_shown_as_they_are_or_smoothed() -> None:
    a = picture_example()
    [smooth], [cells] = over_picture(a), over_picture(a, Look(patches=True))
    grid = a.scores[1:].reshape(2, 3)
    height, width = cells.values.shape
    np.testing.assert_array_equal(cells.values, grid.repeat(height // 2, 0).repeat(width // 3, 1))
    np.testing.assert_allclose(smooth.values, on_box(grid, height, width, (0, 0, width, height))[0])


def test_a_map_of_pixels_is_shown_as_the_method_made_it() -> None:
    a = picture_example()
    pixels = RNG.normal(size=(8, 12))
    a = replace(a, details={"pixels": pixels})
    assert over_picture(a)[0].scale.high == np.abs(pixels).max()
    assert over_picture(a, Look(patches=True))[0].scale.high == np.abs(a.scores[1:]).max()
    plain = replace(a, base=None, residual=None)
    assert over_picture(shown(plain))[0].values.min() >= 0


def test_figures_draw_the_contour_as_a_line_and_the_bar_below() -> None:
    axes = picture_example().plot(contour=0.5).axes[0]
    assert len(axes.collections) == 2 and len(axes.child_axes) == 1
    assert [label.get_text() for label in axes.child_axes[0].get_xticklabels()][1] == "0"
    assert "50%" in axes.child_axes[0].get_xlabel()
    assert not picture_example().plot().axes[0].collections


def test_pictures_in_a_pdf_keep_all_pixels(tmp_path: Path) -> None:
    a = attributed(pictured(900, 600), np.arange(5.0))
    a.write(tmp_path / "a.pdf")
    assert b"/Width 900" in (tmp_path / "a.pdf").read_bytes()


def test_pages_put_the_patches_over_what_the_model_saw() -> None:
    a = attributed(pictured(600, 450, box=(150.0, 75.0, 450.0, 375.0)), np.arange(5.0))
    page = Page(a.to_html(contour=0.5))
    [cells] = [given["style"] for tag, given in page.elements if given.get("class") == "cells"]
    assert cells.startswith("left:25.000%;top:16.667%;width:50.000%;height:66.667%;")
    assert "the smallest area with 50%" in " ".join(page.texts)


def test_a_heavy_picture_is_kept_as_jpeg_and_sent_once() -> None:
    a = attributed(pictured(900, 600), np.arange(5.0))
    page = Comparison((a, replace(a, method="attention"))).to_html()
    assert page.count("url(data:image/jpeg;base64,") == 1 and len(Page(page).find("figure", "scored")) == 2


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("look", [Look(), Look(contour=0.5, patches=True), Look(clip=70)])
def test_a_page_shows_what_a_figure_shows(signed: bool, look: Look) -> None:
    """The layers over the photo come to the picture that figures draw, but for rounding to so many levels."""
    x = pictured(448, 336, box=(40.0, 0.0, 448.0, 336.0), grid=(3, 4))
    x = replace(x, raw=np.full((336, 448, 3), (200, 120, 40), dtype=np.uint8))
    scores = RNG.normal(size=13) if signed else RNG.uniform(size=13)
    scores[5] = np.nan
    a = attributed(x, scores, **({} if signed else {"base": None, "residual": None}))
    [over] = over_picture(a, look)
    given = {"clip": look.clip, "contour": look.contour, "patches": look.patches}
    [(photo, shown)] = Page(a.to_html(**{name: value for name, value in given.items() if value})).pictures()
    np.testing.assert_array_equal(photo, x.raw)
    line = np.ones(shown.shape[:2], bool) if over.inside is None else np.ptp(shown, axis=-1) > 0  # but the line
    assert np.abs(shown[line].astype(int) - over.image[line]).max() <= 3


def test_the_layer_of_a_large_photo_weighs_little() -> None:
    a = attributed(pictured(2000, 1400, grid=(24, 24)), RNG.normal(size=577))
    [layer] = [given["src"] for given in Page(a.to_html()).find("img", "layer")]
    assert len(layer) < 120_000 and max(pixels(layer).shape) <= 512


def test_scores_that_are_all_the_same_have_no_layer() -> None:
    a = attributed(pictured(600, 450), np.zeros(5))
    assert not Page(a.to_html()).find("img")


# --- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip": 20}, "clip takes a number from 50 to 100, not 20"),
        ({"clip": float("nan")}, "clip takes a number from 50 to 100"),
        ({"contour": 1}, "contour takes a number above 0 and below 1 or None, not 1"),
        ({"patches": 1}, "patches takes True or False, not 1"),
        ({"smooth": True}, "views of pictures take the options 'clip', 'contour', 'patches', not 'smooth'"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(options: dict, message: str, tmp_path: Path) -> None:
    a = picture_example()
    for call in (a.plot, a.to_html, maps_example(a).view().plot, lambda **look: a.write(tmp_path / "a.png", **look)):
        with pytest.raises(ValueError, match=message):
            call(**options)


def test_options_where_there_is_no_picture_are_refused(tmp_path: Path) -> None:
    for result in (text_example(), Comparison((text_example(),)), maps_example().view()):
        with pytest.raises(ValueError, match="options of scores over a picture, and this input has none"):
            result.plot(clip=99)
    with pytest.raises(ValueError, match=r"go with \.html, \.png, \.svg, \.pdf, not with 'a.csv'"):
        picture_example().write(tmp_path / "a.csv", clip=99)


# --- what results keep ----------------------------------------------------------------------------------------------


def test_results_keep_large_photos_within_bounds(tmp_path: Path) -> None:
    subject = subject_of("vit")
    large = photo(3000, 200)
    a = whence.explain(subject, large, "attention")
    assert a.input.size == (3000, 200) and a.input.raw.shape == (68, LONGEST, 3)
    np.testing.assert_array_equal(a.input.raw, bounded(large))
    assert canvas(a.input).original
    a.save(tmp_path / "a.json")
    back = Attribution.load(tmp_path / "a.json")
    assert back == a and back.to_html() == a.to_html()


def test_a_result_of_before_shows_its_photo(tmp_path: Path) -> None:
    a = attributed(replace(pictured(600, 450), raw=photo(2000, 1500), size=(2000, 1500), box=(0.0, 0.0, 2000, 1500)))
    a.save(tmp_path / "old.json")
    ground = canvas(Attribution.load(tmp_path / "old.json").input)
    assert ground.original and ground.picture.shape == (768, 1024, 3)
