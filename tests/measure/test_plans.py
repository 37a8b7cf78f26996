"""Plans: chunks as pure functions, inputs encoded once, shared passes, seconds, stops; function targets in metrics."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whence
from families import fresh, subject_of
from whence import zoo
from whence.core import registry
from whence.core.locking import held
from whence.measure import local_engine, plans
from whence.measure.plans import Example, Plan, encode_examples, joined, run_chunk
from whence.model.weights import duplicate

METHODS = ("random", "gae", "leave_one_out")
METRICS = ("auac", "loo_agreement", "completeness")


@pytest.fixture(scope="module")
def planted() -> whence.Subject:
    return whence.load("planted")


def texts(count: int) -> list[Any]:
    return [example.input for example in zoo.examples("planted", count, 5)]


def planned(subject: whence.Subject, count: int, **changes: Any) -> tuple[Plan, plans.Encoded]:
    examples, encoded = encode_examples(subject, texts(count), [[None]] * count, [None] * count, False)
    return replace(Plan(subject.name, "", examples, METHODS, METRICS), **changes), encoded


# ---- chunks ----------------------------------------------------------------------------------------------------------


def sized(*sizes: int, methods: int = 1) -> Plan:
    names = tuple(f"method_{n}" for n in range(methods))
    return Plan("net", "", tuple(Example("", (None,), size=size) for size in sizes), names, METRICS)


def test_chunks_are_cut_by_what_they_cost() -> None:
    short, long = sized(*[10] * 40), sized(*[600] * 5)
    many = sized(*[100] * 20, methods=4)
    assert [len(chunk) for chunk in short.chunks()] == [1, 8, 8, 8, 8, 7]
    assert [len(chunk) for chunk in long.chunks()] == [1] * 5
    assert max(map(len, many.chunks())) == plans.MAX_COST // (4 * 100**2) < 8
    for plan in (short, long, many, sized(3)):
        assert [number for chunk in plan.chunks() for number in chunk] == list(range(len(plan.examples)))


def test_a_plan_does_not_change(planted: whence.Subject) -> None:
    plan, _ = planned(planted, 2)
    with pytest.raises(FrozenInstanceError):
        plan.seed = 1  # type: ignore[misc]
    assert plan.heading() == planned(planted, 2)[0].heading()
    others = [{"seed": 1}, {"methods": METHODS[:1]}, {"truncate": True}, {"weights": "other"}, {"metrics": METRICS[1:]}]
    assert all(replace(plan, **change).heading() != plan.heading() for change in others)


def test_a_chunk_is_a_pure_function(planted: whence.Subject) -> None:
    """In any order, with inputs encoded before or not, with answers known before or not."""
    plan, encoded = planned(planted, 10)
    chunks = plan.chunks()
    assert len(chunks) == 3
    forth = [run_chunk(plan, chunk, planted, encoded.items) for chunk in chunks]
    engine = plans.MaskedRuns(planted)
    back = [run_chunk(plan, chunk, planted, engine=engine) for chunk in reversed(chunks)][::-1]
    for one, other in zip(forth, back, strict=True):
        np.testing.assert_allclose(one.values, other.values, atol=1e-6)
        np.testing.assert_allclose(one.curves, other.curves, atol=1e-6)
    same = run_chunk(plan, chunks[1], planted)
    np.testing.assert_array_equal(same.values, forth[1].values)
    board = whence.evaluate(planted, texts(10), METHODS, METRICS)
    np.testing.assert_allclose(board.values, joined(back).values[..., 0], atol=1e-6)
    np.testing.assert_allclose(np.array(board.curves), joined(back).mean_curves(), atol=1e-6)


def test_kept_explanations(planted: whence.Subject) -> None:
    examples, _ = encode_examples(planted, texts(3), [[0, 1]] * 3, [None] * 3, False)
    plan = Plan(planted.name, "", examples, METHODS, ("auac",), keep="label", judges=("auac", "deletion"))
    label, instance, first = (
        run_chunk(replace(plan, keep=keep), range(3), planted) for keep in ("label", "instance", "first")
    )
    assert label.values.shape == (3, 1, 3, 2) and label.judged is not None and label.judged.shape == (2, 3, 2)
    np.testing.assert_array_equal(label.chosen, label.values[:, 0].argmax(0))
    np.testing.assert_array_equal(instance.chosen, np.repeat(label.values[:, 0].mean(-1).argmax(0)[:, None], 2, 1))
    assert not first.chosen.any()
    for result in (label, instance, first):
        assert [a.method for a in result.explanations] == [METHODS[n] for n in result.chosen.ravel()]
        assert [a.target.index for a in result.explanations] == [0, 1] * 3
    np.testing.assert_allclose(label.judged[0], label.values[:, 0].max(0), atol=1e-9)


# ---- what is shared --------------------------------------------------------------------------------------------------


def test_every_input_is_encoded_once(monkeypatch: pytest.MonkeyPatch, planted: whence.Subject) -> None:
    calls: list[Any] = []
    encode = whence.Subject.encode
    monkeypatch.setattr(whence.Subject, "encode", lambda self, raw, **k: calls.append(raw) or encode(self, raw, **k))
    whence.evaluate(planted, texts(10), METHODS, METRICS)
    assert calls == texts(10)
    calls.clear()
    whence.arbitrate(planted, texts(4), ["random", "gae"])
    assert calls == texts(4)
    calls.clear()
    monkeypatch.setattr(plans, "MAX_KEPT", 0)  # no room for encoded inputs: they are encoded again as they are run
    whence.evaluate(planted, texts(2), METHODS, METRICS)
    assert set(calls) == set(texts(2)) and len(calls) > 2


def test_methods_share_passes() -> None:
    made = fresh("bert")
    subject = whence.wrap(made.model, made.processor)
    examples, encoded = encode_examples(subject, ["a masterful film"], [[None]], [None], False)
    plan = Plan("", "", examples, ("attention", "gae", "grad_sam", "attcat"), ("completeness",))
    run_chunk(plan, range(1), subject, encoded.items)  # the model is known from here on
    calls = []
    made.model.register_forward_pre_hook(lambda *_: calls.append(1))
    run_chunk(plan, range(1), subject, encoded.items)
    assert len(calls) == 1


def test_seconds_are_of_a_method_alone_on_a_sample(monkeypatch: pytest.MonkeyPatch, planted: whence.Subject) -> None:
    timed: list[tuple[int, list[str]]] = []
    explained = local_engine.explained

    def slower(subject: Any, items: Any, specs: Any, *rest: Any) -> Any:
        timed.append((len(items), [record.name for record, _ in specs]))
        time.sleep(0.05 * (specs[0][0].name == "gae"))
        return explained(subject, items, specs, *rest)

    monkeypatch.setattr(local_engine, "explained", slower)
    board = whence.evaluate(planted, texts(16), METHODS, ["completeness"])
    assert timed == [(2, [name]) for name in METHODS]
    assert board.seconds.shape == (3, 16) and (np.ptp(board.seconds, axis=1) == 0).all()
    assert board.seconds[1, 0] > board.seconds[0, 0] + 0.02
    assert f"{board.seconds[0, 0]:.3g}" in str(board)


# ---- stops -----------------------------------------------------------------------------------------------------------


def test_a_stop_without_a_file_says_what_would_have_kept_the_work(
    planted: whence.Subject, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*args: Any) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("what was being done could not be undone")

    monkeypatch.setattr(local_engine, "run_chunk", stop)
    with pytest.raises(KeyboardInterrupt):
        whence.evaluate(planted, texts(2), METHODS, METRICS, progress=True)
    told = capsys.readouterr().err
    assert "stopped after 0 of 2 examples; a resume file would have kept them: name one with --resume" in told
    for by in ("instance", "set"):
        with pytest.raises(KeyboardInterrupt):
            whence.arbitrate(planted, texts(2), ["random", "gae"], by=by)  # type: ignore[arg-type]
        assert capsys.readouterr().err == "stopped after 0 of 2 examples; nothing of it is kept\n"


def test_the_command_is_stopped_by_ctrl_c(tmp_path: Path) -> None:
    """Exit code 130, one sentence, and a file to go on from."""
    data, file = tmp_path / "data.csv", tmp_path / "run.jsonl"
    data.write_text("text\n" + "".join(f"{text}\n" for text in texts(300)))
    command = [sys.executable, "-m", "whence", "evaluate", data, "-m", "planted", "--method", "gae,random"]
    run = subprocess.Popen(
        [*map(str, command), "--metric", "deletion,infidelity", "--resume", str(file)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
        # a shell that starts jobs in the background has them ignore SIGINT, which children inherit
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 120
    while run.poll() is None and time.monotonic() < deadline:
        if file.exists() and file.read_text().count("\n") > 2:  # the heading and two chunks
            run.send_signal(signal.SIGINT)
            break
        time.sleep(0.05)
    shown, told = run.communicate(timeout=60)
    assert run.returncode == 130, told
    assert "of 300 examples, which" in told and "run.jsonl keeps; run the same again with that resume file" in told
    assert "Traceback" not in told and not shown


def test_curves_that_end_early_and_values_that_are_not_defined_are_kept(tmp_path: Path) -> None:
    digits, file = whence.load("digits"), tmp_path / "run.jsonl"
    raws, metrics = [e.input for e in zoo.examples("digits", 3)], ["positive_perturbation", "completeness"]
    first, again = (whence.evaluate(digits, raws, ["gae", "random"], metrics, resume=file) for _ in range(2))
    assert first == again and np.isnan(first.values[0, 1]).all()
    shares, values = first.curve("gae", "positive_perturbation")
    assert shares[-1] == pytest.approx(0.9) and np.isfinite(values).all() and "NaN" not in file.read_text()
    assert not len(first.curve("gae", "completeness")[0])


def test_progress_counts_examples(planted: whence.Subject, capsys: pytest.CaptureFixture[str]) -> None:
    whence.evaluate(planted, texts(10), ["random"], ["completeness"], progress=True)
    assert "10/10" in capsys.readouterr().err


# ---- targets ---------------------------------------------------------------------------------------------------------


def doubled(logits: torch.Tensor, batch: Any) -> torch.Tensor:
    return 2 * logits[:, 1]


def test_a_function_is_measured_as_what_it_computes() -> None:
    """Twice a logit: what looks at order alone does not change, what looks at values doubles."""
    subject = subject_of("bert")
    raws = ["the actors were quietly wonderful", "a masterful film"]
    plain, twice = (whence.explain(subject, raws, "leave_one_out", target) for target in (1, doubled))
    for metric, factor in (("loo_agreement", 1), ("monotonicity", 1), ("sensitivity_n", 1), ("infidelity", 4)):
        one = whence.score(subject, plain, metric).values
        other = whence.score(subject, twice, metric, target=doubled).values
        np.testing.assert_allclose(other, factor * np.asarray(one), rtol=1e-4)


@pytest.mark.parametrize("metric", ["auac", "deletion", "comprehensiveness", "sufficiency", "rft"])
def test_a_target_without_a_class_is_watched_itself(metric: str) -> None:
    """In place of p: a function that computes p gives the values of p, and another function others."""
    subject = subject_of("bert")
    text = "the actors were quietly wonderful"
    p = lambda logits, batch: logits.softmax(-1)[:, 1]  # noqa: E731
    scores = whence.explain(subject, text, "gradient_x_input", "probability(1)")
    same, other = (whence.explain(subject, text, "gradient_x_input", f) for f in (p, doubled))
    values = [whence.score(subject, scores, metric).value, whence.score(subject, same, metric, target=p).value]
    assert values[1] == pytest.approx(values[0], abs=1e-5)
    assert abs(whence.score(subject, other, metric, target=doubled).value - values[0]) > 1e-3


def test_a_function_must_be_given_again(tmp_path: Path) -> None:
    subject = subject_of("bert")
    a = whence.explain(subject, "a masterful film", "gradient_x_input", doubled)
    a.save(tmp_path / "a.json")
    saved = whence.Attribution.load(tmp_path / "a.json")
    assert whence.score(subject, saved, "auac", target=doubled) == whence.score(subject, a, "auac", target=doubled)
    assert np.isfinite(whence.score(subject, saved, "completeness").value)  # asks the model nothing
    with pytest.raises(ValueError, match="is of the function 'doubled', which a result cannot hold; give the function"):
        whence.score(subject, saved, "auac")
    with pytest.raises(ValueError, match="explains another model"):
        whence.score(subject, saved, "auac", target=lambda logits, batch: 5 * logits[:, 0] + 9)
    with pytest.raises(TypeError, match="target= takes a function alone, not 'positive'"):
        whence.score(subject, a, "auac", target="positive")  # type: ignore[call-overload]
    plain = whence.explain(subject, "a masterful film", "gradient_x_input", 1)
    with pytest.raises(ValueError, match="the explanations are of logit of 'neutral'; leave it out"):
        whence.score(subject, plain, "auac", target=doubled)


def test_methods_that_run_again_are_given_the_function() -> None:
    subject = subject_of("bert")
    a = whence.explain(subject, "a masterful film", "gradient_x_input", doubled)
    plain = whence.explain(subject, "a masterful film", "gradient_x_input", 1)
    found = whence.score(subject, a, "max_sensitivity", target=doubled).value
    assert found == pytest.approx(whence.score(subject, plain, "max_sensitivity").value, rel=1e-3)


@pytest.mark.parametrize("target", ["negative", "log_odds('negative')", doubled])
def test_one_target_for_all_examples(target: Any, planted: whence.Subject, tmp_path: Path) -> None:
    examples = zoo.examples("planted", 4, 5)
    found = whence.explain(planted, [e.input for e in examples], "leave_one_out", target)
    board = whence.evaluate(planted, examples, ["leave_one_out"], ["auac", "infidelity"], target=target)
    function = {"target": target} if callable(target) else {}
    for metric in board.metrics:
        expected = whence.score(planted, found, metric, **function).values
        np.testing.assert_allclose(board.score("leave_one_out", metric).values, expected, atol=1e-5)
    assert board.notes[0] == f"Explained: {'doubled' if callable(target) else target}, of all inputs."
    assert board.axes[0][1] == ("the target" if callable(target) else "p of the target's class")
    with pytest.raises(ValueError, match="of other data"):
        for one in (target, None):
            whence.evaluate(planted, examples, ["random"], ["auac"], target=one, resume=tmp_path / "run.jsonl")


def test_a_board_knows_the_axes_of_its_curves(planted: whence.Subject, tmp_path: Path) -> None:
    board = whence.evaluate(planted, texts(2), ["random"], ["auac", "completeness", "deletion(steps=2)"])
    shown, hidden = "share of features shown, highest score first", "share of features hidden, highest score first"
    assert board.axes == ((shown, "p of the target's class"), (), (hidden, "p of the target's class"))
    board.save(tmp_path / "board.json")
    assert whence.Scoreboard.load(tmp_path / "board.json") == board
    record = registry.find("metric", "positive_perturbation")
    assert [record.axes_of(o)[1] for o in ({}, {"measure": "probability"})] == ["accuracy", "probability"]


def test_every_metric_with_a_curve_promises_its_axes(planted: whence.Subject) -> None:
    examples = zoo.examples("planted", 1, 5)
    for record in whence.list_metrics():
        if record.name in ("localisation", "implementation_invariance") or "perturbation" in record.name:
            continue
        board = whence.evaluate(planted, examples, ["gradient_x_input"], [record.name])
        assert bool(len(board.curve("gradient_x_input", record.name)[0])) == bool(record.axes) == bool(board.axes[0])


def test_a_resume_file_of_another_target_is_refused(tmp_path: Path, planted: Any) -> None:
    def of(target: Any, file: str) -> Any:
        return whence.evaluate(planted, texts(3), ["random"], ["loo_agreement"], target=target, resume=tmp_path / file)

    def scaled(by: float) -> Any:
        return lambda logits, batch: by * logits[:, 0]

    np.save(tmp_path / "v.npy", np.ones(planted.width))
    spec = f"direction(1, '{tmp_path / 'v.npy'}')"
    pairs = [
        (whence.Target.neuron(1, 2), whence.Target.neuron(1, 3)),
        (lambda z, b: z[:, 0], lambda z, b: z[:, 1]),
        (scaled(1.0), scaled(2.0)),
    ]
    for number, (one, other) in enumerate(pairs):
        first = of(one, f"{number}.jsonl")
        assert np.array_equal(of(one, f"{number}.jsonl").values, first.values, equal_nan=True)
        with pytest.raises(ValueError, match="another kind, of other data or of another model"):
            of(other, f"{number}.jsonl")
    of(spec, "v.jsonl")
    np.save(tmp_path / "v.npy", np.arange(planted.width))
    with pytest.raises(ValueError, match="another kind, of other data or of another model"):
        of(spec, "v.jsonl")


def test_lines_of_a_resume_file_count_once_in_their_place_and_only_whole(planted: Any, tmp_path: Path) -> None:
    """Doubled, exchanged, changed and foreign lines: the result is that of an undisturbed run."""
    examples = zoo.examples("planted", 20, 5)
    file, other = tmp_path / "run.jsonl", tmp_path / "other.jsonl"
    whole = whence.evaluate(planted, examples, ["gae", "random"], ["auac"], resume=file)
    whence.evaluate(planted, examples, ["random", "gae"], ["auac"], resume=other)
    heading, *lines = file.read_text().splitlines()
    assert len(lines) == 5  # chunks of 1, 8, 8 and 3, then the times
    foreign = other.read_text().splitlines()[1]
    changed = lines[1].replace('"values": [[[[0.', '"values": [[[[7.', 1)
    assert changed != lines[1]
    disturbed = {
        "doubled": [*lines[:2], lines[1], *lines[2:]],
        "exchanged": [lines[1], lines[0], *lines[2:]],
        "changed": [lines[0], changed, *lines[2:]],
        "cut": [lines[0], lines[1][:40], *lines[2:]],
        "foreign": [foreign, *lines[1:]],
        "left out": lines[1:],
        "junk": ["\x00\x01", "null", "[]", *lines],
    }
    for name, content in disturbed.items():
        file.write_text("\n".join([heading, *content]) + "\n")
        again = whence.evaluate(planted, examples, ["gae", "random"], ["auac"], resume=file)
        assert np.array_equal(again.values, whole.values, equal_nan=True), name
        assert np.array_equal(again.curves, whole.curves, equal_nan=True), name


def test_a_resume_file_belongs_to_one_run_at_a_time_and_to_all_weights(planted: Any, tmp_path: Path) -> None:
    examples, file = zoo.examples("planted", 2, 5), tmp_path / "run.jsonl"
    with (
        file.open("a+b") as open_file,
        held(open_file),
        pytest.raises(ValueError, match="in use by another run"),
    ):
        whence.evaluate(planted, examples, ["random"], ["auac"], resume=file)
    whence.evaluate(planted, examples, ["random"], ["auac"], resume=file)
    changed = duplicate(planted)
    with torch.no_grad():
        next(p for p in changed.model.parameters() if p.ndim == 2)[1, 1] += 1e-3  # one number among all
    with pytest.raises(ValueError, match="of another model"):
        whence.evaluate(changed, examples, ["random"], ["auac"], resume=file)
    changed = duplicate(planted)
    changed.model.config.hidden_act = "relu"
    with pytest.raises(ValueError, match="of another model"):
        whence.evaluate(changed, examples, ["random"], ["auac"], resume=file)
