"""The engine for masked inputs: equal inputs run once for all askers and targets; edited attention is kept apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import whence
from families import family, subject_of
from whence.methods import explaining
from whence.model.masked_inputs import masked
from whence.model.masked_runs import Ask, MaskedRuns, engine_of
from whence.model.tap import AttentionRecord

TEXT = "the actors were quietly wonderful"


def leaving_one_out(item: whence.Input) -> np.ndarray:
    """(1 + feature, feature): everything, and everything but one feature that is not special."""
    free = np.flatnonzero(~item.special)
    keep = np.ones((1 + len(free), len(item.features)), bool)
    keep[np.arange(1, len(keep)), free] = False
    return keep


def without_head(record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The first head of the first layer attends to nothing."""
    if record.order == 0:
        weights = weights.clone()
        weights[:, 0] = 0.0
    return weights, values


def test_an_edit_of_attention_is_part_of_what_is_asked() -> None:
    subject = subject_of("bert")
    item = subject.encode(TEXT)
    plain, aim, asks = MaskedRuns(subject), subject.aim([1]), [Ask(leaving_one_out(item))]
    edited = plain.edited(without_head)
    before = plain.answers([item], asks, aim)[0]
    count = plain.run
    changed = edited.answers([item], asks, aim)[0]
    assert plain.run == edited.run == 2 * count  # nothing known of the plain model answers for the edited one
    assert np.abs(before.values - changed.values).max() > 1e-3
    batch = subject.batch(list(masked(subject, item, asks[0].keep)))
    np.testing.assert_allclose(changed.logits, subject.logits(batch, edit=without_head).numpy(), atol=1e-6)
    again, once_more = (engine.answers([item], asks, aim)[0] for engine in (plain, edited))
    assert plain.run == 2 * count and plain.asked == 4 * count
    np.testing.assert_array_equal(again.values, before.values)
    np.testing.assert_array_equal(once_more.values, changed.values)
    alone = MaskedRuns(subject, edit=without_head).values([item], asks, aim)[0]
    np.testing.assert_allclose(alone, changed.values, atol=1e-6)


def test_an_edit_is_part_of_what_is_asked_of_inputs_made_elsewhere() -> None:
    subject = subject_of("bert")
    item = subject.encode(TEXT)
    plain, aim, made = MaskedRuns(subject), subject.aim([1]), list(masked(subject, item, leaving_one_out(item)))
    before = plain.values([item], [made], aim)[0]
    changed = plain.edited(without_head).values([item], [made], aim)[0]
    assert plain.run == 2 * len(made) and np.abs(before - changed).max() > 1e-3


def test_edits_go_together_with_zeroed_embeddings() -> None:
    subject = subject_of("gpt2")
    item = subject.encode("the old man was")
    asks = [Ask(leaving_one_out(item), "zero")]
    plain, changed = (
        MaskedRuns(subject, edit=e).values([item], asks, subject.aim([5]))[0] for e in (None, without_head)
    )
    assert (np.abs(plain - changed) > 1e-5).all() and np.ptp(changed) > 1e-3


def test_one_input_with_many_targets_runs_once() -> None:
    subject = subject_of("bert")
    item = subject.encode(TEXT)
    engine, keep = MaskedRuns(subject), leaving_one_out(item)
    first = engine.values([item] * 2, [Ask(keep)] * 2, subject.aim([0, 1]))
    assert engine.run == len(keep) and engine.asked == 2 * len(keep)
    later = engine.answers([item], [Ask(keep)], subject.aim(["probability(2)"]))[0]
    assert engine.run == len(keep)  # logits that are known lead to other targets
    for index, values in enumerate(first):
        np.testing.assert_allclose(values, later.logits[:, index], rtol=1e-6)
    np.testing.assert_allclose(later.values, torch.tensor(later.logits).softmax(-1)[:, 2], rtol=1e-12)


def test_values_alone_are_kept_where_logits_are_not_asked_for() -> None:
    subject = subject_of("bert")
    item = subject.encode(TEXT)
    engine, keep = MaskedRuns(subject, keep_logits=False), leaving_one_out(item)
    aim = subject.aim([0])
    values = engine.values([item], [Ask(keep)], aim)[0]
    assert not engine._known.logits and len(engine._known.values) == len(keep)
    engine.values([item], [Ask(keep)], aim)
    assert engine.run == len(keep)
    answers = engine.answers([item], [Ask(keep)], aim)[0]  # logits are made once they are asked for
    assert engine.run == 2 * len(keep)
    np.testing.assert_allclose(answers.values, values, atol=1e-6)


@pytest.mark.parametrize("method", ["leave_one_out", "shap(max_evals=20)"])
def test_explaining_a_language_model_keeps_no_logits(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[MaskedRuns] = []
    monkeypatch.setattr(explaining, "MaskedRuns", lambda *a, **k: engines.append(MaskedRuns(*a, **k)) or engines[-1])
    whence.explain(subject_of("gpt2"), "the old man was", method)
    assert engines[0].run > 3 and not engines[0]._known.logits


def test_compared_methods_share_masked_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[MaskedRuns] = []
    monkeypatch.setattr(explaining, "MaskedRuns", lambda *a, **k: engines.append(MaskedRuns(*a, **k)) or engines[-1])
    one, other = whence.compare(subject_of("bert"), TEXT, ["leave_one_out", "occlusion(window=1)"])
    np.testing.assert_array_equal(one.scores, other.scores)
    assert len(engines) == 1 and engines[0].asked == 2 * engines[0].run


def test_a_method_that_is_called_alone_has_an_engine_of_its_own() -> None:
    subject = subject_of("bert")
    batch = subject.batch([subject.encode(TEXT)])
    assert engine_of(subject, batch) is not engine_of(subject, batch)
    batch.masked_runs = MaskedRuns(subject)
    assert engine_of(subject, batch) is batch.masked_runs


def test_a_function_sees_the_logits_and_the_batch_that_ran() -> None:
    subject, seen = subject_of("bert"), []

    def of_batch(logits: Tensor, batch: Any) -> Tensor:
        seen.append((tuple(logits.shape), batch.tensors["input_ids"].shape[0]))
        assert logits.dtype == torch.float32  # what the model gives: a function may hold weights of its own
        return logits[:, 0] * 2 + batch.tensors["input_ids"].float().mean(1)

    items = [subject.encode(text) for text in (TEXT, "a masterful film")]
    engine, asks = MaskedRuns(subject), [Ask(leaving_one_out(item)) for item in items]
    for _ in range(2):
        values = engine.values(items, asks, subject.aim([of_batch, of_batch]))
        assert engine.run == sum(len(ask.keep) for ask in asks)
    assert seen and all(shape[0] == rows for shape, rows in seen)
    mixed = engine.values([items[0]] * 2, [asks[0]] * 2, subject.aim([of_batch, 2]))
    np.testing.assert_array_equal(mixed[0], values[0])
    for item, ask, own in zip(items, asks, values, strict=True):
        ids = np.stack([v.tensors["input_ids"] for v in masked(subject, item, ask.keep)])
        with torch.no_grad():
            logits = family("bert").model(input_ids=torch.from_numpy(ids)).logits
        np.testing.assert_allclose(own, logits[:, 0].numpy() * 2 + ids.mean(1), rtol=1e-4)
