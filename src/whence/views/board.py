"""Views of a Scoreboard: a table for the terminal, and a page with the table, bars with intervals, and curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from whence.core.scoreboards import Arbitration, Score, Scoreboard
from whence.views.tokens import largest, printable, weight

ARROWS = {"higher": "\u2191", "lower": "\u2193"}
BEST = "\u2605"  # a star
CLOSE = 0.05  # a p above it: not told apart from the best
LISTED = 5  # of all candidates of an arbitration
ABREAST, HEAD = 3, 20  # metrics side by side on a terminal at most, and the letters of their names before they break
FEW = 6  # methods in colour, of each metric
COLOURS = ("#3a7fd5", "#d9730d", "#2f9461", "#c4559b", "#8b6fd8", "#b08900", "#1a97a6", "#d64545")  # on white and dark
GREY = "#8a8a8a"
WIDE, HIGH, LEFT, RIGHT, TOP, BOTTOM = 440, 270, 44, 10, 26, 40  # of the drawing, and its margins

SHOWN, HIDDEN = "share of features shown", "share of features hidden"
CHANCE = "p of the target's class"
AXES = {  # of the curve of a metric: what grows, and what is watched
    "auac": (f"{SHOWN}, highest score first", CHANCE),
    "insertion": (f"{SHOWN}, highest score first", CHANCE),
    "deletion": (f"{HIDDEN}, highest score first", CHANCE),
    "aupc": (f"{HIDDEN}, lowest |score| first", CHANCE),
    "au_mse": (f"{HIDDEN}, lowest |score| first", "squared change of the logits"),
    "positive_perturbation": ("share of pixels blackened, highest score first", "accuracy"),
    "negative_perturbation": ("share of pixels blackened, lowest score first", "accuracy"),
}


@dataclass(frozen=True)
class _Row:
    """One method by one metric."""

    method: str
    score: Score
    best: bool
    p: float | None  # against the best; None for the best itself and where nothing can be told

    @property
    def star(self) -> str:
        if self.best:
            return BEST
        return "*" if self.p is not None and self.p > CLOSE else ""

    @property
    def few(self) -> str:
        """Of how many examples it is the mean, where it is not defined for all."""
        values = self.score.values
        known = 0 if values is None else int(np.isfinite(values).sum())
        return f" ({known})" if values is not None and 0 < known < values.size else ""

    @property
    def ends(self) -> tuple[float, float]:
        return self.score.interval or (self.score.value, self.score.value)


@dataclass(frozen=True)
class _Style:
    """How a method's line is drawn; `lines` is the CSS name of the same."""

    colour: str = GREY
    width: float = 1
    dash: str = ""
    lines: str = "solid"


def table(board: Scoreboard) -> Any:
    """Means with their intervals; the best of a column is bold, and * marks what is not told apart from it."""
    from rich.console import Group
    from rich.text import Text

    facts = f"{board.model}, {_count(board.values.shape[-1], 'example')}, seed {board.seed}".removeprefix(", ")
    said = " ".join([f"{facts}.", _note(board), *board.notes])
    return Group(_Tables(board), Text(printable(said).rstrip()))


@dataclass(frozen=True)
class _Tables:
    """The metrics in tables below each other, each as wide as the terminal allows."""

    board: Scoreboard

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        left = [_column(self.board, metric) for metric in range(len(self.board.metrics))]
        free = options.update_width(10**4)
        while left:
            tables = [_table(self.board, left[:count]) for count in range(1, min(ABREAST, len(left)) + 1)]
            fitting = [t for t in tables if console.measure(t, options=free).maximum <= options.max_width] or tables[:1]
            yield from (fitting[-1], "")
            left = left[len(fitting) :]


def _column(board: Scoreboard, metric: int) -> tuple[str, int, list[Any]]:
    """Head, width and cells of a metric."""
    from rich.text import Text

    cells = [
        Text.assemble((mean, "bold" if row.best else ""), row.star or " ", " ", (interval, "dim"))
        for row, mean, interval in _cells(_rows(board, board.metrics[metric]))
    ]
    head = _head(board, metric)
    return "\n".join(head), max(*map(len, cells), min(HEAD, max(map(len, head)))), cells


