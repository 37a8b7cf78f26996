"""What a run must not do: accept changed weights, pass on damaged files, swallow Ctrl-C, retry for ever."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

import whence
from whence import zoo
from whence.core.checksums import digest_of
from whence.core.locking import is_locked, locked
from whence.model.identity import model_hashes
from whence.model.weights import duplicate
from whence.runs import chunks, driving, reading, work
from whence.runs.engines import here
from whence.runs.folder import RunFolder
from whence.runs.shards import Damaged, Facts

METHODS = ("gae", "random")


@pytest.fixture(scope="module")
def planted() -> whence.Subject:
    return whence.load("planted")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [example.input for example in zoo.examples("planted", 12, 5)]


@pytest.fixture(scope="module")
def done(planted: Any, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> whence.Run:
    """A finished run, which tests must leave as it is."""
    return whence.run(planned(planted, texts, tmp_path_factory.mktemp("runs") / "done"))


@pytest.fixture
def copied(done: whence.Run, tmp_path: Path) -> Path:
    return shutil.copytree(done.folder.path, tmp_path / "copied")


def planned(model: Any, data: Any, folder: Path, **changes: Any) -> whence.Plan:
    return whence.Plan(**{"model": model, "data": data, "methods": METHODS, "chunk": 4, "folder": folder} | changes)


# ---- which model -----------------------------------------------------------------------------------------------------


def test_a_weight_changed_behind_the_counters_is_another_model(planted: Any, texts: list[str], tmp_path: Path) -> None:
    """A write through `.data` leaves version, address and all but one number as they were."""
    subject = duplicate(planted)
    plan = planned(subject, texts, tmp_path / "run")
    whence.run(plan)
    file = tmp_path / "resume.jsonl"
    whence.evaluate(subject, texts[:2], METHODS, ["auac"], resume=file)
    parameter = max(subject.model.parameters(), key=lambda p: p.numel())
    parameter.data.view(-1)[7] += 1.0
    with pytest.raises(ValueError, match="its weights differ"):
        whence.run(plan)
    with pytest.raises(ValueError, match="of another model"):
        whence.evaluate(subject, texts[:2], METHODS, ["auac"], resume=file)


class _Own(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.linear = function, torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.function(self.linear(x)))


class _Other(_Own):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.function(self.linear(x)) + 1)


def _settings_of(module: torch.nn.Module) -> str:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter)
    subject = whence.wrap(
        module,
        encode=lambda raw: {"features": ["a"], "tensors": {"x": torch.ones(1, 2)}},
        output=lambda out: out,
        embedding="linear",
        labels=["a", "b"],
    )
    return model_hashes(subject)["settings"]


def test_activations_and_the_code_of_own_modules_count() -> None:
    functions = [
        torch.relu,
        functional.gelu,
        partial(functional.gelu, approximate="tanh"),
        partial(functional.gelu, approximate="none"),
        lambda x: x * 2,
        lambda x: x * 3,
    ]
    found = [_settings_of(_Own(function)) for function in functions]
    assert len(set(found)) == len(functions) and found[0] == _settings_of(_Own(torch.relu))
    kinds = {"_Own": _Own, "changed": type("_Own", (_Other,), {"__module__": __name__, "__qualname__": "_Own"})}
    assert len({_settings_of(kind(torch.relu)) for kind in kinds.values()}) == 2


def test_a_function_has_one_digest_in_every_process(tmp_path: Path) -> None:
    """Sets of texts are in another order in every process; a run that goes on must know its own functions again."""
    (tmp_path / "own.py").write_text("def kind(x):\n    return x in {'a', 'b', 'c', 'd', 'e', 'f'}\n")
    script = "import own; from whence.core.checksums import digest_of; print(digest_of(own.kind))"
    found = set()
    for seed in "123":
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        run = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        found.add(run.stdout)
    assert len(found) == 1


def test_a_function_that_calls_itself_has_a_digest() -> None:
    def counted(n: int) -> int:
        return n and counted(n - 1)

    assert len(digest_of(counted)) == 64


# ---- which data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [str, Path, lambda file: {"image": str(file)}, lambda file: Image.open(file)])
def test_a_picture_that_changed_is_other_data_however_it_was_named(named: Any, tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(file)
    plan = whence.Plan("digits", [named(file)], ["random"], folder=tmp_path / "run")
    whence.run(plan)
    Image.fromarray(np.full((28, 28), 200, np.uint8)).save(file)
    with pytest.raises(ValueError, match="other data"):
        whence.run(replace(plan, data=[named(file)]))


def test_a_digest_tells_types_palettes_and_dates_apart() -> None:
    one = Image.new("P", (2, 2))
    other = one.copy()
    other.putpalette([9] * 768)
    pixels = np.zeros((2, 2), np.float32)
    apart = [one, other, pixels, pixels.astype(np.int32), date(2020, 1, 1), date(2020, 1, 2), Decimal("1"), None]
    assert len({digest_of(value) for value in apart}) == len(apart) and digest_of(one) == digest_of(one.copy())


# ---- damaged folders -------------------------------------------------------------------------------------------------


def test_reading_refuses_what_is_not_what_was_written(copied: Path) -> None:
    """Also without running again: a changed bit in a shard, a shard twice, a shard too many."""
    first, second, _ = RunFolder(copied).files()
    content = first.read_bytes()
    first.write_bytes(bytes([*content[:200], content[200] ^ 1, *content[201:]]))
    for reads in (lambda run: list(run), lambda run: run.to_frame(), lambda run: run.attributions(1)):
        with pytest.raises(Damaged, match=rf"{first.name} is not what was written"):
            reads(whence.load_run(copied))
    assert whence.load_run(copied).attributions(5)  # of another shard
    first.write_bytes(content)
    for name in ("part-00000009", "part-00000000"):
        copy = second.with_name(second.name.replace("part-00000001", name))
        shutil.copy(second, copy)
        for reads in (len, list, whence.Run.summary):
            with pytest.raises(Damaged, match="one shard too many"):
                reads(whence.load_run(copied))
        copy.unlink()
    assert len(whence.load_run(copied)) == 24


def test_the_results_of_another_plan_are_not_put_aside_where_the_manifest_is_gone(
    copied: Path, planted: Any, texts: list[str]
) -> None:
    (copied / "manifest.json").unlink()
    before = sorted(copied.rglob("*"))
    with pytest.raises(ValueError, match="holds results of another plan"):
        whence.run(planned(planted, texts, copied, seed=1))
    assert sorted(copied.rglob("*")) == before
    assert len(whence.run(planned(planted, texts, copied))) == 24


def test_a_run_without_its_lock_file_is_still_a_run(copied: Path, planted: Any, texts: list[str]) -> None:
    """Programs that copy folders may leave out an empty file."""
    (copied / "lock").unlink()
    assert len(whence.run(planned(planted, texts, copied))) == 24


def test_a_manifest_of_another_format_is_kept(copied: Path, planted: Any, texts: list[str]) -> None:
    from whence.core.checksums import sealed, unsealed

    file = copied / "manifest.json"
    known = unsealed(json.loads(file.read_text()))
    assert known is not None
    later = json.dumps(sealed({**known, "format": 99}))
    file.write_text(later)
    with pytest.raises(ValueError, match="has format 99"):
        whence.run(planned(planted, texts, copied))
    assert file.read_text() == later


def test_somebody_who_looks_does_not_stop_a_run_from_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`is_locked` takes a free lock for a moment; a run that begins just then tries again."""
    from whence.core import locking

    real, refusals = locking._taken, iter([False])
    monkeypatch.setattr(locking, "_taken", lambda file: next(refusals, True) and real(file))
    with locked(tmp_path / "lock"):
        pass
    with locked(tmp_path / "lock"):
        assert is_locked(tmp_path / "lock")


