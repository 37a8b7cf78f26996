"""The tap changes nothing: instrumented logits, attention, values and gradients are the model's own.

The plain model is a twin with the same weights that whence never touches, run on the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whence
from families import FAMILIES, LABELS, LOGITS, REGIONS_AND_QUESTIONS, family, fresh
from whence.core.inputs import Input
from whence.model.batching import Batch
from whence.model.passes import Trace
from whence.model.pointing import pointed
from whence.model.subject import Subject
from whence.model.tap import AttentionRecord

NAMES = list(FAMILIES)
MODULES = ["torch-encoder", "torch-multihead", "torch-sdpa", "from-scratch"]
PRETRAINED = [name for name in NAMES if name not in MODULES]
WITHOUT_SDPA = ["deberta-v2", "xlnet", "mpnet", "gptj", "gemma2", "gpt-oss", "vilt", "lxmert", "visual-bert"]
# Pictures have one size, and a module without a mask cannot be padded; all other families share one padded batch.
PICTURES = ["vit", "deit", "deit-teacher", "dinov2", "dinov2-registers", "beit", "swin"]
UNPADDED = [*PICTURES, "torch-multihead", "from-scratch"]
NEEDS = ("attention", "attention_gradient", "values", "deciding", "gradient:word")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The same bits need the same order of sums, whatever else the machine does."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


# --- Both sides -------------------------------------------------------------------------------------------------------


@cache
def subject(name: str) -> Subject:
    return whence.wrap(family(name).model, family(name).processor, **family(name).kwargs)


@cache
def twin(name: str) -> nn.Module:
    return fresh(name).model


@cache
def items(name: str) -> list[Input]:
    """Four encoded examples; generated texts are cut after one, two, three and four tokens."""
    raws = family(name).inputs
    if name == "vilt":  # only pictures of one shape share a batch
        raws = [{**raw, "image": raws[0]["image"]} for raw in raws]
    encoded, _ = pointed(subject(name), [subject(name).encode(raw) for raw in raws], [None] * len(raws))
    if family(name).task != "seq2seq-lm":
        return encoded
    rows = [subject(name).rows(item) for item in encoded]
    return [row[min(number, len(row) - 1)][0] for number, row in enumerate(rows)]


@cache
def traced(name: str) -> list[tuple[list[int], Batch, Trace]]:
    """Every batch of the examples with its fully instrumented pass."""
    batches = subject(name).batches(items(name), batch_size=4)  # together, however much padding that takes
    return [(numbers, batch, trace(subject(name), batch)) for numbers, batch in batches]


def trace(made: Subject, batch: Batch, needs: tuple[str, ...] = NEEDS, **options: Any) -> Trace:
    return made.trace(batch, made.aim([None] * len(batch)), needs, **options)


def run(model: nn.Module, batch: Batch, **options: Any) -> Any:
    """The plain model on a batch's tensors."""
    tensors = dict(batch.tensors)
    positional = [tensors.pop("input")] if "input" in tensors else []
    return model(*positional, **tensors, **options)


def plain(name: str, batch: Batch, implementation: str = "eager", **options: Any) -> Any:
    """The twin's outputs, without gradients; its random numbers (ViLT) are drawn from a state of their own."""
    model: Any = twin(name)
    if name in PRETRAINED:
        model.set_attn_implementation(implementation)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return run(model, batch, **options)


def real_places(batch: Batch, row: int, numbers: Iterable[int]) -> list[int]:
    """Where the tokens of these numbers stand in a padded row."""
    real = batch.mask[row].nonzero()[:, 0].tolist()
    return [real[number] for number in numbers]


