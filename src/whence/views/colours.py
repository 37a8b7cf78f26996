"""The colours of all media: of scores for and against, of weights, of methods side by side."""

from __future__ import annotations

import math
from typing import Any

from whence.views.text import strength

Colour = tuple[int, int, int]

FOR, AGAINST = (38, 110, 214), (208, 48, 48)  # blue and red: told apart with every common colour blindness
GREY = (90, 90, 90)  # a weak score on a terminal: readable on dark and light, and never louder than a strong one
OPACITY = 0.65  # of the strongest score on a page: its colour shows, and dark or light text stays readable on it
WEIGHTS = ((255, 255, 255), FOR, (10, 30, 90))  # of an attention map, from 0 to the largest weight
WEIGHTS_OVER_PICTURE = ((150, 150, 150), FOR)

# Methods of a scoreboard, on white and on dark.
METHODS = ("#3a7fd5", "#d9730d", "#2f9461", "#c4559b", "#8b6fd8", "#b08900", "#1a97a6", "#d64545")
OTHER_METHODS = "#8a8a8a"


def of_sign(value: float) -> Colour:
    """Red for a score against the target, blue for others."""
    return AGAINST if value < 0 else FOR


def terminal_style(value: float, scale: float, special: bool = False) -> str:
    """A rich style: white on grey to blue or red; none for a score of 0."""
    share = math.ceil(32 * strength(value, scale)) / 32  # in steps, since rich is slow with ever new colours
    dim = "dim " if special else ""
    if share == 0:
        return dim.strip()
    mixed = (round(g + (c - g) * share) for g, c in zip(GREY, of_sign(value), strict=True))
    return f"{dim}white on rgb({','.join(map(str, mixed))})"


def terminal_colour(value: float) -> str:
    """A rich colour for a shade of a score."""
    return f"rgb({','.join(map(str, of_sign(value)))})"


def css(colour: Colour, opacity: float = OPACITY) -> str:
    """A translucent colour of a page, on which the page's own text colour stays readable."""
    return f"rgba({','.join(map(str, colour))},{opacity:.3f})"


def css_of_score(value: float, scale: float) -> str:
    """The background of a score on a page; empty for a score of 0."""
    share = strength(value, scale)
    return css(of_sign(value), OPACITY * share) if share else ""


def in_figure(colour: Colour) -> tuple[float, ...]:
    """The colour as matplotlib takes it."""
    return tuple(channel / 255 for channel in colour)


def colour_map(*colours: Colour, bad: str) -> Any:
    """A matplotlib colour map from the first colour to the last; `bad` is the colour of what is not a number."""
    from matplotlib.colors import LinearSegmentedColormap

    ends = [in_figure(colour) for colour in colours]
    return LinearSegmentedColormap.from_list("whence", ends).with_extremes(bad=bad)
