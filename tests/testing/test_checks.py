"""The checks of `whence.testing` over every method and family, and the deliberately wrong methods they must catch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import whence
from families import FAMILIES, family, fresh, plain_logits, subject_of
from whence import api
from whence.core import registry
from whence.core.registry import Explained
from whence.model.batching import Batch
from whence.model.subject import Subject
from whence.model.targets import Aim
from whence.testing import Report, check_method, checks

Method = Callable[..., Any]

# Eight points are too few for completeness, which the adaptive default is for; it is checked by itself below.
SPECS = {
    "integrated_gradients": "integrated_gradients(steps=8)",
    "path_gradients": "path_gradients(points=2, steps=4)",
    "shap": "shap(max_evals=30)",
    "lime": "lime(samples=20)",
    "rise": "rise(samples=20)",
}
# These look at the method more than at the model, so one family of each kind is enough for them: read at a token or
# pooled, padded or not, generated or not, one stream or two, and one (ViLT) that draws random numbers itself.
OF_THE_METHOD = {"repeatable", "seeded", "ordered", "shared", "residual", "saved", "cannot_matter"}
THOROUGH = ["bert", "vit", "beit", "gpt2", "bart", "clip", "vilt", "torch-multihead"]
# A window shares its drop with a neighbour that cannot matter, and a regression is never exactly 0.
SMEARED = {"occlusion", "lime"}
# Methods of pictures have nothing to say of the text that the check of `cannot_matter` explains.
PICTURED = {record.name for record in whence.list_methods() if record.family == "vision"}
WITHOUT_PICTURE = ["torch-encoder", "torch-multihead", "torch-sdpa", "from-scratch", "lxmert", "visual-bert"]
# What these models do to their states is not followed; the sentence that says so names what to use instead.
DECOMPOSITIONS = {"value_norms", "residual_norms", "globenc", "alti", "decompx"}
REFUSED = {
    "llama-classifier": {"transformer_attribution"},  # has norms without a mean, written out
    # projects heads by an einsum, and keeps its states with tokens first
    "xlnet": DECOMPOSITIONS - {"decompx"} | {"transformer_attribution"},
    "torch-multihead": DECOMPOSITIONS - {"value_norms", "decompx"}
    | {"value_zeroing"},  # adds its residual outside of any module
    "torch-sdpa": DECOMPOSITIONS - {"decompx"} | {"value_zeroing"},  # no output projection, no module for a layer
    "gpt-oss": {"decompx"},  # its experts are not followed
    "lxmert": DECOMPOSITIONS,
    "visual-bert": DECOMPOSITIONS,
}
# Relevance is divided by small sums here, which makes 1e-4 of rounding in single precision and 1e-14 in double.
DOUBLE = {("distilbert-answerer", "transformer_attribution")}
CONTINUED = ["a masterful film", {"prompt": "two dogs are playing", "continuation": " with a ball"}]
TRANSLATED = [
    {"source": "the house was warm", "output": "it was warm"},
    {"source": "they walked along the river", "output": "the lights appeared"},
]


def inputs_of(name: str) -> list[Any]:
    """Two raw inputs of different length and form: single and pair, without and with a continuation or output."""
    made = family(name)
    return {"causal-lm": CONTINUED, "seq2seq-lm": TRANSLATED}.get(made.task, [made.inputs[1], made.inputs[3]])


def in_double(name: str) -> whence.Subject:
    """A subject of a family's model in double precision."""
    made = fresh(name)
    return whence.wrap(made.model.double(), made.processor, **made.kwargs)


# ---- every method on every family ------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", whence.list_methods(), ids=lambda record: record.name)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_method_on_every_family(name: str, record: registry.Record) -> None:
    subject, inputs = in_double(name) if (name, record.name) in DOUBLE else subject_of(name), inputs_of(name)
    spec = SPECS.get(record.name, record.name)
    anywhere = record.family in ("gradient", "perturbation", "baseline", "vision") or record.name in ("lrp", "attnlrp")
    windows = family(name).windows and not anywhere
    refused = record.name in (PICTURED if name in WITHOUT_PICTURE else set()) | REFUSED.get(name, set())
    if windows or refused or subject.task not in record.tasks:
        sentence = "attends within windows" if windows else "; .*use " if refused else "works on"
        with pytest.raises(ValueError, match=sentence) as error:
            whence.explain(subject, inputs, method=spec)
        assert "\n" not in str(error.value)
        report = check_method(spec, subject, inputs)
        assert report.passed == ("given_back",) and str(error.value) in report.failed["well_formed"]
        return
    left_out = {"complete"} if spec != record.name else set()
    left_out |= {"cannot_matter"} if record.name in SMEARED | PICTURED else set()
    left_out |= OF_THE_METHOD if name not in THOROUGH else set()
    names = [check.name for check in checks(spec) if check.name not in left_out]
    report = check_method(spec, subject, inputs, only=names)
    report.raise_for_failures()
    assert {*report.passed, *report.skipped} == set(names)
    assert set(report.skipped) <= {"seeded"}


