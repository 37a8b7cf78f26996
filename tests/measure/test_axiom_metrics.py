"""The axioms as metrics: models on which a method keeps one exactly and another breaks it, loops, and refusals."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typer.testing import CliRunner

import whence
from families import family, fresh, subject_of
from whence import zoo
from whence.cli import app
from whence.core.registry import resolve
from whence.core.results import Attribution
from whence.measure.metric_runs import MetricRuns, cases_of
from whence.measure.metrics import axioms
from whence.model.loan import fingerprint
from whence.model.masked_inputs import ways
from whence.model.masked_runs import MaskedRuns

WIDTH = 4
STRAIGHT = "integrated_gradients(steps=32, baseline='zero')"
GAME = ["sensitivity", "dummy", "symmetry"]  # they look at the scores and at hidden features
AGAIN = ["linearity", "implementation_invariance"]  # they run the method again
ALIKE = (1, 4, 1, 5)


class Formula(nn.Module):
    """Word embeddings and a formula of them, (batch, word, width) to (batch, class) or (batch,).

    Every word attends to itself alone, which changes nothing; relevance propagation looks for attention.
    """

    def __init__(self, formula: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        drawn = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.word = nn.Embedding.from_pretrained(drawn)
        self.formula = formula

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.word(input_ids)
        others = ~torch.eye(x.shape[1], dtype=torch.bool)
        return self.formula((x @ x.transpose(1, 2)).masked_fill(others, float("-inf")).softmax(-1) @ x)


def encode(raw: tuple[int, ...]) -> dict[str, Any]:
    return {"tensors": {"input_ids": np.array(raw)}, "features": {"text": [str(number) for number in raw]}}


def wrapped(formula: Callable[[Tensor], Tensor]) -> whence.Subject:
    return whence.wrap(Formula(formula), encode=encode)


def measured(formula: Callable[[Tensor], Tensor], metric: str, method: str = "random", **options: Any) -> float:
    """The metric of a method on the words 1, 4, 1, 5, of which the first and the third are equal."""
    subject = wrapped(formula)
    return whence.score(subject, whence.explain(subject, ALIKE, method, 0, **options), metric).value


def given(formula: Callable[[Tensor], Tensor], metric: str, scores: list[float], **options: Any) -> float:
    """The metric of scores that are given."""
    subject = wrapped(formula)
    a = replace(whence.explain(subject, ALIKE, "random", 0), scores=np.array(scores))
    return whence.score(subject, a, metric, **options).value


def here(x: Tensor) -> Tensor:
    """(batch, word): 1 where a word is shown, 0 where its embedding is zero; with a gradient, which is 0."""
    return (x.square().sum(-1) > 0) + 0 * x.sum(-1)


def additive(x: Tensor) -> Tensor:
    return (here(x) * torch.tensor([1.0, -2.0, 1.0, 0.0], dtype=x.dtype)).sum(-1)


def constant(x: Tensor) -> Tensor:
    return 1 + 0 * x.sum((1, 2))


def test_they_are_listed() -> None:
    found = {record.name: record for record in whence.list_metrics() if record.family == "axiom"}
    assert set(found) == {"completeness", *GAME, *AGAIN}
    assert all(record.better == "lower" and record.paper == "arXiv:1703.01365" for record in found.values())
    shown = CliRunner().invoke(app, ["metrics", "implementation_invariance"]).stdout
    assert "other" in shown and "a text or Subject or None" in shown


# ---- sensitivity (a) -------------------------------------------------------------------------------------------------


def saturated(x: Tensor) -> Tensor:
    """1 - ReLU(1 - 9 |x|^2) of the first word, and a third of that of the second: flat where words are not short."""
    flat = 1 - F.relu(1 - 9 * x.square().sum(-1))
    return flat[:, 0] + flat[:, 1] / 3


@pytest.mark.parametrize("method", [STRAIGHT, "leave_one_out(mask='zero')", "random"])
def test_what_changes_the_target_scores(method: str) -> None:
    assert measured(saturated, "sensitivity", method) == 0


@pytest.mark.parametrize("method", ["gradient(at='word')", "gradient_x_input(at='word')", "lrp(at='word')"])
def test_gradients_do_not_see_what_has_saturated(method: str) -> None:
    assert measured(saturated, "sensitivity", method) == 1


def test_the_share_that_is_missed() -> None:
    assert given(additive, "sensitivity", [3.0, 0, 1, 0]) == pytest.approx(1 / 3)  # the second matters, the last not
    assert given(additive, "sensitivity", [3.0, 2e-4, 1, 9]) == pytest.approx(1 / 3)
    assert given(additive, "sensitivity", [3.0, 2e-4, 1, 9], zero=1e-5) == 0
    assert given(additive, "sensitivity", [0.0, 1, 0, 0], least=0.6) == 0  # only the second changes as much
    assert math.isnan(given(constant, "sensitivity", [1.0, 2, 3, 4]))


# ---- sensitivity (b) -------------------------------------------------------------------------------------------------


def gated(x: Tensor) -> Tensor:
    """The third word counts only where the first is there and the second is not; the last never does."""
    first, second, third, _ = here(x).unbind(-1)
    return first + second + first * (1 - second) * third


@pytest.mark.parametrize("method", [STRAIGHT, "gradient(at='word')", "leave_one_out(mask='zero')"])
def test_what_never_changes_the_target_scores_nothing(method: str) -> None:
    def formula(x: Tensor) -> Tensor:
        return (torch.tanh(x[:, 0]) * torch.relu(x[:, 2] + 0.5)).sum(-1) + x[:, 1].sum(-1)

    assert measured(formula, "dummy", method) == 0
    assert measured(formula, "dummy", "random") > 0.01


def test_the_share_that_lies_on_dummies() -> None:
    assert given(additive, "dummy", [1.0, -2, 0, 1]) == 0.25
    assert given(lambda x: 100 + additive(x), "dummy", [1.0, -2, 0, 1]) == 0.25  # it is the range that counts
    assert given(additive, "dummy", [0.0, 0, 0, 0]) == 0
    assert given(constant, "dummy", [1.0, 0, -3, 0]) == 1
    assert math.isnan(measured(lambda x: here(x).sum(-1), "dummy"))


def test_a_feature_that_counts_among_some_others_is_no_dummy() -> None:
    """Beside nothing and beside everything it changes nothing: random sets tell."""
    assert given(gated, "dummy", [1.0, 1, 1, 1], draws=0) == 0.5
    assert given(gated, "dummy", [1.0, 1, 1, 1], draws=32) == 0.25


# ---- symmetry --------------------------------------------------------------------------------------------------------


def symmetric(x: Tensor) -> Tensor:
    """The first and the third word may change places."""
    both = torch.tanh(x[:, 0] * x[:, 2] + x[:, 1]) + torch.exp(-(x[:, 0] + x[:, 2]).square()) + x[:, 3] * x[:, 1]
    return both.sum(-1)


def first_word_first(x0: Tensor, x: Tensor, share: float) -> Tensor:
    """The first word goes in the first half of the way, the others in the second."""
    shares = torch.full((x.shape[1], 1), max(0.0, 2 * share - 1), dtype=x.dtype)
    shares[0] = min(1.0, 2 * share)
    return x0 + shares * (x - x0)


def test_the_straight_path_is_symmetric_and_another_is_not() -> None:
    assert measured(symmetric, "symmetry", STRAIGHT) < 1e-10
    assert measured(symmetric, "symmetry", "leave_one_out(mask='zero')") < 1e-10
    options = {"path": first_word_first, "baseline": "zero"}
    assert measured(symmetric, "symmetry", "path_gradients(points=8, steps=8)", **options) > 0.1


def test_the_largest_difference_of_a_pair() -> None:
    assert given(additive, "symmetry", [1.0, -2, 0.5, 9]) == pytest.approx(0.5 / 9)
    assert given(additive, "symmetry", [1.0, 0, -1, 0]) == 2
    assert given(additive, "symmetry", [0.0, 0, 0, 0]) == 0
    assert math.isnan(measured(lambda x: here(x) @ torch.tensor([1.0, 2, 4, 8], dtype=x.dtype), "symmetry"))


def test_features_that_differ_among_some_others_are_no_pair() -> None:
    """The last two of `gated` are equal beside nothing and beside everything."""
    assert given(gated, "symmetry", [0.0, 0, 1, 0], draws=0) == 1
    assert math.isnan(given(gated, "symmetry", [0.0, 0, 1, 0], draws=32))


# ---- loops -----------------------------------------------------------------------------------------------------------


def looped(a: Attribution, tolerance: float, draws: int) -> dict[str, float]:
    """The three, feature by feature and pair by pair, over masked texts made here."""
    made, free = family("bert"), [i for i, special in enumerate(a.special) if not special]
    mask = made.processor.mask_token_id
    assert ways(subject_of("bert"), a.input) == {"text": "mask"}

    @functools.cache
    def v(kept: frozenset[int]) -> float:
        ids = [int(t) if i in kept or i not in free else mask for i, t in enumerate(a.input.tensors["input_ids"])]
        with torch.no_grad():
            return float(made.model(input_ids=torch.tensor([ids])).logits[0, int(a.target.index or 0)])

    rng = np.random.default_rng([0, 7])
    shown, sizes = rng.random((draws, len(free))), rng.random(draws)
    sets = [
        frozenset(i for i, p in zip(free, row, strict=True) if p < size) for row, size in zip(shown, sizes, strict=True)
    ]
    sets = [frozenset(free), frozenset(), *sets]
    seen = [v(s ^ turned) for s in sets for turned in [frozenset(), *(frozenset([i]) for i in free)]]
    allowed = tolerance * (max(seen) - min(seen))
    everything, phi = frozenset(free), {i: abs(float(a.scores[i])) for i in free}
    changes = {i: abs(v(everything) - v(everything - {i})) for i in free}
    changing = [i for i in free if changes[i] > tolerance * max(changes.values())]
    dummies = [i for i in free if all(abs(v(s | {i}) - v(s - {i})) <= allowed for s in sets)]
    gaps = []
    for i in free:
        for j in free:
            others = [s - {i, j} for s in sets if (i in s) == (j in s)]
            if i < j and all(abs(v(s | {i}) - v(s | {j})) <= allowed for s in others):
                gaps.append(abs(float(a.scores[i]) - float(a.scores[j])))
    top = max(phi.values())
    return {
        "sensitivity": sum(phi[i] <= tolerance * top for i in changing) / len(changing),
        "dummy": sum(phi[i] for i in dummies) / sum(phi.values()) if dummies else math.nan,
        "symmetry": max(gaps) / top if gaps else math.nan,
    }


@pytest.mark.parametrize("tolerance", [0.1, 0.6])
def test_plain_loops_find_the_same(tolerance: float) -> None:
    subject = subject_of("bert")
    a = whence.explain(subject, "the actors were quietly wonderful and the story was unforgettable", "random", 2)
    a = replace(a, scores=np.random.default_rng(3).normal(size=a.scores.shape))
    expected = looped(a, tolerance, 6)
    options = {"draws": 6, "tolerance": tolerance}
    found = {name: whence.score(subject, a, name, **options).value for name in GAME[1:]}
    found["sensitivity"] = whence.score(subject, a, "sensitivity", least=tolerance, zero=tolerance).value
    assert found == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert tolerance < 0.5 or all(value > 0 for value in expected.values())


def test_special_tokens_do_not_count() -> None:
    subject = subject_of("bert")
    a = whence.explain(subject, "a masterful film and a quiet triumph", "gradient", 2)
    heavy = replace(a, scores=np.where(a.special, 1e6, a.scores))
    for metric in ("sensitivity", "dummy(tolerance=0.6)", "symmetry(tolerance=0.6)"):
        one, other = whence.score(subject, [a, heavy], metric).values
        assert one == other and not math.isnan(one)
    empty = replace(a, input=replace(a.input, special=np.ones(len(a.features), bool)))
    assert all(math.isnan(whence.score(subject, empty, metric).value) for metric in GAME)


def test_passes_grow_with_features_and_draws() -> None:
    """And one metric finds what another asked for."""
    subject = subject_of("bert")
    a = whence.explain(subject, "the actors were quietly wonderful", "random", 2)
    found, engine = cases_of(subject, a), MaskedRuns(subject)
    metrics, count = MetricRuns(engine), len(found[0].free)
    metrics.scored([resolve("metric", "sensitivity")], found)
    assert engine.run == 1 + count
    metrics.scored([resolve("metric", "symmetry(draws=5)")], found)
    after = engine.run
    assert after <= 7 * (1 + count)
    metrics.scored([resolve("metric", "dummy(draws=5)")], found)
    assert engine.run == after


# ---- linearity -------------------------------------------------------------------------------------------------------

LINEAR = ["gradient_x_input", "integrated_gradients(steps=8)", "leave_one_out", "lrp"]
CONTRASTS = {"bert": "the actors were quietly wonderful", "vit": 0, "gpt2": "the old man was singing"}


@functools.cache
def in_double(name: str) -> whence.Subject:
    made = fresh(name)
    return whence.wrap(made.model.double(), made.processor)


@pytest.mark.parametrize("method", LINEAR)
@pytest.mark.parametrize("name", CONTRASTS)
def test_scores_of_a_difference_are_the_difference_of_scores(name: str, method: str) -> None:
    subject = in_double(name)
    raw = family(name).inputs[0] if name == "vit" else CONTRASTS[name]
    for a in (whence.explain(subject, raw, method), whence.explain(subject, raw, method, "probability")):
        assert whence.score(subject, a, "linearity").value < 1e-6  # softmax goes through float32


@pytest.mark.parametrize(("method", "broken"), [("gradient", None), ("attention", 1.0), ("random", 1.0), ("gae", None)])
def test_sizes_and_what_does_not_see_the_target_are_not_linear(method: str, broken: float | None) -> None:
    a = whence.explain(in_double("bert"), CONTRASTS["bert"], method)
    value = whence.score(in_double("bert"), a, "linearity").value
    assert value > 0.1 and (broken is None or value == pytest.approx(broken))


@pytest.mark.parametrize("method", ["gradient", "gae"])
def test_linearity_by_hand(method: str) -> None:
    """The runner-up stands against the target; in a contrast, the other one that was named."""
    subject = subject_of("bert")
    raw = CONTRASTS["bert"]
    logits = subject.logits(subject.batch([subject.encode(raw)]))[0].tolist()
    best, second, last = sorted(range(3), key=lambda c: -logits[c])
    for target, a, b in [(None, best, second), (last, last, best), (f"contrast({best}, {last})", best, last)]:
        both, one, other = (
            whence.explain(subject, raw, method, wanted).scores.astype(float)
            for wanted in (f"contrast({a}, {b})", a, b)
        )
        size = max(np.linalg.norm(both), np.linalg.norm(one - other))
        expected = np.linalg.norm(both - (one - other)) / size
        found = whence.score(subject, whence.explain(subject, raw, method, target), "linearity").value
        assert found == pytest.approx(expected, rel=1e-4) and expected > 0.01


def test_every_generated_token_has_its_runner_up() -> None:
    subject = subject_of("gpt2")
    a = whence.explain(subject, {"prompt": "the old man", "continuation": " was singing"}, "gradient_x_input")
    values = whence.score(subject, a, "linearity").values
    assert values is not None and len(values) == len(a.input.generated) > 1 and values.max() < 1e-4


def test_one_output_has_nothing_to_be_linear_in() -> None:
    with pytest.raises(ValueError, match="the logits of two classes or tokens, and Formula has one output"):
        measured(lambda x: additive(x), "linearity")
    assert math.isnan(measured(lambda x: torch.stack([constant(x)] * 2, -1), "linearity", "leave_one_out"))


# ---- implementation invariance ---------------------------------------------------------------------------------------


def network(act: Callable[[Tensor], Tensor], scale: float = 1.0) -> Callable[[Tensor], Tensor]:
    drawn = torch.randn(3, WIDTH, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    first, last = drawn[:2].flatten(0, 1).T.clone(), scale * drawn[2, :3].clone()
    return lambda x: F.linear(act(F.linear(x[:, :2].flatten(1), first)), last)


TANH = network(torch.tanh)
AS_SIGMOID = network(lambda z: 2 * torch.sigmoid(2 * z) - 1)


def between(one: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], method: str, **options: Any) -> float:
    subject = wrapped(one)
    a = whence.explain(subject, ALIKE, method, 0)
    return whence.score(subject, a, "implementation_invariance", other=wrapped(other), **options).value


@pytest.mark.parametrize("method", [STRAIGHT, "gradient(at='word')", "leave_one_out(mask='zero')", "random"])
def test_equal_functions_get_equal_scores(method: str) -> None:
    assert between(TANH, AS_SIGMOID, method) < 1e-10


def test_relevance_depends_on_how_an_activation_is_written() -> None:
    one, other = (whence.explain(wrapped(f), ALIKE, "lrp(at='word')", 0).scores for f in (TANH, AS_SIGMOID))
    expected = np.linalg.norm(one - other) / max(np.linalg.norm(one), np.linalg.norm(other))
    assert between(TANH, AS_SIGMOID, "lrp(at='word')") == pytest.approx(expected)
    assert between(AS_SIGMOID, TANH, "lrp(at='word')") == pytest.approx(expected) and expected > 0.01


def test_other_functions_are_refused() -> None:
    with pytest.raises(ValueError, match="compares with another model that computes the same, and none came"):
        measured(TANH, "implementation_invariance")
    with pytest.raises(ValueError, match=r"differ by 0\.01 of the largest, above tolerance=0\.001"):
        between(TANH, network(torch.tanh, 1.01), "random")
    assert between(TANH, network(torch.tanh, 1.01), "gradient(at='word')", tolerance=0.02) == pytest.approx(0.01 / 1.01)
    with pytest.raises(ValueError, match="6 of them, and Formula has 3"):
        between(lambda x: TANH(x).repeat(1, 2), TANH, "random")
    subject = wrapped(TANH)
    a = whence.explain(subject, ALIKE, "random", 0)
    with pytest.raises(ValueError, match=r"takes what Formula takes, and Identity cannot be run on it: .*input_ids"):
        other = whence.wrap(nn.Identity(), encode=encode)
        whence.score(subject, a, "implementation_invariance", other=other)


def test_a_function_that_is_equal_only_at_the_input_is_refused() -> None:
    def elsewhere(x: Tensor) -> Tensor:
        return TANH(x) + (1 - here(x)).sum(-1, keepdim=True)

    with pytest.raises(ValueError, match="give a model that computes the same"):
        between(TANH, elsewhere, "gradient(at='word')")


def test_a_folder_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neurons in another order: the same function in other weights."""
    made = fresh("bert")
    made.model.save_pretrained(tmp_path / "one")
    made.processor.save_pretrained(tmp_path / "one")
    with torch.no_grad():
        for layer in made.model.bert.encoder.layer:
            first, last = layer.intermediate.dense, layer.output.dense
            order = torch.randperm(first.out_features, generator=torch.Generator().manual_seed(0))
            first.weight.copy_(first.weight[order])
            first.bias.copy_(first.bias[order])
            last.weight.copy_(last.weight[:, order])
    made.model.save_pretrained(tmp_path / "other")
    made.processor.save_pretrained(tmp_path / "other")
    names: list[str] = []
    plain = axioms.load
    monkeypatch.setattr(axioms, "load", lambda name, **options: names.append(name) or plain(name, **options))
    subject = whence.load(tmp_path / "one")
    before = fingerprint(subject.model, full=True)
    spec = f"implementation_invariance(other={str(tmp_path / 'other')!r})"
    board = whence.evaluate(subject, ["a quiet film", "the plot was slow"], ["lrp", "gae"], [spec])
    assert board.values.max() < 1e-4  # sums add up in another order
    assert names == [str(tmp_path / "other")]
    assert fingerprint(subject.model, full=True) == before
    file = tmp_path / "a.json"
    whence.explain(subject, "a quiet film", "lrp").save(file)
    result = CliRunner().invoke(app, ["score", str(file), "--metric", spec, "--model", str(tmp_path / "one")])
    assert result.exit_code == 0 and result.stdout.startswith(spec) and "lower is better" in result.stdout


# ---- all of them -----------------------------------------------------------------------------------------------------


def test_options_that_make_no_sense() -> None:
    for metric, message in [
        ("dummy(draws=-1)", "'draws' takes a whole number from 0 to 10,000, not -1"),
        ("symmetry(tolerance=1.0)", "'tolerance' takes a number at least 0 and below 1, not 1.0"),
        ("sensitivity(least=-0.1)", "'least' takes a number at least 0 and below 1, not -0.1"),
        ("sensitivity(zero=2)", "'zero' takes a number at least 0 and below 1, not 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            measured(additive, metric)


def test_methods_on_a_model_whose_truth_is_known() -> None:
    """Words around the cue do nothing in the planted sentences: a method that hides them knows, chance does not."""
    subject = whence.load("planted")
    data = zoo.examples("planted", 6, 5)
    board = whence.evaluate(subject, data, ["leave_one_out", "random"], ["sensitivity", "dummy", "symmetry"])
    kept, chance = np.nanmean(board.values, -1)
    assert kept[0] == 0 and (kept[1:] < 0.02).all() and (chance[1:] > 0.5).all()
