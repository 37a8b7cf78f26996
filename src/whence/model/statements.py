"""Statements: a part of a generated text, explained as one: the sum of the log-probabilities of its tokens.

The model reads the whole text up to the statement's end in one pass, and every token of the statement has its
log-probability at the token before it. The statement's own tokens are part of the question, so they are never hidden.
An answer may be explained against another one: log p(one) - log p(other), both after the same text.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from whence.core.inputs import Input, Target
from whence.core.wording import shown
from whence.model import encoding
from whence.model.batching import cut, tensors_up_to
from whence.model.decoding import without_closing
from whence.model.places import occurrences
from whence.model.subject import Subject
from whence.model.target_specs import STATEMENT_KINDS, Spec, parsed

Row = tuple[Input, Target]


def statement_rows(subject: Subject, item: Input, wanted: Any) -> list[Row]:
    """The row of a statement that a target names, or the two rows of a contrast of answers; none for other targets."""
    if not subject.generates or not isinstance(wanted, str):
        return []
    spec = parsed(wanted, ("statement", "contrast"))
    if spec is None or spec.kind not in ("statement", "contrast"):
        return []
    if spec.kind == "contrast" and not _of_answers(subject, item, spec):
        return []
    if spec.kind == "contrast":
        if item.generated:
            raise ValueError(
                f"{wanted!r} contrasts answers to a prompt, and a continuation came; leave it out, or write "
                "\"statement('...', against='...')\" for a part of it"
            )
        if not subject.decoder_only:
            raise ValueError(
                f"answers are contrasted after a prompt, and {subject.name} reads a source; give an output, and "
                "\"statement('...', against='...')\" as the target"
            )
        bare = without_closing(item)
        return [_answered(subject, bare, text, _ids(subject, bare, text)) for text in spec.arguments]
    if not item.generated:
        raise ValueError(
            "a statement is a part of a text that the model writes; give a continuation, an output or messages with an "
            "answer, or max_tokens"
        )
    first, last = _tokens(item, spec)
    kind = _kind(spec)
    row = _row(item, first, last, kind)
    against = spec.keywords.get("against")
    if against is None:
        return [row]
    if kind != "statement":
        raise ValueError(
            f"a statement against another is a difference of log-probabilities; leave kind= out of {wanted!r}"
        )
    return [row, _other(subject, item, first, against)]


def _of_answers(subject: Subject, item: Input, spec: Spec) -> bool:
    """Whether a contrast is of whole answers: of two texts, one of which is not just the token of that name."""
    texts = [text for text in spec.arguments if isinstance(text, str) and text]
    if len(texts) < len(spec.arguments) or len(texts) != 2:
        return False
    named = [[id for id, _ in subject.pieces(text)] for text in texts]
    if item.generated or not subject.decoder_only:
        return any(len(ids) > 1 for ids in named)
    return any(len(ids) > 1 or _ids(subject, item, text) != ids for text, ids in zip(texts, named, strict=True))


def _kind(spec: Spec) -> str:
    """The kind of target: the log-probability of a statement, or what `kind=` names."""
    if unknown := spec.keywords.keys() - {"kind", "against", "tokens", "characters", "at"}:
        raise ValueError(
            f"a statement takes kind=, against=, tokens=, characters= and at=, and {spec.text!r} has {min(unknown)}="
        )
    kind = spec.keywords.get("kind", "log_probability")
    kinds = {"log_probability": "statement", "probability": "statement_probability", "log_odds": "statement_log_odds"}
    if kind not in kinds:
        raise ValueError(f"kind= of a statement is one of {', '.join(map(repr, kinds))}, not {shown(kind)}")
    assert kinds[kind] in STATEMENT_KINDS
    return kinds[kind]


def _tokens(item: Input, spec: Spec) -> tuple[int, int]:
    """The first and the last token of a statement."""
    part = item.parts[next((i for i in item.generated if item.parts[i]), item.generated[0])]
    own, places = item.generated, [name for name in ("tokens", "characters") if name in spec.keywords]
    if len(spec.arguments) + len(places) > 1:
        raise ValueError(
            f"a statement is named once: by its text, tokens= or characters=, and {spec.text!r} does it again"
        )
    if not places and not spec.arguments:
        return own[0], own[-1]
    if spec.arguments:
        text = spec.arguments[0]
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"a statement is named by its text, not by {shown(text)}")
        found = [span for span in occurrences(item, text, part) if span[0] in own]
        if (at := spec.keywords.get("at")) is not None:
            found = [span for span in found if own.index(span[0]) == at]
        if len(found) != 1:
            numbers = " or ".join(f"at={own.index(first)}" for first, _ in found)
            how = (
                f"{len(found)} times; say at which of its tokens it starts: {numbers}"
                if found
                else "not as whole tokens"
            )
            raise ValueError(f"the statement {shown(text)} is in the {part}, {shown(item.texts.get(part, ''))}, {how}")
        first, last = found[0]
        return first - _after_own_space(item, first), last
    given = spec.keywords[places[0]]
    whole = isinstance(given, (list, tuple)) and len(given) == 2 and all(type(n) is int for n in given)
    if not whole or not 0 <= given[0] < given[1]:
        raise ValueError(f"{places[0]}= are two numbers, the first and the one after the last, not {shown(given)}")
    start, end = given
    if places[0] == "tokens":
        chosen = own[start:end]
    else:
        chosen = tuple(i for i in own if item.offsets[i, 0] < end and start < item.offsets[i, 1])
    if not chosen or (places[0] == "tokens" and end > len(own)):
        raise ValueError(f"{places[0]}={given} lies outside of the {part}, which has {len(own)} tokens")
    return chosen[0], chosen[-1]


def _after_own_space(item: Input, first: int) -> bool:
    """Whether the space before a word is a generated token of its own, where other words have it in their first token.

    It belongs to the statement that begins with the word: without it, a statement's log-probability would miss a token.
    """
    begins = item.texts[item.parts[first]][item.offsets[first, 0] :]
    return first - 1 in item.generated and item.features[first - 1] == " " and not begins[:1].isspace()


def _row(item: Input, first: int, last: int, kind: str) -> Row:
    """The input up to the last token of a statement, marked to be read at the statement's tokens, and its target."""
    end, decoder = last + 1, "decoder_input_ids" in item.tensors
    before = item.streams.index("target") if decoder else 0  # the tokens of the encoder
    tensors = tensors_up_to(item, end - before)
    row = cut(item, end, item.streams[:end] if decoder else ("text",) * end, tensors)
    ids = tensors["decoder_input_ids" if decoder else "input_ids"]
    special, units = row.special.copy(), None if row.units is None else row.units.copy()
    special[first:] = True
    if units is not None:
        units[first:] = units[first - 1] + 1
    row = replace(
        row,
        special=special,
        units=units,
        decides=tuple(range(first - 1, last)),
        answer=tuple(int(id) for id in ids[first - before :]),
    )
    return row, Target(kind, index=0, name=_text(item, first, last))


