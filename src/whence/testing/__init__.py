"""Checks that every method passes, the library's own and a user's: `check_method("my_method", subject, inputs)`.

The promises in a method's record decide which checks apply. Scores are compared relative to the sum of their absolute
values, since that is the scale on which they are read.
"""

from __future__ import annotations

import contextlib
import math
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from whence import api
from whence.core import registry
from whence.core.inputs import Target
from whence.core.registry import Record
from whence.core.results import Attribution
from whence.core.wording import suggest
from whence.model.batching import Batch
from whence.model.loan import attention_path, configs, difference, fingerprint, lent
from whence.model.subject import Subject

__all__ = ["Check", "Report", "check_method", "checks"]

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


_CHECKS: list[Check] = []
_FIRST = ("given_back", "well_formed")  # without these, the others have nothing to look at


def checks(method: str) -> list[Check]:
    """The checks that apply to a method's promises, in the order in which they run."""
    record, _ = registry.resolve("method", method)
    return [check for check in _CHECKS if check.applies(record)]


def check_method(method: str, subject: Subject, inputs: Sequence[Any], *, only: Sequence[str] | None = None) -> Report:
    """Run the checks of a method, given as a spec, on a subject and a few raw inputs of different lengths."""
    if isinstance(inputs, (str, dict)) or not inputs:
        raise ValueError(f"check_method takes a list of raw inputs, best of different lengths, not {inputs!r}")
    names = [check.name for check in _CHECKS]
    for name in only or ():
        if name not in names:
            raise ValueError(f"unknown check {name!r}; {suggest(name, names)}")
    trial = Trial(method, subject, inputs)
    passed: list[str] = []
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for check in _CHECKS:
        if only is not None and check.name not in only:
            continue
        missing = next((name for name in _FIRST if name in failed), None)
        if missing and check.name not in _FIRST:
            skipped[check.name] = f"not run, since {missing} failed"
        elif not check.applies(trial.record):
            skipped[check.name] = check.otherwise
        else:
            try:
                check.function(trial)
                passed.append(check.name)
            except NotApplicable as reason:
                skipped[check.name] = str(reason)
            except CheckFailed as reason:
                failed[check.name] = str(reason)
            except Exception as error:  # whatever a method raises is a finding, and the report goes on
                failed[check.name] = f"{type(error).__name__} was raised: {error}"
    return Report(trial.record.spec(trial.options), subject.name, tuple(passed), failed, skipped)


def _check(
    applies: Callable[[Record], bool] = lambda record: True, otherwise: str = ""
) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Add a function to the checks; its docstring says what holds when it passes."""

    def add(function: Callable[[Trial], None]) -> Callable[[Trial], None]:
        _CHECKS.append(Check(function.__name__, str(function.__doc__), function, applies, otherwise))
        return function

    return add


# ---- the model that was lent -----------------------------------------------------------------------------------------


@_check()
def given_back(trial: Trial) -> None:
    """The model, its settings, its logits and the global random states are as they were, also after an error."""
    model, plain = trial.subject.model, trial.plain
    before = fingerprint(model, full=True)
    changed = ""
    # `lent` puts right what it can on its way out; holding it here shows what the method itself left behind.
    with contextlib.suppress(Exception), lent(model):  # an error is told by well_formed
        held = _without_random_states(fingerprint(model))
        try:
            trial.explain(trial.inputs)
        finally:
            changed = difference(held, _without_random_states(fingerprint(model)))
    changed = changed or difference(before, fingerprint(model, full=True))
    if changed:
        raise CheckFailed(f"the model was not given back as it was lent: {changed} changed")
    for _, batch, logits in plain:
        again = trial.subject.logits(batch)
        if not torch.equal(again, logits):
            raise CheckFailed(f"the model's logits moved by {_distance(again, logits):.3g} while it was explained")


@_check()
def well_formed(trial: Trial) -> None:
    """Every input gets a finite score per feature, on named axes; what a row could not see scores exactly 0."""
    found = trial.together
    if len(found) != len(trial.inputs):
        raise CheckFailed(f"{len(trial.inputs)} inputs gave {len(found)} attributions")
    for number, a in enumerate(found):
        rows = (len(a.input.generated),) if a.input.generated else ()
        expected = (*rows, len(a.features))
        if a.scores.shape != expected or a.axes != ("generated", "feature")[1 - len(rows) :]:
            raise CheckFailed(f"input {number}: scores {a.scores.shape} on axes {a.axes}; expected shape {expected}")
        if not np.isfinite(a.scores).all():
            raise CheckFailed(f"input {number}: {int((~np.isfinite(a.scores)).sum())} scores are not finite")
        if (a.scores[~a.visible] != 0).any():
            raise CheckFailed(f"input {number}: {np.count_nonzero(a.scores[~a.visible])} scores of what was not seen")


@_check()
def plain_forward(trial: Trial) -> None:
    """The pass that records what the method needs gives the plain model's logits: bit by bit on the eager path."""
    subject, needs = trial.subject, sorted(trial.record.wanted(trial.options))
    exact = any("_attn_implementation_internal" in vars(config) for config in configs(subject.model))
    allowed = TORCH if subject.dtype in TOLERANCE and not exact else trial.fused
    for _, batch, logits in trial.plain:
        _same_logits(_recorded(subject, batch, needs), logits, allowed, "the model's own path")
        if exact:
            with lent(subject.model), attention_path(subject.model, "eager"):
                _same_logits(_recorded(subject, batch, needs), subject.logits(batch), 0.0, "the eager path")


