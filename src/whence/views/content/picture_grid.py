"""What every medium says about a PictureGrid: what is predicted for each picture, and what its cells mean."""

from __future__ import annotations

import numpy as np

from whence.core.geometry import patches
from whence.core.inputs import Target
from whence.core.looks import Look
from whence.core.picture_grids import PictureGrid
from whence.core.results import Comparison
from whence.core.wording import counted
from whence.views.content.attribution import SIZES, shown
from whence.views.content.picture import UNSEEN, canvas
from whence.views.text import number, printable


def explained(c: Comparison) -> str:
    """What is explained of one picture: the class that is predicted, or the target that was asked for."""
    target = c[0].target
    assert isinstance(target, Target)
    return printable(f"predicted: {target.name}" if target.predicted and target.name else str(target))


def output(c: Comparison) -> str:
    """f(x), with the kind of target where `explained` does not name it."""
    target = c[0].target
    kind = f"{target.kind.replace('_', '-')} " if isinstance(target, Target) and target.predicted else "f(x) "
    return printable(f"{kind}{number(float(c[0].output))}")


def reading(grid: PictureGrid) -> str:
    """A sentence on how many pictures the methods agree where the strongest patch is."""
    seen = "Colour lies the denser over a photo the stronger a patch's score is"
    if len(grid.methods) == 1:
        return f"{seen}."
    agreed = sum(_agree(c) for c in grid)
    where = f"on {agreed or 'none'} of {counted(len(grid), 'picture')}" if len(grid) > 1 else "here" if agreed else ""
    told = f"all {len(grid.methods)} methods give the highest score to the same patch {where}"
    alone = f"the {len(grid.methods)} methods give the highest score to different patches"
    return f"{seen}; {told if where else alone}. Sizes cannot be compared between cells, places can."


def _agree(c: Comparison) -> bool:
    """Whether all methods share a patch with their highest score; a method with equal scores everywhere shares none."""
    shared: set[int] | None = None
    for a in map(shown, c):
        scores = np.where(np.isfinite(a.scores), a.scores, -np.inf)[patches(a.input)]
        told = np.isfinite(scores).any() and (scores != scores[0]).any()
        own = set(np.flatnonzero(scores == scores.max()).tolist()) if told else set()
        shared = own if shared is None else shared & own
    return bool(shared)


def said(grid: PictureGrid, look: Look | None = None) -> list[str]:
    """What the colours mean, and the notes of methods, each once."""
    lines = ["Every cell has its own scale; one that does not begin at 0 begins at its smallest score."]
    if look is not None and look.clip < 100:
        lines.append(f"Full colour from percentile {look.clip:g} of |scores|.")
    if look is not None and look.contour is not None:
        lines.append(f"Line: the smallest area with {look.contour:.0%} of the positive scores above the scale's start.")
    lines += [f"{UNSEEN.capitalize()}."] if any(canvas(c[0].input).cropped for c in grid) else []
    guessed = [note for c in grid for note in c[0].notes if note.startswith("no target was given")]
    for place, method in enumerate(grid.methods):
        notes = dict.fromkeys(note for c in grid for note in (*c[place].notes, *c[place].input.notes))
        lines += [f"{method}: {note}." for note in notes if note not in guessed and note != SIZES]
    broken = [name for name, c in zip(grid.names, grid, strict=True) if not all(np.isfinite(a.scores).all() for a in c)]
    lines += [f"Not all scores are finite (grey): {', '.join(broken)}."] if broken else []
    return [printable(line) for line in lines]
