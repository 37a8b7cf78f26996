"""Comparisons of several pictures by the same methods: pictures x methods."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from whence.core.geometry import patches
from whence.core.inputs import check_axis
from whence.core.results import Comparison, Result


@dataclass(frozen=True, eq=False)
class PictureGrid(Result):
    """Several pictures, each with its attributions by the same methods."""

    comparisons: tuple[Comparison, ...]
    names: tuple[str, ...] = ()  # of the pictures, as those of their files; by default their numbers

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.comparisons:
            raise ValueError("a grid needs the comparison of at least one picture, got none")
        for comparison in self.comparisons:
            if comparison[0].scores.ndim != 1 or not patches(comparison[0].input).size:
                raise ValueError("a grid sets pictures beside each other, but an input here has no grid of patches")
            if [a.method for a in comparison] != self.methods:
                raise ValueError(
                    f"a grid needs the same methods for every picture, but {', '.join(self.methods)} and "
                    f"{', '.join(a.method for a in comparison)} came"
                )
        if not self.names:
            self._set("names", tuple(f"picture {n}" for n in range(1, len(self.comparisons) + 1)))
        check_axis("names", "picture", len(self.names), len(self.comparisons))

    @property
    def methods(self) -> list[str]:
        """The methods, in the order of the columns."""
        return [a.method for a in self.comparisons[0]]

    def __len__(self) -> int:
        return len(self.comparisons)

    def __iter__(self) -> Iterator[Comparison]:
        return iter(self.comparisons)

    def __getitem__(self, number: int) -> Comparison:
        return self.comparisons[number]
