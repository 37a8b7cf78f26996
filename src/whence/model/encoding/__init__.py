"""Raw inputs to `Input`: text, pairs, prompts, sources, images, image+text, and the user's own encoder.

`parts` names the parts of a raw input, `texts`, `outputs` and `pictures` encode them, `own` checks what a user's own
encoder returned; `tokenising`, `tokens`, `offsets`, `words`, `features` and `building` are what those modules share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from whence.core.inputs import Input
from whence.core.pictures import bounded, upright_rgb
from whence.core.tasks import TASKS
from whence.model.encoding.building import joined
from whence.model.encoding.chats import answer_to, as_messages, chat_of, encode_chat, template_of
from whence.model.encoding.inline_pictures import picture_token, with_picture, with_token
from whence.model.encoding.outputs import with_continuation, with_output
from whence.model.encoding.own import from_own_encoder
from whence.model.encoding.parts import Generation, checked_text, generation_of, named_parts
from whence.model.encoding.pictures import Layout, encode_picture
from whence.model.encoding.texts import encode_output, encode_texts
from whence.model.encoding.tokens import going_on, mask_ids, pieces, readable, tokenizer_of

__all__ = [
    "Generation",
    "Layout",
    "answer_to",
    "encode",
    "generation_of",
    "going_on",
    "mask_ids",
    "pieces",
    "readable",
    "with_continuation",
    "with_output",
]


def encode(
    raw: Any,
    *,
    task: str,
    processor: Any,
    max_length: int | None,
    max_output: int | None = None,
    truncate: bool = False,
    image_layout: Layout | None = None,
    encoder: Callable[[Any], Any] | None = None,
    start_token: int | None = None,
) -> Input:
    """Encode one example as `task` asks for it, or with the user's own `encoder`."""
    if encoder is not None:
        return from_own_encoder(raw, encoder)
    if task == "module":
        raise ValueError("a plain torch module needs an encoder: pass whence.wrap(module, encode=...)")
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}: it must be one of {', '.join(TASKS)}")
    parts = named_parts(raw, task)
    picture = upright_rgb(parts["image"]) if "image" in parts else None
    texts = {
        part: checked_text(part, text) for part, text in parts.items() if part in TASKS[task].parts and part != "image"
    }
    inputs = []
    inline = task == "image-text-lm"  # the picture's patches are tokens of the text
    if inline:
        parts, texts = _with_picture_token(parts, texts, processor)
    if "messages" in parts:
        inputs.append(
            _encoded_chat(parts["messages"], processor, task, (max_length, max_output), truncate, start_token)
        )
    elif texts:
        inputs.append(
            encode_texts(tokenizer_of(processor, task), texts, (max_length, max_output), truncate, start_token)
        )
    if picture is not None:
        if inline:
            inputs[0] = with_picture(inputs[0], processor, picture, max_length)
        else:
            inputs.append(encode_picture(processor, picture, image_layout, task))
        parts["image"] = bounded(np.asarray(picture))
    given_by_name = isinstance(raw, dict | tuple)
    return replace(joined(*inputs), raw=parts if given_by_name else next(iter(parts.values())))


def _with_picture_token(
    parts: dict[str, Any], texts: dict[str, str], processor: Any
) -> tuple[dict[str, Any], dict[str, str]]:
    """The parts and texts of an input with the token of its picture, in the prompt or the first message."""
    token = picture_token(processor)
    if "prompt" in texts:
        return parts, texts | {"prompt": with_token(texts["prompt"], token)}
    first, *rest = as_messages(parts["messages"])
    return parts | {"messages": [{**first, "content": with_token(first["content"], token)}, *rest]}, texts


def _encoded_chat(
    messages: Any,
    processor: Any,
    task: str,
    limits: tuple[int | None, int | None],
    truncate: bool,
    start_token: int | None,
) -> Input:
    """The messages of one example, as the chat template of the processor or its tokenizer writes them."""
    tokenizer = tokenizer_of(processor, task)
    chat = chat_of(messages, template_of(processor), "the tokenizer")
    if chat.answer and not TASKS[task].generates:
        raise ValueError(f"a model for {task} writes no answer; leave the last message, the assistant's, out")
    source = task == "seq2seq-lm"
    encoded = encode_chat(tokenizer, chat, limits[0], truncate, stream="source" if source else "text")
    if not source or not chat.answer:
        return encoded
    return joined(encoded, encode_output(tokenizer, chat.answer, limits[1], truncate, start_token))
