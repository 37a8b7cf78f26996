"""Targets inside the model: neurons, channels and directions of recorded states, read at a position, explained by any
method that differentiates or perturbs. The plain model's own states, taken by hooks, are the reference."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import whence
from families import family, fresh, plain_inputs, subject_of
from whence.model.discovery import Structure

# family, a module that gives a state of tokens, and the token that the output reads
READ = {
    "bert": ("bert.encoder.layer.1", "first"),
    "vit": ("vit.layers.1", "first"),
    "llama": ("model.layers.1", "last"),
    "qwen3": ("model.layers.0", "last"),
    "gpt2": ("transformer.h.1", "last"),
    "from-scratch": (None, "last"),
}
MODELS = [name for name in READ if READ[name][0]]


def state_of(name: str, module: str, raw: Any) -> Tensor:
    """What a module of the plain model gives for one input, alone: (token, width) or (width,)."""
    made, seen = family(name), []
    tensors = plain_inputs(made, raw)
    hook = made.model.get_submodule(module).register_forward_hook(lambda m, a, out: seen.append(out))
    with torch.no_grad():
        made.model(**tensors)
    hook.remove()
    out = seen[-1]
    return (out[0] if isinstance(out, tuple) else out)[0]


def expected(units: Tensor, at: Any, reads: str) -> float:
    """A unit's values at the tokens, (token,), read at a position."""
    if at is None or at == "deciding":
        return float(units[0 if reads == "first" else -1])
    if at in ("mean", "max"):
        return float(units.mean() if at == "mean" else units.max())
    return float(units[at])


