"""Probes: linear classifiers that tell a concept from a counter-set, and the direction that each one finds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

ProbeKind = Literal["logistic", "hinge", "difference"]
HELD_OUT = 1 / 3  # of each set


def fitted(positive: np.ndarray, negative: np.ndarray, kind: ProbeKind, seed: int) -> tuple[np.ndarray, float]:
    """The direction (width,) that points to the concept, and the accuracy on held-out examples.

    The direction is as long as the concept lies apart from the counter-set along it: a step of that length leads from
    the mean of the one to the mean of the other. With directions of length 1, a set that does not differ at all would
    seem to matter as much as a concept.

    Widths of states differ by orders of magnitude, so the probe sees them standardised by the examples that it is
    trained on; its weights are mapped back to the states as they are.
    """
    rng = np.random.default_rng(seed)
    sides = [side[rng.permutation(len(side))] for side in (positive, negative)]
    kept = [len(side) - max(1, round(HELD_OUT * len(side))) for side in sides]
    train = np.concatenate([side[:count] for side, count in zip(sides, kept, strict=True)])
    is_concept = np.repeat([True, False], kept)
    middle, spread = train.mean(0), train.std(0)
    spread = np.where(spread > 1e-7 * max(1e-30, float(spread.max(initial=0.0))), spread, np.inf)  # no division by 0
    weights, offset = _FITS[kind]((train - middle) / spread, is_concept, seed)
    tested = [((side[count:] - middle) / spread) @ weights + offset for side, count in zip(sides, kept, strict=True)]
    # a value of exactly 0 decides neither way, and counts as half right
    right = [np.where(values == 0, 0.5, values > 0).mean() for values in (tested[0], -tested[1])]
    direction = weights / spread
    length = float(np.linalg.norm(direction))
    unit = direction / length if length else direction
    apart = abs(float(unit @ (positive.mean(0) - negative.mean(0))))
    return unit * apart, float(np.mean(right))


def _difference(x: np.ndarray, is_concept: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """The difference of the means, and the decision half-way between them."""
    concept, other = x[is_concept].mean(0), x[~is_concept].mean(0)
    return concept - other, float((other @ other - concept @ concept) / 2)


def _logistic(x: np.ndarray, is_concept: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """Logistic regression with a penalty on the squares of the weights."""
    solver = "newton-cholesky" if x.shape[1] <= 400 else "liblinear"  # the faster one, by width
    return _of(_sklearn().LogisticRegression(solver=solver), x, is_concept)


def _hinge(x: np.ndarray, is_concept: np.ndarray, seed: int) -> tuple[np.ndarray, float]:
    """A linear support vector machine, by stochastic gradient descent with the settings of the TCAV paper's code."""
    model = _sklearn().SGDClassifier(loss="hinge", alpha=0.01, max_iter=1000, tol=1e-3, random_state=seed % 2**32)
    return _of(model, x, is_concept)


def _of(model: Any, x: np.ndarray, is_concept: np.ndarray) -> tuple[np.ndarray, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how far a probe converged shows in its accuracy
        model.fit(x, is_concept)
    return model.coef_[0], float(model.intercept_[0])


def _sklearn() -> Any:
    try:
        from sklearn import linear_model
    except ImportError:
        raise ImportError(
            "this probe needs scikit-learn, which is not installed; run: pip install whence[concepts], "
            "or use probe='difference'"
        ) from None
    return linear_model


_FITS: dict[str, Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, float]]] = {
    "logistic": _logistic,
    "hinge": _hinge,
    "difference": _difference,
}
