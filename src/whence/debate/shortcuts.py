"""Which words act as shortcuts? Attributions name candidates; hiding them or moving them to other texts tests them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np

from whence.core.inputs import Input
from whence.core.registry import resolve
from whence.core.shortcut_audits import SHORTCUT_GRADES, ShortcutAudit, WordEffect
from whence.core.specs import Between, check_fields
from whence.core.statistics import bootstrap, holm
from whence.core.wording import counted
from whence.debate.word_effects import (
    SeenText,
    Stands,
    at_least,
    exact_interval,
    greater,
    greater_paired,
    pulled_class,
    seen,
    strongest,
    words_of,
)
from whence.measure import datasets
from whence.measure.datasets import as_target
from whence.methods import explaining
from whence.methods.explaining import tracked
from whence.model.masked_inputs import Way
from whence.model.masked_runs import Ask, MaskedRuns
from whence.model.subject import Subject
from whence.model.target_specs import resolve as resolve_target

FEWEST_TEXTS = 20
EXAMPLES, LONGEST = 3, 160  # texts that are kept with a word, and characters of each


@dataclass(frozen=True)
class Settings:
    """How words are found and tested."""

    method: str = "lrp"
    limit: Annotated[int, Between(1, 10**6)] = 1000  # texts
    least: Annotated[int, Between(1, 10**6)] = 3  # texts in which a word must stand
    candidates: Annotated[int, Between(1, 10**4)] = 25  # words that are hidden and put elsewhere
    contexts: Annotated[int, Between(5, 10**5)] = 50  # texts in which a candidate is hidden, and into which it is put
    alone: Annotated[float, Between(0, 1, without_most=True)] = 0.5
    mask: Way = "auto"
    level: Annotated[float, Between(0, 1, without_least=True, without_most=True)] = 0.05
    seed: Annotated[int, Between(0, 2**63 - 1)] = 0
    batch_size: Annotated[int, Between(1, 10**9)] | None = None
    truncate: bool = False
    progress: bool = False

    def __post_init__(self) -> None:
        check_fields(self)


def audit_shortcuts(subject: Subject, data: Any, settings: Settings) -> ShortcutAudit:
    """Attribute every text, test every word against chance, and try the candidates in other texts."""
    _check_model(subject)
    raws, labels, _ = datasets.read(data, settings.limit)
    if len(raws) < FEWEST_TEXTS:
        raise ValueError(f"shortcuts are looked for over {FEWEST_TEXTS} texts or more, and there are {len(raws)}")
    record, options = resolve("method", settings.method)
    items = explaining.encoded(subject, raws, settings.truncate, single=False)
    how = explaining.Settings(settings.seed, settings.batch_size, progress=settings.progress)
    rows = explaining.explained(subject, items, [(record, options)], [None] * len(items), how)
    lower = subject.processor is not None and subject.pieces("A")[:1] == subject.pieces("a")[:1]
    texts = [
        seen(row[0], lower, int(row[0].target.index), _label(subject, label, item))  # type: ignore[arg-type]
        for row, label, item in zip(rows, labels, items, strict=True)
    ]
    count = max(len(subject.labels or ()), 1 + max(text.predicted for text in texts))
    decided = np.bincount([text.predicted for text in texts], minlength=count)
    if (decided > 0).sum() < 2:
        raise ValueError(
            f"the model decides all {len(texts)} texts for {subject.name_of(int(decided.argmax()))!r}, so no word can "
            "be seen to decide; give texts of two classes or more"
        )
    names = [subject.name_of(i) for i in range(count)]
    words = found_words(texts, names, settings)
    chosen = [number for number, own in enumerate(words) if own.corrected < settings.level][: settings.candidates]
    tried = _Trials(subject, raws, texts, names, settings)
    stands = {own.word: own for own in words_of(texts, settings.least)}
    with subject.lent():
        for number in tracked(chosen, settings.progress, "trying words"):
            words[number] = tried(words[number], stands[words[number].word])
    known = [text for text in texts if text.label is not None]
    return ShortcutAudit(
        words=tuple(_ranked(_graded(words, chosen, settings))),
        model=subject.name,
        method=record.spec(options),
        texts=len(texts),
        classes={name: float(n / len(texts)) for name, n in zip(names, decided, strict=True)},
        labelled=bool(known),
        accuracy=float(np.mean([text.predicted == text.label for text in known])) if known else float("nan"),
        least=settings.least,
        alone=settings.alone,
        level=settings.level,
        seed=settings.seed,
        notes=(*_notes(words, chosen, known, texts, settings), *datasets.assumptions(data)),
    )


def _check_model(subject: Subject) -> None:
    """Refuse models whose decisions are not one class for a text."""
    if subject.task != "text-classification" or subject.generates or subject.regression or subject.multi_label:
        kind = "gives a number" if subject.regression else "may give several labels" if subject.multi_label else ""
        raise ValueError(
            f"shortcuts are words that decide the class of a text, and {subject.name} "
            f"{kind or f'is a {subject.task} model'}; use a classifier of texts with one class per text"
        )


def _label(subject: Subject, label: Any, item: Input) -> int | None:
    """The number of the class that a label names; None without one."""
    if label is None:
        return None
    known = resolve_target(as_target(subject, label), subject, item)
    return getattr(known, "index", None)


# ---- all words: attributions against chance --------------------------------------------------------------------------


def found_words(texts: Sequence[SeenText], names: list[str], settings: Settings) -> list[WordEffect]:
    """Every word that stands in enough texts, by how far it is attributed beyond chance; candidates come first."""
    stands = words_of(texts, settings.least)
    if not stands:
        raise ValueError(f"no word stands in {settings.least} texts or more; give more texts, or a smaller least=")
    found = [_of_word(texts, own, names) for own in stands]
    corrected = holm(np.array([own.p for own in found]))
    exclusive = holm(np.array([own.exclusive_p for own in found]))
    found = [
        replace(own, corrected=float(c), exclusive_p=float(e))
        for own, c, e in zip(found, corrected, exclusive, strict=True)
    ]
    return sorted(found, key=lambda own: (own.p, own.chance - own.strongest, own.word))


def _of_word(texts: Sequence[SeenText], own: Stands, names: list[str]) -> WordEffect:
    """What attributions, decisions and labels say of a word."""
    hits, chances = strongest(texts, own)
    pulls = pulled_class(texts, own, len(names))
    inside = [texts[number] for number in own.texts]
    elsewhere = [text for number, text in enumerate(texts) if number not in own.places]
    towards, other = (sum(text.predicted == pulls for text in group) for group in (inside, elsewhere))
    p = greater(towards, len(inside), other, len(elsewhere))
    known = [text for text in inside if text.label is not None]
    shares: dict[str, list[float]] = {}
    for number, places in own.places.items():
        shares.setdefault(names[texts[number].predicted], []).append(float(texts[number].shares[places].sum()))
    return WordEffect(
        word=own.word,
        texts=len(inside),
        pulls=names[pulls],
        attributed={name: float(np.mean(shares[name])) for name in names if name in shares},
        strongest=float(hits.mean()),
        chance=float(chances.mean()),
        p=at_least(int(hits.sum()), chances),
        corrected=1.0,
        predicted=towards / len(inside),
        predicted_elsewhere=other / len(elsewhere) if elsewhere else float("nan"),
        exclusive_p=1.0 if np.isnan(p) else p,
        labelled=float(np.mean([text.label == pulls for text in known])) if known else float("nan"),
        examples=tuple(_cut(" / ".join(text.item.texts.values())) for text in inside[:EXAMPLES]),
    )


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


# ---- candidates: hidden, put elsewhere, against labels ---------------------------------------------------------------


class _Trials:
    """Tries a candidate: hides it in its own texts, puts it into texts decided otherwise, and looks at labels."""

    def __init__(
        self,
        subject: Subject,
        raws: Sequence[Any],
        texts: Sequence[SeenText],
        names: Sequence[str],
        settings: Settings,
    ) -> None:
        self.subject, self.raws, self.texts, self.names, self.settings = subject, raws, texts, names, settings
        self.engine = MaskedRuns(subject)
        self.spread = [word for text in texts for word in text.words]  # every word as often as it stands

    def __call__(self, word: WordEffect, own: Stands) -> WordEffect:
        """The word with the results of all trials of it."""
        pulls = self.names.index(word.pulls)
        rng = np.random.default_rng([self.settings.seed, *own.word.encode()])
        found = self._hidden(own, pulls, rng) | self._elsewhere(own, pulls, rng) | self._misled(own, pulls)
        return replace(word, **found)

    def _hidden(self, own: Stands, pulls: int, rng: np.random.Generator) -> dict[str, Any]:
        """The word hidden in its own texts."""
        chosen = _some(own.texts, self.settings.contexts, rng)
        falls, flips = [], []
        for number in chosen:
            text = self.texts[number]
            keep = np.ones((2, len(text.item.features)), bool)
            for place in own.places[number]:
                keep[1, text.features[place]] = False
            aim = self.subject.aim([pulls])
            logits = self.engine.answers([text.item], [Ask(keep, self.settings.mask)], aim)[0].logits
            before, after = _softmax(logits)
            falls.append(before[pulls] - after[pulls])
            if text.predicted == pulls:
                flips.append(after.argmax() != pulls)
        mean, ends = bootstrap(np.array(falls), self.settings.seed)
        return {
            "hidden": mean,
            "hidden_interval": ends or (float("nan"), float("nan")),
            "flips": float(np.mean(flips)) if flips else float("nan"),
        }

    def _elsewhere(self, own: Stands, pulls: int, rng: np.random.Generator) -> dict[str, Any]:
        """The word, and in its place another one, put into texts that are decided otherwise and do not hold it."""
        others = [
            number for number, text in enumerate(self.texts) if text.predicted != pulls and number not in own.places
        ]
        chosen = _some(others, self.settings.contexts, rng)
        if not chosen:
            return {"contexts": 0}
        spread = [word for word in self.spread if word != own.word]
        variants: list[Any] = []
        for number in chosen:
            part, share = self._usual_place(own, rng)
            for word in (own.word, spread[rng.integers(len(spread))]):
                variants.append(_with_word(self.raws[number], self.texts[number], part, share, word))
        items = explaining.encoded(self.subject, variants, True, single=False)
        decided = (
            np.array(_decisions(self.subject, items, self.settings)).reshape(-1, 2) == pulls
        )  # (text, own | other)
        hits = int(decided[:, 0].sum())
        return {
            "contexts": len(chosen),
            "turned": hits / len(chosen),
            "turned_interval": exact_interval(hits, len(chosen)),
            "turned_by_others": float(decided[:, 1].mean()),
            "turned_p": greater_paired(decided[:, 0], decided[:, 1]),
        }

    def _usual_place(self, own: Stands, rng: np.random.Generator) -> tuple[str, float]:
        """A part of the input and a place in it, from 0 (first word) to 1 (last), at which the word stands."""
        number = own.texts[rng.integers(len(own.texts))]
        places, text = own.places[number], self.texts[number]
        place = places[rng.integers(len(places))]
        same = [i for i, part in enumerate(text.parts) if part == text.parts[place]]
        return text.parts[place], same.index(place) / max(len(same) - 1, 1)

    def _misled(self, own: Stands, pulls: int) -> dict[str, Any]:
        """How often texts with other labels are decided for the word's class: texts that hold the word, and others."""
        contrary = [(n, t) for n, t in enumerate(self.texts) if t.label is not None and t.label != pulls]
        inside = [text.predicted == pulls for number, text in contrary if number in own.places]
        elsewhere = [text.predicted == pulls for number, text in contrary if number not in own.places]
        return {
            "contrary": len(inside),
            "misled": float(np.mean(inside)) if inside else float("nan"),
            "misled_elsewhere": float(np.mean(elsewhere)) if elsewhere else float("nan"),
            "misled_p": greater(sum(inside), len(inside), sum(elsewhere), len(elsewhere)),
        }