@pytest.mark.parametrize("at", [None, "deciding", "mean", "max", 1, -2])
@pytest.mark.parametrize("name", MODELS)
def test_a_neuron_is_the_entry_of_the_plain_state_and_padding_never_counts(name: str, at: Any) -> None:
    module, reads = READ[name]
    raws = family(name).inputs[:3]  # of different lengths: the batch is padded
    found = whence.explain(
        subject_of(name), raws, "gradient_x_input", whence.Target.neuron(module, 3, at), batch_size=3
    )
    for raw, a in zip(raws, found, strict=True):
        if a.input.generated:
            continue
        assert a.output == pytest.approx(expected(state_of(name, module, raw)[:, 3], at, reads), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("method", ["gradient_x_input", "leave_one_out", "gae", "attention_x_gradient", "lrp"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_scores_in_a_padded_batch_are_those_alone(name: str, method: str) -> None:
    target = f"neuron('{READ[name][0]}', 5, at='max')"
    raws = family(name).inputs[:3]
    together = whence.explain(subject_of(name), raws, method, target)
    for raw, a in zip(raws, together, strict=True):
        alone = whence.explain(subject_of(name), raw, method, target, batch_size=1)
        scale = np.abs(alone.scores).sum() or 1.0
        np.testing.assert_allclose(a.scores / scale, alone.scores / scale, atol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_a_direction_is_a_scalar_product_and_an_axis_is_a_neuron(name: str, tmp_path: Any) -> None:
    module, _ = READ[name]
    raw, subject = family(name).inputs[0], subject_of(name)
    state = state_of(name, module, raw)
    vector = np.random.default_rng(0).normal(size=state.shape[-1])
    np.save(tmp_path / "v.npy", vector)
    in_python = whence.explain(subject, raw, "gradient_x_input", whence.Target.direction(module, vector, "mean"))
    in_a_spec = whence.explain(
        subject, raw, "gradient_x_input", f"direction('{module}', '{tmp_path / 'v.npy'}', at='mean')"
    )
    value = float((state.double() @ torch.tensor(vector)).mean())
    assert in_python.output == pytest.approx(value, rel=1e-4, abs=1e-5)
    np.testing.assert_array_equal(in_python.scores, in_a_spec.scores)
    axis = np.eye(len(vector))[3]
    one, other = (
        whence.explain(subject, raw, "gradient_x_input", target)
        for target in (whence.Target.direction(module, axis), whence.Target.neuron(module, 3))
    )
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)


def test_gradients_and_drops_of_a_neuron_are_those_taken_by_hand() -> None:
    name, module = "bert", "bert.encoder.layer.0.intermediate"
    made, subject = family(name), subject_of(name)
    raw = made.inputs[1]
    tensors = plain_inputs(made, raw)
    word = made.model.get_submodule("bert.embeddings.word_embeddings")
    kept: list[Tensor] = []

    def leaf(m: Any, args: Any, out: Tensor) -> Tensor:
        kept.append(out.detach().requires_grad_())
        return kept[-1]

    seen: list[Tensor] = []
    hooks = [word.register_forward_hook(leaf)]
    hooks.append(made.model.get_submodule(module).register_forward_hook(lambda m, a, out: seen.append(out)))
    made.model(**tensors)
    value = seen[0][0, :, 11].mean()
    gradient = torch.autograd.grad(value, kept[0])[0]
    for hook in hooks:
        hook.remove()
    a = whence.explain(subject, raw, "gradient_x_input(at='word')", f"neuron('{module}', 11, 'mean')")
    np.testing.assert_allclose(a.scores, (gradient * kept[0].detach())[0].sum(-1).numpy(), atol=1e-6)
    hidden = whence.explain(subject, raw, "leave_one_out(mask='unknown')", f"neuron('{module}', 11, 'mean')")
    for place in np.flatnonzero(~hidden.special):
        ids = tensors["input_ids"].clone()
        ids[0, place] = made.processor.unk_token_id
        hook = made.model.get_submodule(module).register_forward_hook(lambda m, a, out: seen.append(out))
        with torch.no_grad():
            made.model(**{**tensors, "input_ids": ids})
        hook.remove()
        assert hidden.scores[place] == pytest.approx(float(value.detach() - seen[-1][0, :, 11].mean()), abs=2e-6)


FEED_FORWARD = {
    "bert": "bert.encoder.layer.1.output.dense",
    "vit": "vit.layers.1.mlp.fc2",
    "llama": "model.layers.1.mlp.down_proj",
    "gpt2": "transformer.h.1.mlp.c_proj",
}


@pytest.mark.parametrize("name", FEED_FORWARD)
def test_mlp_is_short_for_what_enters_the_narrowing_layer(name: str) -> None:
    made, raw, seen = family(name), family(name).inputs[0], []
    module = made.model.get_submodule(FEED_FORWARD[name])
    hook = module.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    with torch.no_grad():
        made.model(**plain_inputs(made, raw))
    hook.remove()
    a = whence.explain(subject_of(name), raw, "gradient_x_input", "mlp:1:7")
    reads = READ[name][1]
    assert a.output == pytest.approx(expected(seen[0][0, :, 7], None, reads), rel=1e-4, abs=1e-5)
    assert str(a.target) == "neuron 7 of mlp:1"


HEADS = {  # family -> the output projection of block 1, and the number of heads
    "bert": ("bert.encoder.layer.1.attention.output.dense", 4),
    "vit": ("vit.layers.1.attention.o_proj", 4),
    "llama": ("model.layers.1.self_attn.o_proj", 4),
    "gpt2": ("transformer.h.1.attn.c_proj", 4),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_the_length_of_what_it_gives_to_the_output_projection(name: str) -> None:
    made, raw, seen = family(name), family(name).inputs[0], []
    module, heads = made.model.get_submodule(HEADS[name][0]), HEADS[name][1]
    hook = module.register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    with torch.no_grad():
        made.model(**plain_inputs(made, raw))
    hook.remove()
    width = seen[0].shape[-1] // heads
    lengths = [sum(float(x) ** 2 for x in token[2 * width : 3 * width]) ** 0.5 for token in seen[0][0]]
    a = whence.explain(subject_of(name), raw, "gradient_x_input", "head(1, 2, at='mean')")
    assert a.output == pytest.approx(sum(lengths) / len(lengths), rel=1e-4) and np.abs(a.scores).sum() > 0
    assert str(a.target) == "head 2 of block 1, mean"
    short = whence.explain(subject_of(name), raw, "gradient_x_input", "head:1:2")
    assert short.output == pytest.approx(lengths[0 if READ[name][1] == "first" else -1], rel=1e-4)
    others = [whence.explain(subject_of(name), raw, "gradient_x_input", f"head(1, {n}, at='mean')") for n in (0, 1, 3)]
    assert all(abs(other.output - a.output) > 1e-3 for other in others)  # a wrong slice would be seen


@pytest.mark.parametrize("name", ["t5", "bart", "clip", "visual-bert", "albert", "from-scratch"])
def test_heads_of_other_models(name: str) -> None:
    (a,) = whence.explain(subject_of(name), family(name).inputs[:1], "gradient_x_input", "head:1:0")
    assert np.all(np.asarray(a.output) > 0) and np.abs(a.scores).sum() > 0


@pytest.mark.parametrize("name", ["swin", "torch-multihead"])
def test_heads_that_no_module_is_given_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="enter no module side by side, so none can be read; use a neuron"):
        whence.explain(subject_of(name), family(name).inputs[0], "gradient_x_input", "head:0:0")


def test_a_head_made_by_hand_names_its_block() -> None:
    with pytest.raises(ValueError, match=r"a head is made by Target.head\(3, 2\), and Target.site is 'mlp:0'"):
        whence.explain(subject_of("bert"), family("bert").inputs[0], "gradient", whence.Target("head", 0, site="mlp:0"))


def test_a_channel_of_a_feature_map_is_its_mean_over_the_places() -> None:
    made, raw = family("vit"), family("vit").inputs[0]
    module = next(n for n, m in made.model.named_modules() if isinstance(m, torch.nn.Conv2d))
    a = whence.explain(subject_of("vit"), raw, "gradient_x_input(at='pixels')", f"channel('{module}', 2)")
    assert a.output == pytest.approx(float(state_of("vit", module, raw)[2].mean()), rel=1e-4, abs=1e-6)


def test_encoder_decoders_and_towers() -> None:
    for name, module in (("bart", "model.decoder.layers.1"), ("t5", "decoder.block.1")):
        (a,) = whence.explain(subject_of(name), family(name).inputs[:1], "gradient_x_input", f"neuron('{module}', 4)")
        assert a.scores.shape[0] == len(a.input.generated) == len(a.target) and np.abs(a.scores).sum() > 0
        assert len({float(value) for value in a.output}) > 1  # every row is read at its own last token
    a = whence.explain(
        subject_of("clip"), family("clip").inputs[0], "gradient_x_input", "neuron('vision_model.post_layernorm', 3)"
    )
    streams = np.array(a.streams)
    assert np.abs(a.scores[streams == "image"]).sum() > 0 and not a.scores[streams == "text"].any()


def test_what_is_made_above_the_neuron_has_no_part_in_it() -> None:
    """Attention above the neuron has no gradient: only the first layer is followed, at the neuron's own token."""
    subject, raw = subject_of("bert"), family("bert").inputs[0]
    batch = subject.batch([subject.encode(raw)])
    aim = subject.aim(["neuron('bert.encoder.layer.0', 2, at=3)"])
    trace = subject.trace(batch, aim, ("attention_gradient", "deciding"))
    assert trace.attention[0].gradient.abs().max() > 0 and not trace.attention[1].gradient.any()
    assert trace.deciding["text"][0].nonzero()[:, 0].tolist() == [3]
    a = whence.explain(subject, raw, "gae", "neuron('bert.encoder.layer.0', 2, at=3)")
    weights, gradient = trace.attention[0].weights[0, :, 3], trace.attention[0].gradient[0, :, 3]
    np.testing.assert_allclose(a.scores, (weights * gradient).clamp(min=0).mean(0).numpy(), atol=1e-6)


def test_a_function_may_ask_for_states() -> None:
    def spread(logits: Tensor, batch: Any, states: dict[str, Tensor]) -> Tensor:
        return states["module:bert.encoder.layer.1"][:, 0].std(-1) + 0 * logits[:, 0]

    spread.states = ("module:bert.encoder.layer.1",)  # type: ignore[attr-defined]
    raw = family("bert").inputs[0]
    a = whence.explain(subject_of("bert"), raw, "integrated_gradients", spread)
    assert a.output == pytest.approx(float(state_of("bert", "bert.encoder.layer.1", raw)[0].std()), rel=1e-4)
    assert abs(a.residual) <= 0.011 * max(abs(a.output - a.base), 0.1)


def test_different_targets_share_a_batch() -> None:
    raws, module = family("bert").inputs[:3], "bert.encoder.layer.1"
    targets = [f"neuron('{module}', 1)", None, "probability(0)"]
    together = whence.explain(subject_of("bert"), raws, "gradient_x_input", targets)
    for raw, target, a in zip(raws, targets, together, strict=True):
        alone = whence.explain(subject_of("bert"), raw, "gradient_x_input", target)
        np.testing.assert_allclose(a.scores, alone.scores, atol=1e-5)


def test_a_saved_target_keeps_its_vector(tmp_path: Any) -> None:
    target = whence.Target.direction("bert.encoder.layer.1", np.arange(32.0), at=2)
    a = whence.explain(subject_of("bert"), family("bert").inputs[0], "gradient_x_input", target)
    a.save(tmp_path / "a.json")
    loaded = whence.Attribution.load(tmp_path / "a.json")
    assert loaded == a and isinstance(loaded.target, whence.Target) and loaded.target.position == 2
    assert whence.Target.direction("x", np.zeros(2) + 1) != whence.Target.direction("x", np.zeros(2))


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        ("neuron('bert.encoder.layer.9', 1)", "has no module 'bert.encoder.layer.9'; did you mean"),
        ("neuron('bert.encoder.layer.1', 99)", "neuron 99 is out of range: 'bert.encoder.layer.1' is 32 wide"),
        ("neuron('bert.encoder.layer.1', 1, at=77)", "reads token 77 of 'bert.encoder.layer.1', and there are"),
        ("neuron('bert.encoder.layer.1', 1, at='middle')", "is read at 'middle'; write neuron"),
        ("neuron('bert.encoder.layer.1')", r"cannot be read; write neuron\('MODULE', a number\)"),
        ("neuron('bert.pooler', 1, at='max')", "has one vector per example, so the target takes no position"),
        ("direction('bert.encoder.layer.1', 'none.npy')", "the vector 'none.npy' cannot be read"),
        ("direction('bert.encoder.layer.1', 3)", "or use whence.Target.direction"),
        ("mlp:7:1", "names no block: BertForSequenceClassification has 2"),
        ("head:7:1", "names no block: BertForSequenceClassification has 2"),
        ("head:1:9", "the target's head 9 is out of range: 'heads:1' has 4 heads, from 0"),
        ("head('bert.encoder.layer.1', 2)", r"cannot be read; write head\(BLOCK, a number\)"),
        ("neuron('mlp:x', 1)", "mlp: is followed by the number of a block, as mlp:3, and 'mlp:x' came"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(target: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        whence.explain(subject_of("bert"), family("bert").inputs[0], "gradient_x_input", target)


def test_vectors_of_another_width_and_methods_that_divide_logits() -> None:
    subject, raw = subject_of("bert"), family("bert").inputs[0]
    with pytest.raises(ValueError, match=r"the direction has 5 entries, and 'bert\.encoder\.layer\.1' is 32 wide"):
        whence.explain(subject, raw, "gradient_x_input", whence.Target.direction("bert.encoder.layer.1", np.ones(5)))
    with pytest.raises(ValueError, match="decompx divides logits, and the target reads a state"):
        whence.explain(subject, raw, "decompx", "neuron('bert.encoder.layer.1', 1)")
    with pytest.raises(ValueError, match="a direction is a vector of finite numbers"):
        whence.Target.direction("x", np.ones((2, 2)))


@pytest.mark.parametrize(("name", "reads"), [(name, reads) for name, (_, reads) in READ.items()])
def test_the_rule_by_which_the_output_reads_its_tokens(name: str, reads: str) -> None:
    subject = subject_of(name)
    item = subject.encode(family(name).inputs[0])
    item = next((row for row, _ in subject.rows(item)), item)
    batch = subject.batch([item])
    found: Structure = subject.structure(batch)
    stream = next(iter(found.deciding))
    marks = subject.discovery(batch).deciding_tokens(batch, stream)
    if marks is None:
        pytest.fail(f"{name} reads its tokens by no rule")
    assert marks[0].tolist().index(True) == (0 if reads == "first" else marks.shape[1] - 1)
    assert torch.equal(marks, subject.trace(batch, subject.aim([None]), ("deciding",)).deciding[stream])


# ---- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["mlp:1:7", "neuron('bert.encoder.layer.0', 2, at='max')", "function"])
def test_metrics_watch_the_target_itself_where_it_names_no_class(target: Any) -> None:
    """The drops of leave_one_out agree with themselves, and the deletion curve is made of the target's values."""
    subject, raw = subject_of("bert"), family("bert").inputs[1]

    def difference(logits: Tensor, batch: Any) -> Tensor:
        return 3 * logits[:, 0] - logits[:, 1].square()

    wanted = difference if target == "function" else target
    given = {"target": difference} if target == "function" else {}
    a = whence.explain(subject, raw, "leave_one_out", wanted)
    assert whence.score(subject, a, "loo_agreement", **given).value == pytest.approx(1.0)
    order = [i for i in np.argsort(-a.scores, kind="stable") if not a.special[i]]
    values = [a.output]
    for count in range(1, len(order) + 1):
        tensors = dict(a.input.tensors)
        tensors["input_ids"] = tensors["input_ids"].copy()
        tensors["input_ids"][order[:count]] = subject.mask_ids["mask"]
        hidden = subject.batch([replace(a.input, tensors=tensors)])
        values.append(float(subject.values(hidden, subject.aim([wanted]))[0]))
    assert whence.score(subject, a, "deletion", **given).value == pytest.approx(
        np.trapezoid(values, dx=1 / len(order)), abs=1e-5
    )


def test_evaluate_explains_a_neuron_of_every_example() -> None:
    raws = family("bert").inputs[:3]
    board = whence.evaluate(
        subject_of("bert"), raws, ["gradient_x_input", "random"], ["loo_agreement"], target="mlp:0:3"
    )
    assert board.notes == ("Explained: mlp:0:3, of all inputs.",)
    for number, raw in enumerate(raws):
        a = whence.explain(subject_of("bert"), raw, "gradient_x_input", "mlp:0:3")
        value = whence.score(subject_of("bert"), a, "loo_agreement").value
        assert board.values[0, 0, number] == pytest.approx(value, abs=1e-6)


def test_a_function_must_be_given_to_score_again() -> None:
    def margin_of_two(logits: Tensor, batch: Any) -> Tensor:
        return logits[:, 0] - logits[:, 2]

    a = whence.explain(subject_of("bert"), family("bert").inputs[0], "gradient_x_input", margin_of_two)
    with pytest.raises(ValueError, match="target="):
        whence.score(subject_of("bert"), a, "auac")


# ---- targets that cannot be computed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (whence.Target("contrast", 1), "a contrast needs a second class or token"),
        (whence.Target("logit", 1.5), "Target.index is a whole number, not 1.5"),  # type: ignore[arg-type]
        (whence.Target("logit", True), "Target.index is a whole number, not True"),
        (whence.Target("neuron", 3), r"a neuron is made by Target.neuron\(...\)"),
        (whence.Target("logit", 1, site="bert"), "a logit is one of the outputs, and has no site"),
    ],
)
def test_targets_put_together_by_hand_are_checked(target: whence.Target, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        whence.explain(subject_of("bert"), "a film", "gradient_x_input", target)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda z: z[:, 0] / 0, "returns finite numbers, and NaN or infinity came"),
        (lambda z: z[:, 0] * float("nan"), "returns finite numbers, and NaN or infinity came"),
        (lambda z: z[:, 0] * 1j, "returns real numbers, and complex ones came"),
        (lambda z: z, r"one value per example, shape \(1,\), not \(1, 3\)"),
        (lambda z: 3.0, "one value per example"),
    ],
)
def test_functions_that_return_no_number_are_refused(change: Any, sentence: str) -> None:
    for method in ("gradient_x_input", "leave_one_out"):
        with pytest.raises(ValueError, match=sentence):
            whence.explain(subject_of("bert"), "a film", method, lambda logits, batch: change(logits))


def test_labels_match_without_regard_to_case_where_one_label_does() -> None:
    made = family("bert")
    subject = whence.wrap(made.model, made.processor, labels=["Good", "good", "BAD"])
    assert subject.aim(["bad"]).targets[0].index == 2
    assert [subject.aim([label]).targets[0].index for label in ("Good", "good")] == [0, 1]
    with pytest.raises(ValueError, match="is not a label"):
        subject.aim(["GOOD"])


def test_models_without_gradients_say_so() -> None:
    made = fresh("bert")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces another way of quantising
        quantised = torch.ao.quantization.quantize_dynamic(made.model, {torch.nn.Linear}, dtype=torch.qint8)
    subject = whence.wrap(quantised, made.processor)
    for method in ("gradient_x_input", "gae", "lrp", "integrated_gradients"):
        with pytest.raises(ValueError, match=r"has no gradients .* use leave_one_out"):
            whence.explain(subject, made.inputs[0], method)
    a = whence.explain(subject, made.inputs[0])
    assert a.method == "leave_one_out" and a.scores.any()


def test_a_model_that_cuts_its_graph_says_so() -> None:
    made = fresh("bert")
    made.model.get_submodule("bert.encoder").register_forward_hook(
        lambda m, a, out: type(out)(last_hidden_state=out.last_hidden_state.detach())
    )
    subject = whence.wrap(made.model, made.processor)
    with pytest.raises(ValueError, match="does not depend on the inputs in a way that can be differentiated"):
        whence.explain(subject, made.inputs[0], "gradient_x_input")
    assert whence.explain(subject, made.inputs[0], "leave_one_out").scores.any()


# ---- corners that a review found -------------------------------------------------------------------------------------


def test_neurons_of_blocks_that_share_a_module_are_those_of_each_call() -> None:
    made, raw, seen = family("albert"), family("albert").inputs[0], []
    module = next(n for n, _ in made.model.named_modules() if n.endswith("ffn_output"))
    hook = made.model.get_submodule(module).register_forward_pre_hook(lambda m, args: seen.append(args[0]))
    with torch.no_grad():
        made.model(**plain_inputs(made, raw))
    hook.remove()
    found = [
        whence.explain(subject_of("albert"), raw, "gradient_x_input", f"mlp:{n}:3").output for n in range(len(seen))
    ]
    np.testing.assert_allclose(found, [float(x[0, 0, 3]) for x in seen], rtol=1e-4, atol=1e-6)
    assert len(set(found)) == len(seen) > 1


@pytest.mark.parametrize("at", [np.int64(3), 3])
def test_numbers_of_tokens_are_whole_numbers_of_any_kind(at: Any) -> None:
    assert whence.Target.neuron(1, 2, at).position == 3 and type(whence.Target.neuron(1, 2, at).position) is int


@pytest.mark.parametrize("at", ["foo", "last", 2.0, True])
def test_positions_that_there_are_not_are_refused(at: Any) -> None:
    for make in (whence.Target.neuron, whence.Target.channel):
        with pytest.raises(ValueError, match="a state is read at 'deciding', 'mean', 'max' or the number of a token"):
            make(1, 2, at)


@pytest.mark.parametrize("method", ["attention", "rollout", "flow", "value_norms", "globenc", "alti", "value_zeroing"])
def test_methods_that_follow_attention_to_the_output_refuse_what_lies_inside(method: str) -> None:
    with pytest.raises(ValueError, match=f"{method} follows attention to the model's output"):
        whence.explain(subject_of("bert"), family("bert").inputs[0], method, "mlp:0:3")


@pytest.mark.parametrize(
    "method", ["gae", "grad_sam", "transformer_attribution", "attcat", "lrp", "integrated_gradients"]
)
def test_targets_in_different_layers_share_a_batch(method: str) -> None:
    raws, targets = family("bert").inputs[:3], ["mlp:0:3", None, "neuron(1, 2)"]
    together = whence.explain(subject_of("bert"), raws, method, targets, batch_size=3)
    for raw, target, a in zip(raws, targets, together, strict=True):
        alone = whence.explain(subject_of("bert"), raw, method, target)
        np.testing.assert_allclose(a.scores, alone.scores, atol=1e-4 * np.abs(alone.scores).sum())


def test_a_position_need_not_exist_in_other_examples() -> None:
    long, short = sorted(family("bert").inputs, key=len)[::-1][:1], sorted(family("bert").inputs, key=len)[:1]
    targets = [whence.Target.neuron(1, 2, 12), whence.Target.neuron(1, 2, 0)]
    found = whence.explain(subject_of("bert"), [*long, *short], "gradient_x_input", targets, batch_size=2)
    for raw, target, a in zip([*long, *short], targets, found, strict=True):
        alone = whence.explain(subject_of("bert"), raw, "gradient_x_input", target)
        assert a.output == pytest.approx(alone.output, abs=1e-5)


@pytest.mark.parametrize(
    ("name", "module"),
    [("bert", "bert"), ("bert", "bert.encoder"), ("llama", "model"), ("vit", "vit"), ("gpt2", "transformer")],
)
def test_modules_that_return_several_things_by_name(name: str, module: str) -> None:
    raw, seen = family(name).inputs[0], []
    hook = family(name).model.get_submodule(module).register_forward_hook(lambda m, a, out: seen.append(out[0]))
    with torch.no_grad():
        family(name).model(**plain_inputs(family(name), raw))
    hook.remove()
    for method in ("gradient_x_input", "leave_one_out"):
        a = whence.explain(subject_of(name), raw, method, f"neuron('{module}', 1)")
        expected_value = expected(seen[0][0, :, 1], None, READ[name][1])
        assert a.output == pytest.approx(expected_value, rel=1e-4, abs=1e-5)


def test_deleting_tokens_and_reading_one_by_its_number_do_not_go_together() -> None:
    a = whence.explain(subject_of("bert"), family("bert").inputs[1], "gradient_x_input", "neuron(1, 2, at=3)")
    with pytest.raises(ValueError, match="reads token 3, whose number changes when others are deleted"):
        whence.score(subject_of("bert"), a, "comprehensiveness")
    assert np.isfinite(whence.score(subject_of("bert"), a, "comprehensiveness(mask='auto')").value)


def test_a_function_that_works_in_place_gets_a_copy() -> None:
    def doubled(logits: Tensor, batch: Any) -> Tensor:
        return (logits * 2)[:, 0]

    def in_place(logits: Tensor, batch: Any) -> Tensor:
        return logits.mul_(2)[:, 0]

    for method in ("gradient_x_input", "leave_one_out"):
        found = whence.explain(subject_of("bert"), "a film", method, in_place)
        wanted = whence.explain(subject_of("bert"), "a film", method, doubled)
        assert found.output == wanted.output and np.array_equal(found.scores, wanted.scores)


def test_a_channel_of_pixels_is_read_as_their_mean() -> None:
    picture = family("vit").inputs[2]
    a = whence.explain(subject_of("vit"), picture, "gradient_x_input", whence.Target.neuron("pixels", 1))
    pixels = plain_inputs(family("vit"), picture)["pixel_values"][0]
    assert a.output == pytest.approx(float(pixels[1].mean()), abs=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "neuron", "site": "0", "index": 0, "vector": [1.0] * 32}, "a neuron has a number"),
        ({"kind": "neuron", "site": "0"}, "a neuron has a number"),
        ({"kind": "direction", "site": "0", "vector": [1.0] * 32}, "a direction has a vector"),
        ({"kind": "direction", "site": "0"}, "a direction has a vector"),
    ],
)
def test_states_put_together_by_hand_are_whole(fields: dict[str, Any], message: str) -> None:
    """A neuron without a number would be read as the first one."""
    with pytest.raises(ValueError, match=message):
        whence.explain(subject_of("bert"), "a good film", "gradient_x_input", whence.Target(**fields))
