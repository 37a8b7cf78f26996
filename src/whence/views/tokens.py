"""Tokens and their scores: for the terminal, as HTML, as a figure; and the numbers and colours all views share."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from itertools import groupby
from typing import Any

import numpy as np

from whence.core.inputs import Input, Target
from whence.core.results import Attribution

FOR, AGAINST = (38, 110, 214), (208, 48, 48)  # blue and red: told apart with every common colour blindness
GREY = (90, 90, 90)  # a weak score on a terminal: readable on dark and light, and never louder than a strong one
OPACITY = 0.65  # of the strongest score on a page: its colour shows, and dark or light text stays readable on it
JOINERS = "\u200c\u200d"  # invisible, but part of how Persian words and many emoji are written


@lru_cache(maxsize=4096)
def printable(text: str) -> str:
    """The text with control characters, direction overrides and lone surrogates written as escapes."""
    shown = "".join(c if c.isprintable() or c in JOINERS else c.encode("unicode_escape").decode() for c in text)
    return shown if shown.strip() else repr(shown)


def number(value: float) -> str:
    """A value by itself, with four digits."""
    return f"{value:.4g}" if value else "0"


def signed(value: float, scale: float) -> str:
    """A score among others: the largest of them keeps three digits, and only an exact zero is written 0."""
    if value == 0 or not math.isfinite(value):
        return number(value)
    if not 1e-4 <= scale < 1e5:
        return f"{value:+.2e}"
    return f"{value:+.{max(0, 2 - math.floor(math.log10(scale)))}f}"


def weight(value: float, scale: float) -> str:
    """A weight among others, which have no sign."""
    return signed(value, scale).removeprefix("+")


def largest(scores: np.ndarray) -> float:
    """The largest finite |score|."""
    return float(np.abs(scores, where=np.isfinite(scores), out=np.zeros(scores.shape)).max(initial=0.0))


def strength(value: float, scale: float) -> float:
    """|score| as a share of the scale, between 0 and 1; 0 for what is not finite."""
    return min(abs(value) / scale, 1.0) if scale and math.isfinite(value) else 0.0


def right_to_left(text: str) -> bool:
    """Whether the first letter with a direction runs from right to left."""
    directions = (unicodedata.bidirectional(c) for c in text)
    return next((d != "L" for d in directions if d in ("L", "R", "AL")), False)


def terminal_style(value: float, scale: float, special: bool = False) -> str:
    """A rich style: white on grey to blue or red; none for a score of 0."""
    share = math.ceil(32 * strength(value, scale)) / 32  # in steps, since rich is slow with ever new colours
    dim = "dim " if special else ""
    if share == 0:
        return dim.strip()
    mixed = (round(g + (c - g) * share) for g, c in zip(GREY, FOR if value > 0 else AGAINST, strict=True))
    return f"{dim}white on rgb({','.join(map(str, mixed))})"


def css_colour(value: float, scale: float) -> str:
    """A translucent background, so that the page's own text colour stays readable on it; none for a score of 0."""
    share = strength(value, scale)
    colour = ",".join(map(str, FOR if value > 0 else AGAINST))
    return f' style="background:rgba({colour},{OPACITY * share:.3f})"' if share else ""


def sections(x: Input, indices: Iterable[int]) -> list[tuple[str, list[int]]]:
    """The features by the text they belong to, in reading order; special tokens join their neighbours."""
    labels = [part or ("" if x.special[i] else x.streams[i]) for i, part in enumerate(x.parts)]
    order = range(len(labels))
    for walk in (order[1:], order[-2::-1]):  # from the left, then for leading special tokens from the right
        step = -1 if walk.step > 0 else 1
        for i in walk:
            if not labels[i] and x.streams[i] == x.streams[i + step]:
                labels[i] = labels[i + step]
    named = groupby(indices, key=lambda i: labels[i] or x.streams[i])
    return [(label, list(members)) for label, members in named]


