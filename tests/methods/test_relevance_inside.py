"""Relevance inside the model: of heads and neurons, beside rules by hand and plain autograd; and of pixels under gamma.

whence explains a padded batch; twins take one example at a time. A twin that makes a mistake must be far off.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typer.testing import CliRunner

import relevance_by_hand as hand
import whence
from families import fresh, kept_in, plain_inputs
from relevance_cases import CLOSE, DOUBLE, FAR, ROUNDED, SINGLE, distance, plain, spelled, subject, without_biases
from whence.cli import app
from whence.propagation.backward_rules import Conserving

NEURONS = {  # a module, and the step that it is in the network by hand: kind, number, and which of its sources
    "bert": ("bert.encoder.layer.0.intermediate", "act", 0, None),
    "vit": ("vit.layers.0.mlp.activation_fn", "act", 0, None),
    "llama": ("model.layers.0.mlp.up_proj", "gate", 0, 1),
}


def explained(name: str, dtype: torch.dtype, spec: str, **options: Any) -> list[whence.Attribution]:
    model, raws = subject(name, dtype), fresh(name).inputs[:3]
    with kept_in(dtype):
        found: list[whence.Attribution] = whence.explain(model, raws, spec, **options)
    return found


def inside(name: str, dtype: torch.dtype, method: str, options: dict[str, Any], what: str) -> list[np.ndarray]:
    """Heads or neurons of three inputs, as whence gives them."""
    asked = {"heads": True} if what == "heads" else {"neurons": NEURONS[name][0]}
    key = what if what == "heads" else f"neurons {NEURONS[name][0]}"
    return [a.details[key] for a in explained(name, dtype, spelled(method, options | asked))]


def by_hand(name: str, what: str, wrong: str = "", **rules: Any) -> list[np.ndarray]:
    """The relevance of each head's output, (layer, head), or of a layer's neurons, (token, width)."""
    found = []
    for net, target, _ in plain(name):
        logits = net.steps[-1].value
        R = net.propagate(F.one_hot(torch.tensor(target), len(logits)) * logits, hand.Lrp(wrong, **rules))
        if what == "heads":
            found.append(torch.stack([R[step].sum((1, 2)) for step in net.steps if step.kind == "mix"]).numpy())
            continue
        _, kind, number, source = NEURONS[name]
        step = [step for step in net.steps if step.kind == kind][number]
        found.append(R[step if source is None else step.sources[source]].numpy())
    return found


# ---- twins by hand ---------------------------------------------------------------------------------------------------


CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("lrp", {}, {}),
    ("lrp", {"rules": "ah"}, {"norms": False}),
    ("lrp", {"rules": "ln"}, {"weights": "free"}),
    ("lrp", {"epsilon": 0.1, "gamma": 0.5}, {"epsilon": 0.1, "gamma": 0.5}),
    ("attnlrp", {}, {"weights": "half"}),
    ("attnlrp", {"epsilon": 0.05}, {"weights": "half", "epsilon": 0.05}),
]


@pytest.mark.parametrize("what", ["heads", "neurons"])
@pytest.mark.parametrize(("method", "asked", "rules"), CASES, ids=str)
@pytest.mark.parametrize("name", ["bert", "vit", "llama"])
def test_heads_and_neurons(name: str, method: str, asked: Any, rules: Any, what: str) -> None:
    right = by_hand(name, what, **rules)
    assert [array.shape for array in inside(name, DOUBLE, method, asked, what)] == [array.shape for array in right]
    for dtype in (SINGLE, DOUBLE):
        close = (ROUNDED if asked else CLOSE)[dtype]
        assert distance(inside(name, dtype, method, asked, what), right) <= close


@pytest.mark.parametrize("what", ["heads", "neurons"])
@pytest.mark.parametrize(
    ("method", "name", "wrong"),
    [
        ("lrp", "bert", "the mean is held too"),
        ("lrp", "vit", "tangent"),
        ("lrp", "llama", "the other factor is held"),
        ("attnlrp", "llama", "no halves"),
        ("attnlrp", "vit", "softmax passes on"),
    ],
)
def test_broken_rules(method: str, name: str, wrong: str, what: str) -> None:
    twin = by_hand(name, what, wrong, weights="held" if method == "lrp" else "half")
    assert distance(twin, inside(name, DOUBLE, method, {}, what)) > FAR


@pytest.mark.parametrize("name", ["bert", "vit", "llama"])
def test_broken_axes(name: str) -> None:
    heads, neurons = (inside(name, DOUBLE, "lrp", {}, what) for what in ("heads", "neurons"))
    assert distance([array[::-1] for array in heads], by_hand(name, "heads")) > FAR
    assert distance([array[:, ::-1] for array in heads], by_hand(name, "heads")) > FAR
    assert distance([array[::-1] for array in neurons], by_hand(name, "neurons")) > FAR


# ---- twins by plain autograd -----------------------------------------------------------------------------------------


def heard(model: Any, tensors: dict[str, Tensor], into: list[str], out: list[str], token: int) -> dict[str, Tensor]:
    """Value x gradient of what goes into some modules and comes out of others, for the last logit of a token."""
    seen: dict[str, Tensor] = {}

    def before(name: str) -> Any:
        return lambda module, args: seen.update({name: args[0]})

    def after(name: str) -> Any:
        return lambda module, args, output: seen.update({name: output})

    handles = [model.get_submodule(name).register_forward_pre_hook(before(name)) for name in into]
    handles += [model.get_submodule(name).register_forward_hook(after(name)) for name in out]
    logits = model(**tensors).logits.flatten(0, -2)[-1]
    for handle in handles:
        handle.remove()
    gradients = torch.autograd.grad(logits[token], list(seen.values()))
    return {name: (z * g)[0].detach() for (name, z), g in zip(seen.items(), gradients, strict=True)}


def split(products: list[Tensor]) -> np.ndarray:
    """(token, head x width) of each layer to (layer, head): z of all heads goes side by side into the projection."""
    return torch.stack([product.unflatten(-1, (4, -1)).sum((0, 2)) for product in products]).numpy()


def test_without_rules_heads_and_neurons_are_gradient_x_value() -> None:
    made = fresh("bert")
    model: Any = made.model.double()
    mixed = [f"bert.encoder.layer.{layer}.attention.output.dense" for layer in (0, 1)]
    names = ["bert.encoder.layer.0.intermediate", "bert.encoder.layer.1.attention.self.value", "bert.pooler"]
    spec = spelled("lrp", {"rules": "none", "heads": True, "neurons": names})
    for raw, a in zip(made.inputs[:3], explained("bert", DOUBLE, spec), strict=True):
        R = heard(model, plain_inputs(made, raw), mixed, names, a.target.index)
        assert distance([a.details["heads"]], [split([R[name] for name in mixed])]) <= 1e-9
        for name in names:
            assert distance([a.details[f"neurons {name}"]], [R[name].numpy()]) <= 1e-9
        mixed_up = torch.stack([R[name].unflatten(-1, (-1, 4)).sum((0, 1)) for name in mixed])
        assert distance([a.details["heads"]], [mixed_up.numpy()]) > FAR


PAIRS = {  # and their modules
    "heads source source": "encoder",
    "heads target target": "decoder.*SelfAttention",
    "heads target source": "decoder.*EncDecAttention",
}
HIDDEN = "decoder.block.1.layer.2.DenseReluDense.act"


def of_t5(model: Any, tensors: dict[str, Tensor], token: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Heads of all pairs of streams and neurons of one token, by autograd with softmax and deviations as constants."""
    into = [name for name, _ in model.named_modules() if name.endswith("Attention.o")]
    softmax, root = F.softmax, torch.rsqrt
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "softmax", lambda *args, **kwargs: softmax(*args, **kwargs).detach())
        patch.setattr(torch, "rsqrt", lambda x: root(x).detach())
        R = heard(model, tensors, into, [HIDDEN], token)
    heads = {pair: split([R[name] for name in into if re.match(part, name)]) for pair, part in PAIRS.items()}
    return heads, R[HIDDEN].numpy()


