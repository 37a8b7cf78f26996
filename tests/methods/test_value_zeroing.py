"""Value zeroing beside a slow twin: a pass of the whole model for every layer, attention and token, without padding.

The twin sets a row of the model's own value projection to zero in a hook, keeps the attention weights by handing out
the softmax results of the plain pass again, and reads the layer's output. It can be told to make one mistake; then it
must be far off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import whence
from families import REGIONS_AND_QUESTIONS, Classifier, fresh, kept_in, plain_inputs
from whence.methods import zeroing
from whence.model.batching import Batch
from whence.model.layers import Layer, layers_of
from whence.propagation import few_changes
from whence.propagation.few_changes import FewChanges
from whence.testing import check_method

SINGLE, DOUBLE = torch.float32, torch.float64
FAR = 1e-3


# ---- the twin --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """Where the model keeps the values of one attention, and the output of the layer it is in."""

    layer: str
    value: str  # below the layer
    query: str
    key: str
    call: int = 0  # of the layer's module
    value_call: int = 0  # of the value projection
    output: int = 0  # where the layer returns the states of the queries


@dataclass(frozen=True)
class Maps:
    """The raw distances of one example, a joint matrix per layer, in the order of the model."""

    sizes: dict[str, int]
    layers: list[tuple[set[str], np.ndarray]]  # the streams that a layer moves, and 1 - cos
    deciding: dict[str, int]

    def span(self, stream: str) -> slice:
        return span(self.sizes, stream)

    @property
    def steps(self) -> list[np.ndarray]:
        return [divided(raw) for _, raw in self.layers]

    def product(self, wrong: str = "") -> np.ndarray:
        product = np.eye(sum(self.sizes.values()))
        for step in self.steps:
            step = (step + np.eye(len(step))) / 2 if wrong == "identity added" else step
            product = product @ step if wrong == "reversed layers" else step @ product
        return product

    def row(self, matrix: np.ndarray) -> np.ndarray:
        """The rows of the deciding tokens."""
        return sum(matrix[self.span(stream)][token] for stream, token in self.deciding.items())

    def rolled(self, wrong: str = "") -> np.ndarray:
        product = self.product(wrong)
        return self.row(product.T if wrong == "columns" else product)

    def alone(self, *numbers: int) -> np.ndarray:
        """The mean of some layers of each deciding stream."""
        scores = np.zeros(sum(self.sizes.values()))
        for stream, token in self.deciding.items():
            own = [divided(raw) for streams, raw in self.layers if stream in streams]
            scores += np.mean([own[number][self.span(stream)][token] for number in numbers], 0)
        return scores


def span(sizes: dict[str, int], stream: str) -> slice:
    start = sum(list(sizes.values())[: list(sizes).index(stream)])
    return slice(start, start + sizes[stream])


def divided(raw: np.ndarray) -> np.ndarray:
    """Rows divided by their sums; where there is nothing to divide, the identity."""
    rows = np.eye(len(raw))
    for i, row in enumerate(raw):
        if row.sum() > 0:
            rows[i] = row / row.sum()
    return rows


def repeated(layer: str, value: str, query: str, key: str = "") -> list[Attention]:
    return [Attention(layer.format(number), value, query, key or query) for number in range(2)]


def decoder(layer: str, own: str, cross: str) -> list[Attention]:
    """Two layers of a decoder, each with self-attention and then cross-attention."""
    pairs = zip(repeated(layer, own, "target"), repeated(layer, cross, "target", "source"), strict=True)
    return [attention for pair in pairs for attention in pair]


def crossed(layer: str) -> list[Attention]:
    """A layer of LXMERT: both directions of co-attention share their projections, then each stream by itself."""
    both = "visual_attention.att.value"
    return [
        Attention(layer, both, "text", "image"),
        Attention(layer, both, "image", "text", value_call=1, output=1),
        Attention(layer, "lang_self_att.self.value", "text", "text"),
        Attention(layer, "visn_self_att.self.value", "image", "image", output=1),
    ]


ALBERT = "albert.encoder.albert_layer_groups.0"
ATTENTIONS = {
    "bert": repeated("bert.encoder.layer.{}", "attention.self.value", "text"),
    "albert": [
        Attention(ALBERT, "albert_layers.0.attention.value", "text", "text", call=number, value_call=number)
        for number in range(3)
    ],
    "vit": repeated("vit.layers.{}", "attention.v_proj", "image"),
    "gpt2": repeated("transformer.h.{}", "attn.c_attn", "text"),
    "gpt2-classifier": repeated("transformer.h.{}", "attn.c_attn", "text"),
    "llama": repeated("model.layers.{}", "self_attn.v_proj", "text"),
    "t5": repeated("encoder.block.{}", "layer.0.SelfAttention.v", "source")
    + decoder("decoder.block.{}", "layer.0.SelfAttention.v", "layer.1.EncDecAttention.v"),
    "bart": repeated("model.encoder.layers.{}", "self_attn.v_proj", "source")
    + decoder("model.decoder.layers.{}", "self_attn.v_proj", "encoder_attn.v_proj"),
    "clip": repeated("vision_model.encoder.layers.{}", "self_attn.v_proj", "image")
    + repeated("text_model.encoder.layers.{}", "self_attn.v_proj", "text"),
    "lxmert": repeated("lxmert.encoder.layer.{}", "attention.self.value", "text")
    + repeated("lxmert.encoder.r_layers.{}", "attention.self.value", "image")[:1]
    + crossed("lxmert.encoder.x_layers.0")
    + crossed("lxmert.encoder.x_layers.1"),
    "visual-bert": repeated("visual_bert.encoder.layer.{}", "attention.self.value", "*"),
}
DECIDING = {
    **{name: {"text": 0} for name in ("bert", "albert", "lxmert")},
    **{name: {"text": -1} for name in ("gpt2", "gpt2-classifier", "llama")},
    **{"vit": {"image": 0}, "t5": {"target": -1}, "bart": {"target": -1}, "clip": {"text": -1, "image": 0}},
}
CASES = [(name, dtype) for name in ATTENTIONS for dtype in (SINGLE, DOUBLE)]
SAME_LENGTH = {"image": REGIONS_AND_QUESTIONS[0]["image"], "text": "a red circle"}  # 5 regions, 5 tokens


def raws(name: str) -> list[Any]:
    """Inputs of different lengths."""
    inputs = fresh(name).inputs
    if name == "lxmert":
        return [inputs[0], inputs[1], SAME_LENGTH]
    return [inputs[0], inputs[2]] if name in ("t5", "bart") else inputs[:2]


class Weights:
    """Stands in for softmax: notes what comes out, or hands out again what came out before."""

    def __init__(self, known: list[Tensor], use: bool) -> None:
        self.known, self.use, self.made = known, use, []

    def __call__(self, scores: Tensor, dim: int, dtype: Any = None, **rest: Any) -> Tensor:
        self.made.append(torch.softmax(scores, dim, dtype=dtype))  # F.softmax would come here again
        return self.known[len(self.made) - 1] if self.use else self.made[-1]


@contextlib.contextmanager
def hooked(module: nn.Module, call: int, act: Any) -> Iterator[None]:
    """`act(output)` at one call of a module; what it returns is used instead."""
    count = [-1]

    def hook(module: Any, args: Any, output: Any) -> Any:
        count[0] += 1
        return act(output) if count[0] == call else None

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


class Twin:
    """One example of a family on the plain model, without padding."""

    def __init__(self, name: str, model: Any, tensors: dict[str, Tensor]) -> None:
        self.model, self.attentions = model, ATTENTIONS[name]
        self.tensors = {k: t.to(model.dtype) if t.is_floating_point() else t for k, t in tensors.items()}
        self.weights: list[Tensor] = []
        self.weights = self.run(self.attentions[0])[1]
        assert len(self.weights) == len(self.attentions)
        self.sizes: dict[str, int] = {}
        for stream in ("source", "text", "image", "target", "*"):
            for a, A in zip(self.attentions, self.weights, strict=True):
                self.sizes |= {stream: A.shape[2]} if a.query == stream else {}
        self.deciding = {"*": tensors["input_ids"].shape[1] - 2} if name == "visual-bert" else DECIDING[name]

    def run(self, attention: Attention, zero: bool = False, wrong: str = "") -> tuple[np.ndarray, list[Tensor]]:
        """The output of the attention's layer, and all softmax results.

        To zero is to run as many copies as there are keys, the value of token j set to zero in copy j.
        """
        copies = self.sizes[attention.key] if zero else 1
        known = list(self.weights)
        if zero and wrong == "attention renormalised":
            number = self.attentions.index(attention)
            A = known[number].repeat(copies, 1, 1, 1)
            for j in range(copies):
                A[j, ..., j] = 0
            known[number] = A / A.sum(-1, keepdim=True).clamp(min=1e-9)
        seen: list[Tensor] = []

        def change(values: Tensor) -> Tensor:
            values = values.clone()
            start = values.shape[-1] // 3 * 2 if attention.value.endswith("c_attn") else 0  # after queries and keys
            for j in range(copies if zero else 0):
                values[j, j, start:] = 0
            return values

        def note(output: Any) -> None:
            seen.append(output if isinstance(output, Tensor) else output[attention.output])

        modules = dict(self.model.named_modules())
        value = modules[f"{attention.layer}.{attention.value}"]
        stand_in = Weights(known, use=bool(known) and wrong != "attention follows")
        with pytest.MonkeyPatch.context() as patch, torch.no_grad():
            patch.setattr(F, "softmax", stand_in)
            with hooked(value, attention.value_call, change), hooked(modules[attention.layer], attention.call, note):
                self.model(**{name: torch.cat([tensor] * copies) for name, tensor in self.tensors.items()})
        return seen[0].double().numpy(), stand_in.made

    def maps(self, wrong: str = "") -> Maps:
        layers: dict[tuple[str, int], tuple[set[str], np.ndarray]] = {}
        total = sum(self.sizes.values())
        for attention in self.attentions:
            (x,) = self.run(attention)[0]
            streams, raw = layers.setdefault((attention.layer, attention.call), (set(), np.zeros((total, total))))
            streams.add(attention.query)
            C = np.zeros((len(x), self.sizes[attention.key]))
            for j, changed in enumerate(self.run(attention, True, wrong)[0]):
                for i in range(len(x)):
                    u, v = x[i] / np.linalg.norm(x[i]), changed[i] / np.linalg.norm(changed[i])
                    C[i, j] = (u - v) @ (u - v) / 2  # 1 - cos, without losing what is small
            C = divided(C) if wrong == "each attention by itself" and C.shape[0] == C.shape[1] else C
            raw[span(self.sizes, attention.query), span(self.sizes, attention.key)] += C
        return Maps(self.sizes, list(layers.values()), self.deciding)


def inputs_of(name: str, dtype: torch.dtype) -> Iterator[tuple[Any, dict[str, Tensor]]]:
    """For each raw input the model, on its eager path, and what it is given for the last token that is explained."""
    made = fresh(name)
    model: Any = made.model.to(dtype)
    model.set_attn_implementation("eager")
    for raw in raws(name):
        tensors = plain_inputs(made, raw)
        if "decoder_input_ids" in tensors:
            source = {key: t for key, t in tensors.items() if not key.startswith("decoder")}
            ids = model.generate(**source, do_sample=False, num_beams=1)[0].tolist()
            end = made.processor.eos_token_id
            ids = ids[: ids.index(end, 1)] if end in ids[1:] else ids[:-1]
            tensors["decoder_input_ids"] = torch.tensor([ids])
        yield model, tensors


@cache
def twins(name: str, dtype: torch.dtype) -> list[Twin]:
    given = list(inputs_of(name, dtype))  # outside: the models' first weights are float32's
    with kept_in(dtype):
        return [Twin(name, model, tensors) for model, tensors in given]


@cache
def right(name: str, dtype: torch.dtype) -> list[Maps]:
    made = twins(name, dtype)
    with kept_in(dtype):
        return [twin.maps() for twin in made]


@cache
def subject(name: str, dtype: torch.dtype = SINGLE) -> Any:
    made = fresh(name)
    return whence.wrap(made.model.to(dtype), made.processor, **made.kwargs)


@cache
def explained(name: str, dtype: torch.dtype, options: str = "") -> list[np.ndarray]:
    """Scores of the last row of each input, explained together, with streams in the order of the twin."""
    # Padded, T5 in float32 moves by 3e-5: no more than its own distance to float64, where it is compared padded.
    size = 1 if (name, dtype) == ("t5", SINGLE) else None
    found = []
    spec = f"value_zeroing({options})"
    of = subject(name, dtype)
    with kept_in(dtype):
        attributions = whence.explain(of, raws(name), spec, batch_size=size)
    for a, maps in zip(attributions, right(name, dtype), strict=True):
        wide = "layer=" not in options or dtype == DOUBLE  # products of many layers need the range of 64 bits
        assert a.scores.dtype == (np.float64 if wide else np.float32)
        total = sum(maps.sizes.values())
        row, streams = np.atleast_2d(a.scores)[-1][:total], np.array(a.input.streams)[:total]
        found.append(row if "*" in maps.sizes else np.concatenate([row[streams == s] for s in maps.sizes]))
    return found


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_twin(name: str, dtype: torch.dtype) -> None:
    for scores, maps in zip(explained(name, dtype), right(name, dtype), strict=True):
        assert distance(scores, maps.rolled()) <= (1e-10 if dtype == DOUBLE else 1e-5)


SEVERAL = ["t5", "bart", "lxmert"]  # several attentions in a layer
MISTAKES = [(name, wrong) for name in ATTENTIONS for wrong in ("columns", "reversed layers", "identity added")]
MISTAKES += [(name, "attention renormalised") for name in ("bert", "vit", "gpt2", "t5", "lxmert")]
MISTAKES += [(name, wrong) for name in SEVERAL for wrong in ("attention follows", "each attention by itself")]


@pytest.mark.parametrize(("name", "wrong"), MISTAKES)
def test_broken_twin(name: str, wrong: str) -> None:
    again = wrong not in ("columns", "reversed layers", "identity added")
    maps = twins(name, SINGLE)[1].maps(wrong) if again else right(name, SINGLE)[1]
    assert distance(explained(name, SINGLE)[1], maps.rolled(wrong)) > FAR


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "clip", "lxmert"])
def test_one_layer_or_some(name: str) -> None:
    for options, numbers in (("layer=0", [0]), ("layer=-1", [-1]), ("layer=[0, -1]", [0, -1])):
        for scores, maps in zip(explained(name, SINGLE, options), right(name, SINGLE), strict=True):
            assert distance(scores, maps.alone(*numbers)) <= 1e-5, options


def test_streams_of_one_length() -> None:
    a = whence.explain(subject("lxmert"), SAME_LENGTH, "value_zeroing")
    assert a.input.streams.count("text") == a.input.streams.count("image")
    assert distance(a.scores, right("lxmert", SINGLE)[2].rolled()) <= 1e-5


def test_read() -> None:
    for scores, maps in zip(explained("bert", SINGLE, "read='column'"), right("bert", SINGLE), strict=True):
        assert distance(scores, maps.product()[:, 0]) <= 1e-5
    for scores, maps in zip(explained("bert", SINGLE, "layer=1, read='received'"), right("bert", SINGLE), strict=True):
        assert distance(scores, maps.steps[1].mean(0)) <= 1e-5


def test_a_torch_encoder() -> None:
    made = fresh("torch-encoder")
    model: Any = made.model.double()  # 1 - cos as it is written loses small distances in float32

    def run(layer: Any, x: Tensor, token: int | None = None) -> Tensor:
        """A layer written out, with the value of a token zeroed: (token, width) to the same."""
        attention = layer.self_attn
        q, k, v = F.linear(x, attention.in_proj_weight, attention.in_proj_bias).unflatten(-1, (3, 4, 8)).unbind(1)
        if token is not None:
            v[token] = 0
        A = (torch.einsum("ihd,jhd->hij", q, k) / 8**0.5).softmax(-1)
        h = layer.norm1(x + attention.out_proj(torch.einsum("hij,jhd->ihd", A, v).flatten(1)))
        return layer.norm2(h + layer.linear2(layer.linear1(h).relu()))

    found = whence.explain(whence.wrap(model, **made.kwargs), made.inputs[:3], "value_zeroing")
    for raw, a in zip(made.inputs[:3], found, strict=True):
        row = np.eye(len(a.features))[0]
        with torch.no_grad():
            states = [model.embed(plain_inputs(made, raw)["input_ids"])[0]]
            states.append(run(model.encoder.layers[0], states[0]))
            for layer, x in reversed(list(zip(model.encoder.layers, states, strict=True))):
                columns = [1 - F.cosine_similarity(run(layer, x, j), run(layer, x), -1) for j in range(len(x))]
                row = row @ divided(torch.stack(columns, 1).numpy())
        assert distance(a.scores, row) <= 1e-10


def test_a_module_per_head() -> None:
    made = fresh("from-scratch")
    model: Any = made.model.double()

    def run(block: Any, x: Tensor, token: int) -> Tensor:
        """The block, with the value of a token zeroed in every head."""

        def zero(values: Tensor) -> Tensor:
            return values.index_fill(1, torch.tensor(token), 0.0)

        with contextlib.ExitStack() as stack:
            for head in block.attention.heads:
                stack.enter_context(hooked(head.value, 0, zero))
            return block(x)

    found = whence.explain(whence.wrap(model, **made.kwargs), made.inputs[:2], "value_zeroing")
    for raw, a in zip(made.inputs[:2], found, strict=True):
        row = np.eye(len(a.features))[-1]
        with torch.no_grad():
            states = [model.embed(plain_inputs(made, raw)["input"])]
            states.append(model.blocks[0](states[0]))
            for block, x in reversed(list(zip(model.blocks, states, strict=True))):
                columns = [1 - F.cosine_similarity(run(block, x, j), block(x), -1)[0] for j in range(x.shape[1])]
                row = row @ divided(torch.stack(columns, 1).numpy())
        assert distance(a.scores, row) <= 1e-10


# ---- identities ------------------------------------------------------------------------------------------------------


def raw_maps(made: Any, texts: list[Any]) -> tuple[Batch, list[np.ndarray]]:
    """A batch and the distances of every layer."""
    items = [made.encode(text) for text in texts]
    batch = made.batch([row for item in items for row, _ in made.rows(item)[-1:]] or items)
    trace = made.trace(batch, made.aim([None] * len(batch)), ("attention", "values", "deciding"))
    return batch, [zeroing.zeroed(made, batch, layer).numpy() for layer in layers_of(made, batch, trace)]


@pytest.mark.parametrize("name", ["bert", "xlnet", "gpt2", "mistral", "bart", "clip", "lxmert"])
def test_rows_sum_to_one_and_distances_are_at_most_two(name: str) -> None:
    batch, maps = raw_maps(subject(name), fresh(name).inputs[:2])
    mask = batch.mask.numpy()
    assert not mask.all()
    for raw in maps:
        assert (raw >= 0).all() and (raw <= 2 + 1e-5).all() and raw.any()
        assert not raw[np.broadcast_to(~mask[:, None], raw.shape)].any()  # padding is never taken away
        shares = zeroing.shares(torch.tensor(raw)).numpy()
        np.testing.assert_allclose(shares.sum(-1), 1, rtol=1e-5)


@pytest.fixture
def rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers on copies of a batch round otherwise than on the batch itself, as on some devices they do."""
    run = Layer.run

    def rough(*args: Any) -> dict[str, Tensor]:
        noise = torch.Generator().manual_seed(0)
        return {s: x * (1 + 1e-7 * torch.randn(x.shape, generator=noise)) for s, x in run(*args).items()}

    monkeypatch.setattr(Layer, "run", rough)


