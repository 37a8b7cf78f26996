"""Draw the sample pictures that ship with the package: python training/samples.py.

Everything is drawn here, so that the pictures belong to the project: a digit, textures, and a ladybug on a leaf.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from whence.zoo import textures_data

FOLDER = Path(__file__).parents[1] / "src" / "whence" / "zoo" / "data" / "samples"
FINE = 4  # pictures are drawn this many times larger and then scaled down, which smooths their edges
Points = list[tuple[float, float]]


def main() -> None:
    """Write the pictures into the package."""
    FOLDER.mkdir(exist_ok=True)
    for name, picture in {"digit": digit(), "striped": texture(0), "dotted": texture(1), "ladybug": ladybug()}.items():
        picture.save(FOLDER / f"{name}.png", optimize=True)


def digit() -> Image.Image:
    """A three as if written with a thick pen, white on black."""
    side = 112 * FINE
    picture = Image.new("L", (side, side))
    strokes = [
        _curve((34, 30), (50, 14), (88, 20), (76, 44), (66, 54), (50, 54)),
        _curve((50, 54), (84, 50), (92, 80), (70, 92), (52, 100), (30, 88)),
    ]
    draw = ImageDraw.Draw(picture)
    for stroke in strokes:
        for number, (x, y) in enumerate(stroke):
            radius = FINE * (4.6 + 0.9 * np.sin(number / 25))
            draw.ellipse([FINE * x - radius, FINE * y - radius, FINE * x + radius, FINE * y + radius], fill=255)
    return _smaller(picture.filter(ImageFilter.GaussianBlur(FINE * 1.2)))


def texture(number: int) -> Image.Image:
    """A textured shape, as the model `textures` is trained on."""
    chosen = {"texture": ["striped", "dotted"], "colour": ["green", "grey"], "shape": ["star", "round"]}
    return Image.fromarray(textures_data.draw(chosen, np.random.default_rng(7))[0][number])


def ladybug() -> Image.Image:
    """A ladybug on a leaf, in soft light."""
    size = (288 * FINE, 216 * FINE)
    picture = _meadow(size)
    leaf = Image.new("RGBA", size)
    draw = ImageDraw.Draw(leaf)
    draw.polygon(_scaled(_leaf()), fill=(96, 158, 58, 255))
    for share in np.linspace(0.12, 0.88, 9):
        x, y = 16 + 256 * share, 168 - 96 * share
        for dx, dy in ((34, 18), (4, -44)):
            draw.line(_scaled([(x, y), (x + dx, y + dy)]), fill=(128, 184, 84, 255), width=FINE)
    draw.line(_scaled([(10, 170), (278, 70)]), fill=(150, 200, 104, 255), width=2 * FINE)
    outside = Image.new("L", size)
    ImageDraw.Draw(outside).polygon(_scaled(_leaf()), fill=255)
    picture.paste(leaf, (0, 0), outside)
    shadow = Image.new("L", size)
    ImageDraw.Draw(shadow).ellipse(_scaled([(100, 92), (212, 160)]), fill=110)
    picture.paste((28, 60, 20), (0, 0), shadow.filter(ImageFilter.GaussianBlur(6 * FINE)))
    bug = _beetle(size).rotate(20, resample=Image.Resampling.BICUBIC, center=(150 * FINE, 112 * FINE))
    picture.paste(bug, (0, 0), bug)
    return _smaller(picture)


def _beetle(size: tuple[int, int]) -> Image.Image:
    """A red beetle with black spots, seen from above, its head to the right."""
    bug = Image.new("RGBA", size)
    draw = ImageDraw.Draw(bug)
    for x in (118, 148, 176):
        for side in (-1, 1):
            knee = (x + 10, 112 + side * 48)
            draw.line(_scaled([(x, 112 + side * 20), knee, (x + 20, 112 + side * 56)]), fill="black", width=3 * FINE)
    for side in (-1, 1):
        draw.line(_scaled([(206, 112 + side * 8), (222, 112 + side * 20)]), fill="black", width=2 * FINE)
    draw.ellipse(_scaled([(180, 90), (216, 134)]), fill=(22, 20, 20))
    for side in (-1, 1):
        draw.ellipse(_scaled([(196, 108 + side * 12), (206, 116 + side * 12)]), fill=(238, 232, 220))
    draw.ellipse(_scaled([(98, 72), (196, 152)]), fill=(206, 32, 26))
    for x, y, radius in ((124, 92, 8), (156, 88, 8), (128, 132, 8), (160, 136, 8), (142, 112, 7), (178, 112, 9)):
        draw.ellipse(_scaled([(x - radius, y - radius), (x + radius, y + radius)]), fill=(24, 18, 18))
    draw.line(_scaled([(98, 112), (190, 112)]), fill=(70, 8, 8), width=2 * FINE)
    light = Image.new("L", size)
    ImageDraw.Draw(light).ellipse(_scaled([(122, 80), (160, 100)]), fill=150)
    light = light.filter(ImageFilter.GaussianBlur(6 * FINE))
    shine = Image.composite(Image.new("RGBA", size, (255, 235, 225, 255)), bug, light)
    shine.putalpha(bug.getchannel("A"))
    return shine


def _meadow(size: tuple[int, int]) -> Image.Image:
    """Blurred greens."""
    rng = np.random.default_rng(2)
    picture = Image.new("RGB", size, (70, 110, 52))
    draw = ImageDraw.Draw(picture)
    for _ in range(60):
        x, y, radius = rng.uniform(0, 288), rng.uniform(0, 216), rng.uniform(8, 40)
        colour = tuple(int(v) for v in (60, 105, 48) + rng.uniform(-25, 60) * np.array([0.9, 1.0, 0.6]))
        draw.ellipse(_scaled([(x - radius, y - radius), (x + radius, y + radius)]), fill=colour)
    return picture.filter(ImageFilter.GaussianBlur(14 * FINE))


def _leaf() -> Points:
    """The outline of a leaf from the lower left to the upper right."""
    upper = _curve((0, 176), (50, 70), (140, 20), (200, 30), (260, 40), (288, 66))
    lower = _curve((288, 66), (270, 130), (200, 190), (140, 206), (70, 214), (0, 176))
    return upper + lower


def _curve(*points: tuple[float, float]) -> Points:
    """A Bezier curve through the first and the last point, drawn towards the others."""
    places = np.array(points)
    shares = np.linspace(0, 1, 160)[:, None]
    while len(places) > 1 and places.ndim == 2:
        places = np.broadcast_to(places[:, None], (len(places), len(shares), 2))
    while len(places) > 1:
        places = places[:-1] * (1 - shares) + places[1:] * shares
    return [(float(x), float(y)) for x, y in places[0]]


def _scaled(points: Points) -> Points:
    return [(x * FINE, y * FINE) for x, y in points]


def _smaller(picture: Image.Image) -> Image.Image:
    return picture.resize((picture.width // FINE, picture.height // FINE), Image.Resampling.LANCZOS)


if __name__ == "__main__":
    main()