def test_every_token_of_generated_text_has_its_heads_and_neurons() -> None:
    made = fresh("t5")
    model: Any = made.model.double()
    model.set_attn_implementation("eager")
    raws = [{"source": text, "output": out} for text, out in zip(made.inputs[:2], ("a dog", "warm"), strict=True)]
    with kept_in(DOUBLE):
        found = whence.explain(whence.wrap(model, made.processor), raws, "lrp", heads=True, neurons=HIDDEN)
        for raw, a in zip(raws, found, strict=True):
            ids = made.processor(raw["source"], return_tensors="pt")
            output = made.processor(raw["output"])["input_ids"]
            decoder = [model.config.decoder_start_token_id, *output]
            assert len(a.details[f"neurons {HIDDEN}"]) == len(a.output) == len(output)
            for row, token in enumerate(output):
                heads, neurons = of_t5(model, {**ids, "decoder_input_ids": torch.tensor([decoder[: row + 1]])}, token)
                for pair, right in heads.items():
                    assert distance([a.details[pair][row]], [right]) <= 1e-9
                assert a.details[f"neurons {HIDDEN}"][row].shape == (row + 1, 64)
                assert distance([a.details[f"neurons {HIDDEN}"][row]], [neurons]) <= 1e-9
                assert distance([a.details["heads target source"][row]], [heads["heads target target"]]) > FAR


