"""Texts to features and tensors, by a tokenizer; texts that are too long are cut where that is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from whence.model.encoding.features import Feature
from whence.model.encoding.offsets import parts_between_special_tokens, searched_spans, span_or_none
from whence.model.encoding.tokens import call_tokenizer, readable, without_surrogates


class Tokenised(NamedTuple):
    """What a tokenizer made of one text or a pair."""

    features: list[Feature]
    tensors: dict[str, np.ndarray]
    notes: tuple[str, ...]


def tokenised(
    tokenizer: Any,
    texts: dict[str, str],
    limit: int | None = None,
    truncate: bool = False,
    target: bool = False,
    special: bool = True,
) -> Tokenised:
    """One text or a pair by a tokenizer, cut to `limit` tokens where `truncate` allows it.

    `target` tokenises as the output of an encoder-decoder, `special=False` leaves out special tokens.
    """
    clean = [without_surrogates(text) for text in texts.values()]
    notes: tuple[str, ...] = () if clean == list(texts.values()) else ("lone surrogates were read as U+FFFD",)
    encoding = call_tokenizer(tokenizer, *clean, target=target, special=special)
    count = len(encoding["input_ids"])
    if limit is not None and count > limit:
        notes += (cut_note(texts, count, limit, truncate),)
        encoding = call_tokenizer(tokenizer, *clean, target=target, special=special, limit=limit)
        if len(encoding["input_ids"]) > limit:
            raise ValueError(f"the model takes {limit} tokens, too few for the tokenizer's special tokens alone")
    if encoding.encodings is None:
        notes += ("the tokenizer gives no offsets: they were found by searching the text for the pieces",)
    for_features_only = ("offset_mapping", "special_tokens_mask")  # the model takes neither
    tensors = {key: np.asarray(value) for key, value in encoding.items() if key not in for_features_only}
    return Tokenised(_features(tokenizer, encoding, texts), tensors, notes)


def cut_note(texts: Mapping[str, str], count: int, limit: int, truncate: bool) -> str:
    """The note that texts were cut from `count` to `limit` tokens; an error where cutting is not allowed."""
    names = " and ".join(f"the {part}" for part in texts)
    have = "has" if len(texts) == 1 else "have"
    if not truncate:
        raise ValueError(
            f"{names} {have} {count} tokens, {count - limit} more than the {limit} the model takes;"
            " shorten it or pass truncate=True"
        )
    return f"{names} {'was' if len(texts) == 1 else 'were'} cut from {count} to {limit} tokens"


def check_parts_left(features: list[Feature], texts: Mapping[str, str]) -> None:
    """An error where a text has no token, as one of control characters that a tokenizer drops."""
    for part in texts:
        if not any(feature.part == part for feature in features):
            raise ValueError(f"no token of the {part} is left for the model: give one that the tokenizer can read")


def _features(tokenizer: Any, encoding: Any, texts: dict[str, str]) -> list[Feature]:
    """The tokens of an encoding with their places in the original texts."""
    ids, special = list(encoding["input_ids"]), encoding["special_tokens_mask"]
    names, order = readable(tokenizer, ids), list(texts)
    if encoding.encodings is not None:
        words, spans = encoding.word_ids(), encoding["offset_mapping"]
        parts = ["" if number is None else order[number] for number in encoding.sequence_ids()]
    else:
        words, parts = [None] * len(ids), parts_between_special_tokens(special, order)
        spans = searched_spans(names, parts, texts)
    features = []
    for name, id, is_special, part, span, word in zip(names, ids, special, parts, spans, words, strict=True):
        if is_special or not part:
            features.append(Feature(name, id, special=True))
        else:
            features.append(Feature(name, id, False, part, span_or_none(name, span, texts[part]), word))
    return features
