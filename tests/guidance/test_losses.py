"""Losses: their gradients by finite differences, their formulas by hand, and what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import whence
from families import fresh, kept_in
from whence.core import registry
from whence.guidance import Objective, TrainingPass, attributions, losses, training_pass
from whence.model.training_pass import NEEDS

SPECS = (
    "rationale",
    "rationale(layers=[0, -1], heads=[0], read='received', distance='cross_entropy')",
    "rationale(distance='mass', layers=None, each=True)",
    "rationale(away=True)",
    "entropy",
    "entropy(sharper=False, rows='deciding', layers=[0])",
    "disagreement",
    "disagreement(of='positions')",
    "disagreement(of='subspaces', layers=[-1])",
    "right_reasons",
    "right_reasons(forbidden='marked', of='label')",
    "attribution_prior",
    "attribution_prior(method='gae', distance='kl')",
    "attribution_prior(method='gradient_x_input', away=True)",
    "stay_close",
    "stay_close(distance='tvd')",
)
# Kinds of models: pictures, decoders, with grouped queries too, encoder-decoder, pictures with text, a plain module.
ELSEWHERE = ("rationale(read='received')", "entropy", "disagreement", "right_reasons", "attribution_prior")
KINDS = ("vit", "gpt2-classifier", "llama-classifier", "bart", "clip", "torch-multihead")


class Bench:
    """A small model in float64, a batch of it, and what losses compare with."""

    def __init__(self, name: str) -> None:
        made = fresh(name)
        made.model.double()
        self.subject = whence.wrap(made.model, made.processor, **made.kwargs)
        items = [self.subject.encode(raw) for raw in made.inputs[:2]]
        items = [rows[-1][0] if (rows := self.subject.rows(item)) else item for item in items]  # before the last token
        _, self.batch = next(self.subject.batches(items))
        random = torch.Generator().manual_seed(0)
        words = ~self.batch.special
        marks = words & (torch.rand(words.shape, generator=random) < 0.4)
        marks[:, int(words[0].int().argmax())] = True
        self.known: dict[str, Any] = {
            "labels": torch.zeros(len(self.batch), dtype=torch.long),
            "marks": marks,
            "base": torch.randn(self.subject.logits(self.batch).shape, generator=random, dtype=torch.float64),
        }
        self.parameters = [p for p in made.model.parameters() if p.requires_grad]
        self.directions = [torch.randn(p.shape, generator=random, dtype=p.dtype) for p in self.parameters]

    def value(self, spec: str) -> Tensor:
        record, options = registry.resolve("loss", spec)
        with kept_in(torch.float64):
            return record.function(training_pass(self.subject, self.batch, NEEDS, **self.known), **options)

    def shift(self, by: float) -> None:
        with torch.no_grad():
            for parameter, direction in zip(self.parameters, self.directions, strict=True):
                parameter += by * direction

    def slopes(self, spec: str) -> tuple[float, float]:
        """The derivative along a random direction of all parameters: by the graph, and by finite differences."""
        loss = self.value(spec)
        grads = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        by_graph = sum((g * d).sum().item() for g, d in zip(grads, self.directions, strict=True) if g is not None)
        step = 1e-6
        self.shift(step)
        above = self.value(spec).item()
        self.shift(-2 * step)
        below = self.value(spec).item()
        self.shift(step)
        return by_graph, (above - below) / (2 * step)


@pytest.fixture(scope="module")
def encoder() -> Bench:
    return Bench("bert")


@pytest.mark.parametrize("spec", SPECS)
def test_gradients_are_those_of_finite_differences(encoder: Bench, spec: str) -> None:
    by_graph, by_differences = encoder.slopes(spec)
    assert by_graph != 0
    assert by_graph == pytest.approx(by_differences, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("name", KINDS)
def test_losses_of_other_kinds_of_models(name: str) -> None:
    bench = Bench(name)
    for spec in ELSEWHERE:
        by_graph, by_differences = bench.slopes(spec)
        assert by_graph == pytest.approx(by_differences, rel=1e-3, abs=1e-7), spec


def test_a_loss_with_one_detach_too_many_is_caught(encoder: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = attributions.attention
    monkeypatch.setattr(attributions, "attention", lambda *given, **options: plain(*given, **options).detach() * 1.0)
    with pytest.raises(RuntimeError, match="does not require grad"):
        encoder.slopes("rationale")
    squares = attributions.squared_gradient
    monkeypatch.setattr(TrainingPass, "embedding_gradients", _detached(TrainingPass.embedding_gradients))
    assert squares is attributions.squared_gradient
    loss = encoder.value("right_reasons")
    assert not loss.requires_grad


def _detached(function: Any) -> Any:
    return lambda *given: {stream: grad.detach() for stream, grad in function(*given).items()}


def test_formulas_by_hand(encoder: Bench) -> None:
    """The rationale loss, the entropy and the likeness of heads, written out with loops over one example."""
    with kept_in(torch.float64):
        seen = training_pass(encoder.subject, encoder.batch, NEEDS, **encoder.known)
    last = seen.attention[-1].weights.mean(1)[:, 0]  # (batch, key): of [CLS], mean over heads
    expected = []
    for row in range(len(seen.batch)):
        words = [i for i in range(last.shape[1]) if not bool(seen.batch.special[row, i])]
        total = sum(last[row, i].item() for i in words)
        marked = [i for i in words if bool(encoder.known["marks"][row, i])]
        expected.append(
            sum((1 / len(marked)) * math.log((1 / len(marked)) / (last[row, i].item() / total)) for i in marked)
        )
    assert losses.rationale(seen).item() == pytest.approx(sum(expected) / len(expected))
    entropies = []
    likeness = []
    for record in seen.attention:
        own, alike = [], [[] for _ in range(len(seen.batch))]
        outputs = record.outputs[0][1](record.outputs[0][0])
        for row in range(len(seen.batch)):
            real = int(seen.batch.mask[row].sum())
            for query in range(real):
                weights = record.weights[row, :, query, :real].tolist()
                own += [-sum(w * math.log(w) for w in head) / math.log(real) for head in weights]
                heads = outputs[row, :, query]
                cosines = [torch.cosine_similarity(a, b, dim=0).item() for a in heads for b in heads]
                alike[row].append(sum(cosines) / len(cosines))
        entropies.append(sum(own) / len(own))
        likeness.append(sum(sum(one) / len(one) for one in alike) / len(alike))
    assert losses.entropy(seen).item() == pytest.approx(sum(entropies) / len(entropies))
    assert losses.disagreement(seen).item() == pytest.approx(sum(likeness) / len(likeness))


def test_more_formulas_by_hand(encoder: Bench) -> None:
    """The distances of `rationale`, products of rows and cosines of values, and distances of outputs, by loops."""
    with kept_in(torch.float64):
        seen = training_pass(encoder.subject, encoder.batch, NEEDS, **encoder.known)
    last = seen.attention[-1].weights.mean(1)[:, 0]
    expected: dict[str, list[float]] = {"cross_entropy": [], "mass": [], "away": [], "kl": [], "tvd": []}
    for row in range(len(seen.batch)):
        words = [i for i in range(last.shape[1]) if not bool(seen.batch.special[row, i])]
        marked = [i for i in words if bool(encoder.known["marks"][row, i])]
        share = {i: last[row, i].item() / sum(last[row, j].item() for j in words) for i in words}
        expected["cross_entropy"].append(-sum(math.log(share[i]) / len(marked) for i in marked))
        expected["mass"].append(-math.log(sum(share[i] for i in marked)))
        expected["away"].append(-math.log(sum(share[i] for i in words if i not in marked)))
        before, now = (one[row].softmax(-1).tolist() for one in (encoder.known["base"], seen.logits))
        expected["kl"].append(sum(p * math.log(p / q) for p, q in zip(before, now, strict=True)))
        expected["tvd"].append(sum(abs(p - q) for p, q in zip(before, now, strict=True)) / 2)
    found = {
        "cross_entropy": losses.rationale(seen, distance="cross_entropy"),
        "mass": losses.rationale(seen, distance="mass"),
        "away": losses.rationale(seen, away=True),
        "kl": losses.stay_close(seen),
        "tvd": losses.stay_close(seen, distance="tvd"),
    }
    for name, values in expected.items():
        assert found[name].item() == pytest.approx(sum(values) / len(values)), name
    assert losses.disagreement(seen, of="positions").item() == pytest.approx(_likeness(seen, "positions"))
    assert losses.disagreement(seen, of="subspaces").item() == pytest.approx(_likeness(seen, "subspaces"))


def _likeness(seen: TrainingPass, of: str) -> float:
    """1/H^2 sum_ij of A_i . A_j at every query, or of cos(V_i, V_j) at every token: Li et al. 2018."""
    by_example = []
    for row in range(len(seen.batch)):
        values = []
        for record in seen.attention:
            for token in range(int(seen.batch.mask[row].sum())):
                heads = record.weights[row, :, token] if of == "positions" else record.values[row, :, token]
                sizes = [1.0 if of == "positions" else head.norm().item() for head in heads]
                pairs = [
                    (heads[i] @ heads[j]).item() / (sizes[i] * sizes[j])
                    for i in range(len(heads))
                    for j in range(len(heads))
                ]
                values.append(sum(pairs) / len(heads) ** 2)
        by_example.append(sum(values) / len(values))
    return sum(by_example) / len(by_example)


@pytest.mark.parametrize("of", ["all", "label"])
def test_right_reasons_is_the_formula_of_its_paper(encoder: Bench, of: Literal["all", "label"]) -> None:
    """sum_d (A_d d/dx_d sum_k log p_k)^2, Ross et al. 2017, with x the state that enters the blocks."""
    model, states = encoder.subject.model, []
    hook = model.bert.embeddings.register_forward_hook(lambda *call: states.append(call[-1]))
    try:
        with kept_in(torch.float64):
            seen = training_pass(encoder.subject, encoder.batch, NEEDS, **encoder.known)
            states.clear()
            chances = model(**encoder.batch.tensors).logits.log_softmax(-1)
    finally:
        hook.remove()
    total = []
    for row in range(len(seen.batch)):
        value = chances[row].sum() if of == "all" else chances[row, int(encoder.known["labels"][row])]
        gradient = torch.autograd.grad(value, states[0], retain_graph=True)[0][row]
        wrong = [
            i for i in range(len(gradient)) if not seen.batch.special[row, i] and not encoder.known["marks"][row, i]
        ]
        total.append(sum(float(number) ** 2 for i in wrong for number in gradient[i]))
    assert losses.right_reasons(seen, of=of).item() == pytest.approx(sum(total) / len(total))


def test_an_example_without_a_rationale_counts_for_nothing(encoder: Bench) -> None:
    both = encoder.value("rationale")
    alone = encoder.known["marks"].clone()
    alone[1] = False
    known = encoder.known | {"marks": alone}
    with kept_in(torch.float64):
        seen = training_pass(encoder.subject, encoder.batch, NEEDS, **known)
        first = losses.rationale(seen)
    assert first.item() != pytest.approx(both.item())
    assert losses.rationale(_none_marked(seen)).item() == 0.0


def _none_marked(seen: TrainingPass) -> TrainingPass:
    assert seen.marks is not None
    seen.marks = torch.zeros_like(seen.marks)
    return seen


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        (["entropy", "entropy(sharper=False)"], "contradict each other: one makes attention weights sharper"),
        (["rationale", "rationale(away=True)"], "contradict each other: one pulls towards the marked words"),
        (["rationale", "right_reasons(forbidden='marked')"], "contradict each other"),
        (["entropy(layers=[0])", "entropy(sharper=False, layers=[-2])"], "contradict"),
        (["rationale", "rationale(weight=2)"], "are the same; give it once"),
        (["rational"], "unknown loss 'rational'; did you mean 'rationale'"),
        (["rationale(layer=[0])"], "rationale has no option 'layer'"),
        (["rationale(weight=-1)"], "takes a number from 0 to 1,000,000"),
        ([], "losses is a list of at least one"),
        ("rationale", "losses is a list of at least one, such as \\['rationale'\\]"),
    ],
)
def test_losses_that_cannot_be(specs: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        Objective(specs)
    assert "\n" not in str(raised.value)


def test_losses_of_different_layers_do_not_contradict() -> None:
    objective = Objective(["entropy(layers=[0])", "entropy(sharper=False, layers=[1], weight=0.5)"])
    assert objective.weights == (1.0, 0.5)
    assert objective.specs[1] == "entropy(sharper=False, layers=[1], weight=0.5)"


def test_layers_and_heads_out_of_range(encoder: Bench) -> None:
    for spec, said in (
        ("rationale(layers=[99])", "layer 99 is out of range"),
        ("rationale(heads=[99])", "head 99 is"),
        ("entropy(heads=[-99])", "head -99 is"),
    ):
        with pytest.raises(ValueError, match=said):
            encoder.value(spec)


def test_one_head_cannot_disagree(encoder: Bench) -> None:
    with kept_in(torch.float64):
        seen = training_pass(encoder.subject, encoder.batch, NEEDS)
    alone = [replace(record, parts=[part[:, :1] for part in record.parts]) for record in seen.attention]
    assert losses.disagreement(seen).item() < 1
    seen.attention = alone
    with pytest.raises(ValueError, match="this model has one head per layer"):
        losses.disagreement(seen)


def test_rows_that_the_output_does_not_read_have_no_entropy(encoder: Bench) -> None:
    with kept_in(torch.float64):
        seen = training_pass(encoder.subject, encoder.batch, NEEDS)
    seen.deciding = {}
    with pytest.raises(ValueError, match="the output reads no token of the attention"):
        losses.entropy(seen, rows="deciding")


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"labels": torch.zeros(1, dtype=torch.long)}, r"labels has the shape \(1,\), and the batch has 2 inputs"),
        ({"labels": torch.tensor([0, 7])}, "a label is the number of a class, from 0 to 2, not 7"),
        ({"marks": torch.ones(2, 3)}, r"marks has the shape \(2, 3\)"),
        ({"marked": torch.ones(3)}, r"marked has the shape \(3,\)"),
        ({"base": torch.zeros(1, 3)}, r"base has the shape \(1, 3\), and the batch"),
        ({"base": torch.zeros(2, 7)}, r"base has the shape \(2, 7\), and the logits have \(2, 3\)"),
    ],
)
def test_what_losses_compare_with_is_of_the_same_batch(encoder: Bench, known: dict[str, Tensor], said: str) -> None:
    """One label for two inputs would be broadcast to a number that looks right."""
    with kept_in(torch.float64), pytest.raises(ValueError, match=said):
        training_pass(encoder.subject, encoder.batch, NEEDS, **known)


def test_every_loss_has_a_paper_and_a_weight() -> None:
    found = whence.list_losses()
    assert {record.name for record in found} >= {"rationale", "entropy", "disagreement", "right_reasons", "stay_close"}
    for record in found:
        assert record.paper and "weight" in record.options and record.bibtex
