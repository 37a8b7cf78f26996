"""Robustness: whether explanations stay the same under small shifts of the input, and change with the weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from scipy.stats import spearmanr

from whence.core import registry
from whence.core.inputs import Input, unmerged
from whence.core.registry import Explained, metric
from whence.core.specs import Between
from whence.measure.metric_protocol import Case
from whence.model.shifted import ShiftedSubject
from whence.model.subject import Subject
from whence.model.weights import ShuffledWeights, duplicate, stages


@metric(better="lower", family="robustness", paper="arXiv:1901.09392")
def max_sensitivity(
    subject: Subject,
    case: Case,
    *,
    radius: Annotated[float, Between(0, 10**6, without_least=True)] = 0.02,
    draws: Annotated[int, Between(1, 10_000)] = 10,
) -> float:
    """The largest ||phi(x + d) - phi(x)|| / ||phi(x)|| over random d, every entry of them within +- radius.

    d is added to word embeddings, pixels or region features, the target's class stays, and the method runs again on
    each x + d. Tokens that hide a feature, or stand in a baseline, are not shifted.
    """
    with subject.lent():
        plain = scores_again(subject, case, case.item)
        size = float(np.linalg.norm(plain)) or 1.0
        shifted = (scores_again(*arguments) for arguments in _shifted(subject, case, radius, draws))
        return max(float(np.linalg.norm(scores - plain)) for scores in shifted) / size


@metric(better="lower", family="robustness", paper="arXiv:1810.03292")
def randomisation(
    subject: Subject,
    case: Case,
    *,
    order: Literal["cascading", "independent"] = "cascading",
    absolute: bool = False,
) -> float:
    """How much the explanation still looks like itself once weights are random: the mean |Spearman correlation|.

    The weights of one block after the other, from the output down, are shuffled among themselves and stay so
    ("cascading"), or are put back before the next ("independent"); weights before, between and after the blocks are
    stages of their own. `absolute` compares the sizes of scores. Not a number where all scores are equal.
    """
    free = case.free
    measured = np.abs if absolute else np.asarray
    plain = measured(scores_again(subject, case, case.item)[free])
    randomised = [measured(scores_again(other, case, case.item)[free]) for other in _randomised(subject, case, order)]
    if len(free) < 2 or any(np.ptp(scores) == 0 for scores in [plain, *randomised]):
        return float("nan")
    return float(np.mean([abs(spearmanr(plain, scores).statistic) for scores in randomised]))


def scores_again(subject: Subject, case: Case, item: Input) -> np.ndarray:
    """The scores of the case's method on this input, by this subject: (feature,)."""
    record, options = registry.resolve("method", case.method)
    batch, aim = subject.batch([unmerged(item)], case.seed), subject.aim([case.wanted])
    with subject.lent():
        result = record(subject, batch, aim, **options)
    scores = result.scores if isinstance(result, Explained) else result
    found = batch.unpadded(scores)[0].astype(float)
    return found if item.pieces is None else np.bincount(np.asarray(item.units), found, len(item.features))


# ---- shifted inputs --------------------------------------------------------------------------------------------------


def _shifted(subject: Subject, case: Case, radius: float, draws: int) -> Iterator[tuple[Subject, Case, Input]]:
    """For each d, the subject, case and input with which a method sees x + d."""
    batch = subject.batch([unmerged(case.item)])
    sites = subject.sites(batch, "word")
    if set(sites) != set(batch.streams):
        raise ValueError(f"where the inputs of {subject.name} enter was not found, so they cannot be shifted")
    states = subject.trace(batch, subject.aim([case.wanted]), ("state:word",)).states["word"]
    rng = np.random.default_rng([case.seed, 5])
    for _ in range(draws):
        noise = {stream: rng.uniform(-radius, radius, state.shape[1:]) for stream, state in states.items()}
        tensors = dict(case.item.tensors)
        embedded = {}
        for stream, site in sites.items():
            if site.where == "tensor":
                array = tensors[str(site.key)]
                tensors[str(site.key)] = (array + noise[stream]).astype(array.dtype)
            else:
                embedded[stream] = torch.from_numpy(noise[stream]).to(states[stream])
        shifted = ShiftedSubject(subject, batch, embedded) if embedded else subject
        yield shifted, case, replace(case.item, tensors=tensors)


# ---- random weights --------------------------------------------------------------------------------------------------


def _randomised(subject: Subject, case: Case, order: str) -> Iterator[Subject]:
    """The subject with random weights in a stage, or in all stages from the output down to it."""
    other = duplicate(subject)
    generator = torch.Generator().manual_seed(case.seed)
    drawn: set[int] = set()  # weights that two modules share are shuffled once
    for names in reversed(stages(other, unmerged(case.item))):
        shuffled = ShuffledWeights(other, names, generator, drawn)
        if shuffled.changed:
            yield other
        if order == "cascading":
            drawn |= shuffled.ids
        else:
            shuffled.restore()
