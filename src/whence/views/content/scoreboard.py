"""What every medium says about a Scoreboard: means with intervals, ranks, curves, and the colour of every method."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from whence.core.scoreboards import Score, Scoreboard
from whence.core.wording import counted
from whence.views.colours import METHODS, OTHER_METHODS
from whence.views.text import largest, listed, number, printable, weight

ARROWS = {"higher": "\u2191", "lower": "\u2193"}
BEST = "\u2605"  # a star
CLOSE = 0.05  # with a larger p, a method is not told apart from the best
FEW = 6  # methods in colour for each metric
SPOKEN = 3  # metrics that a reading treats one by one; with more, the number of methods that it names
LARGEST = 1e300  # the largest number at the end of a bar


def curve_axes(board: Scoreboard, metric: str) -> tuple[str, str]:
    """What the axes of a metric's curve show: across, and up."""
    place = board.metrics.index(metric)
    axes = board.axes[place] if board.axes else ()
    return (axes[0], axes[1]) if axes else ("share of features", "value")


@dataclass(frozen=True)
class Row:
    """One method by one metric."""

    method: str
    score: Score
    best: bool = False
    p: float | None = None  # p against the best; None for the best itself and where the test is not defined
    tied: bool = False  # the mean equals that of the best up to rounding

    @property
    def star(self) -> str:
        """The mark of the best method, of those that tie with it, and of those not told apart from it."""
        if self.best or self.tied:
            return BEST
        return "*" if self.p is not None and self.p > CLOSE else ""

    @property
    def defined_for(self) -> str:
        """The number of examples in the mean, where the metric is not defined for all of them."""
        values = self.score.values
        known = 0 if values is None else int(np.isfinite(values).sum())
        return f" ({known})" if values is not None and 0 < known < values.size else ""

    @property
    def ends(self) -> tuple[float, float]:
        """The interval of the mean; the mean itself where there is none."""
        return self.score.interval or (self.score.value, self.score.value)

    @property
    def against_best(self) -> str:
        """How sure the difference to the best is, in words."""
        if self.tied:
            return "tied"
        if self.p is None:
            return "best" if self.best else ""
        return "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}{self.star}"


@dataclass(frozen=True)
class Style:
    """How a method is drawn: `dash` are the lengths of dashes and gaps, `line` is the CSS name of the same."""

    colour: str = OTHER_METHODS
    width: float = 1
    dash: tuple[int, ...] = ()
    line: str = "solid"


@dataclass(frozen=True)
class Range:
    """The span of numbers that bars are drawn over."""

    low: float
    high: float
    from_zero: bool  # bars start at zero; else dots, because differences would be too small on a scale from zero


def facts_line(board: Scoreboard) -> str:
    """Model, number of examples, seed."""
    return f"{board.model}, {counted(board.values.shape[-1], 'example')}, seed {board.seed}".removeprefix(", ")


def rows(board: Scoreboard, metric: str) -> list[Row]:
    """All methods by one metric."""
    leader, found = board.best(metric), []
    best_mean = board.score(leader, metric).value
    for method in board.methods:
        score = board.score(method, metric)
        told = method != leader and score.interval is not None
        best = method == leader and bool(np.isfinite(score.value)) and len(board.methods) > 1
        tied = method != leader and bool(np.isclose(score.value, best_mean, rtol=1e-9, atol=0))
        found.append(Row(method, score, best, board.p_value(method, metric) if told else None, tied))
    return found


def ranked(found: Sequence[Row]) -> list[Row]:
    """The rows, the best first; rows without a value last."""
    sign = -1 if found[0].score.better == "higher" else 1
    return sorted(found, key=lambda row: sign * row.score.value if np.isfinite(row.score.value) else math.inf)


def cells(found: Sequence[Row]) -> list[tuple[Row, str, str]]:
    """Means, and intervals without a space, so that lines break before them; all with the same decimals."""
    means = np.array([row.score.value for row in found])
    scale, written = largest(means), []
    for row in found:
        mean = weight(row.score.value, scale) if np.isfinite(row.score.value) else "-"
        ends = row.score.interval
        interval = ("" if ends is None else f"[{weight(ends[0], scale)},{weight(ends[1], scale)}]") + row.defined_for
        written.append((row, mean, interval))
    widest = max(len(mean) for _, mean, _ in written)
    return [(row, mean.rjust(widest), interval) for row, mean, interval in written]


