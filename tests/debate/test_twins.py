"""Every statistic beside a literal transcription of its protocol, on a model with one attention, written in numpy."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from transformers import AttentionInterface
from transformers.models.bert.modeling_bert import eager_attention_forward

import whence
from families import Head, fresh
from planted_attention import WORDS, Planted, planted, texts
from whence.debate.experiments.adversary import Search, adversary
from whence.debate.experiments.agreement import agreement
from whence.debate.experiments.erasing import erasure, removal
from whence.debate.experiments.replacing import outlying, permutation, uniform
from whence.debate.experiments.signs import signs
from whence.debate.scenes import Scene
from whence.model.masked_runs import MaskedRuns

TEXTS = texts(3, seed=5)
WHERE = "layer 0"


class ByHand:
    """The planted model `between` in numpy: a distribution over classes from words and their weights."""

    def __init__(self, text: str) -> None:
        model = Planted("between")
        self.table = model.attention.table.numpy().astype(float)
        self.beside = model.beside.numpy().astype(float)
        self.scores = model.scores.numpy().astype(float)
        self.words = [len(WORDS), *map(WORDS.index, text.split())]  # the added token first
        self.alpha = softmax(self.scores[self.words])

    def p(self, alpha: np.ndarray | None = None, words: list[int] | None = None, x: np.ndarray | None = None) -> Any:
        """Probabilities with these weights; attention is computed anew where only words are given."""
        words = self.words if words is None else words
        alpha = softmax(self.scores[words]) if alpha is None else alpha
        x = np.eye(len(WORDS) + 1)[words] if x is None else x
        return softmax(alpha @ (x @ self.table) + (x @ self.beside).mean(0))


@cache
def scene(text: str) -> Scene:
    subject = planted("between")
    return Scene(subject, subject.encode(text), MaskedRuns(subject), [0, 1, 2])


def tvd(p: np.ndarray, q: np.ndarray) -> float:
    """The definition; the released code of a later paper has half of it for two classes."""
    return 0.5 * sum(abs(a - b) for a, b in zip(p, q, strict=True))


def js(p: np.ndarray, q: np.ndarray) -> float:
    total = 0.0
    for a, b in zip(p, q, strict=True):
        m = (a + b) / 2
        total += 0.5 * a * math.log(a / m) if a > 0 else 0.0
        total += 0.5 * b * math.log(b / m) if b > 0 else 0.0
    return total


def renormalised(alpha: np.ndarray, gone: list[int]) -> np.ndarray:
    """Weights of words set to zero; those left share what all words had; the added token, number 0, keeps its own."""
    new = alpha.copy()
    new[gone] = 0
    if new[1:].sum() > 0:
        new[1:] *= alpha[1:].sum() / new[1:].sum()
    return new


@pytest.mark.parametrize("text", TEXTS)
def test_permutation(text: str) -> None:
    hand, found = ByHand(text), permutation(scene(text), permutations=30)[WHERE]
    draws = scene(text).generator(f"permutation at {WHERE}").random((30, len(hand.words)))
    outputs = []
    for draw in draws:
        alpha = hand.alpha.copy()
        alpha[1:] = hand.alpha[1:][np.argsort(draw[1:])]
        outputs.append(hand.p(alpha))
    changes = [tvd(hand.p(), q) for q in outputs]
    assert found["median change"] == pytest.approx(np.median(changes), abs=1e-6)
    assert found["flips"] == pytest.approx(np.mean([q.argmax() != hand.p().argmax() for q in outputs]))
    assert found["greatest weight"] == pytest.approx(hand.alpha[1:].max() / hand.alpha[1:].sum(), abs=1e-6)
    everything = [hand.p(), *outputs]
    centre = np.mean(everything, 0)
    distances = [tvd(q, centre) for q in everything]
    assert found["p"] == pytest.approx(sum(d >= distances[0] for d in distances) / len(distances), abs=0.04)


@pytest.mark.parametrize("text", TEXTS)
def test_uniform(text: str) -> None:
    hand, found = ByHand(text), uniform(scene(text))[WHERE]
    alpha = hand.alpha.copy()
    alpha[1:] = hand.alpha[1:].sum() / (len(alpha) - 1)
    assert found["change"] == pytest.approx(tvd(hand.p(), hand.p(alpha)), abs=1e-6)
    best = hand.p().argmax()
    assert found["loss of p"] == pytest.approx(hand.p()[best] - hand.p(alpha)[best], abs=1e-6)
    assert found["flips"] == float(hand.p(alpha).argmax() != best)


@pytest.mark.parametrize("text", TEXTS)
def test_erasure(text: str) -> None:
    hand, found = ByHand(text), erasure(scene(text))[WHERE]
    highest = 1 + int(hand.alpha[1:].argmax())
    others = [number for number in range(len(hand.words) - 1) if number != highest - 1]
    random = 1 + int(scene(text).generator(f"erasure at {WHERE}").choice(others))
    p = hand.p()
    outputs = [hand.p(renormalised(hand.alpha, [one])) for one in (highest, random)]
    assert found["effect of highest"] == pytest.approx(js(p, outputs[0]), abs=1e-7)
    assert found["effect of random"] == pytest.approx(js(p, outputs[1]), abs=1e-7)
    assert found["difference of weights"] == pytest.approx(hand.alpha[highest] - hand.alpha[random], abs=1e-6)
    flips = tuple(q.argmax() != p.argmax() for q in outputs)
    names = {(1, 1): "both flip", (1, 0): "only highest flips", (0, 1): "only random flips", (0, 0): "neither flips"}
    assert [name for key, name in names.items() if found[name]] == [names[flips]]


@pytest.mark.parametrize("text", TEXTS)
def test_removal(text: str) -> None:
    hand, found = ByHand(text), removal(scene(text), draws=2)[WHERE]
    p, count = hand.p(), len(hand.words) - 1
    best, step = p.argmax(), 1e-6
    gradient = np.zeros(count + 1)
    for number in range(1, count + 1):
        ends = [hand.p(hand.alpha + sign * step * np.eye(count + 1)[number])[best] for sign in (1, -1)]
        gradient[number] = (ends[0] - ends[1]) / (2 * step)
    rng = scene(text).generator(f"removal at {WHERE}")
    orders = {"random": [rng.permutation(np.arange(1, count + 1)) for _ in range(2)]}
    for name, scores in (("attention", hand.alpha), ("gradient", gradient), ("both", hand.alpha * gradient)):
        orders["attention x gradient" if name == "both" else name] = [1 + np.argsort(-scores[1:], kind="stable")]
    for name, own in orders.items():
        shares = []
        for order in own:
            flips = [hand.p(renormalised(hand.alpha, order[:k].tolist())).argmax() != best for k in range(1, count + 1)]
            shares.append((flips.index(True) + 1) / count if any(flips) else np.nan)
        assert found[f"never: {name}"] == np.isnan(shares).mean()
        assert found[f"removed, never as all: {name}"] == pytest.approx(np.nan_to_num(shares, nan=1.0).mean())
        if not np.isnan(shares).all():
            assert found[f"removed: {name}"] == pytest.approx(np.nanmean(shares))


def tau_b(a: np.ndarray, b: np.ndarray) -> float:
    """Concordant minus discordant pairs over the geometric mean of the pairs that are not tied."""
    pairs = [(np.sign(a[i] - a[j]), np.sign(b[i] - b[j])) for i in range(len(a)) for j in range(i)]
    free = [sum(pair[side] != 0 for pair in pairs) for side in (0, 1)]
    return float(sum(x * y for x, y in pairs) / math.sqrt(free[0] * free[1]))


def gradient_by_hand(hand: ByHand) -> np.ndarray:
    """sum_d x_td dp/dx_td with the weights held, by differences."""
    x, best = np.eye(len(WORDS) + 1)[hand.words], hand.p().argmax()
    found = np.zeros(len(hand.words))
    for t, word in enumerate(hand.words):  # x_td is 0 but for the word itself
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[t, word] += sign * 1e-6
            ends.append(hand.p(hand.alpha, x=moved)[best])
        found[t] = (ends[0] - ends[1]) / 2e-6
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_agreement(text: str) -> None:
    hand, found = ByHand(text), agreement(scene(text), top=3)[WHERE]
    gradient = np.abs(gradient_by_hand(hand))
    left_out = [
        tvd(hand.p(), hand.p(words=[w for n, w in enumerate(hand.words) if n != t])) for t in range(len(hand.words))
    ]
    rankings = {"attention": hand.alpha[1:], "gradient": gradient[1:], "left out": np.array(left_out[1:])}
    for a, b in (("attention", "gradient"), ("attention", "left out"), ("gradient", "left out")):
        assert found[f"tau: {a}, {b}"] == pytest.approx(tau_b(rankings[a], rankings[b]), abs=1e-9)
        tops = [set(sorted(range(len(r)), key=lambda t: -r[t])[:3]) for r in (rankings[a], rankings[b])]
        assert found[f"top: {a}, {b}"] == len(tops[0] & tops[1]) / 3


@pytest.mark.parametrize("text", TEXTS)
def test_signs(text: str) -> None:
    hand, found = ByHand(text), signs(scene(text))[WHERE]
    best = hand.p().argmax()
    drops = np.array(
        [
            hand.p()[best] - hand.p(words=[w for n, w in enumerate(hand.words) if n != t])[best]
            for t in range(len(hand.words))
        ]
    )[1:]
    for name, scores in (("attention", hand.alpha[1:]), ("gradient x input", gradient_by_hand(hand)[1:])):
        strongest = max(range(len(scores)), key=lambda t: abs(scores[t]))
        assert found[f"violated: {name}"] == float(np.sign(scores[strongest]) != np.sign(drops[strongest]))
        wrong = sum(abs(d) for s, d in zip(scores, drops, strict=True) if np.sign(s) != np.sign(d))
        assert found[f"wrong: {name}"] == pytest.approx(wrong / np.abs(drops).sum(), abs=1e-5)
    assert found["violated: chance"] == (drops < 0).mean()


def literal_search(hand: ByHand, starts: np.ndarray, steps: int, epsilon: float) -> float:
    """The greatest divergence that the authors' loop ends with: restarts side by side, the last step counts."""
    alpha, table = torch.tensor(hand.alpha), torch.tensor(hand.table[hand.words])
    beside, plain = torch.tensor(hand.beside[hand.words].mean(0)), torch.tensor(hand.p())
    mass, own = alpha[1:].sum(), alpha[1:] / alpha[1:].sum()
    logs = torch.tensor(starts, requires_grad=True)
    optimizer = torch.optim.Adam([logs], lr=0.05, amsgrad=True)

    def entropy(q: torch.Tensor) -> torch.Tensor:
        return -(q * q.log()).sum(-1)

    def measured() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        new = logs.softmax(-1)
        full = torch.cat([alpha[:1].expand(len(new), 1), mass * new], -1)
        outputs = (full @ table + beside).softmax(-1)
        divergence = entropy((new + own) / 2) - (entropy(new) + entropy(own)) / 2
        return new, divergence, (outputs - plain).abs().sum(-1) / 2

    for _ in range(steps):
        new, divergence, change = measured()
        apart = entropy(new.mean(0)) - entropy(new).mean()
        loss = (500 * (change - epsilon).clamp(min=0) - divergence).sum() - apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    _, divergence, change = measured()
    return float(torch.where(change <= epsilon, divergence, 0.0).max().detach())


