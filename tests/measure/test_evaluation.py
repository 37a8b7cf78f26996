"""`evaluate`: data in every form, values equal to scoring one by one, runs that go on where they stopped, views."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

import whence
from families import fresh
from pages import Page
from whence import zoo
from whence.core import checksums, display
from whence.core.registry import resolve
from whence.core.statistics import bootstrap, sign_flips
from whence.measure import datasets, local_engine, metric_runs, plans
from whence.measure.metric_protocol import Case
from whence.measure.metric_runs import MetricRuns, cases_of
from whence.model import masked_runs
from whence.model.masked_runs import MaskedRuns
from whence.views import colours
from whence.views.content import scoreboard as content
from whence.views.pages import charts

METHODS = ["random", "gae", "attention(layer=0)"]
METRICS = ["auac", "comprehensiveness(mask='unknown')"]


@pytest.fixture(scope="module")
def planted() -> whence.Subject:
    return whence.load("planted")


@pytest.fixture(scope="module")
def board(planted: whence.Subject) -> whence.Scoreboard:
    return whence.evaluate(planted, zoo.examples("planted", 20, 5), METHODS, [*METRICS, "plausibility"])


def test_values_are_those_of_score(planted: whence.Subject, board: whence.Scoreboard) -> None:
    examples = zoo.examples("planted", 20, 5)
    for method in METHODS:
        found = whence.explain(planted, [e.input for e in examples], method, [e.label for e in examples])
        for metric in METRICS:
            alone = whence.score(planted, found, metric)
            together = board.score(method, metric)
            np.testing.assert_allclose(together.values, alone.values, atol=1e-5)  # batches differ
            assert together.interval == pytest.approx(alone.interval, abs=1e-5)
    assert board.best("plausibility") != "random"
    assert board.p_value("random", "plausibility") < 0.01 and board.p_value(board.best("auac"), "auac") == 1


def test_labels_are_the_targets(planted: whence.Subject) -> None:
    text, label = zoo.examples("planted", 1, 5)[0].input, zoo.examples("planted", 1, 5)[0].label
    other = next(name for name in planted.labels or () if name != label)
    right, wrong = (
        whence.evaluate(planted, [zoo.Example(text, name)], ["gae"], ["auac"]).values[0, 0, 0]
        for name in (label, other)
    )
    assert right > 0.5 > wrong


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_files(kind: str, tmp_path: Path, planted: whence.Subject, board: whence.Scoreboard) -> None:
    examples = zoo.examples("planted", 20, 5)
    file = tmp_path / f"data.{kind}"
    rows = [{"label": e.label, "sentence": e.input} for e in examples]
    if kind == "jsonl":
        file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    elif kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        arrow.parquet = pytest.importorskip("pyarrow.parquet")
        arrow.parquet.write_table(arrow.Table.from_pylist(rows), file)
    else:
        mark = "," if kind == "csv" else "\t"
        lines = [f"label{mark}sentence", *(f"{r['label']}{mark}{r['sentence']}" for r in rows)]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    found = whence.evaluate(planted, file, METHODS[1:2], METRICS[:1])
    np.testing.assert_allclose(found.values[0, 0], board.values[1, 0], atol=1e-5)


def test_a_folder_of_pictures(tmp_path: Path) -> None:
    for number, example in enumerate(zoo.examples("digits", 4)):
        place = tmp_path / str(example.label)
        place.mkdir(exist_ok=True)
        Image.fromarray(example.input).save(place / f"{number}.{'TIF' if number else 'png'}")
    found = whence.evaluate(whence.load("digits"), tmp_path, ["gae", "random"], ["insertion(mask='black', steps=7)"])
    assert found.values.shape == (2, 1, 4) and np.isfinite(found.values).all()


@pytest.mark.parametrize(
    ("data", "error", "sentence"),
    [
        ([], ValueError, "the data is empty"),
        ("missing.csv", FileNotFoundError, "there is no file or folder"),
        ("odd.csv", ValueError, "odd.csv, row 1 fills the columns 'a', 'b'"),
        ("odd.txt", ValueError, "is none of CSV"),
    ],
)
def test_data_that_cannot_be_read(
    data: Any, error: type[Exception], sentence: str, tmp_path: Path, planted: Any
) -> None:
    if isinstance(data, str):
        data = tmp_path / data
        if data.name.startswith("odd"):
            data.write_text("a,b\n1,2\n")
    with pytest.raises(error, match=sentence):
        whence.evaluate(planted, data, METHODS, METRICS)


def test_a_run_goes_on_where_it_stopped(
    tmp_path: Path, planted: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = zoo.examples("planted", 12, 5)
    monkeypatch.setattr(plans, "MAX_EXAMPLES", 4)  # chunks of 1, 4, 4 and 3
    whole = whence.evaluate(planted, examples, METHODS, METRICS)
    file, calls, real = tmp_path / "run.jsonl", [], local_engine.run_chunk

    def stops(*args: Any) -> plans.Measurements:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(local_engine, "run_chunk", stops)
    with pytest.raises(KeyboardInterrupt):
        whence.evaluate(planted, examples, METHODS, METRICS, resume=file)
    told = capsys.readouterr().err
    assert "stopped after 5 of 12 examples" in told and f"{file} keeps; run the same again" in told
    with file.open("a") as torn:
        torn.write('{"values": [[[0.1, ')  # a line that was being written
    again = whence.evaluate(planted, examples, METHODS, METRICS, resume=file)
    assert len(calls) == 5  # two chunks were kept, the third was made again
    np.testing.assert_allclose(again.values, whole.values, atol=1e-5)
    assert whence.evaluate(planted, examples, METHODS, METRICS, resume=file).values.shape == whole.values.shape
    assert len(calls) == 5
    with pytest.raises(ValueError, match="an evaluation of another kind"):
        whence.evaluate(planted, examples, METHODS, METRICS[:1], resume=file)


def test_a_run_of_other_data_is_not_gone_on_with(planted: Any, tmp_path: Path) -> None:
    file, examples = tmp_path / "run.jsonl", zoo.examples("planted", 4, 5)
    file.write_text("")  # nothing yet
    first = whence.evaluate(planted, examples, ["gae"], METRICS, resume=file)
    other = [replace(e, label={"positive": "negative", "negative": "positive"}[e.label]) for e in examples]
    for changed in (zoo.examples("planted", 4, 6), other, [replace(e, truth=None) for e in examples]):
        with pytest.raises(ValueError, match="of other data"):
            whence.evaluate(planted, changed, ["gae"], METRICS, resume=file)
    with pytest.raises(ValueError, match="of other data"):
        whence.evaluate(planted, examples, ["gae"], METRICS, resume=file, truncate=True)
    assert whence.evaluate(planted, zoo.examples("planted", 4, 5), ["gae"], METRICS, resume=file) == first
    digits = [e.input for e in zoo.examples("digits", 2)]
    assert checksums.digest_of(digits) == checksums.digest_of(digits.copy()) != checksums.digest_of(digits[::-1])


def test_truths_and_labels_of_a_csv(planted: Any, tmp_path: Path) -> None:
    """Marks as text, and examples without a label or a truth among those that have them."""
    examples, file = zoo.examples("planted", 3, 5), tmp_path / "data.csv"
    marks = [" ".join(str(int(m)) for m in e.truth) for e in examples]
    rows = [["text", "label", "truth"], [examples[0].input, examples[0].label, marks[0]]]
    rows += [[examples[1].input, "", ""], [examples[2].input, examples[2].label, f"[{marks[2].replace(' ', ', ')}]"]]
    with file.open("w", newline="") as lines:
        csv.writer(lines).writerows(rows)
    board = whence.evaluate(planted, file, ["leave_one_out"], ["plausibility"])
    expected = whence.evaluate(planted, examples, ["leave_one_out"], ["plausibility"]).values[0, 0]
    np.testing.assert_allclose(board.values[0, 0], [expected[0], np.nan, expected[2]])
    file.write_text("text,truth\na garden,often\n")
    with pytest.raises(ValueError, match="example 0: the truth names 'often', which is not in the text"):
        whence.evaluate(planted, file, ["leave_one_out"], ["plausibility"])


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_byte_order_mark_and_spaces_are_no_part_of_a_name(kind: str, planted: Any, tmp_path: Path) -> None:
    file = tmp_path / f"data.{kind}"
    lines = {"csv": " label, text\nnegative,a garden\n", "jsonl": '{"label": "negative", "text": "a garden"}\n'}
    file.write_text(lines[kind], encoding="utf-8-sig")
    assert datasets.read(file) == (["a garden"], ["negative"], [None])
    assert whence.evaluate(planted, file, ["gae"], ["auac"]).notes == ("Explained: the label given, of 1 of 1 inputs.",)
    assert whence.evaluate(planted, ["a garden"], ["gae"], ["auac"]).notes == ("Explained: what the model predicts.",)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"text\na good, nice film\n", "a.csv, row 1 has more cells than the header names; put texts"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": \n', "a.jsonl, line 3 is not JSON"),
        ("a.jsonl", b'["a", "b"]\n', "a.jsonl, line 1 is no object"),
        ("a.csv", "text\nun café\n".encode("latin-1"), "a.csv is not UTF-8 text"),
        ("a.csv", b"text,label\na garden,negative\na garden,odd\n", "example 1: the target 'odd' is not a label"),
        ("a.csv", b"a walk in the garden\na dull one\n", "a.csv begins with a text; the first line of a table names"),
        ("a.csv", b'text,label\n"an open quote,1\nmore,0\n', "a.csv cannot be read as a table"),
        ("a.csv", b"text,text\na,b\n", "a.csv names the column 'text' twice"),
        ("a.parquet", b"PAR1 nothing of the kind", "a.parquet cannot be read as Parquet"),
        ("a.jsonl", b"[" * 100_000 + b"\n", "a.jsonl, line 1 is not JSON"),
        ("a.csv", b"text;label\na good; nice film;odd\n", "a.csv, row 1 has more cells than the header names; put"),
        ("a.csv", b"text,label\na garden,negative\n,negative\n", "a.csv, row 2 fills the columns 'label'; one of text"),
    ],
)
def test_tables_that_would_be_misread(name: str, content: bytes, sentence: str, planted: Any, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        whence.evaluate(planted, tmp_path / name, ["gae"], ["auac"])


def test_semicolons_part_cells_where_the_header_has_them(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text('text;label\n"a good, nice film; truly";1\na dull one, really;0\n')
    assert datasets.read(file)[:2] == (["a good, nice film; truly", "a dull one, really"], ["1", "0"])
    file.write_text('"text","label"\n"one; two",1\n')
    assert datasets.read(file)[:2] == (["one; two"], ["1"])


def test_odd_names_of_columns_are_told_on_one_line() -> None:
    with pytest.raises(ValueError, match=r"row 0 fills the columns 'te.*xt', 'other'; one of text") as told:
        datasets.read(pytest.importorskip("pandas").DataFrame([{"te\x0c\nxt": "a", "other": "b"}]))
    assert "\n" not in str(told.value)


def test_rows_in_python(planted: Any) -> None:
    rows = [
        {"text": "a garden", "label": "negative"},
        {"text": "a film", "label": 1.0},
        {"text": "a day", "label": np.nan},
    ]
    frame = pytest.importorskip("pandas").DataFrame(rows)
    texts, labels = ["a garden", "a film", "a day"], ["negative", 1.0, None]
    assert datasets.read(rows) == datasets.read(frame) == (texts, labels, [None] * 3)
    assert [datasets.as_target(planted, label) for label in (*labels, "1", "0.0", "positive")] == [
        "negative", 1, None, 1, 0, "positive",
    ]  # fmt: skip
    assert datasets.read(frame[["text"]].rename(columns={"text": "sentence"})) == (texts, [None] * 3, [None] * 3)
    with pytest.raises(TypeError, match="not dict"):
        datasets.read({"text": texts})


def test_a_number_is_a_token_to_a_language_model() -> None:
    assert datasets.as_target(whence.load("recall"), "13") == "13"


def test_pictures_lie_beside_their_table(tmp_path: Path) -> None:
    digits, example = whence.load("digits"), zoo.examples("digits", 1)[0]
    (tmp_path / "there").mkdir()
    Image.fromarray(np.asarray(example.input)).save(tmp_path / "there" / "one.png")
    (tmp_path / "there" / "data.csv").write_text(f"image,label\none.png,{example.label}\n")
    board = whence.evaluate(digits, tmp_path / "there" / "data.csv", ["gae", "random"], ["auac", "comprehensiveness"])
    expected = whence.evaluate(digits, [example], ["gae", "random"], ["auac(mask='auto')"])
    np.testing.assert_allclose(board.values[:, :1], expected.values, atol=1e-6)  # the usual mask is for texts
    assert "unknown" not in board.hidden
    planted = whence.load("planted")
    with pytest.raises((TypeError, ValueError)):  # a text model is not given the name of a picture to read
        whence.evaluate(planted, tmp_path / "there", ["gae"], ["auac"])


def test_a_run_of_another_model_is_not_gone_on_with(tmp_path: Path) -> None:
    made = [fresh("bert") for _ in range(2)]
    with torch.no_grad():
        made[1].model.classifier.weight += 0.1
    one, other = (whence.wrap(m.model, m.processor, name="net") for m in made)
    whence.evaluate(one, ["a garden"], ["gae"], ["auac"], resume=tmp_path / "run.jsonl")
    with pytest.raises(ValueError, match="or of another model"):
        whence.evaluate(other, ["a garden"], ["gae"], ["auac"], resume=tmp_path / "run.jsonl")
    (tmp_path / "odd.jsonl").write_text("text\na garden\n")
    with pytest.raises(ValueError, match="is no file of an evaluation"):
        whence.evaluate(one, ["a garden"], ["gae"], ["auac"], resume=tmp_path / "odd.jsonl")


def test_explanations_of_another_model_are_not_scored(planted: Any) -> None:
    a = whence.explain(planted, "a good film", "gae")
    assert whence.score(planted, a, "auac").value > 0
    with pytest.raises(ValueError, match="explains another model"):
        whence.score(whence.load("sst2"), a, "auac")
    with pytest.raises(ValueError, match="name the model that was"):
        whence.score(whence.load("digits"), a, "deletion")


def test_names_on_a_board(board: whence.Scoreboard) -> None:
    assert board.score("gae()", "auac(steps=10)") == board.score("gae", "auac")
    for method, metric, sentence in (
        ("gea", "auac", "no method 'gea'; did you mean 'gae'"),
        ("gae", "lrp", "no metric 'lrp'"),
    ):
        for ask in (board.score, board.p_value, board.curve):
            with pytest.raises(ValueError, match=sentence):
                ask(method, metric)


@pytest.mark.parametrize("wrong", [{"methods": "gae"}, {"methods": []}, {"metrics": "auac"}, {"metrics": []}])
def test_lists_are_asked_for(wrong: dict[str, Any], planted: Any) -> None:
    with pytest.raises(ValueError, match="is a list of at least one"):
        whence.evaluate(planted, ["a garden"], **{"methods": ["gae"], "metrics": ["auac"], **wrong})


def test_what_is_defined_for_some_says_so() -> None:
    board = drawn_board(count=3, examples=4, metrics=("auac",))
    some = replace(board, values=np.where([[[True, False, False, True]]] * 3, np.nan, board.values))
    assert "(2)" in str(some) and "(2)" in some.to_html() and "(4)" not in str(board)
    assert "2 of 4 examples" in str(some.score("random", "auac"))
    lines = [line for line in str(board).splitlines() if "\u2605" in line]
    assert lines[0].startswith("method_0") and len(lines) == 2  # the best, and what the star means


def test_a_curve_has_the_area_of_its_metric_where_examples_have_several_rows() -> None:
    dates = whence.load("dates")
    raws = [e.input for e in zoo.examples("dates", 2)]
    found = whence.evaluate(dates, [*raws, {"source": "3 March 2014", "output": "20"}], ["gae"], ["auac"])
    shares, values = found.curve("gae", "auac")
    assert np.trapezoid(values, shares) == pytest.approx(found.score("gae", "auac").value, abs=1e-6)


def test_methods_are_ranked_on_examples_that_all_have() -> None:
    board = drawn_board(count=3, examples=4, metrics=("auac",))
    values = np.array([[0.9, 0.5, 0.5, 0.5], [0.8, np.nan, np.nan, np.nan], [np.nan] * 4])[:, None]
    some = replace(board, values=values)
    assert some.best("auac") == board.methods[0]
    assert np.isnan(some.p_value(board.methods[2], "auac"))


def test_sign_flips_do_not_depend_on_the_unit() -> None:
    gaps = np.random.default_rng(0).normal(1, 0.5, size=20)
    assert sign_flips(gaps) == sign_flips(gaps * 1e-13) < 0.01


def cases_of_planted(planted: whence.Subject, count: int) -> list[Case]:
    found = whence.explain(planted, [e.input for e in zoo.examples("planted", count, 5)], "gae")
    return [case for a in found for case in cases_of(planted, a)]


def test_equal_inputs_run_once(planted: Any) -> None:
    rows, engine = cases_of_planted(planted, 4), MaskedRuns(planted)
    for metric in ("auac", "auac", "aupc"):
        MetricRuns(engine).scored([resolve("metric", metric)], rows)
    assert engine.run <= 2 * 11 * len(rows) < engine.asked == 3 * 11 * len(rows)


def test_methods_and_metrics_share_masked_inputs(planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving one out is a method here and a metric there: what it asks is run once, and both read the same answers."""
    engines: list[MaskedRuns] = []
    monkeypatch.setattr(plans, "MaskedRuns", lambda *a: engines.append(MaskedRuns(*a)) or engines[-1])
    texts = [e.input for e in zoo.examples("planted", 3, 5)]
    board = whence.evaluate(planted, texts, ["leave_one_out", "occlusion(window=1)"], ["loo_agreement"])
    distinct = sum(1 + int((~planted.encode(text).special).sum()) for text in texts)
    assert sum(engine.run for engine in engines) == distinct
    assert sum(engine.asked for engine in engines) == 4 * distinct  # two methods, and a metric of each
    np.testing.assert_allclose(board.values, 1.0, rtol=1e-12)


