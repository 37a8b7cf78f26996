"""One method on trial: the results that checks look at, and the forms in which checks report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from whence import api
from whence.core import registry
from whence.core.registry import Record
from whence.core.results import Attribution
from whence.methods.explaining import rows_of
from whence.model.batching import Batch
from whence.model.subject import Subject

# Sums are added up in another order in a batch of another size. This changes a float32 logit by some 1e-6 of its scale,
# and gradients of deep or steep models magnify the change; yet 1e-4 of the sum of absolute scores is far below the
# effect of a mistake. Models in float64 often compute their softmax in float32.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
HALF = 5e-2  # bfloat16 has three digits, float16 four
LEAST = 0.05  # share of the output: a smaller absolute sum of scores may be rounding, and is not used as their scale
COMPLETE = 1e-3  # share of the sum of absolute scores, for methods without an option `tolerance`
FUSED = 1e-5  # difference of fused from eager attention, as a share of the logits' scale
TORCH = 1e-6  # the same for plain torch modules, which have no eager path to be bit-equal to


class CheckFailed(AssertionError):
    """A check failed; one sentence says what differs, and by how much."""


class NotApplicable(Exception):
    """A check does not apply to a method or its inputs; one sentence says why."""


@dataclass(frozen=True)
class Check:
    """A named property of methods."""

    name: str
    summary: str
    function: Callable[[Trial], None]
    applies: Callable[[Record], bool]
    otherwise: str  # why it does not apply to other methods


@dataclass(frozen=True)
class Report:
    """The results of the checks of one method on one subject."""

    method: str
    subject: str
    passed: tuple[str, ...]
    failed: Mapping[str, str]  # name -> why, in a sentence
    skipped: Mapping[str, str]  # name -> why it does not apply, or was not run

    def __str__(self) -> str:
        counts = f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"
        lines = [f"{self.method} on {self.subject}: {counts}"]
        lines += [f"  failed   {name}: {why}" for name, why in self.failed.items()]
        lines += [f"  skipped  {name}: {why}" for name, why in self.skipped.items()]
        return "\n".join([*lines, f"  passed   {', '.join(self.passed) or 'none'}"])

    def raise_for_failures(self) -> None:
        """Raise an AssertionError that shows the report, if any check failed."""
        if self.failed:
            raise AssertionError(str(self))


class Trial:
    """One method on one subject, with the results that several checks look at."""

    def __init__(self, method: str, subject: Subject, inputs: Sequence[Any]) -> None:
        self.method, self.subject, self.inputs = method, subject, list(inputs)
        self.record, self.options = registry.resolve("method", method)
        self.tolerance = TOLERANCE.get(subject.dtype, HALF)  # of scores
        self.fused = FUSED if subject.dtype in TOLERANCE else HALF  # of logits
        self.draws = False  # the method made a random generator

    def explain(self, inputs: Any, target: Any = None, **options: Any) -> Any:
        """`whence.explain` with the method on trial."""
        return api.explain(self.subject, inputs, self.method, target, **options)

    @cached_property
    def together(self) -> list[Attribution]:
        """The attributions of all inputs, in one call."""
        with mock.patch.object(np.random, "default_rng", wraps=np.random.default_rng) as generator:
            attributions = self.explain(self.inputs)
        self.draws = generator.called
        return attributions

    @cached_property
    def alone(self) -> list[Attribution]:
        """The attributions of every input in a call of its own, with every generated token in a batch of its own."""
        return [self.explain(raw, batch_size=1) for raw in self.inputs]

    @cached_property
    def plain(self) -> list[tuple[list[int], Batch, Tensor]]:
        """The rows as `explain` batches them, by number, with the plain model's logits.

        A row is an input, or the part of it that one generated token could see.
        """
        items = [self.subject.encode(raw) for raw in self.inputs]
        rows = rows_of(self.subject, items, [None] * len(items)).inputs
        return [(numbers, batch, self.subject.logits(batch)) for numbers, batch in self.subject.batches(rows)]
