"""Interventions on attention without training: words that must not count, and edits that hold in every pass.

An Input knows which of its features are ignored. In every pass over a batch with such inputs, in all layers, heads and
streams, attention to these tokens is closed (`closing.py`), so that their states reach no other token through it.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from whence.core.inputs import Input
from whence.core.spans import features_at, phrase_spans
from whence.core.wording import shown
from whence.model.batching import Batch
from whence.model.closing import Change, WeightsEdit
from whence.model.discovery import Structure, no_attention
from whence.model.loan import attention_path
from whence.model.tap import Edit, Tap

S = TypeVar("S")  # a Subject
DECODED = "the output was decoded by the model without the intervention"
FORMS = (
    "a word or phrase, the number of a feature, a pair of characters (start, end), or "
    '{"word": ..., "occurrence": n} counted from 0'
)


# ---- in a pass -------------------------------------------------------------------------------------------------------


def change_of(
    batch: Batch, edit: WeightsEdit | None, structure: Callable[[], Structure], model: nn.Module
) -> Change | None:
    """The Change of a pass over a batch; None where no input ignores anything and attention is not edited."""
    closes = any(item.ignored for item in batch.inputs)
    if edit is None and not closes:
        return None
    if closes:
        check_closable(structure(), model)
    return Change(closed_tokens(batch), edit)


@contextlib.contextmanager
def tapped(subject: Any, batch: Batch, edit: Edit | None = None) -> Iterator[None]:
    """A scope in which attention is edited, and changed as the batch asks; the model's own path where neither is."""
    change = subject.change(batch)
    if edit is None and change is None:
        yield
        return
    found = subject.structure(batch)
    tap = Tap(subject.model, len(batch), edit=edit, connections=found.connections, change=change, apart=found.apart)
    with attention_path(subject.model, "eager"), tap:
        yield


def closed_tokens(batch: Batch) -> dict[str, Tensor]:
    """The ignored tokens of every stream, (batch, token) bool, and of all streams side by side as "*"."""
    marked = torch.zeros_like(batch.mask)
    for row, item in enumerate(batch.inputs):
        places = batch.mask[row].nonzero()[:, 0]
        marked[row, places[list(item.ignored)]] = True
    return {stream: marked[:, batch.span(stream)] for stream in (*batch.streams, "*")}


def check_closable(structure: Structure, model: nn.Module) -> None:
    """An error for a model in which attention to a token cannot be closed."""
    if not structure.connections:
        raise ValueError(no_attention(model))
    if any(not key for _, key in structure.connections):
        raise ValueError(
            f"{type(model).__name__} has attention that spans no whole stream, as within windows, so attention to a "
            "feature cannot be closed; leave ignore= out, or change the input"
        )


# ---- reading what is to be ignored -----------------------------------------------------------------------------------


def with_ignored(item: Input, ignore: Sequence[Any]) -> tuple[Input, list[Any]]:
    """The input with further features ignored, and the entries of `ignore` that name nothing in it."""
    marked, missing = np.zeros(len(item.features), bool), []
    for entry in ignore:
        found = _features(item, entry)
        marked |= found
        missing += [] if found.any() else [entry]
    numbers = sorted({*item.ignored, *np.flatnonzero(marked).tolist()})
    if len(numbers) == len(item.features):
        raise ValueError("ignore= leaves no feature that may count; name fewer words")
    if numbers and item.generated and not _output_given(item.raw) and DECODED not in item.notes:
        item = replace(item, notes=(*item.notes, DECODED))
    return replace(item, ignored=tuple(numbers)), missing


def _output_given(raw: Any) -> bool:
    named = isinstance(raw, Mapping) and not {"output", "continuation"}.isdisjoint(raw)
    return named or isinstance(raw, (tuple, list))


def ignoring(items: Sequence[Input], ignore: Any) -> list[Input]:
    """Inputs with words ignored; every entry must name something in one of them. A note says what names nothing."""
    if ignore is None:
        return list(items)
    entries = entries_of(ignore)
    found = [with_ignored(item, entries) for item in items]
    for entry in entries:
        if found and all(any(entry is other for other in missing) for _, missing in found):
            missing_from = "the text; name words that stand there"
            if not any(item.texts for item in items):
                missing_from = f"the input, which has no text; name features, such as {shown(items[0].features[-1])}"
            raise ValueError(f"ignore names {shown(entry)}, which is not in {missing_from}")
    return [noted(item, missing) for item, missing in found]


