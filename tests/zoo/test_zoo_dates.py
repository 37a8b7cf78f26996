"""The zoo's `dates`: its generator, its files, and that the planted truth is what the model goes by."""

from __future__ import annotations

import random
import string
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import whence
from whence.zoo import dates_data
from whence.zoo.example import Example

FOLDER = Path(dates_data.__file__).parent / "dates"
YEAR, MONTH, DAY = range(4), 5, 8  # places in the output; the second digits of month and day have the same truth
LONG_MONTHS = [month for month in range(1, 13) if month not in (2, 4, 6, 9, 11)]  # any day fits them


@pytest.fixture(scope="module")
def shipped() -> tuple[Any, Any]:
    """Model and tokenizer, by plain transformers classes."""
    return AutoModelForSeq2SeqLM.from_pretrained(FOLDER).eval(), AutoTokenizer.from_pretrained(FOLDER)


def written(shipped: tuple[Any, Any], sources: list[str]) -> list[str]:
    """What greedy decoding makes of the sources."""
    model, tokenizer = shipped
    with torch.inference_mode():
        ids = model.generate(**tokenizer(sources, padding=True, return_tensors="pt"))
    return tokenizer.batch_decode(ids, skip_special_tokens=True)


def part(example: Example, row: int) -> tuple[int, int]:
    """The span of the source that decides a character of the output."""
    places = np.flatnonzero(example.truth[row])
    assert (np.diff(places) == 1).all()
    return int(places[0]), int(places[-1]) + 1


def test_examples_repeat_by_seed_and_differ_between_seeds() -> None:
    first, again, other = (dates_data.examples(20, seed) for seed in (1, 1, 2))
    assert [(e.input, e.label) for e in first] == [(e.input, e.label) for e in again]
    assert all(np.array_equal(a.truth, b.truth) for a, b in zip(first, again, strict=True))
    assert [e.input for e in first] != [e.input for e in other]
    assert astuple(dates_data.examples(5, 1)[4])[:2] == astuple(first[4])[:2]


def test_truth_marks_what_is_copied_or_named() -> None:
    for example in dates_data.examples(300, 3):
        source, label = example.input["source"], example.label
        assert example.input["output"] == label
        assert "".join(source[slice(*part(example, row))] for row in YEAR) == label[:4]
        month = source[slice(*part(example, MONTH))]
        assert int(month) == int(label[5:7]) if month.isdigit() else named(month) == int(label[5:7])
        assert int(source[slice(*part(example, DAY))]) == int(label[8:])
        assert not example.truth[[4, 7, 10]].any()
        assert np.array_equal(example.truth[[5, 8]], example.truth[[6, 9]])


def named(month: str) -> int:
    return next(i for i, name in enumerate(dates_data.MONTHS, 1) if name.lower().startswith(month.lower()))


def test_every_form_can_be_read_in_one_way() -> None:
    for form in dates_data.FORMS:
        fields = [field for _, field, _, _ in string.Formatter().parse(form) if field]
        assert "mon" in fields or "month" in fields or fields[0] == "year" or "." in form


def test_truth_lies_on_the_features_of_whence(shipped: tuple[Any, Any]) -> None:
    subject = whence.wrap(*shipped)
    for example in dates_data.examples(30, 4):
        x = subject.encode(example.input)
        assert example.truth.shape == (len(x.generated), len(x.features))
        assert not example.truth[:, x.special].any()
        assert set(np.array(x.streams)[example.truth.any(0)]) == {"source"}
        copied = [x.features[place] for row in YEAR for place in np.flatnonzero(example.truth[row])]
        assert copied == [x.features[feature] for feature in x.generated[:4]]
        decoded = subject.encode(example.input["source"])
        assert (decoded.features, decoded.generated) == (x.features, x.generated)


def test_accuracy_of_the_shipped_files(shipped: tuple[Any, Any]) -> None:
    examples = dates_data.examples(300, 5)
    found = written(shipped, [example.input["source"] for example in examples])
    assert np.mean([text == example.label for text, example in zip(found, examples, strict=True)]) >= 0.99
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 4e6
    assert shipped[0].dtype == torch.float32


def test_what_the_truth_marks_decides_and_nothing_else(shipped: tuple[Any, Any]) -> None:
    choose = random.Random(6)
    deciding, others = [], []
    for example in dates_data.examples(50, 6):
        source, label = example.input["source"], str(example.label)
        for row in YEAR:
            digit = choose.choice([d for d in ("12" if row == 0 else string.digits) if d != label[row]])
            deciding.append((replaced(source, part(example, row), digit), replaced(label, (row, row + 1), digit)))
        for row, new in ((MONTH, choose.choice(LONG_MONTHS)), (DAY, choose.randint(1, 28))):
            start, stop = part(example, row)
            text = another(source[start:stop], new)
            deciding.append((replaced(source, (start, stop), text), replaced(label, (row, row + 2), f"{new:02}")))
        marked = example.truth.any(0)
        others.append(("".join(c if marked[i] else noise(c, choose) for i, c in enumerate(source)), label))
    for pairs in (deciding, others):
        found = written(shipped, [source for source, _ in pairs])
        assert np.mean([text == wanted for text, (_, wanted) in zip(found, pairs, strict=True)]) >= 0.95


def replaced(text: str, span: tuple[int, int], new: str) -> str:
    return text[: span[0]] + new + text[span[1] :]


def another(text: str, number: int) -> str:
    """Another number, or another month, in the same form."""
    if text.isdigit():
        return f"{number:02}" if len(text) == 2 else str(number)
    name = dates_data.MONTHS[number - 1][: 3 if len(text) < 4 else None]
    return name.upper() if text.isupper() else name.lower() if text.islower() else name


def noise(character: str, choose: random.Random) -> str:
    """Another letter for a letter, another digit for a digit."""
    kind = next((kind for kind in (string.ascii_letters, string.digits) if character in kind), character)
    return choose.choice(kind)


@pytest.mark.parametrize(
    "text", ["", " ", "3 März 2014", "\t\n", "😀 2014", "٣ مارس", "a\u0301", "x" * 300, "\x00\x07"]
)
def test_every_text_encodes_with_right_offsets(shipped: tuple[Any, Any], text: str) -> None:
    tokenizer = shipped[1]
    encoded = tokenizer(text, return_offsets_mapping=True, verbose=False)
    tokens, spans = tokenizer.convert_ids_to_tokens(encoded["input_ids"]), encoded["offset_mapping"]
    assert [tuple(span) for span in spans[:-1]] == [(i, i + 1) for i in range(len(text))]
    assert all(token in (text[i], "<unk>") for i, token in enumerate(tokens[:-1]))
    assert tokens[-1] == "</s>"
