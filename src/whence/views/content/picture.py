"""Scores over a picture: the photo as it was given, where patches lie on it, the scale of colours, the contour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from whence.core.geometry import Box, grid_scores, on_box, patches
from whence.core.inputs import Input
from whence.core.looks import Look
from whence.core.pictures import LONGEST, bounded, enough_pixels
from whence.views.colours import AGAINST, FOR, heat
from whence.views.text import number

FINE = 448  # pixels of the longer side at least: a smaller picture is enlarged, every pixel to a square
CELL = 4  # pixels of a patch at least; with smaller patches the picture that the model saw is shown
OPAQUE = 0.85  # the opacity of the strongest score
FADED = 0.6  # the opacity of white over what the model did not see, and of grey over scores that are not finite
BROKEN = (128, 128, 128)  # of patches whose score is not finite
FAR = 0.1  # share of the largest score; if the smallest score is beyond it, colours begin at the smallest
FEW, SMALL = 16, 256  # more than FEW maps are drawn on pictures of SMALL pixels, to save memory
UNSEEN = "pale: what the model did not see"
PLAIN = Look()


@dataclass(frozen=True, eq=False)
class Canvas:
    """A picture to draw on, and where on it the model's picture lies."""

    picture: np.ndarray  # (height, width, 3) uint8
    box: Box  # in pixels of the picture
    original: bool  # the photo as it was given; else what the model saw

    @property
    def name(self) -> str:
        """What is shown, in words."""
        return "the picture" if self.original else "what the model saw"

    @property
    def cropped(self) -> bool:
        """Whether the model saw a part of the picture alone."""
        height, width = self.picture.shape[:2]
        left, top, right, bottom = map(round, self.box)
        return left > 0 or top > 0 or right < width or bottom < height

    def percent(self) -> tuple[float, float, float, float]:
        """Left, top, width and height of the box, in percent of the picture."""
        height, width = self.picture.shape[:2]
        left, top, right, bottom = self.box
        return 100 * left / width, 100 * top / height, 100 * (right - left) / width, 100 * (bottom - top) / height


def canvas(x: Input, longest: int = LONGEST) -> Canvas:
    """The photo as it was given, enlarged if small; the picture that the model saw, if its box is not known."""
    placed = _on_original(x, longest)
    if placed is not None:
        return placed
    rows, columns = x.grid or (1, 1)
    seen = np.full((rows * 32, columns * 32, 3), 255, dtype=np.uint8) if x.image is None else x.image
    seen = _enlarged(bounded(seen, longest), longest)
    return Canvas(seen, (0.0, 0.0, float(seen.shape[1]), float(seen.shape[0])), original=False)


def _on_original(x: Input, longest: int) -> Canvas | None:
    """The photo with the box that the model saw; None if the photo is not kept, or too small to draw patches on."""
    photo = x.raw.get("image") if isinstance(x.raw, dict) else x.raw
    if not isinstance(photo, np.ndarray) or photo.dtype != np.uint8 or photo.shape[2:] != (3,):
        return None
    if x.box is None or x.size is None or not np.isfinite(x.box).all():
        return None
    if tuple(photo.shape[1::-1]) not in (tuple(x.size), enough_pixels(*x.size)):
        return None  # `raw` of a user's own encoder is not the picture that the box is about
    photo = _enlarged(bounded(photo, longest), longest)
    height, width = photo.shape[:2]
    left, top, right, bottom = (
        edge * new / old for edge, new, old in zip(x.box, (width, height) * 2, tuple(x.size) * 2, strict=True)
    )
    before, after = [math.ceil(max(0, -edge)) for edge in (top, left)], [max(0, bottom - height), max(0, right - width)]
    rows, columns = x.grid or (1, 1)
    if bottom - top < CELL * rows or right - left < CELL * columns or max(*before, *after) > LONGEST:
        return None
    edges = [(first, math.ceil(last)) for first, last in zip(before, after, strict=True)]
    padded = np.pad(photo, (*edges, (0, 0)), constant_values=255)  # processors may pad a photo
    return Canvas(padded, (left + before[1], top + before[0], right + before[1], bottom + before[0]), original=True)


