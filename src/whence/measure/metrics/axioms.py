"""Axioms of attribution: each metric measures how far one axiom is broken, 0 where it holds.

`sensitivity`, `dummy` and `symmetry` compare the scores with the model's answers when features are hidden: `mask` says
how, and fits best when it matches the method's own baseline. Special tokens are never hidden, and their scores do not
count. `linearity` and `implementation_invariance` run the method again, and look at all scores. `completeness` stands
with the metrics of faithfulness.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Annotated
from weakref import WeakKeyDictionary

import numpy as np
import torch

from whence.core.inputs import Target
from whence.core.registry import metric
from whence.core.specs import Between
from whence.measure.metric_protocol import Case, Metric
from whence.measure.metrics.robustness import scores_again
from whence.model.loading import load
from whence.model.masked_inputs import Way, masked
from whence.model.masked_runs import Answers, Ask, MaskedRuns
from whence.model.subject import Subject

Part = Annotated[float, Between(0, 1, without_most=True)]
Draws = Annotated[int, Between(0, 10_000)]  # random sets of features


@metric(better="lower", family="axiom", paper="arXiv:1703.01365")
def sensitivity(subject: Subject, case: Case, *, least: Part = 0.01, zero: Part = 1e-4, mask: Way = "auto") -> Metric:
    """Sensitivity (a): of the features that change the target when they alone are hidden, the share that score zero.

    A feature changes the target where |f(x) - f(x without i)| is above `least` of the largest such change, and scores
    zero where |score| is at most `zero` of the largest. Not a number where no feature changes the target. Scores that
    look at more than one change, as Shapley values do, may cancel to zero and be counted.
    """
    values = yield from _values_with_flips(case, _coalitions(case, 0)[:1], mask)
    changes = np.abs(values[0, 1:] - values[0, 0])
    changing = changes > max(least * changes.max(initial=0.0), _rounding(subject, values))
    sizes = np.abs(case.scores[case.free])
    return float((sizes <= zero * sizes.max())[changing].mean()) if changing.any() else float("nan")


@metric(better="lower", family="axiom", paper="arXiv:1703.01365")
def dummy(subject: Subject, case: Case, *, draws: Draws = 8, tolerance: Part = 0.01, mask: Way = "auto") -> Metric:
    """Sensitivity (b): the share of the sum of |scores| that lies on features which never change the target.

    A feature i never changes the target where |v(S + i) - v(S)| is within `tolerance` of the range of all values seen,
    for S nothing, everything else, and `draws` random sets of the others. Not a number where there is no such feature.
    Takes (draws + 2) times as many passes as there are features.
    """
    values = yield from _values_with_flips(case, _coalitions(case, draws), mask)
    changes = np.abs(values[:, 1:] - values[:, :1]).max(0)
    never = changes <= _allowed(subject, values, tolerance)
    sizes = np.abs(case.scores[case.free])
    if not never.any():
        return float("nan")
    return float(sizes[never].sum() / (sizes.sum() or 1.0))


@metric(better="lower", family="axiom", paper="arXiv:1703.01365")
def symmetry(subject: Subject, case: Case, *, draws: Draws = 8, tolerance: Part = 0.01, mask: Way = "auto") -> Metric:
    """The largest |score_i - score_j| of features that can take each other's place, as a share of the largest |score|.

    Features i and j can where v(S + i) = v(S + j), within `tolerance` of the range of all values seen, for S nothing,
    everything else, and `draws` random sets. A random set is used only for pairs that are both in it or both outside,
    so the passes are those of `dummy`: their number grows with the features, not with the pairs. Not a number without
    such a pair.
    """
    coalitions = _coalitions(case, draws)
    values = yield from _values_with_flips(case, coalitions, mask)
    allowed = _allowed(subject, values, tolerance)
    alike = ~np.eye(len(case.free), dtype=bool)
    for flipped, inside in zip(values[:, 1:], coalitions, strict=True):
        alike &= (np.abs(flipped[:, None] - flipped) <= allowed) | (inside[:, None] != inside)
    if not alike.any():
        return float("nan")
    scores = case.scores[case.free]
    return float(np.abs(scores[:, None] - scores)[alike].max() / (np.abs(scores).max() or 1.0))


@metric(better="lower", family="axiom", paper="arXiv:1703.01365")
def linearity(subject: Subject, case: Case) -> Metric:
    """How far the explanation of z_a - z_b is from that of z_a minus that of z_b, z being logits.

    ||phi(z_a - z_b) - (phi(z_a) - phi(z_b))||, as a share of the larger of the two norms: 1 where one side is all zero,
    as for scores that do not depend on the target, and not a number where both are. a is the target's class or token,
    whatever kind of target it is, and b the runner-up, or the other one of a contrast. A method that chooses its steps
    by the target, as integrated_gradients without `steps`, is linear only within its own tolerance.
    """
    a, b = case.index, case.target.against
    logits = (yield [case.item]).logits[0]
    if len(logits) < 2:
        raise ValueError(f"linearity takes the logits of two classes or tokens, and {subject.name} has one output")
    if b is None:
        b = next(int(i) for i in np.argsort(-logits, kind="stable") if i != a)
    of = case.target.of
    targets = [Target("contrast", a, against=b, of=of), Target("logit", a, of=of), Target("logit", b, of=of)]
    both, one, other = (scores_again(subject, replace(case, target=target), case.item) for target in targets)
    return _relative_distance(both, one - other)


@metric(better="lower", family="axiom", paper="arXiv:1703.01365")
def implementation_invariance(
    subject: Subject, case: Case, *, other: str | Subject | None = None, tolerance: Part = 1e-3
) -> float:
    """How much the scores change when another model computes the same function: ||phi - phi'||.

    As a share of the larger of the two norms; not a number where both are zero. `other` is that model: a Subject that
    takes the same tensors, or a name or folder for whence.load. Its logits must agree with the model's within
    `tolerance` of the largest, on the input and with features of it hidden; else it is refused.
    """
    if other is None:
        raise ValueError(
            "implementation_invariance compares with another model that computes the same, and none came; "
            "give it as other=, a Subject, or a name or folder"
        )
    twin = _load_once(other, subject) if isinstance(other, str) else other
    _check_same(subject, twin, case, tolerance)
    return _relative_distance(scores_again(subject, case, case.item), scores_again(twin, case, case.item))


def _relative_distance(one: np.ndarray, other: np.ndarray) -> float:
    """||one - other|| as a share of the larger norm; not a number where both are zero."""
    size = max(np.linalg.norm(one), np.linalg.norm(other))
    return float(np.linalg.norm(one - other) / size) if size else float("nan")


# ---- sets of features ------------------------------------------------------------------------------------------------


def _coalitions(case: Case, draws: int) -> np.ndarray:
    """Sets of features that are not special: everything, nothing, and random ones of all sizes; (set, feature) bool."""
    rng, count = np.random.default_rng([case.seed, 7]), len(case.free)
    drawn = rng.random((draws, count)) < rng.random((draws, 1))
    return np.concatenate([np.ones((1, count), bool), np.zeros((1, count), bool), drawn])


def _values_with_flips(case: Case, coalitions: np.ndarray, mask: Way) -> Generator[Ask, Answers, np.ndarray]:
    """The target for every set, and for the set with each feature added or removed: (set, 1 + feature)."""
    count = coalitions.shape[1]
    flips = np.concatenate([np.zeros((1, count), bool), np.eye(count, dtype=bool)])
    values = []
    for coalition in coalitions:  # one at a time: all masked pictures together may not fit in memory
        keep = np.ones((1 + count, len(case.scores)), bool)
        keep[:, case.free] = coalition ^ flips
        values.append((yield Ask(keep, mask)).values)
    return np.stack(values)


def _rounding(subject: Subject, values: np.ndarray) -> float:
    """The largest difference that counts as rounding; models in float64 may compute in float32 in places."""
    return 10 * max(torch.finfo(subject.dtype).eps, torch.finfo(torch.float32).eps) * float(np.abs(values).max())


def _allowed(subject: Subject, values: np.ndarray, tolerance: float) -> float:
    """The largest difference of two values that count as equal."""
    return max(tolerance * float(np.ptp(values)), _rounding(subject, values))


# ---- another model of the same function ------------------------------------------------------------------------------

_loaded: WeakKeyDictionary[Subject, dict[str, Subject]] = WeakKeyDictionary()  # models that `other` named


def _load_once(name: str, subject: Subject) -> Subject:
    """The model of that name, on the subject's device and in its type; loaded once for all its explanations."""
    models = _loaded.setdefault(subject, {})
    if name not in models:
        models[name] = load(name, device=str(subject.device), dtype=subject.dtype)
    return models[name]


