"""Results find their views by type: dispatch, files of every ending, tables, and pages that escape every text."""

from __future__ import annotations

import ast
import csv
import io
import os
import re
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

import whence
from pages import Page
from results_by_hand import (
    arbitration_example,
    conservation_example,
    every_result,
    generated_example,
    maps_example,
    names_example,
    picture_example,
    run_example,
    score_example,
    scoreboard_example,
    text_example,
    verification_example,
)
from whence.core import display
from whence.core.attention_maps import AttentionSelection
from whence.core.inputs import Target
from whence.core.results import Attribution, Comparison, Result
from whence.core.run_summaries import FrequentFeature, WorkerShare
from whence.core.scoreboards import Score

RESULTS = every_result()
FIGURES = (".png", ".svg", ".pdf")
WITHOUT_TABLE = (".json", ".html", *FIGURES)
ALL = (*WITHOUT_TABLE, ".csv", ".parquet")
EVIL = "<script>alert(1)</script>\"'&"


# --- dispatch -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ladybugs(Result):
    """A result that is defined outside of the package."""

    count: int


@dataclass(frozen=True, eq=False)
class Moths(Result):
    """A result without any view."""

    count: int


@display.terminal.register(Ladybugs)
def _terminal(found: Ladybugs) -> str:
    return f"[bold]{found.count}[/bold] ladybugs"


@display.fragment.register(Ladybugs)
def _fragment(found: Ladybugs) -> str:
    return f"<p>{found.count}</p>"


@display.figure.register(Ladybugs)
def _figure(found: Ladybugs) -> Any:
    from matplotlib.figure import Figure

    drawn = Figure()
    drawn.subplots().bar(["ladybugs"], [found.count])
    return drawn


@display.table.register(Ladybugs)
def _table(found: Ladybugs) -> display.Table:
    return display.Table(("count", "half", "none"), [(found.count, found.count / 3, None)])


def test_a_new_type_of_result_needs_only_its_own_functions(tmp_path: Path) -> None:
    found = Ladybugs(7)
    assert str(found) == "7 ladybugs" and "\n<p>7</p>\n" in found.to_html()
    assert found._repr_html_().startswith("<iframe") and "&lt;p&gt;7&lt;/p&gt;" in found._repr_html_()
    assert found.plot().axes[0].patches[0].get_height() == 7
    assert found.to_frame().to_dict("records") == [{"count": 7, "half": 7 / 3, "none": None}]
    assert display.endings(Ladybugs) == display.endings(found) == ALL
    for ending in ALL:
        found.write(tmp_path / f"found{ending}")
    assert Ladybugs.load(tmp_path / "found.json") == found
    assert (tmp_path / "found.csv").read_text() == "count,half,none\n7,2.33333,\n"


def test_a_type_without_views_is_told_so_in_one_sentence(tmp_path: Path) -> None:
    calls = {"terminal": str, "fragment": Moths.to_html, "figure": Moths.plot, "table": Moths.to_frame}
    for medium, call in calls.items():
        with pytest.raises(TypeError, match=rf"^the type Moths has no .*display\.{medium}\.register\(Moths\)$"):
            call(Moths(1))
    assert display.endings(Moths) == (".json",)
    with pytest.raises(ValueError, match=r"the type Moths is written as \.json, and '.*' has another ending"):
        Moths(1).write(tmp_path / "moths.html")
    with pytest.raises(ValueError, match="the type int is written to no file"):
        display.write(3, tmp_path / "three.json")


def test_a_subclass_is_shown_as_its_parent() -> None:
    class Many(Ladybugs):
        pass

    assert "<p>9</p>" in Many(9).to_html()


def test_views_of_a_result_are_one_line_in_the_base_class() -> None:
    """No type of result says how it looks; attention maps only say which of them are meant."""
    own = {"__str__", "__rich__", "to_html", "_repr_html_", "plot", "write", "to_frame"}
    for result in RESULTS.values():
        allowed = {"to_html", "plot"} if isinstance(result, whence.AttentionMaps) else set()
        assert own & set(vars(type(result))) == allowed


