"""What terminal views share: a table of facts, tokens above their scores, patches in shades."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whence.core.geometry import patches
from whence.core.inputs import Input
from whence.views.colours import terminal_colour
from whence.views.text import number, printable, right_to_left, strength, writing

SHADES = {1: "░▒▓█", -1: "-=%#"}  # for and against, from weak to strong
LIMITS = (0.1, 0.3, 0.5, 0.75)  # shares of the scale where a shade begins; what is weaker is a dot, 0 is blank


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


def grid_lines(x: Input, grid: np.ndarray, scale: float, has_sign: bool, what: str = "score") -> Iterator[Any]:
    """One row of scores on the patch grid: the grid in shades, their meaning, the strongest patches.

    `what` names scores without a sign.
    """
    from rich.text import Text

    across = 2 if grid.shape[1] <= 48 else 1
    for row in grid:
        line = Text("  ")
        for value in row:
            line.append(shade(value, scale) * across, style="" if value == 0 else terminal_colour(value))
        yield line
    if not scale:
        yield Text("  no finite score on the picture but 0", style="dim")
        return
    limits = [number(scale * share) for share in LIMITS]
    for word, sign in (("for", 1), ("against", -1)) if has_sign else ((what, 1),):
        meaning = "  ".join(f"{shade} {limit}" for shade, limit in zip(SHADES[sign], limits, strict=True))
        yield Text(f"  {word:<9} {'|score| ' * has_sign}from  {meaning}", style="dim")
    yield Text("  ·         weaker; a blank is exactly 0", style="dim")
    strongest = sorted(zip(patches(x), grid.ravel(), strict=True), key=lambda patch: -strength(patch[1], scale))[:4]
    names = (f"{printable(x.features[i])} {writing(has_sign)(value, scale)}" for i, value in strongest if value)
    yield Text("  strongest " + ", ".join(names))


def shade(value: float, scale: float) -> str:
    """A character for a score, the darker the stronger."""
    if not np.isfinite(value):
        return "?"
    level = sum(strength(value, scale) >= limit for limit in LIMITS)
    return SHADES[1 if value > 0 else -1][level - 1] if level else "·" if value else " "
