"""Patches and their scores: the heat map over the picture, for the terminal, as HTML, as a figure."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from html import escape
from typing import Any

import numpy as np

from whence.core.geometry import grid_scores, patches, upsample
from whence.core.inputs import Input
from whence.core.results import Attribution
from whence.views.tokens import AGAINST, FOR, largest, number, printable, signed, strength, weight

SHADES = {1: "░▒▓█", -1: "-=%#"}  # for and against, from weak to strong
LIMITS = (0.1, 0.3, 0.5, 0.75)  # shares of the scale where a shade begins; what is weaker is a dot, 0 is blank


def picture(x: Input) -> np.ndarray:
    """The picture the model saw, or an empty one where it is not kept."""
    if x.image is not None:
        return x.image
    rows, columns = x.grid or (1, 1)
    return np.full((rows * 32, columns * 32, 3), 255, dtype=np.uint8)


def overlay(image: np.ndarray, grid: np.ndarray, scale: float) -> np.ndarray:
    """The picture in pale grey under blue (for) and red (against)."""
    heat = upsample(grid, *image.shape[:2])[..., None]
    grey = 90 + 0.6 * image.mean(axis=-1, keepdims=True)
    share = 0.85 * np.clip(np.abs(np.nan_to_num(heat, nan=0.0, posinf=0.0, neginf=0.0)) / (scale or 1.0), 0, 1)
    return np.round(grey * (1 - share) + np.where(heat > 0, FOR, AGAINST) * share).astype(np.uint8)


def grid_lines(x: Input, grid: np.ndarray, scale: float, against: bool = True) -> Iterator[Any]:
    """What the terminal shows of one row of scores: the grid in shades, their meaning, the strongest patches.

    Without `against` scores are weights, which have no sign.
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
    for word, sign in (("for", 1), ("against", -1)) if against else (("weight", 1),):
        meaning = "  ".join(f"{shade} {limit}" for shade, limit in zip(SHADES[sign], limits, strict=True))
        yield Text(f"  {word:<9} {'|score| ' * against}from  {meaning}", style="dim")
    yield Text("  ·         weaker; a blank is exactly 0", style="dim")
    indices = patches(x)
    strongest = sorted(zip(indices, grid.ravel(), strict=True), key=lambda patch: -strength(patch[1], scale))[:4]
    write = signed if against else weight
    names = (f"{printable(x.features[i])} {write(value, scale)}" for i, value in strongest if value)
    yield Text("  strongest " + ", ".join(names))


def shade(value: float, scale: float) -> str:
    """A character for a score, the darker the stronger."""
    if not np.isfinite(value):
        return "?"
    level = sum(strength(value, scale) >= limit for limit in LIMITS)
    return SHADES[1 if value > 0 else -1][level - 1] if level else "·" if value else " "


def terminal_colour(value: float) -> str:
    """The colour of a shade: blue is for, red against."""
    return f"rgb({','.join(map(str, FOR if value > 0 else AGAINST))})"


def picture_html(x: Input) -> str:
    """The picture the model saw."""
    if x.image is None:
        return ""
    img = f'<img alt="what the model saw" src="{png(x.image)}">'
    return f"<figure><div>{img}</div><figcaption>what the model saw</figcaption></figure>"


def overlay_html(x: Input, grid: np.ndarray, scale: float, caption: str) -> str:
    """The picture under its scores; pointing at a patch tells its score."""
    cells = "".join(
        f'<i title="{escape(printable(x.features[i]))}: {number(score)}"></i>'
        for i, score in zip(patches(x), grid.ravel(), strict=True)
    )
    columns = f"grid-template-columns:repeat({grid.shape[1]},1fr)"
    return (
        f'<figure><div><img alt="scores over the picture" src="{png(overlay(picture(x), grid, scale))}">'
        f'<div class="cells" style="{columns}">{cells}</div></div><figcaption>{escape(caption)}</figcaption></figure>'
    )


def png(image: np.ndarray) -> str:
    """The picture as a data URI."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image, dtype=np.uint8)).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def draw_overlay(axes: Any, a: Attribution, grid: np.ndarray, title: str) -> None:
    """The picture under its scores."""
    scale = largest(grid_scores(a.input, a.scores))
    axes.imshow(overlay(picture(a.input), grid, scale))
    legend = f"blue: for, red: against, full colour at {number(scale)}"
    axes.set_title(f"{title}\n{legend}".strip(), fontsize="small", parse_math=False)
    axes.set_axis_off()
