"""The work of jobs: explain method by method, show attention, or measure explanations of an earlier job."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from whence.core import geometry
from whence.core.inputs import Input, merged, word_starts
from whence.core.interventions import ignored_words
from whence.core.levels import at_level, checked_level
from whence.core.results import Attribution, Comparison
from whence.core.tasks import TASKS
from whence.core.wording import counted
from whence.web.catalogue import Catalogue
from whence.web.inputs import Asked, Pictures, TooLarge, raw_input
from whence.web.jobs import FORESEEN, Job, sentence
from whence.web.limits import Limits

if TYPE_CHECKING:
    from whence.model.subject import Subject

LIKELIEST = 5  # classes or tokens of a prediction that are sent


@dataclass(frozen=True)
class Explain:
    """Several methods on one input and target; for the maps of attention, none."""

    input: Asked
    methods: tuple[str, ...] = ()
    target: str | int | None = None
    seed: int = 0
    level: str = "token"
    ignore: tuple[str, ...] = ()  # words that must not count


@dataclass(frozen=True)
class Measure:
    """A metric of all explanations of a job."""

    of: Job
    metric: str


class Desk:
    """Does jobs with the models of a catalogue."""

    def __init__(self, catalogue: Catalogue, pictures: Pictures, limits: Limits) -> None:
        self.catalogue, self.pictures, self.limits = catalogue, pictures, limits

    def __call__(self, job: Job) -> None:
        kinds: dict[str, Callable[[Job], None]] = {
            "explain": self._explain,
            "attention": self._attention,
            "measure": self._measure,
        }
        kinds[job.kind](job)

    def prepare(self) -> None:
        """Import the libraries and read the first model, so that the first job need not do that."""
        self.catalogue.methods()
        self.catalogue.subject(self.catalogue.names[0])

    def check_methods(self, model: str, methods: tuple[str, ...]) -> None:
        """Refuse a spec that cannot be read, or whose method does not apply to the model, before anything runs."""
        from whence.core import registry

        self.catalogue.methods()
        task = self.catalogue.subject(model).task
        for spec in methods:
            record, _ = registry.resolve("method", spec)
            if task not in record.tasks:
                raise ValueError(f"{record.name} does not work on {model}, a {task} model; choose another method")

    def _encoded(self, job: Job) -> tuple[Subject, Input]:
        """The model and the input of a job; events tell what is known of the input."""
        asked: Explain = job.asked
        parts, truth = raw_input(asked.input, self.catalogue, self.pictures, self.limits)
        subject = self.catalogue.subject(asked.input.model)
        required = TASKS[str(self.catalogue.summary(asked.input.model)["task"] or subject.task)].required
        alone = len(parts) == len(required) == 1 and required[0] in parts
        item = subject.encode(parts[required[0]] if alone else parts, truncate=True, target=asked.target)
        if len(item.features) > self.limits.features:
            raise TooLarge(
                f"an input may have {self.limits.features:,} tokens and patches, and this one has "
                f"{len(item.features):,}; send less"
            )
        plain = item
        if asked.ignore:
            from whence.model.interventions import ignoring

            [item] = ignoring([item], list(asked.ignore))
        job.about = {
            "words": words_of(plain),
            "ignored": list(ignored_words(item)),
            "without": predicted(subject, plain) if item.ignored else None,
            "features": list(item.features),
            "special": item.special.tolist(),
            "notes": list(item.notes),
            "prediction": predicted(subject, item),
            "truth": None if truth is None or truth.shape[-1] != len(item.features) else truth.tolist(),
            "grid": grid(item),
        }
        job.tell("input", **job.about)
        return subject, item

    def _explain(self, job: Job) -> None:
        from whence.core import registry
        from whence.methods.explaining import Settings, explained
        from whence.model.masked_runs import MaskedRuns

        subject, item = self._encoded(job)
        asked: Explain = job.asked
        item = at_level(item, checked_level(asked.level))
        settings = Settings(seed=asked.seed, masked_runs=MaskedRuns(subject, keep_logits=False))
        for number, spec in enumerate(asked.methods):
            job.tell("method", number=number, method=spec, of=len(asked.methods))
            began = time.monotonic()
            try:
                [[found]] = explained(subject, [item], [registry.resolve("method", spec)], [asked.target], settings)
            except FORESEEN as error:
                job.tell("refused", number=number, method=spec, error=sentence(error))
                continue
            job.results.append(found)
            job.facts.append(facts(found, len(job.results) - 1, time.monotonic() - began, job.about["truth"]))
            job.tell("result", number=number, **job.facts[-1])

    def _attention(self, job: Job) -> None:
        from whence.methods.attention_maps import maps_of

        subject, item = self._encoded(job)
        batch = subject.batch([item])
        numbers = len(subject.structure(batch).connections) * subject.heads * len(item.features) ** 2
        if 4 * numbers > self.limits.attention_bytes:
            raise TooLarge(
                f"the attention of {len(item.features):,} tokens would take {4 * numbers / 2**20:,.0f} MB, and "
                f"{self.limits.attention_bytes / 2**20:,.0f} MB are allowed; send less"
            )
        began = time.monotonic()
        with subject.lent():
            maps = maps_of(subject, item)
        job.results.append(maps)
        shapes = {":".join(pair): list(weights.shape[:2]) for pair, weights in maps.weights.items()}
        job.facts.append({"result": 0, "seconds": time.monotonic() - began, "streams": shapes})
        job.tell("result", number=0, **job.facts[-1])

    def _measure(self, job: Job) -> None:
        from whence.core import registry
        from whence.measure.evaluation import board_of

        asked: Measure = job.asked
        subject = self.catalogue.subject(asked.of.asked.input.model)
        comparison = Comparison(tuple(asked.of.results))
        seconds = [fact["seconds"] for fact in asked.of.facts]
        began = time.monotonic()
        job.results.append(board_of(subject, comparison, [asked.metric], seconds, asked.of.asked.seed))
        record, _ = registry.resolve("metric", asked.metric)
        told = {"metric": record.name, "summary": record.summary, "better": record.better}
        job.facts.append({"result": 0, "seconds": time.monotonic() - began, **told})
        job.tell("result", number=0, **job.facts[-1])


def words_of(item: Input) -> list[str]:
    """The words of an input's texts, each once, in their order."""
    whole = merged(item, word_starts(item))
    named = zip(whole.features, whole.special, whole.parts, strict=True)
    return list(dict.fromkeys(name.strip() for name, special, part in named if part and not special and name.strip()))