def _table(board: Scoreboard, columns: list[tuple[str, int, list[Any]]]) -> Any:
    """Some of the metrics; where even one is too wide, long names break first, then lines before intervals."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    shown.add_column("method", overflow="fold")
    for head, width, _ in columns:
        shown.add_column(Text(head), max_width=width, overflow="fold")
    shown.add_column("s/example", justify="right", no_wrap=True)
    rows = zip(board.methods, board.seconds.mean(-1), *(cells for _, _, cells in columns), strict=True)
    for method, seconds, *own in rows:
        shown.add_row(Text(printable(method)), *own, f"{seconds:.3g}")
    return shown


def html(board: Scoreboard) -> str:
    """The table, and a section for every metric: a row per method, best first, and the curves where it has any."""
    rows = [_rows(board, metric) for metric in board.metrics]
    ranked = [_ranked(own) for own in rows]
    styles = _styles(ranked)
    counts = [(board.methods, "method"), (board.metrics, "metric"), (board.values[0, 0], "example")]
    facts = ", ".join([*(_count(len(things), name) for things, name in counts), f"seed {board.seed}"])
    title = f"Scoreboard of {_text(board.model)}" if board.model else "Scoreboard"
    notes = " ".join(map(_text, board.notes))
    parts = [f"<style>{CSS}</style>", f"<h2>{title}</h2><p>{facts}. {_note(board)} {notes}</p>"]
    parts.append(_table_html(board, rows))
    parts += [_section(board, number, own, styles) for number, own in enumerate(ranked)]
    return f'<div class="board">{"".join(parts)}</div>'


def arbitration(found: Arbitration) -> Any:
    """What was chosen, the explanation of a single input, how it does, and what that is worth."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from whence import views

    heads = f"the best of {len(found.candidates)}", f"{found.metric}\u00a0{ARROWS[found.better]}"
    ranks = Table(*heads, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for name, value in _first(found):
        ranks.add_row(Text(name), value)
    alone = [*views.coloured(found.explanations[0]).renderables, Text()] if len(found.explanations) == 1 else []
    notes = [Text(note) for note in found.notes]
    return Group(Text(_verdict(found)), Text(), *alone, ranks, Text(), *table(found.board).renderables, *notes)


def arbitration_html(found: Arbitration) -> str:
    """The verdict, the explanation of a single input, the best candidates, and the board."""
    from whence.views import _attribution_html

    rows = "".join(f"<tr><th>{_text(name)}</th><td>{value}</td></tr>" for name, value in _first(found))
    notes = "".join(f"<p>{_text(note)}</p>" for note in found.notes)
    alone = _attribution_html(found.explanations[0]) if len(found.explanations) == 1 else ""
    ranks = f'<h3>The best of {len(found.candidates)} by {_text(found.metric)}</h3><table class="means">{rows}</table>'
    verdict = f'<div class="board"><h2>Arbitration</h2><p>{_text(_verdict(found))}</p>{notes}</div>'
    return f'{verdict}\n{alone}\n<div class="board">{ranks}</div>\n{html(found.board)}'


def _first(found: Arbitration) -> list[tuple[str, str]]:
    """The best candidates, and their values."""
    return [(name, "-" if np.isnan(value) else f"{value:.4g}") for name, value in found.ranking()[:LISTED]]


def _verdict(found: Arbitration) -> str:
    if found.by == "set" or found.chosen.size == 1:
        return f"{found.metric} chose {found.candidates[found.chosen.flat[0]]} of {len(found.candidates)} candidates."
    counts = np.bincount(found.chosen.ravel(), minlength=len(found.candidates))
    often = found.candidates[int(counts.argmax())]
    each = "input" if found.by == "instance" else "input and label"
    return (
        f"{found.metric} chose for every {each} among {_count(len(found.candidates), 'candidate')}: "
        f"{int((counts > 0).sum())} of them, most often {often} ({counts.max()} of {counts.sum()}). "
        f"One for all would be {found.spec}."
    )


# ---- what is said ----------------------------------------------------------------------------------------------------


def _rows(board: Scoreboard, metric: str) -> list[_Row]:
    """All methods by one metric."""
    leader, rows = board.best(metric), []
    for method in board.methods:
        score = board.score(method, metric)
        told = method != leader and score.interval is not None
        best = method == leader and bool(np.isfinite(score.value)) and len(board.methods) > 1
        rows.append(_Row(method, score, best, board.p_value(method, metric) if told else None))
    return rows


def _ranked(rows: Sequence[_Row]) -> list[_Row]:
    """The best first, what is not defined last."""
    sign = -1 if rows[0].score.better == "higher" else 1
    return sorted(rows, key=lambda row: sign * row.score.value if np.isfinite(row.score.value) else math.inf)


def _cells(rows: Sequence[_Row]) -> list[tuple[_Row, str, str]]:
    """Means, and intervals without a space, so that lines break before them; all with the same decimals."""
    means = np.array([row.score.value for row in rows])
    scale, cells = largest(means), []
    for row in rows:
        mean = weight(row.score.value, scale) if np.isfinite(row.score.value) else "-"
        ends = row.score.interval
        interval = ("" if ends is None else f"[{weight(ends[0], scale)},{weight(ends[1], scale)}]") + row.few
        cells.append((row, mean, interval))
    widest = max(len(mean) for _, mean, _ in cells)
    return [(row, mean.rjust(widest), interval) for row, mean, interval in cells]


def _head(board: Scoreboard, metric: int) -> list[str]:
    """A metric's name with its direction, its options, and what hides features."""
    name, bracket, options = printable(board.metrics[metric]).partition("(")
    hidden = board.hidden[metric] and f"hidden: {printable(board.hidden[metric])}"
    lines = [f"{name}\u00a0{ARROWS[board.better[metric]]}", bracket + options, hidden]
    return [line for line in lines if line]


def _note(board: Scoreboard) -> str:
    """What the signs mean; one example has neither intervals nor a test."""
    if board.values.shape[-1] == 1:
        return ""
    some = np.isnan(board.values).any(-1) & ~np.isnan(board.values).all(-1)
    counts = " In round brackets: for how many examples it is defined." if some.any() else ""
    several = len(board.methods) > 1
    told = f"; {BEST} the best, * not told apart from it (p > {CLOSE}, paired sign flips)" if several else ""
    return f"Means with 95 % intervals{told}.{counts}"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


def _text(text: str) -> str:
    """Text for a page."""
    return escape(printable(text))


def _name(spec: str) -> str:
    """A spec for a page, with places where a line may break."""
    return _text(spec).replace("_", "_<wbr/>").replace("(", "<wbr/>(")


# ---- the page --------------------------------------------------------------------------------------------------------


def _table_html(board: Scoreboard, rows: Sequence[Sequence[_Row]]) -> str:
    heads = []
    for number in range(len(board.metrics)):
        name, *more = (escape(line) for line in _head(board, number))
        heads.append(f"<th>{name}{''.join(f'<small>{line}</small>' for line in more)}</th>")
    columns, lines = [_cells(own) for own in rows], []
    for number, method in enumerate(board.methods):
        cells = []
        for row, mean, interval in (column[number] for column in columns):
            shown = mean.replace(" ", "\u2007")  # as wide as a digit
            shown = f"<b>{shown}</b>" if row.best else shown
            cells.append(f"<td>{shown}<sup>{row.star}</sup> <small>{interval.replace(',', ', ')}</small></td>")
        seconds = f"<td>{board.seconds[number].mean():.3g}</td>"
        lines.append(f"<tr><th>{_name(method)}</th>{''.join(cells)}{seconds}</tr>")
    head = f"<thead><tr><th>method</th>{''.join(heads)}<th>s/example</th></tr></thead>"
    return f'<div class="wide"><table class="means">{head}\n<tbody>{"".join(lines)}</tbody></table></div>\n'


def _section(board: Scoreboard, metric: int, rows: Sequence[_Row], styles: dict[str, _Style]) -> str:
    """Bars, and curves beside them."""
    few = {row.method for row in _few(rows)} | {row.method for row in rows if _is_random(row.method)}
    own = {row.method: styles[row.method] if row.method in few else _Style() for row in rows}
    heading = f"<h3>{_text(board.metrics[metric])} <small>{_text(_facts(board, metric))}</small></h3>"
    drawn = _bars(rows, own) + _curves(board, metric, rows, own)
    return f'<section>{heading}<div class="pair">{drawn}</div></section>\n'


def _facts(board: Scoreboard, metric: int) -> str:
    """Direction, what hides features, and for how many examples the metric is defined where not for all."""
    facts = [f"{board.better[metric]} is better"]
    if board.hidden[metric]:
        facts.append(f"hidden features: {board.hidden[metric]}")
    counts = (~np.isnan(board.values[:, metric])).sum(-1)
    if counts.min() < board.values.shape[-1]:
        span = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()} to {counts.max()}"
        facts.append(f"defined for {span} of {_count(board.values.shape[-1], 'example')}, by method")
    return "; ".join(facts)