def _some(numbers: Sequence[int], most: int, rng: np.random.Generator) -> list[int]:
    """At most `most` of the numbers, drawn at random, in order."""
    if len(numbers) <= most:
        return list(numbers)
    return sorted(int(n) for n in rng.choice(np.array(numbers), most, replace=False))


def _with_word(raw: Any, text: SeenText, part: str, share: float, word: str) -> Any:
    """An input with a word put between two words of a part, at a place from 0 (before all) to 1 (after all).

    Of a text that was cut to the model's length, the words that the model read count, and the last of them stays last.
    """
    part = part if part in text.item.texts else next(iter(text.item.texts))
    own = [i for i, name in enumerate(text.parts) if name == part]
    written = text.item.texts[part]
    if not own:
        at = 0
    else:
        end = int(text.item.offsets[text.features[own[-1]].stop - 1, 1])
        before = min(round(share * len(own)), len(own) - bool(written[end:].strip()))  # how many words stand before it
        at = int(text.item.offsets[text.features[own[before]].start, 0]) if before < len(own) else len(written)
    pieces = (written[:at].rstrip(), word, written[at:].lstrip())
    new = " ".join(piece for piece in pieces if piece)
    if isinstance(raw, Mapping):
        return {**raw, part: new}
    if isinstance(raw, (tuple, list)):
        return type(raw)(new if name == part else old for name, old in zip(text.item.texts, raw, strict=True))
    return new


