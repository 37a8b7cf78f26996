"""Rows of running text on the colours of their scores: one per method, or one per generated token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.core.inputs import Input
from whence.views.content.attribution import several_texts
from whence.views.content.written import passages
from whence.views.figures.flow import LINE, SPECIAL, Line, draw_lines, lines_of
from whence.views.figures.layout import INCH, new_figure, wrapped_to
from whence.views.figures.letters import inches

HEAD, NAME = 7.5, 8.0  # points of the lines above, and of the names of rows
BESIDE = 4.0  # inches of width from which names stand beside their rows, not above them
GAP = 0.08  # inches between rows
MARGIN = 0.04


@dataclass(frozen=True, eq=False)
class Row:
    """The scores of one row of text, with its name."""

    name: str
    scores: np.ndarray  # (feature,)
    indices: Sequence[int]  # the features that are shown
    scale: float
    sinks: Sequence[int] = ()  # features that are written in grey


Block = tuple[list[str], list[tuple[str, list[Line]]], Row]  # lines of a name; the texts by name; the row


def text_figure(x: Input, rows: Sequence[Row], head: Sequence[str], foot: Sequence[str], width: float) -> Any:
    """All rows below each other, under the lines of `head`, on a figure of `width` millimetres."""
    across = width / INCH - 2 * MARGIN
    above = [line for said in head for line in wrapped_to(said, across, HEAD)]
    below = [line for said in foot for line in wrapped_to(said, across, HEAD)]
    names = max((inches(row.name, NAME) for row in rows), default=0.0)
    left = min(names + 0.15, 0.3 * across) if names and across >= BESIDE else 0.0
    blocks = [_block(x, row, across - left, left or across, labelled=row is rows[0]) for row in rows]
    heights = [_height(block, bool(left)) for block in blocks]
    line = HEAD * 1.35 / 72
    total = line * (len(above) + len(below)) + sum(heights) + GAP * len(blocks) + 2 * MARGIN
    drawn, axes = paper(width / INCH, total)
    top = _draw_small(axes, above, MARGIN, line)
    for block, height in zip(blocks, heights, strict=True):
        _draw_block(axes, x, block, left, top + GAP / 2)
        top += height + GAP
    _draw_small(axes, below, top, line)
    return drawn


def paper(width: float, height: float) -> tuple[Any, Any]:
    """A figure, and axes over all of it whose units are inches from the upper left corner."""
    drawn = new_figure(width, height, layout="none")
    axes = drawn.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    return drawn, axes


def _block(x: Input, row: Row, across: float, for_name: float, labelled: bool) -> Block:
    """A row cut into lines; the first one names its texts."""
    name = wrapped_to(row.name, for_name - 0.1, NAME) if row.name else []
    several = labelled and several_texts(x)
    texts = [(p.name if several else "", lines_of(p, across)) for p in passages(x, row.indices)]
    return name, texts, row


def _height(block: Block, beside: bool) -> float:
    name, texts, _ = block
    body = sum((bool(label) * 0.8 + len(lines)) * LINE for label, lines in texts)
    names = len(name) * NAME * 1.35 / 72
    return max(body, names) if beside else body + names


def _draw_block(axes: Any, x: Input, block: Block, left: float, top: float) -> None:
    """The name of a row, beside it or above it, and its texts."""
    name, texts, row = block
    step = NAME * 1.35 / 72
    for place, line in enumerate(name):
        middle = top + (place + 0.5) * step + ((LINE - step) / 2 if left else 0)
        axes.text(MARGIN, middle, line, fontsize=NAME, va="center_baseline", parse_math=False)
    if not left:
        top += len(name) * step
    for label, lines in texts:
        if label:
            spot = (left + MARGIN, top + 0.45 * LINE)
            axes.text(
                *spot, label, fontsize=HEAD, style="italic", color=SPECIAL, va="center_baseline", parse_math=False
            )
            top += 0.8 * LINE
        top = draw_lines(
            axes,
            lines,
            left + MARGIN,
            top,
            row.scores.__getitem__,
            row.scale,
            lambda i: bool(x.special[i]) or i in row.sinks,
        )


def _draw_small(axes: Any, lines: Sequence[str], top: float, step: float) -> float:
    for line in lines:
        axes.text(MARGIN, top + step / 2, line, fontsize=HEAD, color="0.25", va="center_baseline", parse_math=False)
        top += step
    return top