def _text(item: Input, first: int, last: int) -> str:
    """What a statement says."""
    start, end = int(item.offsets[first, 0]), int(item.offsets[last, 1])
    text = item.texts.get(item.parts[first], "")[start:end] if 0 <= start < end else ""
    return text.strip() or "".join(item.features[first : last + 1]).strip()


# ---- answers against each other --------------------------------------------------------------------------------------


def _ids(subject: Subject, item: Input, text: str) -> list[int]:
    """The tokens of an answer to a prompt, as it would be cut behind the prompt; after messages as the template writes.

    Without a space before it an answer to a prompt is cut by itself, as a token that is named is.
    """
    before = item.tensors["input_ids"].tolist()
    if isinstance(item.raw, dict) and "messages" in item.raw:
        written = encoding.answer_to(item.raw["messages"], subject.processor, text)
        return encoding.going_on(subject.processor, before, written)
    if text[:1].isspace():
        return encoding.going_on(subject.processor, before, text)
    return [id for id, _ in subject.pieces(text)]


def _answered(subject: Subject, item: Input, text: str, ids: list[int]) -> Row:
    """A text and an answer after it, as tokens."""
    count, decoder = len(item.features), "decoder_input_ids" in item.tensors
    before = item.streams.count("target") if decoder else count
    most = subject.max_output if decoder else subject.max_length
    if most is not None and before + len(ids) > most:
        raise ValueError(
            f"the text before the answer {shown(text)} has {before} tokens and the answer {len(ids)}, and the model "
            f"takes {most}; shorten the text"
        )
    bare = replace(item, units=None)
    if decoder:
        whole = _written_on(subject, bare, ids)
    else:
        whole = encoding.with_continuation(bare, ids, subject.processor, "answer")
    if item.units is not None:
        whole = replace(whole, units=np.append(item.units, np.full(len(ids), item.units[-1] + 1)))
    row, target = _row(whole, count, count + len(ids) - 1, "statement")
    return row, replace(target, name=text.strip())


def _written_on(subject: Subject, item: Input, ids: list[int]) -> Input:
    """The source and the beginning of an output with more tokens of it, for an encoder-decoder."""
    before, start = item.streams.index("target"), int(item.tensors["decoder_input_ids"][0])
    source = {name: array for name, array in item.tensors.items() if not name.startswith("decoder")}
    output = [*item.tensors["decoder_input_ids"][1:].tolist(), *ids]
    whole = encoding.with_output(cut(item, before, item.streams[:before], source), output, subject.processor, start)
    special = whole.special.copy()
    special[: len(item.features)] = item.special
    return replace(whole, special=special)


def _other(subject: Subject, item: Input, first: int, text: Any) -> Row:
    """The row for another text in a statement's place, after the same beginning."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"against= is another text in the statement's place, not {shown(text)}")
    leading = " " if item.features[first].startswith(" ") and not text.startswith(" ") else ""
    decoder = "decoder_input_ids" in item.tensors
    start = item.streams.index("target") if decoder else 0
    tensors = tensors_up_to(item, first - start)
    prefix = cut(item, first, item.streams[:first] if decoder else ("text",) * first, tensors)
    before = tensors["decoder_input_ids" if decoder else "input_ids"].tolist()
    ids = encoding.going_on(subject.processor, before, leading + text, target=decoder)
    return _answered(subject, prefix, text, ids)