@pytest.mark.parametrize("text", TEXTS[:2])
def test_adversary(text: str) -> None:
    """The search is at least as good as the literal one, and its weights, in the model by hand, do what it says."""
    hand, own = ByHand(text), scene(text)
    found = adversary(own, steps=60, rate=0.05, restarts=3)[WHERE]
    count = len(hand.words)
    starts = own.generator(f"adversary at {WHERE}").normal(0, 3, (3, 1, 1, count))[:, 0, 0, 1:] - math.log(count - 1)
    assert found["divergence"] >= literal_search(hand, starts, 60, 0.01) - 1e-4
    place = next(iter(_places(own)))
    search = Search(own, place, 0.01, 3, own.generator(f"adversary at {WHERE}"))
    search.run(60, 0.05, 500.0)
    divergence, change = search.verified()
    assert (divergence, change) == (found["divergence"], found["change"])
    number = int(search.furthest.argmax())
    alpha = search.best[0][number, 0, 0].numpy()
    assert alpha.sum() == pytest.approx(1, abs=1e-6) and alpha[0] == pytest.approx(hand.alpha[0], abs=1e-9)
    assert tvd(hand.p(), hand.p(alpha)) == pytest.approx(change, abs=1e-5) and change <= 0.01
    shares = [a[1:] / a[1:].sum() for a in (alpha, hand.alpha)]
    assert js(*shares) == pytest.approx(divergence, abs=1e-6)
    assert 0 <= divergence <= math.log(2)


