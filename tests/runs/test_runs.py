"""Runs on one machine: what is kept and refused, and how stopped runs are continued; every kind of model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import kills
import whence
from families import family, subject_of
from whence import zoo
from whence.measure.datasets import stream
from whence.model.weights import duplicate
from whence.runs import chunks, driving, work
from whence.runs.folder import RunFolder
from whence.runs.shards import schema
from whence.runs.workers import Worker

METHODS = ("gae", "leave_one_out")
KINDS = ["bert", "vit", "qwen3", "t5", "vilt", "from-scratch"]  # one family of each kind


@pytest.fixture(scope="module")
def planted() -> whence.Subject:
    return whence.load("planted")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [example.input for example in zoo.examples("planted", 20, 5)]


def planned(model: Any, data: Any, folder: Path, **changes: Any) -> whence.Plan:
    return whence.Plan(**{"model": model, "data": data, "methods": METHODS, "chunk": 4, "folder": folder} | changes)


@pytest.fixture(scope="module")
def done(planted: Any, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> whence.Run:
    """A finished run, which tests must leave as it is."""
    return whence.run(planned(planted, texts, tmp_path_factory.mktemp("runs") / "done"))


@pytest.fixture
def copied(done: whence.Run, tmp_path: Path) -> Path:
    return shutil.copytree(done.folder.path, tmp_path / "copied")


def contents(folder: Path | whence.Run) -> list[dict[str, Any]]:
    """All rows in the order of the data, without the times."""
    run = folder if isinstance(folder, whence.Run) else whence.load_run(folder)
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.rows()]


# ---- what is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_a_run_keeps_what_explain_gives_on_every_kind_of_model(name: str, tmp_path: Path) -> None:
    subject, inputs = subject_of(name), _inputs(name)
    method = "gradient_x_input"
    run = whence.run(whence.Plan(subject, inputs, [method], folder=tmp_path / "run"))
    for kept, direct in zip(run, whence.explain(subject, inputs, method=method), strict=True):
        assert np.array_equal(kept.scores, direct.scores) and kept.scores.dtype == direct.scores.dtype
        assert kept.features == direct.features and kept.target == direct.target and kept.notes == direct.notes
        assert np.array_equal(kept.output, direct.output) and np.array_equal(kept.visible, direct.visible)
        assert np.array_equal(kept.base, direct.base) and np.array_equal(kept.residual, direct.residual)
        assert (
            kept.words().features == direct.words().features
            and str(kept).splitlines()[0] == str(direct).splitlines()[0]
        )


def _inputs(name: str) -> list[Any]:
    return list(family(name).inputs)


def test_metrics_and_experiments_are_those_of_evaluate_and_audit(
    planted: Any, texts: list[str], tmp_path: Path
) -> None:
    experiments = ["permutation(permutations=3)", "agreement"]
    plan = whence.Plan(planted, texts[:6], METHODS, ["auac", "completeness"], experiments, folder=tmp_path / "run")
    run = whence.run(plan)
    board, direct = run.board(), whence.evaluate(planted, texts[:6], METHODS, ["auac", "completeness"])
    assert board is not None and board.metrics == direct.metrics and board.better == direct.better
    assert np.allclose(board.values, direct.values, rtol=0, atol=1e-6, equal_nan=True)  # other batches
    audit = whence.audit(planted, texts[:6], experiments=experiments)
    for finding in audit.findings:
        rows = [row for row in run.rows() if row["method"] == finding.experiment]
        assert [row["row"] for row in rows] == list(range(6)) and all(row["experiment"] for row in rows)
        for quantity in (q for q in finding.quantities if q.where):
            own = [
                value["value"]
                for row in rows
                for value in row["values"]
                if (value["place"], value["name"]) == (quantity.where, quantity.name)
            ]
            assert np.allclose(own, quantity.values[~np.isnan(quantity.values)], rtol=0, atol=1e-5)


def test_a_row_of_every_example_and_method_with_documented_columns(done: whence.Run, texts: list[str]) -> None:
    rows = contents(done)
    assert [(row["row"], row["method"]) for row in rows] == [(n, m) for n in range(len(texts)) for m in METHODS]
    assert [row["input"] for row in rows[::2]] == texts and rows[0]["id"] == "0"
    assert all(row["error"] is None and len(row["scores"]) == len(row["features"]) for row in rows)
    page = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    undocumented = [field.name for field in schema(False) if f"| `{field.name}` |" not in page]
    assert not undocumented


def test_other_programs_read_a_run_in_one_line(done: whence.Run) -> None:
    import duckdb

    found = duckdb.sql(f"select method, count(*) from '{done.folder.shards}/*.parquet' group by method order by method")
    assert found.fetchall() == [("gae", 20), ("leave_one_out", 20)]
    frame = done.to_frame()
    assert len(frame) == 40 and frame.scores[0].dtype == float
    assert done.attributions(3).keys() == set(METHODS) and len(done) == 40
    with pytest.raises(LookupError, match="no results of row 99"):
        done.attributions(99)


def test_a_plan_is_json_and_back(tmp_path: Path) -> None:
    plan = whence.Plan("planted", tmp_path / "x.tsv", ["gae( )"], ["auac"], target="positive", seed=3, inputs=False)
    assert plan.methods == ("gae",)
    again = whence.Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again.to_dict() == plan.to_dict()
    with pytest.raises(ValueError, match="was in memory"):
        whence.Plan.from_dict(whence.Plan("planted", ["a text"], ["gae"]).to_dict())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ["gea"]}, "did you mean 'gae'"),
        ({"methods": []}, "needs methods or experiments"),
        ({"methods": "gae"}, "is a list of specs"),
        ({"methods": ["gae", "gae()"]}, "twice"),
        ({"methods": [], "metrics": ["auac"], "experiments": ["permutation"]}, "metrics measure explanations"),
        ({"chunk": 0}, "chunk"),
        ({"model": " "}, "needs a model"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_wrong_plan_is_refused_when_it_is_made(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        whence.Plan(**{"model": "planted", "data": ["a"], "methods": ["gae"]} | changes)


def test_a_model_in_memory_runs_in_this_process_alone(planted: Any, texts: list[str], tmp_path: Path) -> None:
    plan = planned(planted, texts, tmp_path / "run")
    for elsewhere in ({"workers": 2}, {"engine": "ray"}):
        with pytest.raises(ValueError, match="exists only in this process"):
            whence.run(plan, **elsewhere)
    with pytest.raises(ValueError, match="give engine='ray'"):
        whence.run(plan, address="auto")


def test_a_function_makes_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_models.py").write_text(
        "import whence\ndef make():\n    return whence.load('planted')\nnothing = 3\n"
    )
    run = whence.run(whence.Plan("my_models:make", ["a good day"], ["random"], folder="run"))
    assert len(run) == 1 and run.manifest["model"] == "planted"
    for name, message in (("my_models:mak", "there is no function"), ("my_models:nothing", "not a Subject")):
        with pytest.raises((ValueError, TypeError), match=message):
            whence.run(whence.Plan(name, ["a good day"], ["random"], folder=f"other{len(name)}"))


# ---- chunks ----------------------------------------------------------------------------------------------------------


def test_chunks_depend_on_rows_alone_and_long_texts_have_smaller_ones(texts: list[str]) -> None:
    rows = _rows(texts)
    layout = chunks.laid_out(iter(rows), 6)
    assert [chunk.count for chunk in layout.chunks] == [6, 6, 6, 2] and layout.rows == 20
    assert [row.number for chunk, own in chunks.cut(rows, layout, {1, 3}) for row in own] == [*range(6, 12), 18, 19]
    long = chunks.laid_out(_rows(["word " * 2000] * 8), 6)
    assert max(chunk.count for chunk in long.chunks) < 6
    assert layout.digest == chunks.laid_out(_rows(texts), 3).digest != chunks.laid_out(_rows(texts[::-1]), 6).digest


def test_rows_that_change_between_the_two_passes_are_refused(texts: list[str]) -> None:
    """The first pass says which data the run is of; what the second one reads must be the same."""
    layout = chunks.laid_out(_rows(texts), 6)
    for changed in ([*texts[:7], texts[7] + "!", *texts[8:]], texts[:9]):
        parts = chunks.cut(_rows(changed), layout, {0, 1})
        assert next(parts)[0].number == 0
        with pytest.raises(ValueError, match="the data changed while it was read"):
            next(parts)


def test_data_that_can_be_read_only_once_is_refused(planted: Any, texts: list[str], tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="is read twice, and a generator only once"):
        planned(planted, (text for text in texts), tmp_path / "run")


def _rows(texts: list[Any]) -> list[Any]:
    return list(stream(texts))


# ---- rows that fail --------------------------------------------------------------------------------------------------


def test_rows_that_fail_are_recorded_and_the_others_have_their_results(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number, (image, _) in enumerate(_digits(3)):
        image.save(pictures / f"{number}.png")
    (pictures / "1.png").write_bytes(b"no picture")
    run = whence.run(whence.Plan("digits", pictures, ["gae"], folder=tmp_path / "run"))
    summary, failures = run.summary(), list(run.failures())
    assert (summary.done, summary.failed, summary.state) == (3, 1, "finished")
    assert [failure.id for failure in failures] == ["1.png"] and "1.png" in failures[0].error
    assert len(list(run)) == 2 and sum(summary.failures.values()) == 1
    with pytest.raises(ValueError, match="one failed"):
        whence.run(whence.Plan("digits", pictures, ["gae"], folder=tmp_path / "strict"), strict=True)


def _digits(count: int) -> Iterator[tuple[Image.Image, Any]]:
    for example in zoo.examples("digits", count):
        yield Image.fromarray(np.asarray(example.input)), example.label


def test_an_overlong_text_and_an_unreadable_line_do_not_stop_a_run(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    long = "good " * 5000
    data.write_text("\n".join([json.dumps({"text": "a good day"}), "{", json.dumps({"text": long})]) + "\n")
    run = whence.run(whence.Plan("planted", data, ["random", "gae"], folder=tmp_path / "run"))
    assert [row["error"] is None for row in run.rows()] == [True, True, False, False, False, False]
    assert run.summary().failed == 2
    again = whence.run(whence.Plan("planted", [long, f"{long} day", None], ["random"], folder=tmp_path / "again"))
    reasons = again.summary().failures
    assert sorted(reasons.values()) == [1, 2] and any("and alike, with other numbers" in one for one in reasons)
    cut = whence.run(whence.Plan("planted", data, ["random"], truncate=True, folder=tmp_path / "cut"))
    assert cut.summary().failed == 1


def test_a_method_that_fails_on_one_row_fails_on_that_row_alone(
    planted: Any, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = work.explained

    def failing(subject: Any, items: list[Any], *given: Any) -> Any:
        if any(item.raw == texts[2] for item in items):
            raise RuntimeError("too much memory")
        return real(subject, items, *given)

    whole = contents(whence.run(planned(planted, texts[:4], tmp_path / "whole", chunk=1)))
    monkeypatch.setattr(work, "explained", failing)
    rows = contents(whence.run(planned(planted, texts[:4], tmp_path / "run", chunk=4)))
    assert [row["row"] for row in rows if row["error"]] == [2, 2] and "too much memory" in rows[4]["error"]
    for kept, alone in zip(rows, whole, strict=True):
        assert kept["error"] or kept["scores"] == alone["scores"]


# ---- stops, locks, damage --------------------------------------------------------------------------------------------


def test_a_run_that_was_stopped_goes_on_and_ends_like_one_that_was_not(
    planted: Any, texts: list[str], done: whence.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    plan, calls, real = planned(planted, texts, tmp_path / "run"), [], work.run_chunk

    def stops(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(work, "run_chunk", stops)
    with pytest.raises(KeyboardInterrupt):
        whence.run(plan)
    assert "keeps 8 of 20 examples" in capsys.readouterr().err
    assert whence.load_run(plan.folder).summary().state == "stopped"
    run = whence.run(plan)
    assert len(calls) == 3 + 3  # five chunks, of which two were kept
    assert contents(run) == contents(done) and run.summary().state == "finished"
    assert contents(whence.run(plan)) == contents(done) and len(calls) == 6  # nothing was left to do


def test_of_two_runs_on_one_folder_the_second_is_refused_or_waits(
    planted: Any, texts: list[str], tmp_path: Path
) -> None:
    plan = planned(planted, texts[:4], tmp_path / "run")
    with RunFolder(plan.folder).held():
        with pytest.raises(ValueError, match="another run is writing"):
            whence.run(plan)
        found: list[Any] = []
        waiting = threading.Thread(target=lambda: found.append(whence.run(plan, wait=True)))
        waiting.start()
        time.sleep(0.3)
        assert not found
    waiting.join(60)
    assert len(found[0]) == 8


def test_another_plan_model_or_data_is_refused_and_says_which(copied: Path, planted: Any, texts: list[str]) -> None:
    changed = duplicate(planted)
    with torch.no_grad():
        next(p for p in changed.model.parameters() if p.ndim == 2)[-1, 1] += 1e-3
    plan = planned(planted, texts, copied)
    wrong = {
        "a run with methods gae, leave_one_out; give that again": replace(plan, methods=("gae",)),
        "a run with seed 0": replace(plan, seed=1),
        "metrics none": replace(plan, metrics=("auac",)),
        "other data": replace(plan, data=[*texts[:-1], texts[-1] + "!"]),
        "its weights differ": replace(plan, model=changed),
    }
    before = sorted(copied.rglob("*"))
    for reason, other in wrong.items():
        with pytest.raises(ValueError, match=reason):
            whence.run(other)
    assert sorted(copied.rglob("*")) == before
    other = copied.parent / "notes"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds other files"):
        whence.run(planned(planted, texts, other))


def _truncate(first: Path, second: Path) -> None:
    first.write_bytes(first.read_bytes()[:-40])


def _swap(first: Path, second: Path) -> None:
    content = first.read_bytes(), second.read_bytes()
    first.write_bytes(content[1])
    second.write_bytes(content[0])


def _double(first: Path, second: Path) -> None:
    shutil.copy(first, first.with_name(first.name.replace("part-00000000", "part-00000009")))


def _junk(first: Path, second: Path) -> None:
    first.write_bytes(bytes(range(256)))


def _flip(first: Path, second: Path) -> None:
    content = bytearray(first.read_bytes())
    content[len(content) // 3] ^= 1
    first.write_bytes(content)


def _remove(first: Path, second: Path) -> None:
    first.unlink()


@pytest.mark.parametrize("damage", [_truncate, _swap, _double, _junk, _flip, _remove])
def test_damaged_shards_are_found_and_done_again(
    damage: Any, copied: Path, done: whence.Run, planted: Any, texts: list[str]
) -> None:
    first, second, *_ = RunFolder(copied).files()
    damage(first, second)
    if damage is not _remove:
        found = whence.verify(copied, plan=planned(planted, texts, copied), subject=planted)
        assert found.damaged and found.verdict == "different"
    run = whence.run(planned(planted, texts, copied))
    assert contents(run) == contents(done)
    assert (
        bool(run.summary().state == "finished")
        and not whence.verify(copied, plan=planned(planted, texts, copied), subject=planted).damaged
    )


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"\xff\xfe", None])
def test_a_damaged_manifest_is_told_in_a_sentence_and_written_anew(
    content: bytes | None, copied: Path, done: whence.Run, planted: Any, texts: list[str]
) -> None:
    manifest = copied / "manifest.json"
    known = json.loads(manifest.read_text())
    manifest.write_bytes(json.dumps({**known, "seed": 7}).encode() if content is None else content)
    with pytest.raises(ValueError, match=r"manifest\.json of .* is damaged"):
        whence.load_run(copied)
    calls = []
    real, work.run_chunk = work.run_chunk, lambda *given: calls.append(given)
    try:
        run = whence.run(planned(planted, texts, copied))
    finally:
        work.run_chunk = real
    assert contents(run) == contents(done) and not calls  # all shards were whole


def test_no_folder_and_an_empty_one_are_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder"):
        whence.load_run(tmp_path / "none")
    with pytest.raises(ValueError, match=r"no manifest\.json"):
        whence.load_run(tmp_path)


# ---- confidential inputs, verification, summaries --------------------------------------------------------------------


def test_without_inputs_no_word_of_a_text_is_written(planted: Any, tmp_path: Path) -> None:
    texts = ["the zebra was wonderful", "xylophone " * 4000]
    data = [{"text": text, "label": "positive"} for text in texts]
    run = whence.run(whence.Plan(planted, data, METHODS, ["auac"], folder=tmp_path / "run", inputs=False))
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    tables = "".join(str(pyarrow.parquet.read_table(path).to_pylist()) for path in run.folder.files())
    for word in ("zebra", "wonderful", "xylophone"):
        assert word.encode() not in written and word not in tables
    kept = next(iter(run))
    assert kept.features[:2] == ("feature 0", "feature 1") and kept.target.name == "logit of 'positive'"
    with_inputs = next(iter(whence.run(whence.Plan(planted, data[:1], METHODS, folder=tmp_path / "with"))))
    assert np.array_equal(kept.scores, with_inputs.scores)


def test_verifying_says_the_same_or_what_differs(copied: Path, planted: Any, texts: list[str]) -> None:
    plan = planned(planted, texts, copied)
    same = whence.verify(copied, plan=plan, chunks=2)
    assert same.verdict == "the same to the bit" and same.rows == 16 and not same.reasons
    changed = duplicate(planted)
    with torch.no_grad():
        for parameter in changed.model.parameters():
            parameter.mul_(1.01)
    other = whence.verify(copied, plan=plan, subject=changed)
    assert other.verdict == "different" and "the model's weights are others" in other.reasons
    moved = whence.verify(copied, plan=replace(plan, data=texts[::-1]), subject=planted)
    assert moved.verdict == "different" and "the data is another" in moved.reasons
    with pytest.raises(ValueError, match="made with another plan than the one given: seed 0"):
        whence.verify(copied, plan=replace(plan, seed=1))
    with pytest.raises(ValueError, match="was in memory"):
        whence.verify(copied)


def test_a_summary_counts_what_is_there(done: whence.Run, texts: list[str]) -> None:
    summary = done.summary()
    assert (summary.examples, summary.done, summary.failed, summary.chunks) == (20, 20, 0, 5)
    assert summary.seconds > 0 and all(second > 0 for second in summary.method_seconds)
    assert [(share.name, share.chunks, share.examples) for share in summary.workers] == [("here", 5, 20)]
    feature = next(f for f in summary.features if f.method == "gae")
    scores = [a for a in done if a.method == "gae" and feature.feature in a.features]
    own = [sum(s for f, s in zip(a.features, a.scores, strict=True) if f == feature.feature) for a in scores]
    assert feature.count == len(scores) and feature.score == pytest.approx(np.mean(own), rel=1e-6)
    assert whence.load_result(done.folder.path) == whence.load_result(done.folder.summary_file)
    assert "20 of 20" in str(summary)


# ---- the loop that hands out chunks ----------------------------------------------------------------------------------


class Scripted:
    """An engine whose workers do what a test says, one event at a time."""

    name = "scripted"

    def __init__(self, plan: whence.Plan, folder: RunFolder, subject: Any, workers: int, fates: dict[int, list[str]]):
        self.workers, self.fates, self.given = workers, fates, []
        self._worker = Worker(plan, folder.staging, "scripted", None, subject)
        self.first = driving.Ready(0, self._worker.hashes, subject.name, False)
        self._tasks: dict[int, Any] = {}

    def submit(self, worker: int, task: Any) -> None:
        self.given.append((worker, task.chunk))
        self._tasks[worker] = task

    def wait(self, seconds: float) -> list[Any]:
        events: list[Any] = []
        for worker, task in list(self._tasks.items()):
            fate = (self.fates.get(task.chunk) or ["done"]).pop(0)
            if fate == "late":
                continue
            del self._tasks[worker]
            if fate == "dies":
                events += [driving.Died(worker, "killed"), replace(self.first, worker=worker)]
            else:
                events.append(driving.Done(worker, self._worker.run(task)))
        return events

    def close(self) -> None: ...


def scripted(
    planted: Any, texts: list[str], folder: Path, fates: dict[int, list[str]], workers: int = 2, **options: Any
) -> tuple[Scripted, driving.Progress, RunFolder]:
    """A run of five chunks by an engine that does what `fates` say."""
    plan, rows, run = planned(planted, texts, folder), _rows(texts), RunFolder(folder)
    with run.held():
        layout = chunks.laid_out(rows, 4)
        engine, progress = Scripted(plan, run, planted, workers, fates), driving.Progress(layout)
        source = chunks.cut(rows, layout, set(range(len(layout.chunks))))
        driver = driving.Driver(
            plan, engine, run, "x", progress, source, first=engine.first, report=lambda p: None, strict=False, **options
        )
        driver.drive([replace(engine.first, worker=number) for number in range(workers)])
    return engine, progress, run


def test_the_dearest_chunks_are_handed_out_first(planted: Any, texts: list[str], tmp_path: Path) -> None:
    engine, progress, _ = scripted(planted, texts, tmp_path / "run", {})
    costs = [chunk.cost for chunk in progress.layout.chunks]
    assert [costs[chunk] for _, chunk in engine.given] == sorted(costs, reverse=True)


def test_the_chunk_of_a_dead_worker_is_done_again(planted: Any, texts: list[str], tmp_path: Path) -> None:
    engine, progress, run = scripted(planted, texts, tmp_path / "run", {2: ["dies", "dies"]})
    assert progress.deaths == 2 and len([chunk for _, chunk in engine.given if chunk == 2]) == 3
    assert len(run.files()) == 5 and not progress.failed


def test_a_chunk_that_no_worker_survives_is_recorded(planted: Any, texts: list[str], tmp_path: Path) -> None:
    _, progress, run = scripted(planted, texts, tmp_path / "run", {2: ["dies"] * 9})
    assert progress.failed == 4 and progress.deaths == driving.MAX_DEATHS and len(run.files()) == 5
    table = pyarrow.parquet.read_table(next(path for path in run.files() if "part-00000002" in path.name))
    assert all("ended 3 workers" in error for error in table.column("error").to_pylist())


def test_a_slow_chunk_is_also_given_to_an_idle_worker_and_counts_once(
    planted: Any, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driving, "PATIENCE", 0.0)
    monkeypatch.setattr(driving, "SLOW", 0.0)
    engine, progress, run = scripted(planted, texts, tmp_path / "run", {4: ["late"] * 4})
    assert len([chunk for _, chunk in engine.given if chunk == 4]) == 2  # two workers had it
    assert len(run.files()) == 5 and progress.examples == 20


# ---- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_give_the_same_bits_and_survive_kills(tmp_path: Path) -> None:
    data = kills.written_data(tmp_path / "data.jsonl", 48)
    plan = whence.Plan("planted", data, METHODS, chunk=4, folder=tmp_path / "here")
    here = whence.run(plan, threads=1)
    there = whence.run(replace(plan, folder=tmp_path / "there"), workers=2, threads=1)
    assert contents(here) == contents(there)
    assert {share.name for share in there.summary().workers} <= {"process 0", "process 1"}
    tally = kills.disturbed(data, tmp_path / "killed", "local", 2, seed=1)
    kills.compared(tmp_path / "killed", tmp_path / "here", tally)
    assert tally.kills_of_driver + tally.kills_of_worker == 2
    assert (tally.lost, tally.doubled, tally.different) == (0, 0, 0)


def test_a_comparison_of_runs_sees_what_is_lost_doubled_or_different(copied: Path, done: whence.Run) -> None:
    """The check of the kills itself: without one shard, with one twice, with a changed number."""
    files = RunFolder(copied).files()
    table = pyarrow.parquet.read_table(files[0])
    changed = table.to_pylist()
    changed[0]["scores"][0] += 1e-9
    for damage, wanted in (
        (lambda: files[1].unlink(), (8, 0, 0)),
        (lambda: shutil.copy(files[2], files[2].with_name("part-00000077-0123456789abcdef.parquet")), (8, 8, 0)),
        (lambda: pyarrow.parquet.write_table(type(table).from_pylist(changed, table.schema), files[0]), (8, 8, 1)),
    ):
        damage()
        tally = kills.Tally("local")
        kills.compared(copied, done.folder.path, tally)
        assert (tally.lost, tally.doubled, tally.different) == wanted


def test_a_model_that_cannot_be_loaded_by_workers_is_told_in_a_sentence(tmp_path: Path) -> None:
    plan = whence.Plan("no_such_package:make", ["a"], ["random"], folder=tmp_path / "run")
    with pytest.raises(ValueError, match="no_such_package"):
        whence.run(plan, workers=2)


def test_memory_does_not_grow_with_the_data(tmp_path: Path) -> None:
    """The rows of 20,000 lines pass by: what is read ahead stays below a bound. `benchmarks/runs.py` runs 200,000."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(f'{{"text": "number {n} is good"}}\n' for n in range(20_000)))
    script = (
        "import resource, sys\n"
        "from whence.measure.datasets import stream\n"
        "from whence.runs.chunks import cut, laid_out\n"
        "def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        f"layout = laid_out(stream({str(data)!r}, 1000), 64)\n"
        "before = peak()\n"
        f"layout = laid_out(stream({str(data)!r}), 64)\n"
        f"rows = sum(len(own) for _, own in cut(stream({str(data)!r}), layout, set(range(len(layout.chunks)))))\n"
        "print(rows, peak() - before)\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert int(out[0]) == 20_000 and float(out[1]) < 8  # MiB; the rows as objects would take 12 and more