@pytest.mark.usefixtures("rounding")
@pytest.mark.parametrize(("name", "reach"), [("gpt2", 99), ("mistral", 4)])
def test_what_is_not_attended_to_scores_exactly_nothing(name: str, reach: int) -> None:
    batch, maps = raw_maps(subject(name), fresh(name).inputs[:2])
    size = batch.mask.shape[1]
    back = np.arange(size)[:, None] - np.arange(size)  # how far behind the query a key is
    real = batch.mask.numpy()
    for raw in maps:
        for row, mask in zip(raw, real, strict=True):
            seen = (back >= 0) & (back < reach) & mask & mask[:, None]
            assert (row[seen] > 0).all()
            assert not row[~seen & mask[:, None]].any()


@pytest.mark.usefixtures("rounding")
def test_a_layer_without_values_leaves_everything_in_place() -> None:
    made = fresh("bert")
    for layer in made.model.bert.encoder.layer:
        nn.init.zeros_(layer.attention.self.value.weight)
        nn.init.zeros_(layer.attention.self.value.bias)
    found = whence.explain(whence.wrap(made.model, made.processor), made.inputs[:3], "value_zeroing")
    for a in found:
        np.testing.assert_array_equal(a.scores, np.eye(len(a.scores))[0])


def test_a_value_that_is_zero_already_changes_nothing() -> None:
    made = fresh("bert")
    model = made.model.double()
    with torch.no_grad():
        state = model.bert.embeddings(plain_inputs(made, "a masterful film")["input_ids"])
        value = model.bert.encoder.layer[0].attention.self.value
        value.bias.copy_(-value.weight @ state[0, 2])
    _, maps = raw_maps(whence.wrap(model, made.processor), ["a masterful film"])
    assert (maps[0][0, :, 2] < 1e-20).all()
    assert (np.delete(maps[0][0], 2, 1) > 1e-6).all()