# ---- what is conserved -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "vit", "llama"])
def test_heads_and_the_skip_around_them_carry_the_whole_output(name: str) -> None:
    model, made = without_biases(name, DOUBLE), fresh(name)
    tensors = plain_inputs(made, made.inputs[0])
    with kept_in(DOUBLE), torch.no_grad():
        a = whence.explain(model, made.inputs[0], "lrp(heads=True)")
        net = getattr(hand, name)(
            model.model, {k: t.double() if t.is_floating_point() else t for k, t in tensors.items()}
        )
    logits = net.steps[-1].value
    rules = hand.Lrp()
    R = net.propagate(F.one_hot(logits.argmax(), len(logits)) * logits, rules)
    sums = [step for step in net.steps if step.kind == "add"][::2]  # behind attention; the others are behind the MLP
    for heads, step in zip(a.details["heads"], sums, strict=True):
        skip = rules.add(step, R[step])[1].sum().item()
        assert heads.sum() + skip == pytest.approx(float(np.ravel(a.output)[0]), rel=1e-9)
        assert abs(skip) > 0.01 * abs(heads.sum())


@pytest.mark.parametrize(
    ("name", "attention", "hidden", "out"),
    [
        (
            "bert",
            "bert.encoder.layer.{}.attention.self",
            "bert.encoder.layer.1.intermediate",
            "bert.encoder.layer.1.output.dense",
        ),
        ("vit", "vit.layers.{}.attention", "vit.layers.0.mlp.activation_fn", "vit.layers.0.mlp"),
        ("llama", "model.layers.{}.self_attn", "model.layers.1.mlp.up_proj", "model.layers.1.mlp"),
        ("gpt2", "transformer.h.{}.attn", "transformer.h.0.mlp.act", "transformer.h.0.mlp"),
    ],
)
def test_heads_carry_what_attention_does_and_neurons_what_the_mlp_does(
    name: str, attention: str, hidden: str, out: str
) -> None:
    model, raw = without_biases(name, DOUBLE), fresh(name).inputs[0]
    spec = spelled("lrp", {"heads": True, "neurons": [hidden, out]})
    with kept_in(DOUBLE):
        a = whence.explain(model, raw, spec)
        books = whence.conservation(model, raw, spec)  # one pass, as it was
    for number, heads in enumerate(a.details["heads"]):
        assert heads.sum() == pytest.approx(books[attention.format(number)].relevance_out, rel=1e-9)
    inner, outer = (a.details[f"neurons {module}"].sum(-1) for module in (hidden, out))
    np.testing.assert_allclose(inner, outer, rtol=1e-9, atol=1e-9 * np.abs(outer).max())  # of every token
    assert outer.sum() == pytest.approx(books[out].relevance_out, rel=1e-9)


