"""Models that decide at single tokens, trained on rules that are known: methods must point at the words that decide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import whence
from families import albert_tokenizer, bert_tokenizer

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
FILLERS = ["film", "house", "river", "ball", "music", "book", "dog", "city"]
Rule = Callable[[list[str], int, np.random.Generator], str]  # plants words at a place, and gives the answer


def examples(rule: Rule, count: int, seed: int) -> list[tuple[str, int, str]]:
    """Six words at random with what a rule plants among them: text, the place of the planted word, the answer."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        words, place = [str(word) for word in generator.choice(FILLERS, 6)], int(generator.integers(1, 6))
        answer = rule(words, place, generator)
        made.append((" ".join(words), place, answer))
    return made


def trained(model: Any, tokenizer: Any, data: list[tuple[str, int, str]], label_of: Any, steps: int) -> whence.Subject:
    """A model trained to give the answers; `label_of` is the token that is labelled and its label, others are -100."""
    tensors = dict(tokenizer([text for text, _, _ in data], return_tensors="pt"))
    tensors["labels"] = torch.full_like(tensors["input_ids"], -100)
    for row, (_, place, answer) in enumerate(data):
        for token, label in label_of(place, answer):
            tensors["labels"][row, token] = label
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    model.train()
    for step in range(steps):
        start = step * 32 % len(data)
        model(**{name: tensor[start : start + 32] for name, tensor in tensors.items()}).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return whence.wrap(model.eval(), tokenizer)


def after_old(words: list[str], place: int, generator: np.random.Generator) -> str:
    """The tag of "man" is B-PER after "old" and O after "small"; nothing else says which."""
    words[place - 1 : place + 1] = [str(generator.choice(["old", "small"])), "man"]
    return "B-PER" if words[place - 1] == "old" else "O"


def told_by(words: list[str], place: int, generator: np.random.Generator) -> str:
    """The masked word is "quietly" in a text with "singing", and "warm" in one with "cold"."""
    words[0], words[place] = "[MASK]", str(generator.choice(["singing", "cold"]))
    return "quietly" if words[place] == "singing" else "warm"


def test_a_tag_is_explained_by_the_word_before() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = bert_tokenizer()
        config = hf.BertConfig(vocab_size=len(tokenizer), id2label={0: "O", 1: "B-PER"}, **SMALL, **NO_DROPOUT)

        def labels(place: int, answer: str) -> list[tuple[int, int]]:
            return [(token, int(token == place + 1 and answer == "B-PER")) for token in range(1, 7)]

        model = hf.BertForTokenClassification(config)
        subject = trained(model, tokenizer, examples(after_old, 128, 0), labels, 120)
    asked = [(text, place) for text, place, answer in examples(after_old, 40, 1) if answer == "B-PER"]
    for method in ("leave_one_out", "integrated_gradients", "lrp", "gae"):
        for a, (_, place) in zip(whence.explain(subject, [text for text, _ in asked], method), asked, strict=True):
            # token `place` + 1 is "man", which is what is tagged; of the other words, "old" has the largest score
            assert (a.target.position, a.target.name) == (place + 1, "B-PER")
            others = np.where((np.arange(8) == place + 1) | a.special, -np.inf, a.scores)
            assert others.argmax() == place, method


@pytest.mark.slow
def test_a_masked_word_is_explained_by_the_word_that_tells() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        tokenizer = albert_tokenizer()
        config = hf.AlbertConfig(vocab_size=len(tokenizer), embedding_size=16, **SMALL, **NO_DROPOUT)

        def labels(place: int, answer: str) -> list[tuple[int, int]]:
            return [(1, tokenizer(answer, add_special_tokens=False)["input_ids"][0])]

        subject = trained(hf.AlbertForMaskedLM(config), tokenizer, examples(told_by, 128, 0), labels, 240)
    asked = examples(told_by, 30, 1)
    raws = [text for text, _, _ in asked]
    for method in ("leave_one_out", "integrated_gradients", "lrp"):
        right = []
        for a, (_, place, answer) in zip(
            whence.explain(subject, raws, method, "contrast('quietly', 'warm')"), asked, strict=True
        ):
            number = int(np.abs(np.where(a.special | (np.arange(8) == 1), 0, a.scores)).argmax())
            right.append(number == place + 1 and (a.scores[number] > 0) == (answer == "quietly"))
        assert np.mean(right) >= 0.8, method
    for a, (_, _, answer) in zip(whence.explain(subject, raws, "random"), asked, strict=True):
        assert a.target.name.strip() == answer and a.target.predicted
