"""One method on trial: the results that checks look at, and how a check says what it found."""

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
from whence.model.batching import Batch
from whence.model.subject import Subject

# A batch of another size adds up its sums in another order. That moves a float32 logit by some 1e-6 of its scale;
# gradients of deep or steep models magnify it, and 1e-4 of the sum of absolute scores is still far below what a mistake
# would move. Models in float64 often take their softmax in float32 all the same.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
HALF = 5e-2  # bfloat16 has three digits, float16 four
LEAST = 0.05  # scores whose absolute sum is below this share of the output are measured by it: they may be all rounding
COMPLETE = 1e-3  # of the sum of absolute scores, where a method has no `tolerance` option of its own
FUSED = 1e-5  # fused attention against the written-out one, of the scale of the logits
TORCH = 1e-6  # plain torch modules have no eager path to be bit-equal to


class CheckFailed(AssertionError):
    """One sentence: what differs, and by how much."""


class NotApplicable(Exception):
    """One sentence: why a check has nothing to say here."""


@dataclass(frozen=True)
class Check:
    """A named property of methods."""

    name: str
    summary: str
    function: Callable[[Trial], None]
    applies: Callable[[Record], bool]
    otherwise: str  # why it does not apply to the others


@dataclass(frozen=True)
class Report:
    """What the checks of one method on one subject found."""

    method: str
    subject: str
    passed: tuple[str, ...]
    failed: Mapping[str, str]  # name -> the sentence why
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
        """All inputs in one call."""
        with mock.patch.object(np.random, "default_rng", wraps=np.random.default_rng) as generator:
            found = self.explain(self.inputs)
        self.draws = generator.called
        return found

    @cached_property
    def alone(self) -> list[Attribution]:
        """Every input in a call of its own, and every generated token in a batch of its own."""
        return [self.explain(raw, batch_size=1) for raw in self.inputs]

    @cached_property
    def plain(self) -> list[tuple[list[int], Batch, Tensor]]:
        """The rows as `explain` batches them, by number, with the plain model's logits.

        A row is what the model is given: an input, or what one of its generated tokens could see.
        """
        items = [self.subject.encode(raw) for raw in self.inputs]
        rows = [row for item in items for row in ([cut for cut, _ in self.subject.rows(item)] or [item])]
        return [(numbers, batch, self.subject.logits(batch)) for numbers, batch in self.subject.batches(rows)]
