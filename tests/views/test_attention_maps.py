"""Attention maps: the model's own numbers, what is shown of them, and the files that `whence attention` writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from rich.cells import cell_len
from typer.testing import CliRunner

import whence
from families import family, fresh
from whence import cli, zoo
from whence.core.geometry import patches
from whence.views.content.picture import overlays
from whence.views.terminal.attention import POOLED, pooled

PLAIN = {"WHENCE_MODEL": None, "FORCE_COLOR": None, "TTY_COMPATIBLE": None, "COLUMNS": "80"}
TEXT = "nobody understood why the unforgettable music stopped"


@pytest.fixture(scope="module", autouse=True)
def no_bars() -> Iterator[None]:
    """As `main` asks for before transformers is loaded, which is too late here."""
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


def maps_of(name: str, raw: Any = None) -> whence.AttentionMaps:
    """The maps of a family's first input, or of another."""
    found = family(name)
    subject = whence.wrap(found.model, found.processor, name=name, **found.kwargs)
    return whence.attention_maps(subject, found.inputs[0] if raw is None else raw)


def drawn(count: int, keys: int | None = None, layers: int = 2, heads: int = 3) -> whence.AttentionMaps:
    """Random maps of that many tokens; with `keys`, of a decoder that looks at that many others."""
    streams = ("target",) * count + ("source",) * keys if keys else ("text",) * count
    total = len(streams)
    x = whence.Input(
        raw="",
        features=tuple(f"token{i}" for i in range(total)),
        streams=streams,
        special=np.arange(total) == 0,
        tensors={},
        words=np.full(total, -1),
        offsets=np.full((total, 2), -1),
        parts=("",) * total,
    )
    weights = np.random.default_rng(0).dirichlet(np.full(keys or count, 0.3), (layers, heads, count))
    return whence.AttentionMaps({("target", "source") if keys else ("text", "text"): weights}, x, "drawn")


def run(*args: object, stdin: str | None = None) -> Any:
    return CliRunner(env=PLAIN).invoke(cli.app, [str(arg) for arg in args], input=stdin)


