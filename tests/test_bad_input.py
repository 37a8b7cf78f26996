"""Bad input: one clear sentence, or a result that says what was done; the model is given back unchanged."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from typer.testing import CliRunner

import whence
from families import LABELS, TEXTS, family, fresh, subject_of
from whence import cli
from whence.core import registry
from whence.model.loan import difference, fingerprint
from whence.model.subject import Subject

LONG = "a " * 100  # the tiny models take 64 tokens
RED = (200, 30, 40)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


@cache
def subject(name: str) -> Subject:
    return whence.wrap(family(name).model, family(name).processor, **family(name).kwargs)


def refusal(call: Callable[[], Any]) -> str:
    """The message with which a call is refused: one sentence, on one line."""
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    message = str(caught.value)
    assert type(caught.value) in (ValueError, TypeError)  # not a subclass that came through from below
    assert message.strip() == message and "\n" not in message and "Traceback" not in message
    assert not re.search(r"[.!?]\s+[A-Z]", message), "more than one sentence"
    return message


def refused(made: Subject, raw: Any, *words: str, **options: Any) -> None:
    """Explaining is refused with a sentence that holds these words, and the model is left as it was."""
    before = fingerprint(made.model, full=True)
    message = refusal(lambda: whence.explain(made, raw, **options))
    for word in words:
        assert word in message
    assert difference(before, fingerprint(made.model, full=True)) == ""


def explained(made: Subject, raw: Any, **options: Any) -> whence.Attribution:
    """A well-formed attribution of the input."""
    before = fingerprint(made.model, full=True)
    a = whence.explain(made, raw, **options)
    assert a.scores.shape[-1] == len(a.features) and np.isfinite(a.scores).all()
    assert difference(before, fingerprint(made.model, full=True)) == ""
    return a


# --- Texts ------------------------------------------------------------------------------------------------------------

PARTS = {"bert": "text", "gpt2": "prompt", "t5": "source"}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("text", ["", " ", "\n\t  \u00a0"])
def test_an_empty_text_is_refused(name: str, text: str) -> None:
    refused(subject(name), text, PARTS[name], "empty")


def test_an_empty_part_is_named() -> None:
    refused(subject("bert"), ("a film", " "), "pair", "empty")
    refused(subject("gpt2"), {"prompt": "a film", "continuation": ""}, "continuation", "empty")
    refused(subject("t5"), {"source": "a film", "output": ""}, "output", "empty")
    refused(subject("clip"), {"image": Image.new("RGB", (9, 9)), "text": ""}, "text", "empty")


def test_a_text_of_which_no_token_is_left_is_refused() -> None:
    refused(subject("bert"), "\x00", "no token of the text")
    refused(subject("bert"), "\u200b", "no token of the text")


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "t5"])
def test_a_long_text_is_refused_with_the_surplus(name: str) -> None:
    made = subject(name)
    count = len(made.processor(LONG)["input_ids"])
    refused(made, LONG, str(count), f"{count - 64} more", "64", "truncate=True")


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "t5"])
def test_a_truncated_text_says_so(name: str) -> None:
    made = subject(name)
    count = len(made.processor(LONG)["input_ids"])
    a = explained(made, LONG, truncate=True)
    assert a.streams.count(a.streams[0]) == 64
    assert any(f"cut from {count} to 64 tokens" in note for note in a.notes)
    assert not any("cut" in note for note in explained(made, "a film", truncate=True).notes)


def test_long_parts_are_refused_with_the_surplus() -> None:
    refused(subject("bert"), (LONG, "a film"), "the text and the pair", "more than the 64")
    refused(subject("gpt2"), {"prompt": LONG, "continuation": " a film"}, "continuation", "more than the 64")
    refused(subject("t5"), {"source": "a film", "output": LONG}, "the output", "more than the 63")
    a = explained(subject("t5"), {"source": LONG, "output": LONG}, method="random", truncate=True)
    assert [sum("cut from" in note for note in a.notes), a.streams.count("target")] == [2, 64]


def test_a_long_prompt_is_cut_at_its_start_and_a_long_continuation_refused() -> None:
    made = subject("gpt2")
    cut = explained(made, {"prompt": LONG, "continuation": " a film"}, truncate=True)
    assert len(cut.features) == made.max_length and any("cut" in note for note in cut.notes)
    assert cut.input.generated and cut.input.generated[-1] == len(cut.features) - 1
    refused(made, {"prompt": "a", "continuation": LONG}, "continuation alone", truncate=True)


ODD = {
    "surrogate": "a \ud83d film",
    "null": "a\x00film",
    "right to left": "שלום עולם",
    "mixed directions": "a \u202eשלום\u202c film",
    "emoji": "a 👩‍👩‍👧‍👦 film 🏳️‍🌈",
    "combining": "e\u0301\u0301\u0301 film",
    "unassigned": "a \U000e0fff film",
    "no spaces": "电影很好看",
}


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
@pytest.mark.parametrize("kind", ODD)
def test_odd_characters_are_explained(name: str, kind: str, tmp_path: Path) -> None:
    a = explained(subject(name), ODD[kind])
    assert a.input.raw == ODD[kind]
    for (start, end), part in zip(a.input.offsets, a.input.parts, strict=True):
        assert part in ("", "output") or -1 <= start <= end <= len(ODD[kind])
    assert any("surrogate" in note for note in a.notes) == (kind == "surrogate")
    total = a.words().scores.sum(-1)
    assert total == pytest.approx(a.scores.sum(-1), abs=1e-4)
    a.save(tmp_path / "a.json")
    assert whence.Attribution.load(tmp_path / "a.json") == a
    assert str(a) and a.to_html()


@pytest.mark.parametrize("raw", [None, 3, b"a film", ["a film"], ("a", "b", "c"), {"txt": "a"}, {"text": 3}, {}])
def test_what_is_no_text_is_refused(raw: Any) -> None:
    raw = [raw] if isinstance(raw, list) else raw  # a list in a list; alone it is a list of inputs
    refused(subject("bert"), raw, "text")


# --- Lists ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", ["", LONG, None, 3, {"txt": "a"}, ("a", "")])
def test_the_bad_item_of_a_list_is_named(bad: Any) -> None:
    refused(subject("bert"), ["a film", TEXTS[0], bad, "a film"], "input 2 ")
    message = refusal(lambda: whence.compare(subject("bert"), [bad, "a film"], methods=["gradient", "random"]))
    assert "input 0 " in message


def test_the_bad_picture_of_a_list_is_named() -> None:
    good = Image.new("RGB", (9, 9), RED)
    refused(subject("vit"), [good, good, "nowhere.png"], "input 2 ", "nowhere.png")


@pytest.mark.parametrize("error", [ValueError("no"), json.JSONDecodeError("no", "{", 1), KeyError("no")])
def test_what_the_users_encoder_raises_keeps_its_cause(error: Exception) -> None:
    def encode(raw: str) -> dict[str, Any]:
        if raw == "bad":
            raise error
        return family("torch-sdpa").kwargs["encode"](raw)

    made = whence.wrap(family("torch-sdpa").model, encode=encode, labels=LABELS)
    with pytest.raises(Exception, match=r"input 1 .*no") as caught:
        whence.explain(made, ["a film", "bad"])
    assert caught.value.__cause__ is error


def test_an_empty_list_gives_an_empty_list() -> None:
    assert whence.explain(subject("bert"), []) == []
    assert whence.compare(subject("bert"), [], methods=["gradient", "random"]) == []


def test_a_list_of_targets_has_one_per_input() -> None:
    refused(subject("bert"), ["a film", "a ball"], "2 were expected", "1 came", target=["positive"])
    refused(subject("bert"), ["a film"], "1 were expected", "0 came", target=[])
    refused(subject("bert"), ["a film", "a ball"], "'nope'", target=["positive", "nope"])
    refused(subject("bert"), "a film", "['positive']", target=["positive"])  # one input has one target


# --- Pictures ---------------------------------------------------------------------------------------------------------


def painted(mode: str) -> Image.Image:
    """A red picture with a dark stripe, in the given mode; what is transparent would be white."""
    pixels = np.full((24, 24, 3), RED, np.uint8)
    pixels[8:12] = 20
    picture = Image.fromarray(pixels)
    if mode == "P":
        return picture.quantize(8)
    if mode == "P transparent":
        indices = np.zeros((24, 24), np.uint8)
        indices[8:12] = 1
        palette = Image.fromarray(indices).convert("P")
        palette.putpalette([*RED, 20, 20, 20])
        palette.info["transparency"] = 1
        return palette
    return picture.convert(mode)


@pytest.mark.parametrize("mode", ["RGB", "L", "LA", "1", "P", "P transparent", "RGBA", "CMYK", "I;16", "F", "HSV"])
def test_pictures_of_every_mode_are_explained(mode: str) -> None:
    a = explained(subject("vit"), painted("L").convert("I").convert(mode) if mode == "I;16" else painted(mode))
    assert a.features[1:3] == ("patch 0,0", "patch 0,1") and a.scores.any()
    assert a.heatmap().shape == (32, 32)


@pytest.mark.parametrize("mode", ["P", "RGBA", "CMYK"])
def test_the_same_picture_in_another_mode_gives_the_same_scores(mode: str) -> None:
    plain = explained(subject("vit"), painted("RGB"))
    assert explained(subject("vit"), painted(mode)).scores == pytest.approx(plain.scores, rel=1e-3, abs=1e-3)


def test_what_is_transparent_is_white() -> None:
    clear = Image.fromarray(np.zeros((24, 24, 4), np.uint8))
    white = Image.new("RGB", (24, 24), "white")
    assert np.array_equal(explained(subject("vit"), clear).scores, explained(subject("vit"), white).scores)


@pytest.mark.parametrize("name", ["vit", "dinov2", "swin"])
@pytest.mark.parametrize("size", [(1, 1), (3, 30), (30, 1)])
def test_tiny_pictures_are_read_as_what_they_are(name: str, size: tuple[int, int]) -> None:
    small = explained(subject(name), Image.new("RGB", size, RED))
    plain = explained(subject(name), Image.new("RGB", (40, 40), RED))
    assert np.array_equal(small.scores, plain.scores)


def test_arrays_and_files_are_explained(tmp_path: Path) -> None:
    plain = explained(subject("vit"), painted("RGB"))
    painted("RGB").save(tmp_path / "a.png")
    array = np.asarray(painted("RGB"))
    for form in (array, array / 255, tmp_path / "a.png", str(tmp_path / "a.png")):
        assert np.array_equal(explained(subject("vit"), form).scores, plain.scores)
    assert explained(subject("vit"), array[..., 0]).scores.any()


def test_an_unreadable_picture_is_refused(tmp_path: Path) -> None:
    made = subject("vit")
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "empty.png").write_bytes(b"")
    painted("RGB").resize((200, 200)).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:300])
    for file in ("text.png", "empty.png", "half.png", "missing.png"):
        refused(made, tmp_path / file, file, "cannot be read")
    refused(made, str(tmp_path), "cannot be read")
    refused(made, "a\x00b.png", "cannot be read")


@pytest.mark.parametrize(
    ("array", "word"),
    [
        (np.zeros((2, 3, 4, 5)), "(2, 3, 4, 5)"),
        (np.zeros((4, 4, 2)), "(4, 4, 2)"),
        (np.zeros((0, 4, 3), np.uint8), "(0, 4, 3)"),
        (np.full((4, 4), np.nan), "nan"),
        (np.full((4, 4), 7.0), "7.0"),
        (np.zeros((4, 4), np.int64), "int64"),
    ],
)
def test_an_array_that_is_no_picture_is_refused(array: np.ndarray, word: str) -> None:
    refused(subject("vit"), array, "picture", word)


@pytest.mark.parametrize("raw", [None, 3, b"x", {"img": 1}])
def test_what_is_no_picture_is_refused(raw: Any) -> None:
    refused(subject("vit"), raw, "image")


# --- What the model comes with ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PARTS)
def test_a_missing_tokenizer_is_named(name: str) -> None:
    refused(whence.wrap(family(name).model), "a film", "needs a tokenizer", "whence.wrap(model, tokenizer)")


def test_a_missing_image_processor_is_named() -> None:
    picture = Image.new("RGB", (9, 9))
    needs = ("needs an image processor", "whence.wrap(model, image_processor)")
    refused(whence.wrap(family("vit").model), picture, *needs)
    refused(whence.wrap(family("vit").model, family("bert").processor), picture, *needs)
    both = family("clip").processor
    refused(whence.wrap(family("clip").model, both.tokenizer), {"image": picture, "text": "a"}, *needs)
    refused(whence.wrap(family("clip").model, both.image_processor), {"image": picture, "text": "a"}, "a tokenizer")


def test_an_image_processor_with_wrong_settings_is_refused() -> None:
    processor = copy.deepcopy(family("vit").processor)
    processor.image_mean = [0.5, 0.5]
    refused(whence.wrap(family("vit").model, processor), Image.new("RGB", (9, 9)), "image processor", "mean")


def test_a_tokenizer_with_wrong_settings_is_refused() -> None:
    tokenizer = copy.deepcopy(family("bert").processor)
    tokenizer.model_max_length = ""
    refused(whence.wrap(family("bert").model, tokenizer), "a film", "tokenizer", "settings")


def test_the_wrong_processor_is_refused() -> None:
    refused(whence.wrap(family("bert").model, family("vit").processor), "a film", "needs a tokenizer")


def test_a_model_that_was_not_wrapped_is_refused() -> None:
    message = refusal(lambda: whence.explain(family("bert").model, "a film"))  # type: ignore[arg-type]
    assert "whence.wrap" in message


# --- Targets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target", ["postive", "positiv", "", "probability('nope')", "logit(1.5)", "contrast(0, 'nope')"]
)
def test_a_target_that_is_not_a_label_lists_the_labels(target: str) -> None:
    refused(subject("bert"), "a film", "label", *LABELS, target=target)


def test_the_nearest_label_is_suggested() -> None:
    refused(subject("bert"), "a film", "did you mean 'positive'?", target="postive")


def test_long_values_are_not_shown_whole() -> None:
    for target in ("x" * 5000, ["x" * 5000], "contrast(" + "0," * 3000 + ")"):
        assert len(refusal(lambda target=target: whence.explain(subject("bert"), "a film", target=target))) < 300
    assert "xxx... (5,002 letters)" in refusal(lambda: whence.explain(subject("bert"), "a film", "x" * 5000))


@pytest.mark.parametrize("target", [3, -1, 10**9, np.int64(7), "logit(3)", "contrast(0, 3)", whence.Target("logit", 3)])
def test_an_index_out_of_range_says_the_range(target: Any) -> None:
    refused(subject("bert"), "a film", "out of range", "3 classes", target=target)


@pytest.mark.parametrize("target", [10**6, -1, "logit(1000000)"])
def test_a_token_out_of_range_says_the_range(target: Any) -> None:
    made = subject("gpt2")
    refused(made, "a film", "out of range", str(made.model.config.vocab_size), target=target)


def test_an_index_out_of_range_without_labels_says_the_range() -> None:
    made = whence.wrap(family("torch-sdpa").model, encode=family("torch-sdpa").kwargs["encode"])
    refused(made, "a film", "out of range", "3", target=3)
    assert explained(made, "a film", target=2).target.index == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "target",
    [True, 1.5, b"x", {"a": 1}, np.zeros((2, 2)), "probability(True)", whence.Target("nokind", 1), whence.Target(3)],
)
def test_what_is_no_target_is_refused(target: Any) -> None:
    refused(subject("bert"), "a film", "target", target=target)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("contrast('positive')", ["two classes", "has 1"]),
        ("contrast", ["two classes", "has 0"]),
        ("margin(1, 2)", ["one class", "has 2"]),
        ("probability(positive)", ["in quotes"]),
    ],
)
def test_a_kind_with_the_wrong_arguments_says_what_it_takes(target: str, words: list[str]) -> None:
    refused(subject("bert"), "a film", *words, target=target)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_target_of_several_tokens_shows_the_pieces(name: str) -> None:
    made = subject(name)
    target = " unforgettable"
    pieces = [piece for _, piece in made.pieces(target)]
    assert len(pieces) > 1
    refused(made, "a film", f"{len(pieces)} tokens", *map(repr, pieces), "continuation", target=target)
    refused(made, "a film", *map(repr, pieces), target=f"probability({target!r})")


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_target_that_is_no_token_is_refused(name: str) -> None:
    refused(subject(name), "a film", "target", target="")
    refused(subject(name), "a film", "target", target="\ud83d")


def test_generated_text_is_its_own_target() -> None:
    raw = {"prompt": "a film", "continuation": " about music"}
    refused(subject("gpt2"), raw, "every generated token", target=3)
    refused(subject("gpt2"), raw, "every generated token", target=" a")


def test_a_target_function_must_return_one_value_per_example() -> None:
    def whole(logits: Tensor, batch: Any) -> Tensor:
        return logits

    def number(logits: Tensor, batch: Any) -> float:
        return 3.0

    def constant(logits: Tensor, batch: Any) -> Tensor:
        return torch.ones(len(logits))

    refused(subject("bert"), ["a film", "a ball"], "one value per example", "(2, 3)", target=whole)
    refused(subject("bert"), "a film", "one value per example", "float", target=number)
    refused(subject("bert"), "a film", "target", "differentiated", method="gradient_x_input", target=constant)


def test_there_is_no_runner_up_to_a_single_output() -> None:
    def first(outputs: Any) -> Tensor:
        return outputs.logits[:, :1]

    def bare(outputs: Tensor) -> Tensor:
        return outputs[:, :1]

    labelled = whence.wrap(family("bert").model, family("bert").processor, output=first, labels=["score"])
    nameless = whence.wrap(family("torch-sdpa").model, encode=family("torch-sdpa").kwargs["encode"], output=bare)
    for made in (labelled, nameless):
        refused(made, "a film", "runner-up", target="margin")


# --- Numbers that are none --------------------------------------------------------------------------------------------

POISON = {
    "bert": "classifier.bias",
    "gpt2": "lm_head.weight",
    "t5": "lm_head.weight",
    "vit": "classifier.bias",
    "torch-multihead": "head.bias",
}


@pytest.mark.parametrize("name", POISON)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_refused(name: str, value: float) -> None:
    made = fresh(name)
    with torch.no_grad():
        made.model.get_parameter(POISON[name]).view(-1)[0] = value
    poisoned = whence.wrap(made.model, made.processor, **made.kwargs)
    named = () if name == "vit" else (made.inputs[0],)
    for method in ("gradient_x_input", "attention", "random"):
        refused(poisoned, made.inputs[0], "NaN or infinite logits", *named, method=method)


def test_the_input_whose_logits_are_no_numbers_is_named() -> None:
    made = fresh("bert")
    word = made.processor.convert_tokens_to_ids("film")
    with torch.no_grad():
        made.model.get_input_embeddings().weight[word] = float("nan")
    poisoned = whence.wrap(made.model, made.processor)
    refused(poisoned, ["a ball", "the film", "the river and the city"], "NaN or infinite", "'the film'")
    assert explained(poisoned, "a ball").scores.any()  # the model still explains what it can


def test_a_picture_is_not_named_by_its_pixels() -> None:
    made = fresh("vit")
    with torch.no_grad():
        made.model.get_parameter("classifier.bias")[0] = float("nan")
    message = refusal(lambda: whence.explain(whence.wrap(made.model, made.processor), made.inputs[0]))
    assert "[[" not in message


# --- Methods and options ----------------------------------------------------------------------------------------------


def test_an_unknown_method_is_suggested() -> None:
    refused(subject("bert"), "a film", "unknown method 'gradiant'", "did you mean 'gradient'", method="gradiant")
    refused(subject("bert"), "a film", "'zzz'", "attention", "integrated_gradients", method="zzz")
    message = refusal(lambda: whence.compare(subject("bert"), "a film", methods=["gradient", "atention"]))
    assert "did you mean 'attention'" in message


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("gradient(redcue='l1')", ["no option 'redcue'", "did you mean 'reduce'?"]),
        ("gradient(colour='red')", ["no option 'colour'", "at, reduce"]),
        ("gradient(reduce='l3')", ["'reduce'", "'l2' or 'l1' or 'sum'", "not 'l3'"]),
        ("gradient(reduce=2)", ["'reduce'", "'l2' or 'l1' or 'sum'", "not 2"]),
        ("gradient(at='layer')", ["'at'", "'embeddings' or 'word' or 'pixels' or a whole number", "not 'layer'"]),
        ("gradient(at=1.0)", ["'at'", "whole number", "not 1.0"]),
        ("gradient(at=True)", ["'at'", "not True"]),
        ("gradient(at=2)", ["at=2", "has 2"]),
        ("gradient(at=-3)", ["at=-3", "has 2"]),
        ("gradient(at='pixels')", ["at='pixels'", "picture"]),
        ("integrated_gradients(steps='ten')", ["'steps'", "a whole number from 1 to 10,000 or None", "not 'ten'"]),
        ("integrated_gradients(steps=2.5)", ["'steps'", "not 2.5"]),
        ("integrated_gradients(steps=0)", ["'steps'", "from 1", "not 0"]),
        ("integrated_gradients(steps=1, rule='trapezoid')", ["steps", "trapezoid", "not 1"]),
        ("integrated_gradients(tolerance='low')", ["'tolerance'", "a number", "not 'low'"]),
        ("integrated_gradients(baseline='padd')", ["'baseline'", "'pad' or 'mask' or 'unknown' or 'zero'"]),
        ("integrated_gradients(rule='simpson')", ["'rule'", "'gausslegendre'", "not 'simpson'"]),
        ("attention(layer=2)", ["layer 2", "2 layers"]),
        ("attention(layer=[0, 5])", ["layer 5", "2 layers"]),
        ("attention(layer=[])", ["'layer'", "a list of 1 to", "not []"]),
        ("attention(layer='last')", ["'layer'", "whole number", "not 'last'"]),
        ("attention(heads=4)", ["heads=4", "4 heads"]),
        ("attention(heads=[])", ["'heads'", "a list of 1 to", "not []"]),
        ("attention(read='diagonal')", ["'read'", "'row'", "not 'diagonal'"]),
    ],
)
def test_a_wrong_option_says_what_it_takes(spec: str, words: list[str]) -> None:
    refused(subject("bert"), "a film", *words, method=spec)


@pytest.mark.parametrize(
    "spec",
    [" ", "gradient(", "gradient(1)", "gradient(at=word)", "gradient + attention", "a.b()", "gradient(at=f())"],
)
def test_a_spec_that_cannot_be_read_says_how_to_write_one(spec: str) -> None:
    refused(subject("bert"), "a film", repr(spec), "name(option=value)", method=spec)


def test_a_method_is_named_by_a_text() -> None:
    refused(subject("bert"), "a film", "string", "not 3", method=3)
    for methods in ("gradient", [], None):
        message = refusal(lambda methods=methods: whence.compare(subject("bert"), "a film", methods))
        assert "methods is a list of at least one" in message


def test_an_option_given_twice_is_refused() -> None:
    refused(subject("bert"), "a film", "'at'", "twice", method="gradient(at='word')", at="word")
    refused(subject("bert"), "a film", "at", method="gradient(at='word', at='embeddings')")


def test_an_option_hidden_in_a_dict_is_not_lost() -> None:
    refused(subject("bert"), "a film", "gradient(**", method="gradient(**{'at': 'word'})")


@pytest.mark.parametrize("name", ["target", "seed", "batch_size", "truncate", "progress"])
def test_options_of_explain_cannot_be_reused_by_a_method(name: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def own(subject, batch, aim, *, {name}=None):\n    'A method.'", scope)
    message = refusal(lambda: whence.method(family="baseline")(scope["own"]))
    assert repr(name) in message and "explain" in message
    assert "own" not in [record.name for record in whence.list_methods()]
    message = refusal(lambda: registry.resolve("method", f"gradient({name}=1)"))
    assert repr(name) in message


@pytest.mark.parametrize("size", [0, -1, "3", 1.5])
def test_a_batch_size_must_be_a_positive_whole_number(size: Any) -> None:
    refused(subject("bert"), ["a film"], "batch_size", batch_size=size)


@pytest.mark.parametrize("seed", [-1, "one", 1.5])
def test_a_seed_must_be_a_whole_number(seed: Any) -> None:
    refused(subject("bert"), "a film", "seed", method="random", seed=seed)


@pytest.mark.parametrize(
    ("baseline", "words"),
    [
        (np.zeros(7), ["baseline", "(7,)", "width"]),
        (np.zeros((3, 32)), ["baseline", "(3, 32)"]),
        (np.array(["a"]), ["baseline"]),
        (lambda x: x[..., :3], ["baseline", "3)"]),
        (np.full(32, np.nan), ["finite"]),
    ],
)
def test_a_baseline_that_does_not_fit_is_refused(baseline: Any, words: list[str]) -> None:
    refused(subject("bert"), "a film", *words, method="integrated_gradients(steps=2)", baseline=baseline)


def test_a_baseline_token_that_there_is_not_is_refused() -> None:
    refused(subject("gpt2"), "a film", "no mask token", method="integrated_gradients(baseline='mask')")
    picture = Image.new("RGB", (9, 9), RED)
    for at in ("'embeddings'", "'pixels'"):
        refused(subject("vit"), picture, "no pad token", method=f"integrated_gradients(baseline='pad', at={at})")


def test_a_method_on_a_task_it_does_not_know_is_refused() -> None:
    @whence.method(family="baseline", tasks=("image-classification",))
    def only_pictures(subject: Subject, batch: Any, target: Any) -> Tensor:
        """Zeros, for pictures."""
        return torch.zeros(batch.mask.shape)

    try:
        refused(subject("bert"), "a film", "image-classification", "text-classification", method="only_pictures")
    finally:
        registry.unregister("method", "only_pictures")


# --- Specs without end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["[" * 5000, "attention(layer=" + "(" * 3000, "a" * 10**6, "lrp(" + "-" * 9000 + "1)"])
def test_specs_without_end_are_one_sentence(spec: str) -> None:
    for call in (lambda: registry.resolve("method", spec), lambda: registry.resolve("metric", spec)):
        with pytest.raises(ValueError, match=r"cannot read the spec|unknown") as caught:
            call()
        assert len(str(caught.value)) < 20_500


def test_tuples_are_lists_of_layers() -> None:
    subject, raw = subject_of("bert"), family("bert").inputs[0]
    a, b = (whence.explain(subject, raw, "attention", layer=layers) for layers in ((0, 1), [0, 1]))
    np.testing.assert_array_equal(a.scores, b.scores)
    assert a.method == b.method == "attention(layer=[0, 1])"


@pytest.mark.parametrize("index", [10**30, -(10**30), 2**40])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_huge_indices_are_out_of_range(name: str, index: int) -> None:
    with pytest.raises(ValueError, match="is out of range"):
        whence.explain(subject_of(name), family(name).inputs[0], "gradient_x_input", index)


def test_a_method_without_a_name_is_refused_on_the_command_line() -> None:
    ran = CliRunner().invoke(cli.app, ["explain", "a film", "--method", ""])
    assert ran.exit_code == 2 and "--method names no method" in ran.stderr