def decision(outputs: Any, batch: Batch) -> Tensor:
    """The logits that the model decides by, (batch, class), read from its outputs by hand."""
    if isinstance(outputs, Tensor):
        return outputs
    if "logits_per_image" in outputs:
        return outputs["logits_per_image"].diagonal()[:, None]
    if "start_logits" in outputs:
        rows = zip(outputs["start_logits"], outputs["end_logits"], strict=True)
        places = [real_places(batch, row, item.decides) for row, item in enumerate(batch.inputs)]
        return torch.stack(
            [
                torch.tensor([logit for place in own for logit in (start[place], end[place])])
                for own, (start, end) in zip(places, rows, strict=True)
            ]
        )
    logits = next(outputs[name] for name in LOGITS if name in outputs)
    if logits.ndim == 2:
        return logits
    if batch.inputs[0].decides:
        return torch.stack([logits[n, real_places(batch, n, x.decides)[0]] for n, x in enumerate(batch.inputs)])
    ends = [max(row.nonzero()[:, 0].tolist()) for row in list(batch.streams.values())[-1]]
    return torch.stack([row[end] for row, end in zip(logits, ends, strict=True)])


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    """Within the tolerance times the largest logit, if that is above one: rounding grows with the numbers rounded."""
    scale = max(1.0, expected.abs().max().item())
    assert (found - expected).abs().max().item() <= tolerance * scale


