"""Pointing inputs at the tokens that their decisions are read from, before anything is explained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from whence.core.inputs import Input, Target
from whence.model.places import first_pieces, likeliest_place, placed, token_named
from whence.model.subject import Subject
from whence.model.target_specs import resolve


def pointed(subject: Subject, inputs: Sequence[Input], wanted: Sequence[Any]) -> tuple[list[Input], list[Any]]:
    """The inputs with the tokens that their decisions are read from, and their targets, resolved.

    Where a label of a token is explained and no token was named, the model is run to find the likeliest.
    """
    items, targets = list(inputs), [resolve(w, subject, item) for w, item in zip(wanted, inputs, strict=True)]
    if subject.reads not in ("token", "mask"):
        return items, targets
    unnamed = []
    for number, (item, target) in enumerate(zip(items, targets, strict=True)):
        if isinstance(target, Target) and not target.of_state and isinstance(target.position, int):
            items[number] = replace(item, decides=(token_named(item, target.position),))
        elif not item.decides:
            unnamed.append(number)
    for number, place in zip(unnamed, _likeliest_places(subject, [items[n] for n in unnamed]), strict=True):
        items[number] = replace(items[number], decides=(place,))
        if isinstance(target := targets[number], Target) and not target.of_state:
            targets[number] = placed(target, items[number], place)
    return items, targets


def _likeliest_places(subject: Subject, items: Sequence[Input]) -> list[int]:
    """For every input, the token whose label is explained where none was named."""
    if not items:
        return []
    found = [0] * len(items)
    at_words = [replace(x, decides=tuple(first_pieces(x) or range(len(x.features)))) for x in items]
    for numbers, batch in subject.batches(at_words):
        logits = subject.logits(batch).float()  # (batch, word x label)
        by_word = logits.unflatten(1, (batch.decides.shape[1], -1)).softmax(-1).cpu().numpy()
        for number, probabilities in zip(numbers, by_word, strict=True):
            words = at_words[number].decides
            found[number] = words[likeliest_place(probabilities[: len(words)], subject.labels)]
    return found
