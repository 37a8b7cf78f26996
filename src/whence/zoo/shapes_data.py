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

# What is asked of a shape called by its kind ("the circle") or by its colour ("the red one"). No other word than the
# name of what is asked tells one from the other: both kinds of shape may be asked for their size.
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

_SHIFT = 1.0  # pixels that a shape may lie off the middle of its cell
_FINE = 4  # shapes are drawn so many times larger, and their edges smoothed
T = TypeVar("T")


@dataclass(frozen=True)
class Thing:
    """A shape in a cell of the picture."""

    cell: int  # row by row
    shape: str
    colour: str
    size: str


def examples(n: int, seed: int) -> list[Example]:
    """`n` pictures with questions; truth (feature,): the words that name what is asked of which shape, and its region.

    Features are [CLS], the words, [SEP] and the regions of the picture, row by row.
    """
    rng = np.random.default_rng(seed)
    return [example(scene(rng), rng) for _ in range(n)]


def scene(rng: np.random.Generator) -> list[Thing]:
    """Two to four things of different shapes and colours in different cells."""
    count = int(rng.integers(2, 5))
    cells = rng.permutation(GRID * GRID)[:count].tolist()
    shapes, colours = rng.permutation(SHAPES).tolist(), rng.permutation(list(COLOURS)).tolist()
    sizes = [_one(rng, list(SIZES)) for _ in range(count)]
    return [Thing(*of) for of in zip(cells, shapes, colours, sizes, strict=False)]


def example(things: list[Thing], rng: np.random.Generator) -> Example:
    """The picture of a scene and a question about one of its things."""
    thing = _one(rng, things)
    called = _one(rng, list(ASKED))
    asked = _one(rng, ASKED[called])
    words, decisive = question(called, asked, thing, rng)
    regions = np.arange(GRID * GRID) == thing.cell
    truth = np.concatenate([[False], decisive, [False], regions])
    return Example({"image": draw(things, rng), "text": sentence(words)}, getattr(thing, asked), truth)


def question(called: str, asked: str, thing: Thing, rng: np.random.Generator) -> tuple[list[str], list[bool]]:
    """The words of a question about a thing, and which of them decide."""
    name, spelt = getattr(thing, called), _one(rng, SPELLINGS.get(asked, (asked,)))
    it = f"the {name}" if called == "shape" else f"the {name} one"
    before = _one(rng, BEFORE).split() if rng.random() < 0.3 else []
    words = before + _one(rng, QUESTIONS).format(asked=spelt, it=it).split()
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
    """The regions of a picture: pixels, 0 being the grey behind shapes; where they stand out; corners from 0 to 1."""
    cells = picture.reshape(GRID, CELL, GRID, CELL, 3).swapaxes(1, 2).reshape(GRID * GRID, CELL * CELL, 3).astype(float)
    away = np.abs(cells - np.median(picture.reshape(-1, 3), axis=0)).max(-1)  # from the colour behind the shapes
    stands_out = away / np.maximum(away.max(-1, keepdims=True), 60)
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
    """(CELL, CELL) between 0 and 1: a shape somewhere in its cell."""
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


def _one(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]
