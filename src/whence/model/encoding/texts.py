"""Texts to `Input`: a text or a pair, a prompt with or without a continuation, a source with or without an output."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.core.inputs import Input
from whence.model.encoding.building import as_input, joined
from whence.model.encoding.features import NO_SPAN, Feature, Span
from whence.model.encoding.outputs import decoder_side
from whence.model.encoding.tokenising import Tokenised, check_parts_left, cut_note, tokenised


def encode_texts(
    tokenizer: Any,
    texts: dict[str, str],
    limits: tuple[int | None, int | None],
    truncate: bool,
    start_token: int | None,
) -> Input:
    """The texts of one example, by part; `start_token` is what the decoder of an encoder-decoder begins with.

    `limits` are the most tokens that the model takes, and that its decoder does.
    """
    limit, most_output = limits
    if "continuation" in texts:
        return _with_continuation(tokenizer, texts, limit, truncate)
    given = {part: text for part, text in texts.items() if part != "output"}
    found = (
        _prompt(tokenizer, given, limit, truncate)
        if "prompt" in given
        else tokenised(tokenizer, given, limit, truncate)
    )
    check_parts_left(found.features, given)
    stream = "source" if "source" in given else "text"
    encoded = as_input(found.features, stream, found.tensors, given, notes=found.notes)
    if "output" not in texts:
        return encoded
    return joined(encoded, encode_output(tokenizer, texts["output"], most_output, truncate, start_token))


def encode_output(tokenizer: Any, text: str, most: int | None, truncate: bool, start_token: int | None) -> Input:
    """The output of an encoder-decoder that was given, as its decoder reads it; it takes `most` tokens."""
    output = {"output": text}
    room = None if most is None else most - 1  # the start token takes one place
    found = tokenised(tokenizer, output, room, truncate, target=True)
    check_parts_left(found.features, output)
    return decoder_side(tokenizer, found.features, text, start_token, found.notes)


def _prompt(tokenizer: Any, texts: dict[str, str], limit: int | None, truncate: bool) -> Tokenised:
    """A prompt, of which the end is kept where it is too long: the next token follows on that."""
    found = tokenised(tokenizer, texts)
    count = len(found.features)
    if limit is None or count <= limit:
        return found
    note = f"{cut_note(texts, count, limit, truncate)}: its beginning was left out"
    kept = last_kept(found.features, limit)
    if len(kept) > limit:
        raise ValueError(f"the model takes {limit} tokens, too few for the tokenizer's special tokens alone")
    places = [place for place, feature in enumerate(found.features) if any(feature is one for one in kept)]
    tensors = {name: array[places] for name, array in found.tensors.items()}
    return Tokenised(kept, tensors, (*found.notes, note))


def _with_continuation(tokenizer: Any, texts: dict[str, str], limit: int | None, truncate: bool) -> Input:
    """A prompt and its continuation: one sequence, of which the continuation's tokens are the stream `target`."""
    prompt, continuation, notes = prompt_and_continuation(tokenizer, texts["prompt"], texts["continuation"])
    count = len(prompt) + len(continuation)
    if limit is not None and count > limit:
        notes += (f"{cut_note(texts, count, limit, truncate)}: the beginning was left out",)
        if len(continuation) >= limit:
            raise ValueError(
                f"the continuation alone has {len(continuation)} tokens, and the model takes {limit}: shorten it"
            )
        prompt = last_kept(prompt, limit - len(continuation))  # the words next to the continuation matter most
    features = prompt + continuation
    check_parts_left(features, texts)
    streams = ["source"] * len(prompt) + ["target"] * len(continuation)
    ids = np.array([feature.id for feature in features])
    tensors = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    generated = tuple(range(len(prompt), len(features)))
    return as_input(features, streams, tensors, texts, notes=notes, generated=generated)


def prompt_and_continuation(
    tokenizer: Any, prompt: str, continuation: str, *, special: bool = True
) -> tuple[list[Feature], list[Feature], tuple[str, ...]]:
    """The features of a prompt, those of its continuation, and notes.

    The two are tokenised together, as the model would read them. Where a token of the joint text reaches across the
    boundary, the continuation is tokenised apart, and a note says so. `special=False` leaves out the tokenizer's
    special tokens, as of a text in which a chat template wrote them.
    """
    alone = tokenised(tokenizer, {"prompt": prompt}, special=special)
    joint = tokenised(tokenizer, {"prompt": prompt + continuation}, special=special)
    first, both = (_without_closing(found.features) if special else found.features for found in (alone, joint))
    notes = joint.notes
    if len(first) < len(alone.features):
        notes += ("the tokenizer's closing special tokens were left out, since the prompt goes on",)
    if [feature.id for feature in both[: len(first)]] == [feature.id for feature in first]:
        rest = both[len(first) :]
        return first, [f._replace(part="continuation", span=_after(f.span, len(prompt))) for f in rest], notes
    apart = tokenised(tokenizer, {"continuation": continuation}, special=False)
    notes += ("prompt and continuation were tokenised apart: together they give other pieces at the boundary",)
    return first, apart.features, notes


def _without_closing(features: list[Feature]) -> list[Feature]:
    """The features up to the last one that is not special."""
    last = max((i for i, feature in enumerate(features) if not feature.special), default=-1)
    return features[: last + 1]


def _after(span: Span, boundary: int) -> Span:
    """The part of a span that lies after the first `boundary` characters, counted from there."""
    return (max(span[0] - boundary, 0), span[1] - boundary) if span[1] > boundary else NO_SPAN


def last_kept(features: list[Feature], limit: int) -> list[Feature]:
    """The last features, `limit` of them, and special ones wherever they stand."""
    plain = [i for i, feature in enumerate(features) if not feature.special]
    dropped = set(plain[: len(features) - limit])
    return [feature for i, feature in enumerate(features) if i not in dropped]
