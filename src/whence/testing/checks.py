"""The checks of methods; the docstring of a check says what holds for a method that passes."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence import api
from whence.core.inputs import Target
from whence.core.registry import Record
from whence.core.results import Attribution
from whence.model.batching import Batch
from whence.model.loan import difference
from whence.model.subject import Subject
from whence.testing.planted_model import READ, PlantedModel, letters
from whence.testing.trials import COMPLETE, LEAST, TOLERANCE, TORCH, Check, CheckFailed, NotApplicable, Trial

CHECKS: list[Check] = []  # in the order in which they run


def _check(
    applies: Callable[[Record], bool] = lambda record: True, otherwise: str = ""
) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Add a function to the checks; `otherwise` says why it does not apply to the other methods."""

    def add(function: Callable[[Trial], None]) -> Callable[[Trial], None]:
        CHECKS.append(Check(function.__name__, str(function.__doc__), function, applies, otherwise))
        return function

    return add


# ---- the model that was lent -----------------------------------------------------------------------------------------


@_check()
def given_back(trial: Trial) -> None:
    """The model, its settings, its logits and the global random states are as they were, also after an error."""
    subject, plain = trial.subject, trial.plain
    before = subject.fingerprint(full=True)
    changed = ""
    # `lent` restores what it can when it ends; the outer `lent` here shows what the method itself left behind.
    with contextlib.suppress(Exception), subject.lent():  # well_formed reports an error
        held = _without_random_states(subject.fingerprint())
        try:
            trial.explain(trial.inputs)
        finally:
            changed = difference(held, _without_random_states(subject.fingerprint()))
    changed = changed or difference(before, subject.fingerprint(full=True))
    if changed:
        raise CheckFailed(f"the model was not given back as it was lent: {changed} changed")
    for _, batch, logits in plain:
        again = subject.logits(batch)
        if not torch.equal(again, logits):
            raise CheckFailed(f"the model's logits moved by {_distance(again, logits):.3g} while it was explained")


@_check()
def well_formed(trial: Trial) -> None:
    """Every input gets a finite score per feature, on named axes; features that a row could not see score exactly 0."""
    attributions = trial.together
    if len(attributions) != len(trial.inputs):
        raise CheckFailed(f"{len(trial.inputs)} inputs gave {len(attributions)} attributions")
    for number, a in enumerate(attributions):
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
    exact = subject.has_paths
    allowed = TORCH if subject.dtype in TOLERANCE and not exact else trial.fused
    for _, batch, logits in trial.plain:
        _same_logits(_recorded(subject, batch, needs), logits, allowed, "the model's own path")
        if exact:
            with subject.on_path("eager"):
                _same_logits(_recorded(subject, batch, needs), subject.logits(batch), 0.0, "the eager path")


# ---- random numbers --------------------------------------------------------------------------------------------------


@_check()
def repeatable(trial: Trial) -> None:
    """The same seed gives the same scores, bit by bit, whatever the global random states are."""
    with trial.subject.lent():  # restores the random states
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
    _need_several(trial)
    for number, (a, b) in enumerate(zip(trial.together, trial.alone, strict=True)):
        _agree(a, b.scores, trial.tolerance, f"input {number} among others and alone")
        gap = np.abs(np.subtract(a.output, b.output)).max()
        if not gap <= trial.tolerance * max(1.0, np.abs(b.output).max()):
            raise CheckFailed(f"input {number}: the output moves by {gap:.3g} when it is among others")


@_check()
def ordered(trial: Trial) -> None:
    """The order of the inputs in a list does not matter."""
    _need_several(trial)
    reversed_list = trial.explain(trial.inputs[::-1])[::-1]
    for number, (a, b) in enumerate(zip(reversed_list, trial.together, strict=True)):
        _agree(a, b.scores, trial.tolerance, f"input {number} in the reversed list and in the list")


@_check()
def shared(trial: Trial) -> None:
    """The method leaves a recorded pass as it found it: run twice on one pass, it gives the same scores."""
    for number, both in enumerate(api.compare(trial.subject, trial.inputs, [trial.method, trial.method])):
        _agree(both[1], both[0].scores, 0.0, f"input {number} at the second and the first run on one recorded pass")


# ---- what is explained -----------------------------------------------------------------------------------------------