def test_the_scale_of_a_layers_output_does_not_matter() -> None:
    made = fresh("bert")
    plain = raw_maps(subject("bert"), made.inputs[:2])[1]
    with torch.no_grad():
        for parameter in made.model.bert.encoder.layer[0].output.LayerNorm.parameters():
            parameter.mul_(3)
    scaled = raw_maps(whence.wrap(made.model, made.processor), made.inputs[:2])[1]
    np.testing.assert_allclose(scaled[0], plain[0], atol=1e-6)
    assert np.abs(scaled[1] - plain[1]).max() > FAR  # the next layer sees another input


@pytest.mark.parametrize("options", ["", "layer=0", "layer=1, read='received'"])
def test_without_positions_the_order_of_words_does_not_matter(options: str) -> None:
    made = fresh("torch-encoder")
    made.model.position.weight.data.zero_()
    words, order = ["film", "cold", "bright", "music", "dogs"], [3, 0, 4, 2, 1]
    texts = [" ".join(words), " ".join(words[number] for number in order)]
    here, there = whence.explain(whence.wrap(made.model, **made.kwargs), texts, f"value_zeroing({options})")
    places = [0, *(1 + number for number in order), 6]
    assert there.features == tuple(here.features[place] for place in places)
    assert distance(there.scores, here.scores[places]) <= 1e-5
    assert distance(there.scores, here.scores) > FAR