@pytest.fixture(scope="module")
def digit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A digit as a file."""
    path = tmp_path_factory.mktemp("pictures") / "digit.png"
    Image.fromarray(zoo.examples("digits", 1)[0].input).save(path)
    return path


# --- The numbers ----------------------------------------------------------------------------------------------------


def own_attentions(name: str, tensors: dict[str, np.ndarray]) -> dict[tuple[str, str], Any]:
    """What the plain model returns with output_attentions=True, by query and key stream."""
    model: Any = fresh(name).model
    model.set_attn_implementation("eager")
    with torch.no_grad():
        out = model(**{key: torch.from_numpy(a)[None] for key, a in tensors.items()}, output_attentions=True)
    if "decoder_attentions" in out:
        return {
            ("source", "source"): out.encoder_attentions,
            ("target", "target"): out.decoder_attentions,
            ("target", "source"): out.cross_attentions,
        }
    stream = "image" if "pixel_values" in tensors else "text"
    return {(stream, stream): out.attentions}


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "vit", "gpt-oss"])
def test_weights_are_those_of_the_model(name: str) -> None:
    maps = maps_of(name)
    own = own_attentions(name, maps.input.tensors)
    assert maps.weights.keys() == own.keys()
    for pair, layers in own.items():
        expected = torch.cat(layers).numpy()  # (layer, head, query, key)
        assert len(np.unique(expected)) > 10  # weights that are all alike would fit any order
        np.testing.assert_array_equal(maps.weights[pair], expected)


def test_a_learned_sink_keeps_its_share() -> None:
    maps = maps_of("gpt-oss")
    assert maps.weights[("text", "text")].sum(-1).min() < 0.5
    assert "went to a learned sink" in str(maps)
    assert "sink" not in str(maps_of("gpt2"))


def test_matrix_is_one_head_or_their_mean() -> None:
    maps = maps_of("t5")
    cross = maps.weights[("target", "source")]
    np.testing.assert_array_equal(maps.matrix(), cross[-1].mean(0))
    np.testing.assert_array_equal(maps.matrix(0, 1), cross[0, 1])
    own = maps.weights[("source", "source")]
    np.testing.assert_array_equal(maps.matrix(layer=-2, head=-1, streams="source:source"), own[-2, -1])


def test_prompt_and_continuation_are_one_text() -> None:
    whole = maps_of("gpt2", "the old man was singing")
    parts = maps_of("gpt2", {"prompt": "the old man", "continuation": " was singing"})
    assert whole.input.features == parts.input.features
    np.testing.assert_array_equal(whole.matrix(), parts.matrix())


def test_all_streams_of_two_towers_and_of_a_joint_one() -> None:
    pairs = {pair: w.shape[2:] for pair, w in maps_of("lxmert").weights.items()}
    lengths = {"text": 10, "image": 5}
    assert pairs == {(q, k): (lengths[q], lengths[k]) for q in lengths for k in lengths}
    joint = maps_of("vilt")
    assert list(joint.weights) == [("*", "*")] and len(joint.members("*")) == len(joint.input.features)


def test_list_in_list_out() -> None:
    found = family("bert")
    subject = whence.wrap(found.model, found.processor)
    several = whence.attention_maps(subject, found.inputs[:2])
    assert [maps.input.raw for maps in several] == found.inputs[:2]
    assert several[1] == whence.attention_maps(subject, found.inputs[1])


def test_windows_are_refused() -> None:
    with pytest.raises(ValueError, match="swin attends within windows"):
        maps_of("swin")


def test_saved_maps_are_equal(tmp_path: Path) -> None:
    maps = maps_of("t5")
    maps.save(tmp_path / "maps.json")
    assert whence.AttentionMaps.load(tmp_path / "maps.json") == maps
    other = {pair: w + (pair == ("target", "source")) for pair, w in maps.weights.items()}
    assert whence.AttentionMaps(other, maps.input, maps.model) != maps


def test_shapes_are_checked() -> None:
    maps = drawn(4)
    weights = maps.weights[("text", "text")]
    with pytest.raises(ValueError, match="4 entries on the key axis"):
        whence.AttentionMaps({("text", "text"): weights[..., :3]}, maps.input)
    with pytest.raises(ValueError, match="axes layer, head, query, key"):
        whence.AttentionMaps({("text", "text"): weights[0]}, maps.input)
    with pytest.raises(ValueError, match="at least one pair"):
        whence.AttentionMaps({}, maps.input)
    with pytest.raises(ValueError, match="read-only"):
        weights[:] = 0


# --- What is asked for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layer": 2}, "layer 2 is out of range: there are 2 here, from 0 to 1"),
        ({"head": -4}, "head -4 is out of range"),
        ({"query": 5}, "query 5 is out of range"),
        ({"query": "tokem1"}, "names 0 tokens, and one is needed: did you mean 'token1'"),
        ({"query": "zzz"}, "give a number from 0 to 4"),
        ({"streams": "text:image"}, "there is text:text"),
        ({"head": 1, "all_heads": True}, "head 1 too"),
        ({"layer": 1, "all_layers": True}, "layer 1 too"),
        ({"layer": 1.5}, "a layer is named by its number, not by 1.5"),
        ({"head": True}, "a head is named by its number, not by True"),
        ({"query": 1.5}, "a query is named by its number, not by 1.5"),
        ({"streams": 3}, "as 'target:source', not 3"),
    ],
)
def test_choices_that_do_not_exist(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        drawn(5).view(**choice)


def test_a_name_that_comes_twice_is_asked_for_by_number() -> None:
    maps = maps_of("bert", "the film and the book")
    with pytest.raises(ValueError, match="names 2 tokens, and one is needed: it stands at 1, 4"):
        maps.view(query="the")
    assert maps.view(query="film").query == maps.view(query=2).query == 2


def test_a_picture_is_looked_at_from_its_special_token() -> None:
    maps = maps_of("vit")
    shown = maps.view()
    assert (shown.query, shown.over_picture) == (0, True)
    np.testing.assert_array_equal(shown.weights((1, None)), maps.matrix()[0, 1:].reshape(4, 4))
    patch = maps.view(query="patch 1,0", head=2, layer=0)
    np.testing.assert_array_equal(patch.weights((0, 2)), maps.matrix(0, 2)[5, 1:].reshape(4, 4))
    assert not maps.view(query="all").over_picture


# --- The terminal ---------------------------------------------------------------------------------------------------


def test_text_shows_every_weight_of_the_head() -> None:
    maps = drawn(4)
    lines = str(maps.view(layer=0, head=2)).splitlines()
    assert lines[:3] == ["model  drawn", "layer  0 of 0-1", "head   2 of 0-2"]
    start = next(i for i, line in enumerate(lines) if line.startswith("0 token0"))
    for row, line in enumerate(lines[start : start + 4]):
        cells = [cell.strip("░▒▓█") for cell in line.split()[2:]]
        for cell, value in zip(cells, maps.matrix(0, 2)[row], strict=True):
            assert (value < 0.005) if cell == "·" else float(cell) == pytest.approx(value, abs=0.0051)


@pytest.mark.parametrize("count", [1, 3, 12, 15, 20, 40, 60, 100])
@pytest.mark.parametrize("keys", [None, 9, 70])
def test_text_fits_a_terminal_and_names_every_query(count: int, keys: int | None) -> None:
    shown = str(drawn(count, keys))
    assert max(map(cell_len, shown.splitlines())) <= 80
    for place in range(count):
        assert f"{place} token{place}" in shown
    if keys and keys < 40:  # the names of the columns are not among those of the rows
        assert all(f"token{count + key}" in shown for key in range(keys))


def test_twelve_tokens_have_numbers_and_names_in_80_columns() -> None:
    shown = str(drawn(12))
    assert "toke" in shown.splitlines()[6]
    assert shown.count(".") > 70 and "░" in shown and "█" in shown


def test_long_texts_list_the_strongest_keys() -> None:
    maps = drawn(100)
    line = next(line for line in str(maps).splitlines() if line.startswith(" 7 token7"))
    strongest = int(maps.matrix()[7].argmax())
    assert line.split()[2:5] == [str(strongest), f"token{strongest}", f"{maps.matrix()[7].max():.2f}"]
    assert "only the strongest of 100 columns" in str(maps)


def test_right_to_left_names_stand_behind_their_cells() -> None:
    maps = drawn(2)
    words = ("שלום", "token1")
    turned = whence.AttentionMaps(maps.weights, type(maps.input)(**{**vars(maps.input), "features": words}), "m")
    assert any(line.endswith("שלום") for line in str(turned).splitlines())


def test_one_query_is_a_strip_or_a_row_per_head() -> None:
    maps = drawn(5)
    alone = str(maps.view(query=1, layer=0, head=0))
    assert "query  token1 (number 1)" in alone and "token4" in alone
    many = str(maps.view(query=1, all_layers=True))
    assert "layer 1, head 2" in many


@pytest.mark.parametrize("choice", [{"all_heads": True}, {"all_layers": True}])
def test_many_maps_are_small(choice: dict[str, bool]) -> None:
    shown = str(drawn(50, heads=7).view(**choice))
    assert max(map(cell_len, shown.splitlines())) <= 80
    if "all_layers" in choice:
        heads = [line.split() for line in shown.splitlines() if line.startswith("head ")]
        assert heads[-1] == ["head", *map(str, range(7))] and "--layer 1 --head 0" in shown
    else:
        assert shown.count("head 6") == 1


def test_small_maps_are_means_of_neighbours() -> None:
    wide = np.arange(2.0 * 3 * POOLED).reshape(2, -1)
    np.testing.assert_allclose(pooled(wide), wide.reshape(2, POOLED, 3).mean(-1))


def test_weights_over_a_picture_have_no_sign() -> None:
    maps = maps_of("vit")
    shown = str(maps)
    best = patches(maps.input)[int(maps.matrix()[0, 1:].argmax())]
    assert f"strongest {maps.input.features[best]} 0." in shown
    assert "against" not in shown and "elsewhere  [CLS] 0." in shown


# --- Figures and pages ----------------------------------------------------------------------------------------------


def tick_names(axis: Any) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_heat_map_has_names_title_and_colour_bar() -> None:
    maps = maps_of("t5")
    figure = maps.plot(layer=0, head=1)
    axes, bar = figure.axes
    np.testing.assert_array_equal(axes.images[0].get_array(), maps.matrix(0, 1))
    assert tick_names(axes.yaxis) == [maps.input.features[i] for i in maps.members("target")]
    assert tick_names(axes.xaxis) == [maps.input.features[i] for i in maps.members("source")]
    assert bar.get_ylabel() == "attention weight"
    title = figure.get_suptitle()
    assert "t5: attention, layer 0 of 0-1, head 1 of 0-" in title and "target looks at source" in title


def test_heads_of_a_layer_share_a_scale() -> None:
    maps = maps_of("bert", TEXT)
    *panels, _ = maps.plot(all_heads=True, layer=0).axes
    assert [axes.get_title() for axes in panels] == [f"head {n}" for n in range(4)]
    for head, axes in enumerate(panels):
        np.testing.assert_array_equal(axes.images[0].get_array(), maps.matrix(0, head))
        assert axes.images[0].get_clim() == (0, maps.weights[("text", "text")][0].max())


def test_all_layers_are_one_picture() -> None:
    maps = drawn(4)
    axes = maps.plot(all_layers=True).axes[0]
    whole = axes.images[0].get_array()
    assert whole.shape == (2 * 5 - 1, 3 * 5 - 1)
    np.testing.assert_array_equal(whole[5:, 10:], maps.matrix(1, 2))
    assert tick_names(axes.yaxis) == ["layer 0", "layer 1"]
    assert tick_names(axes.xaxis) == ["head 0", "head 1", "head 2"]


def test_weights_lie_over_the_picture_and_frame_the_query() -> None:
    maps = maps_of("vit")
    axes = maps.plot(query="patch 1,2").axes[0]
    grid = maps.matrix()[7, 1:].reshape(4, 4)
    [over] = overlays(maps.input, [grid], signed=False, low=0.0)
    np.testing.assert_array_equal(axes.images[0].get_array(), over.image)
    height, width = over.image.shape[:2]
    assert axes.patches[0].get_xy() == (2 * width / 4 - 0.5, height / 4 - 0.5)
    assert not maps.plot().axes[0].patches  # the special token has no place
    assert len(maps.plot(all_layers=True).axes) == 2


def test_long_names_are_thinned_out() -> None:
    names = tick_names(drawn(300).plot().axes[0].xaxis)
    assert names[:2] == ["token0", "token3"]


@pytest.mark.parametrize("choice", [{}, {"query": 0}, {"all_heads": True}])
def test_page_holds_every_weight(choice: dict[str, Any]) -> None:
    maps = drawn(3)
    page = maps.to_html(**choice)
    assert page.startswith("<!doctype html>") and page.count("token0 →") == (3 * 3 if "all_heads" in choice else 3)
    over = maps_of("vit").to_html(**choice)
    assert "data:image/png" in over and "patch 3,3: 0." in over


# --- The command ----------------------------------------------------------------------------------------------------


def test_command_prints_and_writes_files(tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("map.png", "map.svg", "map.html", "map.json")]
    save = [part for name in names for part in ("--save", name)]
    result = run("attention", "the wonderful garden", "--model", "planted", "--layer", 1, "--head", 2, *save)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    maps = whence.AttentionMaps.load(names[3])
    assert maps == whence.attention_maps(whence.load("planted"), "the wonderful garden")
    assert result.stdout.rstrip() == str(maps.view(layer=1, head=2)).rstrip()
    with Image.open(names[0]) as picture:
        picture.load()
        assert picture.format == "PNG" and min(picture.size) > 200
    assert ElementTree.parse(names[1]).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert names[2].read_text(encoding="utf-8") == maps.to_html(layer=1, head=2)


@pytest.mark.parametrize("choice", [["--all-heads"], ["--all-layers"], ["--query", 1], ["--streams", "source:source"]])
def test_command_hands_its_choice_on(tmp_path: Path, choice: list[Any]) -> None:
    result = run("attention", "4 may 1990", "-m", "dates", *choice, "--save", tmp_path / "map.png")
    assert result.exit_code == 0, result.output
    keywords = {"--query": {"query": 1}, "--streams": {"streams": "source:source"}}.get(choice[0], {})
    keywords = keywords or {choice[0][2:].replace("-", "_"): True}
    maps = whence.attention_maps(whence.load("dates"), "4 may 1990")
    assert result.stdout.rstrip() == str(maps.view(**keywords)).rstrip()
    with Image.open(tmp_path / "map.png") as picture:
        picture.verify()


def test_command_writes_the_page_of_all_heads(tmp_path: Path) -> None:
    file = tmp_path / "heads.html"
    result = run("attention", "the wonderful garden", "-m", "planted", "--all-layers", "--html", file)
    assert result.exit_code == 0, result.output
    maps = whence.attention_maps(whence.load("planted"), "the wonderful garden")
    page = file.read_text(encoding="utf-8")
    layers, heads = next(iter(maps.weights.values())).shape[:2]
    assert page == maps.to_html(all_layers=True)
    assert f"thumbnails of {layers} x {heads} heads" in page and page.count("<table") == 1 + layers * heads


def test_command_numbers_files_of_several_inputs(tmp_path: Path) -> None:
    result = run("attention", "-", "-m", "planted", "--save", tmp_path / "m.json", stdin="the garden\nthe letter\n")
    assert result.exit_code == 0, result.output
    found = [whence.AttentionMaps.load(tmp_path / f"m-{n}.json").input.raw for n in (1, 2)]
    assert found == ["the garden", "the letter"]


def test_command_on_a_picture_uses_digits(digit: Path, tmp_path: Path) -> None:
    result = run("attention", digit, "--query", 12, "--layer", 0, "--save", tmp_path / "map.png")
    assert result.exit_code == 0, result.output
    assert result.stderr == "no model was named: digits is used (see whence models)\n"
    assert "query      patch 1,4 (number 12)" in result.stdout
    with Image.open(tmp_path / "map.png") as picture:
        picture.verify()
    assert "query      [CLS] (number 0)" in run("attention", digit, "--query", "[CLS]").stdout


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--save", "map.txt"], 2, "--save writes .json, .html, .png, .svg, .pdf files here"),
        (["--save", "no/such/map.png"], 2, "there is no folder 'no/such'"),
        (["--layer", 9], 1, "layer 9 is out of range"),
    ],
)
def test_command_errors(args: list[Any], code: int, message: str) -> None:
    result = run("attention", "the garden", "-m", "planted", *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("error: ") and message in result.stderr
