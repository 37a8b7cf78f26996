"""Do groups of names differ? Permutation tests that compare only names whose groups of all other kinds are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import comb, prod

import numpy as np

from whence.core.name_audits import GroupTest
from whence.core.statistics import holm


def group_tests(
    measures: Mapping[str, np.ndarray], kinds: Mapping[str, Sequence[str]], seed: int, draws: int
) -> tuple[GroupTest, ...]:
    """Every group against the others of its kind, by every measure (name,), corrected for the number of tests.

    Of two groups only the first is tested, since the test of the second is the same. A group is left out if no name
    outside it has the same groups of the other kinds: its effect cannot be separated from theirs.
    """
    found: list[GroupTest] = []
    for measure, values in measures.items():
        for kind, groups in kinds.items():
            strata = _strata([other for name, other in kinds.items() if name != kind], len(values))
            names = sorted(set(groups))
            for group in names[:1] if len(names) == 2 else names if len(names) > 2 else ():
                inside = np.array([name == group for name in groups])
                test = _one(measure, kind, group, values, inside, strata, (seed, draws))
                found += [test] if test is not None else []
    corrected = holm(np.array([test.p for test in found]))
    return tuple(replace(test, corrected=float(p)) for test, p in zip(found, corrected, strict=True))


def smallest_p(kinds: Mapping[str, Sequence[str]], kind: str, group: str) -> float:
    """The smallest p that exchanging names between groups can give: one of all ways to choose the group's names."""
    groups = kinds[kind]
    strata = _strata([other for name, other in kinds.items() if name != kind], len(groups))
    inside = np.array([name == group for name in groups])
    ways = prod(comb(int((strata == s).sum()), int(inside[strata == s].sum())) for s in np.unique(strata))
    return 1 / ways


def _one(
    measure: str,
    kind: str,
    group: str,
    values: np.ndarray,
    inside: np.ndarray,
    strata: np.ndarray,
    random: tuple[int, int],
) -> GroupTest | None:
    """The test of one group; None where no stratum holds both names of the group and others."""
    weights = _weights(inside, strata)
    if not weights.any():
        return None
    seed, draws = random
    rng = np.random.default_rng([seed, 8])
    difference = float(values @ weights)
    extreme = np.abs(_shuffled_within(values, strata, rng, draws) @ weights) >= abs(difference) - 1e-9 * np.ptp(values)
    cells = [np.flatnonzero((strata == s) & (inside == side)) for s in np.unique(strata) for side in (True, False)]
    cells = [cell for cell in cells if weights[cell].any()]
    resampled = sum(values[cell[rng.integers(len(cell), size=(1000, len(cell)))]] @ weights[cell] for cell in cells)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return GroupTest(
        measure=measure,
        kind=kind,
        group=group,
        names=int(inside.sum()),
        others=int((~inside).sum()),
        difference=difference,
        interval=(float(low), float(high)),
        effect=_effect(difference, [values[cell] for cell in cells]),
        p=float((1 + extreme.sum()) / (1 + draws)),
        corrected=1.0,
    )


def _weights(inside: np.ndarray, strata: np.ndarray) -> np.ndarray:
    """The coefficient of each name's value in the difference of a group from the others: (name,).

    The difference is a mean over strata, each weighted by how exactly its own difference is known; within a stratum it
    is a plain difference of means.
    """
    weights = np.zeros(len(inside))
    for stratum in np.unique(strata):
        own, others = (strata == stratum) & inside, (strata == stratum) & ~inside
        if own.any() and others.any():
            known = own.sum() * others.sum() / (own.sum() + others.sum())
            weights[own], weights[others] = known / own.sum(), -known / others.sum()
    total = weights[weights > 0].sum()
    return weights / total if total else weights


def _strata(others: Sequence[Sequence[str]], count: int) -> np.ndarray:
    """Numbers of the names whose groups of all other kinds are the same: (name,)."""
    keys = list(zip(*others, strict=True)) if others else [()] * count
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys])


def _shuffled_within(values: np.ndarray, strata: np.ndarray, rng: np.random.Generator, draws: int) -> np.ndarray:
    """The values in `draws` random orders in which every value stays in its stratum: (draw, name)."""
    by_stratum = np.argsort(strata, kind="stable")
    order = np.argsort(strata[by_stratum] + rng.random((draws, len(values))), axis=1)
    shuffled = np.empty((draws, len(values)))
    shuffled[:, by_stratum] = values[by_stratum][order]
    return shuffled


def _effect(difference: float, cells: list[np.ndarray]) -> float:
    """Cohen's d: the difference in units of the spread within cells; NaN where that is 0 or not defined."""
    freedom = sum(len(cell) - 1 for cell in cells)
    if freedom < 1:
        return float("nan")
    spread = float(np.sqrt(sum(((cell - cell.mean()) ** 2).sum() for cell in cells) / freedom))
    return difference / spread if spread > 1e-12 * abs(difference) else float("nan")
