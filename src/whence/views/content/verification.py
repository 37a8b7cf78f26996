"""What every medium says about a Verification: the verdict, its facts, how many rows differ by how much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whence.core.run_summaries import Verification
from whence.views.content.attribution import Facts
from whence.views.content.run_summary import many
from whence.views.text import listed, number, printable

LOWEST, HIGHEST = -12, 1  # smaller or larger powers of ten than these are counted with these
SAME, NOT_A_NUMBER = "0", "not a number"


@dataclass(frozen=True)
class Decade:
    """The rows whose differences lie within one power of ten."""

    name: str
    count: int
    beyond: int  # how many of these rows differ by more than the tolerance


def reading(v: Verification) -> str:
    """The verdict and its grounds."""
    if not v.rows and not v.damaged:
        return "Nothing was computed again, so nothing can be said."
    said = f"{v.verdict[:1].upper()}{v.verdict[1:]}: {_compared(v)}."
    if not v.damaged:
        return said
    are = "shard is" if len(v.damaged) == 1 else "shards are"
    return f"{said} {len(v.damaged):,} {are} not what was written."


def _compared(v: Verification) -> str:
    """A sentence on how rows that were computed again differ."""
    if not v.rows:
        return "no row could be computed again"
    of = f"{many(v.rows, 'row')} of {many(len(v.chunks), 'chunk')}"
    if v.equal == v.rows:
        return f"all {of} are equal when they are computed again"
    beyond = sum(decade.beyond for decade in decades(v))
    told = f"differ by more than {v.tolerance:g}" if beyond else "are equal to the bit"
    most = f"the largest relative difference is {_largest(v)}"
    return f"{beyond or v.equal:,} of {of} {told} when they are computed again; {most}"


def facts(v: Verification) -> Facts:
    """The facts on what was compared, printable."""
    found = [("run", v.name), ("model", v.model), ("verdict", v.verdict)]
    found.append(("chunks", listed([str(number) for number in v.chunks], 12)))
    found.append(("rows", f"{v.rows:,}, {v.equal:,} of them equal to the bit"))
    found.append(("largest", f"{_largest(v)}, relative to the largest score of its row" if v.rows else ""))
    found.append(("tolerance", f"{v.tolerance:g}, for other processors, threads or versions"))
    found += [("damaged", shard) for shard in v.damaged]
    found += [("other here", reason) for reason in v.reasons]
    found += [("note", note) for note in dict.fromkeys(v.notes)]
    return [(label, printable(text)) for label, text in found if text]


def decades(v: Verification) -> list[Decade]:
    """The rows by the power of ten of their differences, from equal rows to those that have no difference."""
    values = np.asarray(v.differences, float)
    known = values[values > 0]
    with np.errstate(over="ignore"):
        powers = np.clip(np.floor(np.log10(known)), LOWEST - 1, HIGHEST)
    found = [Decade(SAME, int((values == 0).sum()), 0)] if (values == 0).any() else []
    for power in range(int(powers.min()), int(powers.max()) + 1) if len(known) else ():
        own = known[powers == power]
        found.append(Decade(_between(power), len(own), int((own > v.tolerance).sum())))
    broken = int(np.isnan(values).sum())
    return [*found, Decade(NOT_A_NUMBER, broken, broken)] if broken else found


def _between(power: int) -> str:
    """The differences of one decade, in words."""
    if power < LOWEST:
        return f"below {_power(LOWEST)}"
    return f"{_power(power)} or more" if power == HIGHEST else f"{_power(power)} to {_power(power + 1)}"


def _power(power: int) -> str:
    return f"1e{power}" if power < -2 else f"{10.0**power:g}"


def _largest(v: Verification) -> str:
    """The largest difference in words; rows where a number stands against no number have no difference."""
    return NOT_A_NUMBER if np.isnan(v.differences).any() else number(float(np.max(v.differences)))
