"""Broken twins: methods and functions with one deliberate mistake each, which the harness must catch."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import find, settings
from hypothesis import strategies as st

import whence
from areas import AREAS, Area
from command_cases import check_command, commands
from families import fresh
from fault_cases import Fuse, breaking
from file_cases import check_pages
from fuzz import Run
from option_strategies import options_of, record_of
from outcomes import Case, Failure, Injected, Outcome, Wrong, must_hold, no_sentence, outcome
from rightness import check_attribution
from strategies import PAYLOAD, PAYLOADS, VALUES
from whence.core import registry
from whence.core.registry import Explained
from whence.model.subject import Subject
from worlds import shared


@pytest.fixture
def subject() -> Subject:
    """A model that may be broken: no other test uses it."""
    made = fresh("bert")
    return whence.wrap(made.model, made.processor)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    for kind in ("method", "metric"):
        registry.unregister(kind, "broken")


def broken(function: Callable[..., Any], **promises: Any) -> None:
    """Register a method with a mistake."""
    function.__name__, function.__doc__ = "broken", "A method with a mistake."
    registry.method(family="baseline", **promises)(function)


def judged(subject: Subject, seconds: float = 20.0) -> Outcome:
    case = Case(
        "twins",
        "explain(<bert>, 'a film', 'broken')",
        lambda: whence.explain(subject, "a film", "broken"),
        lambda a: check_attribution(subject, a),
        (subject,),
    )
    return outcome(case, seconds)


def even(subject: Any, batch: Any, target: Any) -> torch.Tensor:
    return torch.ones(batch.mask.shape)


def test_a_sound_method_is_right(subject: Subject) -> None:
    broken(lambda subject, batch, target: even(subject, batch, target), signed=False)
    assert judged(subject) == Outcome("right")


def test_an_index_error_is_raw(subject: Subject) -> None:
    broken(lambda subject, batch, target: [][0])
    assert judged(subject).verdict == "raw"


def test_an_assertion_and_an_error_of_torch_are_raw(subject: Subject) -> None:
    broken(lambda subject, batch, target: torch.ones(2) @ torch.ones(3))
    assert judged(subject).verdict == "raw"


def test_scores_that_are_not_numbers_are_refused(subject: Subject) -> None:
    broken(lambda subject, batch, target: even(subject, batch, target) * float("nan"))
    assert judged(subject).verdict == "refused"


def test_a_hook_that_is_left_is_seen(subject: Subject) -> None:
    def leave(subject: Any, batch: Any, target: Any) -> torch.Tensor:
        subject.model.register_forward_hook(lambda *given: None)
        return even(subject, batch, target)

    broken(leave)
    assert judged(subject).verdict == "changed"


def test_a_parameter_that_is_changed_behind_the_back_of_torch_is_seen(subject: Subject) -> None:
    def change(subject: Any, batch: Any, target: Any) -> torch.Tensor:
        next(subject.model.parameters()).data.numpy()[0] += 1  # a change that no version counter sees
        return even(subject, batch, target)

    broken(change, signed=False)
    assert judged(subject).verdict == "changed"


@pytest.mark.parametrize("change", [lambda: random.random(), lambda: np.random.rand(), lambda: torch.rand(1)])
def test_a_random_state_that_is_moved_is_seen(change: Callable[[], Any]) -> None:
    assert outcome(Case("twins", "draws", change)).verdict == "changed"


def test_a_gradient_mode_that_is_left_is_seen() -> None:
    case = Case("twins", "no_grad", lambda: torch.set_grad_enabled(False))
    try:
        assert outcome(case).verdict == "changed"
    finally:
        torch.set_grad_enabled(True)


def test_a_method_that_never_ends_is_a_hang(subject: Subject) -> None:
    def wait(subject: Any, batch: Any, target: Any) -> torch.Tensor:
        while True:
            time.sleep(0.01)

    broken(wait)
    assert judged(subject, seconds=0.5).verdict == "hang"


def test_a_method_that_catches_everything_cannot_hide_a_hang(subject: Subject) -> None:
    def wait(subject: Any, batch: Any, target: Any) -> torch.Tensor:
        with contextlib.suppress(Exception):
            time.sleep(5)
        return even(subject, batch, target)

    broken(wait)
    assert judged(subject, seconds=0.5).verdict == "hang"


def test_a_promise_that_is_not_kept_is_wrong(subject: Subject) -> None:
    broken(even, complete=True)
    assert "promises completeness" in judged(subject).message


@pytest.mark.parametrize("field", ["output", "residual", "base"])
def test_a_number_that_is_not_the_models_is_wrong(subject: Subject, field: str) -> None:
    a = whence.explain(subject, "a film", "gradient_x_input")
    check_attribution(subject, a)
    object.__setattr__(a, field, getattr(a, field) + 0.5)
    with pytest.raises(Wrong):
        check_attribution(subject, a)


def _raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    "error", [KeyError("x"), ValueError("raised here, outside of whence"), RuntimeError("x"), KeyboardInterrupt()]
)
def test_errors_from_elsewhere_are_no_sentences(error: BaseException) -> None:
    assert no_sentence(_raised(error))


@pytest.mark.parametrize("message", ["", "one\ntwo", "x" * 9999, " padded "])
def test_a_message_that_is_no_sentence_is_raw(subject: Subject, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.Record, "__call__", _says(message))
    broken(even)
    assert judged(subject).verdict == "raw"


def _says(message: str) -> Any:
    """A function that is compiled as if it stood in whence, and raises this message."""
    names: dict[str, Any] = {"message": message}
    exec(compile("def run(*given, **options):\n    raise ValueError(message)", registry.__file__, "exec"), names)
    return names["run"]


def test_a_sentence_of_whence_and_an_error_of_the_callers_function_are_refusals(subject: Subject) -> None:
    assert outcome(Case("twins", "", lambda: whence.explain(subject, ""))).verdict == "refused"
    module = shared("torch-sdpa")  # whose encoder, a tokenizer, raises an error of its own for None
    assert outcome(Case("twins", "", lambda: whence.explain(module, None))).verdict == "refused"  # type: ignore[arg-type]


def test_markup_that_gets_out_is_seen() -> None:
    for payload in PAYLOADS[:10]:
        check_pages(["<p>" + payload.replace("<", "&lt;").replace('"', "&quot;") + "</p>"])
    for page in (f"<p><{PAYLOAD}></p>", f'<p title="" {PAYLOAD}="1">', f"<script>'</script><{PAYLOAD}>'</script>"):
        with pytest.raises(Wrong):
            check_pages([page])


def test_a_command_with_a_traceback_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from whence import cli

    monkeypatch.setattr(whence, "list_models", lambda: [{"name": "no accuracy"}])
    failed = CliRunner().invoke(cli.app, ["models"])
    assert failed.exit_code == 1
    with pytest.raises(Wrong):
        check_command(failed)
    assert {"explain", "evaluate", "models"} <= commands().keys()


@pytest.mark.parametrize("way", ["module", "function", "hook", "backward"])
def test_faults_strike(subject: Subject, way: str) -> None:
    fuse = Fuse(2, lambda: Injected("now"))
    with pytest.raises(Injected), breaking(way, fuse):
        whence.explain(subject, "a film", "gradient")
    assert fuse.error is not None


def test_a_new_method_is_fuzzed_the_day_it_is_added() -> None:
    def new(subject: Any, batch: Any, target: Any, *, depth: int = 1) -> Any:
        return Explained(even(subject, batch, target))

    broken(new)
    quick = settings(max_examples=2000, database=None, derandomize=True)
    record = find(record_of("method"), lambda record: record.name == "broken", settings=quick)
    assert find(options_of(record), lambda options: options.get("depth") is VALUES[8], settings=quick)


def test_a_long_run_goes_on_after_a_failure_and_lists_it_once() -> None:
    def case_of(number: int) -> Case:
        return Case("twins", f"case {number}", lambda: [][number] if number > 5 else None)

    area = Area("twins", lambda: st.integers(0, 100).map(case_of), 1)
    run = Run([area], time.monotonic() + 10**6, 1)
    for _ in range(3):
        run._turn(area)
    assert Run([area], time.monotonic() - 1, 1)().counts.total() == 0  # the time is up before the run starts
    tally = run.tally
    [found] = tally.failures.values()
    assert found.case == "case 6" and found.blob and found.times > 1
    assert tally.counts["twins", "right"] > 0 and "IndexError" in str(found)
    assert "twins" in tally.table()


def test_a_failure_fails_a_test() -> None:
    with pytest.raises(Failure, match="IndexError"):
        must_hold(Case("twins", "a case", lambda: [][0]))
    assert all(area.count for area in AREAS.values())