def test_answers_are_forgotten_before_they_fill_memory(planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little room the same values come, of more passes, and never more answers are held than there is room for."""
    rows = cases_of_planted(planted, 6)
    held: list[int] = []

    def scored(engine: MaskedRuns) -> list[float]:
        run = engine._run

        def watched(*args: Any) -> None:
            run(*args)
            held.append(engine._known.bytes)

        monkeypatch.setattr(engine, "_run", watched)
        metrics = [MetricRuns(engine).scored([resolve("metric", m)], rows)[0] for m in ("auac", "au_mse")]
        return [float(value) for values in metrics for value in values]

    plenty = MaskedRuns(planted)
    expected, most = scored(plenty), max(held)
    held.clear()
    monkeypatch.setattr(masked_runs, "MAX_KNOWN", most // 4)
    monkeypatch.setattr(metric_runs, "MAX_ASKED", 11)  # the variants of one curve
    little = MaskedRuns(planted)
    np.testing.assert_allclose(scored(little), expected, atol=1e-5)
    assert little.run > plenty.run
    assert max(held) <= most // 4 + most // len(rows) + 1


def test_views(board: whence.Scoreboard, tmp_path: Path) -> None:
    text, page = str(board), board.to_html()
    for method in METHODS:
        assert method in text and method.replace("'", "&#39;") in page
    assert len(board.to_csv().splitlines()) == 1 + 3 * 3
    assert page.count("<svg") == 1  # of auac
    assert board.notes[0] in page and board.notes[0] in " ".join(text.split())
    assert "&#39;&#39;" not in drawn_board().to_html()  # nothing is said where there are no notes
    shares, values = board.curve("gae", "auac")
    assert np.trapezoid(values, shares) == pytest.approx(board.score("gae", "auac").value, abs=1e-6)
    board.save(tmp_path / "board.json")
    assert whence.Scoreboard.load(tmp_path / "board.json") == board


def drawn_board(
    count: int = 3, examples: int = 8, metrics: tuple[str, ...] = ("auac", "au_mse"), **changes: Any
) -> whence.Scoreboard:
    """Method 0 is the best by far, the last one `random`; curves of metric 0 rise from 0 to 1 / (1 + method)."""
    names = (*(f"method_{n}" for n in range(count - 1)), "random")
    worth = np.array([1.0, *np.linspace(0.6, 0.5, count - 1)])[:, None, None]
    noise = np.random.default_rng(0).normal(scale=0.01, size=(count, len(metrics), examples))
    curves = np.full((count, len(metrics), 21), np.nan)
    curves[:, 0] = np.linspace(0, 1, 21) / (1 + np.arange(count))[:, None]
    fields = {
        "methods": names,
        "metrics": metrics,
        "better": ("higher",) * len(metrics),
        "values": worth + noise,
        "seconds": np.ones((count, examples)),
        "model": "sst2",
        "seed": 3,
        "hidden": ("unknown",) * len(metrics),
        "curves": curves,
    }
    return whence.Scoreboard(**(fields | changes))


def test_csv_reads_back() -> None:
    """Specs hold commas, and both kinds of quotes where an option does."""
    board = drawn_board(metrics=("auac", "au_mse(mask={'text': \"it's, hidden\"})"))
    rows = list(csv.DictReader(io.StringIO(board.to_csv())))
    assert [(row["method"], row["metric"]) for row in rows] == [(m, n) for m in board.methods for n in board.metrics]
    assert float(rows[1]["mean"]) == pytest.approx(board.score(*list(rows[1].values())[:2]).value, rel=1e-5)


def polylines(page: str) -> dict[str, np.ndarray]:
    """The points of every line, (point, x and y), by the method that its title names."""
    found = re.findall(r'<polyline points="([^"]*)"[^>]*><title>(.*?): [^:]*</title>', page)
    return {unescape(name): np.array([p.split(",") for p in points.split()], float) for points, name in found}


def test_a_curve_is_a_line_from_end_to_end() -> None:
    board = drawn_board()
    lines = polylines(board.to_html())
    left, right, bottom = charts.LEFT, charts.WIDE - charts.RIGHT, charts.HIGH - charts.BOTTOM
    assert set(lines) == set(board.methods)
    for number, method in enumerate(board.methods):
        assert len(lines[method]) == 21
        np.testing.assert_allclose(lines[method][[0, -1], 0], [left, right])
        rise = lines[method][0, 1] - lines[method][-1, 1]  # y grows downwards
        assert rise == pytest.approx((bottom - charts.TOP) / 1.08 / (1 + number), abs=0.2)  # 4 % of room at both ends


def test_a_curve_is_cut_where_it_ends() -> None:
    curves = np.array(drawn_board().curves)
    curves[:, 0, 19:] = np.nan
    curves[1, 0, 11:] = np.nan
    board = drawn_board(curves=curves)
    shares, values = board.curve("method_0", "auac")
    assert shares[-1] == pytest.approx(0.9) == values[-1]
    page = display.fragment(board)
    lines = polylines(page)
    assert "nan" not in page
    assert [len(lines[method]) for method in board.methods] == [19, 11, 19]
    assert lines["method_0"][-1, 0] == charts.WIDE - charts.RIGHT  # the axis ends with the longest


@pytest.mark.parametrize("curves", [None, np.full((3, 2, 21), np.nan)])
def test_no_curve_no_drawing(curves: np.ndarray | None) -> None:
    board = drawn_board(curves=curves)
    assert "<svg" not in board.to_html() and not len(board.curve("random", "auac")[0])


def test_sections_rank_the_best_first() -> None:
    axes = (("share of features shown", "p of the target's class"), ("share of features hidden", "squared change"))
    board = drawn_board(metrics=("auac", "au_mse(steps=5)"), better=("higher", "lower"), axes=axes)
    page = Page(board.to_html())
    assert len(page.find("section")) == 2
    tips = [given["title"].split(":")[0] for given in page.find("div", "track")]
    assert tips == ["method_0", "method_1", "random", "random", "method_1", "method_0"]
    words = "".join(page.texts)
    assert "Scoreboard of sst2" in words and "3 methods, 2 metrics, 8 examples, seed 3." in words
    assert "higher is better; hidden features: unknown" in words and "lower is better" in words
    assert all(axis in words for axis in axes[0])  # the second metric has no curve here
    assert f"p = {board.p_value('method_1', 'auac'):.3f}" in words


def test_bars_start_at_zero_where_that_hides_nothing() -> None:
    near, far = (drawn_board(values=drawn_board().values + shift) for shift in (-0.2, 10))
    assert len(Page(near.to_html()).find("i", "bar")) == 2 * 3 == len(Page(near.to_html()).find("i", "whisker"))
    page = Page(far.to_html())
    places = [float(re.search(r"left:([\d.]+)%", given["style"])[1]) for given in page.find("i", "dot")]  # type: ignore[index]
    assert not page.find("i", "bar") and places[0] > 90 and places[2] < 10  # the best right, the worst left


def test_names_are_escaped() -> None:
    evil = "<script>alert(1)</script>\"'&"
    board = drawn_board(methods=("a", evil, "random"), metrics=(evil, "auac"), model=evil, hidden=(evil, evil))
    parsed = Page(board.to_html())
    assert [tag for tag, _ in parsed.elements].count("script") == 1  # the one that all pages share
    assert evil in polylines(board.to_html()) and evil in "".join(parsed.texts)
    odd = drawn_board(methods=("[/red]", "\x1b[31m", "random"), model="[bold]")
    assert "[/red]" in str(odd) and "\x1b" not in str(odd) + odd.to_html() and "[bold]" in str(odd)


def test_one_example_has_neither_intervals_nor_stars() -> None:
    board = drawn_board(examples=1)
    page = Page(board.to_html())
    for words in (str(board), " ".join(page.texts)):
        assert "1 example," in words and "*" not in words and "told apart" not in words and "[" not in words
        assert "p =" not in words and "p <" not in words
    assert not page.find("i", "whisker") and len(page.find("b")) == 2 * 2  # the best of a metric: table and bars
    assert "8 examples" in str(drawn_board()) and "told apart" in str(drawn_board())


def test_many_methods_keep_their_colours() -> None:
    metrics = ("auac", "aupc", "insertion")
    values = np.random.default_rng(1).normal(size=(30, 3, 8))
    board = drawn_board(30, metrics=metrics, values=values, curves=np.random.default_rng(2).random((30, 3, 21)))
    page = board.to_html()
    lines = re.findall(r'stroke="([^"]*)" stroke-width="([^"]*)"( stroke-dasharray="[^"]*")?[^>]*><title>(\w+):', page)
    assert len(lines) == 3 * 30
    styles: dict[str, set[tuple[str, ...]]] = {}
    for number in range(3):
        own = lines[30 * number : 30 * (number + 1)]
        coloured = [line for line in own if line[0] not in (colours.OTHER_METHODS, "currentColor")]
        assert len(coloured) == len({line[:3] for line in coloured}) == content.FEW and coloured == own[-content.FEW :]
        assert coloured[-1][3] == board.best(metrics[number])  # the best on top of all
        for *style, name in coloured:
            styles.setdefault(name, set()).add(tuple(style))
    assert all(len(own) == 1 for own in styles.values())
    assert len(set.union(*styles.values())) == len(styles) > len(colours.METHODS)


def test_what_is_not_defined_is_not_ranked() -> None:
    values = np.array(drawn_board().values)
    values[0, 0], values[1, 0, :3], values[:, 1] = np.nan, np.nan, np.nan
    board = drawn_board(values=values)
    page = display.fragment(board)
    assert board.best("auac") == "method_1" and "defined for 0 to 8 of 8 examples" in page
    assert "not defined for any method" in page and "nan" not in page
    first = next(line for line in str(board).splitlines() if line.startswith("method_0"))
    assert first.split() == ["method_0", "-", "-", "1"]


@pytest.mark.parametrize(("width", "abreast"), [(150, (3, 1)), (100, (3, 1)), (76, (2, 2)), (56, (1, 1, 1, 1))])
def test_the_terminal_shows_as_many_metrics_abreast_as_fit(width: int, abreast: tuple[int, ...]) -> None:
    metrics = ("auac", "au_mse", "comprehensiveness(mask='unknown')", "aupc")
    names = (*(f"method_{n}" for n in range(11)), "attention_x_gradient")
    board = drawn_board(12, metrics=metrics, methods=names)
    file = io.StringIO()
    Console(file=file, width=width).print(board)
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith(names)]
    assert [row.count("[") for row in rows] == [count for count in abreast for _ in names]  # every row on one line
    assert "comprehensiveness" in file.getvalue() and "(mask='unknown')" in file.getvalue()


def test_intervals() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=400)
    mean, interval = bootstrap(values)
    assert interval is not None and interval[0] < mean < interval[1]
    assert interval[1] - interval[0] == pytest.approx(2 * 1.96 / 20, rel=0.15)  # of a mean of 400 normal values
    assert bootstrap(np.array([np.nan, 2.0])) == (2.0, None)
    assert bootstrap(np.array([np.inf, 2.0, np.inf])) == (np.inf, None)
    assert np.isnan(bootstrap(np.array([np.inf, 2.0, -np.inf]))[0])
    assert sign_flips(values + 0.5) < 0.01 < 0.05 < sign_flips(values) and sign_flips(np.zeros(5)) == 1


@pytest.mark.parametrize("name", ["values", "seconds", "curves"])
def test_a_board_refuses_numbers_whose_sums_overflow(name: str) -> None:
    parts = {"values": np.ones((1, 1, 2)), "seconds": np.ones((1, 2)), "curves": np.ones((1, 1, 3))}
    assert whence.Scoreboard(("gae",), ("auac",), ("higher",), **parts).score("gae", "auac").value == 1
    parts[name].flat[0] = -1e308
    with pytest.raises(ValueError, match=f"{name} must lie between -1e"):
        whence.Scoreboard(("gae",), ("auac",), ("higher",), **parts)
