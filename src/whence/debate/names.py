"""Does a name move the decision? The same sentences with one name after the other."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from whence.core.inputs import Input
from whence.core.name_audits import NameAudit
from whence.core.registry import resolve
from whence.core.specs import Between, check_fields
from whence.core.wording import counted
from whence.debate.group_tests import group_tests, smallest_p
from whence.debate.name_lists import NameList, name_list
from whence.measure import datasets
from whence.methods import explaining
from whence.methods.explaining import tracked
from whence.model.subject import Subject

SLOT = "{name}"
WHOLE_INPUT = ("text-classification", "causal-lm")  # a name could also move what is decided at a token


@dataclass(frozen=True)
class Settings:
    """How names are exchanged and compared."""

    method: str = "lrp"
    limit: Annotated[int, Between(1, 10**6)] = 100  # sentences
    per_group: Annotated[int, Between(1, 10**5)] = 20  # names
    draws: Annotated[int, Between(19, 10**6)] = 2000  # permutations of a test
    level: Annotated[float, Between(0, 1, without_least=True, without_most=True)] = 0.05
    seed: Annotated[int, Between(0, 2**63 - 1)] = 0
    batch_size: Annotated[int, Between(1, 10**9)] | None = None
    truncate: bool = False
    progress: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Sentence:
    """An input with a place for a name in one of its texts."""

    fill: Callable[[str], Any]  # a text -> the input with this text
    part: str  # the part of the input that holds the place
    pieces: tuple[str, ...]  # the text around the places
    original: str = ""  # the name that stood there; "" in a template
    lower: bool = False  # the text is in lower case, and so are names in it

    @property
    def shown(self) -> str:
        """The text with `{name}` in the place of the name."""
        return SLOT.join(self.pieces)

    def text(self, name: str) -> str:
        """The text with a name."""
        return self._written(name).join(self.pieces)

    def spans(self, name: str) -> list[tuple[int, int]]:
        """Where the name stands in the text: first character, and the one after the last."""
        length, start, found = len(self._written(name)), 0, []
        for piece in self.pieces[:-1]:
            start += len(piece)
            found.append((start, start + length))
            start += length
        return found

    def _written(self, name: str) -> str:
        return name.lower() if self.lower else name


def audit_names(
    subject: Subject, data: Any, names: Any, target: Any, find: Sequence[str] | None, settings: Settings
) -> NameAudit:
    """Put every name into every sentence that has a place for one, and compare outputs and relevance between groups."""
    if subject.task not in WHOLE_INPUT:
        raise ValueError(
            f"names are exchanged in texts that are decided on as a whole, and {subject.name} is a {subject.task} "
            f"model; use one of {', '.join(WHOLE_INPUT)}"
        )
    record, options = resolve("method", settings.method)
    listed = name_list(names, settings.per_group, settings.seed)
    found, notes = _sentences(data, find if find is not None else listed.names, settings.limit)
    listed, more = _known(subject, listed, found[0], settings)
    variants = [[_encoded(subject, sentence, name, settings) for name in listed.names] for sentence in found]
    predicted = np.array([_predictions(subject, own, settings) for own in tracked(variants, settings.progress)])
    if target is None and not subject.regression:
        target = int(np.bincount(predicted.ravel()).argmax())  # one for all, to compare the signs of scores
    how = explaining.Settings(settings.seed, settings.batch_size)
    explained = [
        [row[0] for row in explaining.explained(subject, own, [(record, options)], [target] * len(own), how)]
        for own in tracked(variants, settings.progress)
    ]
    on_name = [
        [_on_name(item, sentence, name) for item, name in zip(own, listed.names, strict=True)]
        for sentence, own in zip(found, variants, strict=True)
    ]
    relevance = np.array(
        [
            [float(a.scores[marks].sum()) for a, marks in zip(*rows, strict=True)]
            for rows in zip(explained, on_name, strict=True)
        ]
    )
    outputs = np.array([[a.output for a in row] for row in explained])
    measures = {"change": (outputs - outputs.mean(1, keepdims=True)).mean(0), "relevance": relevance.mean(0)}
    tests = group_tests(measures, listed.kinds, settings.seed, settings.draws)
    return NameAudit(
        names=listed.names,
        kinds=listed.kinds,
        sentences=tuple(sentence.shown for sentence in found),
        originals=tuple(sentence.original for sentence in found),
        target=explained[0][0].target,  # type: ignore[arg-type]
        outputs=outputs,
        relevance=relevance,
        predicted=predicted,
        pieces=np.array([[marks.sum() for marks in row] for row in on_name]).mean(0),
        tests=tests,
        method=record.spec(options),
        model=subject.name,
        level=settings.level,
        notes=(*listed.notes, *more, *notes, *_too_few(listed, len(tests), settings), *datasets.assumptions(data)),
    )


# ---- places for names ------------------------------------------------------------------------------------------------


def _sentences(data: Any, names: Sequence[str], limit: int) -> tuple[list[Sentence], list[str]]:
    """The inputs that have a place for a name: templates, and texts that hold one of these names."""
    inputs, _, _ = datasets.read(data)
    pattern = _pattern(names)
    found = [sentence for raw in inputs if (sentence := _sentence(raw, pattern)) is not None]
    if not found:
        raise ValueError(
            f"none of {counted(len(inputs), 'text')} holds one of the names as a word of its own, or {SLOT}; "
            f"name those to look for (find=), or give templates such as '{SLOT} made a film.'"
        )
    notes = [f"{counted(len(found), 'text')} of {len(inputs)} hold a name or {SLOT}"]
    if len(found) > limit:
        notes.append(f"the first {limit} of them were used; limit= takes more")
    return found[:limit], notes


def _pattern(names: Sequence[str]) -> re.Pattern[str]:
    """One of the names as a word of its own; longer ones first, so that "Anna" is not found as "Ann"."""
    written = sorted({re.escape(name) for name in names}, key=lambda name: (-len(name), name))
    return re.compile(rf"(?<!\w)(?:{'|'.join(written)})(?!\w)") if written else re.compile(r"(?!)")


def _sentence(raw: Any, pattern: re.Pattern[str]) -> Sentence | None:
    """An input with a place for a name; None for one without.

    A text in lower case is searched for names in lower case. Where a text holds several names, the first one is
    exchanged, at each place where it stands.
    """
    parts = dict(raw) if isinstance(raw, Mapping) else {"text": raw}
    for part, text in parts.items():
        if not isinstance(text, str):
            continue

        def fill(new: str, part: str = part) -> Any:
            return {**parts, part: new} if isinstance(raw, Mapping) else new

        if SLOT in text:
            return Sentence(fill, part, tuple(text.split(SLOT)))
        lower = text.islower()
        match = re.compile(pattern.pattern, re.IGNORECASE).search(text) if lower else pattern.search(text)
        if match is not None:
            pieces = re.split(rf"(?<!\w){re.escape(match[0])}(?!\w)", text)
            return Sentence(fill, part, tuple(pieces), match[0], lower)
    return None


# ---- names in sentences ----------------------------------------------------------------------------------------------


def _encoded(subject: Subject, sentence: Sentence, name: str, settings: Settings) -> Input:
    """A sentence with a name."""
    item = subject.encode(sentence.fill(sentence.text(name)), truncate=settings.truncate)
    if item.generated:
        raise ValueError("a name can move a decision, not a text that is generated; give prompts without continuations")
    if not _on_name(item, sentence, name).any():
        raise ValueError(f"the place of the name in {sentence.shown!r} was cut off; shorten the text")
    return item


def _on_name(item: Input, sentence: Sentence, name: str) -> np.ndarray:
    """The features that spell the name, (feature,) bool: those that share a character with it."""
    part = next(iter(item.texts)) if sentence.part not in item.texts else sentence.part
    own = np.array([feature_part == part for feature_part in item.parts])
    first, last = item.offsets[:, 0], item.offsets[:, 1]
    touched = [(first < end) & (last > start) for start, end in sentence.spans(name)]
    return own & (last > first) & np.any(touched, axis=0)


def _known(
    subject: Subject, listed: NameList, sentence: Sentence, settings: Settings
) -> tuple[NameList, tuple[str, ...]]:
    """The names that the tokenizer can spell; the others would all be the same unknown token."""
    unknown = subject.unknown
    kept: list[int] = []
    lost: list[int] = []
    for place, name in enumerate(listed.names):
        item = _encoded(subject, sentence, name, settings)
        ids = next((item.tensors[key] for key in ("input_ids", "decoder_input_ids") if key in item.tensors), None)
        spelled = ids is None or unknown is None or not (ids[_on_name(item, sentence, name)] == unknown).any()
        (kept if spelled else lost).append(place)
    kinds = {kind: tuple(groups[i] for i in kept) for kind, groups in listed.kinds.items()}
    if len(kept) < 2 or all(len(set(groups)) < 2 for groups in kinds.values()):
        raise ValueError(
            f"names of two groups that the tokenizer knows are needed, and it does not know {len(lost)} of "
            f"{len(listed.names)} names"
        )
    told = ", ".join(listed.names[i] for i in lost[:8]) + (" ..." if len(lost) > 8 else "")
    notes = (f"{counted(len(lost), 'name')} unknown to the tokenizer left out: {told}",) if lost else ()
    return NameList(tuple(listed.names[i] for i in kept), kinds, listed.notes), notes


def _predictions(subject: Subject, items: list[Input], settings: Settings) -> list[int]:
    """The class that the model predicts for every input."""
    found = [0] * len(items)
    for numbers, batch in subject.batches(items, settings.batch_size, settings.seed):
        for number, logits in zip(numbers, subject.logits(batch), strict=True):
            found[number] = int(logits.argmax())
    return found


def _too_few(listed: NameList, tests: int, settings: Settings) -> list[str]:
    """Notes on groups so small that no difference between them could be significant."""
    return [
        f"{group} ({kind}) has too few names for any difference to be significant at {settings.level:g}"
        for kind, groups in listed.kinds.items()
        for group in sorted(set(groups))
        if smallest_p(listed.kinds, kind, group) * tests >= settings.level
    ]