@pytest.mark.parametrize("name", ["bert", "albert", "vit", "gpt2", "gemma2", "bart", "clip", "torch-encoder"])
def test_integrated_gradients_are_complete_by_default(name: str) -> None:
    report = check_method("integrated_gradients", subject_of(name), inputs_of(name), only=["complete", "residual"])
    report.raise_for_failures()
    assert report.passed == ("residual", "complete")


def test_a_jump_on_the_path_is_told() -> None:
    # experts are chosen by rank, so f jumps along the path, and no number of steps makes its gradients sum to f
    report = check_method("integrated_gradients", subject_of("gpt-oss"), ["a film"], only=["complete"])
    assert "is not in the scores" in report.failed["complete"]
    found = whence.explain(subject_of("gpt-oss"), "a film", method="integrated_gradients")
    assert any("still above" in note for note in found.notes)


OPTIONS = [
    ("bert", "gradient(reduce='sum', at='word')"),
    ("bert", "gradient_x_input(at=-1)"),
    ("distilbert", "attention(layer=0, heads=0)"),
    ("gpt2", "attention(layer=[0, 1], heads='max')"),
    ("bart", "gradient(reduce='l1', at='word')"),
    ("vit", "gradient(at='pixels')"),
    ("vilt", "gradient_x_input(at='pixels')"),
    ("vilt", "grad_cam(of='attention', relu=False)"),
    ("swin", "grad_cam(layer=1)"),
    ("vit", "score_cam(weights='increase', mask='blur', score='target', layer=0)"),
    ("clip", "gradient_x_input(at='word')"),
]


@pytest.mark.parametrize(("name", "spec"), OPTIONS)
def test_options(name: str, spec: str) -> None:
    check_method(spec, subject_of(name), inputs_of(name)).raise_for_failures()


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_outputs_that_the_model_generates(name: str) -> None:
    check_method("gradient_x_input", subject_of(name), ["the house was warm", "a masterful film"]).raise_for_failures()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", ["attention", "gradient_x_input"])
def test_precisions(dtype: torch.dtype, spec: str) -> None:
    made = fresh("bert")
    check_method(spec, whence.wrap(made.model.to(dtype), made.processor), inputs_of("bert")).raise_for_failures()


