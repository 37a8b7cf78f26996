"""`evaluate`: data in every form, values equal to scoring one by one, runs that go on where they stopped, views."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import whence
from whence import scoreboard, zoo
from whence.intervals import bootstrap, sign_flips

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
        Image.fromarray(example.input).save(place / f"{number}.png")
    found = whence.evaluate(whence.load("digits"), tmp_path, ["gae", "random"], ["insertion(mask='black', steps=7)"])
    assert found.values.shape == (2, 1, 4) and np.isfinite(found.values).all()


@pytest.mark.parametrize(
    ("data", "error", "sentence"),
    [
        ([], ValueError, "the data is empty"),
        ("missing.csv", FileNotFoundError, "there is no file or folder"),
        ("odd.csv", ValueError, "has the columns a, b"),
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


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, planted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = zoo.examples("planted", 12, 5)
    monkeypatch.setattr(scoreboard, "CHUNK", 4)
    whole = whence.evaluate(planted, examples, METHODS, METRICS)
    file, calls, real = tmp_path / "run.jsonl", [], scoreboard._chunk

    def stops(*args: Any) -> dict[str, Any]:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(scoreboard, "_chunk", stops)
    with pytest.raises(KeyboardInterrupt):
        whence.evaluate(planted, examples, METHODS, METRICS, resume=file)
    with file.open("a") as torn:
        torn.write('{"values": [[[0.1, ')  # a line that was being written
    again = whence.evaluate(planted, examples, METHODS, METRICS, resume=file)
    assert len(calls) == 4  # two chunks were kept, the third was made again
    np.testing.assert_allclose(again.values, whole.values, atol=1e-5)
    assert whence.evaluate(planted, examples, METHODS, METRICS, resume=file).values.shape == whole.values.shape
    assert len(calls) == 4
    with pytest.raises(ValueError, match="an evaluation of another kind"):
        whence.evaluate(planted, examples, METHODS, METRICS[:1], resume=file)


def test_equal_inputs_run_once(planted: Any) -> None:
    from whence.metrics.running import Runner, cases
    from whence.registry import resolve

    rows = [
        c
        for a in whence.explain(planted, [e.input for e in zoo.examples("planted", 4, 5)], "gae")
        for c in cases(planted, a)
    ]
    runner = Runner(planted)
    for metric in ("auac", "auac", "aupc"):
        record, options = resolve("metric", metric)
        runner.score(record.function, rows, options)
    assert runner.run <= 2 * 11 * len(rows) < runner.asked == 3 * 11 * len(rows)


def test_views(board: whence.Scoreboard, tmp_path: Path) -> None:
    text, page = str(board), board.to_html()
    for method in METHODS:
        assert method in text and method.replace("'", "&#x27;") in page
    assert len(board.to_csv().splitlines()) == 1 + 3 * 3
    board.save(tmp_path / "board.json")
    assert whence.Scoreboard.load(tmp_path / "board.json") == board


def test_intervals() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=400)
    mean, interval = bootstrap(values)
    assert interval is not None and interval[0] < mean < interval[1]
    assert interval[1] - interval[0] == pytest.approx(2 * 1.96 / 20, rel=0.15)  # of a mean of 400 normal values
    assert bootstrap(np.array([np.nan, 2.0])) == (2.0, None)
    assert sign_flips(values + 0.5) < 0.01 < 0.05 < sign_flips(values) and sign_flips(np.zeros(5)) == 1