# ---- random numbers --------------------------------------------------------------------------------------------------


@_check()
def repeatable(trial: Trial) -> None:
    """The same seed gives the same scores, bit by bit, whatever the global random states are."""
    with lent(trial.subject.model):  # which restores the random states
        random.seed(12345)
        np.random.seed(12345)
        torch.manual_seed(12345)
        again = trial.explain(trial.inputs)
    for number, (a, b) in enumerate(zip(trial.together, again, strict=True)):
        if not np.array_equal(a.scores, b.scores):
            gap = np.abs(a.scores - b.scores).max()
            raise CheckFailed(
                f"input {number}: scores differ by up to {gap:.3g} between two runs with one seed and other global "
                "random states; draw from batch.generators()"
            )


@_check()
def seeded(trial: Trial) -> None:
    """A method that draws random numbers gives other scores under another seed."""
    usual = trial.together
    if not trial.draws:
        raise NotApplicable("the method makes no random generator")
    others = trial.explain(trial.inputs, seed=1)
    if all(np.array_equal(a.scores, b.scores) for a, b in zip(usual, others, strict=True)):
        raise CheckFailed(
            "the method draws random numbers, yet seeds 0 and 1 give equal scores; use batch.generators()"
        )


# ---- batches ---------------------------------------------------------------------------------------------------------


@_check()
def batched(trial: Trial) -> None:
    """Alone and in a batch with a copy of itself, an input gets the same scores."""
    for place, a in enumerate(trial.explain([trial.inputs[0]] * 2)):
        _agree(a, trial.alone[0].scores, trial.tolerance, f"input 0 at place {place} of a batch and alone")


@_check()
def among_others(trial: Trial) -> None:
    """Alone and among other inputs, padded where their lengths differ, an input gets the same scores."""
    _several(trial)
    for number, (a, b) in enumerate(zip(trial.together, trial.alone, strict=True)):
        _agree(a, b.scores, trial.tolerance, f"input {number} among others and alone")
        gap = np.abs(np.subtract(a.output, b.output)).max()
        if not gap <= trial.tolerance * max(1.0, np.abs(b.output).max()):
            raise CheckFailed(f"input {number}: the output moves by {gap:.3g} when it is among others")


@_check()
def ordered(trial: Trial) -> None:
    """The order of the inputs in a list does not matter."""
    _several(trial)
    turned = trial.explain(trial.inputs[::-1])[::-1]
    for number, (a, b) in enumerate(zip(turned, trial.together, strict=True)):
        _agree(a, b.scores, trial.tolerance, f"input {number} in the reversed list and in the list")


@_check()
def shared(trial: Trial) -> None:
    """The method leaves a recorded pass as it found it: run twice on one pass, it gives the same scores."""
    for number, both in enumerate(api.compare(trial.subject, trial.inputs, [trial.method, trial.method])):
        _agree(both[1], both[0].scores, 0.0, f"input {number} at the second and the first run on one recorded pass")


# ---- what is explained -----------------------------------------------------------------------------------------------


@_check()
def output(trial: Trial) -> None:
    """The stored output is the target's value on the plain model, and a target left open is what that predicts."""
    stored = [
        (number, target, value)
        for number, a in enumerate(trial.together)
        for target, value in zip(_per_row(a.target), np.atleast_1d(a.output), strict=True)
    ]
    for rows, batch, logits in trial.plain:
        values = trial.subject.aim([stored[row][1] for row in rows])(logits, batch).tolist()
        for row, value, best in zip(rows, values, logits.argmax(-1).tolist(), strict=True):
            number, target, found = stored[row]
            if not abs(value - found) <= trial.fused * _scale(logits):
                raise CheckFailed(f"input {number}: {found:.7g} is stored as the {target}, which is {value:.7g}")
            if target.predicted and target.index != best:
                raise CheckFailed(f"input {number}: the {target} is explained, but class {best} is predicted")


