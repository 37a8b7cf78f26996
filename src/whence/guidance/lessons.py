"""Examples to train on: inputs with their labels and, where people gave one, the marked words as a rationale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.core.geometry import on_box, patches
from whence.core.inputs import Input, Target
from whence.core.wording import counted, shown
from whence.measure.datasets import as_target, read
from whence.measure.rationales import marks
from whence.model.batching import Batch
from whence.model.batching import shown as named
from whence.model.subject import Subject
from whence.model.target_specs import resolve
from whence.model.targets import names_class

COVERED = 0.5  # the share of a patch that must lie in a marked region, for the patch to be marked


@dataclass(frozen=True, eq=False)
class Lesson:
    """One example: its input, the number of its class, and a mark per feature where it has a rationale."""

    raw: Any
    item: Input
    label: int
    truth: Any = None  # the rationale as it was given
    marks: np.ndarray | None = None  # (feature,) bool


def lessons_of(subject: Subject, data: Any, limit: int | None = None, truncate: bool = False) -> list[Lesson]:
    """The examples of a data set; labels or rationales that are missing or say nothing raise before any training."""
    raws, labels, truths = read(data, limit)
    missing = [number for number, label in enumerate(labels) if label is None]
    if missing:
        raise ValueError(
            f"training needs a label for every example, and {len(missing)} of {len(labels)} have none, the first being "
            f"example {missing[0]}; give a column 'label'"
        )
    found = []
    for number, (raw, label, truth) in enumerate(zip(raws, labels, truths, strict=True)):
        try:
            item = subject.encode(raw, truncate=truncate)
            marked = None if truth is None else feature_marks(item, truth)
            found.append(Lesson(raw, item, class_of(subject, label, item), truth, marked))
        except (ValueError, TypeError, OSError, LookupError) as error:
            kind = type(error) if type(error) in (TypeError, FileNotFoundError) else ValueError
            raise kind(f"example {number}: {error or repr(error)}") from error
    _check_rationales(found)
    return found


def class_of(subject: Subject, label: Any, item: Input) -> int:
    """The number of the class that a label names."""
    known = resolve(as_target(subject, label), subject, item)
    if not isinstance(known, Target) or not names_class(known) or known.index is None:
        raise ValueError(f"the label {shown(label)} names no class of {subject.name}")
    return int(known.index)


def feature_marks(item: Input, truth: Any) -> np.ndarray:
    """A rationale as a mark per feature: of a region of a picture, the patches of which it covers at least half."""
    found = marks(item, truth, (len(item.features),))
    if found.shape == (len(item.features),):
        return np.array(found, bool)
    places = patches(item)
    height, width = found.shape
    seen_shape = item.image is not None and found.shape == item.image.shape[:2]
    box = (0.0, 0.0, float(width), float(height)) if seen_shape or item.box is None else item.box
    numbers = np.arange(len(places)).reshape(item.grid or (1, -1))
    cells, inside = on_box(numbers, height, width, box, smooth=False)
    sizes = np.bincount(cells[inside], minlength=len(places))
    covered = np.bincount(cells[inside & found], minlength=len(places)) / np.maximum(sizes, 1)
    marked = np.zeros(len(item.features), bool)
    marked[places] = covered >= COVERED
    return marked


def _check_rationales(found: Sequence[Lesson]) -> None:
    """Raise for rationales that mark nothing or everything: they prefer no word to another."""
    known = [(number, one) for number, one in enumerate(found) if one.marks is not None]
    for what, judge in (("no feature", np.logical_or.reduce), ("every feature", np.logical_and.reduce)):
        wanted = what == "every feature"
        bad = [n for n, one in known if one.marks is not None and bool(judge(one.marks[~one.item.special])) is wanted]
        if bad:
            raise ValueError(
                f"the {'rationale' if len(bad) == 1 else 'rationales'} of {counted(len(bad), 'example')} "
                f"{'marks' if len(bad) == 1 else 'mark'} {what}, so nothing can be learnt from them; the first is "
                f"example {bad[0]}, {named(found[bad[0]].item)}: leave its truth empty"
            )


def batch_marks(batch: Batch, lessons: Sequence[Lesson]) -> tuple[Tensor, Tensor]:
    """The marks of a batch, (batch, feature) bool, and which examples have a rationale, (batch,) bool."""
    marked = torch.zeros_like(batch.mask)
    for row, lesson in enumerate(lessons):
        if lesson.marks is not None:
            marked[row, batch.mask[row]] = torch.from_numpy(lesson.marks).to(marked.device)
    known = torch.tensor([lesson.marks is not None for lesson in lessons], device=marked.device)
    return marked, known


def split(lessons: Sequence[Lesson], share: float, seed: int) -> tuple[list[Lesson], list[Lesson]]:
    """The examples in two parts, the second with this share of them, drawn at random; both in their old order."""
    count = max(1, round(share * len(lessons)))
    if count >= len(lessons):
        raise ValueError(f"{counted(len(lessons), 'example')} cannot be split; give more, or held_out= as data")
    chosen = set(np.random.default_rng([seed, 9]).permutation(len(lessons))[:count].tolist())
    first = [one for number, one in enumerate(lessons) if number not in chosen]
    return first, [one for number, one in enumerate(lessons) if number in chosen]
