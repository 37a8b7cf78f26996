"""Temporary weights: a copy of a subject whose weights can be shuffled, stage by stage, and put back."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from whence.core.inputs import Input
from whence.model.subject import Subject
from whence.model.watching import hooked


def duplicate(subject: Subject) -> Subject:
    """A subject with a copy of the model: changes to the copy's weights do not reach the original."""
    return Subject(
        copy.deepcopy(subject.model),
        subject.processor,
        task=subject.task,
        labels=subject.labels,
        encode=subject._encode,
        output=subject._output,
        embedding=subject._embedding,
        name=subject.name,
    )


def stages(subject: Subject, item: Input) -> list[list[str]]:
    """The modules with weights in the order of their first calls, grouped: each block, and those between two blocks."""
    batch = subject.batch([item])
    blocks = {site.module for sites in subject.structure(batch).calls.values() for site in sites}
    called: dict[str, None] = {}
    weighted = [(n, m) for n, m in subject.model.named_modules() if any(True for _ in m.parameters(recurse=False))]
    with hooked(weighted, after=lambda name, *call: called.setdefault(name)):
        subject.logits(batch)

    def block_of(name: str) -> str:
        return next((b for b in blocks if name == b or name.startswith(f"{b}.")), "")

    return [list(names) for _, names in groupby(called, block_of)]


class ShuffledWeights:
    """The weights of some modules, shuffled among themselves parameter by parameter; `restore` puts them back."""

    def __init__(self, subject: Subject, names: Sequence[str], generator: torch.Generator, skip: set[int]) -> None:
        modules = [subject.model.get_submodule(name) for name in names]
        self._parameters = [p for module in modules for p in module.parameters(recurse=False) if id(p) not in skip]
        self._before = [parameter.detach().clone() for parameter in self._parameters]
        for parameter in self._parameters:
            order = torch.randperm(parameter.numel(), generator=generator)
            _fill(parameter, parameter.flatten()[order.to(parameter.device)])

    @property
    def ids(self) -> set[int]:
        """The parameters that were shuffled: modules that share a parameter shuffle it once."""
        return set(map(id, self._parameters))

    @property
    def changed(self) -> bool:
        """Whether the shuffled weights differ from the old ones; equal weights stay equal in any order."""
        return any(not torch.equal(old, new) for old, new in zip(self._before, self._parameters, strict=True))

    def restore(self) -> None:
        for parameter, old in zip(self._parameters, self._before, strict=True):
            _fill(parameter, old)


def _fill(parameter: nn.Parameter, values: Tensor) -> None:
    parameter.data.copy_(values.detach().reshape(parameter.shape))
