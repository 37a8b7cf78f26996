"""ContextCite: a sparse linear model of how the target depends on which units of the context are there."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from scipy.stats import spearmanr

from whence.core.registry import Explained, method
from whence.core.specs import Between
from whence.methods.perturbation import placed
from whence.model.batching import Batch
from whence.model.masked_inputs import Way, expanded, shared, units, ways
from whence.model.masked_runs import engine_of
from whence.model.subject import Subject
from whence.model.targets import Aim

ROUNDS = 10_000  # of coordinate descent at most; it stops as soon as no weight moves
STILL = 1e-9  # share of the largest weight; a smaller move counts as none


@method(family="perturbation", paper="arXiv:2409.00729")
def context_cite(
    subject: Subject,
    batch: Batch,
    target: Aim,
    *,
    samples: Annotated[int, Between(2, 100_000)] = 64,
    keep: Annotated[float, Between(0, 1, without_least=True, without_most=True)] = 0.5,
    penalty: Annotated[float, Between(0, 1_000)] = 0.01,
    held_out: Annotated[int, Between(0, 100_000)] = 16,
    mask: Way = "auto",
) -> Explained:
    """The weights of a sparse linear model (LASSO) of f, fitted to random ablations of the units of the context.

    f(z) of `samples` variants, in each of which every unit is kept with the probability `keep`, is fitted by
    min_w 1/2n |f - b - z w|^2 + penalty |w|_1, z standardised and f divided by the number of tokens of a statement, as
    the authors do; weights that are not needed are exactly 0. Made for level="sentence" and a statement; the paper
    explains its log-odds, `statement('...', kind='log_odds')`. The base is the intercept. `details`: "r2" on the
    ablations that were fitted; on `held_out` further ones "r2_held_out" and "lds", the rank correlation of what the
    weights predict with what the model did. `mask` as in leave_one_out.
    """
    numbers = [units(item) for item in batch.inputs]
    draws = []
    for number, generator in zip(numbers, batch.generators(), strict=True):
        draws.append(generator.random((samples + held_out, int(number.max(initial=-1)) + 1)) < keep)
    keeps = [expanded(draw, number) for draw, number in zip(draws, numbers, strict=True)]
    values = engine_of(subject, batch).masked_values(batch, target, keeps, mask)
    scores, bases = [], []
    details: dict[str, list[object]] = {"r2": [], "r2_held_out": [], "lds": []}
    for item, draw, number, found in zip(batch.inputs, draws, numbers, values, strict=True):
        size = max(len(item.answer), 1)
        weights, base = lasso(draw[:samples].astype(float), found[:samples] / size, penalty)
        weights, base = weights * size, base * size
        predicted = draw @ weights + base
        details["r2"].append(explained_share(found[:samples], predicted[:samples]))
        details["r2_held_out"].append(explained_share(found[samples:], predicted[samples:]))
        details["lds"].append(_rank_correlation(found[samples:], predicted[samples:]))
        scores.append(shared(weights, number))
        bases.append(base)
    details["mask"] = [ways(subject, item, mask) for item in batch.inputs]
    return Explained(placed(subject, batch, scores), torch.tensor(bases, dtype=torch.float64), details)


def lasso(x: np.ndarray, y: np.ndarray, penalty: float) -> tuple[np.ndarray, float]:
    """The weights (feature,) and the intercept of min 1/2n |y - b - x w|^2 + penalty |w|_1, columns standardised.

    By coordinate descent: a weight moves to where its own term is least, all others held, until none moves.
    """
    mean, scale = x.mean(0), x.std(0)
    scale = np.where(scale > 0, scale, 1.0)  # a unit that was always there, or never: its weight stays 0
    z = (x - mean) / scale
    weights, residual = np.zeros(x.shape[1]), y - y.mean()
    for _ in range(ROUNDS):
        moved = 0.0
        for j in range(len(weights)):
            pull = z[:, j] @ residual / len(y) + weights[j] * (z[:, j] @ z[:, j] / len(y))
            new = np.sign(pull) * max(abs(pull) - penalty, 0.0)
            if new != weights[j]:
                residual -= z[:, j] * (new - weights[j])
                moved, weights[j] = max(moved, abs(new - weights[j])), new
        if moved <= STILL * max(np.abs(weights).max(initial=0.0), 1e-12):
            break
    weights = weights / scale + 0.0  # without the sign of a zero
    return weights, float(y.mean() - mean @ weights)


def explained_share(found: np.ndarray, predicted: np.ndarray) -> float:
    """R^2: the share of the variance of `found` that is predicted; not a number where there is none."""
    spread = float(((found - found.mean()) ** 2).sum()) if len(found) else 0.0
    return 1 - float(((found - predicted) ** 2).sum()) / spread if spread else float("nan")


def _rank_correlation(found: np.ndarray, predicted: np.ndarray) -> float:
    """Spearman's rank correlation; not a number where one side has no order."""
    if len(found) < 2 or np.ptp(found) == 0 or np.ptp(predicted) == 0:
        return float("nan")
    return float(spearmanr(found, predicted).statistic)