@contextmanager
def in_order(name: str) -> Iterator[None]:
    """ViLT draws the order of its patches anew on every pass; within this scope the draw is 0, 1, 2, ..."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "vilt":
            patch.setattr(torch, "multinomial", lambda weights, count: torch.arange(count))
        yield


@contextmanager
def hooked(modules: Iterable[nn.Module], after: Callable[..., None], **asked: bool) -> Iterator[None]:
    """Every call of these modules is asked for more, and `after(module, args, output)` gets what it returns."""
    handles = []
    for module in modules:
        ask = lambda module, args, kwargs: (args, {**kwargs, **asked})  # noqa: E731
        handles += [module.register_forward_pre_hook(ask, with_kwargs=True), module.register_forward_hook(after)]
    yield
    for handle in handles:
        handle.remove()


# --- Logits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_everything_was_recorded_of_padded_batches(name: str) -> None:
    """The comparisons below are of full recordings, of batches with padding wherever there can be any."""
    assert sorted(number for numbers, _, _ in traced(name) for number in numbers) == [0, 1, 2, 3]
    padded = [not batch.mask.all() for _, batch, _ in traced(name)]
    assert padded == ([True] if name not in UNPADDED else [False] * len(padded))
    for _, _, found in traced(name):
        assert len(found.attention) >= 2
        for record in found.attention:
            assert record.gradient.shape == record.weights.shape
            assert record.values.shape[:3] == (*record.weights.shape[:2], record.weights.shape[3])
        assert any(record.gradient.abs().max() > 0 for record in found.attention)
        assert all(gradient.abs().max() > 0 for gradient in found.gradients["word"].values())
        assert found.deciding or family(name).windows


@pytest.mark.parametrize("name", PRETRAINED)
def test_logits_equal_eager_logits_exactly(name: str) -> None:
    assert family(name).eager and family(name).sdpa == (name not in WITHOUT_SDPA)  # no comparison is left out
    for _, batch, found in traced(name):
        with in_order(name):
            assert torch.equal(found.logits, decision(plain(name, batch), batch))


def test_logits_of_shuffled_patches_are_close() -> None:
    """ViLT shuffles its patches at random, by design; whence keeps them in order, so that features have a place.

    Attention sums over the same patches in another order, which rounds differently: equal, but not to the last bit.
    """
    for _, batch, found in traced("vilt"):
        close(found.logits, decision(plain("vilt", batch), batch), 1e-5)


@pytest.mark.parametrize("name", [name for name in PRETRAINED if name not in WITHOUT_SDPA])
def test_logits_equal_sdpa_logits(name: str) -> None:
    assert family(name).sdpa
    for _, batch, found in traced(name):
        close(found.logits, decision(plain(name, batch, "sdpa"), batch), 1e-5)


@pytest.mark.parametrize("name", MODULES)
def test_logits_equal_those_of_torch_modules(name: str) -> None:
    for _, batch, found in traced(name):
        close(found.logits, decision(plain(name, batch), batch), 1e-6)


@pytest.mark.parametrize("name", MODULES)
def test_what_differs_of_torch_modules_is_rounding(name: str) -> None:
    """Fused attention rounds in another order; in double precision nothing of the difference may remain."""
    made = fresh(name)
    made.model.double()
    double = whence.wrap(made.model, **made.kwargs)
    for _, batch in double.batches([double.encode(raw) for raw in made.inputs], batch_size=4):
        found = trace(double, batch)
        with torch.no_grad():
            assert (found.logits - run(made.model, batch)).abs().max() < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_padding_changes_nothing(name: str) -> None:
    for numbers, batch, together in traced(name):
        for row, number in enumerate(numbers):
            single = subject(name).batch([items(name)[number]])
            alone = trace(subject(name), single)
            close(together.logits[row], alone.logits[0], 1e-5)
            if family(name).windows:
                continue
            for one, many in zip(alone.attention, together.attention, strict=True):
                queries, keys = (batch.mask[row, batch.span(stream)] for stream in (many.query, many.key))
                torch.testing.assert_close(many.weights[row][:, queries][:, :, keys], one.weights[0], atol=1e-5, rtol=0)
            assert alone.deciding.keys() == together.deciding.keys()
            for stream, read in together.deciding.items():
                assert torch.equal(read[row][batch.mask[row, batch.span(stream)]], alone.deciding[stream][0])


@pytest.mark.parametrize("name", ["bert", "xlnet", "gpt2", "llama", "t5", "bart"])
def test_a_padding_side_that_changes_the_model_is_never_used(name: str) -> None:
    """A tokenizer set to the side that its model cannot take: scores and outputs are as of each example alone."""
    made = fresh(name)
    made.processor.padding_side = {"left": "right", "right": "left"}[made.processor.padding_side]
    for method in ("attention", "gradient_x_input"):
        together = whence.explain(whence.wrap(made.model, made.processor), made.inputs, method=method)
        for raw, padded in zip(made.inputs, together, strict=True):
            alone = whence.explain(whence.wrap(made.model, made.processor), raw, method=method, batch_size=1)
            np.testing.assert_allclose(padded.output, alone.output, atol=1e-4)
            np.testing.assert_allclose(padded.scores, alone.scores, atol=1e-4)


# --- Attention --------------------------------------------------------------------------------------------------------

STREAMS = {
    "encoder_attentions": ("source", "source"),
    "decoder_attentions": ("target", "target"),
    "cross_attentions": ("target", "source"),
}


def own_attentions(name: str, batch: Batch) -> dict[tuple[str, str], tuple[Tensor, ...]]:
    """What the plain model returns with output_attentions=True, by query and key stream."""
    with in_order(name):
        if name == "lxmert":
            return _of_lxmert(batch)
        outputs = plain(name, batch, output_attentions=True)
    if name == "clip":
        towers = {"text": outputs.text_model_output, "image": outputs.vision_model_output}
        return {(stream, stream): tower.attentions for stream, tower in towers.items()}
    if family(name).task == "seq2seq-lm":
        return {streams: outputs[key] for key, streams in STREAMS.items()}
    stream = "*" if len(batch.streams) > 1 else next(iter(batch.streams))
    return {(stream, stream): outputs.attentions}


def _of_lxmert(batch: Batch) -> dict[tuple[str, str], tuple[Tensor, ...]]:
    """LXMERT returns the words' attention to the regions and keeps the rest: every attention module is asked for it."""
    model = twin("lxmert")
    places = {module: place for place, module in model.named_modules() if type(module).__name__ == "LxmertAttention"}
    maps: dict[str, list[Tensor]] = {place: [] for place in places.values()}
    with hooked(places, lambda module, args, output: maps[places[module]].append(output[1]), output_attentions=True):
        outputs = plain("lxmert", batch, output_attentions=True)
    crossing = [place for place in maps if ".visual_attention." in place]  # words to regions, then regions to words
    late = {part: tuple(maps[place][0] for place in maps if part in place) for part in ("lang_self", "visn_self")}
    assert all(torch.equal(maps[p][0], own) for p, own in zip(crossing, outputs.cross_encoder_attentions, strict=True))
    return {
        ("text", "text"): outputs.language_attentions + late["lang_self"],
        ("image", "image"): outputs.vision_attentions + late["visn_self"],
        ("text", "image"): outputs.cross_encoder_attentions,
        ("image", "text"): tuple(maps[place][1] for place in crossing),
    }