def test_one_token() -> None:
    (a,) = whence.explain(subject("gpt2"), ["a"], "value_zeroing")
    np.testing.assert_allclose(a.scores, [1])


@pytest.mark.parametrize("name", ["bert", "xlnet", "lxmert"])
def test_memory_is_bounded_by_chunks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = whence.explain(subject(name), fresh(name).inputs[:2], "value_zeroing")
    sizes: list[int] = []
    run = Layer.run
    monkeypatch.setattr(zeroing, "MAX_TOKENS", 100)
    monkeypatch.setattr(Layer, "run", lambda *args: sizes.append(args[1] * args[2]) or run(*args))
    for a, b in zip(whence.explain(subject(name), fresh(name).inputs[:2], "value_zeroing"), whole, strict=True):
        assert distance(a.scores, b.scores) <= 1e-6
    assert max(sizes) * max(len(a.features) for a in whole) <= 100
    assert len(sizes) > 10


# ---- what cannot be done ---------------------------------------------------------------------------------------------


class AlmostOne(Classifier):
    """A single attention module; its residual connection is outside."""

    def __init__(self, vocabulary: int):
        super().__init__(vocabulary)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, input: Tensor) -> Tensor:
        hidden = self.embed(input)
        return self.head((hidden + self.attention(hidden, hidden, hidden)[0])[:, 0])


