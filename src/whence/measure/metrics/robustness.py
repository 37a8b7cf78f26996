"""Does the explanation stay where it should, and change where it should? The method is run again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from whence.core import registry
from whence.core.inputs import Input
from whence.core.registry import Explained, metric
from whence.measure.metric_protocol import Case
from whence.model.batching import Batch, ids_of
from whence.model.discovery import Site
from whence.model.loan import lent
from whence.model.subject import Subject


@metric(better="lower", family="robustness", paper="arXiv:1901.09392")
def max_sensitivity(subject: Subject, case: Case, *, radius: float = 0.02, draws: int = 10) -> float:
    """The largest ||phi(x + d) - phi(x)|| / ||phi(x)|| over random d, every entry of them within +- radius.

    d is added to word embeddings, pixels or region features, the target's class stays, and the method runs again on
    each x + d. What hides a feature, or stands in a baseline, is not shifted.
    """
    if radius <= 0 or draws < 1:
        raise ValueError(f"radius must be above 0 and draws at least 1; {radius} and {draws} came")
    with lent(subject.model):
        plain = _again(subject, case, case.item)
        size = float(np.linalg.norm(plain)) or 1.0
        shifted = (_again(*made) for made in _shifted(subject, case, radius, draws))
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
    ("cascading"), or are put back before the next ("independent"); what comes before, between and after the blocks is
    a stage of its own. `absolute` compares the sizes of scores. Not a number where all scores are equal.
    """
    free = case.free
    measured = np.abs if absolute else np.asarray
    plain = measured(_again(subject, case, case.item)[free])
    found = [measured(_again(other, case, case.item)[free]) for other in _randomised(subject, case, order)]
    if len(free) < 2 or any(np.ptp(scores) == 0 for scores in [plain, *found]):
        return float("nan")
    return float(np.mean([abs(spearmanr(plain, scores).statistic) for scores in found]))


def _again(subject: Subject, case: Case, item: Input) -> np.ndarray:
    """The scores of the case's method, on this input: (feature,)."""
    record, options = registry.resolve("method", case.method)
    batch, aim = subject.batch([item], case.seed), subject.aim([case.wanted])
    with lent(subject.model):
        result = record.function(subject, batch, aim, **options)
    scores = result.scores if isinstance(result, Explained) else result
    return batch.unpadded(scores)[0].astype(float)


# ---- shifted inputs --------------------------------------------------------------------------------------------------


def _shifted(subject: Subject, case: Case, radius: float, draws: int) -> Iterator[tuple[Subject, Case, Input]]:
    """The subject, case and input with which a method sees x + d, for each d."""
    batch = subject.batch([case.item])
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
                given = tensors[str(site.key)]
                tensors[str(site.key)] = (given + noise[stream]).astype(given.dtype)
            else:
                embedded[stream] = torch.from_numpy(noise[stream]).to(states[stream])
        yield _Shifted(subject, batch, embedded) if embedded else subject, case, replace(case.item, tensors=tensors)


class _Shifted(Subject):
    """The same model, to which the embedding of each token of one input, at its place, is another by a given shift."""

    def __init__(self, subject: Subject, batch: Batch, shifts: Mapping[str, Tensor]) -> None:
        vars(self).update(vars(subject))
        names = tuple(batch.streams)
        self._shifts = shifts
        self._ids = {stream: batch.tensors[str(ids_of(batch.tensors, names, stream))] for stream in shifts}

    def _shift(self, stream: str, ids: Tensor) -> Tensor:
        """What is added to the embeddings of these ids: nothing where a token is not the input's own."""
        own = self._ids[stream]
        if ids.shape[1:] != own.shape[1:]:
            raise ValueError(
                "max_sensitivity shifts every token at its place, and the method removes tokens; "
                "let it hide them, as by mask='mask'"
            )
        return self._shifts[stream] * (ids == own)[..., None]

    def embedded(self, batch: Batch, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The word embeddings of other ids, by stream; shifted where they are the input's own."""
        plain = super().embedded(batch, ids)
        return {s: state + self._shift(s, ids[s]) if s in self._shifts else state for s, state in plain.items()}

    def _forward(
        self, batch: Batch, watch: Any, changes: Mapping[Site, Callable[[Tensor], Tensor]]
    ) -> tuple[Tensor, dict[Site, Tensor]]:
        names, roots = tuple(batch.streams), self.sites(batch, "word")
        added = dict(changes)
        for stream in self._shifts:
            shift = self._shift(stream, batch.tensors[str(ids_of(batch.tensors, names, stream))])
            added[roots[stream]] = _plus(shift, changes.get(roots[stream]))
        return super()._forward(batch, watch, added)


def _plus(shift: Tensor, then: Callable[[Tensor], Tensor] | None) -> Callable[[Tensor], Tensor]:
    """Add the shift first: a change that puts another state in its place is not shifted."""
    return lambda state: then(state + shift) if then else state + shift


# ---- random weights --------------------------------------------------------------------------------------------------


def _randomised(subject: Subject, case: Case, order: str) -> Iterator[Subject]:
    """The subject with random weights in a stage, or in all stages from the output down to it."""
    model = copy.deepcopy(subject.model)
    other = Subject(
        model,
        subject.processor,
        task=subject.task,
        labels=subject.labels,
        encode=subject._encode,
        output=subject._output,
        embedding=subject._embedding,
        name=subject.name,
    )
    modules = dict(model.named_modules())
    generator = torch.Generator().manual_seed(case.seed)
    drawn: set[int] = set()  # weights that two modules share are shuffled once
    for names in reversed(_stages(other, case.item)):
        own = [p for name in names for p in modules[name].parameters(recurse=False) if id(p) not in drawn]
        before = [parameter.detach().clone() for parameter in own]
        for parameter in own:
            _fill(parameter, parameter.flatten()[torch.randperm(parameter.numel(), generator=generator)])
        if any(not torch.equal(old, new) for old, new in zip(before, own, strict=True)):
            yield other
        if order == "cascading":
            drawn.update(map(id, own))
        else:
            for parameter, old in zip(own, before, strict=True):
                _fill(parameter, old)


def _fill(parameter: nn.Parameter, values: Tensor) -> None:
    parameter.data = values.detach().reshape(parameter.shape).clone()


def _stages(subject: Subject, item: Input) -> list[list[str]]:
    """The modules with weights, in the order in which they are first called: by block, and what is between blocks."""
    batch = subject.batch([item])
    blocks = {site.module for sites in subject.anatomy(batch).calls.values() for site in sites}
    called: dict[str, None] = {}
    handles = [
        module.register_forward_hook(lambda *_, name=name: called.setdefault(name))
        for name, module in subject.model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    try:
        subject.logits(batch)
    finally:
        for handle in handles:
            handle.remove()

    def block(name: str) -> str:
        return next((b for b in blocks if name == b or name.startswith(f"{b}.")), "")

    return [list(names) for _, names in groupby(called, block)]