@_check()
def output(trial: Trial) -> None:
    """The stored output is the target's value on the plain model, and an open target is what the model predicts."""
    stored = [
        (number, target, value)
        for number, a in enumerate(trial.together)
        for target, value in zip(_per_row(a.target), np.atleast_1d(a.output), strict=True)
    ]
    for rows, batch, logits in trial.plain:
        aim = trial.subject.aim([stored[row][1] for row in rows])
        predicted = [int(aim.classes(place, logits[place]).argmax()) for place in range(len(rows))]
        for row, value, best in zip(rows, aim(logits, batch).tolist(), predicted, strict=True):
            number, target, stored_value = stored[row]
            if not abs(value - stored_value) <= trial.fused * _scale(logits):
                raise CheckFailed(f"input {number}: {stored_value:.7g} is stored as the {target}, which is {value:.7g}")
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
        if trial.options and a.base is None:
            continue  # these options take the signs away
        sums, sizes = _sums(a)
        expected = np.atleast_1d(a.output) - np.atleast_1d(a.base) - sums
        gap = np.abs(np.atleast_1d(a.residual) - expected)
        # the same numbers may be added up in another order
        if not (gap <= 1e-6 * (sizes + np.abs(np.atleast_1d(a.output)))).all():
            raise CheckFailed(
                f"input {number}: the residual {a.residual} is stored, but output - base - sum is {expected}"
            )


@_check(lambda record: record.complete, "the method does not promise completeness")
def complete(trial: Trial) -> None:
    """The scores sum to f(x) - f(baseline): within the method's own `tolerance`, or 1e-3 of their absolute sum."""
    options = {name: option.default for name, option in trial.record.options.items()} | trial.options
    has_tolerance = isinstance(options.get("tolerance"), (int, float))
    tolerance, least = (options["tolerance"], 0.1) if has_tolerance else (max(COMPLETE, trial.tolerance), 0.0)
    for number, a in enumerate(trial.together):
        _, sizes = _sums(a)
        scale = np.maximum(np.maximum(sizes, np.abs(np.atleast_1d(a.output) - np.atleast_1d(a.base))), least)
        gaps = np.abs(np.atleast_1d(a.residual))
        if not (gaps <= tolerance * scale).all():
            worst = int(np.argmax(gaps - tolerance * scale))
            raise CheckFailed(
                f"input {number}: {gaps[worst]:.3g} of f(x) - f(baseline) is not in the scores, whose absolute sum is "
                f"{sizes[worst]:.3g}; {tolerance:g} of that is allowed"
            )


@_check(lambda record: record.signed, "the method has no sign")
def negated(trial: Trial) -> None:
    """Negating the target negates the scores."""
    count = len(trial.inputs)
    results = trial.explain(trial.inputs * 2, [_mixture] * count + [_negated_mixture] * count)
    for number, (a, b) in enumerate(zip(results[:count], results[count:], strict=True)):
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
    """On a small causal model that decides at its third token, later tokens score 0, and some earlier one does not."""
    labels = ("no", "yes")
    planted = Subject(PlantedModel().eval(), task="module", labels=labels, encode=letters, name="the planted model")
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


def _need_several(trial: Trial) -> None:
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
    """The logits of a pass that records these needs."""
    batch.trace = None
    return subject.trace(batch, subject.aim([None] * len(batch)), needs).logits


def _same_logits(recorded: Tensor, plain: Tensor, tolerance: float, path: str) -> None:
    gap, allowed = _distance(recorded, plain), tolerance * _scale(plain)
    if not gap <= allowed:
        raise CheckFailed(f"the recorded pass differs from {path} by {gap:.3g} in its logits; {allowed:.3g} is allowed")


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


def _scale(logits: Tensor) -> float:
    return max(1.0, float(logits.abs().max()))


def _without_random_states(prints: dict[str, Any]) -> dict[str, Any]:
    """A fingerprint without random states: while lent, a model may draw random numbers, and `lent` restores them."""
    return {name: value for name, value in prints.items() if name != "random states"}


def _zero(logits: Tensor, batch: Batch) -> Tensor:
    return (logits * 0).sum(-1)


def _mixture(logits: Tensor, batch: Batch) -> Tensor:
    """A target that depends on every logit."""
    shares = torch.arange(1, logits.shape[-1] + 1, device=logits.device, dtype=logits.dtype).cos()
    return (logits * shares).sum(-1)


def _negated_mixture(logits: Tensor, batch: Batch) -> Tensor:
    return -_mixture(logits, batch)
