"""Where relevance leaks: totals from the output down to the input, and leaks by depth, by kind and by module."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from whence import views
from whence.core.relevance_balance import Conservation, ModuleRelevance
from whence.views.tokens import css_colour, largest, number, printable, signed, terminal_style, weight

USUAL = "gradient_x_input"
FEW = 12  # modules that the terminal names
NOISE = 1e-3  # a leak below this share of the module's sum of |relevance| is not named
BEFORE, BETWEEN, AFTER = "before", "between", "after"  # outside of blocks
COLOURS = ("#266ed6", "#d03030", "#e0a020", "#3a9a5b", "#8557b5", "#50b0c0")
LINES = ("#202020", "#e07b00")
BIASES = "#b0b0b0"
OTHERS, CONSTANTS = "other modules", "biases (no leak)"
Rows = Sequence[ModuleRelevance]


def plain(c: Conservation) -> str:
    """Text without colour codes."""
    return views.uncoloured(coloured(c), views.WIDTH)


def coloured(c: Conservation) -> Any:
    """What rich prints: blue is relevance for the target, red against it."""
    from rich.console import Group
    from rich.text import Text

    parts = [views.facts_table(_facts(c)), Text()]
    for title, table in _tables(c):
        parts += [Text(title, style="bold"), _rich(table), Text()]
    return Group(*parts[:-1])


def html(c: Conservation) -> str:
    """A page with the tables, and every module call."""
    body = [views.facts_html(_facts(c))]
    body += [f"<h4>{escape(title)}</h4>{_html(table)}" for title, table in _tables(c)]
    body.append(f"<details><summary>all {len(c.rows)} module calls</summary>{_html(_all_rows(c))}</details>")
    return views.page("\n".join(body))


# ---- what is said ----------------------------------------------------------------------------------------------------


def _facts(c: Conservation) -> list[tuple[str, str]]:
    guessed = ", as the model predicts" if c.target.predicted else ""
    facts = [("method", c.method), ("model", c.model), ("target", f"{c.target}{guessed}"), ("f(x)", number(c.output))]
    facts.append(("relevance", _account(c, c.rows)))
    if c.plain:
        facts.append((USUAL, _account(c, c.plain)))
    if not np.isclose(c.rows[0].relevance_out, c.output, rtol=1e-3, atol=1e-6):
        start = f"the logits have {number(c.rows[0].relevance_out)}: the target itself is not linear in them"
        facts.append(("start", start))
    uncovered = ", ".join(f"{name} ({_times(len(where))})" for name, where in c.uncovered.items())
    facts.append(("no rule for", uncovered or "nothing: every operation is covered"))
    facts += [("note", note) for note in dict.fromkeys(c.notes)]
    return [(label, printable(text)) for label, text in facts]


def _account(c: Conservation, rows: Rows) -> str:
    """Where f(x) went."""
    whole = rows[0]
    share = f" ({abs(whole.leak / c.output):.2%} of f(x))" if c.output else ""
    kept = f"{number(whole.relevance_in)} at the input, {number(whole.bias)} at biases"
    return f"{kept}, {number(whole.leak)} leaked{share}"


def _times(count: int) -> str:
    return "1 module" if count == 1 else f"{count} modules"


class _Table:
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
        return largest(np.array([value for _, values, _ in self.rows for value in values if value is not None]))


def _tables(c: Conservation) -> Iterator[tuple[str, _Table]]:
    yield "relevance by depth, from the output to the input", _by_depth(c)
    yield "leaks by kind of module: the sum of their |leak|", _by_kind(c)
    named = sorted((r for r in c.rows if _leaky(r)), key=lambda row: -abs(row.own_leak))
    if named:
        few = f"the {FEW} largest leaks of {len(named)}" if len(named) > FEW else "the modules that leak"
        yield few, _by_module(c, named[:FEW])


def _leaky(row: ModuleRelevance) -> bool:
    return abs(row.own_leak) > NOISE * row.absolute


def _methods(c: Conservation) -> list[tuple[str, Rows]]:
    return [(c.method, c.rows), *([(USUAL, c.plain)] if c.plain else [])]


def _by_depth(c: Conservation) -> _Table:
    methods = _methods(c)
    table = _Table(["place"], [name for name, _ in methods])
    columns = [dict(_boundaries(c, rows)) for _, rows in methods]
    for place in reversed(columns[0]):
        table.add([place], [column.get(place) for column in columns])
    return table


def _boundaries(c: Conservation, rows: Rows) -> Iterator[tuple[str, float]]:
    """The total at the input, where it enters the first block, above every block, and at the output."""
    yield "input", rows[0].relevance_in
    blocks = _blocks(rows)
    several = len({label.partition(" ")[0] for label in blocks if " " in label}) > 1
    for place, (label, row) in enumerate(blocks.items()):
        if place == 0 and not several:
            yield f"into block {label}", row.relevance_in
        yield f"out of block {label}", row.relevance_out
    yield "f(x)", c.output


def _blocks(rows: Rows) -> dict[str, ModuleRelevance]:
    """The row of every block, by its name, in order."""
    found: dict[str, ModuleRelevance] = {}
    for row in rows:
        if row.block:
            found.setdefault(row.block, row)
    return found


def _by_kind(c: Conservation) -> _Table:
    methods = _methods(c)
    table = _Table(["kind", "calls"], [name for name, _ in methods], ["operations that leak"], signs=False)
    sums = [_kinds(rows) for _, rows in methods]
    leaky = {row.kind for _, rows in methods for row in rows if _leaky(row) or row.uncovered}
    for kind in sorted(leaky, key=lambda kind: -max(s[kind] for s in sums)):
        calls = sum(row.kind == kind for row in c.rows)
        own = (row for _, rows in methods for row in rows if row.kind == kind)
        missing = sorted({operation for row in own for operation in row.uncovered})
        table.add([kind, str(calls)], [s[kind] for s in sums], [", ".join(missing)])
    return table


def _kinds(rows: Rows) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for row in rows:
        sums[row.kind] += abs(row.own_leak)
    return sums


def _by_module(c: Conservation, rows: Iterable[ModuleRelevance]) -> _Table:
    table = _Table(["module", "kind"], ["given", "handed on", "biases", "leak"], ["no rule for"])
    for row in rows:
        numbers = [row.relevance_out, row.relevance_in, row.bias, row.own_leak]
        table.add([_name(row), row.kind], numbers, [", ".join(row.uncovered)])
    return table


def _all_rows(c: Conservation) -> _Table:
    table = _by_module(c, [])
    for row in c.rows:
        name = "\u2003" * row.depth + (_name(row).rpartition(".")[2] or _name(row))
        numbers = [row.relevance_out, row.relevance_in, row.bias, row.own_leak]
        table.add([name, row.kind], numbers, [", ".join(row.uncovered)])
    return table


def _name(row: ModuleRelevance) -> str:
    return (row.name or "the whole model") + (f" (call {row.call})" if row.call else "")


def _rich(table: _Table) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for label in table.names:
        drawn.add_column(label, overflow="fold")
    for label in table.numbers:
        drawn.add_column(Text(printable(label)), justify="right", overflow="fold")
    for label in table.words:
        drawn.add_column(label, overflow="fold")
    for names, numbers, words in table.rows:
        cells = [
            Text("" if v is None else table.written(v), style=terminal_style(v or 0.0, table.scale)) for v in numbers
        ]
        drawn.add_row(*(Text(printable(n)) for n in names), *cells, *(Text(printable(w) if w else "") for w in words))
    return drawn


def _html(table: _Table) -> str:
    heads = "".join(f"<th>{escape(printable(x))}</th>" for x in (*table.names, *table.numbers, *table.words))
    lines = []
    for names, numbers, words in table.rows:
        cells = "".join(f'<th class="name">{escape(name)}</th>' for name in names)
        for v in numbers:
            shown = "" if v is None else table.written(v)
            cells += f'<td title="{number(v or 0.0)}"{css_colour(v or 0.0, table.scale)}>{shown}</td>'
        cells += "".join(f'<th class="name">{escape(word)}</th>' for word in words)
        lines.append(f"<tr>{cells}</tr>")
    body = "\n".join(lines)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>'


# ---- the figure ------------------------------------------------------------------------------------------------------


def figure(c: Conservation) -> Any:
    """Totals at the edges between blocks; below, what each block leaks, by kind, and what its biases take."""
    methods = _methods(c)
    segments = _segments(methods)
    size = (max(6.5, 2.5 + 0.5 * len(segments)), 2.6 + 2.0 * len(methods))
    drawn = views.figure_class()(figsize=size, layout="constrained")
    axes = drawn.subplots(1 + len(methods), 1, sharex=True)
    _draw_totals(axes[0], c, methods, segments)
    kinds = _largest_kinds(methods)
    for place, (name, rows) in enumerate(methods, 1):
        _draw_leaks(axes[place], rows, segments, kinds)
        axes[place].set_title(f"leaks of {name}", fontsize="small", loc="left", parse_math=False)
    limits = [axis.get_ylim() for axis in axes[1:]]
    for axis in axes[1:]:
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    crowded = len(segments) > 16 or any(" " in label for label in segments)
    axes[-1].set_xticks([n + 0.5 for n in range(len(segments))], segments, rotation=90 if crowded else 0)
    axes[-1].set_xlabel("block")
    axes[1].legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    title = f"{c.method} on {c.model}: {c.target}"
    drawn.suptitle(printable(title), fontsize="small", parse_math=False)
    return drawn


def _segments(methods: list[tuple[str, Rows]]) -> list[str]:
    """The blocks and what is outside of them, from the input to the output."""
    labels = [label for _, rows in methods for label, row, bias in _placed(rows) if row.block or _taken(row, bias)]
    order = dict.fromkeys(label for label, *_ in _placed(methods[0][1]) if label in labels)
    return [BEFORE, *(label for label in order if label not in (BEFORE, AFTER)), AFTER]


def _taken(row: ModuleRelevance, bias: float) -> bool:
    return abs(row.own_leak) + abs(bias) > NOISE * row.absolute


def _placed(rows: Rows) -> Iterator[tuple[str, ModuleRelevance, float]]:
    """Every row with its segment and the biases that are in no module inside it."""
    blocks = [place for place, row in enumerate(rows) if row.block] or [len(rows)]
    for place, row in enumerate(rows):
        inside = 0.0
        for other in rows[place + 1 :]:
            if other.depth <= row.depth:
                break
            inside += other.bias if other.depth == row.depth + 1 else 0.0
        outside = BEFORE if place < blocks[0] else AFTER if place > blocks[-1] else BETWEEN
        yield row.block or outside, row, row.bias - inside


def _largest_kinds(methods: list[tuple[str, Rows]]) -> list[str]:
    sums: dict[str, float] = defaultdict(float)
    for _, rows in methods:
        for kind, value in _kinds(rows).items():
            sums[kind] += value
    ranked = sorted(sums, key=lambda kind: -sums[kind])
    leaky = [kind for kind in ranked if sums[kind] > NOISE * sums[ranked[0]]]
    return leaky if len(leaky) <= len(COLOURS) else [*leaky[: len(COLOURS) - 1], OTHERS]


def _draw_totals(axes: Any, c: Conservation, methods: list[tuple[str, Rows]], segments: list[str]) -> None:
    axes.axhline(c.output, color="0.6", linewidth=1, linestyle="--", label="f(x)")
    for (name, rows), colour, marker in zip(methods, LINES, "os", strict=False):
        for places, totals in _lines(c, rows, segments):
            axes.plot(places, totals, color=colour, marker=marker, markersize=4, label=name)
            name = "_nolegend_"
    axes.axhline(0, color="0.8", linewidth=0.8)
    axes.set_ylabel("total relevance")
    axes.set_title("relevance at the edges of blocks, input left, output right", fontsize="small", loc="left")
    axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def _lines(c: Conservation, rows: Rows, segments: list[str]) -> Iterator[tuple[list[int], list[float]]]:
    """Totals at the edges of segments; streams that run beside each other have a line each."""
    totals = dict(_boundaries(c, rows))
    places = {"input": 0, "f(x)": len(segments)}
    streams: dict[str, list[str]] = defaultdict(list)
    for label in _blocks(rows):
        for name, edge in ((f"into block {label}", 0), (f"out of block {label}", 1)):
            if name in totals:
                places[name] = segments.index(label) + edge
                streams[label.rpartition(" ")[0]].append(name)
    lines = [["input", *next(iter(streams.values()), []), "f(x)"]]
    if len(streams) > 1:
        lines = [["input"], *streams.values(), ["f(x)"]]
    for names in lines:
        yield [places[name] for name in names], [totals[name] for name in names]


def _draw_leaks(axes: Any, rows: Rows, segments: list[str], kinds: list[str]) -> None:
    """Stacked bars, those above 0 and those below it."""
    shares = {kind: np.zeros(len(segments)) for kind in (*kinds, OTHERS, CONSTANTS)}
    for segment, row, bias in _placed(rows):
        place = segments.index(segment if segment in segments else BEFORE)
        shares[row.kind if row.kind in kinds else OTHERS][place] += row.own_leak
        shares[CONSTANTS][place] += bias
    top, bottom = np.zeros(len(segments)), np.zeros(len(segments))
    middle = np.arange(len(segments)) + 0.5
    for kind, colour in zip((*kinds, CONSTANTS), (*COLOURS[: len(kinds)], BIASES), strict=True):
        values = shares[kind]
        start = np.where(values >= 0, top, bottom)
        axes.bar(middle, values, 0.7, bottom=start, color=colour, label=kind)
        top, bottom = top + values.clip(min=0), bottom + values.clip(max=0)
    axes.axhline(0, color="0.4", linewidth=0.8)
    axes.set_ylim(bottom.min() - 0.05 * np.ptp([bottom, top]), top.max() + 0.05 * np.ptp([bottom, top]))
    axes.set_ylabel("relevance")