@_check()
def residual(trial: Trial) -> None:
    """Signed methods store output - base - sum of scores as the residual; unsigned ones store none."""
    for number, a in enumerate(trial.together):
        if not trial.record.signed:
            if a.residual is not None or a.base is not None:
                raise CheckFailed(f"input {number}: an unsigned method has a base {a.base} or residual {a.residual}")
            continue
        sums, sizes = _sums(a)
        expected = np.atleast_1d(a.output) - np.atleast_1d(a.base) - sums
        gap = np.abs(np.atleast_1d(a.residual) - expected)
        # the same numbers added up in another order
        if not (gap <= 1e-6 * (sizes + np.abs(np.atleast_1d(a.output)))).all():
            raise CheckFailed(
                f"input {number}: the residual {a.residual} is stored, but output - base - sum is {expected}"
            )


@_check(lambda record: record.complete, "the method does not promise completeness")
def complete(trial: Trial) -> None:
    """The scores sum to f(x) - f(baseline): within the method's own `tolerance`, or 1e-3 of their absolute sum."""
    options = {name: option.default for name, option in trial.record.options.items()} | trial.options
    own = isinstance(options.get("tolerance"), (int, float))
    tolerance, least = (options["tolerance"], 0.1) if own else (max(COMPLETE, trial.tolerance), 0.0)
    for number, a in enumerate(trial.together):
        _, sizes = _sums(a)
        scale = np.maximum(np.maximum(sizes, np.abs(np.atleast_1d(a.output) - np.atleast_1d(a.base))), least)
        left = np.abs(np.atleast_1d(a.residual))
        if not (left <= tolerance * scale).all():
            worst = int(np.argmax(left - tolerance * scale))
            raise CheckFailed(
                f"input {number}: {left[worst]:.3g} of f(x) - f(baseline) is not in the scores, whose absolute sum is "
                f"{sizes[worst]:.3g}; {tolerance:g} of that is allowed"
            )


@_check(lambda record: record.signed, "the method has no sign")
def negated(trial: Trial) -> None:
    """Negating the target negates the scores."""
    count = len(trial.inputs)
    found = trial.explain(trial.inputs * 2, [_mixture] * count + [_negated_mixture] * count)
    for number, (a, b) in enumerate(zip(found[:count], found[count:], strict=True)):
        _agree(b, -a.scores, trial.tolerance, f"input {number} for -f and the negated scores for f")


@_check(
    lambda record: record.signed or any("gradient" in need for need in record.needs),
    "the method has no sign and takes no gradient, so its scores need not depend on the target",
)
def zero_target(trial: Trial) -> None:
    """Where the target is always 0 nothing matters: all scores are 0, and other examples of the batch keep theirs."""
    targets = [_zero if number % 2 == 0 else None for number in range(len(trial.inputs))]
    for number, (a, b) in enumerate(zip(trial.explain(trial.inputs, targets), trial.together, strict=True)):
        if targets[number] is None:
            _agree(a, b.scores, trial.tolerance, f"input {number} beside one whose target is 0, and as usual")
        elif not np.abs(a.scores).max() <= 1e-6 * np.abs(b.scores).sum():
            raise CheckFailed(
                f"input {number}: the target is 0 whatever the input, yet a score is {np.abs(a.scores).max():.3g}"
            )


@_check(
    lambda record: record.family != "baseline" and "module" in record.tasks,
    "a baseline knows nothing of the model, and a method for other tasks cannot run on the planted one",
)
def cannot_matter(trial: Trial) -> None:
    """On a small causal model that decides at its third token, what comes later scores 0, and not all before does."""
    planted = Subject(_Planted().eval(), task="module", labels=("no", "yes"), encode=_letters, name="the planted model")
    try:
        a = api.explain(planted, "whence", trial.method)
    except ValueError as error:
        raise NotApplicable(f"the method does not run on the planted model: {error}") from error
    before, after = np.abs(a.scores[: READ + 1]), np.abs(a.scores[READ + 1 :])
    if not before.sum() > 0:
        raise CheckFailed(f"the first {READ + 1} tokens of the planted model decide, yet all their scores are 0")
    if not after.max() <= 1e-6 * before.sum():
        raise CheckFailed(
            f"token {READ + 1 + int(after.argmax())} of the planted model comes after the deciding token {READ}, yet "
            f"it scores {after.max():.3g}, and those that decide {before.sum():.3g} in sum"
        )


# ---- results ---------------------------------------------------------------------------------------------------------


