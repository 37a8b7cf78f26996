"""What every medium says about a Guidance: the reading, its facts, a row per measure, the curves of training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whence.core.guidances import ARMS, Difference, Guidance, Measure
from whence.core.wording import counted
from whence.views.content.attribution import Facts
from whence.views.text import duration, listed, number, printable, signed

VERDICTS = {
    "better": "the interval of the difference leaves 0 out, on the better side",
    "worse": "the interval of the difference leaves 0 out, on the worse side",
    "no clear difference": "the interval of the difference holds 0",
    "cannot tell": "there is no interval: one seed and no examples, or nothing that is defined",
}


@dataclass(frozen=True)
class Row:
    """A measure of all arms, as it is written."""

    name: str
    about: str
    better: str
    means: dict[str, float]  # by arm
    intervals: dict[str, tuple[float, float] | None]
    seeds: dict[str, list[float]]  # the value of every seed
    difference: Difference
    verdict: str  # one of `VERDICTS`

    @property
    def cells(self) -> tuple[str, ...]:
        """The name, the mean of every arm, the difference with its interval, the verdict."""
        means = [_written(value) for value in self.means.values()]
        return (self.name, *means, self.change, self.verdict)

    @property
    def change(self) -> str:
        """The difference with its interval."""
        if not np.isfinite(self.difference.mean):
            return "-"
        mean, ends = self.difference.mean, self.difference.interval
        scale = max(abs(mean), *map(abs, ends or (mean, mean)))
        said = "" if ends is None else f" [{signed(ends[0], scale)}, {signed(ends[1], scale)}]"
        return f"{signed(mean, scale)}{said}"


def _written(value: float) -> str:
    if not np.isfinite(value):
        return "-"
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.0005 else f"{value:.1e}"


def heads(g: Guidance) -> tuple[str, ...]:
    """The names of the columns of `Row.cells`."""
    return ("measure", *g.arms, f"guided - {g.before}", "verdict")


def rows(g: Guidance) -> list[Row]:
    """A row per measure."""
    return [_row(g, measure) for measure in g.measures]


def _row(g: Guidance, measure: Measure) -> Row:
    difference = g.difference(measure.name)
    side = "+" if measure.better == "higher" else "-"
    aims = measure.better != ""
    verdict = "no clear difference"
    if difference.interval is None or not np.isfinite(difference.mean):
        verdict = "cannot tell"
    elif difference.clear and aims:
        verdict = "better" if (difference.mean > 0) == (side == "+") else "worse"
    name = f"{measure.name} ({measure.better} is better)" if aims else measure.name
    return Row(
        name=printable(name),
        about=printable(measure.about) if measure.about else "",
        better=measure.better,
        means={arm: g.mean(measure.name, arm) for arm in g.arms},
        intervals={arm: g.interval(measure.name, arm) for arm in g.arms},
        seeds={arm: measure.values[place].tolist() for place, arm in enumerate(g.arms)},
        difference=difference,
        verdict=verdict,
    )


def reading(g: Guidance) -> str:
    """The measures that guiding made better and worse, and its cost in accuracy."""
    by_verdict: dict[str, list[str]] = {}
    for row, measure in zip(rows(g), g.measures, strict=True):
        if measure.name != "accuracy":
            by_verdict.setdefault(row.verdict, []).append(printable(measure.name))
    against = "training on labels alone" if g.before == "plain" else "the model as it was given"
    said = [f"Against {against}, over {counted(len(g.seeds), 'seed')}:"]
    better, worse = by_verdict.get("better", []), by_verdict.get("worse", [])
    parts = [f"better {listed(better, 12)}" if better else "", f"worse {listed(worse, 12)}" if worse else ""]
    said.append(("; ".join(filter(None, parts)) or "no measure of attention is clearly better or worse") + ".")
    if "accuracy" in [measure.name for measure in g.measures]:
        gap = g.difference("accuracy")
        ends = "" if gap.interval is None else f" [{100 * gap.interval[0]:+.1f}, {100 * gap.interval[1]:+.1f}]"
        said.append(f"Accuracy changes by {100 * gap.mean:+.1f} points{ends}, to {g.mean('accuracy', 'guided'):.1%}.")
    return " ".join(said)


def facts(g: Guidance) -> Facts:
    """The facts on training and measuring, printable."""
    found = [("model", g.model)]
    found += [("loss", spec) for spec in g.losses]
    found += [(arm, ARMS[arm]) for arm in g.arms]
    found.append(("seeds", ", ".join(map(str, g.seeds))))
    found.append(("trained on", f"{counted(g.trained_on, 'example')}, {g.marked} of them with a rationale"))
    found.append(("measured on", f"{counted(g.held_out, 'held-out example')}"))
    found.append(("training", ", ".join(f"{name} {number(value)}" for name, value in g.settings.items())))
    found.append(("cost", _cost(g)))
    drawn = "seeds and examples" if len(g.seeds) > 1 else "examples alone, since one seed says nothing of others"
    found.append(("intervals", f"95 %, of {drawn}; a difference is of the same seeds and examples"))
    found += [("models", g.folder)] if g.folder else []
    found += [("note", note) for note in dict.fromkeys(g.notes)]
    return [(label, printable(text)) for label, text in found if text]


def _cost(g: Guidance) -> str:
    """The time of a guided step, beside a plain one where there are plain ones."""
    guided = g.step_cost("guided")
    if "plain" not in g.arms or not g.step_cost("plain"):
        return f"{duration(guided)} of the processor for a step" if guided else ""
    return f"{duration(guided)} of the processor for a guided step, {guided / g.step_cost('plain'):.2f} x a plain one"


def curve_groups(g: Guidance) -> dict[str, dict[str, np.ndarray]]:
    """The curves of training by loss, then by arm: the mean over seeds, (point,)."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, values in g.curves.items():
        arm, _, loss = name.partition(": ")
        known = ~np.isnan(values)
        sums = np.where(known, values, 0.0).sum(0) / np.maximum(known.sum(0), 1)
        found.setdefault(loss, {})[arm] = sums
    return found
