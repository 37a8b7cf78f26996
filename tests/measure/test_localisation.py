"""`localisation` with boxes: definitions written out pixel by pixel, what is refused, and chance; blur as a filling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.ndimage import gaussian_filter

import whence
from families import PICTURES, subject_of

BOX = (9, 3, 33, 20)  # of the first picture, which is 40 x 32 pixels large and becomes 32 x 32
Marks = set[tuple[int, int]]  # pixels (y, x)


@pytest.fixture(scope="module")
def a() -> whence.Attribution:
    found = whence.explain(subject_of("vit"), PICTURES[0], "random", 1)
    return replace(found, scores=np.random.default_rng(1).normal(size=found.scores.shape))


def value(a: whence.Attribution, measure: str, truth: Any = None, **options: Any) -> float:
    given = {"box": BOX} if truth is None else truth
    return whence.score(subject_of("vit"), a, "localisation", truth=given, measure=measure, **options).value


# ---- slow twins ------------------------------------------------------------------------------------------------------


def heights(a: whence.Attribution, base: str) -> dict[tuple[int, int], float]:
    """The map over the 40 x 32 pixels of the original, by pixel (y, x), from the base on."""
    grid = torch.tensor(a.scores[1:].reshape(1, 1, 4, 4))
    pixels = F.interpolate(grid, size=(32, 40), mode="bilinear", align_corners=False)[0, 0]
    low = 0.0 if base == "zero" else float(pixels.min())
    return {(y, x): max(0.0, float(pixels[y, x]) - low) for y in range(32) for x in range(40)}


def in_box(box: Sequence[float]) -> Marks:
    x0, y0, x1, y1 = box
    return {(y, x) for y in range(32) for x in range(40) if x0 <= x < x1 and y0 <= y < y1}


def energy(heights: dict[tuple[int, int], float], box: Marks) -> float:
    return sum(h for place, h in heights.items() if place in box) / sum(heights.values())


def reaching(heights: dict[tuple[int, int], float], threshold: float) -> Marks:
    most = max(heights.values())
    return {place for place, h in heights.items() if h >= threshold * most}


def iou(a: Marks, b: Marks) -> float:
    return len(a & b) / len(a | b)


def largest_part(marks: Marks) -> Marks:
    """The largest set of pixels that can be walked to from each other, also over corners."""
    parts, left = [], set(marks)
    while left:
        part, edge = set(), [left.pop()]
        while edge:
            y, x = edge.pop()
            part.add((y, x))
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            edge += near
        parts.append(part)
    return max(parts, key=len)


def around(marks: Marks) -> Marks:
    ys, xs = [y for y, _ in marks], [x for _, x in marks]
    return {(y, x) for y in range(min(ys), max(ys) + 1) for x in range(min(xs), max(xs) + 1)}


THRESHOLDS = [0.05 * n for n in range(1, 20)]


@pytest.mark.parametrize("base", ["zero", "lowest"])
def test_slow_twins(a: whence.Attribution, base: str) -> None:
    map_, box = heights(a, base), in_box(BOX)
    assert value(a, "energy", base=base) == pytest.approx(energy(map_, box), abs=1e-5)
    by_pixels = [iou(reaching(map_, t), box) for t in THRESHOLDS]
    by_boxes = [iou(around(largest_part(reaching(map_, t))), box) for t in THRESHOLDS]
    for measure, values in (("iou", by_pixels), ("box_iou", by_boxes)):
        assert value(a, measure, base=base, threshold=0.25) == pytest.approx(values[4])
        assert value(a, measure, base=base) == pytest.approx(np.mean(values))
        assert value(a, measure, base=base, threshold="best") == pytest.approx(max(values))
    assert value(a, "pointing") == float(max(map_, key=lambda place: map_[place]) in box)


BROKEN: dict[str, Callable[[whence.Attribution], float]] = {
    "x and y swapped": lambda a: energy(heights(a, "zero"), in_box((BOX[1], BOX[0], BOX[3], BOX[2]))),
    "edges belong to the box": lambda a: energy(heights(a, "zero"), in_box((*BOX[:2], BOX[2] + 1, BOX[3] + 1))),
    "sizes of scores": lambda a: energy(heights(replace(a, scores=abs(a.scores)), "zero"), in_box(BOX)),
    "divided by the box": lambda a: energy(heights(a, "zero"), in_box(BOX)) * 1280 / len(in_box(BOX)),
    "pixels of what the model saw": lambda a: energy(heights(a, "zero"), in_box((7.2, 3, 26.4, 20))),
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_broken_twins_of_the_energy_are_caught(a: whence.Attribution, mistake: str) -> None:
    assert value(a, "energy") != pytest.approx(BROKEN[mistake](a), abs=1e-3)


def test_broken_twins_of_the_overlap_are_caught(a: whence.Attribution) -> None:
    map_, box = heights(a, "zero"), in_box(BOX)
    found = reaching(map_, 0.25)
    assert value(a, "iou", threshold=0.25) != pytest.approx(len(found & box) / len(box), abs=1e-3)
    assert value(a, "box_iou", threshold=0.25) != pytest.approx(iou(largest_part(found), box), abs=1e-3)
    assert value(a, "box_iou", threshold=0.25) != pytest.approx(iou(around(found), box), abs=1e-3)


# ---- chance, several boxes, crops ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scores", [1.0, 0.3, 0.0, -2.0])
def test_an_equal_map_has_the_area_of_the_box(a: whence.Attribution, scores: float) -> None:
    equal = replace(a, scores=np.full(a.scores.shape, scores))
    area = len(in_box(BOX)) / (40 * 32)
    for measure in ("pointing", "energy", "iou", "box_iou"):
        for base in ("zero", "lowest"):
            assert value(equal, measure, base=base) == pytest.approx(area)


def test_several_boxes_are_one_region(a: whence.Attribution) -> None:
    boxes, both = [(0, 0, 8, 8), (20, 5, 30, 31)], np.zeros((32, 40), bool)
    both[:8, :8] = both[5:31, 20:30] = True
    for measure in ("energy", "iou", "box_iou", "pointing", "map"):
        assert value(a, measure, {"box": boxes}) == value(a, measure, both)
    assert value(a, "energy", {"box": [8.6, 3, 33.4, 20]}) == value(a, "energy", {"box": [9, 3, 33, 20]})


def test_a_box_of_a_cropped_picture(a: whence.Attribution) -> None:
    """Pixels that were cut off have no energy, and a box may lie on both sides of the cut."""
    cropped = replace(a, input=replace(a.input, size=(64, 32), box=(16, 0, 48, 32)))
    seen = replace(a, input=replace(a.input, size=(32, 32), box=(0, 0, 32, 32)))
    for base in ("zero", "lowest"):
        inside = value(seen, "energy", {"box": [0, 4, 10, 20]}, base=base)
        assert value(cropped, "energy", {"box": [6, 4, 26, 20]}, base=base) == pytest.approx(inside)
    assert value(cropped, "energy", {"box": [0, 0, 16, 32]}) == 0
    equal = replace(cropped, scores=np.ones(a.scores.shape))
    assert value(equal, "energy", {"box": [0, 0, 32, 32]}) == pytest.approx(0.5)
    assert value(equal, "iou", {"box": [0, 0, 32, 32]}) == pytest.approx(16 / 48)


# ---- tables, and what is refused -------------------------------------------------------------------------------------

BAD_BOXES = [
    ([5, 5, 5, 9], "is empty or reversed"),
    ([9, 5, 3, 9], "is empty or reversed"),
    ([3, 9, 9, 5], "is empty or reversed"),
    ([math.nan, 0, 9, 9], "is empty or reversed"),
    ([0, 0, 41, 9], "outside of the picture, which is 40 x 32"),
    ([-1, 0, 9, 9], "outside of the picture"),
    ([0, 0, 9, math.inf], "outside of the picture"),
    ([0.6, 0, 0.9, 9], "the centre of no pixel"),
    ([1, 2, 3], "a box is four numbers"),
    ([[1, 2, 3, 4], [1, 2]], "one mark per score, per pixel or per word"),
    ([], "a box is four numbers"),
    ("all", "a box is four numbers"),
]


@pytest.mark.parametrize(("box", "message"), BAD_BOXES)
def test_bad_boxes_are_refused_in_one_sentence(a: whence.Attribution, box: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        value(a, "energy", {"box": box})
    assert "\n" not in str(error.value)


def test_a_box_needs_a_picture() -> None:
    text = whence.explain(subject_of("bert"), "the film", "random", 1)
    with pytest.raises(ValueError, match="this input has no picture"):
        whence.score(subject_of("bert"), text, "localisation", truth={"box": BOX})


def table(folder: Path, rows: str, header: str = "image,label,x0,y0,x1,y1") -> Path:
    PICTURES[0].save(folder / "a.png")
    Image.fromarray(PICTURES[1]).save(folder / "b.png")
    file = folder / "boxes.csv"
    file.write_text(f"{header}\n{rows}\n")
    return file


def test_a_table_of_boxes(tmp_path: Path) -> None:
    subject = subject_of("vit")
    file = table(tmp_path, "a.png,1,9,3,33,20\nb.png,0,0,0,24,18\na.png,1,,,,")
    metrics = ["localisation(measure='energy')", "localisation(measure='iou', base='lowest')"]
    board = whence.evaluate(subject, file, ["gradient", "random"], metrics)
    explained = whence.explain(subject, [PICTURES[0], PICTURES[1]], "gradient", [1, 0])
    for n, metric in enumerate(metrics):
        truths = [{"box": [9, 3, 33, 20]}, {"box": [0, 0, 24, 18]}]
        expected = whence.score(subject, explained, metric, truth=truths).values
        np.testing.assert_allclose(board.values[0, n], [*expected, np.nan], rtol=1e-5)
    chance = (24 * 17 / 1280 + 0.5) / 2
    assert [note for note in board.notes if note.startswith("Chance")] == [
        f"Chance, a map that is the same everywhere: {chance:.3f} by {metric}." for metric in metrics
    ]
    [picture] = whence.evaluate(
        subject, [{"image": PICTURES[0], "x0": 9, "y0": 3, "x1": 33, "y1": 20}], ["random"], [metrics[0]]
    ).values[0, 0]
    assert 0 < picture < 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a.png,1,9,3,33,50", "example 0: the box 9, 3, 33, 50 reaches outside of the picture"),
        ("a.png,1,9,3,,20", "row 1 needs numbers in all of x0, y0, x1 and y1, and has x0='9', y0='3', y1='20'"),
        ("a.png,1,9,3,wide,20", "row 1 needs numbers in all of x0, y0, x1 and y1, and has .*x1='wide'"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        whence.evaluate(subject_of("vit"), table(tmp_path, rows), ["random"], ["localisation(measure='energy')"])


def test_a_row_has_one_truth(tmp_path: Path) -> None:
    file = table(tmp_path, "a.png,mask.png,1,2,3,4", "image,truth,x0,y0,x1,y1")
    with pytest.raises(ValueError, match="row 1 has a truth and a box; leave one of them empty"):
        whence.evaluate(subject_of("vit"), file, ["random"], ["localisation"])


# ---- insertion and deletion with blur --------------------------------------------------------------------------------


def blurred_curve(a: whence.Attribution, *, insert: bool, sigma: float = 8) -> list[float]:
    """p of the class as patches of 8 x 8 pixels come or go one at a time, blurred ones standing in for them."""
    subject = subject_of("vit")
    pixels = a.input.tensors["pixel_values"]
    blurred = np.stack([gaussian_filter(channel, sigma) for channel in pixels])
    shown, hidden = (blurred.copy(), pixels) if insert else (pixels.copy(), blurred)
    variants = [shown.copy()]
    for patch in sorted(range(16), key=lambda n: -a.scores[1 + n]):
        y, x = 8 * (patch // 4), 8 * (patch % 4)
        shown[:, y : y + 8, x : x + 8] = hidden[:, y : y + 8, x : x + 8]
        variants.append(shown.copy())
    with torch.no_grad():
        logits = subject.model(pixel_values=torch.from_numpy(np.stack(variants))).logits
    return logits.softmax(-1)[:, 1].tolist()


@pytest.mark.parametrize("name", ["insertion", "deletion"])
def test_insertion_and_deletion_with_blur(a: whence.Attribution, name: str) -> None:
    found = whence.score(subject_of("vit"), a, name, mask="blur")
    area = np.trapezoid(blurred_curve(a, insert=name == "insertion"), dx=1 / 16)
    assert found.value == pytest.approx(area, abs=1e-5) and found.hidden == "blur"
    narrow = np.trapezoid(blurred_curve(a, insert=name == "insertion", sigma=1), dx=1 / 16)
    turned = np.trapezoid(blurred_curve(replace(a, scores=-a.scores), insert=name == "insertion"), dx=1 / 16)
    other = np.trapezoid(blurred_curve(a, insert=name != "insertion"), dx=1 / 16)
    for broken in (narrow, turned, other, whence.score(subject_of("vit"), a, name, mask="mean").value):
        assert found.value != pytest.approx(broken, abs=1e-5)
