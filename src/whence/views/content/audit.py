"""What every medium says about an Audit: its facts, the numbers of a finding, how examples spread, groups of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whence.core.audits import GRADES, Audit, Finding, Quantity
from whence.core.scoreboards import Score
from whence.core.wording import counted
from whence.views.content.attribution import Facts
from whence.views.content.scoreboard import Row
from whence.views.text import printable

QUESTION = "Is attention an explanation here?"
# Experiments with two numbers that belong together, drawn as a dot per example. Most others have a histogram of their
# first number.
TOGETHER = {
    "permutation": ("greatest weight", "median change"),
    "erasure": ("difference of weights", "difference of effects"),
}
BINS = 20


@dataclass(frozen=True)
class Spread:
    """How examples spread: dots (x, y), or counts (y) of examples with a number near x; or a curve of means."""

    across: str
    up: str
    x: np.ndarray
    y: np.ndarray
    dots: bool
    width: float = 0.0  # of a bin
    line: bool = False  # dots are means of a curve, in its order


def facts(a: Audit) -> Facts:
    """What every medium says before it shows findings, printable."""
    told = sum(finding.grade != "cannot tell" for finding in a.findings)
    found = [
        ("model", a.model),
        ("examples", str(len(a.examples))),
        ("verdict", f"{a.verdict}: {GRADES[a.verdict]}" if told else f"{a.verdict}: {GRADES['cannot tell']}"),
        ("from", f"{told} of {counted(len(a.findings), 'experiment')} that can tell"),
    ]
    found += [("note", note) for note in a.notes]
    return [(label, printable(text)) for label, text in found]


def reading(a: Audit) -> str:
    """The verdict over all experiments, and what each of them found."""
    told = [f for f in a.findings if f.grade != "cannot tell"]
    on = f"on {counted(len(a.examples), 'example')}" + (f" of {a.model}" if a.model else "")
    if not told:
        return printable(f"No experiment can tell {on} whether attention explains the decisions.")
    said = ", ".join(f"{f.name} says {f.grade!r}" for f in told)
    rest = len(a.findings) - len(told)
    left = f"; {rest} cannot tell" if rest else ""
    few = " One example is no more than an anecdote." if len(a.examples) == 1 else ""
    start = GRADES[a.verdict].split(",")[0].capitalize()
    return printable(f"{start}, as far as these experiments tell {on}: {said}{left}.{few}")


def facts_of(finding: Finding) -> Facts:
    """The facts of a finding beside its answer, printable."""
    found = [("attention", finding.attention), ("paper", finding.paper)]
    places = [f"{where}: {grade}" for where, grade in finding.grades.items()]
    found += [("grades", "; ".join(places))] if len(places) > 1 else []
    found += [("note", note) for note in finding.notes] + [("limit", limit) for limit in finding.limits]
    return [(label, printable(text)) for label, text in found if text]


def headline(finding: Finding) -> list[Quantity]:
    """The numbers of a finding at its first place: the only one, or the mean over all."""
    return [quantity for quantity in finding.quantities if quantity.where == finding.places[0]]


def as_rows(quantities: list[Quantity], by_place: bool = False) -> list[Row]:
    """Numbers as the rows of a chart with means and intervals."""
    return [
        Row(
            q.where or "mean over layers" if by_place else q.name,
            Score(metric=q.name, value=q.mean, better="higher", values=None, interval=q.interval),
        )
        for q in quantities
    ]


def interval(quantity: Quantity) -> str:
    """The interval as it is written; empty where there is none."""
    return "" if quantity.interval is None else f"{quantity.interval[0]:.3g} to {quantity.interval[1]:.3g}"


def mean(quantity: Quantity) -> str:
    """The mean as it is written."""
    return "-" if np.isnan(quantity.mean) else f"{quantity.mean:.3g}"


def spread(finding: Finding) -> Spread | None:
    """How examples spread; None where a number is defined on fewer than two of them."""
    curve = _curve(finding)
    if curve is not None:
        return curve
    names = TOGETHER.get(finding.name)
    own = {quantity.name: quantity.values for quantity in headline(finding)} if finding.quantities else {}
    if names is not None and all(name in own for name in names):
        x, y = (own[name] for name in names)
        known = np.isfinite(x) & np.isfinite(y)
        return Spread(*names, x[known], y[known], True) if known.sum() > 1 else None
    if not own:
        return None
    name, values = next(iter(own.items()))
    values = values[np.isfinite(values)]
    if len(values) < 2:
        return None
    counts, edges = np.histogram(values, BINS)
    return Spread(name, "examples", (edges[1:] + edges[:-1]) / 2, counts.astype(float), False, float(np.diff(edges)[0]))


def _curve(finding: Finding) -> Spread | None:
    """Change of the output and divergence of attention over lambdas, of an adversary that was trained; else None."""
    across, up = "change, lambda ", "divergence, lambda "
    pulls = [name.removeprefix(across) for name in finding.names if name.startswith(across)]
    pulls = [pull for pull in pulls if f"{up}{pull}" in finding.names]
    x, y = (np.array([finding[f"{start}{pull}"].mean for pull in pulls]) for start in (across, up))
    if len(pulls) < 2 or not np.isfinite([x, y]).all():
        return None
    of = f"over lambda {pulls[0]} to {pulls[-1]}"
    return Spread(f"mean change of the output (TVD), {of}", "divergence of attention", x, y, True, line=True)


def by_groups(a: Audit, finding: Finding) -> list[tuple[str, list[str], list[tuple[str, list[str]]]]]:
    """Means in groups of examples: (title, names of groups, rows of (number, means)) by predicted class and length."""
    found = []
    for by, title in (("predicted", "by predicted class"), ("length", "by length")):
        groups = a.groups(by)
        if not groups or not finding.quantities or len(groups) > 12:
            continue
        heads = [f"{printable(name)} ({len(own)})" for name, own in groups.items()]
        rows = []
        for quantity in headline(finding):
            parts = [Quantity(quantity.name, "", quantity.values[own], quantity.seed) for own in groups.values()]
            rows.append(
                (printable(quantity.name), [f"{mean(p)} {f'[{interval(p)}]' if p.interval else ''}" for p in parts])
            )
        found.append((title, heads, rows))
    return found