def _check_same(subject: Subject, other: Subject, case: Case, tolerance: float) -> None:
    """Raise unless both models give the same logits, on the input and with some, or all, of its features hidden."""
    keep = np.ones((4, len(case.scores)), bool)
    keep[:, case.free] = _coalitions(case, 2)
    inputs = list(masked(subject, case.item, keep))
    logit = Target("logit", 0)  # a target is required; only the logits are compared
    one = MaskedRuns(subject).answers([case.item], [inputs], subject.aim([logit]))[0].logits
    try:
        two = MaskedRuns(other).answers([case.item], [inputs], other.aim([logit]))[0].logits
    except (TypeError, RuntimeError, IndexError, ValueError) as error:
        raise ValueError(
            f"other= takes what {subject.name} takes, and {other.name} cannot be run on it: {error}"
        ) from error
    if one.shape != two.shape:
        raise ValueError(
            f"other= computes the logits of {subject.name}, {one.shape[1]} of them, and {other.name} has {two.shape[1]}"
        )
    gap = float(np.abs(one - two).max() / max(np.abs(one).max(), 1e-12))
    if not gap <= tolerance:
        raise ValueError(
            f"other= computes the logits of {subject.name}, and those of {other.name} differ by {gap:.2g} of the "
            f"largest, above tolerance={tolerance}; give a model that computes the same"
        )