@pytest.mark.parametrize("name", ["torch-sdpa", "torch-multihead", "one attention"])
def test_models_without_a_module_for_each_layer(name: str) -> None:
    made = fresh("torch-multihead" if name == "one attention" else name)
    made = replace(made, model=AlmostOne(300).eval()) if name == "one attention" else made
    with pytest.raises(ValueError, match="needs layers that are modules, with the residual connection inside") as error:
        whence.explain(whence.wrap(made.model, **made.kwargs), made.inputs[:2], "value_zeroing")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("options", "message"), [("layer=2", "layer 2 is out of range"), ("layer=[]", "a list of 1")])
def test_layers_that_are_not_there(options: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        whence.explain(subject("bert"), "a masterful film", f"value_zeroing({options})")


def test_half_precision() -> None:
    made = fresh("bert")
    half = whence.wrap(made.model.to(torch.bfloat16), made.processor)
    check_method("value_zeroing", half, made.inputs[:2]).raise_for_failures()
    for a, b in zip(
        *(whence.explain(s, made.inputs[:3], "value_zeroing") for s in (half, subject("bert"))), strict=True
    ):
        np.testing.assert_allclose(a.scores, b.scores, atol=0.05)


class LinearCalls(TorchFunctionMode):
    """Counts how many copies go through every linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[int] = []

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            self.copies.append(len(args[0]))
        return func(*args, **(kwargs or {}))


def test_what_is_the_same_in_all_copies_is_computed_once() -> None:
    """Queries, keys and values of a layer go through for one copy; the output projection and two more for all."""
    with LinearCalls() as calls:
        a = whence.explain(subject("bert"), "a masterful film", "value_zeroing")
    layers = subject("bert").model.config.num_hidden_layers
    assert len(a.features) > 2 and calls.copies.count(len(a.features)) == 3 * layers


@pytest.mark.parametrize(("name", "share"), [("bert", 0.75), ("llama", 0.5)])
def test_changes_in_few_directions_need_few_products(name: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change is followed head by head up to the activation; rows that it does not reach are not computed again."""
    text = " ".join(["a masterful film"] * 8)
    whence.explain(subject(name), text, "value_zeroing")  # finds out facts by gradients, which the counter breaks
    found = []
    for follows in (False, True):
        if not follows:
            monkeypatch.setattr(FewChanges, "seen", lambda self, *given: None)
            monkeypatch.setattr(few_changes, "WORTH", -1.0)
        with FlopCounterMode(display=False) as counter:
            scores = whence.explain(subject(name), text, "value_zeroing").scores
        work = counter.get_flop_counts()["Global"]
        found.append((scores, work[torch.ops.aten.mm] + work.get(torch.ops.aten.addmm, 0)))
        monkeypatch.undo()
    (plain, all_products), (scores, products) = found
    np.testing.assert_allclose(scores, plain, rtol=1e-4, atol=1e-6)
    assert products < share * all_products