def _decisions(subject: Subject, items: list[Input], settings: Settings) -> list[int]:
    """The class that the model decides every input for."""
    found = [0] * len(items)
    for numbers, batch in subject.batches(items, settings.batch_size, settings.seed):
        for number, logits in zip(numbers, subject.logits(batch), strict=True):
            found[number] = int(logits.argmax())
    return found


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


# ---- grades ----------------------------------------------------------------------------------------------------------


def _graded(words: list[WordEffect], chosen: Sequence[int], settings: Settings) -> list[WordEffect]:
    """Every word with its grade; the tests of candidates corrected for their number."""
    found = list(words)
    for name in ("turned_p", "misled_p"):
        known = [number for number in chosen if not np.isnan(getattr(found[number], name))]
        corrected = holm(np.array([getattr(found[number], name) for number in known]))
        for number, p in zip(known, corrected, strict=True):
            changed: Any = {name: float(p)}
            found[number] = replace(found[number], **changed)
    tried = set(chosen)
    return [replace(own, grade=_grade(own, number in tried, settings)) for number, own in enumerate(found)]


def _grade(own: WordEffect, tried: bool, settings: Settings) -> str:
    """A word that is attributed beyond chance, turns most texts that it is put into, and misleads, is a shortcut."""
    if own.corrected >= settings.level:
        return ""
    alone = tried and own.turned_interval[0] > settings.alone and own.turned_p < settings.level
    misleads = tried and own.misled_p < settings.level
    return "shortcut" if alone and misleads else "suspect" if alone or misleads else "strong"


