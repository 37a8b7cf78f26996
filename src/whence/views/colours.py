"""The colours of all media: of scores for and against, of weights, of methods side by side."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from whence.views.text import strength

Colour = tuple[int, int, int]

FOR, AGAINST = (38, 110, 214), (208, 48, 48)  # blue and red: told apart with every common colour blindness
GREY = (90, 90, 90)  # a weak score on a terminal: readable on dark and light, never more striking than a strong one
OPACITY = 0.65  # of the strongest score on a page: its colour shows, and dark or light text stays readable on it
WEIGHTS = ((255, 255, 255), FOR, (10, 30, 90))  # colours of an attention map, from 0 to the largest weight
# Colours of scores without a sign over a picture, from weak to strong: lightness rises evenly from purple to yellow, so
# that their order shows with every colour blindness and in print without colours.
HEAT = (
    *((70, 33, 172), (117, 40, 174), (162, 47, 165), (204, 56, 141), (239, 75, 103)),
    *((255, 113, 62), (253, 155, 54), (255, 189, 37), (247, 225, 25)),
)

# Methods of a scoreboard, on white and on dark.
METHODS = ("#3a7fd5", "#d9730d", "#2f9461", "#c4559b", "#8b6fd8", "#b08900", "#1a97a6", "#d64545")
OTHER_METHODS = "#8a8a8a"


def of_sign(value: float) -> Colour:
    """Red for a score against the target, blue for others."""
    return AGAINST if value < 0 else FOR


def heat(shares: np.ndarray) -> np.ndarray:
    """The colours (..., 3) of scores without a sign over a picture, by their shares of the scale, 0 to 1."""
    stops = np.linspace(0, 1, len(HEAT))
    return np.stack([np.interp(shares, stops, channel) for channel in np.array(HEAT).T], axis=-1)


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
