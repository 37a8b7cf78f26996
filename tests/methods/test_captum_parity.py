"""Gradients and integrated gradients beside captum, and on models where the answer is known exactly.

captum runs a twin with the same weights that whence never touches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import (
    InputXGradient,
    IntegratedGradients,
    LayerGradientXActivation,
    LayerIntegratedGradients,
    Saliency,
)
from torch import Tensor, nn

import whence
from families import PICTURES, TEXTS, family, fresh, plain_inputs
from whence.core.results import Attribution
from whence.methods.gradient import spline_shares
from whence.model.subject import Subject

# What captum calls the rules, and what its weights sum to: its trapezoid gives each of its n - 1 intervals 1 / n.
RULES: dict[str, tuple[str, Callable[[int], float]]] = {
    "gausslegendre": ("gausslegendre", lambda n: 1.0),
    "midpoint": ("riemann_middle", lambda n: 1.0),
    "left": ("riemann_left", lambda n: 1.0),
    "right": ("riemann_right", lambda n: 1.0),
    "trapezoid": ("riemann_trapezoid", lambda n: (n - 1) / n),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


@cache
def subject(name: str) -> Subject:
    return whence.wrap(family(name).model, family(name).processor, **family(name).kwargs)


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Within the tolerance times the largest number, if that is above one."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * max(1.0, np.abs(expected).max())


# --- Both sides -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Twin:
    """One example on a plain model: the logits as a function of what enters it, for captum."""

    forward: Callable[[Tensor], Tensor]  # states (batch, ...) to logits (batch, class)
    from_ids: Callable[[Tensor], Tensor]  # the same from token ids
    x: Tensor  # (1, token, width), or (1, channel, height, width)
    x0: Tensor  # the baseline that whence chooses by itself
    ids: Tensor
    ids0: Tensor
    word: nn.Module
    embeddings: nn.Module  # whose output enters the first block
    target: int

    def of_feature(self, attribution: Tensor) -> np.ndarray:
        """Sum over the embedding, or over colours and the pixels of a patch; [CLS] has no pixels."""
        if attribution.ndim == 3:
            return attribution.sum(-1)[0].detach().numpy()
        patches = attribution.sum(1).unflatten(2, (-1, 8)).unflatten(1, (-1, 8)).sum((2, 4))
        return np.concatenate([[0.0], patches.flatten().detach().numpy()])


def text_twin(name: str, text: str) -> Twin:
    made = fresh(name)
    model: Any = made.model
    tensors = plain_inputs(made, text)
    ids = tensors.pop("input_ids")
    baseline = made.processor.pad_token_id if name == "bert" else made.processor.unk_token_id  # GPT-2 pads with nothing
    special = torch.tensor(made.processor.get_special_tokens_mask(ids[0], already_has_special_tokens=True)).bool()
    ids0 = ids.masked_fill(~special, baseline) if name == "bert" else torch.full_like(ids, baseline)
    word = model.get_input_embeddings()

    def run(**states: Tensor) -> Tensor:
        count = len(next(iter(states.values())))
        logits = model(**states, **{key: tensor.expand(count, -1) for key, tensor in tensors.items()}).logits
        return logits if logits.ndim == 2 else logits[:, -1]

    with torch.no_grad():
        x, x0, target = word(ids), word(ids0), int(run(input_ids=ids).argmax())
    embeddings = model.bert.embeddings if name == "bert" else model.transformer.drop
    return Twin(
        lambda states: run(inputs_embeds=states),
        lambda numbers: run(input_ids=numbers),
        x.requires_grad_(),
        x0,
        ids,
        ids0,
        word,
        embeddings,
        target,
    )


def picture_twin(picture: Any) -> Twin:
    made = fresh("vit")
    x = plain_inputs(made, picture)["pixel_values"]

    def run(pixels: Tensor) -> Tensor:
        return made.model(pixels).logits

    with torch.no_grad():
        target = int(run(x).argmax())
    none = torch.zeros(0)
    embeddings = made.model.get_submodule("vit.embeddings")
    return Twin(run, run, x.requires_grad_(), torch.zeros_like(x), none, none, none, embeddings, target)  # type: ignore[arg-type]


@cache
def twin(name: str, number: int) -> Twin:
    return picture_twin(PICTURES[number]) if name == "vit" else text_twin(name, TEXTS[number])


@cache
def explained(name: str, spec: str) -> list[Attribution]:
    """Two inputs of different lengths in one batch."""
    raws = PICTURES[:2] if name == "vit" else TEXTS[:2]
    return whence.explain(subject(name), raws, method=spec)


NAMES = ["bert", "gpt2", "vit"]
INPUTS = [(name, number) for name in NAMES for number in (0, 1)]


# --- Parity -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "number"), INPUTS)
def test_gradient_is_captums_saliency(name: str, number: int) -> None:
    plain = twin(name, number)
    signed = Saliency(plain.forward).attribute(plain.x, target=plain.target, abs=False)
    absolute = Saliency(plain.forward).attribute(plain.x, target=plain.target)
    norm = signed.square().sum(1 if name == "vit" else -1, keepdim=True).sqrt()
    for reduce, expected in {"sum": signed, "l1": absolute, "l2": norm}.items():
        a = explained(name, f"gradient(at='word', reduce={reduce!r})")[number]
        assert a.target.index == plain.target  # type: ignore[union-attr]
        close(a.scores, plain.of_feature(expected))


@pytest.mark.parametrize(("name", "number"), INPUTS)
def test_gradient_x_input_is_captums(name: str, number: int) -> None:
    plain = twin(name, number)
    expected = InputXGradient(plain.forward).attribute(plain.x, target=plain.target)
    close(explained(name, "gradient_x_input(at='word')")[number].scores, plain.of_feature(expected))


@pytest.mark.parametrize(("name", "number"), INPUTS)
def test_gradient_x_input_at_the_embeddings_is_captums_layer(name: str, number: int) -> None:
    plain = twin(name, number)
    layer = LayerGradientXActivation(plain.from_ids, plain.embeddings)
    expected = layer.attribute(plain.x if name == "vit" else plain.ids, target=plain.target)
    close(explained(name, "gradient_x_input")[number].scores, expected.sum(-1)[0].detach())


@pytest.mark.parametrize("steps", [3, 10])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("name", "number"), INPUTS)
def test_integrated_gradients_are_captums(name: str, number: int, rule: str, steps: int) -> None:
    plain, (method, total) = twin(name, number), RULES[rule]
    expected = IntegratedGradients(plain.forward).attribute(
        plain.x, plain.x0, target=plain.target, n_steps=steps, method=method
    )
    a = explained(name, f"integrated_gradients(steps={steps}, rule={rule!r})")[number]
    close(a.scores, plain.of_feature(expected) / total(steps))
    if name == "vit":
        close(a.details["pixels"], expected.sum(1)[0].detach() / total(steps))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_integrated_gradients_are_captums_layer(name: str) -> None:
    plain = twin(name, 0)
    layer = LayerIntegratedGradients(plain.from_ids, plain.word)
    expected, delta = layer.attribute(
        plain.ids, plain.ids0, target=plain.target, n_steps=12, return_convergence_delta=True
    )
    a = explained(name, "integrated_gradients(steps=12)")[0]
    close(a.scores, expected.sum(-1)[0].detach())
    close(a.residual, -delta.item(), 5e-5)  # a difference of sums, which rounding reaches first


def test_captums_layer_of_all_embeddings_is_the_path_at_the_embeddings() -> None:
    plain = twin("bert", 0)
    layer = LayerIntegratedGradients(plain.from_ids, plain.embeddings)
    expected = layer.attribute(plain.ids, plain.ids0, target=plain.target, n_steps=6)
    a = explained("bert", "integrated_gradients(steps=6, at='embeddings')")[0]
    close(a.scores, expected.sum(-1)[0].detach())


# --- The adaptive mode ------------------------------------------------------------------------------------------------


def check_promise(a: Attribution, tolerance: float) -> bool:
    """Whether every row is as complete as promised; where one is not, the notes must say so."""
    scores, output, base = np.atleast_2d(a.scores), np.atleast_1d(a.output), np.atleast_1d(a.base)
    gap = output - base
    reached = np.abs(scores.sum(-1) - gap) <= tolerance * np.maximum(np.abs(gap), 0.1) + 1e-5 * np.abs(scores).sum(-1)
    told = any("completeness error is still above" in note for note in a.notes)
    assert reached.all() or told
    close(np.atleast_1d(a.residual), gap - scores.sum(-1))
    steps, errors = np.atleast_1d(a.details["steps"]), np.atleast_1d(a.details["completeness_error"])
    assert len(steps) == len(errors) == len(scores) and (told or (errors <= tolerance).all())
    assert told == bool((errors > tolerance).any())
    return not told


@pytest.mark.parametrize("name", ["bert", "vit", "llama", "t5", "clip"])
def test_the_adaptive_mode_reaches_its_tolerance_or_says_so(name: str) -> None:
    raw = {"source": "the house was warm", "output": "a ball"} if name == "t5" else family(name).inputs[1]
    reached = check_promise(whence.explain(subject(name), raw, method="integrated_gradients"), 0.01)
    assert reached or name == "t5"  # its rectifiers give the path many corners


def test_a_smaller_tolerance_takes_more_steps() -> None:
    steps = []
    for tolerance in (0.3, 0.01, 0.001):
        a = whence.explain(subject("llama"), TEXTS[1], method="integrated_gradients", tolerance=tolerance)
        assert check_promise(a, tolerance)
        steps.append(a.details["steps"])
    assert steps == sorted(steps) and steps[0] < steps[-1] < 1024


def test_every_example_takes_its_own_number_of_steps() -> None:
    together = whence.explain(subject("llama"), TEXTS[1:], method="integrated_gradients(tolerance=0.005)")
    assert len({a.details["steps"] for a in together}) > 1
    for a in together:
        alone = whence.explain(subject("llama"), a.input.raw, method="integrated_gradients(tolerance=0.005)")
        assert check_promise(a, 0.005) and a.details["steps"] == alone.details["steps"]
        close(a.scores, alone.scores)


def passes_of(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The batches that gradients are taken of at given states, and under True those of the plain inputs."""
    seen, run = list[Any](), Subject.run

    def watched(self: Subject, batch: Any, aim: Any, request: Any) -> Any:
        seen.append((request.plain, request.backward, batch))
        return run(self, batch, aim, request)

    monkeypatch.setattr(Subject, "run", watched)
    return seen


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_no_gradient_is_taken_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass that finds the prediction has the gradient at the input, and the path has f(x0)."""
    seen = passes_of(monkeypatch)
    found = whence.explain(subject(name), family(name).inputs[:2], "integrated_gradients")
    points = sum(int(np.sum(a.details["steps"])) for a in found)
    assert all(backward for _, backward, _ in seen) and sum(len(batch) for *_, batch in seen) == points
    assert sum(len(batch) for plain, _, batch in seen if plain) == sum(np.size(a.details["steps"]) for a in found)


def test_a_trace_that_lacks_the_gradient_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = passes_of(monkeypatch)
    alone = whence.explain(subject("bert"), TEXTS[0], "integrated_gradients")
    seen.clear()
    _, found = whence.compare(subject("bert"), TEXTS[0], ["attention", "integrated_gradients"])
    assert sum(plain for plain, *_ in seen) == 1 and found.details["steps"] == alone.details["steps"]
    close(found.scores, alone.scores)


def test_points_of_short_texts_are_not_padded_to_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = passes_of(monkeypatch)
    texts = [TEXTS[0], " ".join(TEXTS[:2])]
    whence.explain(subject("bert"), texts, "integrated_gradients", batch_size=2)
    batches = [batch for plain, _, batch in seen if not plain]
    assert all(bool(batch.mask.any(0).all()) for batch in batches)
    assert len({batch.mask.shape[1] for batch in batches}) == 2


def test_a_spline_is_exact_for_cubics_at_uneven_places() -> None:
    places = np.array([0, 0.1, 0.15, 0.5, 1])
    for power in range(5):
        exact = np.diff(places ** (power + 1)) / (power + 1)
        found = spline_shares(places) @ places**power
        assert (np.abs(found - exact).max() < 1e-12) == (power < 4)
    np.testing.assert_allclose(spline_shares(np.array([0, 0.5, 1])).sum(0), np.array([1, 4, 1]) / 6)  # Simpson's rule


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_half_precision_is_not_followed_into_its_rounding(name: str) -> None:
    """Where f itself is rounded to more than the tolerance, some hundred halvings would change nothing."""
    made = fresh(name)
    made.model.to(torch.bfloat16)
    found = whence.explain(whence.wrap(made.model, made.processor, **made.kwargs), made.inputs, "integrated_gradients")
    assert max(a.details["steps"] for a in found) < 100
    notes = [note for a in found for note in a.notes if "completeness" in note]
    assert notes and all("the model computes in bfloat16" in note for note in notes)


def test_long_inputs_go_through_in_fewer_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join(TEXTS[:2])
    expected = whence.explain(subject("bert"), text, "integrated_gradients(steps=12)")
    rows, gradient = [], Subject.gradient

    def watched(self: Subject, batch: Any, *rest: Any) -> Any:
        rows.append(len(batch))
        return gradient(self, batch, *rest)

    monkeypatch.setattr(Subject, "gradient", watched)
    monkeypatch.setattr("whence.methods.gradient.MAX_TOKENS", 3 * len(expected.features) + 1)
    close(whence.explain(subject("bert"), text, "integrated_gradients(steps=12)").scores, expected.scores)
    assert rows == [3] * 4


# --- Known answers ----------------------------------------------------------------------------------------------------


class Formula(nn.Module):
    """Word embeddings (word, 4), and a formula of them that gives one output."""

    def __init__(self, formula: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.word = nn.Embedding(8, 4)
        self.formula = formula
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.word.weight.copy_(torch.randn(8, 4, generator=generator))

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.formula(self.word(input_ids))[:, None]

    def states(self, ids: list[int]) -> np.ndarray:
        """(token, width)"""
        return self.word.weight[ids].detach().numpy()


def numbers(raw: list[int] | tuple[int, ...]) -> dict[str, Any]:
    return {"tensors": {"input_ids": np.array(raw)}, "features": {"text": [str(number) for number in raw]}}


def path(module: Formula, ids: tuple[int, ...], **options: Any) -> Attribution:
    made = whence.wrap(module, encode=numbers, labels=["f"])
    return whence.explain(made, ids, method="integrated_gradients", **options)


WEIGHTS = torch.tensor([0.5, -1.0, 2.0, 0.25])


def linear(x: Tensor) -> Tensor:
    return (x * torch.arange(1.0, x.shape[1] + 1)[:, None] * WEIGHTS).sum((1, 2)) + 3.0


def quadratic(x: Tensor) -> Tensor:
    return (x.sum(1) * WEIGHTS).sum(-1).square() + (x[:, 0] * x[:, 1]).sum(-1) - linear(x)


def cubic(x: Tensor) -> Tensor:
    return (x.sum(1) * WEIGHTS).sum(-1) ** 3 / 10 + quadratic(x)


def smooth(x: Tensor) -> Tensor:
    return torch.tanh(x[:, 0] * x[:, 1]).sum(-1) + torch.exp(-(x - 0.5).square()).sum((1, 2))


def test_a_tolerance_out_of_reach_is_told() -> None:
    """The gradient does not see a jump; halving ends where the pieces are tiny, and the rest is exact."""
    module = Formula(lambda x: x.sum((1, 2)) + (x.sum((1, 2)) > 1).to(x))
    ids = (1, 3, 5)
    assert module.states(list(ids)).sum() > 1.5
    a = path(module, ids, baseline="zero")
    assert not check_promise(a, 0.01) and a.details["steps"] < 64
    close(a.scores, module.states(list(ids)).sum(-1))


def test_gradients_are_taken_where_the_target_bends() -> None:
    """A rise within a hundredth of the path, between the first places where it is met; even steps need far more."""
    module = Formula(lambda x: torch.tanh(300 * (x.sum((1, 2)) - 1)))
    ids = (1, 3, 5)
    a = path(module, ids, baseline="zero")
    assert check_promise(a, 0.01) and a.details["steps"] < 80
    even = path(module, ids, baseline="zero", steps=int(a.details["steps"]))
    assert even.details["completeness_error"] > 0.01


@pytest.mark.parametrize("rule", ["gausslegendre", "midpoint", "left", "right"])
def test_one_step_is_exact_on_a_linear_model(rule: str) -> None:
    module, baseline = Formula(linear), np.array([0.1, 0.2, 0.3, 0.4])
    a = path(module, (1, 5, 2), steps=1, rule=rule, baseline=baseline)
    expected = ((module.states([1, 5, 2]) - baseline) * WEIGHTS.numpy()).sum(-1) * [1, 2, 3]
    close(a.scores, expected, 1e-6)
    assert abs(a.residual) < 1e-5
    plain = whence.explain(whence.wrap(module, encode=numbers), (1, 5, 2), method="gradient_x_input", at="word")
    close(path(module, (1, 5, 2), steps=1, rule=rule, baseline="zero").scores, plain.scores, 1e-6)


@pytest.mark.parametrize(
    ("formula", "rule", "steps", "exact"),
    [
        (quadratic, "midpoint", 1, True),
        (quadratic, "gausslegendre", 1, True),
        (quadratic, "trapezoid", 2, True),
        (quadratic, "left", 1, False),
        (quadratic, "right", 4, False),
        (cubic, "gausslegendre", 2, True),
        (cubic, "midpoint", 2, False),
        (cubic, "trapezoid", 3, False),
    ],
)
def test_a_rule_is_exact_up_to_its_degree(formula: Any, rule: str, steps: int, exact: bool) -> None:
    a = path(Formula(formula), (1, 5, 2), steps=steps, rule=rule, baseline="zero")
    assert (abs(a.residual) < 1e-5 * np.abs(a.scores).sum()) == exact
    true = path(Formula(formula), (1, 5, 2), steps=20, baseline="zero")
    assert (np.abs(a.scores - true.scores).max() < 1e-5 * np.abs(true.scores).sum()) == exact


def test_a_quadratic_model_is_known_in_closed_form() -> None:
    """f = (sum of w x)^2 from zero: each feature gets its share of the sum, times the sum."""
    module = Formula(lambda x: (x.sum(1) * WEIGHTS).sum(-1).square())
    shares = (module.states([1, 5, 2]) * WEIGHTS.numpy()).sum(-1)
    close(path(module, (1, 5, 2), steps=1, rule="midpoint", baseline="zero").scores, shares * shares.sum())


@pytest.mark.parametrize(
    ("rule", "mirrored"),
    [("gausslegendre",) * 2, ("midpoint",) * 2, ("trapezoid",) * 2, ("left", "right"), ("right", "left")],
)
def test_input_and_baseline_swap_roles(rule: str, mirrored: str) -> None:
    module = Formula(smooth)
    one, two = (1, 5, 2), (3, 4, 6)
    there = path(module, one, steps=5, rule=rule, baseline=module.states([*two]))
    back = path(module, two, steps=5, rule=mirrored, baseline=module.states([*one]))
    close(there.scores, -back.scores)
    close([there.output, there.base, there.residual], [back.base, back.output, -back.residual])
    assert np.abs(there.scores).min() > 0.01


def test_symmetric_features_get_the_same_score() -> None:
    module = Formula(lambda x: torch.tanh(x.sum(1)).sum(-1) + torch.sin(x.prod(1)).sum(-1))
    a = path(module, (1, 4, 1, 6), steps=5, baseline="zero")
    close(a.scores[0], a.scores[2])
    assert len(set(a.scores.round(5))) == 3


def test_a_feature_that_is_not_read_or_not_changed_gets_nothing() -> None:
    unread = path(Formula(lambda x: torch.tanh(x[:, 0] * x[:, 2]).sum(-1)), (1, 5, 2), steps=5, baseline="zero")
    assert unread.scores[1] == 0 and unread.scores[0] != 0
    module = Formula(smooth)
    unchanged = path(module, (1, 5, 2), steps=5, baseline=module.states([3, 5, 6]))
    assert unchanged.scores[1] == 0 and unchanged.scores[0] != 0


# --- Baselines --------------------------------------------------------------------------------------------------------


def bert_value(target: int, **inputs: Tensor) -> float:
    with torch.no_grad():
        return family("bert").model(**inputs).logits[0, target].item()


@pytest.mark.parametrize("at", ["word", "embeddings"])
@pytest.mark.parametrize(("baseline", "token"), [("pad", "[PAD]"), ("mask", "[MASK]"), ("unknown", "[UNK]")])
def test_a_token_baseline_is_the_text_of_that_token(baseline: str, token: str, at: Any) -> None:
    a = whence.explain(subject("bert"), TEXTS[0], "integrated_gradients(steps=2)", "positive", baseline=baseline, at=at)
    ids = torch.from_numpy(a.input.tensors["input_ids"])[None]
    kept = torch.from_numpy(a.special)
    replaced = ids.masked_fill(~kept, family("bert").processor.convert_tokens_to_ids(token))
    close(a.base, bert_value(2, input_ids=replaced))
    close(a.output, bert_value(2, input_ids=ids))
    assert (a.scores[a.special] == 0).all() and (a.scores[~a.special] != 0).all()


def test_baselines_of_zero_arrays_and_functions() -> None:
    def mean(states: Tensor) -> Tensor:
        return states.mean(1, keepdim=True)

    def in_place(states: Tensor) -> Tensor:
        return states.zero_()

    item = subject("bert").encode(TEXTS[0])
    words = family("bert").model.get_input_embeddings()(torch.from_numpy(item.tensors["input_ids"])).detach()  # type: ignore[operator]
    full = np.random.default_rng(0).normal(size=tuple(words.shape))
    cases: list[tuple[Any, Tensor]] = [
        ("zero", torch.zeros_like(words)),
        (np.zeros(32), torch.zeros_like(words)),
        (np.full(1, 0.5), torch.full_like(words, 0.5)),
        (full, torch.from_numpy(full).float()),
        (mean, words.mean(0).expand_as(words)),
        (torch.zeros_like, torch.zeros_like(words)),
        (in_place, torch.zeros_like(words)),
    ]
    for baseline, states in cases:
        a = whence.explain(subject("bert"), TEXTS[0], "integrated_gradients(steps=3)", 2, baseline=baseline)
        kept = torch.from_numpy(a.special)[:, None]
        close(a.base, bert_value(2, inputs_embeds=torch.where(kept, words, states)[None]))
        close(a.output, bert_value(2, inputs_embeds=words[None]))
        assert (a.scores[a.special] == 0).all() and a.scores[~a.special].all()


@pytest.mark.parametrize(("name", "token"), [("bert", "pad"), ("gpt2", "unknown"), ("llama", "unknown"), ("t5", "pad")])
def test_the_default_baseline_is_the_first_token_that_stands_for_nothing(name: str, token: str) -> None:
    raw = family(name).inputs[0]
    default = whence.explain(subject(name), raw, method="integrated_gradients(steps=2)")
    asked = whence.explain(subject(name), raw, method="integrated_gradients(steps=2)", baseline=token)
    assert np.array_equal(default.scores, asked.scores) and np.array_equal(default.base, asked.base)


def test_the_default_baseline_of_a_picture_is_the_mean_colour() -> None:
    a = whence.explain(subject("vit"), PICTURES[0], "integrated_gradients(steps=2)", 1)
    with torch.no_grad():
        expected = family("vit").model(torch.zeros(1, 3, 32, 32)).logits[0, 1]
    close(a.base, expected.item())


@pytest.mark.parametrize("name", ["bert", "roberta", "llama", "t5", "vit", "clip"])
def test_special_tokens_score_nothing(name: str) -> None:
    a = whence.explain(subject(name), family(name).inputs[1], method="integrated_gradients(steps=3)")
    assert a.special.any() and (a.scores[..., a.special] == 0).all()
    assert (a.scores[a.visible & ~a.special] != 0).mean() > 0.9
