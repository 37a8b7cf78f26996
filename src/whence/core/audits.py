"""Whether attention explains a model's decisions: findings of experiments, and the audit of them. Numbers only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from whence.core import display
from whence.core.results import Result
from whence.core.statistics import bootstrap
from whence.core.storage import Storable, floats, read_only
from whence.core.wording import suggest

GRADES = {
    "explains": "attention explains the decisions, as far as this experiment can tell",
    "partly": "attention explains a part of the decisions",
    "does not": "attention does not explain the decisions",
    "cannot tell": "the experiment is not defined here, or its numbers allow no answer",
}
POINTS = {"explains": 1.0, "partly": 0.5, "does not": 0.0}  # points per grade, for the verdict over all experiments
EXPLAINS, DOES_NOT = 0.75, 0.25  # mean points from which, and up to which, the verdict is clear


@dataclass(frozen=True, eq=False)
class Quantity(Storable):
    """One named number of a finding, on every example; NaN where it is not defined."""

    name: str
    where: str  # which attention was read or edited, such as "layer 5"; "" for the mean over all places
    values: np.ndarray  # (example,)
    seed: int = 0  # of the bootstrap

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("values", read_only(floats("values", self.values)))

    @cached_property
    def _summary(self) -> tuple[float, tuple[float, float] | None]:
        return bootstrap(self.values, self.seed)

    @property
    def mean(self) -> float:
        """The mean over the examples on which the number is defined; NaN without any."""
        return self._summary[0]

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean; None for fewer than two examples."""
        return self._summary[1]

    @property
    def defined(self) -> int:
        """On how many examples the number is defined."""
        return int((~np.isnan(self.values)).sum())


@dataclass(frozen=True, eq=False)
class CrossTable(Storable):
    """Shares of the examples by two yes-or-no questions: rows answer one, columns the other."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: np.ndarray  # (row, column)


@dataclass(frozen=True, eq=False)
class Finding(Storable):
    """What one experiment found: its question, its numbers, the answer, and what limits the answer."""

    experiment: str  # the spec: name and options
    question: str
    answer: str
    grade: str  # one of `GRADES`
    quantities: tuple[Quantity, ...] = ()
    grades: dict[str, str] = field(default_factory=dict)  # place, such as "layer 5" -> grade
    tables: tuple[CrossTable, ...] = ()
    attention: str = ""  # which attention was read or edited, in words
    limits: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    paper: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grade not in GRADES:
            raise ValueError(f"a grade is one of {', '.join(GRADES)}, not {self.grade!r}")

    @property
    def name(self) -> str:
        """The name of the experiment, without options."""
        return self.experiment.partition("(")[0]

    def __getitem__(self, name: str | tuple[str, str]) -> Quantity:
        """A number by its name, or by its name and its place, such as "layer 5"."""
        wanted, where = (name, None) if isinstance(name, str) else name
        for quantity in self.quantities:
            if quantity.name == wanted and where in (None, quantity.where):
                return quantity
        raise KeyError(f"{self.experiment} has no number {name!r}; {suggest(str(wanted), self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the numbers."""
        return tuple(dict.fromkeys(quantity.name for quantity in self.quantities))

    @property
    def places(self) -> tuple[str, ...]:
        """The places where attention was read or edited; "" first, for the mean, where there are several."""
        return tuple(dict.fromkeys(quantity.where for quantity in self.quantities))


@dataclass(frozen=True, eq=False, repr=False)
class Audit(Result):
    """Is attention an explanation here? One finding per experiment, on a model and a data set."""

    findings: tuple[Finding, ...]
    model: str
    examples: tuple[str, ...]  # texts, cut, or the names of pictures
    predicted: tuple[str, ...]  # of each example: the class that the model predicts
    labels: tuple[str, ...]  # of each example: the label that was given; "" for none
    lengths: np.ndarray  # (example,): features, special ones left out
    seed: int = 0
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("lengths", read_only(np.array(self.lengths, dtype=int)))
        counts = {len(self.examples), len(self.predicted), len(self.labels), len(self.lengths)}
        counts |= {len(quantity.values) for finding in self.findings for quantity in finding.quantities}
        if len(counts) > 1:
            raise ValueError(f"every number has one value per example, and there are {sorted(counts)} of them")

    def __repr__(self) -> str:
        return f"Audit({self.model}: {len(self.findings)} experiments on {len(self.examples)} examples)"

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __getitem__(self, experiment: str) -> Finding:
        """The finding of an experiment, by its spec or its name."""
        for finding in self.findings:
            if experiment in (finding.experiment, finding.name):
                return finding
        known = [finding.experiment for finding in self.findings]
        raise KeyError(f"no experiment {experiment!r} is in this audit; {suggest(experiment, known)}")

    @property
    def verdict(self) -> str:
        """The grade over all experiments that can tell, one of `GRADES`: by the mean of their `POINTS`."""
        points = [POINTS[finding.grade] for finding in self.findings if finding.grade in POINTS]
        if not points:
            return "cannot tell"
        mean = sum(points) / len(points)
        return "explains" if mean >= EXPLAINS else "does not" if mean <= DOES_NOT else "partly"

    def groups(self, by: str) -> dict[str, np.ndarray]:
        """Examples by their predicted class ("predicted") or by their length ("length"): name -> numbers of examples.

        Lengths are cut into thirds. Where all examples fall into one group, the result is empty.
        """
        if by not in ("predicted", "length"):
            raise ValueError(f"examples are grouped by 'predicted' or 'length', not by {by!r}")
        if by == "predicted":
            names = np.array(self.predicted, dtype=object)
            found = {str(name): np.flatnonzero(names == name) for name in sorted(set(self.predicted))}
        else:
            found = _thirds(self.lengths)
        return found if len(found) > 1 else {}

    def by_group(self, experiment: str, name: str, by: str) -> dict[str, Quantity]:
        """A number of an experiment in every group of examples."""
        quantity = self[experiment][name]
        return {
            group: Quantity(name, quantity.where, quantity.values[own], quantity.seed)
            for group, own in self.groups(by).items()
        }

    def to_csv(self) -> str:
        """Every number of every experiment on every example, as CSV."""
        return display.csv_text(self)


def _thirds(lengths: np.ndarray) -> dict[str, np.ndarray]:
    """Numbers of the examples in every third of the lengths, shortest first, named by the lengths at its ends."""
    edges = np.unique(np.quantile(lengths, [1 / 3, 2 / 3], method="lower"))
    third = np.searchsorted(edges, lengths)
    found = {}
    for number in np.unique(third):
        own = np.flatnonzero(third == number)
        low, high = lengths[own].min(), lengths[own].max()
        found[f"{low} to {high} features" if low < high else f"{high} features"] = own
    return found
