"""Pictures of one textured shape: the texture is the class; shape, colour, size, place and background are random."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from whence.zoo.example import Example

SIDE, PATCH = 48, 8  # pixels
TEXTURES = ("striped", "dotted", "checked", "zigzag", "plain")
COLOURS = {
    "red": (205, 45, 45), "green": (45, 150, 65), "blue": (50, 85, 205),
    "yellow": (225, 200, 50), "purple": (140, 60, 175), "grey": (120, 120, 120),
}  # fmt: skip
_PALETTE = {**COLOURS, "orange": (235, 125, 30)}  # orange is a concept; no picture of `textures` has it
SHAPES = ("round", "square", "triangular", "star")
_KINDS: dict[str, Sequence[str]] = {"texture": TEXTURES, "colour": tuple(COLOURS), "shape": SHAPES}
CONCEPTS = (*TEXTURES, *COLOURS, *SHAPES, "random", "orange")  # a concept's place is its seed: new ones come last
_DOTS = 0.3  # the share of the area that dots cover
_FINE = 2  # pictures are drawn this many times larger and then scaled down, which smooths their edges


def examples(n: int, seed: int) -> list[Example]:
    """`n` pictures with their textures; the truth (feature,) marks the patches, behind [CLS], that show the shape."""
    rng = np.random.default_rng(seed)
    chosen = _balanced(n, {}, rng)
    pictures, covers = draw(chosen, rng)
    on_shape = covers.reshape(n, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH).mean((2, 4)).reshape(n, -1) > 0.5
    return [
        Example(picture, texture, np.concatenate([[False], marks]))
        for picture, texture, marks in zip(pictures, chosen["texture"], on_shape, strict=True)
    ]


def concepts(name: str, n: int, seed: int) -> list[np.ndarray]:
    """`n` pictures that share one of `CONCEPTS`, a texture, colour or shape, and nothing else; "random" ones nothing.

    All that is not shared is balanced: as far as `n` allows, every texture, colour and shape comes equally often.
    """
    rng = np.random.default_rng((CONCEPTS.index(name), seed))
    kinds: dict[str, Iterable[str]] = {**_KINDS, "colour": _PALETTE}
    shared = {kind: name for kind, values in kinds.items() if name in values}
    return list(draw(_balanced(n, shared, rng), rng)[0])


def _balanced(n: int, shared: Mapping[str, str], rng: np.random.Generator) -> dict[str, list[str]]:
    """The texture, colour and shape of `n` pictures: what is shared, else each in turn, in random order."""
    chosen = {}
    for kind, values in _KINDS.items():
        turns = -(-n // len(values))
        drawn = np.concatenate([rng.permutation(values) for _ in range(turns)] or [np.array([], str)])[:n]
        chosen[kind] = [shared[kind]] * n if kind in shared else rng.permutation(drawn).tolist()
    return chosen


def draw(chosen: Mapping[str, Sequence[str]], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(picture, SIDE, SIDE, 3) uint8, and the share of each pixel that the shape covers, (picture, SIDE, SIDE)."""
    n = len(chosen["texture"])
    axis = (np.arange(SIDE * _FINE, dtype=np.float32) + 0.5) / _FINE - SIDE / 2
    y, x = axis[None, :, None], axis[None, None, :]
    cover = _covers(chosen["shape"], x, y, rng)
    pattern = _scaled_down(_patterns(chosen["texture"], x, y, rng) * cover)[..., None]
    cover = _scaled_down(cover)
    # The two tones of a texture lie around the colour, and a plain shape has one tone between them. So the mean colour
    # of a shape says nothing about its texture.
    colour = np.array([_PALETTE[name] for name in chosen["colour"]], np.float32).reshape(n, 1, 1, 3)
    colour = colour + _uniform(rng, -20, 20, (n, 1, 1, 3))
    contrast = _uniform(rng, 55, 85, (n, 1, 1, 1)) * rng.choice(np.array([-1, 1], np.float32), (n, 1, 1, 1))
    inside, behind = cover[..., None], 1 - cover[..., None]
    picture = colour * inside + contrast * pattern + _backgrounds(n, rng) * behind
    picture += 5 * rng.standard_normal(picture.shape, np.float32)
    return np.clip(picture, 0, 255).round().astype(np.uint8), cover