def test_in_attnlrp_the_products_after_a_head_take_no_half_of_it() -> None:
    """A head's relevance is that of the product itself; both of its factors get half of that."""
    model, raw = without_biases("vit", DOUBLE), fresh("vit").inputs[0]
    with kept_in(DOUBLE):
        a = whence.explain(model, raw, "attnlrp(heads=True, neurons='vit.layers.1.attention.v_proj')")
        books = whence.conservation(model, raw, "attnlrp")
    heads = a.details["heads"][1].sum()
    assert heads == pytest.approx(books["vit.layers.1.attention.o_proj"].relevance_out, rel=1e-9)
    assert a.details["neurons vit.layers.1.attention.v_proj"].sum() == pytest.approx(heads / 2, rel=1e-9)


# ---- one pass, any shape ---------------------------------------------------------------------------------------------


def test_all_comes_from_one_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    made, passes = fresh("bert"), []
    model, module = whence.wrap(made.model, made.processor), "bert.encoder.layer.0.intermediate"
    plain_scores = whence.explain(model, made.inputs[0], "attnlrp").scores
    whence.explain(model, made.inputs[0], "attnlrp", neurons=module)  # finds out about the module, once
    derive = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *args, **kwargs: passes.append(1) or derive(*args, **kwargs))
    forwards = made.model.register_forward_hook(lambda *args: passes.append(2))
    a = whence.explain(model, made.inputs[0], "attnlrp", heads=True, neurons=module)
    forwards.remove()
    assert sorted(passes) == [1, 2]
    np.testing.assert_array_equal(a.scores, plain_scores)


def test_heads_below_the_layer_that_is_scored_are_there_too() -> None:
    words, second = (explained("bert", DOUBLE, f"lrp(heads=True, at={at!r})") for at in ("word", 1))
    assert distance([a.details["heads"] for a in second], [a.details["heads"] for a in words]) <= 1e-12


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("xlnet", "transformer.layer.0.ff.activation_function"),  # keeps tokens before examples
        ("clip", "text_model.encoder.layers.1.mlp"),
        ("lxmert", "lxmert.encoder.x_layers.0.visn_inter"),
        ("torch-encoder", "encoder.layers.0.linear1"),
        ("gpt2", "transformer.h.0.mlp.act"),
    ],
)
def test_padding_is_neither_felt_nor_given(name: str, module: str) -> None:
    made = fresh(name)
    model = whence.wrap(made.model.double(), made.processor, **made.kwargs)
    together, alone = (
        whence.explain(model, made.inputs[:3], "lrp", heads=True, neurons=module, batch_size=size) for size in (3, 1)
    )
    for a, b in zip(together, alone, strict=True):
        assert a.details.keys() == b.details.keys() and len(a.details) >= 2
        stream = "image" if "visn" in module else a.streams[0] if name != "clip" else "text"
        assert len(a.details[f"neurons {module}"]) == a.streams.count(stream)
        for key, value in a.details.items():
            assert distance([value], [b.details[key]]) <= 2e-5


def test_a_layer_that_runs_several_times_has_neurons_for_each_time() -> None:
    made = fresh("albert")
    module = "albert.encoder.albert_layer_groups.0.albert_layers.0.activation"
    a = whence.explain(whence.wrap(made.model, made.processor), made.inputs[1], "lrp", heads=True, neurons=module)
    calls = a.details[f"neurons {module}"]
    assert [call.shape for call in calls] == [(len(a.features), 64)] * 3
    assert distance(calls[:1], calls[1:2]) > FAR
    assert a.details["heads"].shape == (3, 4)


