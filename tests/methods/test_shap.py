"""SHAP values beside shap's own explainers and text masker, plain recursions, and what must hold for any game."""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch

import whence
from families import PICTURES, TEXTS, family, fresh, plain_inputs
from whence.core.results import Attribution
from whence.core.shap_export import shap_package
from whence.methods import shapley
from whence.model.subject import Subject

shap = shap_package()
TEXT = "the plot was slow and nobody heard them"  # words that are whole pieces of BERT


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


@cache
def subject(name: str) -> Subject:
    if name == "planted":
        return whence.load("planted")
    return whence.wrap(family(name).model, family(name).processor, **family(name).kwargs)


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Within the tolerance times the largest number, if that is above one."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * max(1.0, np.abs(expected).max())


def explained(name: str, text: Any, target: Any = 1, **options: Any) -> Attribution:
    return whence.explain(subject(name), text, "shap", target, **options)


@torch.no_grad()
def token_values(model: Any, ids: np.ndarray) -> np.ndarray:
    """The second logit of rows of token ids."""
    return model(torch.from_numpy(np.asarray(ids))).logits[:, 1].double().numpy()


@cache
def game(text: str = TEXT) -> Callable[[np.ndarray], np.ndarray]:
    """Coalitions of the plain BERT's words to its second logit, hidden words replaced by [MASK]."""
    made = family("bert")
    ids = plain_inputs(made, text)["input_ids"][0].numpy()

    def value(coalitions: np.ndarray) -> np.ndarray:
        rows = np.tile(ids, (len(coalitions), 1))
        rows[:, 1:-1] = np.where(coalitions, rows[:, 1:-1], made.processor.mask_token_id)
        return token_values(made.model, rows)

    return value


# ---- shap's own explainers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "planted"])
@pytest.mark.parametrize("context", [None, 0, 1])
def test_text_masker(name: str, context: Any) -> None:
    text = TEXTS[0] if name == "bert" else whence.zoo.examples("planted", 1, seed=1)[0].input
    tokenizer, model = subject(name).processor, subject(name).model
    masker = shap.maskers.Text(tokenizer, collapse_mask_token=False, output_type="token_ids")
    explainer = shap.Explainer(lambda ids: token_values(model, ids), masker, algorithm="partition")
    peer = explainer([text], max_evals=5000, fixed_context=context, silent=True)
    a = explained(name, text, max_evals=5000, fixed_context=context)
    close(a.base, peer.base_values[0], 1e-4)
    if context is None:
        close(a.scores, peer.values[0], 1e-4)
    # what a fixed context leaves on inner nodes, shap shares with [CLS] and [SEP], which whence does not score
    scores = peer.hierarchical_values[0][: len(a.features)].copy()
    for group, credit in zip(members(peer.clustering[0]), peer.hierarchical_values[0][len(scores) :], strict=True):
        plain = [leaf for leaf in group if not a.special[leaf]]
        scores[plain] += credit / max(1, len(plain))
    close(a.scores, scores, 1e-4)


def test_text_masker_that_writes_strings() -> None:
    text, model = whence.zoo.examples("planted", 1, seed=2)[0].input, subject("planted").model
    tokenizer = subject("planted").processor

    def value(texts: Any) -> np.ndarray:
        return np.concatenate([token_values(model, tokenizer(str(t), return_tensors="np")["input_ids"]) for t in texts])

    masker = shap.maskers.Text(tokenizer, collapse_mask_token=False)
    peer = shap.Explainer(value, masker, algorithm="partition")([text], max_evals=5000, silent=True)
    close(explained("planted", text, max_evals=5000).scores, peer.values[0], 1e-4)


class Masker:
    """A masker by shap's protocol, over players without a tree."""

    def __init__(self, count: int, clustering: Any = None) -> None:
        self.shape, self.clustering = (1, count), clustering
        self.default_batch_size = 64

    def __call__(self, mask: np.ndarray, x: np.ndarray) -> np.ndarray:
        return mask.copy()[None]


def test_permutations_with_one_seed() -> None:
    count = len(TEXT.split())
    a = explained("bert", TEXT, algorithm="permutation", max_evals=100, seed=7)
    explainer = shap.Explainer(game(), Masker(count), algorithm="permutation", seed=7)
    peer = explainer(np.ones((1, count)), max_evals=100, silent=True)
    close(a.scores[1:-1], peer.values[0], 1e-4)
    others = explained("bert", TEXT, algorithm="permutation", max_evals=100, seed=8)
    assert np.abs(a.scores - others.scores).max() > 1e-3


@pytest.mark.parametrize("budget", [10, 30, 2000])
def test_the_same_tree_and_budget(budget: int) -> None:
    count = len(TEXT.split())
    a = explained("bert", TEXT, max_evals=budget)
    explainer = shap.explainers.PartitionExplainer(game(), Masker(count, a.details["clustering"]))
    np.random.seed(0)
    peer = explainer(np.ones((1, count)), max_evals=budget, silent=True)
    close(a.scores[1:-1], peer.values[0], 1e-4)
    close(a.details["hierarchical_values"], peer.hierarchical_values[0], 1e-4)
    assert a.details["evaluations"] <= budget + 1  # shap asks for pairs


