"""Interventions on attention without training: words that must not count, and edits that hold in every pass.

An Input knows which of its features are ignored. In every pass over a batch with such inputs, in all layers, heads and
streams, attention to these tokens is closed: their weights are 0, and the others of a row are what the softmax gives
without them. A learned sink stays in the softmax and takes its share, as if the tokens had been masked. A row in which
no other key has any weight is all 0.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whence.core.inputs import Input
from whence.core.spans import features_at, phrase_spans
from whence.core.wording import shown
from whence.model.batching import Batch
from whence.model.discovery import Structure, no_attention
from whence.model.loan import attention_path
from whence.model.tap import AttentionRecord, Edit, Softmax, Tap

if TYPE_CHECKING:
    from whence.model.subject import Subject

WeightsEdit = Callable[[AttentionRecord, Tensor], Tensor]  # weights (batch, head, query, key) to those used instead
FORMS = (
    "a word or phrase, the number of a feature, a pair of characters (start, end), or "
    '{"word": ..., "occurrence": n} counted from 0'
)


# ---- in a pass -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Change:
    """What happens to all attention of a pass before anybody sees it."""

    closed: Mapping[str, Tensor]  # stream of keys -> (batch, token) bool: attention to these tokens is closed
    edit: WeightsEdit | None = None

    def keys(self, record: AttentionRecord) -> Tensor | None:
        """The keys of a block that are closed, (batch, 1, 1, key) bool; None where there are none."""
        closed = self.closed.get(record.key)
        return None if closed is None or not bool(closed.any()) else closed[:, None, None]

    def first(self, record: AttentionRecord, weights: Tensor, softmax: Softmax | None) -> Tensor:
        """The weights of the changed model; `softmax` is the call that the model's own weights came from."""
        keys = self.keys(record)
        if keys is not None:
            left = weights.detach().masked_fill(keys, 0.0).sum(-1, keepdim=True) > 0
            again = softmax.again(weights, keys, ~left) if softmax is not None else None
            weights = closed_after(weights, keys) if again is None else again
        return weights if self.edit is None else self.last(record, self.edit(record, weights))

    def last(self, record: AttentionRecord, weights: Tensor) -> Tensor:
        """Weights that a caller put in place of the model's, without those that are closed."""
        keys = self.keys(record)
        return weights if keys is None else closed_after(weights, keys)


def closed_after(weights: Tensor, keys: Tensor) -> Tensor:
    """Weights with some keys closed after the softmax: every row keeps its sum, or is 0 where nothing is left of it."""
    if not bool((weights.detach() * keys).any()):
        return weights
    kept = weights.masked_fill(keys, 0.0)
    total, left = weights.sum(-1, keepdim=True), kept.sum(-1, keepdim=True)
    return kept * torch.where(left > 0, total / torch.where(left > 0, left, 1.0), 0.0)


def change_of(batch: Batch, edit: WeightsEdit | None, structure: Callable[[], Structure], model: nn.Module) -> Any:
    """The Change of a pass over a batch; None where no input ignores anything and attention is not edited."""
    closes = any(item.ignored for item in batch.inputs)
    if edit is None and not closes:
        return None
    if closes:
        check_closable(structure(), model)
    return Change(closed_tokens(batch), edit)


@contextlib.contextmanager
def tapped(subject: Subject, batch: Batch, edit: Edit | None = None) -> Iterator[None]:
    """A scope in which attention is edited, and changed as the batch asks; the model's own path where neither is."""
    change = subject.change(batch)
    if edit is None and change is None:
        yield
        return
    connections = subject.structure(batch).connections
    tap = Tap(subject.model, len(batch), edit=edit, connections=connections, change=change)
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
    return replace(item, ignored=tuple(numbers)), missing


def ignoring(items: Sequence[Input], ignore: Any) -> list[Input]:
    """Inputs with words ignored; every entry must name something in one of them. A note says what names nothing."""
    if ignore is None:
        return list(items)
    entries = entries_of(ignore)
    found = [with_ignored(item, entries) for item in items]
    for entry in entries:
        if found and all(any(entry is other for other in missing) for _, missing in found):
            raise ValueError(f"ignore names {shown(entry)}, which is not in the text; name words that stand there")
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
    if not single and (not isinstance(ignore, (list, tuple)) or not ignore):
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
        if not 0 <= start < end <= len(item.texts.get(part, "")):
            raise ValueError(
                f"ignore names the characters {start} to {end}, and the text has {len(item.texts.get(part, ''))}"
            )
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


def view(subject: Subject, edit: WeightsEdit | None, ignore: Any) -> Subject:
    """The same model, under an intervention in every pass; the subject itself stays as it is."""
    if edit is None and ignore is None:
        raise ValueError("with_attention takes an edit of attention weights, or words to ignore=, and none came")
    if edit is not None and not callable(edit):
        raise TypeError(f"an edit is a function (record, weights) -> weights, not {shown(edit)}")
    made = copy.copy(subject)
    if ignore is not None:
        made._ignore = (*subject._ignore, *entries_of(ignore))
    if edit is not None:
        made._edit = edit if subject._edit is None else _both(subject._edit, edit)
        made._discoveries = {}  # what was found out about the model need not hold for its edited attention
    return made


def _both(first: WeightsEdit, second: WeightsEdit) -> WeightsEdit:
    return lambda record, weights: second(record, first(record, weights))


def described(subject: Subject) -> dict[str, Any]:
    """The intervention of a subject as JSON values; {} for a subject without one."""
    found: dict[str, Any] = {"ignore": list(subject._ignore)} if subject._ignore else {}
    if subject._edit is not None:
        found["edit"] = getattr(subject._edit, "__qualname__", type(subject._edit).__name__)
    return found
