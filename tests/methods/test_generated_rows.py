"""Rows of generated text that share passes over the whole sequence equal those of their own beginnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from families import family, fresh, gpt2_tokenizer, subject_of
from passes import CAUSAL, ENCODER_DECODER, counted
from whence.core import registry
from whence.core.inputs import Input
from whence.core.results import Attribution
from whence.methods.explaining import Settings, explained
from whence.model import row_passes, shared_rows
from whence.model.target_specs import of_generated

CONTINUATIONS = (" the house was", " warm and")

# Every method, with few samples.
FEW = {
    "lime": "lime(samples=8)",
    "shap": "shap(max_evals=16)",
    "path_gradients": "path_gradients(points=2, steps=2)",
    "integrated_gradients": "integrated_gradients(steps=4)",
    "smoothgrad": "smoothgrad(samples=2)",
}
# Options that lead through other parts of a pass.
OPTIONS = (
    "integrated_gradients",
    "integrated_gradients(steps=3, at='embeddings')",
    "rollout(read='received_max')",
    "rollout(discard=0.3)",
    "attention(read='received')",
    "attention(scores=True)",
    "gradient(at=1)",
    "gradient(softplus=5.0)",
    "lrp(heads=True)",
    "lrp(epsilon=0.1)",
    "leave_one_out(mask='zero')",
    "leave_one_out(mask='delete')",
    "value_zeroing(layer=0)",
)
REFUSED = {"gpt-oss": "decompx"}  # mixed experts are not taken apart


def specs_of(name: str) -> list[str]:
    """All methods that work on a model of this family."""
    records = [record for record in registry.records("method") if family(name).task in record.tasks]
    return [FEW.get(record.name, record.name) for record in records if record.name != REFUSED.get(name)]


def inputs_of(name: str) -> list[dict[str, str]]:
    """Two inputs of different lengths, with the text that is explained."""
    made = family(name)
    parts = ("prompt", "continuation") if made.task == "causal-lm" else ("source", "output")
    return [dict(zip(parts, (raw, text), strict=True)) for raw, text in zip(made.inputs, CONTINUATIONS, strict=False)]


def own_rows(subject: whence.Subject, item: Input, specs: Sequence[str], target: Any = None) -> list[list[Attribution]]:
    """The slow twin, [method][row]: every row of an input by itself, from the text before it alone."""
    methods = [registry.resolve("method", spec) for spec in specs]
    found = []
    for row, token in subject.rows(item):
        found += explained(subject, [row], methods, [of_generated(subject, target, token)], Settings())
    return [list(by_row) for by_row in zip(*found, strict=True)]


def check_same(subject: whence.Subject, raws: list[Any], specs: Sequence[str], target: Any = None) -> None:
    """All rows of all inputs equal their slow twins, method by method."""
    items = [subject.encode(raw) for raw in raws]
    methods = [registry.resolve("method", spec) for spec in specs]
    together = explained(subject, items, methods, [target] * len(items), Settings())
    for item, by_method in zip(items, together, strict=True):
        for a, rows in zip(by_method, own_rows(subject, item, specs, target), strict=True):
            check_rows(a, rows)


def check_rows(a: Attribution, rows: list[Attribution], tolerance: float = 1e-5) -> None:
    """Every row of `a` is what its own beginning gives, and nothing stands behind it."""
    scale = max(float(np.abs(row.scores).max()) for row in rows)
    for number, row in enumerate(rows):
        seen = row.scores.shape[-1]
        np.testing.assert_allclose(a.scores[number, :seen], row.scores, rtol=0, atol=tolerance * scale)
        assert (
            not a.scores[number, seen:].any() and not a.visible[number, seen:].any() and a.visible[number, :seen].all()
        )
        assert a.target[number] == row.target
        for name in ("output", "base", "residual"):
            whole, own = getattr(a, name), getattr(row, name)
            assert (whole is None) == (own is None), name
            if own is not None:
                np.testing.assert_allclose(whole[number], own, rtol=1e-5, atol=1e-5 * max(1, scale) * seen)
        check_details(number, a, row)
    assert a.notes == tuple(dict.fromkeys(note for row in rows for note in row.notes))


def check_details(number: int, a: Attribution, row: Attribution) -> None:
    """The details of a row, too."""
    assert a.details.keys() == row.details.keys()
    for name, own in row.details.items():
        whole = a.details[name][number]
        if isinstance(own, (dict, str)):
            assert whole == own, name
        else:
            largest = max(1.0, float(np.abs(np.asarray(own, dtype=float)).max()))
            np.testing.assert_allclose(whole, own, rtol=1e-4, atol=1e-5 * largest, err_msg=name)


@pytest.mark.parametrize("name", [*CAUSAL, *ENCODER_DECODER])
def test_rows_of_one_pass_are_those_of_beginnings(name: str) -> None:
    subject = subject_of(name)
    raws = inputs_of(name)
    for raw in raws:
        rows = [row for row, _ in subject.rows(subject.encode(raw))]
        assert shared_rows.found_out(subject, rows[-1], rows[0]).alike
    check_same(subject, raws, specs_of(name))


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_rows_of_one_pass_are_those_of_beginnings_with_any_options(name: str) -> None:
    check_same(subject_of(name), inputs_of(name)[:1], OPTIONS)


def entropy(logits: Tensor, batch: Any) -> Tensor:
    """A function as a target."""
    p = logits.softmax(-1)
    return -(p * p.log()).sum(-1)


@pytest.mark.parametrize("target", ["log_probability", "margin", entropy, "mlp:0:3"])
def test_rows_of_any_kind_of_target(target: Any) -> None:
    """A function of logits shares passes; a state inside the model is read of every beginning by itself."""
    check_same(subject_of("llama"), inputs_of("llama")[:1], ("gradient_x_input", "leave_one_out", "gae"), target)


def test_one_forward_pass_serves_all_rows_and_many_inputs() -> None:
    subject = subject_of("gpt2")
    raws = inputs_of("gpt2")
    for spec, passes in (("gradient_x_input", 1), ("gae", 1), ("lrp", 2), ("alti", 2), ("decompx", 2)):
        whence.explain(subject, raws[0], spec)  # what is found out once
        item = subject.encode(raws[0])
        with counted() as tokens:
            whence.explain(subject, raws[0], spec)
        assert tokens == [len(item.features) - 1] * (passes if spec != "lrp" else len(tokens)), spec
    longest = max(len(subject.encode(raw).features) for raw in raws) - 1
    with counted() as tokens:
        whence.explain(subject, [raws[0], raws[0], raws[0]], "gae")
    assert sum(tokens) <= 3 * longest and len(tokens) <= 3


def test_rows_in_several_batches_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows go together as the caller says, or as attention leaves room for."""
    subject = subject_of("gpt2")
    raws = inputs_of("gpt2")
    items = [subject.encode(raw) for raw in raws]
    rows = [own_rows(subject, item, ["gae"])[0] for item in items]
    with monkeypatch.context() as patch, counted() as tokens:
        longest = max(len(item.features) for item in items) - 1
        patch.setattr(shared_rows, "ATTENTION_BYTES", 2 * 8 * longest**2 * 2 * subject.heads + 1)
        patch.setattr(shared_rows, "FEWEST", 1)
        for a, own in zip(whence.explain(subject, raws, "gae"), rows, strict=True):
            check_rows(a, own)
    assert len(tokens) > 2
    for size in (1, 2, 3):
        for a, own in zip(whence.explain(subject, raws, "gae", batch_size=size), rows, strict=True):
            check_rows(a, own)


