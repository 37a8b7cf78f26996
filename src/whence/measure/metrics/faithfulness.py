"""Faithfulness: features are hidden or shown in the order of their scores, and the model's answer is watched.

A hidden feature is replaced by something, and `mask` says by what. The replacement can change which method comes out
best, so `mask` is an option of every metric and part of every report. Features with equal scores come in a random order
that the seed and the input decide: scores that are all equal are a random explanation, not one from left to right.
Special tokens stay, unless a metric has an option `special` that hides them too.

Metrics of p, the probability of the target's class, take the target's own value where the target names no class, as a
function does.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Annotated, Literal

import numpy as np
from scipy.stats import kendalltau

from whence.core.registry import metric
from whence.core.specs import Between, Share
from whence.measure.metric_protocol import Case, Curve, Metric
from whence.model.masked_inputs import Way
from whence.model.masked_runs import Answers, Ask
from whence.model.subject import Subject

Steps = Annotated[int, Between(1, 10_000)]
Draws = Annotated[int, Between(1, 10_000)]
Count = Annotated[int, Between(1, 1_000_000)]  # of features
Part = Annotated[float, Between(0, 1, without_least=True)]
BINS = (0.01, 0.05, 0.1, 0.2, 0.5)
SHOWN, HIDDEN = "share of features shown", "share of features hidden"
P_OF_CLASS = "p of the target's class"  # an axis of curves; `evaluation` writes "the target" where no class is named


@metric(better="higher", paper="arXiv:2202.07304", axes=(f"{SHOWN}, highest score first", P_OF_CLASS))
def auac(subject: Subject, case: Case, *, steps: Steps = 10, mask: Way = "unknown", special: bool = True) -> Metric:
    """Area under the activation curve: everything hidden, then revealed from the highest signed score to the lowest.

    p of the target's class at shares 0, 1/steps, ... 1 of all positions, [CLS] and its like among them as in the paper
    (`special=False` keeps those); a share is rounded up to whole features. To measure the true class, explain it.
    Where a target names no class, as a function does, its own value takes the place of p.
    """
    keep = _shares(case, case.scores, steps, special)
    answers = yield Ask(keep, mask, special)
    return Curve(answers.probabilities)


@metric(
    better="lower", paper="arXiv:2202.07304", axes=(f"{HIDDEN}, lowest |score| first", "squared change of the logits")
)
def au_mse(subject: Subject, case: Case, *, steps: Steps = 10, mask: Way = "unknown", special: bool = True) -> Metric:
    """Area under the pruning curve: features are hidden from the lowest |score| up; squared change of all logits.

    `steps`, `mask` and `special` are as in `auac`; the hidden share is rounded up.
    """
    answers = yield Ask(~_shares(case, -np.abs(case.scores), steps, special), mask, special)
    return Curve(((answers.logits - answers.logits[0]) ** 2).sum(-1))


@metric(better="higher", paper="arXiv:2202.07304", axes=(f"{HIDDEN}, lowest |score| first", P_OF_CLASS))
def aupc(subject: Subject, case: Case, *, steps: Steps = 10, mask: Way = "unknown", special: bool = True) -> Metric:
    """The pruning curve of `au_mse`, with p of the target's class in place of the squared change.

    Where a target names no class, its own value takes the place of p.
    """
    answers = yield Ask(~_shares(case, -np.abs(case.scores), steps, special), mask, special)
    return Curve(answers.probabilities)


@metric(better="higher", paper="arXiv:1806.07421", axes=(f"{SHOWN}, highest score first", P_OF_CLASS))
def insertion(subject: Subject, case: Case, *, steps: Steps | None = None, mask: Way = "auto") -> Metric:
    """Everything hidden, then shown from the highest score on: area under p of the target's class.

    Features come one at a time, or in `steps` equal groups.
    Where a target names no class, its own value takes the place of p.
    """
    answers = yield Ask(_one_by_one(case, case.scores, steps), mask)
    return Curve(answers.probabilities)


@metric(better="lower", paper="arXiv:1806.07421", axes=(f"{HIDDEN}, highest score first", P_OF_CLASS))
def deletion(subject: Subject, case: Case, *, steps: Steps | None = None, mask: Way = "auto") -> Metric:
    """Features are hidden from the highest score on: area under p of the target's class.

    Where a target names no class, its own value takes the place of p.
    """
    answers = yield Ask(_one_by_one(case, -case.scores, steps)[::-1], mask)
    return Curve(answers.probabilities)


@metric(better="higher", paper="arXiv:1911.03429")
def comprehensiveness(
    subject: Subject,
    case: Case,
    *,
    bins: list[Share] | None = None,
    mask: Way = "delete",
    divide: Literal["bins", "bins+1"] = "bins",
) -> Metric:
    """What p of the target's class loses without the top features: the mean over shares of them (ERASER).

    Shares of 1, 5, 10, 20 and 50 % unless `bins` says otherwise, rounded up to whole features; `divide="bins+1"` is the
    paper's mean, which counts the empty share too.
    Where a target names no class, its own value takes the place of p.
    """
    drops = yield from _drops_by_share(case, bins, mask, keep_top=False)
    return float(drops.sum() / (len(drops) + (divide == "bins+1")))


@metric(better="lower", paper="arXiv:1911.03429")
def sufficiency(
    subject: Subject,
    case: Case,
    *,
    bins: list[Share] | None = None,
    mask: Way = "delete",
    divide: Literal["bins", "bins+1"] = "bins",
) -> Metric:
    """What p of the target's class loses when only the top features stay: the mean over shares of them (ERASER).

    `bins` and `divide` are as in `comprehensiveness`.
    Where a target names no class, its own value takes the place of p.
    """
    drops = yield from _drops_by_share(case, bins, mask, keep_top=True)
    return float(drops.sum() / (len(drops) + (divide == "bins+1")))


@metric(better="higher", paper="arXiv:2305.10496")
def soft_comprehensiveness(subject: Subject, case: Case, *, draws: Draws = 16, mask: Way = "zero") -> Metric:
    """Features are hidden at random, each with the probability of its score scaled to [0, 1]: the mean loss of p.

    Normalised by what hiding everything costs (Soft-NC); whole tokens are hidden.
    Where a target names no class, its own value takes the place of p.
    """
    soft, none = yield from _soft_losses(case, draws, mask, hide=True)
    return float(soft / none) if none > 0 else float("nan")


@metric(better="higher", paper="arXiv:2305.10496")
def soft_sufficiency(subject: Subject, case: Case, *, draws: Draws = 16, mask: Way = "zero") -> Metric:
    """Features are kept at random, each with the probability of its score scaled to [0, 1] (Soft-NS).

    Where a target names no class, its own value takes the place of p.
    """
    soft, none = yield from _soft_losses(case, draws, mask, hide=False)
    return float((none - soft) / none) if none > 0 else float("nan")


@metric(better="higher", paper="arXiv:1909.03012")
def monotonicity(subject: Subject, case: Case, *, mask: Way = "auto") -> Metric:
    """Features are added from the lowest |score| to the highest: the share of steps that do not lower the target."""
    answers = yield Ask(_one_by_one(case, -np.abs(case.scores), None), mask)
    return float((np.diff(answers.values) >= 0).mean())


@metric(better="higher", paper="arXiv:1711.06104")
def sensitivity_n(
    subject: Subject, case: Case, *, share: Part = 0.3, subsets: Draws = 64, mask: Way = "auto"
) -> Metric:
    """Correlation between the scores of a random subset, summed, and what hiding it takes from the target.

    Subsets hold a `share` of the features, at least one. Not a number where either does not vary beyond rounding.
    """
    rng, free = np.random.default_rng([case.seed, 1]), case.free
    size = min(max(1, round(share * len(free))), len(free))
    keep = np.ones((subsets + 1, len(case.scores)), bool)
    for row in keep[1:]:
        row[rng.choice(free, size, replace=False)] = False
    values = (yield Ask(keep, mask)).values
    sums = np.where(keep[1:], 0.0, case.scores.astype(float)).sum(1)
    vary = np.ptp(sums) > 1e-9 * np.abs(sums).max() and np.ptp(values[1:]) > 1e-6 * np.abs(values).max()
    return float(np.corrcoef(sums, values[0] - values[1:])[0, 1]) if vary else float("nan")


@metric(better="lower", paper="arXiv:1901.09392")
def infidelity(
    subject: Subject, case: Case, *, share: Part = 0.3, subsets: Draws = 64, mask: Way = "auto", scaled: bool = False
) -> Metric:
    """Mean squared difference between the scores of a random subset, summed, and what hiding it takes from the target.

    Every feature is hidden with the probability `share`; `scaled` first multiplies the scores by the best factor.
    """
    rng, free = np.random.default_rng([case.seed, 2]), case.free
    keep = np.ones((subsets + 1, len(case.scores)), bool)
    keep[1:, free] = rng.random((subsets, len(free))) >= share
    values = (yield Ask(keep, mask)).values
    sums, drops = np.where(keep[1:], 0.0, case.scores).sum(1), values[0] - values[1:]
    if scaled and (sums**2).sum() > 0:
        sums = sums * (sums * drops).sum() / (sums**2).sum()
    return float(((sums - drops) ** 2).mean())


@metric(better="higher", paper="arXiv:1902.10186")
def loo_agreement(subject: Subject, case: Case, *, mask: Way = "auto", absolute: bool = False) -> Metric:
    """Kendall's tau-b between the scores and what hiding each feature alone takes from the target.

    `absolute` compares sizes, as fits scores without a sign.
    """
    drops = yield from _drops_one_by_one(case, mask)
    scores = case.scores[case.free]
    if absolute:
        scores, drops = np.abs(scores), np.abs(drops)
    return float(kendalltau(scores, drops).statistic) if len(scores) > 1 else float("nan")


@metric(better="higher", paper="arXiv:2201.12114", circular=("leave_one_out", "occlusion(window=1)"))
def sign_agreement(
    subject: Subject,
    case: Case,
    *,
    top: Count | None = None,
    by: Literal["effect", "score"] = "effect",
    weighed: bool = True,
    mask: Way = "auto",
) -> Metric:
    """The share of what hiding each feature alone does to the target for which its score has the right sign.

    sum w_i [sgn(s_i) = sgn(d_i)] / sum w_i, d_i = f(x) - f(x without i): a feature counts by its effect, w_i = |d_i|,
    or with by="score" by its score, w_i = |s_i|; without `weighed` all features count alike. `top` takes only that many
    features, those that count most: `top=1, by="score"` asks whether the strongest score alone has the wrong sign. A
    feature without an effect beyond rounding does not count; a score of 0 is wrong. Not a number for scores without a
    sign, and where nothing counts. It never judges leave_one_out, whose scores are these effects.
    """
    if case.residual is None:
        return float("nan")
    drops = yield from _drops_one_by_one(case, mask)
    scores, effects = case.scores[case.free].astype(float), np.abs(drops)
    matters = effects > 1e-6 * max(1.0, abs(case.output))
    sizes = np.where(matters, effects if by == "effect" else np.abs(scores), 0.0)
    if top is not None and len(sizes) > top:
        sizes = np.where(sizes >= np.sort(sizes)[-top], sizes, 0.0)
    if not weighed:
        sizes = (matters if top is None else sizes > 0).astype(float)
    right = np.sign(scores) == np.sign(drops)
    return float((sizes * right).sum() / sizes.sum()) if sizes.any() else float("nan")


@metric(better="higher", paper="arXiv:2209.10876")
def rft(subject: Subject, case: Case, *, mask: Way = "unknown") -> Metric:
    """Ranked faithful truthfulness: the sum of sgn(w_t) D_t / rank_t, D_t being what p loses with feature t hidden.

    Rank 1 is the largest |w|; equal ones share the largest rank among them. A weight of 0 counts -|D_t|.
    Where a target names no class, its own value takes the place of p.
    """
    drops = yield from _drops_one_by_one(case, mask, probability=True)
    return ranked_truthfulness(case.scores[case.free], drops)


def ranked_truthfulness(weights: np.ndarray, drops: np.ndarray) -> float:
    """RFT of weights, given what hiding each feature takes from p."""
    sizes = np.abs(weights)
    ranks = (sizes[None] >= sizes[:, None]).sum(1)  # how many are as large or larger, the feature itself included
    return float((np.where(weights == 0, -np.abs(drops), np.sign(weights) * drops) / ranks).sum())


@metric(better="lower", family="axiom", paper="arXiv:1703.01365")
def completeness(subject: Subject, case: Case) -> float:
    """|f(x) - f(baseline) - sum of scores| as a share of the sum of |scores|; not a number for unsigned scores."""
    total = np.abs(case.scores).sum()
    return float("nan") if case.residual is None or not total else abs(case.residual) / float(total)


def _shares(case: Case, scores: np.ndarray, steps: int, special: bool) -> np.ndarray:
    """The highest features at each share from none to all: (steps + 1, feature) bool."""
    order = case.ordered(scores)
    free = order[np.isin(order, case.tokens if special else case.free)]
    counts = np.ceil(np.arange(steps + 1) / steps * len(free) - 1e-9).astype(int)
    keep = np.zeros((steps + 1, len(scores)), bool)
    keep[:, free] = np.arange(len(free)) < counts[:, None]
    return keep


def _one_by_one(case: Case, scores: np.ndarray, steps: int | None) -> np.ndarray:
    """The features shown when they come one at a time, or in `steps` equal steps: (step, feature)."""
    count = max(1, len(case.free))
    return _shares(case, scores, count if steps is None else min(steps, count), special=False)


def _drops_by_share(
    case: Case, bins: list[float] | None, mask: Way, *, keep_top: bool
) -> Generator[Ask, Answers, np.ndarray]:
    """p(x) - p(x without the top shares), or p(x) - p(top shares only)."""
    shares = np.asarray(BINS if bins is None else bins, float)
    order = case.ordered(case.scores)
    order = order[np.isin(order, case.free)]
    counts = np.ceil(shares * len(order) - 1e-9).astype(int)
    keep = np.full((1 + len(counts), len(case.scores)), not keep_top)
    keep[:, np.flatnonzero(case.item.special)] = True
    keep[0] = True
    for row, count in zip(keep[1:], counts, strict=True):
        row[order[:count]] = keep_top
    streams = np.array(case.item.streams)
    if mask == "delete" and not all(keep[:, streams == stream].any(1).all() for stream in set(case.item.streams)):
        return np.full(len(counts), np.nan)  # deleting would leave a stream without tokens
    p = (yield Ask(keep, mask)).probabilities
    return p[0] - p[1:]


def _soft_losses(case: Case, draws: int, mask: Way, *, hide: bool) -> Generator[Ask, Answers, tuple[float, float]]:
    """The mean loss of p over random maskings, and the loss with everything hidden."""
    free, scores = case.free, case.scores[case.free]
    span = scores.max() - scores.min() if len(scores) else 0.0
    likely = (scores - scores.min()) / span if span > 0 else np.full(len(scores), 0.5)
    rng = np.random.default_rng([case.seed, 3])
    keep = np.ones((draws + 2, len(case.scores)), bool)
    keep[1, free] = False
    keep[2:, free] = rng.random((draws, len(free))) < (1 - likely if hide else likely)
    p = (yield Ask(keep, mask)).probabilities
    return np.maximum(0, p[0] - p[2:]).mean(), max(0.0, p[0] - p[1])


def _drops_one_by_one(case: Case, mask: Way, *, probability: bool = False) -> Generator[Ask, Answers, np.ndarray]:
    """What hiding each feature that is not special takes from the target, or from p of its class."""
    keep = np.ones((1 + len(case.free), len(case.scores)), bool)
    keep[np.arange(1, len(keep)), case.free] = False
    answers = yield Ask(keep, mask)
    values = answers.probabilities if probability else answers.values
    return values[0] - values[1:]