# ---- slow twins ------------------------------------------------------------------------------------------------------


def owen(tree: np.ndarray, context: Any, value: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The recursion in its plainest form: one evaluation at a time."""
    count = len(tree) + 1
    scores = np.zeros(count)

    def v(on: frozenset[int]) -> float:
        return float(value(np.array([[i in on for i in range(count)]]))[0])

    def leaves(node: int) -> frozenset[int]:
        if node < count:
            return frozenset([node])
        return leaves(int(tree[node - count, 0])) | leaves(int(tree[node - count, 1]))

    def visit(node: int, on: frozenset[int], low: float, high: float, weight: float) -> None:
        if node < count:
            scores[node] += weight * (high - low)
            return
        left, right = (int(child) for child in tree[node - count, :2])
        only_left, only_right = v(on | leaves(left)), v(on | leaves(right))
        share = weight / 2 if context is None else weight
        if context != 1:
            visit(left, on, low, only_left, share)
            visit(right, on, low, only_right, share)
        if context != 0:
            visit(left, on | leaves(right), only_right, high, share)
            visit(right, on | leaves(left), only_left, high, share)
        if context is not None:  # the interaction goes to all leaves below
            sign = 1 if context == 0 else -1
            for leaf in leaves(node):
                scores[leaf] += sign * weight * (high - only_left - only_right + low) / len(leaves(node))

    everyone = frozenset(range(count))
    visit(2 * count - 2, frozenset(), v(frozenset()), v(everyone), 1.0)
    return scores


@pytest.mark.parametrize("context", [None, 0, 1])
def test_owen_twin(context: Any) -> None:
    a = explained("bert", TEXT, fixed_context=context)
    tree = a.details["clustering"]
    close(a.scores[1:-1], owen(tree, context, game()))
    other = owen(tree, 1 if context is None else None, game())  # a broken twin: another context
    assert np.abs(a.scores[1:-1] - other).max() > 1e-2


def test_exact_twin() -> None:
    count = len(TEXT.split())
    subsets = np.array(list(itertools.product([False, True], repeat=count)))
    worth = {tuple(subset): value for subset, value in zip(subsets, game()(subsets), strict=True)}
    twin = np.zeros(count)
    for subset in worth:
        for player in range(count):
            if not subset[player]:
                size = sum(subset)
                share = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
                joined = tuple(on or i == player for i, on in enumerate(subset))
                twin[player] += share * (worth[joined] - worth[subset])
    a = explained("bert", TEXT, algorithm="exact")
    close(a.scores[1:-1], twin)
    assert a.details["evaluations"] == 2**count
    sampled = explained("bert", TEXT, algorithm="permutation", max_evals=4000)
    close(sampled.scores[1:-1], twin, 0.05 * np.abs(twin).max())


def test_double_precision() -> None:
    made = fresh("bert")
    made.model.double()
    s = whence.wrap(made.model, made.processor)
    a = whence.explain(s, TEXT, "shap", 1)
    ids = plain_inputs(made, TEXT)["input_ids"][0].numpy()

    def value(coalitions: np.ndarray) -> np.ndarray:
        rows = np.tile(ids, (len(coalitions), 1))
        rows[:, 1:-1] = np.where(coalitions, rows[:, 1:-1], made.processor.mask_token_id)
        return token_values(made.model, rows)

    close(a.scores[1:-1], owen(a.details["clustering"], None, value), 1e-10)


# ---- trees -----------------------------------------------------------------------------------------------------------


def members(tree: np.ndarray) -> list[set[int]]:
    """The players below every inner node."""
    groups = [{i} for i in range(len(tree) + 1)]
    for left, right, _, size in tree:
        groups.append(groups[int(left)] | groups[int(right)])
        assert len(groups[-1]) == size
    return groups[len(tree) + 1 :]


def test_pieces_of_a_word_are_joined_first() -> None:
    a = explained("roberta", "a masterful film")
    assert members(a.details["clustering"])[0] == {1, 2}  # " m" and "asterful"


def test_a_grid_is_halved() -> None:
    a = explained("vit", PICTURES[0], max_evals=20)
    groups = members(a.details["clustering"])
    assert {0, 1, 2, 3, 4, 5, 6, 7} in groups and {0, 1, 4, 5} in groups and {0, 1} in groups
    assert groups[-1] == set(range(16))
    tree = np.array(shapley._halved(3, 5))
    assert len(tree) == 14 and tree.max() == 15 + 12


def test_streams_have_trees_of_their_own() -> None:
    a = explained("vilt", family("vilt").inputs[1], 0, max_evals=20)
    groups = members(a.details["clustering"])
    text, image = {0, 1, 2}, set(range(3, 3 + 24))
    assert text in groups and image in groups and groups[-1] == text | image


# ---- what must hold --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", [None, 0, 1])
@pytest.mark.parametrize("budget", [2, 5, 12, 40, 500])
def test_values_sum_to_what_hiding_everything_costs(context: Any, budget: int) -> None:
    a = explained("bert", TEXTS[0], fixed_context=context, max_evals=budget)
    hidden = game(TEXTS[0])(np.zeros((1, len(a.features) - 2), bool))[0]
    close(a.base, hidden)
    close(a.scores.sum(), a.output - hidden)


@pytest.mark.parametrize("algorithm", ["partition", "permutation", "exact"])
@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("gpt2", {"prompt": "two dogs", "continuation": " play"}),
        ("t5", {"source": "the house", "output": "it was"}),
        ("lxmert", family("lxmert").inputs[1]),
    ],
)
def test_streams_and_generated_rows_sum(algorithm: str, name: str, raw: Any) -> None:
    a = whence.explain(subject(name), raw, "shap", algorithm=algorithm)
    close(a.scores.sum(-1), np.asarray(a.output) - a.base)
    assert (np.abs(a.scores).sum(-1) > 1e-3).all() and not a.scores[~a.visible].any()


@pytest.mark.parametrize("target", ["probability(1)", "log_odds(1)", "contrast(1, 0)"])
def test_values_are_in_the_targets_units(target: str) -> None:
    a = explained("bert", TEXT, target)
    close(a.scores.sum(), a.output - a.base)
    hidden = " ".join(["[MASK]"] * len(TEXT.split()))
    close(a.base, whence.explain(subject("bert"), hidden, "random", target).output)


def test_one_player() -> None:
    a = explained("bert", "film")
    close(a.scores, [0.0, a.output - a.base, 0.0])


def test_words_as_players() -> None:
    a = explained("roberta", "a masterful film", level="word")
    assert a.details["players"].tolist() == [-1, 0, 1, 1, 2, -1] and len(a.scores) == 5
    close(a.scores.sum(), a.output - a.base)


def test_random_states_are_left_as_found() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    for algorithm in ("partition", "permutation"):
        explained("bert", TEXT, algorithm=algorithm, max_evals=30)
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def test_no_coalition_is_evaluated_twice() -> None:
    rows: list[bytes] = []
    handle = subject("bert").model.register_forward_pre_hook(
        lambda _, args, kwargs: rows.extend(row.numpy().tobytes() for row in kwargs["input_ids"]), with_kwargs=True
    )
    a = explained("bert", TEXT, algorithm="permutation", max_evals=500)
    handle.remove()
    assert a.details["evaluations"] == len(set(rows))
    assert len(rows) <= len(set(rows)) + 2  # and f(x), for which explain itself asks


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithm": "exact"}, "algorithm='exact' takes up to 14 players, and this input has 18; use 'partition'"),
        ({"algorithm": "permutation", "max_evals": 30}, "needs max_evals of at least 37 for 18 players, not 30"),
        ({"max_evals": 1}, "'max_evals' takes a whole number from 2 to 1,000,000, not 1"),
        ({"fixed_context": 2}, "the option 'fixed_context' takes 0 or 1 or None, not 2"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        explained("bert", "the film " * 9, **options)
    assert "\n" not in str(error.value)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(ImportError, match=r"this needs the shap package; install it with pip install 'whence\[shap\]'"):
        explained("bert", TEXT)


# ---- shap's plots ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["shap", "gradient_x_input", "attention"])
def test_explanation(method: str) -> None:
    a = whence.explain(subject("roberta"), "a masterful film", method)
    e = a.to_shap()
    assert isinstance(e, shap.Explanation)
    close(e.values, a.scores)
    assert e.base_values == (0.0 if a.base is None else a.base)
    assert list(e.feature_names) == list(a.features)
    assert "".join(e.data).split() == ["<s>", "a", "masterful", "film", "</s>"]


def test_explanation_of_generated_text() -> None:
    a = whence.explain(subject("t5"), {"source": "the house", "output": "it was"}, "gradient_x_input")
    e = a.to_shap()
    assert e.shape == a.scores.shape
    for row in range(len(a.scores)):
        close(e[row].values, a.scores[row])
        close(e[row].base_values, a.base[row])
        assert len(e[row].data) == len(a.features)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    a = explained("bert", TEXT)
    page = shap.plots.text(a.to_shap(), display=False)
    assert "slow" in page and "nobody" in page
    generated = whence.explain(subject("t5"), {"source": "the house", "output": "it was"}, "shap")
    assert "house" in shap.plots.text(generated.to_shap(), display=False)
    shap.plots.bar(a.to_shap(), show=False)
    shap.plots.force(a.to_shap(), matplotlib=True, show=False)
    assert "slow" in {label.get_text().split(" = ")[-1].strip() for label in plt.figure(1).axes[0].get_yticklabels()}
    plt.close("all")