def heading(board: Scoreboard, metric: int) -> list[str]:
    """A metric's name with its direction, its options, and what hides features; printable."""
    name, bracket, options = printable(board.metrics[metric]).partition("(")
    hidden = board.hidden[metric] and f"hidden: {printable(board.hidden[metric])}"
    lines = [f"{name}\u00a0{ARROWS[board.better[metric]]}", bracket + options, hidden]
    return [line for line in lines if line]


def note(board: Scoreboard) -> str:
    """A note on the meaning of the marks; with a single example there are neither intervals nor tests."""
    if board.values.shape[-1] == 1:
        return ""
    some = np.isnan(board.values).any(-1) & ~np.isnan(board.values).all(-1)
    counts = " In round brackets: for how many examples it is defined." if some.any() else ""
    several = len(board.methods) > 1
    told = f"; {BEST} the best, * not told apart from it (p > {CLOSE}, paired sign flips)" if several else ""
    return f"Means with 95 % intervals{told}.{counts}"


def reading(board: Scoreboard) -> str:
    """The reading of the board: a sentence or two per metric; for many metrics, which method leads how often."""
    if len(board.metrics) <= SPOKEN or len(board.methods) == 1:
        return " ".join(reading_of(board, metric) for metric in board.metrics[:SPOKEN])
    groups = [leaders(rows(board, metric)) for metric in board.metrics]
    often = {m: sum(m in (row.method for row in group) for group in groups) for m in board.methods}
    first = sorted((m for m in often if often[m]), key=lambda m: -often[m])[:SPOKEN]
    if not first:
        return f"None of {len(groups)} metrics is defined on these examples."
    told = ", ".join(f"{printable(method)} {often[method]}" for method in first)
    count = board.values.shape[-1]
    said = "has the best value" if count == 1 else f"is the best or not told apart from it (paired test, p > {CLOSE})"
    on = "on one example" if count == 1 else f"on {count} examples"
    return f"By how many of {len(groups)} metrics a method {said} {on}: {told}."


def leaders(found: Sequence[Row]) -> list[Row]:
    """The best method and those that tie or are not told apart from it; empty where no value is defined."""
    first = next((row for row in found if row.best), None)
    if first is None:
        return []
    close = [row for row in found if not row.best and row.star]
    return [first, *sorted(close, key=lambda row: abs(row.score.value - first.score.value))]


def reading_of(board: Scoreboard, metric: str) -> str:
    """Which methods lead by one metric, as far as the examples tell them apart."""
    found, name = rows(board, metric), printable(metric)
    if len(found) == 1:
        return score_reading(found[0].score, f"{name} of {printable(found[0].method)}")
    group = leaders(found)
    if not group:
        return f"{name} is not defined on these examples, or not finite."
    best, *close = group
    known = int(np.isfinite(board.values[board.methods.index(best.method), board.metrics.index(metric)]).sum())
    by, names = f"By {name} on {counted(known, 'example')}", [printable(row.method) for row in close]
    if known == 1:
        equal = [printable(row.method) for row in close if row.tied]
        first = listed([printable(best.method), *equal])
        return f"{by}, {first} {'are tied for the best' if equal else 'is best'}; one example allows no test."
    untold = [row for row in found if not row.best and (row.p is None or np.isnan(row.p)) and row not in close]
    first = f"{by}, {printable(best.method)} is best"
    rest = f"; {listed([printable(row.method) for row in untold])} could not be compared with it" if untold else ""
    if not close:
        told = f" and told apart from all {'the ' if untold else ''}others" if len(found) > len(untold) + 1 else ""
        return f"{first}{told}{rest}."
    are = "is" if len(close) == 1 else "are"
    told = f"{listed(names)} {are} not told apart from it (paired test, p > {CLOSE})"
    chance = " So these examples do not show that any method beats random scores." * any(
        _is_random(row.method) for row in group
    )
    return f"{first}; {told}{rest}.{chance}"


