"""Significance tests of concepts: ranks among random concepts are calibrated, the t-test of the TCAV paper is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import whence
from whence import zoo
from whence.concepts.probes import fitted
from whence.concepts.significance import mean_interval, rank_p, t_test_p, widened
from whence.core.statistics import holm


def test_ranks_are_shares_of_all_values() -> None:
    random = np.arange(-9.0, 10.0)  # 19 values
    assert rank_p(100.0, random) == pytest.approx(1 / 20)
    assert rank_p(-100.0, random) == pytest.approx(1 / 20)
    assert rank_p(0.0, random) == 1.0
    assert rank_p(0.0, np.zeros(19)) == 1.0


def test_ranks_are_uniform_whatever_the_distribution() -> None:
    rng = np.random.default_rng(0)
    found = np.array([rank_p(values[0], values[1:]) for values in rng.exponential(size=(4000, 100)) ** 3])
    for level in (0.05, 0.2, 0.5):
        assert abs((found <= level).mean() - level) < 3 * np.sqrt(level * (1 - level) / 4000) + 0.005


def test_sets_drawn_from_one_pool_are_widened_to_fresh_ones() -> None:
    """Means of sets of 20 out of 60, beside means of 20 fresh values: without the correction, 2 of 5 are called far."""
    rng = np.random.default_rng(1)
    called: dict[bool, list[bool]] = {True: [], False: []}
    for _ in range(600):
        pool, fresh = rng.normal(size=60), rng.normal(size=20).mean()
        random = np.array([rng.choice(pool, 20, replace=False).mean() for _ in range(99)])
        for corrected, values in ((False, random), (True, widened(random, 20, 60))):
            called[corrected].append(rank_p(fresh, values) <= 0.05)
    assert np.mean(called[False]) > 0.1 and np.mean(called[True]) < 0.08


def test_holm_corrects_step_by_step() -> None:
    p = np.array([[0.01, 0.04], [0.03, 0.005]])
    assert np.allclose(holm(p), [[0.03, 0.06], [0.06, 0.02]])
    assert (holm(np.full(3, 0.9)) == 1).all()


def test_an_interval_counts_probes_and_examples() -> None:
    rng = np.random.default_rng(2)
    alike = np.repeat(rng.random((1, 40)) < 0.5, 10, axis=0).astype(float)  # all probes agree: examples alone vary
    low, high = mean_interval(alike, 0)
    assert low < alike.mean() < high and high - low == pytest.approx(4 * 0.5 / np.sqrt(40), rel=0.25)
    assert mean_interval(np.ones((5, 8)), 0) == (1.0, 1.0)


@pytest.mark.parametrize("kind", ["difference", "logistic", "hinge"])
def test_a_probe_finds_the_direction_whatever_the_widths_of_states(kind: Any) -> None:
    rng = np.random.default_rng(3)
    scale = np.array([1.0, 1e3, 1e-3, 1.0, 0.0])
    concept, other = rng.normal(size=(90, 5)), rng.normal(size=(90, 5))
    concept[:, :2] += 2.0
    direction, accuracy = fitted(concept * scale, other * scale, kind, 0)
    weights = direction[:4] * scale[:4]  # what the probe weighs a standard deviation of each entry with
    assert accuracy > 0.85 and direction[4] == 0
    assert weights[:2].min() > 2 * np.abs(weights[2:]).max()
    assert direction @ ((concept - other) * scale).mean(0) == pytest.approx(float(direction @ direction), rel=1e-6)


def test_logistic_and_hinge_are_those_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression, SGDClassifier

    rng = np.random.default_rng(4)
    concept, other = rng.normal(0.5, 1, (30, 7)), rng.normal(0, 1, (30, 7))
    order = np.random.default_rng(5)
    sides = [side[order.permutation(30)][:20] for side in (concept, other)]
    x = np.concatenate(sides)
    y, z = np.repeat([1, 0], 20), (x - x.mean(0)) / x.std(0)
    sgd = SGDClassifier(loss="hinge", alpha=0.01, max_iter=1000, tol=1e-3, random_state=5)
    for kind, model in (("logistic", LogisticRegression(tol=1e-8)), ("hinge", sgd)):
        expected = model.fit(z, y).coef_[0] / x.std(0)
        found = fitted(concept, other, kind, 5)[0]  # type: ignore[arg-type]
        cosine = found @ expected / np.linalg.norm(found) / np.linalg.norm(expected)
        assert cosine > 0.9999


def test_a_probe_of_equal_states_knows_nothing() -> None:
    direction, accuracy = fitted(np.ones((9, 3)), np.ones((9, 3)), "difference", 0)
    assert not direction.any() and accuracy == 0.5


@pytest.mark.slow
def test_random_concepts_are_seldom_called_significant_and_often_by_the_t_test() -> None:
    """120 sets of random pictures as concepts; docs/concepts.md has 1,000."""
    textures = whence.load("textures")
    pictures = zoo.concepts("random", 120 * 10, seed=11)
    sets = {f"set {n}": pictures[10 * n : 10 * n + 10] for n in range(120)}
    settings: dict[str, Any] = {"layers": [3], "counter_sets": 40, "random": zoo.concepts("random", 600, seed=12)}
    data = [e.input for e in zoo.examples("textures", 100, seed=13) if e.label == "striped"]
    share = {}
    for test in ("rank", "t"):
        g = whence.concept(textures, sets, "striped", data, test=test, random_concepts=199, **settings)
        share[test] = (g.p <= 0.05).mean()
    assert share["rank"] <= 0.1  # 5 % and what chance adds to 120
    assert share["t"] > 0.3


def test_the_t_test_of_equal_scores() -> None:
    assert t_test_p(np.ones(5), np.ones(5)) == 1.0 and t_test_p(np.ones(5), np.zeros(5)) == 0.0
    assert t_test_p(np.array([0.9, 1.0, 0.95]), np.array([0.4, 0.5, 0.6])) < 0.01
