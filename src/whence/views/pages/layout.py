"""What pages share: the templates, a page around its parts, cells of scores, pictures inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from whence.core.geometry import patches
from whence.core.inputs import Input
from whence.views.colours import AGAINST, FOR, css, css_of_score
from whence.views.content.picture import overlay, picture
from whence.views.text import number, printable


@dataclass(frozen=True)
class Part:
    """A part of a page: the template that writes it, and what the template is given."""

    template: str
    given: dict[str, Any]


@lru_cache(maxsize=1)
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("whence.views", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def rendered(*parts: Part) -> str:
    """A page that needs nothing else and follows the notebook's colours or the reader's light or dark mode."""
    ends = {"colour_for": css(FOR), "colour_against": css(AGAINST)}
    page = str(_environment().get_template("base.html").render(parts=parts, **ends))
    return page.encode("utf-8", "backslashreplace").decode()  # no file can hold a lone surrogate


@dataclass(frozen=True)
class Cell:
    """A score in a cell: how it is written, its colour (empty for none), and what pointing at it tells."""

    text: str
    colour: str
    title: str


def cell(value: float, scale: float, write: Callable[[float, float], str], of: str = "") -> Cell:
    """The cell of a score; `of` says whose score it is, printable."""
    return Cell(write(value, scale), css_of_score(value, scale), (of and f"{of}: {number(value)}") or number(value))


@dataclass(frozen=True)
class Picture:
    """A picture under its scores: pointing at a patch tells the patch's score."""

    source: str  # a data URI
    columns: int  # of the patch grid
    patches: list[str]  # what pointing at each tells
    caption: str


def pictures(x: Input, grids: Sequence[tuple[str, np.ndarray, float]]) -> dict[str, Any]:
    """What the template is given of a picture and its grids of scores: captions, grids and scales."""
    shown = []
    for caption, grid, scale in grids:
        names = [
            f"{printable(x.features[i])}: {number(score)}" for i, score in zip(patches(x), grid.ravel(), strict=True)
        ]
        shown.append(Picture(png(overlay(picture(x), grid, scale)), grid.shape[1], names, caption))
    return {"seen": None if x.image is None else png(x.image), "overlays": shown}


def png(image: np.ndarray) -> str:
    """The picture as a data URI."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image, dtype=np.uint8)).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")
