"""Hiding features: masked variants, leave-one-out, occlusion and LIME beside plain loops over the model and captum."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import FeatureAblation, Occlusion
from scipy.ndimage import gaussian_filter
from sklearn.metrics import average_precision_score
from torch import nn

import whence
from families import LOGITS, PICTURES, TEXTS, Family, family, fresh, plain_inputs
from whence.core.inputs import Input
from whence.core.levels import at_level
from whence.methods import perturbation
from whence.model import masked_runs
from whence.model.masked_inputs import expanded, masked, units, ways
from whence.model.masked_runs import MaskedRuns
from whence.model.subject import Subject


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


@cache
def subject(name: str) -> Subject:
    return wrapped(family(name))


def wrapped(made: Family) -> Subject:
    return whence.wrap(made.model, made.processor, **made.kwargs)


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Within the tolerance times the largest number, if that is above one."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= tolerance * max(1.0, np.abs(expected).max())


@torch.no_grad()
def last_logits(made: Family, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the plain model decides by; of a language model, the logits of the next token."""
    outputs = made.model(**tensors)
    logits = outputs if isinstance(outputs, torch.Tensor) else next(outputs[name] for name in LOGITS if name in outputs)
    return logits.flatten(0, -2)[-1]


def leave_one_out_by_hand(made: Family, raw: Any, hide: dict[str, Any], target: int, special: list[bool]) -> np.ndarray:
    """One forward pass per entry of every argument named in `hide`, with that entry set to the value given there."""
    x = {name: tensor.to(made.model.dtype) if tensor.is_floating_point() else tensor for name, tensor in raw.items()}
    full = last_logits(made, x)[target]
    scores = []
    for name, value in hide.items():
        for place in range(x[name].shape[1]):
            other = {**x, name: x[name].clone()}
            other[name][0, place] = value
            scores.append(float(full - last_logits(made, other)[target]))
    return np.where(special, 0.0, scores)


# ---- masked variants -------------------------------------------------------------------------------------------------


def variant(name: str, raw: Any, hidden: list[int], how: Any) -> tuple[Input, Input]:
    item = subject(name).encode(raw)
    keep = np.ones((1, len(item.features)), bool)
    keep[0, hidden] = False
    (made,) = masked(subject(name), item, keep, how)
    return item, made


@pytest.mark.parametrize(
    ("how", "token"), [("mask", "[MASK]"), ("unknown", "[UNK]"), ("pad", "[PAD]"), ("auto", "[MASK]")]
)
def test_a_token_takes_the_place_of_what_is_hidden(how: Any, token: str) -> None:
    item, made = variant("bert", "a masterful film", [0, 2], how)
    id = family("bert").processor.convert_tokens_to_ids(token)
    ids = item.tensors["input_ids"]
    assert made.tensors["input_ids"].tolist() == [ids[0], ids[1], id, *ids[3:]]  # [CLS] stays though it was named
    assert made.tensors["attention_mask"].tolist() == [1] * 5


def test_deleted_tokens_close_up() -> None:
    item, made = variant("bert", {"text": "two dogs", "pair": "the animals"}, [1, 4], "delete")
    left = [0, 2, 3, 5, *range(6, len(item.features))]
    for name, array in item.tensors.items():
        assert made.tensors[name].tolist() == array[left].tolist()
    assert made.features == tuple(item.features[i] for i in left)
    assert made.words.tolist() == item.words[left].tolist() and made.special.tolist() == item.special[left].tolist()


def test_a_text_cannot_be_deleted_altogether() -> None:
    with pytest.raises(
        ValueError, match="mask='delete' leaves GPT2LMHeadModel nothing of the text to read; use another"
    ):
        whence.explain(subject("gpt2"), "a", "leave_one_out", mask="delete")