def _backgrounds(n: int, rng: np.random.Generator) -> np.ndarray:
    """(picture, y, x, 3): a pale colour that changes slowly in a random direction."""
    axis = np.linspace(-1, 1, SIDE, dtype=np.float32)
    base, slope = _uniform(rng, 150, 245, (n, 1, 1, 3)), _uniform(rng, -30, 30, (n, 1, 1, 3))
    angle = _uniform(rng, 0, 2 * np.pi, (n, 1, 1))
    return base + slope * (axis * np.cos(angle) + axis[:, None] * np.sin(angle))[..., None]


def _covers(shapes: Sequence[str], x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(picture, y, x) of 0 and 1: shapes of random size, place and turn."""
    n = len(shapes)
    radius = _uniform(rng, 15, 20, (n, 1, 1))
    across, down = (v - _uniform(rng, -1, 1, (n, 1, 1)) * (22 - radius) for v in (x, y))
    turn = _uniform(rng, 0, 2 * np.pi, (n, 1, 1))
    distance, angle = np.hypot(across, down), np.arctan2(down, across) - turn
    edges: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "round": np.ones_like,
        "square": lambda angle: _polygon(angle, 4) * 1.15,
        "triangular": lambda angle: _polygon(angle, 3) * 1.25,
        "star": lambda angle: 0.9 + 0.3 * np.cos(5 * angle),
    }
    edge = np.empty_like(angle)
    for shape, of_shape in _rows(shapes):
        edge[of_shape] = edges[shape](angle[of_shape])
    return (distance < radius * edge).astype(np.float32)


def _polygon(angle: np.ndarray, corners: int) -> np.ndarray:
    """How far the edge of a regular polygon lies from its middle in a direction; its corners lie at 1."""
    part = 2 * np.pi / corners
    return np.cos(part / 2) / np.cos(np.mod(angle, part) - part / 2)


def _patterns(textures: Sequence[str], x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(picture, y, x): textures of random direction, size and shift, of two tones whose mean is 0.

    A plain shape has one tone between the two.
    """
    n = len(textures)
    angle, period = _uniform(rng, 0, 2 * np.pi, (n, 1, 1)), _uniform(rng, 6, 8.5, (n, 1, 1))
    u = (x * np.cos(angle) + y * np.sin(angle)) / period + _uniform(rng, 0, 1, (n, 1, 1))
    v = (y * np.cos(angle) - x * np.sin(angle)) / period + _uniform(rng, 0, 1, (n, 1, 1))
    made: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        "striped": lambda u, v: np.mod(u, 1) < 0.5,
        "dotted": lambda u, v: np.hypot(np.mod(u / 1.1, 1) - 0.5, np.mod(v / 1.1, 1) - 0.5) < np.sqrt(_DOTS / np.pi),
        "checked": lambda u, v: (np.mod(u / 1.3, 1) < 0.5) ^ (np.mod(v / 1.3, 1) < 0.5),
        "zigzag": lambda u, v: np.mod(u + np.abs(np.mod(v / 1.6, 1) - 0.5) * 1.8, 1) < 0.5,
    }
    pattern = np.ones_like(u)
    for texture, of_texture in _rows(textures):
        if texture == "plain":
            pattern[of_texture] = _uniform(rng, -1, 1, (len(of_texture), 1, 1))
        else:
            high = made[texture](u[of_texture], v[of_texture])
            pattern[of_texture] = np.where(high, *((2 - 2 * _DOTS, -2 * _DOTS) if texture == "dotted" else (1, -1)))
    return pattern


def _rows(names: Sequence[str]) -> list[tuple[str, np.ndarray]]:
    """Every name that comes, with the numbers of the pictures that have it."""
    return [(name, np.flatnonzero(np.array(names) == name)) for name in sorted(set(names))]


def _uniform(rng: np.random.Generator, low: float, high: float, shape: tuple[int, ...]) -> np.ndarray:
    """Random numbers in single precision, which halves the time of drawing."""
    return rng.uniform(low, high, shape).astype(np.float32)


def _scaled_down(fine: np.ndarray) -> np.ndarray:
    """Pictures or covers in their final size: the means of blocks of pixels."""
    return fine.reshape(len(fine), SIDE, _FINE, SIDE, _FINE, *fine.shape[3:]).mean((2, 4))
