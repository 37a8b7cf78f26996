"""The commands that measure: `metrics`, `score` and `evaluate` do what their functions do, and name mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import whence
from whence import cli, zoo

SPECS = ["--method", "gae,attention(layer=0)", "--method", "random", "--metric", "auac,deletion(steps=4)"]


def run(*args: object) -> Any:
    return CliRunner(env={"COLUMNS": "200", "WHENCE_MODEL": None}).invoke(cli.app, [*map(str, args)])


def done(*args: object) -> str:
    result = run(*args)
    assert (result.exit_code, result.exception) == (0, None), result.output
    return str(result.stdout)


@pytest.fixture(scope="module")
def planted() -> whence.Subject:
    return whence.load("planted")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "data.csv"
    file.write_text("text,label\n" + "".join(f"{e.input},{e.label}\n" for e in zoo.examples("planted", 3, 5)))
    return file


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of digits, and a table that names them."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, example in enumerate(zoo.examples("digits", 2)):
        Image.fromarray(np.asarray(example.input)).save(folder / f"{number}.png")
    (folder / "data.csv").write_text("image\n0.png\n1.png\n")
    return folder


def test_score_compares_with_what_is_said_to_decide(tmp_path: Path) -> None:
    texts, files = ("a masterful film", "an utterly dull one"), [tmp_path / "a.json", tmp_path / "b.json"]
    for text, file in zip(texts, files, strict=True):
        done("explain", text, "--save", file)
    shown = done("score", *files, "--metric", "plausibility", "--truth", "masterful", "--truth", "0 1 1 0")
    subject = whence.load("sst2")
    found = whence.explain(subject, list(texts))
    assert shown.strip() == str(whence.score(subject, found, "plausibility", truth=["masterful", "utterly dull"]))
    assert run("score", *files, "--metric", "plausibility", "--truth", "masterful").exit_code == 1


def test_metrics_are_listed_and_described() -> None:
    listed = done("metrics")
    assert all(record.name in listed for record in whence.list_metrics())
    one = done("metrics", "deletion")
    assert "lower is better" in one and "steps" in one and 'deletion(steps=None)"' in one
    assert "option" not in done("metrics", "completeness")
    assert "did you mean 'deletion'" in run("metrics", "deletoin").stderr


def test_evaluate(table: Path, tmp_path: Path, planted: whence.Subject) -> None:
    files = {"save": tmp_path / "b.json", "csv": tmp_path / "b.csv", "html": tmp_path / "b.html"}
    flags = [part for kind, file in files.items() for part in (f"--{kind}", file)]
    shown = done("evaluate", table, "-m", "planted", *SPECS, "--resume", tmp_path / "run.jsonl", *flags)
    methods, metrics = ["gae", "attention(layer=0)", "random"], ["auac", "deletion(steps=4)"]
    right = whence.evaluate(planted, zoo.examples("planted", 3, 5), methods, metrics)
    board = whence.Scoreboard.load(files["save"])
    assert (board.methods, board.metrics, board.notes) == (right.methods, right.metrics, right.notes)
    np.testing.assert_allclose(board.values, right.values, atol=1e-6)
    assert "Explained: the label given, of 3 of 3 inputs." in " ".join(shown.split())
    assert files["csv"].read_text() == board.to_csv() and files["html"].read_text() == board.to_html()
    again = done("evaluate", table, "-m", "planted", *SPECS, "--resume", tmp_path / "run.jsonl")
    assert again == shown  # down to the seconds: nothing was run
    fewer = done("evaluate", table, "-m", "planted", *SPECS, "--limit", 2)
    assert "2 examples" in fewer and "3 examples" in shown


def test_score(tmp_path: Path, planted: whence.Subject) -> None:
    a = whence.explain(planted, "a good film", "gae")
    a.save(tmp_path / "a.json")
    shown = done("score", tmp_path / "a.json", "-m", "planted", "--metric", "auac,deletion(steps=4)")
    assert shown.splitlines() == [str(whence.score(planted, a, m)) for m in ("auac", "deletion(steps=4)")]
    wrong = run("score", tmp_path / "a.json", "--metric", "auac")
    assert wrong.exit_code == 1 and "sst2 is used" in wrong.stderr and "explains another model" in wrong.stderr


def test_the_model_that_fits_pictures(pictures: Path, tmp_path: Path) -> None:
    """A folder, a table with a column of pictures, or a saved explanation of one."""
    specs = ["--method", "gae", "--metric", "auac"]
    for data in (pictures, pictures / "data.csv"):
        result = run("evaluate", data, *specs)
        assert result.exit_code == 0 and "digits is used" in result.stderr and "2 examples" in result.stdout
    whence.explain(whence.load("digits"), zoo.examples("digits", 1)[0].input, "gae").save(tmp_path / "d.json")
    result = run("score", tmp_path / "d.json", "--metric", "deletion")
    assert result.exit_code == 0 and "digits is used" in result.stderr


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (
            ["--save", "board.txt"],
            "--save writes .json, .html, .png, .svg, .pdf, .csv, .parquet files here, and 'board.txt' is none of them",
        ),
        (["--html", "board.csv"], "--html writes a .html file, and 'board.csv' was named"),
        (["--csv", "."], "'.' is a folder; name a file in it"),
        (["--save", "nowhere/board.json"], "there is no folder 'nowhere' to write into"),
        (["--method", "gea"], "unknown method 'gea'; did you mean 'gae'"),
        (["--metric", "deleton"], "unknown metric 'deleton'; did you mean 'deletion'"),
    ],
)
def test_refusals(extra: list[str], sentence: str, table: Path) -> None:
    result = run("evaluate", table, "-m", "planted", *SPECS, *extra)
    assert result.exit_code in (1, 2) and sentence in " ".join(result.stderr.split())
    assert "Traceback" not in result.output


def test_evaluate_takes_one_target_for_all_examples(tmp_path: Path) -> None:
    data, file = tmp_path / "data.csv", tmp_path / "board.json"
    data.write_text("text\na garden\na good film\n", encoding="utf-8")
    flags = ["--method", "gradient_x_input,random", "--metric", "loo_agreement", "--target", "mlp:0:3", "-m", "planted"]
    ran = CliRunner().invoke(cli.app, ["evaluate", str(data), *flags, "--save", str(file)])
    assert ran.exit_code == 0, ran.output
    assert whence.Scoreboard.load(file).notes == ("Explained: mlp:0:3, of all inputs.",)