def same_records(records: list[AttentionRecord], own: dict[tuple[str, str], tuple[Tensor, ...]]) -> None:
    """All of the model's maps were recorded, bit for bit, layer after layer of every pair of streams."""
    assert len(records) == sum(len(maps) for maps in own.values())
    for streams, maps in own.items():
        here = [record for record in records if (record.query, record.key) == streams]
        assert [record.layer for record in here] == list(range(len(maps)))
        for record, expected in zip(here, maps, strict=True):
            assert record.weights.shape == expected.shape
            assert torch.equal(record.weights, expected)
    assert [record.order for record in records] == list(range(len(records)))


@pytest.mark.parametrize("name", [name for name in PRETRAINED if name != "swin"])
def test_attention_equals_output_attentions_exactly(name: str) -> None:
    for _, batch, found in traced(name):
        same_records(found.attention, own_attentions(name, batch))


def test_attention_within_windows_equals_output_attentions_exactly() -> None:
    """Swin returns the maps of one block of each stage, the last; all four are recorded, and connect no streams."""
    for _, batch, found in traced("swin"):
        assert [(record.query, record.key) for record in found.attention] == [("", "")] * 4
        own = plain("swin", batch, output_attentions=True).attentions
        for record, expected in zip(found.attention[1::2], own, strict=True):
            assert torch.equal(record.weights, expected)


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_decoder_layers_come_in_order(name: str) -> None:
    for _, _, found in traced(name):
        assert [(record.query, record.key, record.layer) for record in found.attention] == [
            ("source", "source", 0),
            ("source", "source", 1),
            ("target", "target", 0),
            ("target", "source", 0),
            ("target", "target", 1),
            ("target", "source", 1),
        ]


def test_a_shared_layer_gives_one_record_per_call() -> None:
    """ALBERT runs one layer three times."""
    for _, _, found in traced("albert"):
        assert [record.layer for record in found.attention] == [0, 1, 2]
        assert len({record.module for record in found.attention}) == 1


def test_single_heads_are_grouped() -> None:
    """One module per head: two blocks of four heads, in the order of their modules, as written out by hand."""
    model: Any = twin("from-scratch")
    for _, batch, found in traced("from-scratch"):
        assert [(record.layer, record.weights.shape[1]) for record in found.attention] == [(0, 4), (1, 4)]
        with torch.no_grad():
            hidden = model.embed(batch.tensors["input"])
            for record, block in zip(found.attention, model.blocks, strict=True):
                normed = block.attention_norm(hidden)
                for number, head in enumerate(block.attention.heads):
                    scores = head.query(normed) @ head.key(normed).transpose(1, 2) / 8**0.5
                    future = torch.ones_like(scores).triu(1).bool()
                    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
                    torch.testing.assert_close(record.weights[:, number], weights, atol=1e-6, rtol=0)
                hidden = block(hidden)


@pytest.mark.parametrize("name", ["torch-encoder", "torch-multihead"])
def test_attention_of_torch_modules_equals_their_own(name: str) -> None:
    """`nn.MultiheadAttention` itself can be asked for its weights."""
    attentions = [module for module in twin(name).modules() if isinstance(module, nn.MultiheadAttention)]
    own: list[Tensor] = []
    for _, batch, found in traced(name):
        own.clear()
        wanted = {"need_weights": True, "average_attn_weights": False}
        with hooked(attentions, lambda module, args, output: own.append(output[1]), **wanted):
            plain(name, batch)
        torch.testing.assert_close([record.weights for record in found.attention], own, atol=1e-6, rtol=0)


# --- Streams ----------------------------------------------------------------------------------------------------------


def test_source_and_target_of_equal_length_are_told_apart() -> None:
    made = whence.wrap(fresh("t5").model, family("t5").processor)
    item = made.encode({"source": "a quiet film", "output": "the actors were wonderful and the house was warm"})
    length = item.streams.count("source")
    row = next(row for row, _ in made.rows(item) if row.streams.count("target") == length)
    batch = made.batch([row])
    same_records(trace(made, batch).attention, own_attentions("t5", batch))


def test_words_and_regions_of_equal_number_are_told_apart() -> None:
    made = whence.wrap(fresh("lxmert").model, **family("lxmert").kwargs)
    regions = REGIONS_AND_QUESTIONS[0]["image"]
    item = made.encode({"image": regions, "text": "red ball ?"})
    assert item.streams.count("text") == item.streams.count("image") == 5
    batch = made.batch([item])
    same_records(trace(made, batch).attention, own_attentions("lxmert", batch))


