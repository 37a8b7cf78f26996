"""What pages share: the templates, a page around its parts, cells of scores, pictures inside the page."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from whence.core import display
from whence.core.geometry import patches
from whence.core.inputs import Input
from whence.views.colours import AGAINST, FOR, css, css_of_score
from whence.views.content.picture import Overlay
from whence.views.pages import layers
from whence.views.text import number, printable

HEAVY = 100_000  # letters of a PNG inside a page


@dataclass(frozen=True)
class Part:
    """A part of a page: the template that writes it, and the values for the template."""

    template: str
    given: dict[str, Any]


@lru_cache(maxsize=1)
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("whence.views", "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def rendered(*parts: Part) -> str:
    """The fragment of a page that shows these parts one under the other."""
    return str(_environment().get_template("fragment.html").render(parts=parts))


@display.shell.provide
def shell(fragments: Sequence[str], title: str) -> str:
    """A page that needs nothing else, follows the reader's light or dark mode, and runs no script but its own."""
    style, script = assets()["style.css"], assets()["whence.js"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    given = {
        "title": title,
        "fragments": fragments,
        "style": style,
        "script": script,
        "script_hash": f"sha256-{digest}",
    }
    page = str(_environment().get_template("base.html").render(given))
    return page.encode("utf-8", "backslashreplace").decode()  # no file can hold a lone surrogate


@display.assets.provide
@lru_cache(maxsize=1)
def assets() -> dict[str, str]:
    """The style sheet and the script of all pages; the functions that a page calls when it opens are in the script."""
    folder = files("whence.views") / "templates"
    scripts = sorted((folder / "scripts").iterdir(), key=lambda file: (file.name != "runtime.js", file.name))
    colours = f".whence {{ --w-for: {css(FOR)}; --w-against: {css(AGAINST)} }}\n"
    return {
        "style.css": colours + (folder / "style.css").read_text(encoding="utf-8"),
        "whence.js": "\n".join(file.read_text(encoding="utf-8") for file in scripts if file.name.endswith(".js")),
    }


@dataclass(frozen=True)
class Cell:
    """A score in a cell: its text, its colour (empty for none), and the text shown when one points at it."""

    text: str
    colour: str
    title: str


def cell(value: float, scale: float, write: Callable[[float, float], str], of: str = "") -> Cell:
    """The cell of a score; `of` says whose score it is, printable."""
    return Cell(write(value, scale), css_of_score(value, scale), (of and f"{of}: {number(value)}") or number(value))


@dataclass(frozen=True)
class Picture:
    """Scores as a layer over a photo: pointing at a patch tells the patch's score."""

    layer: str  # a data URI; "" where all scores have the same strength
    marks: str  # a data URI: what the model did not see, scores that are not finite, the contour; "" without any
    columns: int  # of the patch grid
    patches: list[str]  # for each patch, the text shown when one points at it
    place: str  # CSS: where on the picture the patches lie
    caption: str
    bar: str  # CSS: the colours from one end of the scale to the other; "" where there is nothing to tell apart
    ends: tuple[str, str]
    signed: bool
    said: list[str]


def pictures(x: Input, shown: Sequence[tuple[str, np.ndarray, Overlay]]) -> dict[str, Any]:
    """The values for the template of a picture: captions, scores of patches on their grid, and how they look."""
    canvas = shown[0][2].canvas
    height, width = canvas.picture.shape[:2]
    return {
        "name": canvas.name,
        "photo": uri(canvas.picture),  # stands once in the page, however many layers lie over it
        "shape": f"{width}/{height}",
        "full": layers.FULL,
        "overlays": [_picture(x, *one) for one in shown],
    }


def _picture(x: Input, caption: str, grid: np.ndarray, overlay: Overlay) -> Picture:
    names = [f"{printable(x.features[i])}: {number(score)}" for i, score in zip(patches(x), grid.ravel(), strict=True)]
    left, top, width, height = overlay.canvas.percent()
    scale = overlay.scale
    colours, opacity = scale.stops(17)
    stops = (css(tuple(map(round, colour)), float(share[0])) for colour, share in zip(colours, opacity, strict=True))
    return Picture(
        layer=layers.of_scores(overlay),
        marks=layers.of_marks(overlay),
        columns=grid.shape[1],
        patches=names,
        place=f"left:{left:.3f}%;top:{top:.3f}%;width:{width:.3f}%;height:{height:.3f}%",
        caption=caption,
        bar="" if scale.flat else f"linear-gradient(90deg,{','.join(stops)})",
        ends=scale.ends,
        signed=scale.signed,
        said=overlay.legend,
    )


def uri(image: np.ndarray) -> str:
    """The picture as a data URI: PNG, or JPEG where a PNG would make the page heavy."""
    kept = png(image)
    return kept if len(kept) < HEAVY else _data_uri(image, "JPEG", quality=92)


def png(image: np.ndarray) -> str:
    """The picture as a data URI."""
    return _data_uri(image, "PNG")


def _data_uri(image: np.ndarray, form: str, **settings: Any) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image, dtype=np.uint8)).save(file, format=form, **settings)
    return f"data:image/{form.lower()};base64," + base64.b64encode(file.getvalue()).decode("ascii")