def several_texts(x: Input) -> bool:
    """Whether the texts need their names."""
    return len(sections(x, range(len(x.features)))) > 1


def row_targets(a: Attribution) -> tuple[Target, ...]:
    """The target of every row of scores."""
    return a.target if isinstance(a.target, tuple) else (a.target,) * max(1, len(a.input.generated))


def row_names(a: Attribution) -> list[str]:
    """The generated tokens by name; by their targets' where they are merged into words."""
    names = [a.features[i] for i in a.input.generated]
    if len(set(a.input.generated)) < len(names):
        pairs = zip(row_targets(a), names, strict=True)
        names = [name if target.kind == "function" else target.name for target, name in pairs]
    return [printable(name) for name in names]


@dataclass(frozen=True)
class Cell:
    """A token on the terminal."""

    name: str
    score: str
    style: str
    special: bool


class Strip:
    """Tokens above their scores in reading order, wrapped to the terminal's width."""

    def __init__(self, cells: list[Cell]) -> None:
        self.cells = cells

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.cells import cell_len
        from rich.text import Text

        # Terminals reorder neighbouring right-to-left words, away from their scores: give each a line of its own.
        alone = any(right_to_left(cell.name) for cell in self.cells)
        names, scores, used = Text(), Text(), 0
        for cell in self.cells:
            width = max(cell_len(cell.name), cell_len(cell.score))
            if names and (alone or used + width > options.max_width):
                yield from (scores + Text("  ") + names,) if alone else (names, scores)
                names, scores, used = Text(), Text(), 0
            used += width + 2
            gap = "  " if names else ""
            names.append(gap + " " * (0 if alone else width - cell_len(cell.name)))
            names.append(cell.name, style=cell.style or None)
            scores.append(gap + cell.score.rjust(9 if alone else width), style="dim" if cell.special else None)
        if self.cells:
            yield from (scores + Text("  ") + names,) if alone else (names, scores)


def strips(a: Attribution, scores: np.ndarray, indices: list[int], scale: float) -> Iterator[Any]:
    """What the terminal shows of one row of scores: a strip per text, with its name where there are several."""
    from rich.text import Text

    several = several_texts(a.input)
    for label, members in sections(a.input, indices):
        if several:
            yield Text(printable(label), style="italic")
        yield Strip(
            [
                Cell(
                    name=printable(a.features[i]),
                    score=signed(scores[i], scale),
                    style=terminal_style(scores[i], scale, bool(a.special[i])),
                    special=bool(a.special[i]),
                )
                for i in members
            ]
        )


def tokens_html(a: Attribution, scores: np.ndarray, indices: list[int], scale: float) -> str:
    """One row of scores: the tokens as coloured spans, a paragraph per text."""
    written = []
    for label, members in sections(a.input, indices):
        heading = f"<h4>{escape(printable(label))}</h4>" if several_texts(a.input) else ""
        spans = "\n".join(_span(a, i, scores[i], scale) for i in members)
        # A paragraph's dir=auto does not look into children with a direction of their own, so it is decided here.
        direction = "rtl" if right_to_left("".join(a.features[i] for i in members if not a.special[i])) else "ltr"
        written.append(f'{heading}<p class="tokens" dir="{direction}">{spans}</p>')
    return "".join(written)


def _span(a: Attribution, i: int, score: float, scale: float) -> str:
    special = ' class="special"' if a.special[i] else ""
    name = escape(printable(a.features[i]))
    text = signed(score, scale)
    return (
        f'<span{special} title="{number(score)}"><b dir="auto"{css_colour(score, scale)}>{name}</b>'
        f'<small dir="ltr">{text}</small></span>'
    )