def test_the_encoder_runs_once_for_all_rows() -> None:
    subject = subject_of("t5")
    raw = inputs_of("t5")[0]
    whence.explain(subject, raw, "gae")
    calls: list[int] = []
    handle = subject.model.get_encoder().register_forward_hook(lambda module, args, out: calls.append(len(out[0])))
    try:
        whence.explain(subject, raw, "gae")
    finally:
        handle.remove()
    assert calls == [1]


def test_leaving_one_out_costs_a_run_per_feature_and_not_per_row() -> None:
    subject = subject_of("llama")
    raw = inputs_of("llama")[0]
    item = subject.encode(raw)
    whence.explain(subject, raw, "leave_one_out")
    with counted() as tokens:
        whence.explain(subject, raw, "leave_one_out")
    length = len(item.features) - 1  # the last token is produced, and never read
    free = int((~item.special[:length]).sum())
    assert sum(tokens) <= (free + 2) * length  # each feature once, the text itself twice


# ---- broken twins ----------------------------------------------------------------------------------------------------


def test_a_row_that_is_read_one_token_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of("gpt2")
    raw = inputs_of("gpt2")[0]
    right = row_passes._reading

    def early(*given: Any) -> row_passes.Running:
        made = right(*given)
        assert made.batch.read_at is not None
        of, places = made.batch.read_at
        return replace(made, batch=replace(made.batch, read_at=(of, places - 1)))

    for spec in ("gradient_x_input", "gae", "decompx"):
        rows = own_rows(subject, subject.encode(raw), [spec])[0]
        check_rows(whence.explain(subject, raw, spec), rows)
        with monkeypatch.context() as patch, pytest.raises(AssertionError):
            patch.setattr(row_passes, "_reading", early)
            check_rows(whence.explain(subject, raw, spec), rows)


