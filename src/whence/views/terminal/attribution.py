"""An Attribution in the terminal: its facts, then tokens above their scores and patches in shades."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from whence.core import display
from whence.core.results import Attribution
from whence.views.colours import terminal_style
from whence.views.content.attribution import (
    apart,
    colour_scale,
    facts,
    off_picture,
    over_picture,
    pictures,
    row_facts,
    row_names,
    row_targets,
    sections,
    several_texts,
    shown,
)
from whence.views.content.picture import scale_of_patches
from whence.views.terminal.intervention import beside
from whence.views.terminal.layout import Token, Tokens, facts_table, grid_lines
from whence.views.terminal.pictures import Colourful, bar_of, pictures_abreast
from whence.views.text import printable, writing


@display.terminal.register(Attribution)
def terminal(a: Attribution) -> Any:
    """What rich prints: blue is for the target, red against it; without signs, blue is strong."""
    from rich.console import Group

    return Group(*_parts(shown(a)))


def _parts(a: Attribution) -> Iterator[Any]:
    from rich.text import Text

    yield facts_table(facts(a))
    yield from beside(a)
    scale, others, grids = colour_scale(a), off_picture(a), pictures(a)
    rows = a.scores.reshape(-1, len(a.features))
    visible = a.visible.reshape(rows.shape)
    names, targets = row_names(a), row_targets(a)
    for row, scores in enumerate(rows):
        yield Text()
        if a.scores.ndim == 2:
            yield Text(f"{row + 1}. {names[row]} ({printable(str(targets[row]))})", style="bold")
            own = (text if label == "scale" else f"{label} {text}" for label, text in row_facts(a, row))
            yield Text(" · ".join(own), style="dim")
        if grids:
            yield Colourful(partial(_picture, a, row), partial(_shades, a, grids[row][1]))
            yield Text()
        yield from _texts(a, scores, [i for i in others if visible[row, i]], scale)


def _picture(a: Attribution, row: int, width: int) -> Iterator[Any]:
    """The photo beside the same photo under the scores, the bar of colours, and the strongest patches."""
    overlay = over_picture(a)[row]
    yield from pictures_abreast([(overlay.canvas.name, overlay.canvas.picture), ("scores", overlay.image)], width)
    yield from () if overlay.scale.flat else (bar_of(overlay, width),)
    *_, strongest = _shades(a, pictures(a)[row][1])
    yield strongest


def _shades(a: Attribution, grid: np.ndarray) -> Iterator[Any]:
    """One row of scores on the patch grid, in shades."""
    yield from grid_lines(a.input, grid, scale_of_patches(a.input, a.scores, a.signed))


def _texts(a: Attribution, scores: np.ndarray, indices: list[int], scale: float) -> Iterator[Any]:
    """One row of scores: the tokens of every text, with the text's name where there are several."""
    from rich.text import Text

    several = several_texts(a.input)
    for label, members in sections(a.input, indices):
        if several:
            yield Text(printable(label), style="italic")
        yield Tokens([_token(a, i, scores[i], scale) for i in members])


def _token(a: Attribution, i: int, score: float, scale: float) -> Token:
    special = bool(a.special[i])
    written = writing(a.signed)(score, scale)
    if apart(a, i):
        return Token(f"[{printable(a.features[i])}]", f"{written} sink", "dim", special=True)
    style = terminal_style(score, scale, special)
    style = f"{style} strike".strip() if i in a.input.ignored else style
    return Token(printable(a.features[i]), written, style, special)
