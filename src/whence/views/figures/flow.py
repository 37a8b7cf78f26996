"""Running text in a figure, every piece on the colour of its score, in lines of a given width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from whence.views.colours import OPACITY, Colour, in_figure, of_sign
from whence.views.content.written import Passage, Piece
from whence.views.figures.letters import SIZE, inches
from whence.views.text import strength

LINE = SIZE * 2.0 / 72  # inches from a line to the next
BOX = SIZE * 1.55 / 72  # inches: the height of the colour behind a piece
PAD = 0.025  # inches of colour before and after the letters of a word
UNDERLINED = (
    0.1  # the share of the scale from which scores against the target have a line below, for print without colours
)
LINE_BELOW = "#7a0d0d"  # darker than the strongest red, so that the line shows in print without colours
SPECIAL = "0.45"  # the grey of special tokens and names


@dataclass(frozen=True)
class Placed:
    """A piece, or the part of it that fits in a line: its distance from the left and its width, in inches."""

    feature: int
    text: str
    left: float
    width: float
    before: float = 0.0  # inches of colour before the letters
    after: float = 0.0


Line = list[Placed]


def lines_of(passage: Passage, width: float) -> list[Line]:
    """The pieces in lines of `width` inches, broken at spaces; only a word that is too long is broken inside."""
    lines: list[Line] = [[]]
    used, space = 0.0, inches("a a") - inches("aa")
    for word in _words(passage.pieces):
        parts = [part for piece in word for part in _cut(piece, width - 2 * PAD)]
        across = sum(each for _, _, each in parts) + 2 * PAD
        if lines[-1] and used + across > width + 1e-6:
            lines.append([])
            used = 0.0
        for place, (feature, text, each) in enumerate(parts):
            if lines[-1] and used + each + 2 * PAD > width + 1e-6:
                lines.append([])
                used = 0.0
            before, after = PAD * (place == 0 or not lines[-1]), PAD * (place == len(parts) - 1)
            lines[-1].append(Placed(feature, text, used, before + each + after, before, after))
            used += before + each + after
        used += space if word[-1].space else 0.0
    if passage.right_to_left:
        return [
            [replace(p, left=width - p.left - p.width, before=p.after, after=p.before) for p in line] for line in lines
        ]
    return lines


def _mirrored(placed: Placed, width: float) -> Placed:
    """The place of a piece in a line that runs from right to left."""
    return replace(placed, left=width - placed.left - placed.width, before=placed.after, after=placed.before)


def _words(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Groups of pieces without a space between them."""
    word: list[Piece] = []
    for piece in pieces:
        word.append(piece)
        if piece.space:
            yield word
            word = []
    if word:
        yield word


def _cut(piece: Piece, width: float) -> Iterator[tuple[int, str, float]]:
    """Feature, text and width of a piece, in parts where it is wider than a line."""
    rest = piece.text
    while rest:
        fitting = len(rest)
        while fitting > 1 and inches(rest[:fitting]) > width:
            fitting = max(1, min(fitting - 1, int(fitting * width / inches(rest[:fitting]))))
        yield piece.feature, rest[:fitting], inches(rest[:fitting])
        rest = rest[fitting:]


def draw_lines(
    axes: Any,
    lines: Sequence[Line],
    left: float,
    top: float,
    score: Callable[[int], float],
    scale: float,
    special: Callable[[int], bool],
) -> float:
    """Draw lines of text from `top` (inches, growing downwards) on; returns where the next line would begin."""
    from matplotlib.patches import Rectangle

    for line in lines:
        for placed in line:
            value = score(placed.feature)
            share = strength(value, scale)
            corner = (left + placed.left, top + (LINE - BOX) / 2)
            if share:
                axes.add_patch(
                    Rectangle(corner, placed.width, BOX, color=over_white(of_sign(value), share), linewidth=0)
                )
            if share >= UNDERLINED and value < 0:
                below = corner[1] + BOX - 0.015
                axes.plot(
                    (corner[0], corner[0] + placed.width),
                    (below, below),
                    color=LINE_BELOW,
                    linewidth=0.9,
                    solid_capstyle="butt",
                )
            axes.text(
                left + placed.left + placed.before,
                top + LINE / 2,
                placed.text,
                fontsize=SIZE,
                va="center_baseline",
                ha="left",
                color=SPECIAL if special(placed.feature) else "black",
                parse_math=False,
            )
        top += LINE
    return top


def over_white(colour: Colour, share: float) -> tuple[float, ...]:
    """The colour of a score on white paper."""
    opacity = OPACITY * share
    return tuple(channel * opacity + 1 - opacity for channel in in_figure(colour))