def grid(item: Input) -> dict[str, Any] | None:
    """Where the patches of a picture lie: rows and columns, their features, and the rectangle in percent of it."""
    if item.grid is None or item.box is None or item.size is None:
        return None
    (left, top, right, bottom), (width, height) = item.box, item.size
    place = (left / width, top / height, (right - left) / width, (bottom - top) / height)
    return {
        "rows": item.grid[0],
        "columns": item.grid[1],
        "features": geometry.patches(item).tolist(),
        "place": [round(100 * share, 3) for share in place],
    }


def facts(found: Attribution, result: int, seconds: float, truth: list[Any] | None) -> dict[str, Any]:
    """The facts of an explanation that its event carries, before a page asks for the fragment."""
    rows = found.target if isinstance(found.target, tuple) else ()
    return {
        "result": result,
        "method": found.method,
        "seconds": round(seconds, 4),
        "target": f"each of {counted(len(rows), 'generated token')}" if rows else str(found.target),
        "output": None if rows else float(found.output),
        "signed": found.signed,
        "truth": None if truth is None else agreement(found, np.array(truth, bool)),
    }


def agreement(found: Attribution, truth: np.ndarray) -> dict[str, Any] | None:
    """How many of the k deciding features are among the k largest scores."""
    if truth.shape != found.scores.shape:
        return None
    sizes = np.abs(found.scores) if found.signed else found.scores
    hits, largest = 0, list[int]()
    for size, decides in zip(np.atleast_2d(sizes), np.atleast_2d(truth), strict=True):
        top = np.argsort(-size, kind="stable")[: int(decides.sum())]
        hits += int(decides[top].sum())
        largest += top.tolist() if truth.ndim == 1 else []
    return {"found": hits, "of": int(truth.sum()), "largest": largest}


def predicted(subject: Subject, item: Input) -> list[dict[str, Any]] | None:
    """The likeliest classes or next tokens with their probabilities; None where a model decides at single tokens."""
    if item.generated or subject.reads or subject.regression:
        return None
    logits = subject.logits(subject.batch([item]))[0].double()
    if len(logits) == 1:
        return None
    shares = logits.sigmoid() if subject.multi_label else logits.softmax(-1)
    top = shares.argsort(descending=True)[:LIKELIEST].tolist()
    return [{"label": subject.name_of(index), "probability": float(shares[index])} for index in top]
