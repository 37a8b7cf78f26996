"""What every medium says about a Conservation: where f(x) went, and relevance by depth, by kind and by module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from whence.core.relevance_balance import Conservation, ModuleRelevance
from whence.core.wording import counted
from whence.views.content.attribution import Facts
from whence.views.text import largest, number, printable, signed, weight

USUAL = "gradient_x_input"  # the method that is always shown for comparison
FEW = 12  # modules that the terminal names
NOISE = 1e-3  # a leak below this share of the module's sum of |relevance| is not named
Rows = Sequence[ModuleRelevance]


def facts(c: Conservation) -> Facts:
    """What every medium says before it shows tables, printable."""
    guessed = ", as the model predicts" if c.target.predicted else ""
    found = [("method", c.method), ("model", c.model), ("target", f"{c.target}{guessed}"), ("f(x)", number(c.output))]
    found.append(("relevance", _account(c, c.rows)))
    if c.plain:
        found.append((USUAL, _account(c, c.plain)))
    if not np.isclose(c.rows[0].relevance_out, c.output, rtol=1e-3, atol=1e-6):
        start = f"the logits have {number(c.rows[0].relevance_out)}: the target itself is not linear in them"
        found.append(("start", start))
    uncovered = ", ".join(f"{name} ({counted(len(where), 'module')})" for name, where in c.uncovered.items())
    found.append(("no rule for", uncovered or "nothing: every operation is covered"))
    found += [("note", note) for note in dict.fromkeys(c.notes)]
    return [(label, printable(text)) for label, text in found]


def reading(c: Conservation) -> str:
    """Whether relevance is conserved on its way to the input, by the method and by the usual one beside it."""
    whole = c.rows[0]
    if not np.isfinite([whole.relevance_in, whole.bias, whole.leak]).all():
        return "Some relevance is not finite, so nothing can be said of where it goes."
    reached = f"{number(whole.relevance_in)} at the input and {number(whole.bias)} at biases"
    of = f"the {number(whole.relevance_out)} that the logits are given"
    if np.isclose(whole.relevance_out, c.output, rtol=1e-3, atol=1e-6):
        of = f"f(x) = {number(c.output)}"
    share = _leak_share(whole)
    if share < NOISE:
        said = f"{c.method} conserves relevance here: {reached} add up to {of}."
    else:
        said = (
            f"{c.method} does not conserve relevance here: of {of}, {reached}; {number(whole.leak)} leaks on the way."
        )
    if c.plain and np.isfinite(c.plain[0].leak):
        said += f" By {USUAL}, {number(c.plain[0].leak)} leaks."
    return printable(said)


def _leak_share(row: ModuleRelevance) -> float:
    """|leak| as a share of all |relevance| at a module."""
    scale = max(abs(row.relevance_out), abs(row.relevance_in) + abs(row.bias))
    return abs(row.leak) / scale if scale else 0.0


def _account(c: Conservation, rows: Rows) -> str:
    """A sentence on where f(x) went: to the input, to biases, or lost."""
    whole = rows[0]
    share = f" ({abs(whole.leak / c.output):.2%} of f(x))" if c.output else ""
    kept = f"{number(whole.relevance_in)} at the input, {number(whole.bias)} at biases"
    return f"{kept}, {number(whole.leak)} leaked{share}"


class NumberTable:
    """Names, then numbers with a colour of their own scale, then words."""

    def __init__(
        self, names: Sequence[str], numbers: Sequence[str], words: Sequence[str] = (), signs: bool = True
    ) -> None:
        self.names, self.numbers, self.words, self.signs = names, numbers, words, signs
        self.rows: list[tuple[Sequence[str], Sequence[float | None], Sequence[str]]] = []

    def add(self, names: Sequence[str], numbers: Sequence[float | None], words: Sequence[str] = ()) -> None:
        self.rows.append((names, numbers, words))

    def written(self, value: float) -> str:
        """A number with as many decimals as all others."""
        return (signed if self.signs else weight)(value, self.scale)

    @property
    def scale(self) -> float:
        """The largest |number| of the table."""
        return largest(np.array([value for _, values, _ in self.rows for value in values if value is not None]))


def tables(c: Conservation) -> Iterator[tuple[str, NumberTable]]:
    """The tables of every medium, with their titles."""
    yield "relevance by depth, from the output to the input", _by_depth(c)
    yield "leaks by kind of module: the sum of their |leak|", _by_kind(c)
    named = sorted((r for r in c.rows if _leaky(r)), key=lambda row: -abs(row.own_leak))
    if named:
        few = f"the {FEW} largest leaks of {len(named)}" if len(named) > FEW else "the modules that leak"
        yield few, _by_module(c, named[:FEW])


def _leaky(row: ModuleRelevance) -> bool:
    return abs(row.own_leak) > NOISE * row.absolute


def methods(c: Conservation) -> list[tuple[str, Rows]]:
    """The method and the usual one beside it, each with the relevance at its module calls."""
    return [(c.method, c.rows), *([(USUAL, c.plain)] if c.plain else [])]


def _by_depth(c: Conservation) -> NumberTable:
    shown = methods(c)
    table = NumberTable(["place"], [name for name, _ in shown])
    columns = [dict(boundaries(c, rows)) for _, rows in shown]
    for place in reversed(columns[0]):
        table.add([place], [column.get(place) for column in columns])
    return table


def boundaries(c: Conservation, rows: Rows) -> Iterator[tuple[str, float]]:
    """The total at the input, where it enters the first block, above every block, and at the output."""
    yield "input", rows[0].relevance_in
    found = blocks(rows)
    several = len({label.partition(" ")[0] for label in found if " " in label}) > 1
    for place, (label, row) in enumerate(found.items()):
        if place == 0 and not several:
            yield f"into block {label}", row.relevance_in
        yield f"out of block {label}", row.relevance_out
    yield "f(x)", c.output


def lines_by_depth(c: Conservation, rows: Rows) -> list[tuple[list[int], list[float]]]:
    """Totals from the input to the output, by the numbers of `places`; streams side by side have a line each."""
    totals = dict(boundaries(c, rows))
    order = {name: number for number, name in enumerate(places(c))}
    streams: dict[str, list[str]] = defaultdict(list)
    for label in blocks(rows):
        streams[label.rpartition(" ")[0]].append(f"out of block {label}")
    lines = [list(totals)] if len(streams) < 2 else [["input"], *streams.values(), ["f(x)"]]
    kept = [[name for name in line if name in order and np.isfinite(totals[name])] for line in lines]
    return [([order[name] for name in line], [totals[name] for name in line]) for line in kept if line]


def places(c: Conservation) -> list[str]:
    """The places of `boundaries`, from the input to the output."""
    return [name for name, _ in boundaries(c, c.rows)]


def blocks(rows: Rows) -> dict[str, ModuleRelevance]:
    """The row of every block, by its name, in order."""
    found: dict[str, ModuleRelevance] = {}
    for row in rows:
        if row.block:
            found.setdefault(row.block, row)
    return found


def _by_kind(c: Conservation) -> NumberTable:
    shown = methods(c)
    table = NumberTable(["kind", "calls"], [name for name, _ in shown], ["operations that leak"], signs=False)
    sums = [leaks_by_kind(rows) for _, rows in shown]
    leaky = {row.kind for _, rows in shown for row in rows if _leaky(row) or row.uncovered}
    for kind in sorted(leaky, key=lambda kind: (-max(s[kind] for s in sums), kind)):
        calls = sum(row.kind == kind for row in c.rows)
        own = (row for _, rows in shown for row in rows if row.kind == kind)
        missing = sorted({operation for row in own for operation in row.uncovered})
        table.add([kind, str(calls)], [s[kind] for s in sums], [", ".join(missing)])
    return table


def leaks_by_kind(rows: Rows) -> dict[str, float]:
    """The sum of |leak| of each kind of module."""
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[row.kind] += abs(row.own_leak)
    return sums


def _by_module(c: Conservation, rows: Iterable[ModuleRelevance]) -> NumberTable:
    table = NumberTable(["module", "kind"], ["given", "handed on", "biases", "leak"], ["no rule for"])
    for row in rows:
        numbers = [row.relevance_out, row.relevance_in, row.bias, row.own_leak]
        table.add([_name(row), row.kind], numbers, [", ".join(row.uncovered)])
    return table


def all_calls(c: Conservation) -> NumberTable:
    """Every call of a module, indented by how many modules are around it."""
    table = _by_module(c, [])
    for row in c.rows:
        name = "\u2003" * row.depth + (_name(row).rpartition(".")[2] or _name(row))
        numbers = [row.relevance_out, row.relevance_in, row.bias, row.own_leak]
        table.add([name, row.kind], numbers, [", ".join(row.uncovered)])
    return table


def _name(row: ModuleRelevance) -> str:
    """The name of a module's call, printable."""
    return printable(row.name or "the whole model") + (f" (call {row.call})" if row.call else "")
