"""Pictures of shapes on a grid, questions about one of them, and the regions and words that decide the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from PIL import Image, ImageDraw

from whence.core.inputs import Input
from whence.core.pictures import upright_rgb
from whence.zoo.example import Example

COLOURS = {
    "red": (215, 40, 40), "green": (40, 160, 60), "blue": (40, 80, 215),
    "yellow": (240, 215, 40), "purple": (140, 50, 175), "black": (25, 25, 25),
}  # fmt: skip
SHAPES = ("circle", "square", "triangle", "cross", "diamond")
SIZES = {"small": (4.0, 4.8), "large": (6.2, 7.2)}  # pixels from the middle of a shape to its edge
ANSWERS = (*COLOURS, *SHAPES, *SIZES)
GRID, CELL = 4, 16  # cells in a row and in a column, and pixels in a row and in a column of a cell
BACKGROUND = 210.0  # the mean grey behind the shapes

# How a question names the shape -> the properties that it may ask for. It names the shape by its kind ("the circle") or
# its colour ("the red one"). Both may ask for the size, so that the naming does not give away what is asked for.
ASKED = {"shape": ("colour", "size"), "colour": ("shape", "size")}
QUESTIONS = (
    "what {asked} is {it} ?",
    "which {asked} is {it} ?",
    "which {asked} does {it} have ?",
    "what is the {asked} of {it} ?",
    "tell me the {asked} of {it} .",
)
BEFORE = ("please ,", "in this picture ,", "look :")
SPELLINGS = {"colour": ("colour", "color")}

_SHIFT = 1.0  # the most pixels that a shape lies off the middle of its cell
_FINE = 4  # shapes are drawn this many times larger and then scaled down, which smooths their edges
T = TypeVar("T")


@dataclass(frozen=True)
class Thing:
    """A shape in a cell of the picture."""

    cell: int  # row by row
    shape: str
    colour: str
    size: str


def examples(n: int, seed: int) -> list[Example]:
    """`n` pictures with questions; the truth (feature,) marks the words for the property and the shape, and its region.

    Features are [CLS], the words, [SEP] and the regions of the picture, row by row.
    """
    rng = np.random.default_rng(seed)
    return [example(scene(rng), rng) for _ in range(n)]


def scene(rng: np.random.Generator) -> list[Thing]:
    """Two to four things of different shapes and colours in different cells."""
    count = int(rng.integers(2, 5))
    cells = rng.permutation(GRID * GRID)[:count].tolist()
    shapes, colours = rng.permutation(SHAPES).tolist(), rng.permutation(list(COLOURS)).tolist()
    sizes = [_pick(rng, list(SIZES)) for _ in range(count)]
    return [Thing(*properties) for properties in zip(cells, shapes, colours, sizes, strict=False)]


def example(things: list[Thing], rng: np.random.Generator) -> Example:
    """The picture of a scene and a question about one of its things."""
    thing = _pick(rng, things)
    called = _pick(rng, list(ASKED))
    asked = _pick(rng, ASKED[called])
    words, decisive = question(called, asked, thing, rng)
    regions = np.arange(GRID * GRID) == thing.cell
    truth = np.concatenate([[False], decisive, [False], regions])
    return Example({"image": draw(things, rng), "text": sentence(words)}, getattr(thing, asked), truth)


def question(called: str, asked: str, thing: Thing, rng: np.random.Generator) -> tuple[list[str], list[bool]]:
    """The words of a question for the property `asked` of a thing called by the property `called`, and which decide."""
    name, spelt = getattr(thing, called), _pick(rng, SPELLINGS.get(asked, (asked,)))
    it = f"the {name}" if called == "shape" else f"the {name} one"
    before = _pick(rng, BEFORE).split() if rng.random() < 0.3 else []
    words = before + _pick(rng, QUESTIONS).format(asked=spelt, it=it).split()
    return words, [word in (spelt, name) for word in words]


def sentence(words: Sequence[str]) -> str:
    """The words with spaces between them, but not before punctuation."""
    return "".join(word if word in "?.,:" else f" {word}" for word in words).strip()


def draw(things: Sequence[Thing], rng: np.random.Generator) -> np.ndarray:
    """(height, width, 3) uint8: the things, of slightly varying place, size and colour, on a noisy grey."""
    side = GRID * CELL
    grey = BACKGROUND + rng.uniform(-20, 20)
    picture = np.full((side, side, 3), grey) + rng.normal(0, 8, (side, side, 3))
    for thing in things:
        top, left = (CELL * place for place in divmod(thing.cell, GRID))
        cover = _cover(thing, rng)[..., None]  # the share of each pixel that the shape covers
        colour = COLOURS[thing.colour] + rng.uniform(-20, 20, 3)
        cell = picture[top : top + CELL, left : left + CELL]
        cell += cover * (colour - grey)
    return np.clip(picture, 0, 255).round().astype(np.uint8)


def encode(raw: Any, encode_text: Callable[[str], Input]) -> dict[str, Any]:
    """A picture and a question as LXMERT takes them, for `whence.wrap(model, tokenizer, encode=...)`.

    `encode_text` encodes the question; it is an argument because encoding text stands on a floor above this one.
    """
    if not isinstance(raw, dict) or set(raw) != {"image", "text"}:
        came = f"the keys {', '.join(map(repr, raw))}" if isinstance(raw, dict) else f"a {type(raw).__name__}"
        raise ValueError(f"shapes takes a dict with the keys 'image' and 'text', but {came} came")
    text = encode_text(raw["text"])
    original = upright_rgb(raw["image"])
    picture = np.asarray(original.resize((GRID * CELL, GRID * CELL), Image.Resampling.BOX))
    return {
        "tensors": {**text.tensors, **visual(picture)},
        "features": {
            "text": text.features,
            "image": [f"region {row},{column}" for row in range(GRID) for column in range(GRID)],
        },
        "special": {"text": text.special},
        "words": {"text": text.words},
        "offsets": {"text": text.offsets},
        "parts": {"text": text.parts},
        "texts": text.texts,
        "grid": (GRID, GRID),
        "image": picture,
        "box": (0.0, 0.0, float(original.width), float(original.height)),
        "size": original.size,
    }


def visual(picture: np.ndarray) -> dict[str, np.ndarray]:
    """The regions of a picture as LXMERT takes them.

    The features of a region are its pixels, shifted so that the mean grey behind the shapes is 0, and how far each
    stands out from the background of this picture; its position is the corners of its cell, from 0 to 1.
    """
    cells = picture.reshape(GRID, CELL, GRID, CELL, 3).swapaxes(1, 2).reshape(GRID * GRID, CELL * CELL, 3).astype(float)
    background = np.median(picture.reshape(-1, 3), axis=0)
    distance = np.abs(cells - background).max(-1)  # (region, pixel)
    stands_out = distance / np.maximum(distance.max(-1, keepdims=True), 60)
    row, column = np.divmod(np.arange(GRID * GRID), GRID)
    corners = np.stack([column, row, column + 1, row + 1], axis=1) / GRID
    return {
        "visual_feats": np.concatenate(
            [(cells.reshape(len(cells), -1) - BACKGROUND) / 128, stands_out], axis=1, dtype=np.float32
        ),
        "visual_pos": corners.astype(np.float32),
        "visual_attention_mask": np.ones(GRID * GRID, dtype=np.int64),
    }


def _cover(thing: Thing, rng: np.random.Generator) -> np.ndarray:
    """The share of each pixel of a cell that a shape covers, (CELL, CELL); the shape lies near the middle."""
    radius = rng.uniform(*SIZES[thing.size])
    x, y = CELL / 2 + rng.uniform(-1, 1, 2) * min(_SHIFT, CELL / 2 - radius - 0.5)
    fine = Image.new("L", (CELL * _FINE, CELL * _FINE))
    pen, x, y, r = ImageDraw.Draw(fine), x * _FINE, y * _FINE, radius * _FINE
    if thing.shape == "circle":
        pen.ellipse((x - r, y - r, x + r, y + r), fill=255)
    elif thing.shape == "square":
        pen.rectangle((x - r, y - r, x + r, y + r), fill=255)
    elif thing.shape == "triangle":
        pen.polygon([(x, y - r), (x + r, y + r), (x - r, y + r)], fill=255)
    elif thing.shape == "diamond":
        pen.polygon([(x, y - r), (x + r, y), (x, y + r), (x - r, y)], fill=255)
    else:
        pen.rectangle((x - r, y - r / 3, x + r, y + r / 3), fill=255)
        pen.rectangle((x - r / 3, y - r, x + r / 3, y + r), fill=255)
    return np.asarray(fine.resize((CELL, CELL), Image.Resampling.BOX)) / 255


def _pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    """One of the choices, each as likely as any other."""
    return choices[int(rng.integers(len(choices)))]