@_check()
def saved(trial: Trial) -> None:
    """An attribution that was saved and loaded equals itself."""
    with tempfile.TemporaryDirectory() as folder:
        for number, a in enumerate(trial.together):
            a.save(Path(folder) / "attribution.json")
            if Attribution.load(Path(folder) / "attribution.json") != a:
                raise CheckFailed(f"input {number}: the attribution that was saved is not the one that was loaded")


# ---- helpers ---------------------------------------------------------------------------------------------------------


def _several(trial: Trial) -> None:
    if len(trial.inputs) < 2:
        raise NotApplicable("there is one input; give several, best of different lengths")


def _agree(a: Attribution, expected: np.ndarray, tolerance: float, what: str) -> None:
    """Raise unless the scores are those expected, up to a share of the sum of absolute scores of their row."""
    if a.scores.shape != expected.shape:
        raise CheckFailed(f"{what}: scores have the shapes {a.scores.shape} and {expected.shape}")
    gap = np.abs(a.scores - expected)
    least = LEAST * np.maximum(1.0, np.abs(a.output))
    scale = np.maximum(np.abs(expected).sum(-1), least)[..., None]
    if not (gap <= tolerance * scale).all():
        worst = np.unravel_index(int(np.argmax(gap / scale)), gap.shape)
        raise CheckFailed(
            f"{what}: the scores of feature {worst[-1]} ({a.features[worst[-1]]!r}) are {a.scores[worst]:.6g} and "
            f"{expected[worst]:.6g}, {(gap / scale)[worst]:.3g} of the absolute sum apart; {tolerance:g} is allowed"
        )


def _per_row(target: Target | tuple[Target, ...]) -> tuple[Target, ...]:
    return target if isinstance(target, tuple) else (target,)


def _sums(a: Attribution) -> tuple[np.ndarray, np.ndarray]:
    """The sum of the scores and of their absolute values, one entry per row."""
    scores = np.atleast_2d(a.scores).astype(np.float64)
    return scores.sum(-1), np.abs(scores).sum(-1)


def _recorded(subject: Subject, batch: Batch, needs: Sequence[str]) -> Tensor:
    batch.trace = None
    return subject.trace(batch, subject.aim([None] * len(batch)), needs).logits


def _same_logits(found: Tensor, plain: Tensor, tolerance: float, path: str) -> None:
    gap, allowed = _distance(found, plain), tolerance * _scale(plain)
    if not gap <= allowed:
        raise CheckFailed(f"the recorded pass differs from {path} by {gap:.3g} in its logits; {allowed:.3g} is allowed")


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


def _scale(logits: Tensor) -> float:
    return max(1.0, float(logits.abs().max()))


def _without_random_states(prints: dict[str, Any]) -> dict[str, Any]:
    """While a model is lent it may draw random numbers of its own: `lent` restores them."""
    return {name: value for name, value in prints.items() if name != "random states"}


def _zero(logits: Tensor, batch: Batch) -> Tensor:
    return (logits * 0).sum(-1)


def _mixture(logits: Tensor, batch: Batch) -> Tensor:
    """A target that every logit has a part in."""
    shares = torch.arange(1, logits.shape[-1] + 1, device=logits.device, dtype=logits.dtype).cos()
    return (logits * shares).sum(-1)


def _negated_mixture(logits: Tensor, batch: Batch) -> Tensor:
    return -_mixture(logits, batch)


READ = 2  # the token at which the planted model decides
WIDTH = 8


class _Block(nn.Module):
    """Causal attention of one head, added to its input."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)  # (4, width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (hidden @ weights for weights in self.weights[:3])
        future = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).triu(1)
        scores = (query @ key.transpose(1, 2) / math.sqrt(WIDTH)).masked_fill(future, float("-inf"))
        return hidden + nn.functional.linear(scores.softmax(-1) @ value, self.weights[3])


class _Planted(nn.Module):
    """Two causal blocks and a decision at an early token, so that later tokens provably cannot matter."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator) / math.sqrt(WIDTH)

        self.word = nn.Embedding.from_pretrained(drawn(26, WIDTH), freeze=False)
        self.blocks = nn.Sequential(_Block(drawn(4, WIDTH, WIDTH)), _Block(drawn(4, WIDTH, WIDTH)))
        self.head = nn.Parameter(drawn(WIDTH, 2))

    def forward(self, input: Tensor) -> Tensor:
        return self.blocks(self.word(input))[:, READ] @ self.head


def _letters(word: str) -> dict[str, Any]:
    ids = np.array([ord(letter) - ord("a") for letter in word])
    return {"tensors": {"input": ids}, "features": {"text": list(word)}}