@pytest.mark.parametrize("how", ["zero", "mean", "black", "blur"])
def test_patches(how: Any) -> None:
    item, made = variant("vit", PICTURES[0], [1 + 6], how)  # row 1, column 2
    before, after = item.tensors["pixel_values"], made.tensors["pixel_values"]
    fill = {
        "zero": np.zeros_like(before),
        "mean": np.broadcast_to(before.mean((1, 2), keepdims=True), before.shape),
        "black": np.full_like(before, -1.0),  # (0 - 0.5) / 0.5
        "blur": gaussian_filter(before, (0, 8, 8)),
    }[how]
    inside = np.zeros((32, 32), bool)
    inside[8:16, 16:24] = True
    assert np.array_equal(after[:, ~inside], before[:, ~inside])
    close(after[:, inside], fill[:, inside], 1e-6)


@pytest.mark.parametrize("how", ["zero", "mean", "delete"])
def test_regions(how: Any) -> None:
    item, made = variant("lxmert", family("lxmert").inputs[1], [6], how)  # the second of three regions
    looks, boxes = (item.tensors[name] for name in ("visual_feats", "visual_pos"))
    if how == "delete":
        assert np.array_equal(made.tensors["visual_feats"], looks[[0, 2]])
        assert np.array_equal(made.tensors["visual_pos"], boxes[[0, 2]])
        assert len(made.tensors["visual_attention_mask"]) == 2
        return
    close(made.tensors["visual_feats"][1], looks.mean(0) if how == "mean" else np.zeros(8), 1e-6)
    assert np.array_equal(made.tensors["visual_feats"][[0, 2]], looks[[0, 2]])
    assert np.array_equal(made.tensors["visual_pos"], boxes)


def test_what_auto_stands_for() -> None:
    def of(name: str, how: Any = "auto") -> dict[str, str]:
        return ways(subject(name), subject(name).encode(family(name).inputs[1]), how)

    assert of("bert") == {"text": "mask"}
    assert of("t5") == {"source": "unknown", "target": "unknown"}
    assert of("gpt2") == {"text": "zero"}  # its only token for the unknown ends a text
    assert of("clip") == {"text": "zero", "image": "zero"}
    assert of("vilt") == {"text": "mask", "image": "zero"}
    assert of("vilt", "blur") == {"text": "mask", "image": "blur"}
    assert of("vilt", "delete") == {"text": "delete", "image": "zero"}
    assert of("torch-encoder") == {"text": "zero"}
    found = whence.explain(subject("bert"), "a film", "leave_one_out")
    assert found.details["mask"] == {"text": "mask"}


@pytest.mark.parametrize(
    ("name", "how", "message"),
    [
        ("bert", "blur", "tokens cannot be hidden by mask='blur'; use one of mask, unknown, pad, delete, zero"),
        ("vit", "mask", "pixels cannot be hidden by mask='mask'; use one of zero, mean, black, blur"),
        ("t5", "mask", "the tokenizer of T5ForConditionalGeneration has no mask token; use another mask"),
        ("torch-sdpa", "pad", "has no pad token"),
    ],
)
def test_ways_that_do_not_fit(name: str, how: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        whence.explain(subject(name), family(name).inputs[1], "leave_one_out", mask=how)
    assert "\n" not in str(error.value)


def test_units() -> None:
    item = subject("roberta").encode("a masterful film")
    assert item.features == ("<s>", "a", " m", "asterful", " film", "</s>")
    assert units(item).tolist() == [-1, 0, 1, 2, 3, -1]
    assert units(at_level(item, "word")).tolist() == [-1, 0, 1, 1, 2, -1]
    assert units(at_level(subject("vit").encode(PICTURES[0]), "word")).tolist() == [-1, *range(16)]


# ---- values ----------------------------------------------------------------------------------------------------------


def test_equal_inputs_run_once_and_nothing_is_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    s = subject("bert")
    items = [s.encode(text) for text in TEXTS[:3]]
    batch, aim = s.batch(items), s.aim([0] * 3)
    random = np.random.default_rng(0)
    keeps = [random.random((40, len(item.features))) < 0.5 for item in items]
    keeps = [np.concatenate([keep, keep]) for keep in keeps]
    s.values(batch, aim)
    seen: list[tuple[int, ...]] = []
    handle = s.model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(tuple(kwargs["attention_mask"].sum(1).tolist())), with_kwargs=True
    )
    found = MaskedRuns(s).masked_values(batch, aim, keeps, "delete")
    handle.remove()
    assert all(len(set(lengths)) == 1 for lengths in seen)
    distinct = {
        v.tensors["input_ids"].tobytes() for i, k in zip(items, keeps, strict=True) for v in masked(s, i, k, "delete")
    }
    assert sum(map(len, seen)) == len(distinct)
    for item, keep, values in zip(items, keeps, found, strict=True):
        for v, value in list(zip(masked(s, item, keep, "delete"), values, strict=True))[::7]:
            tensors = {name: torch.from_numpy(array)[None] for name, array in v.tensors.items()}
            close(value, last_logits(family("bert"), tensors)[0].item())
    monkeypatch.setattr(masked_runs, "MAX_BYTES", 1000)  # a few at a time
    for one, other in zip(MaskedRuns(s).masked_values(batch, aim, keeps, "delete"), found, strict=True):
        close(one, other)