def _few(rows: Sequence[_Row]) -> list[_Row]:
    """The best, which are drawn in colour."""
    return [row for row in rows if np.isfinite(row.score.value) and not _is_random(row.method)][:FEW]


def _is_random(method: str) -> bool:
    return method.partition("(")[0] == "random"


def _styles(ranked: Iterable[Sequence[_Row]]) -> dict[str, _Style]:
    """One style for a method in all sections: a colour, and dashes where there are more methods than colours."""
    ranked = list(ranked)
    styles = {row.method: _Style("currentColor", 1.6, "2 3", "dotted") for row in ranked[0] if _is_random(row.method)}
    for number, method in enumerate(dict.fromkeys(row.method for rows in ranked for row in _few(rows))):
        colour = COLOURS[number % len(COLOURS)]
        dashed = number // len(COLOURS) % 2
        styles[method] = _Style(colour, 2.2, "7 3", "dashed") if dashed else _Style(colour, 2.2)
    return styles


def _bars(rows: Sequence[_Row], styles: dict[str, _Style]) -> str:
    """A bar from zero for every mean; a dot where zero would press the differences together."""
    drawn = [row for row in rows if np.isfinite(row.score.value)]
    if not drawn:
        return "<p>not defined for any method</p>"
    low, high = min(row.ends[0] for row in drawn), max(row.ends[1] for row in drawn)
    zero = min(abs(low), abs(high)) <= high - low or low <= 0 <= high
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    low, high = _widened(low, high, 0.0 if low == 0 else 0.03, 0.0 if high == 0 else 0.03)

    def at(value: float) -> float:
        return 100 * (value - low) / (high - low)

    ticks = _ticks(low, high, 4)
    lines = "".join(f'<i class="line" style="left:{at(tick):.2f}%"></i>' for tick in ticks)
    parts = []
    for row, mean, interval in _cells(rows):
        name = f"<b>{_name(row.method)}</b>" if row.best else f"<span>{_name(row.method)}</span>"
        tip = f"{_text(row.method)}: {mean.strip()} {interval}"
        mark = _mark(row, styles[row.method].colour, at, zero) if row in drawn else ""
        parts.append(
            f'{name}<div class="track" title="{tip}">{lines}{mark}</div><span class="mean">{mean.strip()}</span>'
            f'<span class="p">{_against_best(row)}</span>'
        )
    labels = "".join(f'<i style="left:{at(tick):.2f}%">{_tick(tick)}</i>' for tick in ticks)
    return f'<div class="bars">{"".join(parts)}<span></span><div class="ticks">{labels}</div></div>'