def _places(own: Scene, layers: Any = "last") -> list[Any]:
    found: list[Any] = []
    own.at_places(layers, "together", "deciding", False, lambda place: found.append(place) or {})  # type: ignore[func-returns-value]
    return found


def test_a_permutation_test_on_exchangeable_outputs_is_calibrated() -> None:
    """If own and permuted outputs are alike by construction, p <= .05 comes in 5 % of 1,000 repetitions."""
    rng = np.random.default_rng(0)
    calls = 0
    for _ in range(1000):
        values, weights = rng.normal(0, 2, (8, 4)), rng.dirichlet(np.ones(8))
        alphas = np.stack([weights, *(rng.permutation(weights) for _ in range(99))])
        outputs = torch.from_numpy(softmax(alphas @ values, -1))[:, None]
        calls += outlying(outputs) <= 0.05
    assert 0.02 <= calls / 1000 <= 0.07


def test_gradients_hold_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """x dp/dx of a transformer written from scratch, weights detached by hand; attached, they give other numbers."""
    made = fresh("from-scratch")
    subject = whence.wrap(made.model, **made.kwargs)
    item = subject.encode(made.inputs[0])
    found = Scene(subject, item, MaskedRuns(subject)).gradient
    ids = torch.from_numpy(item.tensors["input"])[None]

    def by_hand() -> np.ndarray:
        words = made.model.word(ids).detach().requires_grad_()
        handle = made.model.word.register_forward_hook(lambda module, given, out: words)
        value = made.model(ids).softmax(-1).max()
        handle.remove()
        return (words * torch.autograd.grad(value, words)[0]).sum(-1)[0].detach().numpy()

    free = by_hand()
    monkeypatch.setattr(Head, "forward", lambda head, x: _detached(head, x))
    np.testing.assert_allclose(found, by_hand(), atol=1e-6)
    assert np.abs(found - free).max() > 1e-3