@pytest.mark.parametrize("name", ["bert", "modernbert", "llama-classifier", "gpt2", "qwen3", "gemma3", "t5", "bart"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_tokenizer_that_pads_on_either_side(name: str, side: str) -> None:
    made = fresh(name)
    made.processor.padding_side = side
    subject = whence.wrap(made.model, made.processor)
    check_method("gradient_x_input", subject, inputs_of(name), only=["among_others", "output"]).raise_for_failures()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_output_is_the_plain_models(name: str) -> None:
    made = family(name)
    for raw, a in zip(made.inputs, whence.explain(subject_of(name), made.inputs, method="random"), strict=True):
        rows = plain_logits(made, raw).flatten(0, -2)
        if made.task == "question-answering":
            context = a.input.decides
            best = max(rows[i, 0] + rows[j, 1] for i in context for j in context if i <= j)
        else:
            best = rows[a.target.position if a.input.decides else -1].max()  # of text to come, the first token
        assert np.atleast_1d(a.output)[0] == pytest.approx(best.item(), abs=1e-5)


# ---- broken twins ----------------------------------------------------------------------------------------------------


def right(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Gradient times input, with nothing wrong: what the broken twins spoil."""
    trace = subject.trace(batch, target, ("gradient:embeddings",))
    by_stream = {s: (trace.states["embeddings"][s] * g).sum(-1) for s, g in trace.gradients["embeddings"].items()}
    return subject.on_features(batch, by_stream)


def swapped_in_batches(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Features in reverse when there are several examples."""
    scores = right(subject, batch, target)
    return scores.flip(-1) if len(batch) > 1 else scores


def shifted_by_padding(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """The mean is taken over padding too."""
    scores = right(subject, batch, target)
    return scores - scores.mean(-1, keepdim=True)


def numbered(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """The place in the batch scales the scores."""
    return right(subject, batch, target) * torch.arange(1, len(batch) + 1)[:, None]


def mixed_examples(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """The mean over the examples of a batch is taken off and put on again, once too often."""
    scores = right(subject, batch, target)
    return scores + 0.01 * (scores - scores.mean(0))


def leaves_a_hook(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """A hook that is never removed."""
    next(subject.model.children()).register_forward_hook(lambda *_: None)
    return right(subject, batch, target)


def leaves_training_on(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Train mode, which `lent` would put right without a word."""
    scores = right(subject, batch, target)
    subject.model.train()
    return scores


def leaves_weights_changed(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Weights moved behind the version counter's back."""
    scores = right(subject, batch, target)
    next(subject.model.parameters()).data.mul_(1.01)
    return scores


def raises_with_a_hook_left(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """An error before the hook is removed."""
    next(subject.model.children()).register_forward_hook(lambda *_: None)
    raise RuntimeError("in the middle")


def draws_from_the_global_state(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Noise from torch's global generator."""
    scores = right(subject, batch, target)
    return scores + 1e-3 * torch.rand_like(scores)


def draws_from_nowhere(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Noise that no seed repeats."""
    scores = right(subject, batch, target)
    return scores + 1e-3 * float(np.random.default_rng().random())


def ignores_the_seed(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Noise from a generator of its own seed."""
    return right(subject, batch, target) * float(np.random.default_rng(7).random())


def not_a_number(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """0 / 0."""
    scores = right(subject, batch, target)
    return scores / scores.masked_fill(batch.special, 0.0) * scores


def one_feature_short(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """The first token is dropped."""
    return right(subject, batch, target)[:, 1:]


def transposed(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Features first."""
    return right(subject, batch, target).T


def not_complete(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Gradient times input, which does not sum to the output."""
    return right(subject, batch, target)


def not_signed(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Absolute values under the name of signed ones."""
    return right(subject, batch, target).abs()


def other_target(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Whatever is asked for, the first class is explained."""
    subject.values(batch, target)
    return right(subject, batch.chosen(range(len(batch))), subject.aim([0] * len(batch)))


def other_prediction(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """An open target is fixed to something else than the prediction."""
    target.fix(-subject.logits(batch), batch)
    return right(subject, batch, target)


def spoils_the_pass(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """The recorded gradients are changed in place."""
    scores = right(subject, batch, target)
    for gradient in subject.trace(batch, target, ("gradient:embeddings",)).gradients["embeddings"].values():
        gradient.mul_(0.5)
    return scores


def backwards(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Every example's features in reverse, padding apart."""
    scores = right(subject, batch, target)
    for row, mask in zip(scores, batch.mask, strict=True):
        row[mask] = row[mask].flip(0)
    return scores


def columns_for_rows(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """Attention paid to the deciding token instead of attention paid by it."""
    return registry.find("method", "attention").function(subject, batch, target, read="column")


def nothing_at_all(subject: Subject, batch: Batch, target: Aim) -> Tensor:
    """All scores 0."""
    return 0 * right(subject, batch, target)


def cannot_be_saved(subject: Subject, batch: Batch, target: Aim) -> Explained:
    """A detail that no file can hold."""
    return Explained(right(subject, batch, target), details={"model": [object()] * len(batch)})


SIGNED: dict[str, Any] = {"family": "test", "needs": ("gradient:embeddings",)}
UNSIGNED = {**SIGNED, "signed": False}
TWINS: list[tuple[Method, dict[str, Any], str]] = [
    (swapped_in_batches, SIGNED, "batched"),
    (numbered, SIGNED, "batched"),
    (shifted_by_padding, SIGNED, "among_others"),
    (mixed_examples, SIGNED, "among_others"),
    (mixed_examples, SIGNED, "zero_target"),
    (numbered, SIGNED, "ordered"),
    (leaves_a_hook, SIGNED, "given_back"),
    (leaves_training_on, SIGNED, "given_back"),
    (leaves_weights_changed, SIGNED, "given_back"),
    (raises_with_a_hook_left, SIGNED, "given_back"),
    (draws_from_the_global_state, SIGNED, "repeatable"),
    (draws_from_nowhere, SIGNED, "repeatable"),
    (ignores_the_seed, SIGNED, "seeded"),
    (not_a_number, SIGNED, "well_formed"),
    (one_feature_short, SIGNED, "well_formed"),
    (transposed, SIGNED, "well_formed"),
    (not_complete, {**SIGNED, "complete": True}, "complete"),
    (not_signed, SIGNED, "negated"),
    (other_target, SIGNED, "negated"),
    (other_target, UNSIGNED, "zero_target"),
    (other_prediction, SIGNED, "output"),
    (spoils_the_pass, SIGNED, "shared"),
    (backwards, SIGNED, "cannot_matter"),
    (columns_for_rows, {**UNSIGNED, "needs": ("attention", "deciding")}, "cannot_matter"),
    (nothing_at_all, SIGNED, "cannot_matter"),
    (cannot_be_saved, SIGNED, "saved"),
]
# Two inputs of one length and a longer one, so that order, place and padding can all go wrong.
TEXTS = ["the plot was slow", "the house was cold", "the actors were wonderful , but the ending was disappointing"]


@pytest.fixture
def registered() -> Iterator[Callable[..., str]]:
    """Registers a method for one test."""
    names: list[str] = []

    def register(function: Method, **promises: Any) -> str:
        whence.method(**promises)(function)
        names.append(function.__name__)
        return function.__name__

    yield register
    for name in names:
        registry.unregister("method", name)


@pytest.mark.parametrize(("function", "promises", "name"), TWINS, ids=lambda x: getattr(x, "__name__", None))
def test_a_broken_twin_is_caught(
    registered: Callable[..., str], function: Method, promises: dict[str, Any], name: str
) -> None:
    made = fresh("bert")  # some of these spoil it
    report = check_method(registered(function, **promises), whence.wrap(made.model, made.processor), TEXTS)
    assert name in report.failed, str(report)
    assert "\n" not in report.failed[name]


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "vit", "torch-multihead"])
def test_a_users_own_method_passes(registered: Callable[..., str], name: str) -> None:
    report = check_method(registered(right, **SIGNED), subject_of(name), inputs_of(name))
    report.raise_for_failures()
    assert report.method == "right" and set(report.skipped) == {"seeded", "complete"}


def test_a_method_for_other_tasks_is_refused(registered: Callable[..., str]) -> None:
    report = check_method(registered(right, **SIGNED, tasks=("causal-lm",)), subject_of("bert"), TEXTS)
    assert report.passed == ("given_back",) and "right works on causal-lm models" in report.failed["well_formed"]
    assert set(report.skipped.values()) == {"not run, since well_formed failed"}


def test_a_model_that_behaves_otherwise_when_recorded_is_caught() -> None:
    made = fresh("torch-sdpa")
    made.model.head.register_forward_hook(lambda module, args, out: out + 1e-4 * torch.is_grad_enabled())
    subject = whence.wrap(made.model, made.processor, **made.kwargs)
    report = check_method("gradient_x_input", subject, TEXTS)
    assert "differs from the model's own path by 0.0001 in its logits" in report.failed["plain_forward"]


def test_a_residual_that_does_not_add_up_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    explain = api.explain

    def off(*args: Any, **options: Any) -> Any:
        return [replace(a, residual=a.residual + 0.01) for a in explain(*args, **options)]

    monkeypatch.setattr(api, "explain", off)
    report = check_method("gradient_x_input", subject_of("bert"), TEXTS, only=["residual"])
    assert "is stored, but output - base - sum is" in report.failed["residual"]


def test_a_score_of_what_was_not_seen_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    explain = api.explain

    def peeking(*args: Any, **options: Any) -> Any:
        return [replace(a, scores=a.scores + 1) for a in explain(*args, **options)]

    monkeypatch.setattr(api, "explain", peeking)
    report = check_method("gradient_x_input", subject_of("gpt2"), CONTINUED, only=["well_formed"])
    assert "scores of what was not seen" in report.failed["well_formed"]


# ---- the report ------------------------------------------------------------------------------------------------------


def test_promises_choose_the_checks() -> None:
    names = {spec: {check.name for check in checks(spec)} for spec in ("attention", "gradient", "integrated_gradients")}
    assert names["integrated_gradients"] - names["gradient"] == {"complete", "negated"}
    assert names["gradient"] - names["attention"] == {"zero_target"}
    assert all(check.summary.endswith(".") and "\n" not in check.summary for check in checks("random"))


def test_report_reads_well() -> None:
    report = check_method("random", subject_of("bert"), TEXTS)
    assert str(report).splitlines()[0] == (
        f"random on BertForSequenceClassification: {len(report.passed)} passed, 0 failed, {len(report.skipped)} skipped"
    )
    assert "  skipped  negated: the method has no sign" in str(report)
    report.raise_for_failures()
    bad = Report("mine", "a model", (), {"finite": "3 scores are not finite"}, {})
    with pytest.raises(AssertionError, match="failed   finite: 3 scores are not finite\n  passed   none"):
        bad.raise_for_failures()


def test_one_input_is_enough_for_most() -> None:
    report = check_method("gradient_x_input", subject_of("bert"), TEXTS[:1])
    report.raise_for_failures()
    assert {"among_others", "ordered"} <= set(report.skipped)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="unknown check 'orderd'; did you mean 'ordered'"):
        check_method("random", subject_of("bert"), TEXTS, only=["orderd"])
    with pytest.raises(ValueError, match="takes a list of raw inputs"):
        check_method("random", subject_of("bert"), "a masterful film")
    with pytest.raises(ValueError, match="unknown method 'randon'"):
        check_method("randon", subject_of("bert"), TEXTS)