def _mark(row: _Row, colour: str, at: Any, zero: bool) -> str:
    """A bar or a dot, with the whiskers of the interval."""
    value, (start, end) = row.score.value, row.ends
    left, right = sorted((at(value), at(0.0))) if zero else (at(value), at(value))
    kind = f'"bar" style="width:{right - left:.2f}%;' if zero else '"dot" style="'
    mark = f'<i class={kind}left:{left:.2f}%;background:{colour}"></i>'
    whisker = f'<i class="whisker" style="left:{at(start):.2f}%;width:{at(end) - at(start):.2f}%"></i>'
    return mark + (whisker if row.score.interval else "")


def _against_best(row: _Row) -> str:
    if row.p is None:
        return "best" if row.best else ""
    return "p &lt; 0.001" if row.p < 0.001 else f"p = {row.p:.3f}{row.star}"


def _curves(board: Scoreboard, metric: int, rows: Sequence[_Row], styles: dict[str, _Style]) -> str:
    """The mean curves of all methods, the best on top; nothing where a metric has none."""
    name = board.metrics[metric]
    lines = {row.method: board.curve(row.method, name) for row in rows}
    lines = {method: line for method, line in lines.items() if len(line[0])}
    if not lines:
        return ""
    across, up = AXES.get(name.partition("(")[0], ("share of features", "value"))
    if "measure='probability'" in name:
        up = CHANCE
    values = np.concatenate([line[1] for line in lines.values()])
    low, high = _widened(float(values.min()), float(values.max()), 0.04, 0.04)
    end = max(float(shares[-1]) for shares, _ in lines.values()) or 1.0
    right, bottom = WIDE - RIGHT, HIGH - BOTTOM

    def x(share: float) -> float:
        return LEFT + (right - LEFT) * share / end

    def y(value: float) -> float:
        return bottom - (bottom - TOP) * (value - low) / (high - low)

    parts = [f'<text x="4" y="13">{escape(up)}</text>']
    parts.append(f'<text x="{(LEFT + right) / 2}" y="{HIGH - 6}" text-anchor="middle">{escape(across)}</text>')
    for tick in _ticks(low, high, 5):
        parts.append(f'<path d="M{LEFT} {y(tick):.1f}H{right}" stroke="currentColor" stroke-opacity=".15"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{_tick(tick)}</text>')
    for tick in _ticks(0, end, 5):
        parts.append(f'<path d="M{x(tick):.1f} {bottom}v4" stroke="currentColor" stroke-opacity=".6"/>')
        parts.append(f'<text x="{x(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{_tick(tick)}</text>')
    parts.append(f'<path d="M{LEFT} {TOP}V{bottom}H{right}" stroke="currentColor" stroke-opacity=".6" fill="none"/>')
    means = {row.method: f"{mean.strip()} {interval}".strip() for row, mean, interval in _cells(rows)}
    order = sorted(reversed(lines), key=lambda method: styles[method].width)  # grey ones below, the best on top
    for method in order:
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in zip(*lines[method], strict=True))
        parts.append(_line(points, styles[method], f"{printable(method)}: {means[method]}"))
    label = escape(f"{printable(name)}: {up} by {across}")
    drawing = (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{label}" font-family="system-ui, sans-serif" '
        f'font-size="12" fill="currentColor">{"".join(parts)}</svg>'
    )
    return f'<div class="curves">{drawing}{_key([row.method for row in rows if row.method in lines], styles)}</div>'