def _detached(head: Any, x: torch.Tensor) -> torch.Tensor:
    time = x.shape[1]
    scores = head.query(x) @ head.key(x).transpose(1, 2) / head.key.out_features**0.5
    return scores.masked_fill(~head.past[:time, :time], float("-inf")).softmax(-1).detach() @ head.value(x)


@pytest.mark.parametrize("layers", ["last", "all"])
def test_the_adversary_keeps_its_epsilon_in_the_plain_model(layers: Any) -> None:
    """BERT with the found weights put in by an attention function of transformers, and nothing of whence between."""
    made = fresh("bert")
    subject = whence.wrap(made.model, made.processor, **made.kwargs)
    own = Scene(subject, subject.encode(made.inputs[0]), MaskedRuns(subject))
    place = next(iter(_places(own, layers)))
    search = Search(own, place, 0.02, 3, np.random.default_rng(0))
    search.run(40, 0.1, 500.0)
    divergence, change = search.verified()
    number = int((place.divergence(search.best) - divergence).abs().argmin())
    new = {block.record.order: (w[number], block.rows) for block, w in zip(place.blocks, search.best, strict=True)}

    def exchanging(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        mixed, weights = eager_attention_forward(module, query, key, value, mask, **options)
        if module.layer_idx in new:
            weights = weights.index_copy(2, new[module.layer_idx][1], new[module.layer_idx][0][None].float())
            mixed = (weights @ value).transpose(1, 2)
        return mixed, weights

    with torch.no_grad():
        plain = made.model(**own.runs.batch.tensors).logits
        AttentionInterface.register("exchanging", exchanging)
        made.model.config._attn_implementation = "exchanging"
        edited = made.model(**own.runs.batch.tensors).logits
    p, q = (softmax(logits[0].double().numpy()) for logits in (plain, edited))
    assert tvd(p, q) <= 0.02 + 1e-6 and tvd(p, q) == pytest.approx(change, abs=1e-5)
    assert 0.05 < divergence <= math.log(2)
