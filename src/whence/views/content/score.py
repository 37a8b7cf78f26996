"""What every medium says about a Score."""

from __future__ import annotations

import numpy as np

from whence.core.scoreboards import Score
from whence.views.content.attribution import Facts
from whence.views.content.scoreboard import score_reading
from whence.views.text import printable


def line(score: Score) -> str:
    """The whole score on one line."""
    interval = "" if score.interval is None else f" [{score.interval[0]:.4g}, {score.interval[1]:.4g}]"
    examples = "" if score.values is None else f", {_defined(score.values)} example{'s' * (score.values.size != 1)}"
    hidden = score.hidden and f", hidden by {score.hidden}"
    return printable(f"{score.metric} = {score.value:.4g}{interval} ({score.better} is better{examples}{hidden})")


def reading(score: Score) -> str:
    """A sentence on the score, and on what a score alone does not tell."""
    said = score_reading(score, printable(score.metric))
    return said if np.isnan(score.value) else f"{said} By itself it says little: set random scores beside it."


def facts(score: Score) -> Facts:
    """The score, a fact per line, printable."""
    found = [("metric", score.metric), ("mean", f"{score.value:.4g} ({score.better} is better)")]
    if score.interval is not None:
        found.append(("interval", f"{score.interval[0]:.4g} to {score.interval[1]:.4g} (95 %)"))
    if score.values is not None:
        found.append(("examples", _defined(score.values)))
    if score.hidden:
        found.append(("hidden by", score.hidden))
    return [(label, printable(text)) for label, text in found]


def _defined(values: np.ndarray) -> str:
    """The number of examples, and for how many of them the metric is defined where not for all."""
    known = int((~np.isnan(values)).sum())
    return f"{known} of {values.size}" if known < values.size else str(known)