def _line(points: str, style: _Style, tip: str) -> str:
    dash = style.dash and f' stroke-dasharray="{style.dash}"'
    faint = ' stroke-opacity=".55"' if style.colour == GREY else ""
    return (
        f'<polyline points="{points}" fill="none" stroke="{style.colour}" stroke-width="{style.width}"{dash}{faint} '
        f'stroke-linejoin="round"><title>{escape(tip)}</title></polyline>'
    )


def _key(methods: Sequence[str], styles: dict[str, _Style]) -> str:
    """Which line is whose, the best first."""
    named = [method for method in methods if styles[method].colour != GREY]
    parts = [
        f'<span><i style="border-top:{max(2, round(s.width))}px {s.lines} {s.colour}"></i>{_text(method)}</span>'
        for method, s in ((method, styles[method]) for method in named)
    ]
    others = [method for method in methods if method not in named]
    if others:
        names = _text(", ".join(others))
        shown = names if len(others) <= FEW else _count(len(others), "other")
        parts.append(f'<span title="{names}"><i style="border-top:1px solid {GREY}"></i>{shown}</span>')
    return f'<p class="key">{"".join(parts)}</p>'


def _widened(low: float, high: float, below: float, above: float) -> tuple[float, float]:
    """A range with room at its ends, never empty."""
    span = high - low or abs(high) or 1.0
    return low - below * span, high + (above * span if high > low else span)


