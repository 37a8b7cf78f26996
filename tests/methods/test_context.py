"""ContextCite, and leave-one-out from coarse to fine, on contexts of sentences."""

from __future__ import annotations

from itertools import chain, combinations
from math import factorial

import numpy as np
import pytest
from sklearn.linear_model import Lasso

import whence
from families import subject_of
from whence.core.inputs import unmerged
from whence.methods.regression import explained_share, lasso
from whence.model.masked_runs import Ask, MaskedRuns

RAW = {
    "prompt": "the film was good. nobody laughed.\n\nthe dogs are playing. the house was warm.\n\na ball. it was",
    "continuation": " cold and the house",
}
TARGET = "statement('the house')"


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("penalty", [0.0, 0.01, 0.3])
def test_lasso_is_that_of_scikit_learn(seed: int, penalty: float) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.random((60, 8)) < 0.5).astype(float)
    x[:, 7] = 1  # a unit that was always there
    y = x @ np.array([3, 0, 0, -2, 0, 0.5, 0, 0]) + 0.1 * rng.standard_normal(60) + 4
    weights, base = lasso(x, y, penalty)
    scale = np.where(x.std(0) > 0, x.std(0), 1)
    twin = Lasso(alpha=max(penalty, 1e-12), tol=1e-10, max_iter=100_000).fit((x - x.mean(0)) / scale, y)
    np.testing.assert_allclose(weights, twin.coef_ / scale, atol=1e-5)
    assert base == pytest.approx(twin.intercept_ - x.mean(0) @ (twin.coef_ / scale), abs=1e-5) and weights[7] == 0
    assert explained_share(y, x @ weights + base) == pytest.approx(twin.score((x - x.mean(0)) / scale, y), abs=1e-5)


def test_context_cite_fits_the_ablations_that_it_drew() -> None:
    """The same variants, drawn and run by hand, give the same weights, R^2 and rank correlation."""
    s = subject_of("gpt2")
    a = whence.explain(s, RAW, "context_cite(samples=40, held_out=10, penalty=0.02)", TARGET, level="sentence", seed=3)
    item = unmerged(a.input)
    generator = s.batch([item], 3).generators()[0]
    count = int((~a.special).sum())
    draws = generator.random((50, count)) < 0.5
    keep = np.ones((50, len(item.features)), bool)
    for number, unit in enumerate(np.flatnonzero(~a.special)):
        keep[:, item.units == unit] = draws[:, number, None]
    values = MaskedRuns(s).values([item], [Ask(keep)], s.aim([a.target]))[0]
    size = len(item.answer)
    weights, base = lasso(draws[:40].astype(float), values[:40] / size, 0.02)
    np.testing.assert_allclose(a.scores[~a.special], weights * size, atol=1e-5)
    assert a.base == pytest.approx(base * size, abs=1e-4) and (a.scores[a.special] == 0).all()
    assert a.details["r2"] == pytest.approx(explained_share(values[:40], draws[:40] @ weights * size + base * size))
    assert -1 <= a.details["lds"] <= 1
    again = whence.explain(
        s, RAW, "context_cite(samples=40, held_out=10, penalty=0.02)", TARGET, level="sentence", seed=3
    )
    np.testing.assert_array_equal(a.scores, again.scores)


def test_a_large_penalty_leaves_nothing() -> None:
    a = whence.explain(subject_of("gpt2"), RAW, "context_cite(penalty=1000)", TARGET, level="sentence")
    assert not a.scores.any() and np.isnan(a.details["lds"])


def test_context_cite_finds_what_decides() -> None:
    """A sentence that says something outweighs sentences that do not."""
    s = whence.load("sst2")
    text = "The plot is dull. The room is a room. It was on Monday. The door was open."
    a = whence.explain(s, text, "context_cite", "negative", level="sentence")
    assert a.features[int(np.argmax(a.scores))] == "The plot is dull." and a.details["r2_held_out"] > 0.8


@pytest.mark.parametrize("method", ["leave_one_out", "context_cite", "shap", "lime", "leave_one_out(coarse='word')"])
def test_the_pair_that_the_answer_must_come_from(method: str) -> None:
    """`recall` answers a key with the value that stood beside it: of eight pairs, one decides."""
    pairs = ["k13 v6", "k0 v8", "k4 v2", "k8 v4", "k7 v13", "k6 v1", "k15 v9", "k11 v12"]
    raw = {"prompt": " ".join(pairs) + " k7", "continuation": " v13"}
    if "coarse" in method:
        with pytest.raises(ValueError, match="reaches over several words"):
            whence.explain(whence.load("recall"), raw, method, "statement", level=pairs)
        return
    a = whence.explain(whence.load("recall"), raw, method, "statement", level=pairs)
    assert a.features[int(np.argmax(a.scores))] == "k7 v13" and a.scores.max() > 5 * np.sort(np.abs(a.scores))[-2]


def test_coarse_to_fine() -> None:
    """Units of the strongest documents are exact; the others share the drop of their document."""
    s = subject_of("gpt2")
    exact = whence.explain(s, RAW, "leave_one_out", TARGET, level="sentence")
    documents = whence.explain(s, RAW, "leave_one_out", TARGET, level="document")
    a = whence.explain(s, RAW, "leave_one_out(coarse='document', strongest=1)", TARGET, level="sentence")
    top = documents.features[int(np.argmax(np.abs(documents.scores)))]
    for number, name in enumerate(a.features):
        if a.special[number]:
            continue
        group = next(i for i, text in enumerate(documents.features) if name in text)
        size = sum(other in documents.features[group] for other in np.array(a.features)[~a.special])
        inside = name in top
        twin = exact.scores[number] if inside else documents.scores[group] / size
        assert a.scores[number] == pytest.approx(twin, abs=1e-4)
        assert a.details["exact"][a.input.units == number].all() == (inside or size == 1)
    assert any("share the drop of their document" in note for note in a.notes)
    all_of_them = whence.explain(s, RAW, "leave_one_out(coarse='document', strongest=99)", TARGET, level="sentence")
    np.testing.assert_allclose(all_of_them.scores, exact.scores, atol=1e-5)
    with pytest.raises(ValueError, match="coarse= is coarser than the level"):
        whence.explain(s, RAW, "leave_one_out(coarse='word')", TARGET, level="document")


def test_shapley_values_of_sentences_by_enumeration() -> None:
    """All 2^n coalitions of sentences, by the definition; the permutations' estimate comes near."""
    s = subject_of("gpt2")
    a = whence.explain(s, RAW, "shap(algorithm='exact')", TARGET, level="sentence")
    item, players = unmerged(a.input), np.flatnonzero(~a.special)
    n = len(players)
    coalitions = list(chain.from_iterable(combinations(range(n), size) for size in range(n + 1)))
    keep = np.ones((len(coalitions), len(item.features)), bool)
    for row, coalition in enumerate(coalitions):
        keep[row] = ~np.isin(item.units, [players[i] for i in range(n) if i not in coalition])
    value = dict(zip(coalitions, MaskedRuns(s).values([item], [Ask(keep)], s.aim([a.target]))[0], strict=True))
    twin = np.zeros(n)
    for coalition in coalitions:
        for i in set(range(n)) - set(coalition):
            weight = factorial(len(coalition)) * factorial(n - len(coalition) - 1) / factorial(n)
            twin[i] += weight * (value[tuple(sorted((*coalition, i)))] - value[coalition])
    np.testing.assert_allclose(a.scores[players], twin, atol=1e-4)
