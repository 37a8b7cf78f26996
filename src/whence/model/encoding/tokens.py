"""A tokenizer: found, called, and asked for single tokens: how they read, and which stand for nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from whence.core.wording import first_sentence

NEAR = 16  # tokens before a text that say how it is cut
_ONE_CALL_AT_A_TIME = threading.RLock()  # cutting changes a tokenizer's settings for the time of the call


def part_of_processor(processor: Any, name: str, method: str) -> Any:
    """The processor itself where it has the method, else its part of that name, else None."""
    return processor if hasattr(processor, method) else getattr(processor, name, None)


def tokenizer_of(processor: Any, task: str) -> Any:
    """The tokenizer, which may be a part of the processor; an error says that the task needs one."""
    tokenizer = part_of_processor(processor, "tokenizer", "convert_ids_to_tokens")
    if tokenizer is None:
        raise ValueError(f"{task} needs a tokenizer: pass whence.wrap(model, tokenizer)")
    return tokenizer


def call_tokenizer(
    tokenizer: Any, *texts: str, target: bool = False, special: bool = True, limit: int | None = None
) -> Any:
    """Call the tokenizer without its warnings, and leave its settings as they were."""
    arguments: dict[str, Any] = (
        {"text_target": texts[0]} if target else dict(zip(("text", "text_pair"), texts, strict=False))
    )
    if limit is not None:
        arguments |= {"truncation": True, "max_length": limit}
    if getattr(tokenizer, "is_fast", False):
        arguments["return_offsets_mapping"] = True
    arguments |= {"add_special_tokens": special, "return_special_tokens_mask": True, "verbose": False}
    with _ONE_CALL_AT_A_TIME, _settings_kept(getattr(tokenizer, "backend_tokenizer", None)):
        try:
            return tokenizer(**arguments)
        except Exception as error:  # tokenizers has no type of its own for what it cannot do
            raise ValueError(
                f"the tokenizer cannot work on the text: {first_sentence(error)}; look at its settings"
            ) from error


def pieces(processor: Any, text: str) -> list[tuple[int, str]]:
    """The token ids and pieces of a text, without special tokens."""
    tokenizer = tokenizer_of(processor, "a token's text")
    text = without_surrogates(text)
    ids = list(call_tokenizer(tokenizer, text, special=False)["input_ids"])
    # A tokenizer that puts a space before every text cuts " Paris" in two, though its vocabulary has it whole.
    whole = text.replace(" ", "▁")
    if len(ids) > 1 and _has_metaspace(tokenizer):
        id = tokenizer.convert_tokens_to_ids(whole)
        ids = [id] if id is not None and tokenizer.convert_ids_to_tokens(id) == whole else ids
    return list(zip(ids, readable(tokenizer, ids), strict=True))


def going_on(processor: Any, before: Sequence[int], text: str, *, target: bool = False) -> list[int]:
    """The token ids of a text that goes on from others, `before`: as the tokenizer cuts both together.

    By itself a text may be cut in another way, as by a tokenizer that puts a space before every text. `target` is the
    output of an encoder-decoder.
    """
    tokenizer = tokenizer_of(processor, "a token's text")
    near = tokenizer.decode(list(before)[-NEAR:], clean_up_tokenization_spaces=False)
    alone, joint = (
        list(call_tokenizer(tokenizer, one, target=target, special=False)["input_ids"]) if one else []
        for one in (near, near + without_surrogates(text))
    )
    if alone and joint[: len(alone)] == alone and len(joint) > len(alone):
        return joint[len(alone) :]
    return [id for id, _ in pieces(processor, text)]  # a token reaches across the boundary


def mask_ids(processor: Any) -> dict[str, int | None]:
    """The ids that stand for nothing: padding, mask, unknown; None where the tokenizer has none."""
    names = {"pad": "pad_token", "mask": "mask_token", "unknown": "unk_token"}
    tokenizer = part_of_processor(processor, "tokenizer", "convert_ids_to_tokens")
    known = {} if tokenizer is None else tokenizer.special_tokens_map
    return {key: tokenizer.convert_tokens_to_ids(known[n]) if known.get(n) else None for key, n in names.items()}


def readable(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The tokenizer's pieces, with byte-level, metaspace and end-of-word markers as the text they stand for."""
    from tokenizers.decoders import ByteLevel

    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    added = tokenizer.get_added_vocab()  # tokens that were added have no markers: they read as they are
    by_bytes, by_metaspace = "ByteLevel" in _rules(tokenizer), _has_metaspace(tokenizer)
    suffix = getattr(getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None), "end_of_word_suffix", None)
    names = []
    for id, token in zip(ids, tokens, strict=True):
        if token is None:  # a model may have more rows than its tokenizer has pieces
            token = f"<{id}>"
        elif token not in added:
            ending = " " if suffix and token.endswith(suffix) else ""
            token = token.removesuffix(suffix) if ending else token
            # The bytes of a part of a character decode to U+FFFD: such a piece stays as the tokenizer writes it.
            if by_bytes and "\ufffd" not in (text := ByteLevel().decode([token])):
                token = text
            token = (token.replace("▁", " ") if by_metaspace else token) + ending
        names.append(token)
    return names


def without_surrogates(text: str) -> str:
    """The text with lone surrogates, which tokenizers refuse, as U+FFFD; its length stays."""
    return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)


@contextmanager
def _settings_kept(backend: Any) -> Iterator[None]:
    """Put back the truncation and padding that a call resets."""
    truncation, padding = getattr(backend, "truncation", None), getattr(backend, "padding", None)
    try:
        yield
    finally:
        if backend is not None and backend.truncation != truncation:
            backend.enable_truncation(**truncation) if truncation else backend.no_truncation()
        if backend is not None and backend.padding != padding:
            backend.enable_padding(**padding) if padding else backend.no_padding()


def _rules(tokenizer: Any) -> str:
    """How a fast tokenizer splits and joins, as text to look markers up in."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return "" if backend is None else f"{backend.decoder!r} {backend.pre_tokenizer!r}"


def _has_metaspace(tokenizer: Any) -> bool:
    """Whether "▁" stands for a space; tokenizers in plain Python cannot be asked, and are taken to use it."""
    return "▁" in _rules(tokenizer) if getattr(tokenizer, "is_fast", False) else True
