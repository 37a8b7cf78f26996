"""Fine-tuning a classifier by the label and by losses on what the tap saw: a subclass of transformers' Trainer."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import random
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whence.core import stopping
from whence.core.specs import Between, check_fields
from whence.guidance.lessons import Lesson, batch_marks
from whence.guidance.objective import Objective
from whence.model.subject import Subject
from whence.model.training_pass import kept_random_states, module_of, training_pass
from whence.model.weights import duplicate

TASK = "label"  # the name of the loss on labels among the losses of a step
POINTS = 40  # points of a training curve
CHECKS = 2  # checks per epoch, where training may stop early
_Count = Annotated[int, Between(1, 10**6)]


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train: AdamW, a rate that rises over the first steps and falls linearly to zero."""

    epochs: Annotated[float, Between(0, 1000, without_least=True)] = 2.0
    rate: Annotated[float, Between(0, 1, without_least=True)] = 5e-5
    batch_size: _Count = 32
    warmup: Annotated[float, Between(0, 1, without_most=True)] = 0.06  # the share of the steps on which the rate rises
    weight_decay: Annotated[float, Between(0, 1)] = 0.01
    clip: Annotated[float, Between(0, 10**6, without_least=True)] = 1.0  # the largest norm of a gradient
    patience: _Count | None = None  # checks on set-aside examples without a gain after which training stops

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass
class History:
    """The losses of one training run, step by step, and its cost."""

    losses: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # name -> value of every step
    steps: int = 0
    seconds: float = 0.0  # of the processor
    stopped: bool = False  # before all epochs were done

    def curve(self, name: str) -> list[float]:
        """The values of a loss as at most `POINTS` means of equal stretches of the training."""
        values = self.losses.get(name, [])
        edges = [round(place * len(values) / POINTS) for place in range(POINTS + 1)] if len(values) > POINTS else None
        if edges is None:
            return list(values)
        return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def trained(
    subject: Subject,
    lessons: Sequence[Lesson],
    objective: Objective | None,
    schedule: Schedule,
    seed: int,
    folder: Path,
    *,
    checked: Sequence[Lesson] = (),
    advance: Callable[[int], Any] = lambda steps: None,
) -> tuple[Subject, History]:
    """A copy of the subject, trained on the examples; without an objective, on labels alone.

    `checked` are examples set aside for stopping early. Checkpoints go into the folder, as safetensors. The random
    states of the process are restored at the end.
    """
    if importlib.util.find_spec("accelerate") is None:
        raise ImportError("training needs accelerate, which is not installed; run: pip install whence[train]")
    copied = duplicate(subject)
    with kept_random_states(), quiet():
        trainer = _trainer(copied, subject, lessons, objective, schedule, seed, folder, checked, advance)
        started = time.process_time()
        trainer.train()
    history = trainer.history
    history.seconds, history.steps = time.process_time() - started, trainer.state.global_step
    history.stopped = trainer.state.global_step < trainer.state.max_steps
    module_of(copied).eval()
    return copied, history


def steps_of(subject: Subject, lessons: Sequence[Lesson], schedule: Schedule) -> int:
    """How many steps training takes."""
    return math.ceil(schedule.epochs * len(_groups(subject, lessons, schedule.batch_size, 0)))


def step_losses(
    subject: Subject, base: Subject | None, lessons: Sequence[Lesson], objective: Objective | None
) -> dict[str, Tensor]:
    """The loss on labels and, by spec, the weighted losses of an objective, of one batch of examples."""
    batch = subject.batch([lesson.item for lesson in lessons])
    labels = torch.tensor([lesson.label for lesson in lessons], device=subject.device)
    known: dict[str, Any] = {"labels": labels}
    if objective is not None and objective.asks_for("marks"):
        known["marks"], known["marked"] = batch_marks(batch, lessons)
    if base is not None and objective is not None and objective.asks_for("base"):
        known["base"] = base.logits(batch)
    seen = training_pass(subject, batch, objective.needs if objective is not None else (), **known)
    parts = {TASK: F.cross_entropy(seen.logits, labels)}
    if objective is not None:
        weighted = zip(objective.parts(seen).items(), objective.weights, strict=True)
        parts |= {spec: weight * value for (spec, value), weight in weighted}
    return parts


def _groups(subject: Subject, lessons: Sequence[Lesson], batch_size: int, seed: int) -> list[list[int]]:
    """Numbers of examples that go together: of similar length, of equal length where padding changes the outputs."""
    order = list(range(len(lessons)))
    random.Random(seed).shuffle(order)  # so that examples of one length meet different ones in every epoch
    groups = subject.batches([lessons[number].item for number in order], batch_size)
    return [[order[place] for place in group] for group, _ in groups]


class _Order:
    """The batches of every epoch, in a new random order each time."""

    def __init__(self, subject: Subject, lessons: Sequence[Lesson], batch_size: int, seed: int) -> None:
        self._subject, self._lessons, self._size, self._seed, self._epoch = subject, lessons, batch_size, seed, 0
        self._count = len(_groups(subject, lessons, batch_size, seed))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[int]]:
        seed = self._seed * 1_000_003 + self._epoch
        self._epoch += 1
        groups = _groups(self._subject, self._lessons, self._size, seed)
        random.Random(seed).shuffle(groups)
        return iter(groups)