def test_one_input_with_two_targets() -> None:
    s = subject("bert")
    item = s.encode("a masterful film")
    batch, aim = s.batch([item, item]), s.aim([0, 1])
    keep = np.array([[True, True, False, True, True]])
    both = MaskedRuns(s).masked_values(batch, aim, [keep, keep])
    tensors = {name: torch.from_numpy(array)[None] for name, array in next(masked(s, item, keep)).tensors.items()}
    close(np.concatenate(both), last_logits(family("bert"), tensors)[:2])


# ---- leave one out ---------------------------------------------------------------------------------------------------


def mask_id(made: Family) -> int:
    tokenizer = getattr(made.processor, "tokenizer", made.processor)
    return tokenizer.unk_token_id if tokenizer.mask_token is None else tokenizer.mask_token_id


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "modernbert", "deberta-v2", "xlnet", "llama-classifier"])
def test_twin_of_texts(name: str) -> None:
    made = family(name)
    texts = made.inputs[:3]  # of different lengths, so that two are padded
    for text, a in zip(texts, whence.explain(subject(name), texts, "leave_one_out", 1), strict=True):
        twin = leave_one_out_by_hand(made, plain_inputs(made, text), {"input_ids": mask_id(made)}, 1, list(a.special))
        close(a.scores, twin)
        shifted = np.roll(twin, 1)  # a broken twin
        assert np.abs(a.scores - shifted).max() > 1e-2


def test_twin_in_double_precision() -> None:
    made = fresh("bert")
    made.model.double()
    for text in made.inputs[:2]:
        a = whence.explain(wrapped(made), text, "leave_one_out", 1)
        twin = leave_one_out_by_hand(made, plain_inputs(made, text), {"input_ids": mask_id(made)}, 1, list(a.special))
        close(a.scores, twin, 1e-10)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma3"])
def test_twin_of_zero_embeddings(name: str) -> None:
    made = family(name)
    for text in made.inputs[:2]:
        a = whence.explain(subject(name), text, "leave_one_out", 5, mask="zero")
        ids = plain_inputs(made, text)["input_ids"]
        word = made.model.get_input_embeddings()
        hidden: list[int] = []
        handle = word.register_forward_hook(lambda m, args, out: out.index_fill(1, torch.tensor(hidden).long(), 0.0))  # noqa: B023
        values = []
        for place in [None, *range(ids.shape[1])]:
            hidden[:] = [] if place is None else [place]
            values.append(last_logits(made, {"input_ids": ids})[5].item())
        handle.remove()
        close(a.scores, np.where(a.special, 0.0, values[0] - np.array(values[1:])))
        assert np.abs(a.scores).max() > 1e-2