def test_windows_of_a_picture_are_summed() -> None:
    made = fresh("swin")
    model = whence.wrap(made.model, made.processor)
    both = whence.explain(model, made.inputs[:2], "lrp(heads=True)")
    for raw, a in zip(made.inputs, both, strict=False):
        assert [layer.shape for layer in a.details["heads"]] == [(2,), (2,), (4,), (4,)]  # as many as each stage has
        alone = whence.explain(model, raw, "lrp(heads=True)")
        for one, other in zip(a.details["heads"], alone.details["heads"], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


# ---- what is said ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("bert.encodr.layer.0", "has no module 'bert.encodr.layer.0'; did you mean 'bert.encoder.layer.0' or "),
        ("bert.encoder.layer", "'bert.encoder.layer' of .* does not run on this input"),
        ("bert.embeddings.position_embeddings", "gives no tensor with a row for every example"),
    ],
)
def test_modules_without_neurons_are_refused(module: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        explained("bert", SINGLE, "lrp", neurons=module)


class Added(nn.Module):
    """What the linear layer gave is added to, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.linear, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.in_place = in_place

    def forward(self, input: Tensor) -> Tensor:
        x = self.words(input)
        y = self.linear((x @ x.transpose(1, 2)).softmax(-1) @ x)
        if self.in_place:
            y += x
        else:
            y = y + x
        return self.head(y.mean(1))


def test_an_output_that_is_changed_in_place_has_its_own_relevance() -> None:
    def encode(raw: str) -> dict[str, Any]:
        words = raw.split()
        return {"tensors": {"input": np.array([len(word) for word in words])}, "features": {"text": words}}

    models = [whence.wrap(Added(in_place), encode=encode, labels=["a", "b", "c"]) for in_place in (True, False)]
    for module in ("head", "linear"):
        one, other = (whence.explain(model, "a few words", f"lrp(neurons={module!r})") for model in models)
        name = f"neurons {module}"
        np.testing.assert_allclose(one.details[name], other.details[name], rtol=1e-4, atol=1e-6)


def test_it_is_saved_and_printed(tmp_path: Path) -> None:
    made = fresh("t5")
    spec = f"lrp(heads=True, neurons='{HIDDEN}')"
    a = whence.explain(whence.wrap(made.model, made.processor), made.inputs[0], spec)
    a.save(tmp_path / "a.json")
    assert whence.Attribution.load(tmp_path / "a.json") == a and a.method == spec
    command = ["explain", "the wonderful garden", "-m", "planted", "--json", "--method", "lrp(heads=True)"]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.output
    heads = json.loads(run.stdout)["details"]["heads"]
    assert len(heads["shape"]) == 2 and len(heads["list"]) == np.prod(heads["shape"])


# ---- convolutions ----------------------------------------------------------------------------------------------------


@cache
def patched() -> list[tuple[Tensor, Tensor, Tensor]]:
    """Three pictures as patches, (patch, colours x height x width), what comes of them, and the positions to add."""
    made = fresh("vit")
    model: Any = made.model.double()
    layer = model.vit.embeddings.patch_embeddings.projection
    found = []
    for raw in made.inputs[:3]:
        patches = F.unfold(plain_inputs(made, raw)["pixel_values"].double(), layer.kernel_size, stride=layer.stride)[
            0
        ].T
        with torch.no_grad():
            states = F.linear(patches, layer.weight.flatten(1), layer.bias)
        found.append((patches, states, model.vit.embeddings.position_embeddings[0, 1:].detach()))
    return found


def of_pixels(rules: hand.Lrp, of_convolution: hand.Lrp | None = None) -> list[np.ndarray]:
    """The relevance of every pixel, (height, width): a convolution over patches is a linear layer of each."""
    layer: Any = fresh("vit").model.double().vit.embeddings.patch_embeddings.projection
    found = []
    for (net, target, _), (patches, states, positions) in zip(plain("vit"), patched(), strict=True):
        logits = net.steps[-1].value
        R = net.propagate(F.one_hot(torch.tensor(target), len(logits)) * logits, rules)[net.steps[0]][1:]
        step = hand.Step(
            "linear", states, (hand.Step("input", patches),), {"weight": layer.weight.flatten(1), "bias": layer.bias}
        )
        with torch.no_grad():
            shares = (of_convolution or rules).linear(step, states / (states + positions) * R)[0]
        whole = F.fold(shares.T[None], 32, layer.kernel_size, stride=layer.stride)[0]
        found.append(whole.sum(0).numpy())
    return found


@pytest.mark.parametrize("options", [{}, {"gamma": 0.25}, {"epsilon": 0.1}, {"epsilon": 0.1, "gamma": 0.5}], ids=str)
@pytest.mark.parametrize("method", ["lrp", "attnlrp"])
def test_pixels_behind_a_convolution(method: str, options: dict[str, float]) -> None:
    rules = {"weights": "held" if method == "lrp" else "half", **options}
    found = [a.details["pixels"] for a in explained("vit", DOUBLE, spelled(method, {**options, "at": "pixels"}))]
    assert distance(found, of_pixels(hand.Lrp(**rules))) <= 1e-9
    if options:  # a convolution without its rule is far off
        assert distance(found, of_pixels(hand.Lrp(**rules), hand.Lrp())) > FAR


@pytest.mark.parametrize("dimensions", [1, 2])
def test_a_convolution_is_the_linear_layer_of_its_matrix(dimensions: int) -> None:
    torch.manual_seed(0)
    kind: Any = nn.Conv1d if dimensions == 1 else nn.Conv2d
    layer = kind(4, 6, 3, stride=2, padding=1, dilation=2, groups=2, dtype=DOUBLE)
    x = torch.randn(1, 4, *[7] * dimensions, dtype=DOUBLE, requires_grad=True)
    with torch.no_grad():
        unit = torch.eye(x.numel(), dtype=DOUBLE).unflatten(1, x.shape[1:])
        y = layer(x)
        matrix = (layer(unit) - layer(torch.zeros_like(x))).flatten(1).T  # (out, in)
    u = torch.randn(y.shape, dtype=DOUBLE)
    with Conserving(epsilon=0.1, gamma=0.5):
        out = layer(x)
    (gradient,) = torch.autograd.grad((u * out).sum(), x)
    spread = layer.bias.detach()[:, None].expand(6, y[0, 0].numel()).flatten()
    step = hand.Step(
        "linear", y.flatten(), (hand.Step("input", x.detach().flatten()),), {"weight": matrix, "bias": spread}
    )
    (right,) = hand.Lrp(epsilon=0.1, gamma=0.5).linear(step, (u * y).flatten())
    torch.testing.assert_close((x * gradient).detach().flatten(), right)


# ---- experts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["grouped_mm", "batched_mm", "eager"])
def test_experts_conserve(path: str) -> None:
    """Routing is constant, bounds pass relevance on; what is left is the 1 that these experts add beside each gate."""
    model, raw = without_biases("gpt-oss", SINGLE), fresh("gpt-oss").inputs[0]
    experts = [layer.mlp.experts for layer in model.model.model.layers]
    seen: list[Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model.model.config, "_experts_implementation_internal", path)
        for module in experts:
            patch.setattr(module, "limit", 0.2)  # small enough to be felt
        clamp = Tensor.clamp
        patch.setattr(Tensor, "clamp", lambda x, **bounds: seen.append(x) or clamp(x, **bounds))
        model.logits(model.batch([model.encode(raw)]))
        patch.setattr(Tensor, "clamp", clamp)
        books = whence.conservation(model, raw)
        a = whence.explain(model, raw, "lrp(at='word')")
    assert any(bool((x.abs() > 0.2).any()) for x in seen)
    assert not books.uncovered
    for row in books.rows:
        assert abs(row.own_leak) <= 1e-5 * max(row.absolute, 1.0), row
    assert books.bias == pytest.approx(sum(row.bias for row in books.rows if row.kind == "GptOssExperts"), rel=1e-5)
    assert abs(books.bias) > 0.01 * abs(books.output)
    assert a.scores.sum() + books.bias == pytest.approx(books.output, rel=1e-4)
    assert not any(row.relevance_out for row in books.rows if "router" in row.name)


def test_bounds_pass_relevance_on_and_choices_are_held() -> None:
    x = torch.tensor([[-2.0, -0.3, 0.0, 0.4, 3.0]], dtype=DOUBLE, requires_grad=True)
    for bounded in (lambda t: t.clamp(-0.5, 0.5), lambda t: torch.clip(t, max=1.0), lambda t: torch.clamp(t, min=-1)):
        with Conserving():
            y = bounded(x)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(x * gradient, bounded(x))
    for heads in ("hold", "half", None):
        with Conserving(heads=heads):
            values, indices = torch.topk(x, 2)
            again, others = x.gather(1, indices), x.gather(1, torch.tensor([[4, 3]]))
        assert indices.tolist() == [[4, 3]] and values.tolist() == again.tolist() == [[3.0, 0.4]]
        assert values.requires_grad == again.requires_grad == (heads != "hold")
        assert others.requires_grad
