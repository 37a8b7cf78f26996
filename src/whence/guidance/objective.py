"""The objective of training: losses with their weights, checked before anything runs, and their sum."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from torch import Tensor

from whence.core import registry
from whence.core.registry import Record
from whence.core.wording import shown
from whence.model.training_pass import NEEDS, TrainingPass


class Objective:
    """Losses by their specs, as "rationale(layers=[-1], weight=0.5)"; called on a training pass, it sums them."""

    def __init__(self, losses: Sequence[str]) -> None:
        if isinstance(losses, str) or not isinstance(losses, Sequence) or not losses:
            example = losses if isinstance(losses, str) and losses else "rationale(weight=0.5)"
            raise ValueError(f"losses is a list of at least one, such as [{example!r}], not {shown(losses)}")
        self._losses = [registry.resolve("loss", spec) for spec in losses]
        self.specs = tuple(record.spec(options) for record, options in self._losses)
        _check_contradictions(self._losses, self.specs)

    @property
    def needs(self) -> frozenset[str]:
        """What a training pass must record."""
        return frozenset(need for record, _ in self._losses for need in record.needs if need in NEEDS)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of every loss."""
        return tuple(float(options.get("weight", 1.0)) for _, options in self._losses)

    def asks_for(self, need: str) -> list[str]:
        """The losses that need "marks", "base", "gradient" or one of the records of a pass."""
        return [spec for spec, (record, _) in zip(self.specs, self._losses, strict=True) if need in record.needs]

    def parts(self, seen: TrainingPass) -> dict[str, Tensor]:
        """The value of every loss by its spec, without its weight."""
        return {
            spec: record.function(seen, **_own(options))
            for spec, (record, options) in zip(self.specs, self._losses, strict=True)
        }

    def __call__(self, seen: TrainingPass) -> Tensor:
        """The sum of all losses times their weights, a function of the parameters."""
        values = self.parts(seen).values()
        return sum(
            (weight * value for weight, value in zip(self.weights, values, strict=True)), seen.logits.new_zeros(())
        )


def _own(options: dict[str, Any]) -> dict[str, Any]:
    """The options that a loss's function takes: all but its weight."""
    return {name: value for name, value in options.items() if name != "weight"}


def _check_contradictions(losses: list[tuple[Record, dict[str, Any]]], specs: tuple[str, ...]) -> None:
    """Raise where a loss is given twice, or where two losses pull the same attention in opposite directions."""
    for (one, first), (other, second) in combinations(zip(losses, specs, strict=True), 2):
        if one[0].name == other[0].name and _own(one[1]) == _own(other[1]):
            raise ValueError(
                f"the losses {shown(first)} and {shown(second)} are the same; give it once, with one weight"
            )
        pulled, against = (record.pulls(options) if record.pulls else None for record, options in (one, other))
        if pulled is None or against is None or pulled[0] != against[0] or pulled[1] == against[1]:
            continue
        if _meet(one, other, "layers") and _meet(one, other, "heads"):
            raise ValueError(
                f"the losses {shown(first)} and {shown(second)} contradict each other: one pulls towards {pulled[0]} "
                "and the other away; leave one out, or give them different layers"
                if pulled[0] == "the marked words"
                else f"the losses {shown(first)} and {shown(second)} contradict each other: one makes {pulled[0]} "
                "sharper and the other flatter; leave one out, or give them different layers"
            )


def _meet(one: tuple[Record, dict[str, Any]], other: tuple[Record, dict[str, Any]], name: str) -> bool:
    """Whether two losses read some of the same layers or heads; numbers of different signs may be the same."""
    chosen = []
    for record, options in (one, other):
        option = record.options.get(name)
        chosen.append(None if option is None else options.get(name, option.default))
    first, second = chosen
    if first is None or second is None:
        return True
    mixed = any(number < 0 for number in (*first, *second)) and any(number >= 0 for number in (*first, *second))
    return mixed or bool(set(first) & set(second))