def test_words_and_patches_of_equal_number_are_told_apart() -> None:
    made = whence.wrap(fresh("clip").model, family("clip").processor)
    picture = family("clip").inputs[0]["image"]
    texts = [" ".join("a" * count) for count in range(10, 20)]
    encoded = [made.encode({"image": picture, "text": text}) for text in texts]
    item = next(item for item in encoded if item.streams.count("text") == item.streams.count("image"))
    fresh_subject = whence.wrap(made.model, made.processor)  # has not seen other lengths
    batch = fresh_subject.batch([item])
    same_records(trace(fresh_subject, batch).attention, own_attentions("clip", batch))


def test_a_single_token_does_not_mislead_later_passes() -> None:
    """What is found out on the first input must hold for all: here (time, batch, width) with one of both."""
    made = family("torch-multihead")

    def encode(raw: str) -> dict[str, Any]:
        encoded = made.kwargs["encode"](raw)
        count = 1 if raw == "film" else None
        return {
            "tensors": {"input": encoded["tensors"]["input"][:count]},
            "features": {"text": encoded["features"]["text"][:count]},
        }

    first, second = (whence.wrap(made.model, encode=encode, labels=LABELS) for _ in range(2))
    whence.explain(first, "film", method="gradient_x_input")
    for method in ("gradient_x_input", "attention"):
        expected = whence.explain(second, made.inputs[0], method=method)
        assert whence.explain(first, made.inputs[0], method=method) == expected


# --- Values and gradients ---------------------------------------------------------------------------------------------