def matrix_html(a: Attribution, indices: list[int], scale: float) -> str:
    """Generated tokens as rows, features as columns; what a row could not see is hatched."""
    parts = sections(a.input, indices)
    groups = "".join(f'<th colspan="{len(members)}">{escape(printable(label))}</th>' for label, members in parts)
    names = "".join(_column_head(a, i) for i in indices)
    facts = {"f(x)": a.output, "base": a.base, "residual": a.residual}
    shown = {name: values for name, values in facts.items() if values is not None}
    heads = "".join(f"<th>{name}</th>" for name in shown) + "<th>largest |score|</th>"
    rows = []
    for row, (name, target) in enumerate(zip(row_names(a), row_targets(a), strict=True)):
        cells = "".join(_matrix_cell(a, row, name, i, scale) for i in indices)
        values = [values[row] for values in shown.values()] + [largest(a.scores[row])]
        numbers = "".join(f"<td>{number(value)}</td>" for value in values)
        head = f'<th dir="auto" class="name" title="{escape(printable(str(target)))}">{escape(name)}</th>'
        rows.append(f'<tr>{head}{cells}<td class="gap"></td>{numbers}</tr>')
    return (
        f'<div class="wide"><table><thead><tr><th></th>{groups}</tr>'
        f'<tr><th></th>{names}<td class="gap"></td>{heads}</tr></thead>\n<tbody>'
        + "\n".join(rows)
        + "</tbody></table></div>"
    )


def _column_head(a: Attribution, i: int) -> str:
    special = " special" if a.special[i] else ""
    return f'<th class="column{special}"><span dir="auto">{escape(printable(a.features[i]))}</span></th>'


def _matrix_cell(a: Attribution, row: int, name: str, i: int, scale: float) -> str:
    if not a.visible[row, i]:
        return '<td class="hidden" title="could not be seen"></td>'
    score = a.scores[row, i]
    title = escape(f"{printable(a.features[i])} → {name}: {number(score)}")
    return f'<td title="{title}"{css_colour(score, scale)}>{signed(score, scale)}</td>'


def draw_bars(axes: Any, a: Attribution, indices: list[int]) -> None:
    """Tokens from top to bottom, a bar for each score."""
    values = a.scores[indices]
    colours = [tuple(c / 255 for c in (FOR if value > 0 else AGAINST)) for value in values]
    names = [printable(a.features[i]) for i in indices]
    axes.barh(range(len(indices)), np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0), color=colours)
    axes.set_yticks(range(len(indices)), names, parse_math=False)
    for label, i in zip(axes.get_yticklabels(), indices, strict=True):
        label.set_alpha(0.5 if a.special[i] else 1.0)
    axes.set_ylim(len(indices) - 0.4, -0.6)
    axes.axvline(0, color="grey", linewidth=0.8)
    axes.set_xlabel("score (red: against, blue: for)")
    axes.spines[["top", "right", "left"]].set_visible(False)


def draw_matrix(axes: Any, a: Attribution, indices: list[int], scale: float) -> None:
    """Generated tokens as rows, features as columns; what a row could not see is grey."""
    from matplotlib.colors import LinearSegmentedColormap

    ends = [tuple(c / 255 for c in colour) for colour in (AGAINST, (255, 255, 255), FOR)]
    colours = LinearSegmentedColormap.from_list("against_for", ends).with_extremes(bad="0.8")
    limit = scale or 1.0
    shown = np.ma.masked_where(~a.visible[:, indices], a.scores[:, indices])
    drawn = axes.imshow(shown, cmap=colours, vmin=-limit, vmax=limit, aspect="auto")
    axes.set_xticks(range(len(indices)), [printable(a.features[i]) for i in indices], rotation=90, parse_math=False)
    residuals = ["none"] * len(a.scores) if a.residual is None else [number(r) for r in a.residual]
    rows = zip(row_names(a), a.output, residuals, strict=True)
    labels = [f"{name}   f(x) {number(output)}, residual {residual}" for name, output, residual in rows]
    axes.set_yticks(range(len(a.scores)), labels, parse_math=False)
    axes.figure.colorbar(drawn, ax=axes, label="score (grey: not seen, or not finite)")
