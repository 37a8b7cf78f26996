"""Drawn pictures of things that `photos` knows. Its training photos may not be shipped; drawings may."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from whence.zoo.example import Example

SIDE, PATCH = 64, 8  # pixels, of what the model sees
DRAWN = 256  # pixels of a drawn picture
_FINE = 2  # pictures are drawn this many times larger and then scaled down, which smooths their edges
_LARGE = DRAWN * _FINE

Colour = tuple[int, int, int]


def examples(n: int, seed: int) -> list[Example]:
    """`n` drawn pictures (256, 256, 3) with their labels; the truth marks the patches, behind [CLS], of the thing."""
    rng = np.random.default_rng(seed)
    names = [name for _ in range(-(-n // len(DRAWINGS))) for name in rng.permutation(list(DRAWINGS)).tolist()][:n]
    return [_example(name, rng) for name in names]


def _example(name: str, rng: np.random.Generator) -> Example:
    """One thing of this name, of random size, place and turn, before a random background."""
    thing = Image.new("RGBA", (_LARGE, _LARGE))
    DRAWINGS[name](ImageDraw.Draw(thing), rng)
    size = int(_LARGE * rng.uniform(0.75, 0.95))
    thing = thing.rotate(rng.uniform(-15, 15), Image.Resampling.BICUBIC).resize((size, size))
    if rng.random() < 0.5:
        thing = thing.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    picture, cover = _background(rng), Image.new("L", (_LARGE, _LARGE))
    place = tuple(int(rng.uniform(0, _LARGE - size)) for _ in range(2))
    shadow = thing.getchannel("A").filter(ImageFilter.GaussianBlur(12)).point(lambda opacity: opacity // 3)
    picture.paste((20, 25, 20), (place[0] + 8, place[1] + 14), shadow)
    picture.paste(thing, (place[0], place[1]), thing)
    cover.paste(thing.getchannel("A"), (place[0], place[1]))
    pixels = np.asarray(picture.resize((DRAWN, DRAWN), Image.Resampling.LANCZOS), np.float32)
    pixels = pixels + 6 * rng.standard_normal(pixels.shape, np.float32)
    marks = np.asarray(cover.resize((SIDE // PATCH, SIDE // PATCH), Image.Resampling.BOX)).reshape(-1) > 127
    return Example(np.clip(pixels, 0, 255).round().astype(np.uint8), name, np.concatenate([[False], marks]))


def _background(rng: np.random.Generator) -> Image.Image:
    """Blurred spots around one colour of leaves, water, wood, sand or sky."""
    colours = np.array([(70, 120, 55), (60, 110, 140), (120, 95, 70), (190, 175, 150), (170, 195, 215)])
    base = colours[rng.integers(len(colours))] + rng.uniform(-20, 20, 3)
    coarse = _enlarged(base + 22 * rng.normal(size=(6, 6, 1)) + 6 * rng.normal(size=(6, 6, 3)))
    fine = _enlarged(128 + 9 * rng.normal(size=(24, 24, 1)))
    return Image.fromarray(np.clip(coarse + fine - 128, 0, 255).astype(np.uint8))


def _enlarged(spots: np.ndarray) -> np.ndarray:
    """Spots (y, x, 3 or 1) as a smooth picture of full size, (y, x, 3)."""
    small = Image.fromarray(np.clip(np.broadcast_to(spots, (*spots.shape[:2], 3)), 0, 255).astype(np.uint8))
    return np.asarray(small.resize((_LARGE, _LARGE), Image.Resampling.BICUBIC), np.float32)


def _ball(draw: ImageDraw.ImageDraw, middle: tuple[float, float], radius: float, colour: Colour, light: float) -> None:
    """A disc that grows lighter towards its upper left."""
    for k in range(40):
        share = k / 40
        x, y, r = middle[0] - share * radius * 0.35, middle[1] - share * radius * 0.35, radius * (1 - share)
        draw.ellipse((x - r, y - r, x + r, y + r), fill=_lighter(colour, light * share))


def _lighter(colour: Colour, share: float) -> Colour:
    """A colour moved towards white by a share, or towards black by a negative one."""
    goal = 255 if share > 0 else 0
    red, green, blue = (int(value + (goal - value) * abs(share)) for value in colour)
    return red, green, blue


def _varied(colour: Colour, rng: np.random.Generator, by: float = 14) -> Colour:
    red, green, blue = (int(np.clip(value + rng.uniform(-by, by), 0, 255)) for value in colour)
    return red, green, blue


def _orange(draw: ImageDraw.ImageDraw, rng: np.random.Generator) -> None:
    """A shaded ball with pores, a navel and a leaf."""
    half, radius = _LARGE / 2, _LARGE * 0.42
    skin = _varied((236, 125, 16), rng)
    _ball(draw, (half, half), radius, skin, 0.45)
    for _ in range(350):
        angle, r = rng.uniform(0, 2 * np.pi), radius * 0.95 * np.sqrt(rng.random())
        x, y = half + r * np.cos(angle), half + r * np.sin(angle)
        draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=_lighter(skin, -0.12))
    x, y = half + radius * 0.2, half - radius * 0.75
    draw.ellipse((x - 9, y - 7, x + 9, y + 7), fill=(90, 100, 40))
    draw.polygon([(x, y), (x + 60, y - 50), (x + 120, y - 30), (x + 70, y)], fill=(60, 120, 45))


def _ladybug(draw: ImageDraw.ImageDraw, rng: np.random.Generator) -> None:
    """Red wing cases with black dots, a black head with two white spots, legs."""
    half, black = _LARGE / 2, (22, 20, 22)
    for side in (-1, 1):
        for k in (-1, 0, 1):
            y = half + k * _LARGE * 0.14
            foot = (half + side * _LARGE * 0.42, y + k * _LARGE * 0.06)
            draw.line([(half, y), (half + side * _LARGE * 0.36, y - 10), foot], fill=black, width=14)
    draw.ellipse((half - 90, half - 235, half + 90, half - 85), fill=black)
    for side in (-1, 1):
        draw.ellipse((half + side * 55 - 22, half - 195, half + side * 55 + 22, half - 150), fill=(235, 235, 225))
        draw.line([(half + side * 30, half - 220), (half + side * 70, half - 254)], fill=black, width=9)
    _ball(draw, (half, half + 20), _LARGE * 0.34, _varied((205, 28, 18), rng), 0.35)
    draw.line([(half, half - 150), (half, half + 195)], fill=black, width=9)
    for x, y, r in ((0, -110, 30), (75, -60, 30), (105, 45, 28), (60, 130, 26)):
        for side in (-1, 1):
            spot = (half + side * x, half + 20 + y)
            draw.ellipse((spot[0] - r, spot[1] - r, spot[0] + r, spot[1] + r), fill=black)


def _school_bus(draw: ImageDraw.ImageDraw, rng: np.random.Generator) -> None:
    """A long yellow bus from the side: windows, black bands, wheels, a bonnet."""
    yellow, dark = _varied((242, 175, 20), rng), (30, 30, 34)
    top, bottom = _LARGE * 0.25, _LARGE * 0.72
    draw.rounded_rectangle((16, top, _LARGE * 0.84, bottom), 26, fill=yellow)
    draw.rounded_rectangle((_LARGE * 0.7, top + 110, _LARGE - 16, bottom), 20, fill=yellow)
    draw.rectangle((30, top + 4, _LARGE * 0.8, top + 18), fill=_lighter(yellow, 0.35))
    for k in range(6):
        x = 36 + k * _LARGE * 0.125
        draw.rounded_rectangle((x, top + 34, x + _LARGE * 0.1, top + 104), 8, fill=_lighter(dark, 0.12 * (k % 3)))
    for y in (126, 158, 196):
        draw.rectangle((16, top + y, _LARGE * 0.84, top + y + 8), fill=dark)
    for x in (_LARGE * 0.22, _LARGE * 0.78):
        draw.ellipse((x - 50, bottom - 50, x + 50, bottom + 50), fill=dark)
        draw.ellipse((x - 22, bottom - 22, x + 22, bottom + 22), fill=(150, 150, 150))
    draw.ellipse((_LARGE - 48, bottom - 90, _LARGE - 20, bottom - 62), fill=(250, 245, 220))


def _pizza(draw: ImageDraw.ImageDraw, rng: np.random.Generator) -> None:
    """A round crust, sauce, cheese, slices of sausage and herbs."""
    half, radius = _LARGE / 2, _LARGE * 0.46
    for share, colour in ((1.0, (176, 118, 58)), (0.94, (205, 150, 85)), (0.86, (178, 55, 28)), (0.82, (232, 190, 95))):
        r = radius * share
        draw.ellipse((half - r, half - r, half + r, half + r), fill=_varied(colour, rng, 8))
    kinds = [((238, 205, 120), 36, 40), ((190, 70, 35), 22, 30), ((165, 40, 30), 12, 40), ((70, 95, 40), 26, 11)]
    for colour, times, size in kinds:
        for _ in range(times):
            angle, r = rng.uniform(0, 2 * np.pi), radius * 0.74 * np.sqrt(rng.random())
            x, y, s = half + r * np.cos(angle), half + r * np.sin(angle), size * rng.uniform(0.7, 1.2)
            draw.ellipse((x - s, y - s * 0.9, x + s, y + s * 0.9), fill=_varied(colour, rng))


def _goldfish(draw: ImageDraw.ImageDraw, rng: np.random.Generator) -> None:
    """An orange fish from the side, with scales, fins and a forked tail."""
    half, skin = _LARGE / 2, _varied((240, 105, 20), rng)
    fin = _lighter(skin, 0.25)
    draw.polygon([(150, half), (20, half - 130), (60, half), (20, half + 130)], fill=fin)
    draw.polygon([(220, half - 90), (300, half - 180), (390, half - 80)], fill=fin)
    draw.polygon([(260, half + 80), (240, half + 165), (340, half + 90)], fill=fin)
    draw.ellipse((120, half - 115, _LARGE - 22, half + 115), fill=skin)
    draw.ellipse((150, half + 5, _LARGE - 60, half + 108), fill=_lighter(skin, 0.2))
    for row in range(-3, 4):
        for k in range(8):
            x, y = 175 + k * 30 + (row % 2) * 15, half + row * 26
            draw.arc((x - 16, y - 16, x + 16, y + 16), -70, 70, fill=_lighter(skin, -0.18), width=4)
    draw.ellipse((412, half - 50, 448, half - 14), fill=(245, 240, 215))
    draw.ellipse((421, half - 42, 441, half - 22), fill=(15, 15, 15))


# The things that are drawn, by the name of their class.
DRAWINGS: dict[str, Callable[[ImageDraw.ImageDraw, np.random.Generator], None]] = {
    "orange": _orange, "ladybug": _ladybug, "school bus": _school_bus, "pizza": _pizza, "goldfish": _goldfish,
}  # fmt: skip