def _ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers within a range, about as many as wanted."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * size for size in (1, 2, 2.5, 5, 10) if power * size >= rough * (1 - 1e-9))
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _tick(value: float) -> str:
    return f"{round(value, 12):g}"


CSS = """
.whence .board h2 { margin: .4em 0 0; font-size: 1.5em; overflow-wrap: anywhere }
.whence .board h3 { margin: 1.8em 0 .5em; font-size: 1.15em; overflow-wrap: anywhere }
.whence .board p { margin: .3em 0 }
.whence .board small { font-weight: 400; opacity: .7; font-size: .82em }
.whence .board h3 small { margin-left: .5em }
.whence .bars > :nth-child(4n+1) { overflow-wrap: anywhere }
.whence:has(.board) { max-width: 110em }
.whence .means { border-spacing: 0; margin: .8em 0 }
.whence .means th small { display: block }
.whence .means thead th, .whence .means tbody tr:last-child > * { border-bottom: 1px solid rgba(128,128,128,.7) }
.whence .means th, .whence .means td { text-align: left; padding: .15em 1.6em .15em 0; min-width: 0; border-radius: 0 }
.whence .means thead th { opacity: 1 }
.whence .means :is(th, td):last-child { text-align: right; padding-right: 0 }
.whence .means td small { white-space: nowrap }
.whence .means sup { display: inline-block; width: .5em; text-align: left; line-height: 0 }
.whence .pair { display: flex; flex-wrap: wrap; gap: 1em 2.5em; align-items: flex-start }
.whence .pair > * { flex: 1 1 21em; min-width: 0; max-width: 36em }
.whence .bars { display: grid; grid-template-columns: fit-content(38%) minmax(5em, 1fr) auto auto; column-gap: .6em;
  align-items: center; font-size: .92em; font-variant-numeric: tabular-nums }
.whence .track { position: relative; align-self: stretch; min-height: 1.7em }
.whence .track i { position: absolute }
.whence .track .line { top: 0; bottom: 0; width: 1px; background: currentcolor; opacity: .15 }
.whence .track .bar { top: calc(50% - .5em); height: 1em; border-radius: 2px; opacity: .65 }
.whence .track .dot { top: 50%; width: 9px; height: 9px; margin: -4.5px; border-radius: 50% }
.whence .track .whisker { top: calc(50% - 4px); height: 8px; box-sizing: border-box; border: solid currentcolor;
  border-width: 0 1.5px; opacity: .75;
  background: linear-gradient(currentcolor, currentcolor) center / 100% 1.5px no-repeat }
.whence .ticks { position: relative; height: 1.6em; border-top: 1px solid rgba(128,128,128,.7) }
.whence .ticks i { position: absolute; transform: translateX(-50%); font-style: normal; font-size: .88em; opacity: .8 }
.whence .mean { text-align: right }
.whence .p { font-size: .9em; opacity: .8; white-space: nowrap }
.whence .curves svg { display: block; width: 100%; height: auto }
.whence .curves polyline:hover { stroke-width: 4; stroke-opacity: 1 }
.whence .key { display: flex; flex-wrap: wrap; gap: .1em 1.1em; font-size: .9em }
.whence .key i { display: inline-block; width: 1.7em; margin-right: .4em; vertical-align: middle }
.whence .key span { overflow-wrap: anywhere }
@media (max-width: 520px) { .whence .means { font-size: .84em } .whence .means :is(th, td) { padding-right: .7em } }
"""
