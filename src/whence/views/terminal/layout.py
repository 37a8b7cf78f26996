"""What terminal views share: a table of facts, tokens above their scores, patches in shades."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.core.geometry import patches
from whence.core.inputs import Input
from whence.views.colours import terminal_colour
from whence.views.content.picture import Scale
from whence.views.text import number, printable, right_to_left, writing

SHADES = {1: "░▒▓█", -1: "-=%#"}  # for and against, from weak to strong
LIMITS = (0.1, 0.3, 0.5, 0.75)  # shares of the scale where a shade begins; a weaker score is a dot, 0 is blank


def facts_table(facts: Sequence[tuple[str, str]]) -> Any:
    """Facts, one per line."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), pad_edge=False)
    for label, text in facts:
        table.add_row(Text(label, style="dim"), Text(text))
    return table


@dataclass(frozen=True)
class Token:
    """A token with its score, as it is written."""

    name: str
    score: str
    style: str
    special: bool = False


class Tokens:
    """Tokens above their scores in reading order, wrapped to the terminal's width."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.cells import cell_len
        from rich.text import Text

        # Terminals reorder neighbouring right-to-left words, away from their scores: give each a line of its own.
        alone = any(right_to_left(token.name) for token in self.tokens)
        names, scores, used = Text(), Text(), 0
        for token in self.tokens:
            width = max(cell_len(token.name), cell_len(token.score))
            if names and (alone or used + width > options.max_width):
                yield from (scores + Text("  ") + names,) if alone else (names, scores)
                names, scores, used = Text(), Text(), 0
            used += width + 2
            gap = "  " if names else ""
            names.append(gap + " " * (0 if alone else width - cell_len(token.name)))
            names.append(token.name, style=token.style or None)
            scores.append(gap + token.score.rjust(9 if alone else width), style="dim" if token.special else None)
        if self.tokens:
            yield from (scores + Text("  ") + names,) if alone else (names, scores)


def grid_lines(x: Input, grid: np.ndarray, scale: Scale, what: str = "score") -> Iterator[Any]:
    """One row of scores on the patch grid: the grid in shades, their meaning, the strongest patches.

    `what` names scores without a sign.
    """
    from rich.text import Text

    across = 2 if grid.shape[1] <= 48 else 1
    shares = scale.shares(grid)
    for row, its_shares in zip(grid, shares, strict=True):
        line = Text("  ")
        for value, share in zip(row, its_shares, strict=True):
            line.append(shade(value, share) * across, style="" if value == 0 else terminal_colour(value))
        yield line
    if scale.flat:
        all_of = f"every finite score on the picture is {number(scale.high)}"
        yield Text(f"  {all_of if scale.high else 'no finite score on the picture but 0'}", style="dim")
        return
    start = max(0.0, scale.low)
    limits = [number(start + (scale.high - start) * share) for share in LIMITS]
    for word, sign in (("for", 1), ("against", -1)) if scale.signed else ((what, 1),):
        meaning = "  ".join(f"{shade} {limit}" for shade, limit in zip(SHADES[sign], limits, strict=True))
        yield Text(f"  {word:<9} {'|score| ' * scale.signed}from  {meaning}", style="dim")
    weaker = f"weaker; the smallest is {number(start)}" if start else "weaker; a blank is exactly 0"
    yield Text(f"  ·         {weaker}", style="dim")
    strongest = sorted(zip(-shares.ravel(), patches(x), grid.ravel(), strict=True), key=lambda patch: patch[0])[:4]
    write = writing(scale.signed)
    names = (f"{printable(x.features[i])} {write(value, scale.high)}" for _, i, value in strongest if value)
    yield Text("  strongest " + ", ".join(names))


def shade(value: float, share: float) -> str:
    """A character for a score, the darker the larger its share of the scale is."""
    if not np.isfinite(value):
        return "?"
    level = sum(share >= limit for limit in LIMITS)
    return SHADES[1 if value > 0 else -1][level - 1] if level else "·" if value else " "
