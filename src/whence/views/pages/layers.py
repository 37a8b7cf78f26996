"""Scores as layers over a photo: pictures of few colours that a page lays over it, so that a slider can act on them.

A layer's opacity is the strength of a score, so the browser needs no other numbers to leave weak scores out.
"""

from __future__ import annotations

import base64
import io

import numpy as np

from whence.views.content.picture import BROKEN, FADED, OPAQUE, Overlay, Scale

LEVELS = 254  # colours of a layer beside the transparent one: 127 for each sign, or 254 for sizes
FINE = 512  # pixels of the longer side of a smooth layer, which is stretched over the photo
FULL = round(255 * OPAQUE)  # the opacity of the strongest score, of 255
MARKS = ((0, 0, 0, 0), (255, 255, 255, round(255 * FADED)), (*BROKEN, round(255 * FADED)), (0, 0, 0, 255), (255,) * 4)


def of_scores(overlay: Overlay) -> str:
    """The scores as a data URI of a PNG, its opacity their strength; empty where all scores have the same strength."""
    if overlay.scale.flat:
        return ""
    values, scale = _thinned(overlay), overlay.scale
    count = LEVELS // 2 if scale.signed else LEVELS
    levels = np.rint(scale.shares(values) * count).astype(np.uint8)
    against = scale.signed & (values < 0) & (levels > 0)
    return indexed(np.where(against, levels + count, levels).astype(np.uint8), _palette(scale, count))


def of_marks(overlay: Overlay) -> str:
    """Marks that are drawn over the photo beside scores, as a data URI of a PNG; empty where there are none.

    White lies over pixels that the model did not see, grey over scores that are not finite; the contour is a white
    line with dark edges.
    """
    marks = np.where(overlay.broken, 2, np.isnan(overlay.values)).astype(np.uint8)
    if overlay.inside is not None:
        width = max(1, round(max(overlay.inside.shape) / 300))
        for colour, reach in ((3, 2 * width), (4, width)):
            marks[grown(overlay.inside, reach) & ~grown(overlay.inside, -reach)] = colour
    return indexed(marks, np.array(MARKS)) if marks.any() else ""


def _thinned(overlay: Overlay) -> np.ndarray:
    """The scores at few enough pixels for a smooth layer; a layer of sharp patches keeps all pixels."""
    values, smooth = overlay.values, overlay.smooth
    step = max(1, -(-max(values.shape) // FINE)) if smooth else 1
    return values[step // 2 :: step, step // 2 :: step]


def _palette(scale: Scale, count: int) -> np.ndarray:
    """The colours (level, 4) of all levels of strength; colours against the target come after those for it."""
    strengths = np.arange(count + 1) / count
    values = strengths * scale.high if scale.signed else scale.low + strengths * (scale.high - scale.low)
    colours, opacity = scale.colours(np.concatenate([values, -values[1:]]) if scale.signed else values)
    return np.rint(np.concatenate([colours, 255 * opacity], axis=-1))


def indexed(levels: np.ndarray, palette: np.ndarray) -> str:
    """A picture of levels (height, width) with a palette (level, 4) of colours and opacities, as a data URI."""
    from PIL import Image

    made = Image.frombytes("P", levels.shape[::-1], np.ascontiguousarray(levels, dtype=np.uint8).tobytes())
    made.putpalette(palette[:, :3].astype(np.uint8).tobytes())
    file = io.BytesIO()
    made.save(file, format="PNG", transparency=palette[:, 3].astype(np.uint8).tobytes(), optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode("ascii")


def grown(area: np.ndarray, pixels: int) -> np.ndarray:
    """The area grown by `pixels` pixels on every side; shrunk if negative."""
    if pixels < 0:
        return ~grown(~np.pad(area, 1), -pixels)[1:-1, 1:-1]
    rim = np.pad(area, pixels)
    for axis in (0, 1):
        rim = np.any([np.roll(rim, step, axis) for step in range(-pixels, pixels + 1)], axis=0)
    return rim[pixels:-pixels, pixels:-pixels]