def noted(item: Input, missing: Sequence[Any]) -> Input:
    """The input with a note on words that were to be ignored and are not there."""
    if not missing:
        return item
    names = ", ".join(shown(entry) for entry in missing)
    return replace(item, notes=(*item.notes, f"to be ignored, and not in the text: {names}"))


def entries_of(ignore: Any) -> list[Any]:
    """What `ignore` names, entry by entry, each of a form that can be read."""
    single = isinstance(ignore, (str, Mapping))
    if not single and (not isinstance(ignore, list) or not ignore):  # a tuple might be two features, or a span
        raise ValueError(f"ignore is a list of at least one entry, each {FORMS}, not {shown(ignore)}")
    entries = [ignore] if single else list(ignore)
    for entry in entries:
        word = entry.get("word") if isinstance(entry, Mapping) else entry
        occurrence = entry.get("occurrence", 0) if isinstance(entry, Mapping) else 0
        known = not isinstance(entry, Mapping) or not entry.keys() - {"word", "occurrence"}
        pair = isinstance(entry, (list, tuple)) and len(entry) == 2 and all(map(_whole, entry))
        named = isinstance(word, str) and bool(word.strip()) and known and _whole(occurrence)
        if not named and not pair and not (_whole(entry) and not isinstance(entry, Mapping)):
            raise ValueError(f"an entry of ignore is {FORMS}, not {shown(entry)}")
    return entries


def _whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _features(item: Input, entry: Any) -> np.ndarray:
    """(feature,) bool: what one entry names."""
    count = len(item.features)
    if _whole(entry):
        if not -count <= entry < count:
            raise ValueError(f"ignore names the feature {entry}, and there are {count}, numbered from 0")
        return np.arange(count) == entry % count
    if isinstance(entry, (list, tuple)):
        part = next(iter(item.texts), "")
        start, end = (int(place) for place in entry)
        if not part:
            raise ValueError(f"ignore names the characters {start} to {end}, and the input has no text")
        if not 0 <= start < end <= len(item.texts[part]):
            raise ValueError(f"ignore names the characters {start} to {end}, and the text has {len(item.texts[part])}")
        return features_at(item, part, [(start, end)])
    word = entry if isinstance(entry, str) else entry["word"]
    places = [(part, span) for part, text in item.texts.items() for span in phrase_spans(text, word, any_case=True)]
    chosen = None if isinstance(entry, str) else entry.get("occurrence")
    if chosen is not None and places:
        if not -len(places) <= chosen < len(places):
            raise ValueError(
                f"ignore names occurrence {chosen} of {shown(word)}, which stands in the text {len(places)} times, "
                "counted from 0"
            )
        places = [places[chosen]]
    found = np.zeros(count, bool)
    for part, span in places:
        found |= features_at(item, part, [span])
    if not places and not item.texts:  # an encoder of the user's own may name features without a text
        found = np.array([name.strip().casefold() == word.strip().casefold() for name in item.features], bool)
    return found & ~item.special


# ---- a subject under an intervention ---------------------------------------------------------------------------------


def view(subject: S, edit: WeightsEdit | None, ignore: Any) -> S:
    """The same model, under an intervention in every pass; the subject itself stays as it is."""
    if edit is None and ignore is None:
        raise ValueError("with_attention takes an edit of attention weights, or words to ignore=, and none came")
    if edit is not None and not callable(edit):
        raise TypeError(f"an edit is a function (record, weights) -> weights, not {shown(edit)}")
    made: Any = copy.copy(subject)
    if ignore is not None:
        made._ignore = (*made._ignore, *entries_of(ignore))
    if edit is not None:
        made._edit = edit if made._edit is None else _both(made._edit, edit)
        made._discoveries = {}  # facts about the model need not hold under edited attention
    return made


def _both(first: WeightsEdit, second: WeightsEdit) -> WeightsEdit:
    return lambda record, weights: second(record, first(record, weights))


def without(subject: S) -> S:
    """The subject without its intervention. Words that an input itself ignores stay ignored."""
    made: Any = copy.copy(subject)
    made._discoveries = {} if made._edit is not None else made._discoveries
    made._ignore, made._edit = (), None
    return made


def described(subject: Any) -> dict[str, Any]:
    """The intervention of a subject as JSON values; {} for a subject without one."""
    found: dict[str, Any] = {"ignore": list(subject._ignore)} if subject._ignore else {}
    if subject._edit is not None:
        found["edit"] = getattr(subject._edit, "__qualname__", type(subject._edit).__name__)
    return found
