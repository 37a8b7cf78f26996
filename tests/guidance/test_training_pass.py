"""A recorded pass in training keeps its graph, leaves the training as it is, and records what methods read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import whence
from families import fresh
from shortcuts import classifier, sentences
from whence.guidance import Objective, attributions, training_pass, watching
from whence.guidance.lessons import batch_marks, lessons_of
from whence.model.training_pass import NEEDS

KINDS = ("bert", "vit", "gpt2-classifier", "torch-multihead", "torch-sdpa")
LOSSES = [
    "rationale(weight=0)",
    "entropy(weight=0)",
    "disagreement(weight=0)",
    "right_reasons(weight=0)",
    "attribution_prior(weight=0)",
]


def subject_of(name: str) -> tuple[whence.Subject, list[Any]]:
    made = fresh(name)
    return whence.wrap(made.model, made.processor, **made.kwargs), made.inputs


@pytest.mark.parametrize("name", KINDS)
def test_attributions_in_training_are_those_of_the_methods(name: str) -> None:
    """In eval mode, each function of what a training pass saw gives the scores of the method of the same name."""
    subject, inputs = subject_of(name)
    group, batch = next(subject.batches([subject.encode(raw) for raw in inputs]))
    seen = training_pass(subject, batch, NEEDS)
    value = attributions.label_logit(seen)
    found = {
        "attention": attributions.attention(seen),
        "gae": attributions.gae(seen, value),
        "attention_x_gradient": attributions.attention_x_gradient(seen, value),
        "gradient_x_input": attributions.gradient_x_input(seen, value),
    }
    for method, scores in found.items():
        for row, number in enumerate(group):
            expected = whence.explain(subject, inputs[number], method).scores
            np.testing.assert_allclose(batch.unpadded(scores)[row], expected, rtol=2e-3, atol=2e-5, err_msg=method)


def trained_by_hand(watched: bool, steps: int = 4) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A few steps of AdamW with dropout, on the eager path; with the tap on and all weights 0 where it is `watched`."""
    subject = classifier(dropout=0.2)
    model = subject.model
    model.set_attn_implementation("eager")
    lessons = lessons_of(subject, sentences(8 * steps, 5, True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    objective = Objective(LOSSES)
    torch.manual_seed(3)
    model.train()
    for step in range(steps):
        own = lessons[8 * step : 8 * step + 8]
        batch = subject.batch([lesson.item for lesson in own])
        labels = torch.tensor([lesson.label for lesson in own])
        if watched:
            marks, marked = batch_marks(batch, own)
            with watching(subject, batch, objective.needs, labels=labels, marks=marks, marked=marked) as seen:
                outputs = model(**batch.tensors)
            loss = F.cross_entropy(outputs.logits, labels) + objective(seen)
        else:
            loss = F.cross_entropy(model(**batch.tensors).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()


def test_plain_training_is_bit_equal_under_the_tap_with_all_weights_0() -> None:
    state = torch.get_rng_state()
    (plain, drawn), (watched, drawn_too) = trained_by_hand(False), trained_by_hand(True)
    torch.set_rng_state(state)
    assert torch.equal(drawn, drawn_too)
    for name, value in plain.items():
        assert torch.equal(value, watched[name]), name


def test_weights_are_those_before_dropout() -> None:
    """Rows of attention sum to 1 in training mode; what dropout leaves of them does not."""
    subject = classifier(dropout=0.5)
    batch = subject.batch([subject.encode("the dog stood near a lovely house")])
    subject.model.train()
    seen = training_pass(subject, batch)
    for record in seen.attention:
        torch.testing.assert_close(record.weights.sum(-1), torch.ones_like(record.weights[..., 0]))
        assert record.weights.requires_grad
    assert subject.model.training


@pytest.mark.parametrize("name", ["torch-sdpa", "torch-multihead"])
def test_plain_modules_in_training_show_their_weights(name: str) -> None:
    subject, inputs = subject_of(name)
    subject.model.train()
    seen = training_pass(subject, subject.batch([subject.encode(inputs[0])]))
    for record in seen.attention:
        torch.testing.assert_close(record.weights.sum(-1), torch.ones_like(record.weights[..., 0]))


def test_gradients_in_training_go_through_the_dropped_weights() -> None:
    """The gradient by weights before dropout is 0 exactly where dropout struck them out."""
    subject = classifier(dropout=0.5)
    batch = subject.batch([subject.encode("the dog stood near a lovely house")])
    subject.model.train()
    seen = training_pass(subject, batch)
    last = seen.attention_gradients(attributions.label_logit(seen))[-1][:, :, 0]  # (batch, head, key) of [CLS]
    assert (last == 0).any() and (last != 0).any()


def test_a_scope_wants_one_call() -> None:
    subject = classifier()
    batch = subject.batch([subject.encode("the dog stood")])
    with pytest.raises(RuntimeError, match="called 0 times"), watching(subject, batch):
        pass
    with pytest.raises(ValueError, match="records attention, values, outputs, embeddings, not 'gradients'"):
        training_pass(subject, batch, ("gradients",))


def test_the_attention_path_and_hooks_are_given_back() -> None:
    subject = classifier()
    before = subject.fingerprint(full=True)
    training_pass(subject, subject.batch([subject.encode("the dog stood")]), NEEDS)
    assert subject.fingerprint(full=True) == before