def _ranked(words: list[WordEffect]) -> list[WordEffect]:
    """By grade, then by how surely a word turns the texts that it is put into, then by how it is attributed."""
    order = list(SHORTCUT_GRADES)
    return sorted(words, key=lambda own: (order.index(own.grade), -np.nan_to_num(own.turned_interval[0]), own.p))


def _notes(
    words: list[WordEffect], chosen: Sequence[int], known: list[SeenText], texts: Sequence[SeenText], settings: Settings
) -> list[str]:
    """Notes on what limits the answer."""
    notes = []
    beyond = sum(own.corrected < settings.level for own in words)
    if beyond > len(chosen):
        notes.append(f"{beyond} words are attributed beyond chance, and the first {len(chosen)} were tried elsewhere")
    if not known:
        notes.append("without labels no word can be seen to mislead, so none is graded a shortcut")
    elif len(known) < len(texts):
        notes.append(f"{counted(len(texts) - len(known), 'text')} of {len(texts)} have no label")
    needed = next((n for n in range(1, 99) if len(words) * _usual_chance(texts) ** n < settings.level), 99)
    if needed > settings.least:
        notes.append(
            f"a word must stand in about {needed} texts to be told from chance among {counted(len(words), 'word')}; "
            "rarer shortcuts are missed"
        )
    return notes


def _usual_chance(texts: Sequence[SeenText]) -> float:
    """How probable it is that a word has the greatest score of its text by chance, on average."""
    return float(np.mean([1 / max(len(text.words), 1) for text in texts]))
