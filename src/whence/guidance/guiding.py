"""Fine-tuning by losses on attention, over seeds, compared with training on labels alone; and the report on both."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from whence.core import registry
from whence.core.guidances import Guidance, Measure
from whence.core.wording import counted, shown
from whence.guidance.lessons import Lesson, lessons_of, split
from whence.guidance.measuring import ABOUT, Measured, between_seeds, measured, metric_names, registry_spec
from whence.guidance.objective import Objective
from whence.guidance.training import TASK, History, Schedule, quiet, step_losses, steps_of, trained
from whence.measure.datasets import assumptions
from whence.measure.local_engine import progress_bar
from whence.model.discovery import no_attention
from whence.model.subject import Subject
from whence.model.training_pass import module_of, saved
from whence.model.weights import duplicate

TRAINABLE = ("text-classification", "image-classification", "module")
SET_ASIDE = 0.1  # share of the training examples that is set aside for early stopping


@dataclass(frozen=True)
class Settings:
    """How a classifier is guided and judged."""

    schedule: Schedule = field(default_factory=Schedule)
    seeds: tuple[int, ...] = (0, 1, 2)
    methods: tuple[str, ...] = ("attention", "gae")
    explained: int = 200  # held-out examples, at most, whose explanations are measured
    control: bool = True  # train on labels alone, too
    folder: Path | None = None
    limit: int | None = None
    truncate: bool = False
    progress: bool = False


@dataclass
class Arm:
    """The models of one arm: their numbers and how they were trained, by seed."""

    models: list[Measured] = field(default_factory=list)
    histories: list[History] = field(default_factory=list)


def guided(subject: Subject, data: Any, losses: Sequence[str], held_out: Any, settings: Settings) -> Guidance:
    """Train copies of a classifier by the losses, and measure them beside training on labels alone: a Guidance."""
    objective = Objective(losses)
    _check(subject, settings)
    lessons = lessons_of(subject, data, settings.limit, settings.truncate)
    if isinstance(held_out, (int, float)) and not isinstance(held_out, bool):
        lessons, judged = split(lessons, float(held_out), 0)
    else:
        judged = lessons_of(subject, held_out, None, settings.truncate)
    _check_marks(objective, lessons)
    _check_attention(subject, lessons[0])
    step_losses(duplicate(subject), subject, lessons[:1], objective)  # raises here what would fail in training
    arms = _arms(subject, lessons, judged, objective, settings)
    notes = (*assumptions(data), *_repeated(lessons, judged))
    return _report(subject, objective, lessons, judged, arms, settings, notes)


def _check(subject: Subject, settings: Settings) -> None:
    """Raise for a model that is no classifier of whole inputs, a folder that is not empty, seeds given twice."""
    if subject.task not in TRAINABLE or subject.regression or subject.multi_label:
        what = "several labels" if subject.multi_label else "numbers" if subject.regression else subject.task
        raise ValueError(f"guide trains classifiers with one label per input, and {subject.name} is for {what}")
    if len(set(settings.seeds)) < len(settings.seeds) or not settings.seeds:
        raise ValueError(f"seeds is a list of different whole numbers, as [0, 1, 2], not {shown(list(settings.seeds))}")
    for method in settings.methods:
        registry.resolve("method", method)
    if settings.folder is not None and settings.folder.exists() and any(settings.folder.iterdir()):
        raise ValueError(f"the folder {shown(str(settings.folder))} is not empty; name a new one for the models")


def _check_marks(objective: Objective, lessons: Sequence[Lesson]) -> None:
    """Raise where losses compare with rationales and there are none."""
    asking = objective.asks_for("marks")
    if asking and all(lesson.marks is None for lesson in lessons):
        raise ValueError(
            f"the loss {shown(asking[0])} compares with the words that people marked, and no training example has a "
            "rationale; give a column 'truth'"
        )


def _check_attention(subject: Subject, lesson: Lesson) -> None:
    """Raise for a model whose attention does not look at its inputs."""
    connections = subject.structure(subject.batch([lesson.item])).connections
    if not connections:
        raise ValueError(no_attention(module_of(subject)))
    if not any(query and key for query, key in connections):
        raise ValueError(
            f"the attention of {subject.name} does not look at its inputs token by token (it attends within windows, "
            "or over something else), so there are no words to compare attention with; use another model"
        )


def _repeated(lessons: Sequence[Lesson], judged: Sequence[Lesson]) -> list[str]:
    """A note on held-out examples that are training examples, too: a model may know their answers by heart."""

    def key(lesson: Lesson) -> tuple[bytes, ...]:
        return tuple(lesson.item.tensors[name].tobytes() for name in sorted(lesson.item.tensors))

    known = {key(lesson) for lesson in lessons}
    count = sum(key(lesson) in known for lesson in judged)
    return [f"{count} of {counted(len(judged), 'held-out example')} were trained on, too."] if count else []


def _arms(
    subject: Subject, lessons: list[Lesson], judged: list[Lesson], objective: Objective, settings: Settings
) -> dict[str, Arm]:
    """The models of every arm, trained and measured."""
    wanted: dict[str, Objective | None] = {"plain": None} if settings.control else {}
    wanted["guided"] = objective
    checked: list[Lesson] = []
    if settings.schedule.patience is not None:
        lessons, checked = split(lessons, SET_ASIDE, 1)
    steps = steps_of(subject, lessons, settings.schedule)
    found = {"given": Arm([measured(subject, judged, settings.methods, 0, settings.explained)] * len(settings.seeds))}
    total = steps * len(wanted) * len(settings.seeds)
    with (
        _folder(settings.folder) as folder,
        tempfile.TemporaryDirectory() as scratch,
        progress_bar("training", total, settings.progress) as advance,
    ):
        for arm, aims in wanted.items():
            found[arm] = Arm()
            for seed in settings.seeds:
                place = (folder if arm == "guided" else Path(scratch)) / f"seed-{seed}"
                model, history = trained(
                    subject, lessons, aims, settings.schedule, seed, place, checked=checked, advance=advance
                )
                advance(steps - history.steps)
                found[arm].models.append(measured(model, judged, settings.methods, 0, settings.explained))
                found[arm].histories.append(history)
                if settings.folder is not None and arm == "guided":
                    with quiet():
                        saved(model, place)
    return found


@contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    """A scope with the folder for checkpoints and models: the one that was named, else a temporary one."""
    if named is not None:
        named.mkdir(parents=True, exist_ok=True)
        yield named
        return
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


# ---- the report ------------------------------------------------------------------------------------------------------


def _report(
    subject: Subject,
    objective: Objective,
    lessons: list[Lesson],
    judged: list[Lesson],
    arms: dict[str, Arm],
    settings: Settings,
    notes: tuple[str, ...],
) -> Guidance:
    """The numbers of all arms as a result."""
    schedule = settings.schedule
    facts = {"epochs": schedule.epochs, "rate": schedule.rate, "batch size": schedule.batch_size}
    known = sum(lesson.marks is not None for lesson in judged)
    told = [*notes, "Faithfulness is of what each model predicts."]
    if known < len(judged):
        told.append(f"Plausibility is of the {known} of {len(judged)} held-out examples that have a rationale.")
    stopped = sum(history.stopped for arm in arms.values() for history in arm.histories)
    if stopped:
        told.append(f"{counted(stopped, 'training')} stopped early.")
    if settings.folder is None:
        told.append("The guided models were not kept; name a folder to keep them.")
    return Guidance(
        model=subject.name,
        losses=objective.specs,
        arms=tuple(arms),
        seeds=tuple(settings.seeds),
        measures=tuple(measures_of(arms, settings.methods)),
        curves=_curves(arms, objective),
        trained_on=len(lessons),
        marked=sum(lesson.marks is not None for lesson in lessons),
        held_out=len(judged),
        steps=_by_seed(arms, lambda history: history.steps),
        seconds=_by_seed(arms, lambda history: history.seconds),
        settings={name: float(value) for name, value in facts.items()},
        folder="" if settings.folder is None else str(settings.folder),
        notes=tuple(told),
    )


def measures_of(arms: dict[str, Arm], methods: Sequence[str]) -> Iterator[Measure]:
    """Every measure of all arms."""
    first = next(iter(arms.values())).models[0]
    better = {"accuracy": "higher", "calibration error": "lower"}
    better |= {"heads alike in outputs": "lower", "heads alike in positions": "lower"}
    about = dict(ABOUT)
    for name, (metric, method) in metric_names(methods, True).items():
        record = registry.find("metric", metric)
        better[name], about[name] = record.better, f"{record.summary.rstrip('.')}; of {registry_spec(method)}"
    for name in ("accuracy", "calibration error", *list(first.by_example)[1:]):
        if name in first.whole:
            values = np.array([[model.whole[name] for model in arm.models] for arm in arms.values()])
            yield Measure(name, better[name], values, None, about[name])
            continue
        examples = np.array([[model.by_example[name] for model in arm.models] for arm in arms.values()])
        with np.errstate(invalid="ignore"):
            values = np.nanmean(examples, -1) if not np.isnan(examples).all() else examples[..., 0]
        yield Measure(name, better[name], values, examples, about[name])
    if len(next(iter(arms.values())).models) > 1:
        by_arm = [
            np.full(len(arm.models[0].attention), np.nan) if arm_name == "given" else between_seeds(arm.models)
            for arm_name, arm in arms.items()
        ]
        examples = np.stack([np.stack([own] * len(arm.models)) for own, arm in zip(by_arm, arms.values(), strict=True)])
        name = "attention between seeds"
        yield Measure(name, "lower", examples.mean(-1), examples, about[name])


def _curves(arms: dict[str, Arm], objective: Objective) -> dict[str, np.ndarray]:
    """The losses along the training of every seed; trainings that stopped early are filled up with NaN."""
    found = {}
    for arm, own in arms.items():
        for name in (TASK, *objective.specs) if own.histories else ():
            curves = [history.curve(name) for history in own.histories]
            longest = max(map(len, curves))
            if longest:
                found[f"{arm}: {name}"] = np.array([[*curve, *[np.nan] * (longest - len(curve))] for curve in curves])
    return found


def _by_seed(arms: dict[str, Arm], number: Callable[[History], float]) -> np.ndarray:
    """A number of every training run, (arm, seed); 0 for the model as it was given."""
    return np.array([[float(number(h)) for h in arm.histories] or [0.0] * len(arm.models) for arm in arms.values()])
