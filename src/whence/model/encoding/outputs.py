"""What a model writes: the decoder's side of an encoder-decoder, given or generated, and a generated continuation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from whence.core.inputs import Input, has_inline_picture
from whence.model.encoding.building import as_input, joined
from whence.model.encoding.features import NO_SPAN, Feature
from whence.model.encoding.inline_pictures import extended
from whence.model.encoding.tokenising import tokenised
from whence.model.encoding.tokens import mask_ids, readable, tokenizer_of


def with_output(input: Input, ids: Any, processor: Any, start_token: int) -> Input:
    """The source with the ids (T,) that the model generated from it, in the form of a given output."""
    tokenizer = tokenizer_of(processor, "seq2seq-lm")
    features, text = _written(tokenizer, [int(i) for i in ids], "output", target=True)
    return joined(input, decoder_side(tokenizer, features, text, start_token))


def with_continuation(input: Input, ids: list[int], processor: Any, part: str) -> Input:
    """A prompt with the ids that the model wrote after it, in the form of a continuation that was given."""
    tokenizer = tokenizer_of(processor, "causal-lm")
    features, text = _written(tokenizer, ids, part, special=False)
    all_ids = np.concatenate([input.tensors["input_ids"], ids])
    picture = extended(input.tensors, len(ids)) if has_inline_picture(input) else {}
    tensors = picture | {"input_ids": all_ids, "attention_mask": np.ones_like(all_ids)}
    continued = as_input(features, "target", tensors, {part: text}, generated=tuple(range(len(features))))
    return joined(replace(input, tensors={}, streams=("source",) * len(input.features)), continued)


def _written(tokenizer: Any, ids: list[int], part: str, **how: bool) -> tuple[list[Feature], str]:
    """Features and text of ids that a model wrote."""
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    # Where the tokenizer cuts the decoded text into the same ids, its own offsets and words are taken.
    again = tokenised(tokenizer, {part: text}, **how).features
    same_ids = [feature.id for feature in again[: len(ids)]] == ids
    if same_ids and all(feature.special for feature in again[len(ids) :]):
        return again[: len(ids)], text
    return _decoded_features(tokenizer, ids, text, part), text


def decoder_side(
    tokenizer: Any, output: list[Feature], text: str, start_token: int | None, notes: tuple[str, ...] = ()
) -> Input:
    """The start token, then the output, every token of which counts as generated."""
    if start_token is None:
        raise ValueError("an output needs the token that starts the decoder: set decoder_start_token_id in the config")
    start = Feature(readable(tokenizer, [start_token])[0], start_token, special=True)
    features = [start, *output]
    tensors = {"decoder_input_ids": np.array([feature.id for feature in features])}
    return as_input(
        features, "target", tensors, {"output": text}, notes=notes, generated=tuple(range(1, len(features)))
    )


def _decoded_features(tokenizer: Any, ids: list[int], text: str, part: str) -> list[Feature]:
    """Features of generated ids: each one's span is what decoding it added to the text of the ids before it."""
    special_ids = set(tokenizer.all_special_ids) - {mask_ids(tokenizer)["unknown"]}
    features, end = [], 0
    for i, (id, name) in enumerate(zip(ids, readable(tokenizer, ids), strict=True)):
        so_far = tokenizer.decode(ids[: i + 1], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        so_far = so_far.rstrip("\ufffd")  # the first bytes of a character that is not complete yet
        start, end = end, max(end, len(so_far)) if text.startswith(so_far) else end
        if id in special_ids:
            features.append(Feature(name, id, special=True))
        else:
            features.append(Feature(name, id, False, part, (start, end) if end > start else NO_SPAN))
    return features
