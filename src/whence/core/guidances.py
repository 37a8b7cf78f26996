"""The result of training with attention in the loss: measures of models before and after. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.stats import t as student

from whence.core.results import Result
from whence.core.statistics import means_of
from whence.core.storage import Storable, floats, read_only
from whence.core.wording import suggest

ARMS = {
    "given": "the model as it was given",
    "plain": "trained on labels alone",
    "guided": "trained on labels and by the losses",
}
DIRECTIONS = ("higher", "lower", "")


@dataclass(frozen=True, eq=False)
class Measure(Storable):
    """One number of every model: by arm and seed, and where it is a mean over examples, by example, too."""

    name: str
    better: str  # "higher", "lower", or "" where neither is
    values: np.ndarray  # (arm, seed); the model as given has one value, repeated
    examples: np.ndarray | None = None  # (arm, seed, example); None for a number of the whole set, as calibration
    about: str = ""  # what the number is, in a sentence

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("values", read_only(floats("values", self.values)))
        if self.examples is not None:
            self._set("examples", read_only(floats("examples", self.examples)))
        if self.better not in DIRECTIONS:
            raise ValueError(f"better is 'higher', 'lower' or '', not {self.better!r}")


@dataclass(frozen=True)
class Difference:
    """How much larger a measure is in one arm than in another: the mean, and the 95 % interval of the mean."""

    mean: float
    interval: tuple[float, float] | None

    @property
    def clear(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.interval is not None and not self.interval[0] <= 0 <= self.interval[1]


@dataclass(frozen=True, eq=False, repr=False)
class Guidance(Result):
    """A classifier trained with losses on attention, compared with training on labels alone."""

    model: str
    losses: tuple[str, ...]  # specs, weights among their options
    arms: tuple[str, ...]  # of `ARMS`
    seeds: tuple[int, ...]
    measures: tuple[Measure, ...]
    curves: dict[str, np.ndarray]  # "arm: loss" -> (seed, point): the losses along the training
    trained_on: int  # examples
    marked: int  # those of them with a rationale
    held_out: int  # examples that the measures are of
    steps: np.ndarray  # (arm, seed): of training; 0 for the model as given
    seconds: np.ndarray  # (arm, seed): of the processor, for all steps
    settings: dict[str, float] = field(default_factory=dict)  # of training: epochs, rate, batch size, ...
    folder: str = ""  # where the guided models are; "" where they were not kept
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "seconds"):
            self._set(name, read_only(floats(name, getattr(self, name))))
        shape = (len(self.arms), len(self.seeds))
        wrong = [measure.name for measure in self.measures if measure.values.shape != shape]
        if wrong:
            raise ValueError(f"a measure has a value per arm and seed, {shape}, and {wrong[0]} has another shape")
        if set(self.arms) - ARMS.keys():
            raise ValueError(f"arms are among {', '.join(ARMS)}, not {', '.join(self.arms)}")

    def __repr__(self) -> str:
        return f"Guidance({self.model} by {', '.join(self.losses)}, {len(self.seeds)} seeds)"

    def __getitem__(self, name: str) -> Measure:
        """A measure by its name."""
        for measure in self.measures:
            if measure.name == name:
                return measure
        raise KeyError(f"no measure {name!r} is in this result; {suggest(name, [m.name for m in self.measures])}")

    @property
    def before(self) -> str:
        """The arm that guided models are compared with: training on labels alone, or else the model as it was given."""
        return "plain" if "plain" in self.arms else "given"

    def mean(self, name: str, arm: str) -> float:
        """The mean of a measure over the seeds of an arm."""
        return float(means_of(self[name].values[self._arm(arm)]))

    def interval(self, name: str, arm: str) -> tuple[float, float] | None:
        """The 95 % interval of that mean, over seeds and examples."""
        place, measure = self._arm(arm), self[name]
        by_example = None if measure.examples is None else measure.examples[place]
        seeds = measure.values[place][:1] if arm == "given" else measure.values[place]
        return _interval(seeds, by_example)

    def difference(self, name: str, arm: str = "guided", other: str = "") -> Difference:
        """How much larger a measure is in one arm, by default than in `before`, of the same seeds and examples."""
        measure, one, two = self[name], self._arm(arm), self._arm(other or self.before)
        gaps = measure.values[one] - measure.values[two]
        by_example = None if measure.examples is None else measure.examples[one] - measure.examples[two]
        return Difference(float(means_of(gaps)), _interval(gaps, by_example))

    def step_cost(self, arm: str = "guided") -> float:
        """The processor's seconds of one step of training."""
        place = self._arm(arm)
        return float(self.seconds[place].sum() / max(1.0, self.steps[place].sum()))

    def _arm(self, arm: str) -> int:
        if arm not in self.arms:
            raise KeyError(f"no arm {arm!r} is in this result; {suggest(arm, self.arms)}")
        return self.arms.index(arm)


def _interval(seeds: np.ndarray, by_example: np.ndarray | None) -> tuple[float, float] | None:
    """The 95 % interval of a mean over seeds, (seed,), and examples, (seed, example), which both are drawn at random.

    Two variances are added: that of the seeds' means, by Student's t, and that of the examples' means. Both contain
    the residual variance, so the interval is too wide rather than too narrow.
    """
    seeds = seeds[~np.isnan(seeds)]
    squares = 0.0
    if len(seeds) > 1:
        squares += float((student.ppf(0.975, len(seeds) - 1) * seeds.std(ddof=1)) ** 2 / len(seeds))
    if by_example is not None:
        means = means_of(by_example.T)
        means = means[~np.isnan(means)]
        if len(means) > 1:
            squares += float((1.96 * means.std(ddof=1)) ** 2 / len(means))
    elif len(seeds) < 2:
        return None
    if not len(seeds):
        return None
    middle, half = float(seeds.mean()), float(np.sqrt(squares))
    return middle - half, middle + half
