"""How significant a derivative along a concept is: its rank among random concepts, or the TCAV paper's t-test."""

from __future__ import annotations

import numpy as np


def rank_p(value: float, random: np.ndarray) -> float:
    """The share of values, this one among them, that lie as far from their median as this one.

    Random concepts go through the same probes against the same counter-sets, so that under the hypothesis "no more than
    a random concept" all ranks are equally likely; this holds whatever the distribution, and however the probes depend
    on each other.
    """
    values = np.append(random, value)
    far = np.abs(values - np.median(values))
    return float((far >= far[-1] * (1 - 1e-12)).mean())


def widened(random: np.ndarray, size: int, pool: int) -> np.ndarray:
    """Values of random concepts, spread out as if each were drawn from fresh examples.

    Concepts of `size` examples that are drawn again and again from one pool resemble each other: their means vary by
    1/size - 1/pool, where a set of fresh examples differs from the mean of the pool by 1/size + 1/pool.
    """
    middle = np.median(random, axis=-1, keepdims=True)
    return middle + (random - middle) * np.sqrt((pool + size) / (pool - size))


def t_test_p(scores: np.ndarray, random: np.ndarray) -> float:
    """The two-sided t-test of the TCAV paper's code: scores of one concept against scores of random probes.

    It treats probes of one concept as independent, though they share the concept's examples: p is too small.
    """
    from scipy.stats import ttest_ind

    if np.ptp(scores) == 0 and np.ptp(random) == 0:
        return 1.0 if scores[0] == random[0] else 0.0
    return float(ttest_ind(scores, random).pvalue)


def mean_interval(values: np.ndarray, seed: int, draws: int = 1000) -> tuple[float, float]:
    """The 95 % interval of the mean of (probe, example), both drawn again with replacement."""
    rng = np.random.default_rng([seed, 6])
    probes, examples = values.shape
    by_probe = rng.multinomial(probes, np.full(probes, 1 / probes), draws) / probes
    by_example = rng.multinomial(examples, np.full(examples, 1 / examples), draws) / examples
    low, high = np.quantile(((by_probe @ values) * by_example).sum(1), [0.025, 0.975])
    return float(low), float(high)