class Bidirectional(nn.Module):
    """A language model whose tokens see what follows them."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(words, 16), nn.Embedding(64, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, words)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, use_cache: bool = False) -> Tensor:
        states = self.word(input_ids) + self.position(torch.arange(input_ids.shape[1]))
        return self.head(self.encoder(states, src_key_padding_mask=attention_mask == 0))


@pytest.fixture
def bidirectional() -> whence.Subject:
    """A model whose beginnings are not read as the whole is."""
    tokenizer = gpt2_tokenizer()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Bidirectional(len(tokenizer)).eval()
    return whence.wrap(model, tokenizer, task="causal-lm")


def test_a_model_that_looks_ahead_is_not_shared(bidirectional: whence.Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = {"prompt": "the old man was singing", "continuation": " in the garden"}
    item = bidirectional.encode(raw)
    for spec in ("gradient_x_input", "leave_one_out", "gae"):
        rows = own_rows(bidirectional, item, [spec])[0]
        check_rows(whence.explain(bidirectional, raw, spec), rows)
        with monkeypatch.context() as patch, pytest.raises(AssertionError):
            patch.setattr(shared_rows, "found_out", lambda *given: shared_rows.Beginnings(True, True))
            check_rows(whence.explain(bidirectional, raw, spec), rows)


def test_positions_that_turn_with_the_length_are_not_shared() -> None:
    """Rotary angles that grow with the length of a text make the same beginning another one."""
    made = fresh("llama")
    rope = made.model.model.rotary_emb
    plain = type(rope).forward

    def longer(self: Any, x: Tensor, position_ids: Tensor, *more: Any, **named: Any) -> Any:
        return plain(self, x, position_ids * (2 if position_ids.shape[1] > 10 else 1), *more, **named)

    raw = {"prompt": "the old man was singing", "continuation": " in the garden and they walked"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(rope), "forward", longer)
        subject = whence.wrap(made.model, made.processor)
        item = subject.encode(raw)
        rows = [row for row, _ in subject.rows(item)]
        assert len(rows[0].features) <= 10 < len(rows[-1].features)
        assert not shared_rows.found_out(subject, rows[-1], rows[0]).alike
        check_same(subject, [raw], ("gradient_x_input", "leave_one_out"))


@pytest.mark.parametrize("spec", ["gradient_x_input", "leave_one_out", "value_zeroing"])
def test_a_fault_leaves_the_model_as_it_was(spec: str) -> None:
    made = fresh("gpt2")
    subject = whence.wrap(made.model, made.processor)
    raw = inputs_of("gpt2")[0]
    expected = whence.explain(subject, raw, spec)
    before = subject.fingerprint(full=True)
    calls: list[int] = []

    def fail(*given: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("a fault")

    module = made.model.transformer.h[1]
    handle = (
        module.register_full_backward_pre_hook(fail)
        if spec == "gradient_x_input"
        else module.register_forward_hook(fail)
    )
    try:
        with pytest.raises(RuntimeError, match="a fault"):
            whence.explain(subject, raw, spec)
    finally:
        handle.remove()
    assert subject.fingerprint(full=True) == before
    np.testing.assert_array_equal(whence.explain(subject, raw, spec).scores, expected.scores)
