"""Commands on pictures: samples, several inputs, options of scores over a picture, chosen heads."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import whence
from whence.cli import app
from whence.core.attention_maps import AttentionMaps
from whence.core.picture_grids import PictureGrid


def run(*words: object) -> object:
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the sample pictures, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    assert run("samples").exit_code == 0
    return tmp_path


def test_samples_are_small_and_written_where_they_are_asked_for(samples: Path) -> None:
    assert sum(path.stat().st_size for path in whence.zoo.samples().values()) < 100_000
    assert {path.name for path in samples.iterdir()} == set(whence.zoo.samples())
    assert run("samples").exit_code == 0  # again: they are the same
    Image.new("L", (3, 3)).save(samples / "digit.png")
    result = run("samples")
    assert result.exit_code == 1 and "'digit.png' exists and is another file" in result.stderr
    missing = run("samples", "nowhere")
    assert missing.exit_code == 2 and "there is no folder 'nowhere'" in missing.stderr


@pytest.mark.parametrize(("model", "name", "label"), [("digits", "digit", "3"), ("textures", "dotted", "dotted")])
def test_samples_are_what_their_models_say(model: str, name: str, label: str) -> None:
    a = whence.explain(whence.load(model), whence.zoo.samples()[f"{name}.png"], "attention")
    assert a.target.name == label


def test_several_pictures_are_compared_in_one_grid(samples: Path) -> None:
    words = ("compare", "striped.png", "dotted.png", "-m", "textures", "--method", "gae,gradient", "--save")
    result = run(*words, "grid.json", "--save", "grid.png", "--contour", 0.5)
    assert result.exit_code == 0, result.output
    assert "striped.png  predicted: striped" in result.stdout and "dotted.png  predicted: dotted" in result.stdout
    grid = PictureGrid.load(samples / "grid.json")
    assert grid.names == ("striped.png", "dotted.png") and grid.methods == ["gae", "gradient"]
    subject = whence.load("textures")
    expected = whence.compare(subject, [samples / name for name in grid.names], ["gae", "gradient"])
    assert whence.PictureGrid(tuple(expected), grid.names) == grid
    with Image.open("grid.png") as drawn:
        assert drawn.width > 600


def test_one_picture_is_compared_as_before(samples: Path) -> None:
    assert run("compare", "digit.png", "--method", "gae,gradient", "--save", "one.json").exit_code == 0
    assert whence.Comparison.load(samples / "one.json")[0].target.name == "3"


def test_several_pictures_are_explained_one_by_one(samples: Path) -> None:
    result = run("explain", "striped.png", "dotted.png", "-m", "textures", "--method", "gradient", "--save", "a.json")
    assert result.exit_code == 0 and result.stdout.count("method ") == 2
    assert whence.Attribution.load(samples / "a-2.json").target.name == "dotted"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("explain", "a text", "another", "a third"), "an input has two parts at most, and 3 came"),
        (("explain", "digit.png", "--clip", "99"), "--clip changes pages and figures; name one with --save"),
        (("explain", "digit.png", "--clip", "9", "--save", "a.png"), "--clip takes a number from 50 to 100, not 9.0"),
        (
            ("explain", "digit.png", "--contour", "1", "--html", "a.html"),
            "--contour takes a number above 0",
        ),
        (("explain", "digit.png", "--patches", "--save", "a.csv"), "--patches changes pages and figures"),
        (("attention", "digit.png", "--head", "x,1"), "--head takes numbers such as 5 or 0,2, not 'x,1'"),
    ],
)
def test_what_cannot_be_read_is_said_before_anything_runs(samples: Path, words: tuple, message: str) -> None:
    result = run(*words)
    assert result.exit_code == 2 and result.stderr.startswith("error: ") and message in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("explain", "digit.png", "nowhere.png"), "the picture 'nowhere.png' cannot be read"),
        (
            ("explain", "a film", "--clip", "99", "--save", "a.png"),
            "and this input has none",
        ),
        (("attention", "digit.png", "--head", "0,0"), "a list of heads names at least one, each once, not [0, 0]"),
        (("attention", "digit.png", "--head", "0,9"), "head 9 is out of range"),
        (("attention", "digit.png", "--head", "0,1", "--all-heads"), "all heads were asked for, and head [0, 1] too"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(samples: Path, words: tuple, message: str) -> None:
    result = run(*words)
    assert result.exit_code == 1 and message in result.stderr.splitlines()[-1]


def test_chosen_heads_lie_over_the_picture(samples: Path) -> None:
    words = ("attention", "digit.png", "--layer", 3, "--head", "2,0", "--query", "patch 3,3", "--save", "heads.json")
    result = run(*words, "--save", "heads.html", "--save", "heads.svg", "--clip", 99)
    assert result.exit_code == 0 and "2, 0 of 0-3" in result.stdout, result.output
    maps = AttentionMaps.load(samples / "heads.json")
    chosen = maps.view(layer=3, head=[2, 0], query="patch 3,3")
    assert chosen.panels == ((3, 2), (3, 0))
    drawn = chosen.plot()
    assert [axes.get_title() for axes in drawn.axes[:2]] == ["head 2", "head 0"]
    assert all(len(axes.images) == 1 and axes.patches for axes in drawn.axes[:2])
    page = (samples / "heads.html").read_text()
    assert "layer 3, head 2" in page and "layer 3, head 0" in page and "head 1" not in page
    weights = chosen.weights((3, 0))
    np.testing.assert_array_equal(weights.ravel(), maps.matrix(3, 0)[1 + 3 * 7 + 3, 1:])