def score_reading(score: Score, name: str) -> str:
    """A mean with its interval, in a sentence."""
    known = None if score.values is None else int((~np.isnan(score.values)).sum())
    if np.isnan(score.value):
        return f"{name} is not defined on these examples."
    on = "" if known is None else f" on {counted(known, 'example')}"
    if score.interval is None:
        why = "; one example allows no interval" if known == 1 else ""
        return f"{name} is {number(score.value)}{on}{why} ({score.better} is better)."
    low, high = score.interval
    held = f"{number(low)} to {number(high)} is the 95 % interval of the mean"
    return f"{name} is {number(score.value)}{on}; {held} ({score.better} is better)."


def metric_facts(board: Scoreboard, metric: int) -> str:
    """Direction, what hides features, and for how many examples the metric is defined where not for all."""
    found = [f"{board.better[metric]} is better"]
    if board.hidden[metric]:
        found.append(f"hidden features: {board.hidden[metric]}")
    counts = (~np.isnan(board.values[:, metric])).sum(-1)
    if counts.min() < board.values.shape[-1]:
        span = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
        found.append(f"defined for {span} of {counted(board.values.shape[-1], 'example')}, by method")
    return printable("; ".join(found))


def styles(by_metric: Iterable[Sequence[Row]]) -> dict[str, Style]:
    """One style for a method by all metrics: a colour, and dashes where there are more methods than colours."""
    metrics = list(by_metric)
    found = {row.method: Style() for row in metrics[0]}
    found |= {row.method: Style("currentColor", 1.6, (2, 3), "dotted") for row in metrics[0] if _is_random(row.method)}
    for place, method in enumerate(dict.fromkeys(row.method for own in metrics for row in _in_colour(own))):
        colour = METHODS[place % len(METHODS)]
        dashed = place // len(METHODS) % 2
        found[method] = Style(colour, 2.2, (7, 3), "dashed") if dashed else Style(colour, 2.2)
    return found


def styles_of(found: Sequence[Row], all_styles: dict[str, Style]) -> dict[str, Style]:
    """The styles of methods by one metric: only its best few, and random, are in colour."""
    coloured = {row.method for row in _in_colour(found)} | {row.method for row in found if _is_random(row.method)}
    return {row.method: all_styles[row.method] if row.method in coloured else Style() for row in found}


def _in_colour(found: Sequence[Row]) -> list[Row]:
    """The best, which are drawn in colour."""
    return [row for row in found if np.isfinite(row.score.value) and not _is_random(row.method)][:FEW]


def _is_random(method: str) -> bool:
    return method.partition("(")[0] == "random"


def curves(board: Scoreboard, metric: str, found: Sequence[Row]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The mean curve of every method that has one, in the order of the rows."""
    lines = {row.method: board.curve(row.method, metric) for row in found}
    return {method: line for method, line in lines.items() if len(line[0])}


def drawing_order(lines: Iterable[str], own: dict[str, Style]) -> list[str]:
    """Methods from the lowest line to the topmost: those in grey first, the best last."""
    return sorted(reversed(list(lines)), key=lambda method: own[method].width)


def bar_range(found: Sequence[Row]) -> Range | None:
    """The range of the bars of all rows, with room at the ends; None where no value is defined."""
    drawn = [row for row in found if np.isfinite(row.score.value)]
    if not drawn:
        return None
    # a range around larger numbers would overflow
    low = max(-LARGEST, min(LARGEST, *(row.ends[0] for row in drawn)))
    high = min(LARGEST, max(-LARGEST, *(row.ends[1] for row in drawn)))
    zero = min(abs(low), abs(high)) <= high - low or low <= 0 <= high
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    return Range(*widened(low, high, 0.0 if low == 0 else 0.03, 0.0 if high == 0 else 0.03), zero)


def widened(low: float, high: float, below: float, above: float) -> tuple[float, float]:
    """A range with room at its ends, never empty."""
    span = high - low or abs(high) or 1.0
    return low - below * span, high + (above * span if high > low else span)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers within a range, about as many as wanted."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= rough * (1 - 1e-9))
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """A tick's number."""
    return f"{round(value, 12):g}"