def _enlarged(image: np.ndarray, longest: int) -> np.ndarray:
    """The picture with every pixel as a square of pixels, where it is small."""
    times = max(1, min(FINE, longest) // max(image.shape[:2]))
    return image.repeat(times, axis=0).repeat(times, axis=1)


@dataclass(frozen=True)
class Scale:
    """The colours of scores: with signs, two colours around 0; without, one row of colours from `low` to `high`."""

    low: float
    high: float
    signed: bool
    clip: float = 100.0  # the percentile of |scores| at `high`; larger scores have the same colour

    def shares(self, values: np.ndarray) -> np.ndarray:
        """The strength of scores, 0 to 1: the size of signed ones, how far others lie from `low` to `high`."""
        span = self.high if self.signed else self.high - self.low
        if not span > 0:
            return np.zeros(values.shape)
        sizes = np.abs(values) if self.signed else values - self.low
        return np.clip(np.nan_to_num(sizes / span, nan=0.0, posinf=0.0, neginf=0.0), 0, 1)

    def colours(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The colours (..., 3) and opacities (..., 1) of scores."""
        shares = self.shares(values)
        colours = np.where((values < 0)[..., None], AGAINST, FOR) if self.signed else heat(shares)
        return colours, OPAQUE * shares[..., None]

    @property
    def flat(self) -> bool:
        """Whether all scores have the same strength, so that colours would say nothing."""
        return not self.high > (0 if self.signed else self.low)

    @property
    def ends(self) -> tuple[str, str]:
        """The numbers at both ends of the bar of colours, marked where scores go beyond them."""
        under, beyond = ("≤ ", "≥ ") if self.clip < 100 else ("", "")
        if self.signed:
            return f"{under}{number(self.low)} against", f"for {beyond}{number(self.high)}"
        return number(self.low), f"{beyond}{number(self.high)}"

    def stops(self, count: int = 65) -> tuple[np.ndarray, np.ndarray]:
        """Colours and opacities along the bar of colours."""
        return self.colours(np.linspace(self.low, self.high, count))


def scale_of(maps: Sequence[np.ndarray], signed: bool, clip: float = 100.0, low: float | None = None) -> Scale:
    """One scale for all maps.

    Without signs the scale begins at `low`, by default 0; or at the smallest score, if that is so far from 0 that all
    of the picture would be covered, as in maps that are means of f.
    """
    values = np.concatenate([np.ravel(one) for one in maps] or [np.zeros(1)]).astype(float)
    values = values[np.isfinite(values)] if np.isfinite(values).any() else np.zeros(1)
    sizes = np.abs(values) if signed else values
    least, most, cut = float(sizes.min()), float(sizes.max()), float(np.percentile(sizes, clip))
    start = (least if least > FAR * most and not signed else 0.0) if low is None else low
    high = cut if start < cut < most else most  # if the percentile were the start, nothing would have a colour
    return Scale(-high if signed else start, high, signed, clip if high < most else 100.0)


@dataclass(frozen=True, eq=False)
class Overlay:
    """Scores over a picture."""

    canvas: Canvas
    values: np.ndarray  # (height, width) of the picture; NaN outside of what the model saw
    broken: np.ndarray  # (height, width) bool: scores that are not finite
    scale: Scale
    share: float | None = None  # the share of the mass inside the contour
    smooth: bool = True  # values are interpolated between the centres of patches

    @cached_property
    def image(self) -> np.ndarray:
        """(height, width, 3) uint8: the picture in its own colours, covered the more the stronger a score is."""
        photo = self.canvas.picture.astype(float)
        colours, opacity = self.scale.colours(self.values)
        broken = self.broken[..., None]
        colours, opacity = np.where(broken, BROKEN, colours), np.where(broken, FADED, opacity)
        unseen = (np.isnan(self.values) & ~self.broken)[..., None]
        covered = photo * (1 - opacity) + colours * opacity
        return np.round(np.where(unseen, photo + (255 - photo) * FADED, covered)).astype(np.uint8)

    @cached_property
    def inside(self) -> np.ndarray | None:
        """(height, width) bool: the smallest area with the share `share` of the mass above 0, or above `scale.low`."""
        if self.share is None:
            return None
        mass = np.nan_to_num(np.maximum(self.values - max(0.0, self.scale.low), 0), nan=0.0)
        if not mass.any():
            return np.zeros(mass.shape, dtype=bool)
        largest_first = np.sort(mass / mass.max(), axis=None)[::-1]  # shares: sums of huge scores overflow
        sums = np.cumsum(largest_first)
        least = largest_first[np.searchsorted(sums, self.share * sums[-1] * (1 - 1e-12))]
        return mass / mass.max() >= least

    @property
    def legend(self) -> list[str]:
        """Sentences on the bar of colours and the contour, where their meaning is not plain."""
        low, said = number(self.scale.low), [UNSEEN] if self.canvas.cropped else []
        if self.scale.flat:
            all_of = f"every finite score on the picture is {low}"
            return [*said, all_of if self.scale.high else "no finite score on the picture but 0"]
        if not self.scale.signed and self.scale.low > 0:
            said.append(f"colours begin at the smallest score, {low}")
        if self.scale.clip < 100:
            said.append(f"full colour from percentile {self.scale.clip:g}")
        if self.share is not None:
            of = f"what lies above {low}" if not self.scale.signed and self.scale.low > 0 else "the positive scores"
            said.append(f"line: the smallest area with {self.share:.0%} of {of}")
        return said


def overlays(
    x: Input, maps: Sequence[np.ndarray], signed: bool, look: Look | None = None, low: float | None = None
) -> list[Overlay]:
    """Every map of patches or pixels over the picture, all on one scale."""
    look, ground, found = look or PLAIN, canvas(x, LONGEST if len(maps) <= FEW else SMALL), []
    scale = scale_of(maps, signed, look.clip, low)
    height, width = ground.picture.shape[:2]
    for cells in maps:
        cells = np.asarray(cells, dtype=float)
        finite = np.isfinite(cells)
        kept = np.where(finite, cells, 0.0 if signed else scale.low)  # NaN would spread to neighbours
        values, seen = on_box(kept, height, width, ground.box, not look.patches)
        broken = on_box(~finite, height, width, ground.box, smooth=False)[0] & seen
        found.append(
            Overlay(ground, np.where(seen & ~broken, values, np.nan), broken, scale, look.contour, not look.patches)
        )
    return found


def check_look(x: Input, look: Look | None) -> None:
    """One sentence where options of scores over a picture are given for an input without a picture."""
    if look is not None and not on_picture(x):
        raise ValueError("clip, contour and patches are options of scores over a picture, and this input has none")


def scale_of_patches(x: Input, scores: np.ndarray, signed: bool) -> Scale:
    """The scale of the scores of patches, over all rows of scores."""
    return scale_of([grid_scores(x, scores)], signed)


def on_picture(x: Input) -> set[int]:
    """The features that are patches of the picture."""
    return set(patches(x).tolist())
