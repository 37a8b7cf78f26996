"""Metrics: orders that are known to be best, identities, and plain loops over the model's own forward pass."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp, softmax
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import auc, average_precision_score, precision_recall_curve
from torch import nn
from torch.nn import functional as F

import whence
from families import PICTURES, family, fresh, subject_of
from whence.core import registry
from whence.core.inputs import Input, Target
from whence.core.results import Attribution
from whence.measure.metric_runs import MetricRuns, cases_of
from whence.measure.metrics.faithfulness import ranked_truthfulness
from whence.model.loan import fingerprint
from whence.model.masked_inputs import ways
from whence.model.masked_runs import Ask, MaskedRuns
from whence.model.weights import stages

MIXED = [0.9, -1.6, 0.25, 1.3, -0.4, 0.6]  # no two of them are equal in size, and no sums are
POSITIVE = [0.9, 1.6, 0.25, 1.3, 0.4, 0.6]
LETTERS = "abcdefghijkl"
CLASSES = np.array([-0.5, 1.0])  # what a weight of one adds to the two logits


class Additive(nn.Module):
    """Every token adds its weight to the logits, and nothing else happens."""

    def __init__(self, weights: list[float]):
        super().__init__()
        self.word = nn.Embedding(len(weights), 2)
        self.word.weight = nn.Parameter(torch.tensor(np.outer(weights, CLASSES)))
        self.bias = nn.Parameter(torch.tensor([0.2, -0.3], dtype=torch.float64))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.word(input_ids).sum(1) + self.bias


def additive(weights: list[float]) -> tuple[whence.Subject, Attribution]:
    """The model that adds these weights, and its true explanation."""

    def encode(raw: str) -> dict[str, Any]:
        ids = np.array([LETTERS.index(name) for name in raw.split()])
        return {"tensors": {"input_ids": ids}, "features": {"text": raw.split()}}

    subject = whence.wrap(Additive(weights), encode=encode, labels=["no", "yes"])
    names = " ".join(LETTERS[: len(weights)])
    output = sum(weights) - 0.3
    true = Attribution(np.array(weights), subject.encode(names), "true", Target("logit", 1, "yes"), output, -0.3)
    return subject, true


def scored(subject: whence.Subject, found: list[Attribution], metric: str, seed: int = 0) -> np.ndarray:
    return np.asarray(whence.score(subject, found, metric, seed=seed).values)


@functools.cache
def over_permutations_of(weights: tuple[float, ...], metric: str) -> np.ndarray:
    subject, true = additive(list(weights))
    return scored(subject, [replace(true, scores=np.array(p)) for p in permutations(weights)], metric)


def over_permutations(weights: list[float], metric: str) -> np.ndarray:
    """The metric for every way to hand out the true scores; the first is the right one."""
    return over_permutations_of(tuple(weights), metric)


# ---- the true order is the best --------------------------------------------------------------------------------------

# Metrics that look at signs find the best order among any weights. Those that go by |score| ask which features matter
# in either direction: only where no weight is negative is that an order of what the features add.
SIGNED = [
    "auac(mask='zero')",
    "insertion(mask='zero')",
    "deletion(mask='zero')",
    "comprehensiveness(mask='zero')",
    "sufficiency(mask='zero')",
    "rft(mask='zero')",
]
EXACT = [
    "loo_agreement(mask='zero')",
    "sensitivity_n(mask='zero', subsets=8)",
    "infidelity(mask='zero', subsets=8)",
    "infidelity(mask='zero', subsets=8, scaled=True)",
]
SIZES = ["au_mse(mask='zero')", "aupc(mask='zero')"]


@pytest.mark.parametrize("metric", [*SIGNED, *EXACT])
def test_the_true_order_is_the_best_of_all(metric: str) -> None:
    values = over_permutations(MIXED, metric)
    better = registry.resolve("metric", metric)[0].better
    values = values if better == "higher" else -values
    assert len(values) == 720 and values.max() - values.min() > 1e-3
    assert values[0] >= values.max() - 1e-9
    if metric in EXACT:
        assert (values[1:] < values[0] - 1e-6).all()


@pytest.mark.parametrize("metric", [*SIGNED, *SIZES])
def test_so_it_is_without_negative_weights(metric: str) -> None:
    values = over_permutations(POSITIVE, metric)
    values = values if registry.resolve("metric", metric)[0].better == "higher" else -values
    assert values[0] >= values.max() - 1e-9 and values[0] > values.min() + 1e-3


@pytest.mark.parametrize("metric", SIZES)
def test_pruning_by_size_promises_nothing_where_weights_cancel(metric: str) -> None:
    values = over_permutations(MIXED, metric)
    assert (values[0] > values.min() + 1e-6) if metric.startswith("au_mse") else (values[0] < values.max() - 1e-6)


def test_exact_metrics_of_the_true_scores() -> None:
    for metric, best in zip(EXACT, [1, 1, 0, 0], strict=True):
        assert over_permutations(MIXED, metric)[0] == pytest.approx(best, abs=1e-12)


def test_every_order_of_an_additive_model_is_as_monotonic_as_its_weights() -> None:
    assert np.unique(over_permutations(MIXED, "monotonicity(mask='zero')")) == pytest.approx([4 / 6])
    assert np.unique(over_permutations(POSITIVE, "monotonicity(mask='zero')")) == pytest.approx([1.0])


def test_soft_metrics_prefer_the_true_order_to_its_reverse() -> None:
    subject, true = additive(POSITIVE)
    both = [true, replace(true, scores=-true.scores)]
    for metric in ("soft_comprehensiveness(draws=64)", "soft_sufficiency(draws=64)"):
        right, wrong = scored(subject, both, metric)
        assert right > wrong + 0.1


def test_completeness() -> None:
    subject, true = additive(MIXED)
    complete = replace(true, residual=0.0)
    off, unsigned = replace(true, residual=-0.505), replace(true, residual=None)
    assert scored(subject, [complete, off, unsigned], "completeness") == pytest.approx([0, 0.1, np.nan], nan_ok=True)


# ---- identities ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [None, 4])
def test_insertion_is_deletion_of_the_reverse(steps: int | None) -> None:
    subject, true = additive(MIXED)
    tied = np.array([1.0, 1, 0, 0, 0, -2])
    for scores in (true.scores, np.random.default_rng(0).normal(size=6), tied):
        one, other = replace(true, scores=scores), replace(true, scores=-scores)
        shown = whence.score(subject, one, "insertion", steps=steps).value
        assert shown == pytest.approx(whence.score(subject, other, "deletion", steps=steps).value, abs=1e-12)
    assert whence.score(subject, true, "insertion").value > whence.score(subject, true, "deletion").value + 0.1


def test_the_whole_and_nothing() -> None:
    """comp(100 %) = p(x) - p(nothing) and suff(100 %) = 0, whatever the method."""
    subject, true = additive(MIXED)
    p, p0 = (1 / (1 + np.exp(-(1.5 * total - 0.5))) for total in (sum(MIXED), 0))
    for scores in (true.scores, np.random.default_rng(1).normal(size=6)):
        a = replace(true, scores=scores)
        assert whence.score(subject, a, "comprehensiveness(bins=[1.0], mask='zero')").value == pytest.approx(p - p0)
        assert whence.score(subject, a, "sufficiency(bins=[1.0], mask='zero')").value == pytest.approx(0, abs=1e-12)
        assert whence.score(subject, a, "sufficiency(bins=[0.0], mask='zero')").value == pytest.approx(p - p0)


def test_a_set_and_its_complement_share_out_an_additive_model() -> None:
    """f(x) - f(x without S) + f(x) - f(S alone) = f(x) - f(nothing)."""
    subject, true = additive(MIXED)
    (case,) = cases_of(subject, true)
    keep = np.random.default_rng(0).random((20, 6)) < 0.5
    ask = Ask(np.concatenate([keep, ~keep, np.ones((1, 6), bool), np.zeros((1, 6), bool)]), "zero")
    values = MaskedRuns(subject).answers([case.item], [ask], subject.aim([case.target]))[0].values
    assert (values[-2] - values[:20]) + (values[-2] - values[20:40]) == pytest.approx(
        np.full(20, values[-2] - values[-1]), abs=1e-12
    )


@pytest.mark.parametrize("metric", ["auac", "au_mse", "aupc", "insertion", "deletion"])
def test_where_a_curve_ends_does_not_depend_on_the_method(metric: str) -> None:
    """A curve of one step has only its two ends."""
    subject, true = additive(MIXED)
    many = [replace(true, scores=np.random.default_rng(seed).normal(size=6)) for seed in range(5)]
    ends = scored(subject, many, f"{metric}(steps=1, mask='zero')")
    assert np.ptp(ends) < 1e-12
    assert np.ptp(scored(subject, many, f"{metric}(mask='zero')")) > 1e-3


def test_the_papers_mean_is_five_sixths_of_the_codes() -> None:
    subject, true = additive(MIXED)
    for metric in ("comprehensiveness", "sufficiency"):
        plain = whence.score(subject, true, metric, mask="zero").value
        assert whence.score(subject, true, metric, mask="zero", divide="bins+1").value == pytest.approx(plain * 5 / 6)


def test_a_linear_model_and_its_gradient() -> None:
    """Times the input it has no infidelity; alone it does not move with the input."""
    subject, _ = additive(MIXED)
    a = whence.explain(subject, "a b c d e f", "gradient_x_input", 1)
    assert a.scores == pytest.approx(MIXED)
    assert whence.score(subject, a, "infidelity").value == pytest.approx(0, abs=1e-12)
    gradient = whence.explain(subject, "a b c d e f", "gradient", 1)
    assert whence.score(subject, gradient, "max_sensitivity").value == pytest.approx(0, abs=1e-12)
    moved = whence.score(subject, a, "max_sensitivity", radius=0.1).value
    assert 0 < moved <= 0.1 * math.sqrt(6) / np.linalg.norm(MIXED) + 1e-12  # x . df/dx moves by d . df/dx = d_1


def test_ranked_truthfulness() -> None:
    rng = np.random.default_rng(0)
    weights, drops = rng.normal(size=8), rng.normal(size=8)
    value = ranked_truthfulness(weights, drops)
    assert ranked_truthfulness(-weights, drops) == pytest.approx(-value)
    assert ranked_truthfulness(np.sign(weights) * weights**2 * 7, drops) == pytest.approx(value)
    assert ranked_truthfulness(np.full(8, 0.3), drops) == pytest.approx(drops.sum() / 8)
    assert ranked_truthfulness(np.zeros(8), drops) == pytest.approx(-np.abs(drops).sum() / 8)
    # ranks 1, 3, 3, 4, 5: the two that are equal in size share the larger rank, and the zero counts against
    by_hand = 1 * 0.5 / 1 - 0.2 / 3 + 0.1 / 3 + 0.3 / 4 - 0.4 / 5
    tied = ranked_truthfulness(np.array([3, -2, 2, 1, 0.0]), np.array([0.5, 0.2, 0.1, 0.3, -0.4]))
    assert tied == pytest.approx(by_hand)


# ---- ties and chance -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["auac(mask='zero')", "comprehensiveness(mask='zero')", "deletion(mask='zero')"])
def test_equal_scores_are_a_random_explanation(metric: str) -> None:
    """Over seeds they come in every order: their mean is that over all permutations, and not that of left to right."""
    falling = sorted(POSITIVE, reverse=True)
    every = over_permutations(falling, metric)
    subject, true = additive(falling)
    record, options = registry.resolve("metric", metric)
    rows = [case for seed in range(100) for case in cases_of(subject, replace(true, scores=np.zeros(6)), seed=seed)]
    seeds = np.array([float(v) for v in MetricRuns(MaskedRuns(subject)).scored([(record, options)], rows)[0]])
    left_to_right = scored(subject, [replace(true, scores=-np.arange(6.0))], metric)[0]
    assert abs(seeds.mean() - every.mean()) < 4 * every.std() / 10 < abs(left_to_right - every.mean())
    assert np.unique(seeds.round(9)).size > 10


def test_equal_scores_find_no_rationale_but_by_chance() -> None:
    subject, true = additive([1.0] * 12)
    truth = np.arange(12) < 4
    equal = replace(true, scores=np.ones(12))
    for measure, expected in (("average_precision", 1 / 3), ("recall", 1 / 3), ("f1", 1 / 3), ("auprc", 2 / 3)):
        assert whence.score(subject, equal, "plausibility", truth=truth, measure=measure).value == pytest.approx(
            expected
        )
    runs = [
        whence.score(subject, equal, "plausibility(measure='iou_f1')", truth=truth, seed=s).value for s in range(30)
    ]
    assert np.mean(runs) < 0.3 and len(set(runs)) > 1  # from left to right it would be 1 every time


def test_the_areas_of_precision_and_recall_are_sklearns() -> None:
    subject, true = additive(MIXED)
    truth = np.array([False, True, False, True, False, False])
    for scores in (MIXED, [1.0, 1, 0, 0, 0, 2], np.random.default_rng(3).normal(size=6)):
        a = replace(true, scores=np.array(scores))
        precision, recall, _ = precision_recall_curve(truth, np.abs(scores))
        found = whence.score(subject, a, "plausibility(measure='auprc')", truth=truth).value
        assert found == pytest.approx(auc(recall, precision))
        found = whence.score(subject, a, "plausibility", truth=truth).value
        assert found == pytest.approx(average_precision_score(truth, np.abs(scores)))


def test_truth_that_is_known_of_some_only() -> None:
    subject, true = additive(MIXED)
    found = whence.score(subject, [true, true], "plausibility", truth=[None, [0, 1, 0, 0, 0, 0]])
    assert found.value == 1 and found.values is not None and np.isnan(found.values[0])
    with pytest.raises(ValueError, match="plausibility compares with what decides"):
        whence.score(subject, [true, true], "plausibility", truth=[None, None])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("score", [0.1, 0.3, 0.7, -0.1])
def test_what_does_not_vary_has_no_correlation(score: float, dtype: Any) -> None:
    """Nor do sums of equal scores, which rounding makes differ, nor one subset asked for again and again."""
    weights = [0.7, -0.2, 0.4, 1.1, 0.05, -0.6, 0.8, 0.3, -0.9, 0.15]
    for count in (1, 10):
        subject, true = additive(weights[:count])
        equal = replace(true, scores=np.full(count, score, dtype))
        for seed in range(4):
            assert np.isnan(whence.score(subject, equal, "sensitivity_n(mask='zero')", seed=seed).value)


def test_what_cannot_be_deleted_without_leaving_nothing() -> None:
    """The prompt of one token has no score; the others keep theirs."""
    subject = subject_of("gpt2")
    found = whence.explain(subject, [{"prompt": "t", "continuation": "he"}, "the old man"], "gae")
    values = scored(subject, found, "comprehensiveness")
    assert np.isnan(values[0]) and not np.isnan(values[-1])


@pytest.mark.parametrize("kind", ["probability", "log_probability", "log_odds"])
def test_labels_that_do_not_exclude_each_other(kind: str) -> None:
    """Each has a sigmoid of its own, for targets and for metrics."""
    made = fresh("bert")
    subject = whence.wrap(made.model, made.processor)
    softmax = whence.explain(subject, RAWS["bert"], "gradient", f"{kind}('positive')").output
    made.model.config.problem_type = "multi_label_classification"
    a = whence.explain(subject, RAWS["bert"], "gradient_x_input", f"{kind}('positive')")
    with torch.no_grad():
        logits = made.model(**made.processor(RAWS["bert"], return_tensors="pt")).logits[0]
    z = float(logits[int(a.target.index or 0)])
    p = 1 / (1 + math.exp(-z))
    expected = {"probability": p, "log_probability": math.log(p), "log_odds": z}[kind]
    assert a.output == pytest.approx(expected, abs=1e-5) and abs(expected - float(softmax)) > 1e-2
    answers = MaskedRuns(subject).answers([a.input], [[a.input]], subject.aim([a.target]))[0]
    assert answers.values[0] == pytest.approx(expected, abs=1e-5)
    assert answers.probabilities[0] == pytest.approx(p, abs=1e-5)


def test_a_random_explanation_lies_in_its_interval() -> None:
    """The mean of a random explanation over many seeds is where the interval of a single seed says, nearly always."""
    subject, _ = additive([*MIXED, *np.random.default_rng(0).normal(size=6)])
    texts = [" ".join(np.random.default_rng(n).permutation(list(LETTERS))[: 4 + n % 6]) for n in range(16)]
    found = [whence.explain(subject, texts, "random", 1, seed=seed) for seed in range(10)]
    results = [whence.score(subject, a, "auac(mask='zero')", seed=seed) for seed, a in enumerate(found)]
    mean = np.mean([r.value for r in results])
    assert sum(r.interval[0] <= mean <= r.interval[1] for r in results if r.interval) >= 8
    assert len({r.value for r in results}) == 10


# ---- plain loops -----------------------------------------------------------------------------------------------------


RAWS = {
    "bert": "the actors were quietly wonderful",
    "vit": PICTURES[0],
    "gpt2": {"prompt": "the old man was singing", "continuation": " was a"},
    "bart": {"source": "the old house", "output": "and the"},
}


@functools.cache
def exact(name: str) -> tuple[whence.Subject, Any]:
    """A family in float64, in which the order of sums does not show, and what it was made of."""
    made = fresh(name)
    made.model.double()
    return whence.wrap(made.model, made.processor, **made.kwargs), made


@functools.cache
def rows_of(name: str) -> tuple[Attribution, list[tuple[Input, np.ndarray]]]:
    """An attribution with random scores, no two equal, and its rows."""
    subject, _ = exact(name)
    a = whence.explain(subject, RAWS[name], "gradient_x_input")
    a = replace(a, scores=np.random.default_rng(0).normal(size=a.scores.shape) * a.visible)
    rows = [item for item, _ in subject.rows(a.input)] or [a.input]
    matrix = a.scores.reshape(len(rows), -1)
    return a, [(item, scores[: len(item.features)]) for item, scores in zip(rows, matrix, strict=True)]


def plain(name: str, item: Input, keep: tuple[bool, ...], how: str) -> np.ndarray:
    """The logits of one pass of the model over the input with some features hidden; passes are remembered."""
    key = name, keep, how  # rows of one attribution differ in length
    if key not in PASSES:
        PASSES[key] = one_pass(name, item, keep, how)
    return PASSES[key]


PASSES: dict[Any, np.ndarray] = {}


@torch.no_grad()
def one_pass(name: str, item: Input, keep: tuple[bool, ...], how: str) -> np.ndarray:
    _, made = exact(name)
    x = {key: torch.tensor(value)[None] for key, value in item.tensors.items()}
    hidden = [place for place, kept in enumerate(keep) if not kept]
    if name == "vit":
        for place in hidden:
            row, column = divmod(place - 1, 4)  # the first feature is the class token
            if place:
                x["pixel_values"][:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 0
        return made.model(pixel_values=x["pixel_values"].double()).logits[0].numpy()
    tokenizer = made.processor
    token = {"mask": tokenizer.mask_token_id, "unknown": tokenizer.unk_token_id}.get(how)
    starts = {"input_ids": 0, "decoder_input_ids": x["input_ids"].shape[1]}
    for key, start in starts.items() if "decoder_input_ids" in x else [("input_ids", 0)]:
        own = [place - start for place in hidden if 0 <= place - start < x[key].shape[1]]
        if how == "delete":
            left = [i for i in range(x[key].shape[1]) if i not in own]
            for other in [k for k in x if k.startswith("decoder") == key.startswith("decoder")]:
                x[other] = x[other][:, left]
        elif token is not None:
            x[key][0, own] = token
        else:
            embedded = made.model.get_input_embeddings()(x.pop(key))
            embedded[0, own] = 0
            x[key.replace("input_ids", "inputs_embeds")] = embedded
    logits = made.model(**x).logits[0].numpy()
    return logits if logits.ndim == 1 else logits[-1]


class Twin:
    """The metrics of one row, by loops."""

    def __init__(self, name: str, item: Input, scores: np.ndarray, index: int):
        self.name, self.item, self.index = name, item, index
        self.scores = [float(s) for s in scores]
        self.free = [i for i, special in enumerate(item.special) if not special]
        self.usual = ways(exact(name)[0], item)[item.streams[0]]

    def logits(self, keep: Any, how: str) -> np.ndarray:
        return plain(self.name, self.item, tuple(i in keep for i in range(len(self.scores))), how)

    def p(self, keep: Any, how: str) -> float:
        z = self.logits(keep, how)
        return float(math.exp(z[self.index]) / sum(math.exp(other) for other in z))

    def f(self, keep: Any, how: str) -> float:
        return float(self.logits(keep, how)[self.index])

    def best_first(self, places: list[int], size: bool = False) -> list[int]:
        return sorted(places, key=lambda i: -(abs(self.scores[i]) if size else self.scores[i]))

    @property
    def everything(self) -> list[int]:
        return list(range(len(self.scores)))

    def without(self, gone: Any) -> list[int]:
        return [i for i in self.everything if i not in gone]

    def with_special(self, shown: Any) -> list[int]:
        return [i for i in self.everything if i in shown or i not in self.free]

    def shares(self) -> list[int]:
        """Positions of a curve of ten steps, a share rounded up."""
        return [math.ceil(step * len(self.positions) / 10) for step in range(11)]

    @property
    def positions(self) -> list[int]:
        return self.free if self.name == "vit" else self.everything  # a class token is no part of the picture

    def auac(self) -> float:
        order = self.best_first(self.positions)
        return trapezoid([self.p(order[:n], self.token) for n in self.shares()])

    @property
    def token(self) -> str:
        return "zero" if self.name == "vit" else "unknown"

    def pruned(self, measure: Callable[[list[int]], float]) -> float:
        order = self.best_first(self.positions, size=True)[::-1]
        return trapezoid([measure(self.without(order[:n])) for n in self.shares()])

    def au_mse(self) -> float:
        full = self.logits(self.everything, self.token)
        return self.pruned(
            lambda keep: sum((a - b) ** 2 for a, b in zip(full, self.logits(keep, self.token), strict=True))
        )

    def aupc(self) -> float:
        return self.pruned(lambda keep: self.p(keep, self.token))

    def insertion(self) -> float:
        order = self.best_first(self.free)
        return trapezoid([self.p(self.with_special(order[:n]), self.usual) for n in range(len(order) + 1)])

    def deletion(self) -> float:
        order = self.best_first(self.free)
        return trapezoid([self.p(self.without(order[:n]), self.usual) for n in range(len(order) + 1)])

    def eraser(self, kept: Callable[[list[int]], list[int]]) -> float:
        order, how = self.best_first(self.free), "zero" if self.name == "vit" else "delete"
        tops = [order[: math.ceil(percent * len(order) / 100)] for percent in (1, 5, 10, 20, 50)]
        full = self.p(self.everything, how)
        return sum(full - self.p(kept(top), how) for top in tops) / 5

    def comprehensiveness(self) -> float:
        return self.eraser(self.without)

    def sufficiency(self) -> float:
        return self.eraser(self.with_special)

    def soft(self, hide: bool) -> float:
        low, high = min(self.scores[i] for i in self.free), max(self.scores[i] for i in self.free)
        rng, losses = np.random.default_rng([0, 3]), []
        full, none = self.p(self.everything, "zero"), self.p(self.with_special([]), "zero")
        for _ in range(16):
            share = {i: (self.scores[i] - low) / (high - low) for i in self.free}
            kept = [i for i in self.free if rng.random() < (1 - share[i] if hide else share[i])]
            losses.append(max(0.0, full - self.p(self.with_special(kept), "zero")))
        if full <= none:
            return math.nan
        soft, least = 1 - np.mean(losses), 1 - (full - none)
        return float((1 - soft) / (1 - least) if hide else (soft - least) / (1 - least))

    def soft_comprehensiveness(self) -> float:
        return self.soft(hide=True)

    def soft_sufficiency(self) -> float:
        return self.soft(hide=False)

    def monotonicity(self) -> float:
        order = self.best_first(self.free, size=True)[::-1]
        values = [self.f(self.with_special(order[:n]), self.usual) for n in range(len(order) + 1)]
        return float(np.mean([after >= before for before, after in pairwise(values)]))

    def drops(self, value: Callable[[list[int], str], float], how: str) -> list[float]:
        return [value(self.everything, how) - value(self.without([i]), how) for i in self.free]

    def loo_agreement(self) -> float:
        return float(kendalltau([self.scores[i] for i in self.free], self.drops(self.f, self.usual)).statistic)

    def sign_agreement(self) -> float:
        pairs = list(zip([self.scores[i] for i in self.free], self.drops(self.f, self.usual), strict=True))
        return sum(abs(drop) for score, drop in pairs if score * drop > 0) / sum(abs(drop) for _, drop in pairs)

    def rft(self) -> float:
        total, sizes = 0.0, [abs(self.scores[i]) for i in self.free]
        for i, drop in zip(self.free, self.drops(self.p, self.token), strict=True):
            rank = sum(size >= abs(self.scores[i]) for size in sizes)
            total += math.copysign(drop, self.scores[i] * drop) / rank
        return total

    def subsets(self, drawn: Callable[[np.random.Generator], list[int]], seed: int) -> tuple[list[float], list[float]]:
        rng, sums, drops = np.random.default_rng([0, seed]), [], []
        for _ in range(64):
            gone = drawn(rng)
            sums.append(sum(self.scores[i] for i in gone))
            drops.append(self.f(self.everything, self.usual) - self.f(self.without(gone), self.usual))
        return sums, drops

    def sensitivity_n(self) -> float:
        size = max(1, round(0.3 * len(self.free)))
        pairs = self.subsets(lambda rng: list(rng.choice(self.free, size, replace=False)), 1)
        return float(np.corrcoef(*pairs)[0, 1])

    def infidelity(self) -> float:
        pairs = self.subsets(lambda rng: [i for i in self.free if rng.random() < 0.3], 2)
        return float(np.mean([(a - b) ** 2 for a, b in zip(*pairs, strict=True)]))


def trapezoid(values: list[float]) -> float:
    return sum((a + b) / 2 for a, b in pairwise(values)) / (len(values) - 1)


LOOPED = [name for name in vars(Twin) if name in {record.name for record in whence.list_metrics()}]


def looped(name: str, metric: str, sign: int = 1) -> list[float]:
    a, rows = rows_of(name)
    targets = a.target if isinstance(a.target, tuple) else [a.target]
    made = [Twin(name, item, sign * scores, int(t.index or 0)) for (item, scores), t in zip(rows, targets, strict=True)]
    return [getattr(twin, metric)() for twin in made]


def found_by(name: str, metric: str) -> np.ndarray:
    paper = {"auac", "au_mse", "aupc", "rft", "comprehensiveness", "sufficiency"}
    options = {"mask": "zero"} if name == "vit" and metric in paper else {}
    return np.asarray(whence.score(exact(name)[0], rows_of(name)[0], metric, **options).values)


def test_every_metric_of_masked_inputs_has_a_loop() -> None:
    others = {"completeness", "plausibility", "localisation", "max_sensitivity", "randomisation"}
    others |= {"positive_perturbation", "negative_perturbation"}
    others |= {"sensitivity", "dummy", "symmetry", "linearity", "implementation_invariance"}
    assert {record.name for record in whence.list_metrics()} == {*LOOPED, *others} and len(LOOPED) == 15


@pytest.mark.parametrize("name", RAWS)
@pytest.mark.parametrize("metric", LOOPED)
def test_plain_loops_find_the_same(metric: str, name: str) -> None:
    expected = looped(name, metric)
    assert found_by(name, metric) == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True)
    assert not np.isnan(expected).all()


@pytest.mark.parametrize("metric", sorted(set(LOOPED) - {"au_mse", "aupc", "monotonicity"}))
def test_a_loop_over_other_scores_finds_something_else(metric: str) -> None:
    assert np.abs(found_by("bert", metric) - looped("bert", metric, sign=-1)).max() > 1e-3


@pytest.mark.parametrize("metric", ["au_mse"])
def test_the_share_that_is_pruned_is_rounded_up(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rounded_down = lambda self: [step * len(self.positions) // 10 for step in range(11)]  # noqa: E731
    monkeypatch.setattr(Twin, "shares", rounded_down)
    assert np.abs(found_by("bert", metric) - looped("bert", metric)).max() > 1e-3


@pytest.mark.parametrize("kind", ["logit", "probability", "log_probability", "log_odds", "margin", "contrast"])
def test_targets_are_their_formulas_however_large_logits_are(kind: str) -> None:
    logits = np.array([[0.3, -800.0, 900.0], [5.0, 1.0, -2000.0], [30.0, 80.0, 81.0]])
    table = nn.Embedding.from_pretrained(torch.tensor(logits))
    model = nn.Sequential(table, nn.Flatten(1))
    encode = lambda raw: {"tensors": {"input": np.array([int(raw)])}, "features": {"text": [raw]}}  # noqa: E731
    subject = whence.wrap(model, encode=encode, labels=["a", "b", "c"])
    target = f"{kind}('c', 'a')" if kind == "contrast" else f"{kind}('c')"
    items = [subject.encode(str(row)) for row in range(3)]
    answers = MaskedRuns(subject).answers([items[0]], [items], subject.aim([target]))[0]
    log_p, p = log_softmax(logits, -1)[:, 2], softmax(logits, -1)[:, 2]
    expected = {
        "logit": logits[:, 2],
        "probability": p,
        "log_probability": log_p,
        "log_odds": logits[:, 2] - logsumexp(logits[:, :2], -1),
        "margin": logits[:, 2] - logits[:, :2].max(-1),
        "contrast": logits[:, 2] - logits[:, 0],
    }[kind]
    np.testing.assert_array_equal(answers.logits, logits)
    assert answers.values == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert answers.probabilities == pytest.approx(p, rel=1e-12, abs=1e-12)


# ---- what cannot be asked --------------------------------------------------------------------------------------------


def test_refusals() -> None:
    subject = subject_of("bert")
    a = whence.explain(subject, "the unforgettable film", "random")
    for metric, options, message in [
        ("auac", {"steps": 0}, "'steps' takes a whole number from 1 to 10,000, not 0"),
        ("comprehensiveness", {"bins": [0.1, 20.0]}, "'bins' takes a list of 1 to 1,000, each a number from 0 to 1"),
        ("sensitivity_n", {"share": 0.0}, "'share' takes a number above 0 and at most 1"),
        ("max_sensitivity", {"radius": 0.0}, "'radius' takes a number above 0"),
        ("localisation", {}, "localisation compares with a region of the picture"),
        ("positive_perturbation", {}, "takes no picture on a grid"),
        ("plausibility", {}, "give it as truth="),
    ]:
        with pytest.raises(ValueError, match=message):
            whence.score(subject, a, metric, **options)
    unknown = replace(a.words(), input=replace(a.words().input, pieces=None, units=None))  # of a file of an old version
    with pytest.raises(ValueError, match="words that were merged; score what explain returned"):
        whence.score(subject, unknown, "auac")
    with pytest.raises(ValueError, match=r"truth has the shape \(2,\), and \(\d+,\) or \(3,\) was expected"):
        whence.score(subject, a, "plausibility", truth=[True, False])


def test_nothing_but_special_tokens() -> None:
    subject = subject_of("bert")
    a = whence.explain(subject, "a film", "random")
    a = replace(a, input=replace(a.input, special=np.ones(len(a.features), bool)))
    for name in LOOPED:
        assert not np.isinf(whence.score(subject, a, name).value)


# ---- run again -------------------------------------------------------------------------------------------------------


def shifted_by_hand(method: str, shifts: list[np.ndarray], ids: np.ndarray) -> list[np.ndarray]:
    """What explain gives for models whose embeddings of these very tokens, no two of them equal, are shifted."""
    made, found = fresh("bert"), []
    table = made.model.get_input_embeddings().weight
    before = table.detach().clone()
    for shift in shifts:
        with torch.no_grad():
            table.copy_(before)
            table[ids] += torch.tensor(shift).float()
        subject = whence.wrap(made.model, made.processor)
        found.append(whence.explain(subject, RAWS["bert"], method, "positive").scores.astype(float))
    return found


AGAIN = [
    "gradient",
    "gradient_x_input",
    "integrated_gradients(steps=4)",
    "smoothgrad(samples=3)",
    "attention",
    "rollout",
    "gae",
    "lrp",
    "decompx",
    "value_zeroing",
    "leave_one_out",
    "leave_one_out(mask='zero')",
    "lime(samples=12)",
]


@pytest.mark.parametrize("method", AGAIN)
def test_max_sensitivity_is_that_of_a_shifted_model(method: str) -> None:
    subject = subject_of("bert")
    a = whence.explain(subject, RAWS["bert"], method, "positive")
    ids = a.input.tensors["input_ids"]
    assert len(set(ids)) == len(ids)
    rng = np.random.default_rng([0, 5])
    shifts = [rng.uniform(-0.05, 0.05, (len(ids), 32)) for _ in range(2)]
    plain = a.scores.astype(float)
    by_hand = [
        np.linalg.norm(scores - plain) / np.linalg.norm(plain) for scores in shifted_by_hand(method, shifts, ids)
    ]
    value = whence.score(subject, a, "max_sensitivity", radius=0.05, draws=2).value
    assert value == pytest.approx(max(by_hand), rel=2e-3) and value > 1e-3


def test_max_sensitivity_of_pixels() -> None:
    subject = subject_of("vit")
    a = whence.explain(subject, PICTURES[0], "leave_one_out", 1)
    noise = np.random.default_rng([0, 5]).uniform(-0.1, 0.1, (3, 32, 32)).astype(np.float32)
    item = replace(a.input, tensors={"pixel_values": a.input.tensors["pixel_values"] + noise})
    batch = subject.batch([item])
    other = registry.find("method", "leave_one_out").function(subject, batch, subject.aim([1]))
    expected = np.linalg.norm(other.scores[0].numpy() - a.scores) / np.linalg.norm(a.scores)
    assert whence.score(subject, a, "max_sensitivity", radius=0.1, draws=1).value == pytest.approx(expected, rel=1e-4)


def test_a_method_that_removes_tokens_is_refused() -> None:
    subject = subject_of("bert")
    a = whence.explain(subject, "a masterful film", "leave_one_out", mask="delete")
    with pytest.raises(ValueError, match="the method removes tokens; let it hide them"):
        whence.score(subject, a, "max_sensitivity")


@pytest.mark.parametrize("order", ["cascading", "independent"])
def test_randomisation_by_hand(order: str) -> None:
    """The stages from the output down, each with its weights shuffled, on copies of the model made here."""
    subject = subject_of("bert")
    before = fingerprint(subject.model, full=True)
    a = whence.explain(subject, RAWS["bert"], "gradient_x_input", "positive")
    found = whence.score(subject, a, "randomisation", order=order)
    sizes = whence.score(subject, a, "randomisation", order=order, absolute=True)
    assert fingerprint(subject.model, full=True) == before
    made = fresh("bert")
    bert = made.model.bert
    stages = [
        [bert.pooler.dense, made.model.classifier],
        *([m for m in layer.modules() if not list(m.children())] for layer in reversed(bert.encoder.layer)),
        [m for m in bert.embeddings.children()],
    ]
    generator, expected, expected_sizes = torch.Generator().manual_seed(0), [], []
    free = ~a.special
    for stage in stages:
        saved = copy.deepcopy(made.model.state_dict())
        for module in _in_order(made, stage):
            for parameter in module.parameters():
                mixed = parameter.flatten()[torch.randperm(parameter.numel(), generator=generator)]
                parameter.data = mixed.detach().reshape(parameter.shape).clone()
        other = whence.wrap(made.model, made.processor)
        scores = whence.explain(other, RAWS["bert"], "gradient_x_input", "positive").scores
        expected.append(abs(spearmanr(a.scores[free], scores[free]).statistic))
        expected_sizes.append(abs(spearmanr(np.abs(a.scores[free]), np.abs(scores[free])).statistic))
        if order == "independent":
            made.model.load_state_dict(saved)
    assert found.value == pytest.approx(np.mean(expected), abs=1e-6) and found.value < 0.95
    assert sizes.value == pytest.approx(np.mean(expected_sizes), abs=1e-6)


def _in_order(made: Any, modules: list[nn.Module]) -> list[nn.Module]:
    """The modules as one pass calls them."""
    called: list[nn.Module] = []
    handles = [m.register_forward_hook(lambda m, *_: called.append(m)) for m in modules]
    made.model(**made.processor(RAWS["bert"], return_tensors="pt"))
    for handle in handles:
        handle.remove()
    return called


def test_what_does_not_look_at_the_weights_fails_randomisation() -> None:
    subject = subject_of("bert")
    a = whence.explain(subject, RAWS["bert"], "random")
    assert whence.score(subject, a, "randomisation").value == pytest.approx(1.0)


def test_stages_go_by_blocks() -> None:
    subject = subject_of("bart")
    _, rows = rows_of("bart")
    found = stages(subject, rows[0][0])
    heads = [".".join(stage[0].split(".")[:4]) for stage in found]
    assert [h for h in heads if ".layers." in h] == [
        f"model.{side}.layers.{layer}" for side in ("encoder", "decoder") for layer in (0, 1)
    ]
    assert found[-1] == ["lm_head"] and "model.encoder.embed_tokens" in found[0]


# ---- pictures --------------------------------------------------------------------------------------------------------


def test_localisation() -> None:
    subject = subject_of("vit")
    a = whence.explain(subject, PICTURES[0], "random", 1)
    scores = np.zeros(17)
    scores[1 + 5] = 1.0  # row 1, column 1 of the 4 x 4 patches
    one = replace(a, scores=scores)
    inside, outside = np.zeros((32, 32), bool), np.zeros((32, 32), bool)
    inside[8:16, 8:16] = True
    outside[24:, 24:] = True
    score = functools.partial(whence.score, subject, one, "localisation")
    assert score(truth=inside).value == 1 and score(truth=outside).value == 0
    assert score(truth=outside, tolerance=19).value == 1 and score(truth=outside, tolerance=10).value == 0
    grid = torch.tensor(scores[1:].reshape(1, 1, 4, 4))
    pixels = F.interpolate(grid, scale_factor=8, mode="bilinear", align_corners=False)[0, 0].numpy()
    above = pixels > pixels.mean()
    assert score(truth=inside, measure="pixel_accuracy").value == pytest.approx((above == inside).mean())
    both = [(above & inside).sum() / (above | inside).sum(), (~above & ~inside).sum() / (~above | ~inside).sum()]
    assert score(truth=inside, measure="miou").value == pytest.approx(np.mean(both))
    labels = np.concatenate([~inside.ravel(), inside.ravel()])
    scaled = (pixels.ravel() / pixels.max()).round(6)
    expected = average_precision_score(labels, np.concatenate([1 - scaled, scaled]).round(6))
    assert score(truth=inside, measure="map").value == pytest.approx(expected)
    equal = replace(a, scores=np.zeros(17))
    assert whence.score(subject, equal, "localisation", truth=inside).value == pytest.approx(64 / 1024)
    whole = np.ones((32, 32), bool)
    assert np.isnan(whence.score(subject, equal, "localisation", truth=whole).value)


def test_a_region_of_the_original_picture() -> None:
    subject = subject_of("vit")
    a = whence.explain(subject, PICTURES[3], "random", 1)  # 60 x 24 pixels, which the processor makes square
    scores = np.zeros(17)
    scores[1 + 3] = 1.0  # top right
    region = np.zeros((24, 60), bool)
    region[:6, 45:] = True
    one = replace(a, scores=scores)
    assert whence.score(subject, one, "localisation", truth=region).value == 1
    assert whence.score(subject, one, "localisation", truth=~region).value == 0


def test_what_the_model_did_not_see_is_as_low_as_the_lowest() -> None:
    """A region marked on the original or on what was cropped from it: the same, whatever the sign of the scores."""
    subject = subject_of("vit")
    a = whence.explain(subject, PICTURES[0], "random", 1)
    scores = np.full(17, -1.0)
    scores[1 + 5] = -0.1
    item = replace(a.input, size=(64, 32), box=(16, 0, 48, 32))
    seen, original = np.zeros((32, 32), bool), np.zeros((32, 64), bool)
    seen[8:16, 8:16] = original[8:16, 24:32] = True
    one = replace(a, scores=scores, input=item)
    for measure in ("pointing", "map"):
        found = [whence.score(subject, one, "localisation", truth=t, measure=measure).value for t in (seen, original)]
        assert found[0] == pytest.approx(1, abs=0.01) and found[1] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_map_without_an_order(dtype: Any) -> None:
    """What interpolation makes of equal scores is no order, whatever the score."""
    subject = subject_of("vit")
    a = whence.explain(subject, PICTURES[0], "random", 1)
    region = np.zeros((32, 32), bool)
    region[3:17, 5:20] = True
    metrics = [*(f"localisation(measure={m!r})" for m in ("pointing", "map", "pixel_accuracy", "miou"))]
    metrics += ["positive_perturbation(measure='probability')", "negative_perturbation(measure='probability')"]
    found = [
        [whence.score(subject, replace(a, scores=np.full(17, c, dtype)), m, truth=region).value for m in metrics]
        for c in (1.0, 0.1, -0.1, 0.123456789)
    ]
    np.testing.assert_allclose(found, [found[0]] * 4, rtol=1e-12)
    assert found[0][1] == 0.5 and found[0][-1] == found[0][-2]


def test_pixels_are_hidden_as_is_asked_and_said() -> None:
    subject = subject_of("vit")
    a = whence.explain(subject, PICTURES[0], "gae")
    found = {
        w: whence.score(subject, a, "positive_perturbation", measure="probability", mask=w) for w in ("black", "blur")
    }
    assert [one.hidden for one in found.values()] == ["black", "blur"]
    assert whence.score(subject, a, "positive_perturbation").hidden == "black"
    assert abs(found["black"].value - found["blur"].value) > 1e-4
    summed = lambda logits, batch: logits.sum(-1)  # noqa: E731
    other = whence.explain(subject, PICTURES[0], "gradient", target=summed)
    with pytest.raises(ValueError, match="a target that names a class"):
        whence.score(subject, other, "positive_perturbation", target=summed)


@pytest.mark.parametrize("measure", ["accuracy", "probability"])
def test_blackened_pixels_by_hand(measure: str) -> None:
    subject, made = subject_of("vit"), family("vit")
    rng = np.random.default_rng(2)
    a = whence.explain(subject, PICTURES[0], "random")
    a = replace(a, scores=rng.normal(size=17))
    index = int(a.target.index or 0)
    grid = torch.tensor(a.scores[1:].reshape(1, 1, 4, 4))
    high = F.interpolate(grid, scale_factor=8, mode="bilinear", align_corners=False).flatten()
    for metric, order in (("positive", high.argsort(descending=True)), ("negative", high.argsort())):
        values = []
        for step in range(10):
            x = torch.tensor(a.input.tensors["pixel_values"])[None].clone()
            gone = order[: round(step / 10 * 1024)]
            x[0, :, gone // 32, gone % 32] = -1.0  # black, (0 - 0.5) / 0.5
            with torch.no_grad():
                logits = made.model(pixel_values=x).logits[0]
            values.append(float(logits.argmax() == index) if measure == "accuracy" else float(logits.softmax(0)[index]))
        expected = sum((p + q) / 2 for p, q in pairwise(values)) / 10
        found = whence.score(subject, a, f"{metric}_perturbation", measure=measure).value
        # pixels at the corners have equal values, so that which of them go first is open
        assert found == pytest.approx(expected, abs=2e-3 if measure == "probability" else 0.1)
    flipped = replace(a, scores=-a.scores)
    first = whence.score(subject, a, "positive_perturbation", measure=measure).value
    assert first == whence.score(subject, flipped, "negative_perturbation", measure=measure).value


# ---- signs -----------------------------------------------------------------------------------------------------------


def test_sign_agreement_counts_features_by_their_effect() -> None:
    subject, true = additive(MIXED)
    true = replace(true, residual=0.0)
    spec = "sign_agreement(mask='zero')"
    one_wrong = np.array(MIXED) * [1, -1, 1, 1, 1, 1]  # the largest
    none = np.where(np.arange(len(MIXED)) == 3, 0.0, MIXED)
    found = scored(
        subject, [replace(true, scores=s) for s in (np.array(MIXED), -np.array(MIXED), one_wrong, none)], spec
    )
    sizes = np.abs(MIXED)
    np.testing.assert_allclose(found, [1, 0, 1 - sizes[1] / sizes.sum(), 1 - sizes[3] / sizes.sum()], atol=1e-9)
    top = scored(subject, [replace(true, scores=one_wrong)], "sign_agreement(mask='zero', top=1)")
    assert top.tolist() == [0.0]
    top = scored(subject, [replace(true, scores=one_wrong)], "sign_agreement(mask='zero', top=2)")
    assert top[0] == pytest.approx(sizes[3] / (sizes[1] + sizes[3]))


def test_sign_agreement_has_nothing_to_say_without_signs_or_effects() -> None:
    subject, true = additive(MIXED)
    assert np.isnan(scored(subject, [replace(true, residual=None, base=None)], "sign_agreement"))
    without, still = additive([0.0] * 4)
    assert np.isnan(scored(without, [replace(still, residual=0.0)], "sign_agreement(mask='zero')"))
    with pytest.raises(ValueError, match="'top' takes a whole number from 1"):
        whence.score(subject, replace(true, residual=0.0), "sign_agreement", top=0)


def test_sign_agreement_counts_by_score_or_every_feature_alike() -> None:
    """The first feature has the largest score and a small effect; every rule of counting gives another share."""
    subject, true = additive(MIXED)
    scores = np.array(MIXED) * [1, -1, 1, 1, 1, 1]
    scores[0] *= -1000
    a, sizes = replace(true, residual=0.0, scores=scores), np.abs(scores)
    wrong = {"by='score'": sizes[:2].sum() / sizes.sum(), "weighed=False": 2 / 6, "by='score', top=1": 1.0}
    wrong |= {"top=3, weighed=False": 2 / 3, "by='score', top=2, weighed=False": 1.0}
    for options, share in wrong.items():
        found = whence.score(subject, a, f"sign_agreement(mask='zero', {options})").value
        assert found == pytest.approx(1 - share), options


def test_features_without_an_effect_do_not_count_however_they_score() -> None:
    subject, true = additive([1.0, 0.0, 0.0, -2.0])
    a = replace(true, residual=0.0, scores=np.array([1.0, 9.0, -9.0, -2.0]))
    for options in ("weighed=False", "by='score'", "by='score', top=1", "top=3, weighed=False"):
        assert whence.score(subject, a, f"sign_agreement(mask='zero', {options})").value == 1.0


def test_sign_agreement_never_judges_what_it_compares_with() -> None:
    planted = whence.load("planted")
    raws, metrics = [e.input for e in whence.zoo.examples("planted", 3, 3)], ["sign_agreement", "auac"]
    methods = ["leave_one_out", "leave_one_out(mask='unknown')", "occlusion(window=1)", "occlusion", "gradient_x_input"]
    board = whence.evaluate(planted, raws, methods, metrics)
    assert np.isnan(board.values[:, 0]).all(1).tolist() == [True, True, True, False, False]
    assert not np.isnan(board.values[:, 1]).any() and board.best("sign_agreement") in methods[3:]
    note = "sign_agreement is not defined for leave_one_out, leave_one_out(mask='unknown'), occlusion(window=1)"
    assert any(said.startswith(note) for said in board.notes)
    a = whence.explain(planted, raws[0], "leave_one_out")
    with pytest.raises(ValueError, match="sign_agreement would compare leave_one_out with itself; choose another"):
        whence.score(planted, a, "sign_agreement")
    found = whence.arbitrate(planted, raws, ["leave_one_out", "gradient_x_input"], "sign_agreement", by="instance")
    assert {found.candidates[number] for number in found.chosen.ravel()} == {"gradient_x_input"}
    assert "sign_agreement is not defined for leave_one_out" in " ".join(found.notes)


def test_sign_agreement_of_gradients_on_a_trained_model() -> None:
    """Where a method's signs are right is known: integrated gradients of planted texts agree more than random signs."""
    planted = whence.load("planted")
    raws = [e.input for e in whence.zoo.examples("planted", 12, 3)]
    right = whence.score(planted, whence.explain(planted, raws, "integrated_gradients"), "sign_agreement").value
    turned = [replace(a, scores=-a.scores) for a in whence.explain(planted, raws, "integrated_gradients")]
    assert right > 0.75 > 0.3 > whence.score(planted, turned, "sign_agreement").value