def test_core_never_names_the_views() -> None:
    folder = Path(display.__file__).parent
    named = [path.name for path in folder.glob("*.py") if "whence.views" in path.read_text(encoding="utf-8")]
    assert sorted(named) == ["display.py", "extensions.py"]  # the first in its docstring
    imported = [line for line in (folder / "display.py").read_text().splitlines() if re.search(r"import.*views", line)]
    assert not imported


# --- files ----------------------------------------------------------------------------------------------------------


def applying(result: Result) -> tuple[str, ...]:
    """The endings that a result should have."""
    return WITHOUT_TABLE if isinstance(result, (whence.AttentionMaps, AttentionSelection)) else ALL


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_is_written_with_every_ending_that_applies(name: str, tmp_path: Path) -> None:
    result = RESULTS[name]
    assert display.endings(result) == applying(result)
    files = {ending: tmp_path / f"result{ending}" for ending in applying(result)}
    for path in files.values():
        result.write(path)
    if not isinstance(result, AttentionSelection):
        assert type(result).load(files[".json"]) == result
    else:
        assert whence.AttentionMaps.load(files[".json"]) == result.maps
    assert files[".html"].read_text(encoding="utf-8") == result.to_html()
    with Image.open(files[".png"]) as picture:
        picture.load()
        assert picture.format == "PNG" and min(picture.size) > 150
    assert ElementTree.parse(files[".svg"]).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    assert files[".pdf"].read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("name", RESULTS)
