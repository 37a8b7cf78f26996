"""What every medium says about a PictureGrid: what is predicted for each picture, and what its cells mean."""

from __future__ import annotations

import numpy as np

from whence.core.inputs import Target
from whence.core.looks import Look
from whence.core.picture_grids import PictureGrid
from whence.core.results import Comparison
from whence.views.content.attribution import SIZES
from whence.views.text import number, printable


def explained(c: Comparison) -> str:
    """What is explained of one picture: the class that is predicted, or the target that was asked for."""
    target = c[0].target
    assert isinstance(target, Target)
    return printable(f"predicted: {target.name}" if target.predicted and target.name else str(target))


def output(c: Comparison) -> str:
    """f(x), with the kind of target where the words before do not tell it."""
    target = c[0].target
    kind = f"{target.kind.replace('_', '-')} " if isinstance(target, Target) and target.predicted else "f(x) "
    return printable(f"{kind}{number(float(c[0].output))}")


def said(grid: PictureGrid, look: Look | None = None) -> list[str]:
    """What the colours mean, and the notes of methods, each once."""
    lines = ["Every cell has its own scale; one that does not begin at 0 begins at its smallest score."]
    if look is not None and look.clip < 100:
        lines.append(f"Full colour from percentile {look.clip:g} of |scores|.")
    if look is not None and look.contour is not None:
        lines.append(f"Line: the smallest area with {look.contour:.0%} of the positive scores above the scale's start.")
    guessed = [note for c in grid for note in c[0].notes if note.startswith("no target was given")]
    for place, method in enumerate(grid.methods):
        notes = dict.fromkeys(note for c in grid for note in (*c[place].notes, *c[place].input.notes))
        lines += [f"{method}: {note}." for note in notes if note not in guessed and note != SIZES]
    broken = [name for name, c in zip(grid.names, grid, strict=True) if not all(np.isfinite(a.scores).all() for a in c)]
    lines += [f"Not all scores are finite (grey): {', '.join(broken)}."] if broken else []
    return [printable(line) for line in lines]
