"""Scores over a picture in a figure: the picture, its contour as a line, and a bar of colours below."""

from __future__ import annotations

from typing import Any

import numpy as np

from whence.views.content.picture import Overlay, Scale
from whence.views.figures.layout import wrapped

BAR = 0.1  # inches: the height of a bar of colours
BELOW = 0.55  # inches: the height of all that stands below a picture


def height_of(overlay: Overlay, width: float) -> float:
    """The inches that a picture of this width takes, with what stands below it."""
    height, across = overlay.canvas.picture.shape[:2]
    return width * min(2.5, max(0.15, height / across)) + BELOW + 0.15 * len(overlay.legend)


def draw_overlay(axes: Any, overlay: Overlay, title: str = "", bar: bool = True, words: bool = True) -> None:
    """The picture under its scores, with its contour; below it the bar of colours, and in `words` what that means."""
    axes.imshow(overlay.image)
    draw_contour(axes, overlay)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_anchor("N")
    if title:
        axes.set_title(title, fontsize="small", parse_math=False)
    if bar:
        _draw_scale(axes, overlay, overlay.legend if words or overlay.scale.flat else [])


def draw_contour(axes: Any, overlay: Overlay) -> None:
    """A white line with dark edges around the area that the contour holds."""
    if overlay.inside is None or not overlay.inside.any():
        return
    ringed = np.pad(overlay.inside.astype(float), 1)  # so that the line closes along the picture's edge
    places = [np.arange(-1, count + 1) for count in overlay.inside.shape]
    for colour, width in (("black", 2.4), ("white", 1.2)):
        axes.contour(places[1], places[0], ringed, levels=[0.5], colors=colour, linewidths=width)
    axes.set(xlim=(-0.5, overlay.inside.shape[1] - 0.5), ylim=(overlay.inside.shape[0] - 0.5, -0.5))


def _draw_scale(axes: Any, overlay: Overlay, lines: list[str]) -> None:
    """The bar of colours below a picture, with its ends, and what it means."""
    wide = axes.get_position().width * axes.figure.get_figwidth()
    said = [wrapped(line, int(16 * max(wide, 1.5))) for line in lines]
    if overlay.scale.flat:
        axes.set_xlabel("\n".join(said), fontsize="x-small", parse_math=False)
        return
    tall = overlay.canvas.picture.shape[0] / overlay.canvas.picture.shape[1] * max(wide, 0.5)
    strip = axes.inset_axes((0.0, -(BAR + 0.06) / tall, 1.0, BAR / tall))
    draw_bar(strip, overlay.scale)
    strip.set_xlabel("\n".join(said), fontsize="x-small", parse_math=False)


def draw_bar(axes: Any, scale: Scale) -> None:
    """Colours as they lie over white, the numbers at both ends and, between signs, 0."""
    axes.imshow(np.linspace(0, 1, 256)[None], aspect="auto", extent=(0, 1, 0, 1), cmap=colours_over_white(scale))
    low, high = scale.ends
    ticks = {0.0: low, 0.5: "0", 1.0: high} if scale.signed else {0.0: low, 1.0: high}
    axes.set_xticks(list(ticks), list(ticks.values()), fontsize="x-small", parse_math=False)
    for label, side in zip(axes.get_xticklabels(), ("left", *["center"] * (len(ticks) - 2), "right"), strict=True):
        label.set_horizontalalignment(side)
    axes.set_yticks([])
    axes.tick_params(axis="x", length=2, pad=2)
    axes.spines[:].set_linewidth(0.5)


def colours_over_white(scale: Scale) -> Any:
    """The colours of a scale as a matplotlib colour map, as they lie over white."""
    from matplotlib.colors import ListedColormap

    colours, opacity = scale.stops(256)
    return ListedColormap((colours * opacity + 255 * (1 - opacity)) / 255)