@pytest.mark.parametrize("name", ["t5", "bart", "marian"])
def test_twin_of_generated_text(name: str) -> None:
    made = family(name)
    raw = {"source": "the house was warm", "output": "it was warm"}
    a = whence.explain(subject(name), raw, "leave_one_out")
    item, token = a.input, mask_id(made)
    source = {key: torch.from_numpy(item.tensors[key])[None] for key in ("input_ids", "attention_mask")}
    output = torch.from_numpy(item.tensors["decoder_input_ids"])[None]
    for row, feature in enumerate(item.generated):
        seen = feature - item.streams.count("source")
        x = {**source, "decoder_input_ids": output[:, :seen]}
        hide = {"input_ids": token, "decoder_input_ids": token}
        twin = leave_one_out_by_hand(made, x, hide, int(output[0, seen]), list(a.special[:feature]))
        close(a.scores[row, :feature], twin)
        assert not a.scores[row, feature:].any()


def test_twin_of_patches_and_captum() -> None:
    made = family("vit")
    x = plain_inputs(made, PICTURES[0])["pixel_values"]
    a = whence.explain(subject("vit"), PICTURES[0], "leave_one_out", 1)
    full = last_logits(made, {"pixel_values": x})[1]
    twin = np.zeros((4, 4))
    for row in range(4):
        for column in range(4):
            other = x.clone()
            other[0, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = 0
            twin[row, column] = full - last_logits(made, {"pixel_values": other})[1]
    close(a.scores, [0.0, *twin.ravel()])
    assert np.abs(a.scores[1:] - twin.T.ravel()).max() > 1e-2  # rows and columns are not the same
    patches = (torch.arange(32)[:, None] // 8 * 4 + torch.arange(32) // 8)[None, None]
    ablation = FeatureAblation(lambda pixels: made.model(pixels).logits)
    close(ablation.attribute(x, target=1, feature_mask=patches)[0, 0, ::8, ::8].detach(), twin)


def test_captum_on_ids() -> None:
    made = family("bert")
    x = plain_inputs(made, TEXTS[0])
    rest = (x["attention_mask"], x["token_type_ids"])
    ablation = FeatureAblation(lambda ids, mask, types: made.model(ids, mask, types).logits)
    expected = ablation.attribute(x["input_ids"], mask_id(made), target=2, additional_forward_args=rest)[0].numpy()
    a = whence.explain(subject("bert"), TEXTS[0], "leave_one_out", 2)
    close(a.scores, np.where(a.special, 0.0, expected))


@pytest.mark.parametrize("name", ["clip", "vilt", "lxmert", "visual-bert"])
def test_both_streams_of_picture_and_text_are_hidden(name: str) -> None:
    a = whence.explain(subject(name), family(name).inputs[1], "leave_one_out", 0)
    for stream in ("text", "image"):
        own = np.array([s == stream for s in a.streams])
        assert (a.scores[own & ~a.special] != 0).all() and not a.scores[own & a.special].any()


def test_regions_twin() -> None:
    made, raw = family("lxmert"), family("lxmert").inputs[0]
    a = whence.explain(subject("lxmert"), raw, "leave_one_out", 1)
    x = plain_inputs(made, raw)
    twin = leave_one_out_by_hand(made, x, {"visual_feats": 0.0}, 1, [False] * 5)
    close(a.scores[-5:], twin)


def test_words_are_hidden_as_wholes() -> None:
    made, text = family("roberta"), "a masterful film"
    a = whence.explain(subject("roberta"), text, "leave_one_out", 1, level="word")
    x = plain_inputs(made, text)
    other = {**x, "input_ids": x["input_ids"].clone()}
    other["input_ids"][0, 2:4] = mask_id(made)  # both pieces of "masterful"
    drop = (last_logits(made, x)[1] - last_logits(made, other)[1]).item()
    assert a.features == ("<s>", "a", "masterful", "film", "</s>")
    close(a.scores[2], drop)


# ---- occlusion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "gpt2", "bart", "vit", "vilt", "lxmert"])
def test_windows_of_one_are_leave_one_out(name: str) -> None:
    raws = family(name).inputs[:2]
    one = whence.explain(subject(name), raws, "leave_one_out")
    other = whence.explain(subject(name), raws, "occlusion(window=1)")
    assert all(np.array_equal(a.scores, b.scores) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("window", "stride"), [(2, 1), (3, 2), (4, 4), (50, 1)])
def test_windows_of_text(window: int, stride: int) -> None:
    made = family("bert")
    a = whence.explain(subject("bert"), TEXTS[0], "occlusion", 1, window=window, stride=stride)
    x = plain_inputs(made, TEXTS[0])
    count = x["input_ids"].shape[1] - 2
    full, start = last_logits(made, x)[1].item(), 0
    drops: list[list[float]] = [[] for _ in range(count)]
    while True:
        covered = range(start, min(start + window, count))
        other = {**x, "input_ids": x["input_ids"].clone()}
        for place in covered:
            other["input_ids"][0, 1 + place] = mask_id(made)
        for place in covered:
            drops[place].append((full - last_logits(made, other)[1].item()) / len(covered))
        if start + window >= count:
            break
        start += stride
    close(a.scores, [0.0, *map(np.mean, drops), 0.0])


def test_square_windows_and_captum() -> None:
    made = family("vit")
    x = plain_inputs(made, PICTURES[0])["pixel_values"]
    a = whence.explain(subject("vit"), PICTURES[0], "occlusion", 1, window=2)
    full = last_logits(made, {"pixel_values": x})[1].item()
    drops: dict[tuple[int, int], list[float]] = {}
    for top in range(3):
        for left in range(3):
            other = x.clone()
            other[0, :, 8 * top : 8 * top + 16, 8 * left : 8 * left + 16] = 0
            drop = full - last_logits(made, {"pixel_values": other})[1].item()
            for row, column in [(top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)]:
                drops.setdefault((row, column), []).append(drop / 4)
    twin = np.array([[np.mean(drops[row, column]) for column in range(4)] for row in range(4)])
    close(a.scores[1:], twin.ravel())
    peer = Occlusion(lambda pixels: made.model(pixels).logits)
    found = peer.attribute(x, sliding_window_shapes=(3, 16, 16), strides=(3, 8, 8), target=1)
    close(found[0, 0, ::8, ::8].detach().numpy() / 4, twin)  # captum gives every feature the whole drop


@pytest.mark.parametrize(
    ("window", "stride", "message"),
    [(0, 1, "'window' takes"), (2, 0, "'stride' takes"), (2, 3, "stride is at most the window")],
)
def test_windows_that_leave_features_out(window: int, stride: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        whence.explain(subject("bert"), "a film", "occlusion", window=window, stride=stride)


# ---- lime ------------------------------------------------------------------------------------------------------------


def test_lime_twin() -> None:
    made, s, text = family("bert"), subject("bert"), TEXTS[0]
    a = whence.explain(s, text, "lime(samples=60)", 1, seed=3)
    item = s.encode(text)
    count = len(item.features) - 2
    draws = perturbation._drawn(count, 60, s.batch([item], seed=3).generators()[0])
    assert draws[0].all() and not draws[1:].all(1).any()
    x, values = plain_inputs(made, text), []
    for draw in draws:
        ids = x["input_ids"].clone()
        ids[0, 1:-1][~torch.from_numpy(draw)] = mask_id(made)
        values.append(last_logits(made, {**x, "input_ids": ids})[1].item())
    z, y = draws.astype(float), np.array(values)
    cosine = np.array([row @ np.ones(count) / max(np.linalg.norm(row), 1e-12) / np.sqrt(count) for row in z])
    weights = np.diag(np.exp(-((1 - cosine) ** 2) / 0.25**2))
    design = np.c_[z, np.ones(60)]
    penalty = np.diag([1.0] * count + [0.0])  # the intercept is free
    solved = np.linalg.solve(design.T @ weights @ design + penalty, design.T @ weights @ y)
    close(a.scores, [0.0, *solved[:-1], 0.0], 1e-4)
    close(a.base, solved[-1], 1e-4)
    mean = np.diag(weights) @ y / weights.sum()
    r2 = 1 - ((y - design @ solved) ** 2 @ np.diag(weights)) / ((y - mean) ** 2 @ np.diag(weights))
    close(a.details["r2"], r2, 1e-4)
    assert np.abs(whence.explain(s, text, "lime(samples=60)", 1, seed=4).scores - a.scores).max() > 1e-3


def test_lime_refuses_too_few_samples() -> None:
    with pytest.raises(ValueError, match="'samples' takes a whole number from 2"):
        whence.explain(subject("bert"), "a film", "lime(samples=1)")


# ---- models whose answer is known ------------------------------------------------------------------------------------


class Additive(nn.Module):
    """The sum of its words' values; two letters have none."""

    def __init__(self) -> None:
        super().__init__()
        values = torch.linspace(-2, 3, 26).double()
        values[[0, 4]] = 0
        self.word = nn.Embedding.from_pretrained(values[:, None], freeze=False)
        self.mix = nn.MultiheadAttention(1, 1, batch_first=True).double()  # only so that there is an attention

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        states = self.word(input)
        return states.sum(1) + 0 * self.mix(states, states, states)[0].sum(1)


def letters(word: str) -> dict[str, Any]:
    return {"tensors": {"input": np.array([ord(c) - 97 for c in word])}, "features": {"text": list(word)}}


@pytest.mark.parametrize(
    "spec",
    ["leave_one_out", "shap", "shap(fixed_context=1)", "shap(algorithm='permutation')", "shap(algorithm='exact')"],
)
def test_additive_models_give_their_coefficients(spec: str) -> None:
    s = whence.wrap(Additive().eval(), encode=letters)
    a = whence.explain(s, "whence", spec, 0)
    close(a.scores, s.model.word.weight[[ord(c) - 97 for c in "whence"], 0].detach(), 1e-10)
    assert abs(a.scores[2]) <= 1e-12 and abs(a.scores[5]) <= 1e-12  # "e" cannot matter


def test_lime_of_an_additive_model() -> None:
    s = whence.wrap(Additive().eval(), encode=letters)
    a = whence.explain(s, "whence", "lime(samples=4000)", 0)
    close(a.scores, s.model.word.weight[[ord(c) - 97 for c in "whence"], 0].detach(), 1e-2)
    assert a.details["r2"] > 0.9999


@pytest.mark.parametrize("spec", ["leave_one_out", "occlusion", "lime", "shap", "shap(fixed_context=1)"])
def test_planted_words_are_found(spec: str) -> None:
    s = whence.load("planted")
    sample = whence.zoo.examples("planted", 10, seed=5)
    texts = [example.input for example in sample]
    precision = {}
    for name in (spec, "random"):
        found = whence.explain(s, texts, name)
        ranked = [(e.truth, np.abs(a.scores)) for e, a in zip(sample, found, strict=True)]
        precision[name] = np.mean([average_precision_score(truth, scores) for truth, scores in ranked])
    assert precision[spec] > (0.6 if spec == "occlusion" else 0.9) > 0.4 > precision["random"]


def test_expanded_keeps_special_features() -> None:
    keep = expanded(np.array([[False, True]]), np.array([-1, 0, 1, 1, -1]))
    assert keep.tolist() == [[True, False, True, True, True]]