# ---- stops -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_inside_torch_stops_the_run_and_fails_no_row(
    planted: Any, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: Any) -> Any:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise RuntimeError("autograd was interrupted") from None

    monkeypatch.setattr(work, "explained", interrupted)
    with pytest.raises(KeyboardInterrupt):
        whence.run(planned(planted, texts, tmp_path / "run"))
    assert not RunFolder(tmp_path / "run").files()


def test_what_a_worker_stages_while_it_is_ended_is_removed(
    planted: Any, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, real = RunFolder(tmp_path / "run").staging, here.HereEngine.close

    def late(engine: here.HereEngine) -> None:
        (staging / "late").mkdir()
        real(engine)

    monkeypatch.setattr(here.HereEngine, "close", late)
    whence.run(planned(planted, texts[:2], tmp_path / "run"))
    assert not list(staging.iterdir())


def test_a_strict_run_does_not_pass_over_failures_of_earlier_runs(planted: Any, tmp_path: Path) -> None:
    plan = planned(planted, ["a good day", "good " * 5000], tmp_path / "run")
    assert whence.run(plan).summary().failed == 1
    with pytest.raises(ValueError, match="1 of 2 examples failed"):
        whence.run(plan, strict=True)


class _Dying:
    """An engine whose workers all die before they do anything."""

    name, workers = "dying", 2

    def submit(self, worker: int, task: Any) -> None: ...

    def wait(self, seconds: float) -> list[Any]:
        return [driving.Died(worker, "killed") for worker in range(2)]

    def close(self) -> None: ...


def test_workers_that_die_one_after_the_other_end_the_run(planted: Any, texts: list[str], tmp_path: Path) -> None:
    plan, run = planned(planted, texts, tmp_path / "run"), RunFolder(tmp_path / "run")
    rows = list(work.Row(number, str(number), text) for number, text in enumerate(texts))
    layout = chunks.laid_out(rows, 4)
    first = driving.Ready(0, {}, "planted", False)
    with run.held():
        source, progress = chunks.cut(rows, layout, {0, 1, 2}), driving.Progress(layout)
        driver = driving.Driver(
            plan, _Dying(), run, "x", progress, source, first=first, report=lambda p: None, strict=False
        )
        with pytest.raises(driving.Stopped, match="died one after the other"):
            driver.drive([])


# ---- size ------------------------------------------------------------------------------------------------------------


def test_what_a_run_keeps_of_a_chunk_is_its_number(planted: Any, texts: list[str]) -> None:
    """A run of 10 million rows has some 160,000 chunks: facts of all of them would fill the memory."""
    layout = chunks.laid_out([work.Row(0, "0", "a")], 4)
    progress = driving.Progress(layout)
    for number in range(1000):
        progress.add(Facts("run", number, 0, 4, number % 2, {}, {}, 0.1, "here", 0.0, 1))
    assert (len(progress.done), progress.examples, progress.failed) == (1000, 4000, 500)
    assert all(isinstance(kept, int) for kept in progress.done)


def test_the_summary_of_a_large_run_is_of_a_part_of_it_and_says_so(
    planted: Any, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = whence.run(planned(planted, texts, tmp_path / "run", metrics=["auac"], chunk=2))
    whole = run.summary()
    monkeypatch.setattr(reading, "MAX_EXAMPLES", 6)
    part = run.summary()
    assert whole.board is not None and whole.board.values.shape[-1] == 12 and not whole.notes
    assert part.board is not None and part.board.values.shape[-1] == 6 and "of 3 of 6 chunks" in part.notes[0]
    assert replace(part, board=whole.board, features=whole.features, notes=()) == whole
    board = run.board()
    assert board is not None and board.values.shape[-1] == 12


def test_a_cell_of_a_table_may_be_long_and_fails_alone(tmp_path: Path) -> None:
    import csv

    before = csv.field_size_limit()
    for ending, parts in ((".csv", ","), (".tsv", "\t")):
        file = tmp_path / f"data{ending}"
        file.write_text(f"text{parts}label\na good day{parts}positive\n{'good ' * 40_000}{parts}positive\n")
        summary = whence.run(whence.Plan("planted", file, ["random"], folder=tmp_path / ending[1:])).summary()
        assert (summary.done, summary.failed) == (2, 1)
    assert csv.field_size_limit() == before
