"""Where relevance leaks: the balance of every module against what is known of rules, norms, biases and operations."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import whence
from families import fresh, kept_in, plain_inputs
from whence.cli import app
from whence.core import registry
from whence.core.relevance_balance import ModuleRelevance
from whence.model.loan import difference, fingerprint
from whence.propagation.backward_rules import Conserving
from whence.propagation.operations import NORM
from whence.propagation.relevance_balance import balance

SINGLE, DOUBLE = torch.float32, torch.float64
KEPT = {SINGLE: 1e-5, DOUBLE: 1e-12}  # of the sum of |relevance| at a module


def unbiased(name: str, dtype: torch.dtype = SINGLE) -> Any:
    """A small random model without biases, as a Subject."""
    found = fresh(name)
    with torch.no_grad():
        for key, tensor in chain(found.model.named_parameters(), found.model.named_buffers()):
            if key.endswith("bias"):
                tensor.zero_()
    return whence.wrap(found.model.to(dtype), found.processor, **found.kwargs)


@cache
def kept(name: str, dtype: torch.dtype = SINGLE, method: str = "lrp") -> whence.Conservation:
    subject = unbiased(name, dtype)
    with kept_in(dtype):
        return whence.conservation(subject, fresh(name).inputs[0], method)


def leaky(rows: Any) -> list[ModuleRelevance]:
    return [row for row in rows if abs(row.own_leak) > 1e-4 * row.absolute]


# ---- what the rules conserve -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE], ids=str)
@pytest.mark.parametrize("name", ["bert", "vit", "llama", "t5"])
def test_lrp_conserves_at_every_module(name: str, dtype: torch.dtype) -> None:
    found = kept(name, dtype)
    assert len(found.rows) > 20 and not found.uncovered
    for row in found.rows:
        assert abs(row.leak) <= KEPT[dtype] * row.absolute, row
        assert abs(row.own_leak) <= KEPT[dtype] * row.absolute, row
        assert row.leak == row.relevance_out - row.relevance_in - row.bias


@pytest.mark.parametrize("name", ["bert", "vit", "llama"])
def test_without_biases_all_of_the_output_is_at_every_edge_of_a_block(name: str) -> None:
    found = kept(name, DOUBLE)
    blocks = {row.block: row for row in reversed(found.rows) if row.block}
    assert sorted(blocks) == ["0", "1"]
    for row in blocks.values():
        assert row.relevance_out == pytest.approx(found.output, rel=1e-9)
        assert row.relevance_in == pytest.approx(found.output, rel=1e-9)
    assert found.reached + found.bias == pytest.approx(found.output, rel=1e-9)
    assert (found.bias == 0) == (name == "llama")  # the others have position embeddings


def test_an_encoder_decoder_shares_relevance_between_its_streams() -> None:
    found = kept("t5", DOUBLE)
    first, last = (next(r for r in found.rows if r.block == block) for block in ("target 0", "target 1"))
    encoder = next(row for row in found.rows if row.name == "encoder")
    assert last.relevance_out == pytest.approx(found.output, rel=1e-9)
    assert abs(first.relevance_out - found.output) > 0.01 * abs(found.output)  # some went to the encoder above it
    words = [row.relevance_out for row in found.rows if row.kind == "Embedding"]
    assert sum(words) == pytest.approx(found.output, rel=1e-9)
    assert encoder.relevance_out == pytest.approx(encoder.relevance_in, rel=1e-9)
    assert "one generated token" in found.notes[-1]


@pytest.mark.parametrize(
    ("name", "rules", "kind", "operations"),
    [
        ("bert", "ah", "LayerNorm", {"layer_norm"}),
        ("vit", "ah", "LayerNorm", {"layer_norm"}),
        ("llama", "ah", "LlamaRMSNorm", {"mul", "pow", "rsqrt"}),
        ("t5", "ah", "T5LayerNorm", {"mul", "pow", "rsqrt"}),
        ("bert", "ln", "BertSelfAttention", {"matmul", "softmax"}),
        ("vit", "ln", "ViTAttention", {"matmul", "softmax"}),
        ("t5", "ln", "T5Attention", {"matmul", "softmax"}),
    ],
)
def test_a_rule_that_is_left_out_shows_where_it_would_be(
    name: str, rules: str, kind: str, operations: set[str]
) -> None:
    found = kept(name, SINGLE, f"lrp(rules='{rules}')")
    assert {row.kind for row in leaky(found.rows)} == {kind}
    assert set(found.uncovered) == operations
    assert {found[module].kind for modules in found.uncovered.values() for module in modules} == {kind}


def test_gradient_x_input_leaks_at_heads_norms_and_activations() -> None:
    found = kept("bert")
    assert {row.kind for row in leaky(found.plain)} >= {"LayerNorm", "BertSelfAttention", "GELUActivation"}
    assert not leaky(found.rows)
    alone = kept("bert", SINGLE, "gradient_x_input")
    assert alone.rows == found.plain and alone.plain == ()
    for row in alone.rows:  # what leaks has an operation without a rule, and linear layers do not leak
        assert row.uncovered or abs(row.own_leak) <= 1e-5 * row.absolute
        assert row.kind != "Linear" or not row.uncovered


def test_attnlrp_leaks_at_the_softmax_alone() -> None:
    found = kept("vit", SINGLE, "attnlrp")
    assert set(found.uncovered) == {"softmax"}
    assert {row.kind for row in leaky(found.rows)} == {"ViTAttention"}


# ---- norms -----------------------------------------------------------------------------------------------------------


def test_a_layer_norm_keeps_eps_by_eps_plus_variance() -> None:
    """sum_i x_i df/dx_i = eps / (eps + Var) u.y, from the plain model, its own hooks and plain autograd."""
    made = fresh("bert")
    model: Any = made.model.double()
    norms = {name: module for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    for module in norms.values():
        module.eps = 0.1  # else next to nothing is left
        nn.init.zeros_(module.bias)
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    handles = [
        module.register_forward_hook(lambda m, args, out, name=name: seen.update({name: (args[0], out)}))
        for name, module in norms.items()
    ]
    logits = model(**plain_inputs(made, made.inputs[0])).logits[0]
    for handle in handles:
        handle.remove()
    gradients = torch.autograd.grad(logits.max(), [out for _, out in seen.values()])
    found = whence.conservation(whence.wrap(model, made.processor), made.inputs[0], "gradient_x_input")
    for (name, (x, y)), u in zip(seen.items(), gradients, strict=True):
        total, variance = (u * y).sum(-1), x.var(-1, unbiased=False)
        row = found[name]
        assert row.relevance_out == pytest.approx(total.sum().item(), rel=1e-8, abs=1e-12)
        assert row.relevance_in == pytest.approx((0.1 / (0.1 + variance) * total).sum().item(), rel=1e-8, abs=1e-12)
        assert row.leak == pytest.approx((variance / (0.1 + variance) * total).sum().item(), rel=1e-8, abs=1e-12)
    assert len(seen) == 5


class OneNormMissed(Conserving):
    """The second norm is left to the gradient."""

    norms = 0

    def ruled(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.norms += func in NORM
        return func(*args, **kwargs) if func in NORM and self.norms == 2 else super().ruled(func, args, kwargs)


def test_one_norm_that_is_missed_is_found() -> None:
    subject = unbiased("bert")

    def broken(subject: Any, batch: Any, target: Any) -> None:
        subject.trace(batch, target, ("gradient:word",), rules=OneNormMissed())

    batch, aim = subject.batch([subject.encode(fresh("bert").inputs[0])]), subject.aim([None])
    rows = balance(subject, batch, aim, replace(registry.find("method", "lrp"), function=broken), {})
    assert [row.name for row in leaky(rows)] == ["bert.encoder.layer.0.attention.output.LayerNorm"]
    assert [row.name for row in rows if row.uncovered] == ["bert.encoder.layer.0.attention.output.LayerNorm"]


# ---- biases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [("bert", ""), ("bert", "gamma=0.25"), ("vit", ""), ("gpt2", "gamma=0.25"), ("bart", ""), ("torch-encoder", "")],
)
def test_biases_are_told_apart_from_leaks(name: str, options: str) -> None:
    made = fresh(name)
    subject, raw = whence.wrap(made.model.double(), made.processor, **made.kwargs), made.inputs[0]
    found = whence.conservation(subject, raw, f"lrp({options})")
    assert not found.uncovered
    for row in found.rows:
        assert abs(row.own_leak) <= 1e-6 * max(row.absolute, 1e-6), row
    assert abs(found.leak) <= 1e-6 * max(row.absolute for row in found.rows)
    assert abs(found.bias) > 0.01 * abs(found.output)
    at = "pixels" if name == "vit" else "word"
    a = whence.explain(subject, raw, f"lrp(at={at!r}{options and ', '}{options})")
    reached = a.scores[0].sum() if a.scores.ndim == 2 else a.scores.sum()
    assert found.reached == pytest.approx(reached, rel=1e-7)
    assert found.output - found.reached == pytest.approx(found.bias, rel=1e-6)


def test_the_bias_of_the_last_layer_is_its_entry_for_the_class() -> None:
    made = fresh("bert")
    model: Any = made.model
    found = whence.conservation(whence.wrap(model, made.processor), made.inputs[0], target="positive")
    assert found["classifier"].bias == pytest.approx(model.classifier.bias[2].item(), rel=1e-6)
    assert found["bert.encoder.layer.1.output"].bias == pytest.approx(
        sum(found[f"bert.encoder.layer.1.output.{part}"].bias for part in ("dense", "LayerNorm")), rel=1e-9
    )


# ---- the pass is the method's own ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("modernbert", "lrp"),
        ("modernbert", "gradient_x_input"),
        ("xlnet", "attnlrp"),
        ("albert", "lrp"),
        ("gemma3", "attnlrp"),
        ("t5", "gradient_x_input"),
        ("clip", "lrp"),
        ("lxmert", "lrp"),
        ("torch-multihead", "attnlrp"),
    ],
)
def test_what_arrives_is_what_the_method_scores(name: str, method: str) -> None:
    """Watching changes nothing, in models with gates, shared layers, other orders of axes, two streams."""
    made = fresh(name)
    subject = whence.wrap(made.model.double(), made.processor, **made.kwargs)
    found = whence.conservation(subject, made.inputs[0], method)
    a = whence.explain(subject, made.inputs[0], f"{method}(at='word')")
    scores = np.atleast_2d(a.scores)[0]
    assert abs(found.reached - scores.sum()) <= 2e-5 * np.abs(scores).sum()
    assert found.output == pytest.approx(np.atleast_1d(a.output)[0], rel=1e-5)
    assert found.rows[0].relevance_out == pytest.approx(found.output, rel=1e-5)


def test_every_call_of_a_shared_module_has_a_row() -> None:
    calls = [row.call for row in kept("albert").rows if row.kind == "AlbertLayer"]
    assert calls == [0, 1, 2]


# ---- operations ------------------------------------------------------------------------------------------------------


class Wave(nn.Module):
    """An operation that no rule knows; with a buffer, the module is not taken for an activation as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("speed", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(x * self.speed)


class Waves(nn.Module):
    """Words, a wave, a sum in place, and the mean over words; attention first, since rules want to see some."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.linear, self.head = nn.Linear(8, 8, bias=False), nn.Linear(8, 3, bias=False)
        self.wave = Wave()

    def forward(self, input: Tensor) -> Tensor:
        x = self.words(input)
        x = (x @ x.transpose(1, 2)).softmax(-1) @ x
        y = self.linear(x)
        y += x  # changes what the linear layer gave, after its books were closed
        return self.head(self.wave(y).mean(1))


def waves() -> tuple[Any, Waves]:
    torch.manual_seed(0)
    module = Waves().double()

    def encode(raw: str) -> dict[str, Any]:
        words = raw.split()
        return {"tensors": {"input": np.array([len(word) for word in words])}, "features": {"text": words}}

    return whence.wrap(module, encode=encode, labels=["a", "b", "c"]), module


def test_an_operation_without_a_rule_is_named_and_its_leak_is_measured() -> None:
    subject, module = waves()
    found = whence.conservation(subject, "a sine of something")
    assert found.uncovered == {"sin": ("wave",)}
    assert [row.name for row in leaky(found.rows)] == ["wave"]
    with torch.no_grad():
        x = module.words(torch.tensor([[1, 4, 2, 9]]))
        x = (x @ x.transpose(1, 2)).softmax(-1) @ x
        y = module.linear(x) + x
        logits = module.head(y.sin().mean(1))[0]
        u = module.head.weight[logits.argmax()] / 4
        given, handed = (y.sin() * u).sum().item(), (y * y.cos() * u).sum().item()
        through_linear = (module.linear(x) * y.cos() * u).sum().item()
    assert found["wave"].relevance_out == pytest.approx(given, rel=1e-9)
    assert found["wave"].relevance_in == pytest.approx(handed, rel=1e-9)
    assert found["linear"].relevance_out == pytest.approx(through_linear, rel=1e-9)
    assert found["linear"].relevance_in == pytest.approx(through_linear, rel=1e-9)


def test_a_target_that_is_no_logit_says_where_relevance_starts() -> None:
    subject, _ = waves()
    found = whence.conservation(subject, "a sine", target="probability('b')")
    assert "the target itself is not linear" in str(found)
    assert "the target itself" not in str(whence.conservation(subject, "a sine", target="b"))


# ---- the model is given back -----------------------------------------------------------------------------------------


def test_the_model_is_given_back_as_it_was() -> None:
    made = fresh("bert")
    made.model.train()
    before = fingerprint(made.model, full=True)
    whence.conservation(whence.wrap(made.model, made.processor), made.inputs[0])
    assert not difference(before, fingerprint(made.model, full=True))


def test_the_model_is_given_back_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    made = fresh("bert")
    subject, model = whence.wrap(made.model, made.processor), made.model
    plain = whence.explain(subject, made.inputs[0], "lrp")
    before = fingerprint(model, full=True)

    def fail(self: Any, value: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("whence.propagation.relevance_balance.RelevanceWatch.read", fail)
        with pytest.raises(ZeroDivisionError):
            whence.conservation(subject, made.inputs[0])
        assert torch._C._len_torch_function_stack() == 0
    assert not difference(before, fingerprint(model, full=True))
    assert whence.explain(subject, made.inputs[0], "lrp") == plain


@pytest.mark.parametrize("method", ["grad_sam", "gradient", "integrated_gradients", "leave_one_out"])
def test_other_methods_are_refused(method: str) -> None:
    subject = whence.wrap(fresh("bert").model, fresh("bert").processor)
    with pytest.raises(ValueError, match=f"in one backward pass, as lrp, .* and {method} does not"):
        whence.conservation(subject, "a film", method)


def test_a_generated_token_is_chosen_by_its_number() -> None:
    made = fresh("gpt2")
    subject = whence.wrap(made.model, made.processor)
    raw = {"prompt": "the old man", "continuation": " was singing"}
    a = whence.explain(subject, raw, "lrp")
    found = whence.conservation(subject, raw, token=1)
    assert found.output == pytest.approx(a.output[1], rel=1e-5)
    with pytest.raises(ValueError, match=f"token=99 names no generated token: there are {len(a.output)}"):
        whence.conservation(subject, raw, token=99)


# ---- views -----------------------------------------------------------------------------------------------------------


def test_it_is_saved_and_loaded_exactly(tmp_path: Path) -> None:
    found = kept("t5", SINGLE, "lrp(rules='ah')")
    found.save(tmp_path / "found.json")
    again = whence.Conservation.load(tmp_path / "found.json")
    assert again == found and str(again) == str(found) and again.uncovered == found.uncovered


def test_the_text_says_what_was_found() -> None:
    text = str(kept("bert"))
    assert "nothing: every operation is covered" in text and "the modules that leak" not in text
    lines = [line.split() for line in text.splitlines()]
    norms = next(line for line in lines if line and line[0] == "LayerNorm")
    assert norms[1] == "5" and float(norms[2]) < 0.01 < float(norms[3]) and norms[4] == "layer_norm"
    assert ["out", "of", "block", "1"] in [line[:4] for line in lines]
    missed = str(kept("bert", SINGLE, "lrp(rules='ah')"))
    assert "layer_norm (5 modules)" in missed and "bert.encoder.layer.1.output.LayerNorm" in missed
    with pytest.raises(KeyError, match="no module 'nothing' was called"):
        kept("bert")["nothing"]


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_the_figure_adds_up(name: str) -> None:
    """The bars of all blocks sum to what leaked and what biases took; the lines end at the input and at f(x)."""
    found = kept(name, SINGLE, "lrp(rules='ah')")
    totals, *leaks = found.plot().axes
    for axes, rows in zip(leaks, (found.rows, found.plain), strict=True):
        drawn = sum(bar.get_height() for bar in axes.patches)
        assert drawn == pytest.approx(rows[0].leak + rows[0].bias, rel=1e-2, abs=1e-4)
    ends = [(line.get_ydata()[0], line.get_ydata()[-1]) for line in totals.lines if len(line.get_xdata())]
    assert any(first == found.reached for first, _ in ends)
    assert any(last == found.output for _, last in ends)


def test_the_page_holds_every_call() -> None:
    page = kept("bert").to_html()
    assert page.count('class="name"') > len(kept("bert").rows)
    assert "gradient_x_input" in page and page.count("intermediate_act_fn") == 2


def test_the_command(tmp_path: Path) -> None:
    files = [tmp_path / f"found.{ending}" for ending in ("json", "html", "png")]
    saves = [part for path in files for part in ("--save", str(path))]
    run = CliRunner().invoke(
        app, ["conservation", "the wonderful garden", "-m", "planted", "--method", "lrp(rules='ln')", *saves]
    )
    assert run.exit_code == 0, run.output
    assert "no rule for" in run.stdout and "softmax" in run.stdout
    assert all(path.stat().st_size > 1000 for path in files)
    assert whence.Conservation.load(files[0]).method == "lrp(rules='ln')"
    wrong = CliRunner().invoke(app, ["conservation", "a garden", "-m", "planted", "--save", str(tmp_path / "a.doc")])
    assert wrong.exit_code == 2
