"""Models, tokenizers, processors and encoders that do not fit each other are refused, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from tests.support.families import (
    LABELS,
    PATCHES,
    PICTURES,
    PICTURES_AND_QUESTIONS,
    SHAPES,
    EncoderClassifier,
    _drawn,
    _names,
    family,
    fresh,
    vit_processor,
)

import whence

IDS, ONES = np.array([2, 5, 6, 3]), np.ones(4, int)
NAMES = {"text": ["a", "b", "c", "d"]}


@pytest.fixture(scope="module")
def module() -> Any:
    return _drawn(lambda: EncoderClassifier(20))


def encoder(**changed: Any) -> Callable[[Any], dict[str, Any]]:
    """An encoder that gives the same right input, with some entries changed."""
    right: dict[str, Any] = {"tensors": {"input_ids": IDS, "attention_mask": ONES}, "features": NAMES}
    return lambda raw: {**right, **changed}


def tensors(ids: Any = IDS, mask: Any = ONES, **more: Any) -> dict[str, Any]:
    return {"tensors": {"input_ids": ids, "attention_mask": mask, **more}}


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises((ValueError, TypeError)) as error:
        call()
    assert "\n" not in str(error.value) and ". " not in str(error.value) and len(str(error.value)) < 500
    return str(error.value)


@pytest.mark.parametrize("method", ["gradient", "leave_one_out", "attention"])
@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"features": {"text": ["a", "b", "c"]}}, "'input_ids' of shape (4,) for the 3 features of the stream 'text'"),
        ({"features": {"text": [*"abcde"]}}, "'input_ids' of shape (4,) for the 5 features"),
        (tensors(IDS[None], ONES[None]), "'input_ids' of shape (1, 4) for the 4 features"),
        (tensors(mask=ONES[None]), "'attention_mask' of shape (1, 4)"),
        (tensors(mask=ONES[:3]), "'attention_mask' of shape (3,)"),
        (tensors(np.array(3)), "'input_ids' of shape ()"),
        (tensors(IDS[:0], ONES[:0]), "'input_ids' of shape (0,) for the 4 features"),
        ({**tensors(IDS[:0], ONES[:0]), "features": {"text": []}}, "encode= gave no features"),
        (tensors(IDS * 1.0), "'input_ids' as whole numbers, not float64"),
        (tensors(IDS * 1j), "'input_ids' as whole numbers, not complex128"),
        (tensors(IDS + 1000), "index out of range in self; check that its tokenizer, processor or encode= fits it"),
        (tensors(-IDS), "index out of range in self; check that its tokenizer, processor or encode= fits it"),
        (tensors(foo=IDS), "unexpected keyword argument 'foo'"),
        ({"tensors": {"input_ids": IDS}}, "missing 1 required positional argument: 'attention_mask'"),
        ({"features": {"text": None}}, "encode= returned what cannot be read"),
        ({"words": {"text": [*"abcd"]}}, "encode= returned what cannot be read"),
        ({"generated": [99]}, "the generated features (99,), and there are 4"),
        ({"grid": "ab"}, "encode= returned what cannot be read"),
        ({"notes": 3}, "encode= returned what cannot be read"),
    ],
)
def test_an_encoder_that_returns_what_does_not_fit(changed: Any, words: str, method: str, module: Any) -> None:
    subject = whence.wrap(module, encode=encoder(**changed), labels=LABELS)
    assert words in refusal(lambda: whence.explain(subject, "x", method))


def test_ids_of_any_whole_type(module: Any) -> None:
    found = [
        whence.explain(whence.wrap(module, encode=encoder(**tensors(ids))), "x", "gradient").scores
        for ids in (IDS, IDS.astype(np.uint16), torch.tensor(IDS, dtype=torch.int32))
    ]
    assert all(np.array_equal(scores, found[0]) for scores in found)


@pytest.mark.parametrize("method", ["gradient", "leave_one_out", "lrp", "attention"])
@pytest.mark.parametrize(
    ("output", "words"),
    [
        (lambda logits: logits.argmax(-1), "gave 1 of int64"),
        (lambda logits: logits.long(), "gave 3 of int64"),
        (lambda logits: logits > 0, "gave 3 of bool"),
        (lambda logits: logits.to(torch.complex64), "gave 3 of complex64"),
        (lambda logits: logits[:, :0], "gave 0 of float32"),
        (lambda logits: torch.cat([logits, logits]), "shape (1, class), and got (2, 3)"),
        (lambda logits: logits.sum(), "shape (1, class), and got ()"),
        (lambda logits: logits.tolist(), "no logits were found"),
    ],
)
def test_an_output_that_gives_no_logits(output: Any, words: str, method: str, module: Any) -> None:
    subject = whence.wrap(module, encode=encoder(), output=output)
    assert words in refusal(lambda: whence.explain(subject, "x", method))


def test_a_detached_output_cannot_be_differentiated(module: Any) -> None:
    subject = whence.wrap(module, encode=encoder(), output=torch.Tensor.detach)
    assert whence.explain(subject, "x", "leave_one_out").scores.any()
    assert "can be differentiated" in refusal(lambda: whence.explain(subject, "x", "gradient"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"encode": 3}, "encode= is a function, not 3"),
        ({"output": "logits"}, "output= is a function, not 'logits'"),
        ({"labels": "abc"}, "labels= is a list of names, one per class"),
        ({"labels": [1, 2, 3]}, "labels= is a list of names, one per class"),
        ({"labels": 3}, "labels= is a list of names, one per class"),
        ({"labels": []}, "labels= gives every class a name of its own"),
        ({"labels": ["a", "a", "b"]}, "labels= gives every class a name of its own"),
        ({"task": 3}, "task= is one of text-classification"),
        ({"processor": hf.BertTokenizer}, "the class BertTokenizer came; make one of it"),
        ({"embedding": 3}, "embedding=3 is no module"),
    ],
)
def test_arguments_of_the_wrong_kind(arguments: dict[str, Any], words: str, module: Any) -> None:
    assert words in refusal(lambda: whence.wrap(module, **{"encode": encoder(), **arguments}))


@pytest.mark.parametrize("labels", [["a"], [*"abcd"]])
def test_labels_that_are_not_as_many_as_the_classes(labels: list[str], module: Any) -> None:
    subject = whence.wrap(module, encode=encoder(), labels=labels)
    words = f"labels= names {len(labels)} classes, and EncoderClassifier gives 3 logits"
    assert words in refusal(lambda: whence.explain(subject, "x", "leave_one_out", 0))


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5"])
def test_a_tokenizer_larger_than_the_vocabulary(name: str) -> None:
    made = fresh(name)
    size = len(made.processor)
    made.processor.add_tokens(["xylophone"])
    subject = whence.wrap(made.model, made.processor)
    words = f"the id {size} of the token 'xylophone' is beyond the {size} tokens"
    raws: dict[str, list[Any]] = {
        "t5": [{"source": "a film", "output": "xylophone"}],
        "gpt2": [("a film", " xylophone")],
    }
    for raw in ["a xylophone", *raws.get(name, [])]:
        assert words in refusal(lambda raw=raw: whence.explain(subject, raw, "leave_one_out"))


def test_a_processor_of_another_size_or_with_other_channels() -> None:
    grey = hf.ViTConfig(**PATCHES, num_channels=1, **_names(SHAPES))
    other = hf.ViTImageProcessorPil(size={"height": 30, "width": 30})
    both = fresh("clip")
    both.processor.image_processor.crop_size = {"height": 30, "width": 30}
    cases = [
        (family("vit").model, other, PICTURES[0], "pixel_values (1, 3, 30, 30) of float32: Input image size (30*30)"),
        (_drawn(lambda: hf.ViTForImageClassification(grey)), vit_processor(), PICTURES[0], "(1, 3, 32, 32)"),
        (both.model, both.processor, PICTURES_AND_QUESTIONS[0], "pixel_values (1, 3, 30, 30)"),
    ]
    for model, processor, raw, words in cases:
        message = refusal(lambda m=model, p=processor, r=raw: whence.explain(whence.wrap(m, p), r, "gradient"))
        assert words in message and "check that its tokenizer, processor or encode= fits it" in message


def test_processors_of_the_other_kind() -> None:
    bert, vit = family("bert"), family("vit")
    text = whence.wrap(bert.model, vit.processor)
    assert "needs a tokenizer" in refusal(lambda: whence.explain(text, "a film", "gradient"))
    picture = whence.wrap(vit.model, bert.processor)
    assert "needs an image processor" in refusal(lambda: whence.explain(picture, PICTURES[0], "gradient"))
