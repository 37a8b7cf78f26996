"""Messages of a chat to `Input`, by the chat template of the model's own tokenizer or processor.

The template is given the messages and says which text the model reads. Tokens of a message belong to the part of the
message's role, "user", or "user 1", "user 2" where there are several; tokens that the template added are special. A
last message of the assistant is the text that is explained: the model reads what stands before it, then the message.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from whence.core.inputs import Input
from whence.core.wording import first_sentence, shown
from whence.model.encoding.building import as_input
from whence.model.encoding.features import NO_SPAN, Feature
from whence.model.encoding.texts import last_kept, prompt_and_continuation
from whence.model.encoding.tokenising import check_parts_left, cut_note, tokenised
from whence.model.encoding.tokens import tokenizer_of

MAX_MESSAGES = 1_000
ANSWERS = "assistant"  # the role of the model's own messages


@dataclass(frozen=True)
class Chat:
    """What a template made of messages: the text that the model reads, and where the messages stand in it."""

    text: str
    places: tuple[tuple[str, int, int], ...]  # part, first character, the one after the last
    texts: dict[str, str]  # part -> what the message says, as the template wrote it
    between: str = ""  # what the template writes between this text and the answer, as the space of "[/INST] An answer"
    answer: str = ""  # the last message of the assistant, which the model is to have written
    part: str = ANSWERS  # the part of the answer that is there, or that will be generated


def chat_of(messages: Any, template: Any, name: str) -> Chat:
    """The chat of a list of messages; `template` is the tokenizer or processor that has one, `name` is for an error."""
    messages = as_messages(messages)
    if getattr(template, "chat_template", None) is None:
        raise ValueError(
            f"{name} has no chat template, so messages cannot be written as it reads them; give a text instead, as "
            '{"prompt": "..."} of a causal model'
        )
    last = messages[-1]
    answered = last["role"] == ANSWERS
    asked = messages[:-1] if answered else messages
    parts = _parts([*(message["role"] for message in asked), ANSWERS])
    if not asked:
        raise ValueError("the only message is the assistant's answer; give at least one message before it")
    write = _writer(template, asked, name)
    text, places = _rendered(write, asked, parts)
    texts = {part: text[start:end] for part, start, end in places}
    part = parts[len(asked)]
    if not answered:
        return Chat(text, tuple(places), texts, part=part)
    return Chat(text, tuple(places), texts, *_answer_written(write, messages, text), part)


def template_of(processor: Any) -> Any:
    """What has the chat template: the processor, or its tokenizer."""
    return processor if getattr(processor, "chat_template", None) is not None else tokenizer_of(processor, "a chat")


def answer_to(messages: Sequence[Mapping[str, str]], processor: Any, answer: str) -> str:
    """An answer as the template writes it after the messages, with what it writes between them and the answer."""
    chat = chat_of([*messages, {"role": ANSWERS, "content": answer}], template_of(processor), "the tokenizer")
    return chat.between + chat.answer


def encode_chat(tokenizer: Any, chat: Chat, limit: int | None, truncate: bool, *, stream: str = "text") -> Input:
    """The messages as one sequence; in the stream "text", the answer that was given follows as the stream "target"."""
    stem = chat.between.rstrip(" ")  # spaces belong to the answer's first token, an empty thought does not
    text, written = chat.text + stem, chat.between[len(stem) :] + chat.answer
    found, answer = tokenised(tokenizer, {"prompt": chat.text}, special=False), list[Feature]()
    prompt, notes = found.features, found.notes
    if chat.answer and stream == "text":
        prompt, answer, notes = prompt_and_continuation(tokenizer, text, written, special=False)
    features = [*_placed(prompt, chat), *(feature._replace(part=chat.part) for feature in answer)]
    texts = chat.texts | ({chat.part: written} if answer else {})
    if limit is not None and len(features) > limit:
        if len(answer) >= limit:
            raise ValueError(f"the answer alone has {len(answer)} tokens, and the model takes {limit}: shorten it")
        notes = (*notes, f"{cut_note({'chat': chat.text}, len(features), limit, truncate)}: the beginning was left out")
        features = [*last_kept(features[: len(prompt)], limit - len(answer)), *features[len(prompt) :]]
        texts = {part: text for part, text in texts.items() if any(feature.part == part for feature in features)}
    check_parts_left(features, {part: text for part, text in texts.items() if text.strip()})
    count = len(features) - len(answer)
    streams = ["source"] * count + ["target"] * len(answer) if answer else stream
    ids = np.array([feature.id for feature in features])
    tensors = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    if not answer and len(features) == len(found.features):
        tensors = found.tensors  # with types of tokens, where the tokenizer gives them
    generated = tuple(range(count, len(features)))
    return as_input(features, streams, tensors, texts, notes=notes, generated=generated)


# ---- messages --------------------------------------------------------------------------------------------------------


def as_messages(messages: Any) -> list[dict[str, str]]:
    """The messages with their texts as strings; an error for what is no list of messages."""
    if not isinstance(messages, (list, tuple)) or not 0 < len(messages) <= MAX_MESSAGES:
        raise ValueError(
            'messages is a list such as [{"role": "user", "content": "..."}], of 1 to '
            f"{MAX_MESSAGES:,} messages, not {shown(messages)}"
        )
    found = []
    for number, message in enumerate(messages):
        given = message if isinstance(message, Mapping) else {}
        role, content = given.get("role"), _text(given.get("content"), number)
        if not isinstance(role, str) or content is None or set(given) - {"role", "content"} or not role.strip():
            raise ValueError(
                f'message {number} has the texts "role" and "content" and nothing else, and {shown(message)} came'
            )
        found.append({"role": role, "content": content})
    if not found[-1]["content"].strip():
        raise ValueError("the last message is empty: give at least one word, or leave it out")
    return found


def _text(content: Any, number: int) -> str | None:
    """The text of a message, which may be written as a list of parts, each on lines of its own; None for neither."""
    if not isinstance(content, (list, tuple)):
        return content if isinstance(content, str) else None
    kinds = [part.get("type") if isinstance(part, Mapping) else None for part in content]
    if other := [kind for kind in kinds if isinstance(kind, str) and kind != "text"]:
        raise ValueError(
            f"message {number} has a part of the type {shown(other[0])}, and only texts are read; a model that takes a "
            'picture has it in the key "image" of the input'
        )
    texts = [
        part["text"] for part, kind in zip(content, kinds, strict=True) if kind and isinstance(part.get("text"), str)
    ]
    return "\n".join(texts) if texts and len(texts) == len(content) else None


def _parts(roles: Sequence[str]) -> list[str]:
    """A name for every message: its role, numbered where the role comes more than once."""
    counts, so_far = Counter(roles), Counter[str]()
    names = []
    for role in roles:
        so_far[role] += 1
        names.append(f"{role} {so_far[role]}" if counts[role] > 1 else role)
    return names


def _writer(template: Any, messages: Sequence[Mapping[str, str]], name: str) -> Callable[..., str]:
    """What writes messages as the template does, `prompt` with the beginning of an answer.

    Some templates, as LLaVA's, read contents as lists of parts alone, and write nothing of a text.
    """

    def written(messages: Sequence[Mapping[str, Any]], prompt: bool = True, *, lists: bool) -> str:
        if lists:
            messages = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in messages]
        try:
            return str(template.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=prompt))
        except Exception as error:  # templates raise what they like, as that roles must alternate
            raise ValueError(f"the chat template of {name} refuses the messages: {first_sentence(error)}") from error

    marked = [{**message, "content": "\ue000"} for message in messages]
    for lists in (False, True):
        with contextlib.suppress(ValueError):
            if "\ue000" in written(marked, lists=lists):
                return partial(written, lists=lists)
    return partial(written, lists=False)


def _rendered(
    write: Callable[..., str], messages: Sequence[Mapping[str, str]], parts: list[str]
) -> tuple[str, list[tuple[str, int, int]]]:
    """The text that the template makes, and where the content of every message stands in it.

    The template is run a second time with marks in place of the contents: what it puts around them is then known.
    """
    text = write(messages)
    marks = [f"\ue000{number}\ue001" for number in range(len(messages))]
    marked = write([{**m, "content": mark} for m, mark in zip(messages, marks, strict=True)])
    around, rest = [], marked
    for mark in marks:
        before, found, rest = rest.partition(mark)
        around.append(before if found else "")
    for contents in ([m["content"] for m in messages], [m["content"].strip() for m in messages]):
        places, end = [], 0
        for part, before, content in zip(parts, around, contents, strict=False):
            start = end + len(before)
            end = start + len(content)
            places.append((part, start, end))
        written = "".join(b + c for b, c in zip(around, contents, strict=True)) + rest
        if written == text:
            return text, [place for place in places if place[1] < place[2]]
    return text, _searched(text, messages, parts)


def _searched(text: str, messages: Sequence[Mapping[str, str]], parts: list[str]) -> list[tuple[str, int, int]]:
    """Where contents stand, one after the other, in the text of a template that writes by what they say."""
    places, end = [], 0
    for part, message in zip(parts, messages, strict=False):
        content = message["content"].strip()
        start = text.find(content, end)
        if start < 0:
            raise ValueError(f"the chat template changes the message {shown(content)}, so its tokens cannot be found")
        end = start + len(content)
        if content:
            places.append((part, start, end))
    return places


def _answer_written(write: Callable[..., str], messages: Sequence[Mapping[str, str]], text: str) -> tuple[str, str]:
    """What the template writes between the text of a prompt and the answer, and the answer as it writes it.

    It may leave out the spaces around an answer. Where a template writes by what messages say, the answer is as given.
    """
    content, mark = messages[-1]["content"], "\ue000\ue001"
    try:
        whole, marked = (
            write([*messages[:-1], last], prompt=False) for last in (messages[-1], {**messages[-1], "content": mark})
        )
    except Exception:  # a template that only writes prompts
        return "", content
    between, found, _ = marked[len(text) :].partition(mark)
    for answer in (content, content.strip()):
        if found and whole.startswith(text + between + answer):
            return between, answer
    return "", content


def _placed(features: list[Feature], chat: Chat) -> list[Feature]:
    """The tokens of the text with the messages that they belong to; all others were added by the template."""
    found = []
    for feature in features:
        start, end = feature.span
        own = [(part, first, last) for part, first, last in chat.places if start < last and first < end]
        inside = bool(own) and bool(chat.text[max(start, own[0][1]) : min(end, own[0][2])])
        if feature.special or start < 0 or not inside:
            found.append(Feature(feature.name, feature.id, special=True))
            continue
        part, first, last = own[0]
        span = (max(start, first) - first, min(end, last) - first)
        found.append(feature._replace(part=part, span=span if span[0] < span[1] else NO_SPAN))
    return found
