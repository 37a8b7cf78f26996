"""Measures of a model before and after training: its predictions, its explanations, how its heads differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import entr
from torch import Tensor
from torch.nn import functional as F

from whence.core import registry
from whence.guidance.attributions import TINY, attention, blocks
from whence.guidance.lessons import Lesson
from whence.guidance.training import logits_of
from whence.measure.evaluation import evaluated
from whence.model.subject import Subject
from whence.model.training_pass import TrainingPass, training_pass

METRICS = ("comprehensiveness", "sufficiency", "auac", "plausibility")
BINS = 10  # bins of confidence, for the calibration error
ABOUT = {
    "accuracy": "the share of examples whose label is predicted",
    "calibration error": f"the mean gap between confidence and accuracy, over {BINS} bins of confidence (ECE)",
    "heads alike in outputs": "the mean cosine of the outputs of two heads of a layer, over all pairs and tokens",
    "heads alike in positions": "the mean cosine of the attention rows of two heads of a layer, over pairs and tokens",
    "attention between seeds": "the Jensen-Shannon divergence, in nats, of the attention of models of different seeds",
}


@dataclass
class Measured:
    """The numbers of one model on the held-out examples."""

    by_example: dict[str, np.ndarray] = field(default_factory=dict)  # name -> (example,)
    whole: dict[str, float] = field(default_factory=dict)  # of the whole set
    attention: list[np.ndarray] = field(default_factory=list)  # of every example: what the deciding token attends to


def measured(
    subject: Subject, lessons: Sequence[Lesson], methods: Sequence[str], seed: int, most: int | None = None
) -> Measured:
    """Every number of a model; the explanations measured are of its predictions on the first `most` examples."""
    found = Measured()
    chances = torch.softmax(logits_of(subject, lessons).double(), -1).numpy()
    labels = np.array([lesson.label for lesson in lessons])
    right = (chances.argmax(-1) == labels).astype(float)
    found.by_example["accuracy"] = right
    found.whole["calibration error"] = calibration_error(chances.max(-1), right)
    chosen = lessons[:most]
    found.by_example |= _explained(subject, chosen, methods, seed)
    likeness, found.attention = _heads(subject, chosen)
    found.by_example |= likeness
    return found


def metric_names(methods: Sequence[str], with_truth: bool) -> dict[str, tuple[str, str]]:
    """The names of measures of explanations: metric and method of each."""
    metrics = [metric for metric in METRICS if with_truth or metric != "plausibility"]
    return {f"{metric} of {method}": (metric, method) for method in methods for metric in metrics}


def _explained(subject: Subject, lessons: Sequence[Lesson], methods: Sequence[str], seed: int) -> dict[str, np.ndarray]:
    """Faithfulness and plausibility of methods, (example,) each."""
    truths = any(lesson.marks is not None for lesson in lessons)
    rows: list[Any] = [_Example(lesson.raw, lesson.marks) for lesson in lessons]
    names = metric_names(methods, truths)
    metrics = list(dict.fromkeys(metric for metric, _ in names.values()))
    board = evaluated(subject, rows, methods, metrics, seed=seed)
    values = {}
    for number, (_, method) in enumerate(names.values()):
        place = board.methods.index(registry_spec(method))
        values[list(names)[number]] = board.values[place, metrics.index(list(names.values())[number][0])]
    return values


def registry_spec(method: str) -> str:
    """A method's spec as results write it."""
    record, options = registry.resolve("method", method)
    return record.spec(options)


@dataclass(frozen=True, eq=False)
class _Example:
    """An example for `evaluated`: without a label, so that what the model predicts is explained."""

    input: Any
    truth: Any
    label: None = None


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """The expected calibration error: sum over bins of the share of examples x |accuracy - mean confidence|."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [abs(right[bins == one].mean() - confidence[bins == one].mean()) * (bins == one).mean() for one in set(bins)]
    return float(sum(gaps))


def _heads(subject: Subject, lessons: Sequence[Lesson]) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
    """How alike heads are, (example,) each, and what the deciding token attends to in the last layer, by example."""
    items = [lesson.item for lesson in lessons]
    likeness = {f"heads alike in {of}": np.zeros(len(items)) for of in ("outputs", "positions")}
    rows = [np.zeros(0)] * len(items)
    with subject.lent(), torch.no_grad():
        for group, batch in subject.batches(items):
            seen = training_pass(subject, batch, ("attention", "outputs"))
            likeness["heads alike in outputs"][group] = different_heads(seen, "outputs").double().cpu().numpy()
            likeness["heads alike in positions"][group] = different_heads(seen, "positions").double().cpu().numpy()
            for number, row in zip(group, batch.unpadded(attention(seen)), strict=True):
                rows[number] = row / max(row.sum(), TINY)
    return likeness, rows


def different_heads(seen: TrainingPass, of: Literal["outputs", "positions"]) -> Tensor:
    """The mean cosine of two different heads of a layer, over layers, pairs and tokens: (batch,); NaN of one head."""
    values = []
    for record in blocks(seen):
        states = record.weights if of == "positions" else torch.cat([align(out) for out, align in record.outputs], 1)
        count = states.shape[1]
        total = F.normalize(states, dim=-1).sum(1).square().sum(-1)  # the sum of the cosines of all pairs of heads
        alike = (total - count) / (count * (count - 1)) if count > 1 else torch.full_like(total, torch.nan)
        real = seen.batch.mask[:, seen.batch.span(record.query)]
        values.append((alike * real).sum(1) / real.sum(1))
    return torch.stack(values).mean(0)


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """The Jensen-Shannon divergence of two distributions, in nats: from 0 to ln 2."""
    return max(0.0, float((entr((p + q) / 2) - (entr(p) + entr(q)) / 2).sum()))


def between_seeds(models: Sequence[Measured]) -> np.ndarray:
    """The mean Jensen-Shannon divergence, in nats, of the attention of all pairs of models: (example,)."""
    pairs = list(combinations([model.attention for model in models], 2))
    return np.array(
        [
            float(np.mean([divergence(one[number], two[number]) for one, two in pairs])) if pairs else np.nan
            for number in range(len(models[0].attention))
        ]
    )