def test_an_ending_that_does_not_apply_is_refused_with_those_that_do(name: str, tmp_path: Path) -> None:
    result = RESULTS[name]
    for ending in {*ALL, ".txt", ".jpg", ""} - set(applying(result)):
        with pytest.raises(ValueError, match=re.escape(f"is written as {', '.join(applying(result))}, and")) as caught:
            result.write(tmp_path / f"result{ending}")
        assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_endings_may_be_in_capitals(tmp_path: Path) -> None:
    for ending in (".PNG", ".Html", ".CSV"):
        text_example().write(tmp_path / f"a{ending}")
    assert (tmp_path / "a.PNG").read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize(
    ("package", "extra", "call"),
    [
        ("pandas", "data", lambda a, folder: a.to_frame()),
        ("pyarrow", "data", lambda a, folder: a.write(folder / "a.parquet")),
        ("matplotlib", "plot", lambda a, folder: a.write(folder / "a.svg")),
    ],
)
def test_a_missing_package_is_said_in_one_sentence(
    package: str, extra: str, call: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    sentence = rf"needs {package}, which is not installed; run: pip install whence\[{extra}\]$"
    with pytest.raises(ImportError, match=sentence):
        call(text_example(), tmp_path)
    assert not list(tmp_path.iterdir())


# --- tables ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, result in RESULTS.items() if ".csv" in applying(result)])
def test_csv_parquet_and_frames_hold_the_same_table(name: str, tmp_path: Path) -> None:
    import pyarrow.parquet

    result = RESULTS[name]
    own = display.table(result)
    assert own.rows and all(len(row) == len(own.columns) for row in own.rows)
    assert {type(value) for row in own.rows for value in row} <= {str, int, float, bool, type(None)}
    for ending in (".csv", ".parquet"):
        result.write(tmp_path / f"t{ending}")
    kept = pyarrow.parquet.read_table(tmp_path / "t.parquet")
    assert tuple(kept.column_names) == own.columns and kept.num_rows == len(own.rows)
    frame = result.to_frame()
    assert tuple(frame.columns) == own.columns and len(frame) == len(own.rows)
    lines = list(csv.reader(io.StringIO((tmp_path / "t.csv").read_text(encoding="utf-8"))))
    assert tuple(lines[0]) == own.columns and len(lines) == 1 + len(own.rows)
    for place, column in enumerate(own.columns):
        values = [row[place] for row in own.rows]
        np.testing.assert_equal(kept[column].to_pylist(), values)
        if isinstance(values[0], float):
            np.testing.assert_allclose([float(line[place]) for line in lines[1:]], values, rtol=1e-3)
            np.testing.assert_array_equal(frame[column], values)


def test_the_table_of_generated_text_has_a_row_per_row_and_feature() -> None:
    a = generated_example()
    own = display.table(a)
    assert own.columns == ("row", "target", "visible", "feature", "stream", "special", "score")
    assert len(own.rows) == a.scores.size
    np.testing.assert_array_equal([row[-1] for row in own.rows], a.scores.ravel())
    np.testing.assert_array_equal([row[2] for row in own.rows], a.visible.ravel())
    assert own.rows[0][:2] == (0, "log-probability of 'Pari'") and own.rows[-1][3] == a.features[-1]


def test_a_table_can_be_written_whatever_the_text(tmp_path: Path) -> None:
    odd = '\ud800 \x00 \x1b, "quoted"\n'
    a = text_example()
    a = replace(a, input=replace(a.input, features=(odd,) * len(a.features)))
    for ending in (".csv", ".parquet"):
        a.write(tmp_path / f"odd{ending}")
    with (tmp_path / "odd.csv").open(encoding="utf-8", newline="") as file:
        assert next(csv.DictReader(file))["feature"] == odd.replace("\ud800", r"\ud800")
    assert a.to_frame()["feature"][0] == odd.replace("\ud800", r"\ud800")


def test_whole_numbers_beyond_64_bits_are_written_as_floats(tmp_path: Path) -> None:
    import pyarrow.parquet

    calls = conservation_example()
    large = replace(calls, rows=(replace(calls.rows[0], call=2**70), *calls.rows[1:]))
    large.write(tmp_path / "large.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "large.parquet")["call"].to_pylist()[0] == float(2**70)


def test_names_in_a_legend_are_no_formulas(tmp_path: Path) -> None:
    replace(conservation_example(), method="$x_{$ \\frac{1}{ $$").write(tmp_path / "a.png")


def test_a_very_long_name_leaves_room_for_the_maps(tmp_path: Path) -> None:
    picture = picture_example(text="a moon")
    long = replace(picture, input=replace(picture.input, features=("x" * 5000, *picture.features[1:])))
    maps_example(long).write(tmp_path / "a.png")  # matplotlib warns where nothing is left


def test_numbers_of_a_scoreboard_keep_their_digits() -> None:
    board = scoreboard_example()
    first = board.to_csv().splitlines()[1].split(",")
    score = board.score("method_0", "auac")
    assert first[:5] == ["method_0", "auac", "higher", "unknown", f"{score.value:.6g}"]
    assert first[-2:] == ["8", f"{board.seconds[0].mean():.4g}"]
    assert display.csv_text(arbitration_example(4)) == arbitration_example(4).board.to_csv()


# --- pages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RESULTS)
def test_every_page_is_well_formed_and_needs_nothing_else(name: str) -> None:
    page = RESULTS[name].to_html()
    parsed = Page(page)
    assert page.startswith("<!doctype html>") and [tag for tag, _ in parsed.elements].count("style") == 1
    assert [tag for tag, _ in parsed.elements if tag in ("script", "link", "iframe", "object")] == ["script"]
    style, script = display.assets().values()
    rest = page.replace(script, "").replace(style, "")
    assert not re.search(r"https?:|@import|url\((?!data:image/)|\{\{|\{%", rest)


def evil_results() -> dict[str, Result]:
    """Results whose every text tries to break out of the page."""
    a = text_example()
    names = (EVIL,) * len(a.features)
    x = replace(a.input, features=names, parts=(EVIL,) * 3 + ("text",) * 3, streams=names, notes=(EVIL,))
    first = replace(a, input=x, method=EVIL, target=Target(name=EVIL), notes=(EVIL,))
    picture = picture_example(text="a moon")
    many = (EVIL,) * len(picture.features)
    picture = replace(picture, input=replace(picture.input, features=many), method=EVIL, notes=(EVIL,))
    rows = generated_example()
    named = replace(rows.input, features=(EVIL,) * len(rows.features))
    rows = replace(rows, input=named, method=EVIL, target=(Target(name=EVIL),) * 3)
    board = scoreboard_example(
        methods=("a", EVIL, "random"), metrics=(EVIL, "auac"), model=EVIL, hidden=(EVIL, EVIL), notes=(EVIL,)
    )
    calls = conservation_example()
    module = replace(calls.rows[3], name=EVIL, kind=EVIL, block=EVIL, uncovered=(EVIL,))
    evil_calls = (*calls.rows[:3], module)
    return {
        "attribution": first,
        "generated": rows,
        "picture": picture,
        "comparison": Comparison((first,)),
        "comparison of pictures": Comparison((picture,)),
        "comparison of generated text": Comparison((rows,)),
        "attention": maps_example(first, EVIL),
        "attention over a picture": maps_example(picture, EVIL),
        "conservation": conservation_example(
            rows=evil_calls, plain=evil_calls, method=EVIL, model=EVIL, target=Target(name=EVIL), notes=(EVIL,)
        ),
        "score": score_example(metric=EVIL, hidden=EVIL),
        "names": names_example(
            names=(EVIL,) * 4,
            kinds={EVIL: (EVIL,) * 4},
            sentences=(EVIL,) * 2,
            tests=(replace(names_example().tests[0], kind=EVIL, group=EVIL),),
            **{key: EVIL for key in ("method", "model")},
            notes=(EVIL,),
        ),
        "scoreboard": board,
        "run": run_example(
            **{key: EVIL for key in ("name", "model", "weights", "data", "engine")},
            methods=("a", EVIL),
            metrics=(EVIL,),
            failures={EVIL: 1},
            workers=(WorkerShare(EVIL, 1, 1, 1.0),) * 2,
            features=(FrequentFeature(EVIL, EVIL, 2, -1.0, 0.5),),
            board=board,
            versions={EVIL: EVIL},
            notes=(EVIL,),
        ),
        "verification": verification_example(name=EVIL, model=EVIL, reasons=(EVIL,), damaged=(EVIL,), notes=(EVIL,)),
        "arbitration": arbitration_example(
            metric=EVIL, candidates=(EVIL, "b", "c"), explanations=(first,), board=board, notes=(EVIL,)
        ),
    }


def test_a_figure_of_names_with_a_lone_surrogate_can_be_drawn(tmp_path: Path) -> None:
    odd = "a \ud83d film"
    tests = (replace(names_example().tests[0], measure=odd, kind=odd, group=odd),)
    found = names_example(names=(odd,) * 4, kinds={odd: (odd,) * 4}, tests=tests, target=Target(name=odd, place=odd))
    found.write(tmp_path / "a.png")


def test_blocks_that_only_one_method_went_through_are_drawn() -> None:
    c = RESULTS["conservation"]
    assert isinstance(c, whence.Conservation)
    place = next(i for i, row in enumerate(c.plain) if row.block)
    renamed = tuple(replace(row, block="another") if i == place else row for i, row in enumerate(c.plain))
    assert replace(c, plain=renamed).plot().axes


def test_markup_in_the_metric_of_an_arbitration_is_shown_as_it_is() -> None:
    odd = "[bold]not markup[/] [/bold] [link=x]"
    shown = str(replace(RESULTS["arbitration"], metric=odd))
    assert "[bold]not" in shown and "[/bold]" in shown


def test_a_page_with_a_lone_surrogate_can_be_written(tmp_path):
    calls = conservation_example()
    odd = replace(calls.rows[0], block="a \ud83d film")
    replace(calls, rows=(odd, *calls.rows[1:])).write(tmp_path / "a.html")
    assert "a \\ud83d film" in (tmp_path / "a.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", evil_results())
def test_no_text_breaks_out_of_a_page(name: str) -> None:
    page = evil_results()[name].to_html()
    assert page.count("<script") == 1 and "alert(1)</" not in page
    parsed = Page(page)
    attributes = [value for _, given in parsed.elements for value in given.values() if value]
    assert any(EVIL in text for text in [*parsed.texts, *attributes])
    assert [tag for tag, _ in parsed.elements].count("script") == 1


@pytest.mark.parametrize("name", evil_results())
def test_odd_texts_are_drawn(name: str, tmp_path: Path) -> None:
    evil_results()[name].write(tmp_path / "odd.svg")
    assert "<script" not in (tmp_path / "odd.svg").read_text(encoding="utf-8")


def test_python_holds_no_html() -> None:
    """Tags stand in the templates, where every text is escaped."""
    folder = Path(whence.__file__).parent / "views"
    files = list(folder.rglob("*.py"))
    assert len(files) > 25
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        texts = [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        assert not [text for text in texts if re.search(r"</?[a-z][a-z0-9]*[ >/]", text)], path
        assert "escape(" not in path.read_text(encoding="utf-8"), path
        assert "Markup" not in path.read_text(encoding="utf-8"), path
    for template in (folder / "templates").glob("*.html"):
        text = template.read_text(encoding="utf-8")
        assert "safe" not in re.findall(r"\|\s*(\w+)", text)
        assert text.count("autoescape false") == (3 if template.name == "base.html" else 0)


def test_style_sheet_and_script_ask_for_nothing_from_elsewhere() -> None:
    style, script = display.assets().values()
    assert not re.search(r"https?:|@import|url\(", style)
    assert not re.search(r"https?:|import[ (]|fetch|innerHTML|eval\(", script.replace("http://www.w3.org/2000/svg", ""))


# --- figures of measures --------------------------------------------------------------------------------------------


def bar_widths(axes: Any) -> list[float]:
    return [bar.get_width() for bar in axes.patches]


def test_a_comparison_has_a_panel_per_method() -> None:
    c = RESULTS["comparison"]
    assert isinstance(c, Comparison)
    figure = c.plot()
    assert [axes.get_title() for axes in figure.axes] == [a.method for a in c]
    for axes, a in zip(figure.axes, c, strict=True):
        assert bar_widths(axes) == a.scores.tolist()
    assert "own scale" in figure.get_suptitle()
    six = Comparison(tuple(replace(text_example(), method=f"m{n}") for n in range(6)))
    assert [axes.get_title() for axes in six.plot().axes if axes.axison] == [f"m{n}" for n in range(6)]


def test_a_scoreboard_has_bars_best_first_and_curves() -> None:
    axes = (("share of features shown, highest score first", "p of the target's class"), ())
    board = replace(scoreboard_example(), axes=axes)
    bars, curves, other, empty = board.plot().axes
    means = [board.score(method, "auac").value for method in ("method_0", "method_1", "random")]
    np.testing.assert_allclose(bar_widths(bars), means)
    labels = [label.get_text() for label in other.get_yticklabels()]
    assert labels[0].startswith("random") and labels[-1].startswith("method_0")
    lines = {line.get_label(): line for line in curves.lines}
    np.testing.assert_allclose(lines["method_1"].get_ydata(), board.curve("method_1", "auac")[1])
    assert curves.get_xlabel() == "share of features shown, highest score first" and not empty.axison
    assert "sst2, 8 examples, seed 3." in board.plot().get_suptitle().replace("\n", " ")


def test_a_scoreboard_draws_what_is_defined() -> None:
    values = np.array(scoreboard_example().values)
    values[0, 0], values[:, 1] = np.nan, np.nan
    board = scoreboard_example(values=values, curves=None)
    first, second = board.plot().axes
    assert len([line for line in first.lines if line.get_marker() == "o"]) == 2 and not second.lines
    assert [text.get_text() for text in second.texts] == ["not defined for any method"]


def test_an_arbitration_has_its_candidates_above_the_board() -> None:
    found = arbitration_example(4)
    candidates, *board = found.plot().axes
    np.testing.assert_allclose(bar_widths(candidates), [mean for _, mean in found.ranking()])
    assert len(board) == 4


def test_a_score_shows_every_example() -> None:
    score = score_example(value=0.6, interval=(0.55, 0.65))
    mean, examples = score.plot().axes
    assert list(examples.lines[0].get_xdata()) == [0.5, 0.7]
    assert len(Score("auac", 0.5, "higher").plot().axes) == 1
    rows = [given for given in Page(score.to_html()).find("td")]
    assert len(rows) >= 3 and mean.get_yticklabels()[0].get_text().startswith("auac")


# --- without a model ------------------------------------------------------------------------------------------------


def test_saved_results_are_shown_and_written_without_torch(tmp_path: Path) -> None:
    names = {}
    for name, result in RESULTS.items():
        if not isinstance(result, AttentionSelection):
            names[type(result).__name__] = tmp_path / f"{name}.json"
            result.save(tmp_path / f"{name}.json")
    code = (
        "import sys, pathlib, whence\n"
        "light = set(sys.modules)\n"
        "for kind, path in zip(sys.argv[1::2], sys.argv[2::2]):\n"
        "    result = getattr(whence, kind).load(path)\n"
        "    str(result)\n"
        "print(sorted({'torch', 'transformers', 'matplotlib', 'jinja2', 'pandas', 'pyarrow'} & set(sys.modules)))\n"
        "for kind, path in zip(sys.argv[1::2], sys.argv[2::2]):\n"
        "    result = getattr(whence, kind).load(path)\n"
        "    result.to_html(), result.write(path + '.png')\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))\n"
        "print(sorted({'jinja2', 'matplotlib', 'rich'} & light))\n"
    )
    source = str(Path(whence.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}
    arguments = [part for kind, path in names.items() for part in (kind, str(path))]
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout.split("\n")[:3], done.stderr) == (0, ["[]", "[]", "[]"], "")


def test_fields_of_a_score_are_saved(tmp_path: Path) -> None:
    score = score_example()
    score.save(tmp_path / "s.json")
    loaded = Score.load(tmp_path / "s.json")
    assert loaded == score and str(loaded) == str(score) and {f.name for f in fields(score)} >= {"values", "interval"}
    with pytest.raises(ValueError, match="holds a Score"):
        Attribution.load(tmp_path / "s.json")


def test_a_long_block_leaves_room_for_the_figure(tmp_path):
    c = conservation_example()
    long = replace(c.rows[0], block="a " * 500)
    replace(c, rows=(long, *c.rows[1:])).write(tmp_path / "c.png")
    assert (tmp_path / "c.png").stat().st_size > 0


def test_a_long_metric_leaves_room_for_the_figure(tmp_path):
    arbitration_example(metric="x" * 3000).write(tmp_path / "a.png")  # a figure without room is a warning, so an error
    assert (tmp_path / "a.png").stat().st_size > 0


def test_a_long_name_leaves_room_for_the_figure(tmp_path):
    a = generated_example()
    x = replace(a.input, features=("[bold]not markup[/] [/bold] [link=x]", *a.input.features[1:]))
    replace(a, input=x).write(tmp_path / "a.svg")  # matplotlib warns where nothing can be drawn
    text = text_example()
    names = replace(text.input, features=("x" * 500, *text.input.features[1:]))
    [axes] = replace(text, input=names).plot().axes
    assert axes.get_yticklabels()[0].get_text() == "x" * 23 + "…"


@pytest.mark.parametrize("value", [1e308, -1e308])
def test_the_largest_numbers_have_pages_and_figures(value, tmp_path):
    score = score_example(value=value, values=None, interval=None)
    score.write(tmp_path / "s.html")
    score.write(tmp_path / "s.png")
    assert "e+308" in str(score)


def test_a_label_of_a_fact_is_no_class_of_the_style_sheet() -> None:
    """Labels are words such as "hidden by" and "steps", which the style sheet uses for other things."""
    page = Page(RESULTS["score"].to_html())
    labelled = [given for given in page.find("tr") if "data-fact" in given]
    assert "hidden by" in [given["data-fact"] for given in labelled]
    assert not any("class" in given for given in labelled)