def products(name: str, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What goes into the output projection of every attention module: (batch, query, head, width)."""
    model: Any = twin(name)
    found: list[Tensor] = []
    if name == "xlnet":  # its projection is a tensor, not a module
        for layer in model.transformer.layer:
            project = layer.rel_attn.post_attention

            def noted(h: Tensor, vector: Tensor, residual: bool = True, project: Any = project) -> Any:
                found.append(vector.transpose(0, 1))
                return project(h, vector, residual)

            monkeypatch.setattr(layer.rel_attn, "post_attention", noted)
        plain(name, batch)
        return found
    ending = "o_proj" if name == "llama" else "attention.output.dense"
    modules = [module for place, module in model.named_modules() if place.endswith(ending)]
    with hooked(modules, lambda module, args, output: found.append(args[0].unflatten(-1, (4, -1)))):
        plain(name, batch)
    return found


@pytest.mark.parametrize("name", ["bert", "llama", "xlnet", "deberta-v2"])
def test_weights_times_values_are_what_is_projected(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grouped heads (Llama: two of values for four of queries) are repeated in the values."""
    for _, batch, found in traced(name):
        expected = products(name, batch, monkeypatch)
        assert len(expected) == len(found.attention) == 2
        for record, product in zip(found.attention, expected, strict=True):
            assert record.values.shape[1] == record.weights.shape[1] == 4
            again = (record.weights @ record.values).transpose(1, 2)
            torch.testing.assert_close(again, product, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_attention_gradients_equal_autograd_through_output_attentions(name: str) -> None:
    model: Any = twin(name)
    model.set_attn_implementation("eager")
    for _, batch, found in traced(name):
        outputs = run(model, batch, output_attentions=True)
        chosen = decision(outputs, batch).amax(-1).sum()  # no target was given: the predicted class or token
        own = [
            outputs[key][record.layer]
            for record in found.attention
            for key in [next((k for k, s in STREAMS.items() if s == (record.query, record.key)), "attentions")]
        ]
        gradients = torch.autograd.grad(chosen, own)
        for record, gradient in zip(found.attention, gradients, strict=True):
            assert gradient.abs().max() > 0
            close(record.gradient, gradient, 1e-6)


# --- Edits ------------------------------------------------------------------------------------------------------------


def written_out(embedded: Tensor, weigh: Any = lambda weights: weights, keep: Any = lambda layer, value: value) -> Any:
    """The forward pass of the `torch-sdpa` module from its embeddings, by hand, with a say in weights and values."""
    model: Any = twin("torch-sdpa")
    hidden = embedded
    for layer, (norm, project) in enumerate(zip(model.norms, model.projections, strict=True)):
        query, key, values = project(norm(hidden)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        weights = weigh((query @ key.transpose(2, 3) / 8**0.5).softmax(-1))
        hidden = hidden + (weights @ keep(layer, values)).transpose(1, 2).flatten(2)
    return model.head(hidden[:, 0])


@pytest.fixture
def short() -> Batch:
    """One example of the `torch-sdpa` module, without padding."""
    return subject("torch-sdpa").batch(items("torch-sdpa")[:1])


@pytest.fixture
def embedded(short: Batch) -> Tensor:
    model: Any = twin("torch-sdpa")
    return model.embed(short.tensors["input_ids"]).detach().requires_grad_()


def test_without_an_edit_the_hand_written_pass_is_the_model(short: Batch, embedded: Tensor) -> None:
    close(trace(subject("torch-sdpa"), short).logits, written_out(embedded), 1e-6)


def test_weights_can_be_replaced(short: Batch, embedded: Tensor) -> None:
    def uniform(record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full_like(weights, 1 / weights.shape[-1]), values

    found = trace(subject("torch-sdpa"), short, edit=uniform)
    expected = written_out(embedded, weigh=lambda weights: torch.ones_like(weights) / weights.shape[-1])
    close(found.logits, expected, 1e-6)
    assert (found.logits - trace(subject("torch-sdpa"), short).logits).abs().max() > 0.1
    assert all(record.weights.unique().numel() == 1 for record in found.attention)  # what was used is what is recorded


def test_values_can_be_zeroed_in_one_layer(short: Batch, embedded: Tensor) -> None:
    def without(record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return weights, torch.zeros_like(values) if record.order == 1 else values

    found = trace(subject("torch-sdpa"), short, edit=without)
    close(found.logits, written_out(embedded, keep=lambda layer, values: values * (layer == 0)), 1e-6)
    assert found.attention[0].values.any() and not found.attention[1].values.any()


def test_values_can_be_zeroed_where_a_model_has_an_eager_path() -> None:
    """Zeroed values of BERT's first layer: the same bits as from a twin whose value projection is zero there."""
    zeroed: Any = fresh("bert").model
    zeroed.set_attn_implementation("eager")
    first = zeroed.bert.encoder.layer[0].attention.self.value
    with torch.no_grad():
        first.weight.zero_()
        first.bias.zero_()
    (_, batch, _), *_ = traced("bert")
    found = trace(
        subject("bert"), batch, ("attention",), edit=lambda record, w, v: (w, v * 0.0 if record.order == 0 else v)
    )
    with torch.no_grad():
        assert torch.equal(found.logits, run(zeroed, batch).logits)


def test_detached_weights_cut_the_way_through_queries_and_keys(short: Batch, embedded: Tensor) -> None:
    def detached(record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return weights.detach(), values

    plain_pass, cut = (trace(subject("torch-sdpa"), short, edit=edit) for edit in (None, detached))
    assert torch.equal(cut.logits, plain_pass.logits)
    expected = written_out(embedded, weigh=lambda weights: weights.detach())
    (gradient,) = torch.autograd.grad(expected.amax(), embedded)
    close(cut.gradients["word"]["text"], gradient, 1e-6)
    assert (plain_pass.gradients["word"]["text"] - gradient).abs().max() > 1e-2
    # With values cut as well, nothing but the residual of the token that is read is left.
    both = trace(subject("torch-sdpa"), short, edit=lambda record, w, v: (w.detach(), v.detach()))
    assert not both.gradients["word"]["text"][0, 1:].any() and both.gradients["word"]["text"][0, 0].any()


def test_edits_leave_the_plain_trace_alone(short: Batch) -> None:
    before = trace(subject("torch-sdpa"), short).logits
    trace(subject("torch-sdpa"), short, edit=lambda record, w, v: (w * 0.0, v))
    assert torch.equal(trace(subject("torch-sdpa"), short).logits, before)


# --- The method `attention` -------------------------------------------------------------------------------------------


def last_maps(name: str, batch: Batch) -> dict[tuple[str, str], np.ndarray]:
    """The model's own last-layer attention of one example, mean of heads: (query, key), by streams."""
    return {streams: maps[-1].mean(1)[0].numpy() for streams, maps in own_attentions(name, batch).items()}


def explained(name: str, raw: Any) -> tuple[Any, dict[tuple[str, str], np.ndarray]]:
    """The attribution of one input by attention, and the model's own maps."""
    found = whence.explain(subject(name), raw, method="attention")
    return found, last_maps(name, subject(name).batch([subject(name).encode(raw)]))


@pytest.mark.parametrize("name", ["bert", "vit"])
def test_classifiers_are_read_at_their_first_token(name: str) -> None:
    for raw in family(name).inputs:
        found, maps = explained(name, raw)
        (own,) = maps.values()
        assert np.array_equal(found.scores, own[0])


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_language_models_are_read_at_their_last_token(name: str) -> None:
    together = whence.explain(subject(name), family(name).inputs, method="attention")
    for raw, padded in zip(family(name).inputs, together, strict=True):
        found, maps = explained(name, raw)
        assert np.array_equal(found.scores, maps["text", "text"][-1])
        np.testing.assert_allclose(padded.scores, found.scores, atol=1e-6)


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("given", [True, False])
def test_generated_tokens_are_read_one_by_one(name: str, given: bool) -> None:
    raw: Any = {"source": "the house was warm", "output": "the river appeared"} if given else "the house was warm"
    found = whence.explain(subject(name), raw, method="attention")
    item = subject(name).encode(raw)
    sources = item.streams.count("source")
    assert found.axes == ("generated", "feature") and found.scores.shape == (len(item.generated), len(item.features))
    for number, (row, _) in enumerate(subject(name).rows(item)):
        maps = last_maps(name, subject(name).batch([row]))
        seen = sources + row.streams.count("target")
        # the rows share a padded batch, which rounds differently from each of them alone
        np.testing.assert_allclose(found.scores[number, :sources], maps["target", "source"][-1], atol=1e-6)
        np.testing.assert_allclose(found.scores[number, sources:seen], maps["target", "target"][-1], atol=1e-6)
        assert not found.scores[number, seen:].any()
        assert found.visible[number].tolist() == [place < seen for place in range(len(item.features))]


def test_pooled_patches_are_read_together() -> None:
    """BEiT decides by the mean of its patches, DINOv2 by that and its first token."""
    for name, first in (("beit", 1), ("dinov2", 0)):
        for raw in family(name).inputs:
            found, maps = explained(name, raw)
            np.testing.assert_allclose(found.scores, maps["image", "image"][first:].mean(0), atol=1e-6)


def test_each_tower_is_read_where_it_decides() -> None:
    """CLIP compares the text's end token with the picture's first token."""
    end = family("clip").processor.tokenizer.eos_token_id
    for raw in family("clip").inputs:
        found, maps = explained("clip", raw)
        ids = found.input.tensors["input_ids"].tolist()
        assert np.array_equal(found.scores[: len(ids)], maps["text", "text"][ids.index(end)])
        assert np.array_equal(found.scores[len(ids) :], maps["image", "image"][0])


def test_what_a_sink_takes_is_reported_and_not_given_back() -> None:
    """GPT-OSS: weights as used sum to less than one."""
    together = whence.explain(subject("gpt-oss"), family("gpt-oss").inputs, method="attention")
    for raw, padded in zip(family("gpt-oss").inputs, together, strict=True):
        found, maps = explained("gpt-oss", raw)
        assert np.array_equal(found.scores, maps["text", "text"][-1])
        missing = 1 - found.scores.sum()
        assert missing > 1e-3
        assert missing - 1e-6 <= found.details["sink"] < 1
        assert padded.details["sink"] == pytest.approx(found.details["sink"], abs=1e-6)
    assert "sink" not in whence.explain(subject("gpt2"), family("gpt2").inputs[0], method="attention").details


def test_windows_are_refused_for_attention_only() -> None:
    with pytest.raises(ValueError, match=r"SwinForImageClassification attends within windows.*gradient"):
        whence.explain(subject("swin"), family("swin").inputs[0], method="attention")
    for method in ("gradient", "gradient_x_input", "integrated_gradients"):
        found = whence.explain(subject("swin"), family("swin").inputs[0], method=method)
        assert np.isfinite(found.scores).all() and found.scores.any()
