"""Models whose forward changes themselves come back as they were, and get the answer of a model that does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import whence
from families import bert_tokenizer, fresh, plain_inputs
from whence.model.loan import difference, fingerprint

METHODS = ["gradient_x_input", "gae", "leave_one_out", "lrp"]


class Habit(nn.Module):
    """A classifier that does something to itself whenever it runs."""

    def __init__(self, inner: nn.Module, habit: str) -> None:
        super().__init__()
        self.inner, self.habit, self.config = inner, habit, inner.config
        self.last: Tensor | None = None
        self.cache: dict[Any, Tensor] = {"first": torch.zeros(1)}
        self.seen: list[Tensor] = []
        self.register_buffer("count", torch.zeros(1))
        self.spare = nn.Linear(2, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        logits = self.inner(input_ids=input_ids, attention_mask=attention_mask).logits
        if self.habit == "keeps its logits":
            self.last = logits
        elif self.habit == "keeps more than it had":
            self.more = logits
        elif self.habit == "forgets":
            self.__dict__.pop("habitual", None)
            self.cache.clear()
        elif self.habit == "fills a dict":
            self.cache[tuple(input_ids.shape)] = self.cache["first"] = logits
        elif self.habit == "fills a list":
            self.seen.append(logits)
        elif self.habit == "counts in a buffer":
            self.count += 1
            logits = logits + 0.0 * self.count
        elif self.habit == "resizes a buffer":
            self.count = torch.zeros(input_ids.shape[1])
        elif self.habit == "exchanges a module":
            self.spare = nn.Identity()
        elif self.habit == "shrinks a weight through .data":
            self.spare.weight.data.mul_(0.5)
        elif self.habit == "assigns .data":
            self.spare.weight.data = self.spare.weight.data * 0.5
        elif self.habit == "changes a weight in place":
            with torch.no_grad():
                self.spare.weight[0].mul_(0.5)
        return logits + 0.0 * self.spare(logits[:, :2]).sum() if isinstance(self.spare, nn.Linear) else logits


HABITS = [
    "keeps its logits", "keeps more than it had", "forgets", "fills a dict", "fills a list", "counts in a buffer",
    "resizes a buffer", "exchanges a module", "shrinks a weight through .data", "assigns .data",
    "changes a weight in place",
]  # fmt: skip


def wrapped(model: nn.Module, processor: Any) -> whence.Subject:
    return whence.wrap(model, processor, task="text-classification", labels=["a", "b", "c"])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_changes_neither_the_model_nor_the_answer(habit: str, method: str) -> None:
    made, plain = fresh("bert"), fresh("bert")
    model = Habit(made.model, habit).eval()
    before = fingerprint(model, full=True)
    subject = wrapped(model, made.processor)
    found = [whence.explain(subject, raw, method) for raw in made.inputs[:2]]  # twice: the second call knows the habit
    assert not difference(before, fingerprint(model, full=True))
    expected = whence.explain(wrapped(plain.model, plain.processor), plain.inputs[:2], method, batch_size=1)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-6)


def test_a_habit_that_shows_only_later_is_undone_too() -> None:
    """A long text after a short one: the first call did not tell what the second does."""

    class Late(Habit):
        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            self.habit = "fills a dict" if input_ids.shape[1] > 8 else ""
            return super().forward(input_ids, attention_mask)

    made = fresh("bert")
    model = Late(made.model, "").eval()
    before = fingerprint(model, full=True)
    subject = wrapped(model, made.processor)
    for raw in ("a film", "a very long and good film about the sea and the sun and more"):
        assert whence.explain(subject, raw, "gradient_x_input").scores.any()
    assert not difference(before, fingerprint(model, full=True))


@pytest.mark.parametrize("method", METHODS)
def test_an_embedding_that_bounds_its_norms(method: str) -> None:
    """Each look-up shrinks rows of the table in place: the answer is that of a model whose table is shrunk already."""
    made, plain = fresh("bert"), fresh("bert")
    words = made.model.get_submodule("bert.embeddings.word_embeddings")
    words.max_norm = 1.0
    plain_words: Any = plain.model.get_submodule("bert.embeddings.word_embeddings")
    plain_words.weight.data = torch.renorm(plain_words.weight.data, 2, 0, 1.0)
    before = fingerprint(made.model, full=True)
    found = whence.explain(whence.wrap(made.model, made.processor), made.inputs[:2], method, batch_size=1)
    assert not difference(before, fingerprint(made.model, full=True))
    expected = whence.explain(whence.wrap(plain.model, plain.processor), plain.inputs[:2], method, batch_size=1)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)
        assert np.abs(b.scores).max() > 1e-3


def test_gradients_are_those_of_the_weights_that_the_pass_used() -> None:
    """A constraint that halves a weight in every call, before the weight is used: scores follow the halved weight."""
    made, plain = fresh("bert"), fresh("bert")
    dense: Any = made.model.get_submodule("bert.encoder.layer.0.output.dense")

    def constrain(module: Any, args: Any) -> None:
        module.weight.data.mul_(0.5)

    dense.register_forward_pre_hook(constrain)
    plain_dense: Any = plain.model.get_submodule("bert.encoder.layer.0.output.dense")
    plain_dense.weight.data.mul_(0.5)
    before = fingerprint(made.model, full=True)
    for raw in made.inputs[:2]:
        a = whence.explain(whence.wrap(made.model, made.processor), raw, "gradient_x_input")
        b = whence.explain(whence.wrap(plain.model, plain.processor), raw, "gradient_x_input")
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-6)
    assert not difference(before, fingerprint(made.model, full=True))


def test_a_weight_that_is_changed_through_data_later_is_told() -> None:
    """The first call does not show the habit, so it cannot be undone; the loan notices it all the same."""
    made = fresh("bert")
    model = Habit(made.model, "").eval()
    subject = wrapped(model, made.processor)
    whence.explain(subject, made.inputs[0], "gradient_x_input")
    model.habit = "shrinks a weight through .data"
    with pytest.raises(RuntimeError, match="not given back as it was lent: the numbers of a parameter changed"):
        whence.explain(subject, made.inputs[0], "gradient_x_input")


def test_decoding_undoes_changes_too() -> None:
    made = fresh("t5")
    model: Any = made.model
    model.register_buffer("count", torch.zeros(1))
    model.register_forward_hook(lambda module, args, output: module.count.add_(1) and None)
    before = fingerprint(model, full=True)
    a = whence.explain(whence.wrap(model, made.processor), "a good film", "gradient_x_input")
    assert a.scores.any() and not difference(before, fingerprint(model, full=True))


@pytest.mark.parametrize("method", [*METHODS, "value_zeroing"])
def test_big_bird_switches_its_attention_and_comes_back(method: str, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    tokenizer = bert_tokenizer()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = hf.BigBirdConfig(vocab_size=len(tokenizer), block_size=8, num_random_blocks=1, num_labels=3, **sizes)
    model = hf.BigBirdForSequenceClassification(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(4)
    before = fingerprint(model, full=True)
    a = whence.explain(whence.wrap(model, tokenizer), "a good film", method, 1)
    assert not difference(before, fingerprint(model, full=True)) and config.attention_type == "block_sparse"
    full = hf.BigBirdForSequenceClassification(
        hf.BigBirdConfig(**{**config.to_dict(), "attention_type": "original_full"})
    )
    full.load_state_dict(model.state_dict())
    b = whence.explain(whence.wrap(full.eval(), tokenizer), "a good film", method, 1)
    np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)
    assert np.abs(b.scores).max() > 1e-3


def test_old_weight_norm() -> None:
    made = fresh("bert")
    with pytest.warns(FutureWarning, match="weight_norm"):
        nn.utils.weight_norm(made.model.get_submodule("bert.encoder.layer.0.intermediate.dense"))
    before = fingerprint(made.model, full=True)
    a = whence.explain(whence.wrap(made.model, made.processor), made.inputs[0], "gradient_x_input")
    assert not difference(before, fingerprint(made.model, full=True))
    plain = fresh("bert")
    b = whence.explain(whence.wrap(plain.model, plain.processor), plain.inputs[0], "gradient_x_input")
    np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
@pytest.mark.parametrize("training", [True, False])
def test_spectral_norm(norm: Any, training: bool) -> None:
    """In training mode every call takes a step of a power iteration in buffers; a loan runs in eval mode."""
    made = fresh("bert")
    dense = made.model.get_submodule("bert.encoder.layer.0.intermediate.dense")
    norm(dense)
    made.model.train(training)
    before = fingerprint(made.model, full=True)
    a = whence.explain(whence.wrap(made.model, made.processor), made.inputs[0], "gradient_x_input", 1)
    assert not difference(before, fingerprint(made.model, full=True))
    made.model.eval()
    plain = fresh("bert")
    plain_dense: Any = plain.model.get_submodule("bert.encoder.layer.0.intermediate.dense")
    dense(torch.zeros(1, dense.in_features))  # the old one computes its weight when it is called
    plain_dense.weight.data = dense.weight.detach().clone()
    b = whence.explain(whence.wrap(plain.model, plain.processor), plain.inputs[0], "gradient_x_input", 1)
    np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)


@pytest.mark.parametrize("habit", ["fills a dict", "counts in a buffer", "keeps more than it had", "assigns .data"])
def test_a_model_that_fails_comes_back_as_well(habit: str) -> None:
    made = fresh("bert")
    model = Habit(made.model, habit).eval()
    subject = wrapped(model, made.processor)
    for fails in (True, False, True):  # also in the first call, which observes
        before = fingerprint(model, full=True)
        handle = model.register_forward_hook(lambda m, a, out, fails=fails: 1 / 0 if fails else None)
        if fails:
            with pytest.raises(ZeroDivisionError):
                whence.explain(subject, made.inputs[0], "gradient_x_input")
        else:
            whence.explain(subject, made.inputs[0], "gradient_x_input")
        handle.remove()
        assert not difference(before, fingerprint(model, full=True))


def test_plain_inputs_reach_the_model_as_before() -> None:
    """The answer itself is the plain model's."""
    made = fresh("bert")
    subject = wrapped(Habit(made.model, "counts in a buffer").eval(), made.processor)
    a = whence.explain(subject, made.inputs[0], "gradient_x_input", 1)
    with torch.no_grad():
        assert a.output == pytest.approx(float(made.model(**plain_inputs(made, made.inputs[0])).logits[0, 1]), abs=1e-5)