def _trainer(
    copied: Subject,
    base: Subject,
    lessons: Sequence[Lesson],
    objective: Objective | None,
    schedule: Schedule,
    seed: int,
    folder: Path,
    checked: Sequence[Lesson],
    advance: Callable[[int], Any],
) -> Any:
    """The Trainer of transformers, with the losses of an objective beside that on labels."""
    from transformers import EarlyStoppingCallback, TrainerCallback
    from transformers.trainer_callback import PrinterCallback

    class Steps(TrainerCallback):
        """After every step: advances the progress bar, and stops where the work is no longer wanted."""

        def on_step_end(self, *given: Any, **options: Any) -> None:
            stopping.check()
            advance(1)

    order = _Order(copied, lessons, schedule.batch_size, seed)
    guided = _trainer_class(copied, order, lessons, partial(step_losses, copied, base, objective=objective), checked)
    callbacks: list[Any] = [Steps()]
    if schedule.patience is not None:
        callbacks.append(EarlyStoppingCallback(schedule.patience))
    arguments = _arguments(schedule, seed, folder, len(order), copied.device.type == "cpu")
    made = guided(
        module_of(copied), arguments, train_dataset=lessons, eval_dataset=checked or None, callbacks=callbacks
    )
    made.remove_callback(PrinterCallback)
    return made


def _trainer_class(
    copied: Subject,
    order: _Order,
    lessons: Any,
    losses: Callable[..., dict[str, Tensor]],
    checked: Sequence[Lesson],
) -> Any:
    """A class of transformers' Trainer whose batches are lessons; made here because transformers is slow to load."""
    from transformers import Trainer

    class Guided(Trainer):
        """A Trainer whose loss adds the losses on what the tap recorded."""

        history = History()
        control: Any

        def get_train_dataloader(self) -> Any:
            together: dict[str, Any] = {"batch_sampler": order, "collate_fn": lambda chosen: {"lessons": chosen}}
            return torch.utils.data.DataLoader(lessons, **together)

        def compute_loss(self, model: Any, inputs: Any, *given: Any, **options: Any) -> Any:
            parts = losses(lessons=inputs["lessons"])
            for name, value in parts.items():
                self.history.losses[name].append(float(value.detach()))
            return sum(parts.values())

        def evaluate(self, *given: Any, **options: Any) -> dict[str, float]:
            found = {"eval_loss": label_loss(copied, checked), "epoch": float(self.state.epoch or 0)}
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
            return found

        def _save(self, output_dir: str | None = None, **options: Any) -> None:
            super()._save(output_dir, **options)
            (Path(output_dir or self.args.output_dir) / "training_args.bin").unlink(missing_ok=True)  # a pickle

        def _prepare_inputs(self, inputs: Any) -> Any:
            return inputs  # batches are made on the model's device

    return Guided


def _arguments(schedule: Schedule, seed: int, folder: Path, steps: int, cpu: bool) -> Any:
    """The settings of transformers' Trainer."""
    from transformers import TrainingArguments

    checks: dict[str, Any] = {"save_strategy": "no"}
    if schedule.patience is not None:
        every = max(1, steps // CHECKS)
        checks = {"eval_strategy": "steps", "eval_steps": every, "save_strategy": "steps", "save_steps": every}
        checks |= {"load_best_model_at_end": True, "metric_for_best_model": "loss", "save_total_limit": 1}
    total = math.ceil(schedule.epochs * steps)
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=schedule.epochs,
        learning_rate=schedule.rate,
        per_device_train_batch_size=schedule.batch_size,
        warmup_steps=round(schedule.warmup * total),
        weight_decay=schedule.weight_decay,
        max_grad_norm=schedule.clip,
        seed=seed,
        use_cpu=cpu,
        disable_tqdm=True,
        report_to=[],
        logging_strategy="no",
        save_only_model=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        **checks,
    )


def label_loss(subject: Subject, lessons: Sequence[Lesson]) -> float:
    """The mean cross-entropy of labels."""
    logits = logits_of(subject, lessons)
    return float(F.cross_entropy(logits, torch.tensor([lesson.label for lesson in lessons])))


def logits_of(subject: Subject, lessons: Sequence[Lesson]) -> Tensor:
    """The decision logits of every example, without gradients: (example, class)."""
    items = [lesson.item for lesson in lessons]
    rows: dict[int, Tensor] = {}
    for group, batch in subject.batches(items):
        rows |= dict(zip(group, subject.logits(batch).float().cpu(), strict=True))
    return torch.stack([rows[number] for number in range(len(items))])


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """A scope without the notices of transformers and accelerate on settings that are meant as they are."""
    from transformers.utils import logging as notices

    levels = {name: logging.getLogger(name).level for name in ("transformers", "accelerate")}
    bars = notices.is_progress_bar_enabled()
    try:
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        notices.disable_progress_bar()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        if bars:
            notices.enable_progress_bar()
