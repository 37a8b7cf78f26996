"""Methods, concepts and units of `photos` on real pictures: `python benchmarks/vision.py --data FOLDER` prints tables.

FOLDER holds `tiny_imagenet16` (val.tar of label/file.JPEG, and boxes.csv: split, file, label, x0, y0, x1, y1, the last
two inclusive). Every line of `out/vision.jsonl` holds what one method has on one picture; a stopped run is
continued from there. `--only methods`, `concepts` or `units` prints one part. The tables stand in docs/vision.md.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import whence
from whence import zoo
from whence.core.statistics import bootstrap
from whence.measure.plans import Plan, encode_examples, run_chunk
from whence.model.identity import model_hash

THRESHOLDS = tuple(round(0.1 * n, 1) for n in range(1, 10))
REGION = ("localisation", "localisation(measure='energy')")
OVERLAP = tuple(f"localisation(measure='iou', threshold={t}, base='lowest')" for t in THRESHOLDS)
BOXES = tuple(f"localisation(measure='box_iou', threshold={t}, base='lowest')" for t in THRESHOLDS)
CURVES = ("insertion(steps=8, mask='blur')", "deletion(steps=8, mask='blur')")
SEGMENTS = tuple(f"localisation(measure={m!r})" for m in ("pixel_accuracy", "map", "miou"))
PIXELS = ("negative_perturbation", "positive_perturbation")
METRICS = (*REGION, *OVERLAP, *BOXES, *CURVES, *SEGMENTS)

# Methods with published figures for ViT-B: pixel accuracy, mAP and mIoU against segmentations; AUC of accuracy while
# pixels are blackened from the lowest score and from the highest (Chefer et al. 2021).
PUBLISHED = {
    "attention": (67.84, 80.24, 46.37, 45.55, 23.99),
    "rollout": (73.54, 84.76, 55.42, 53.10, 20.05),
    "grad_cam(of='attention')": (64.44, 71.60, 40.82, 41.52, 34.06),
    "transformer_attribution": (79.70, 86.03, 61.95, 54.16, 17.03),
    "gae": (np.nan, np.nan, np.nan, 54.61, 17.32),
}
BASELINES = ("uniform", "centre", "random")
CHUNK = 4  # pictures that are explained and written down together

CONCEPTS = ("dotted", "red", "yellow", "orange", "blue")
CLASSES = ("ladybug", "school bus", "goldfish", "monarch butterfly", "orange", "African elephant")
UNITS = (
    *("mlp:0:100", "mlp:1:200", "mlp:2:300", "mlp:3:400", "mlp:4:500"),
    *("head:2:1", "head:4:3", "channel(3, 17)"),
    *("ladybug", "school bus"),
)

SHOWN = ("gae", "transformer_attribution", "attnlrp", "leave_one_out", "grad_cam")  # methods whose maps are drawn


@dataclass(frozen=True)
class Photo:
    """A picture with its label and the box of the object."""

    name: str
    pixels: np.ndarray  # (height, width, 3) uint8
    label: str
    box: tuple[int, int, int, int]  # left, top, right, bottom edge


# ---- baselines -------------------------------------------------------------------------------------------------------


@whence.method(family="baseline", signed=False)
def uniform(subject: Any, batch: Any, target: Any) -> torch.Tensor:
    """The same score everywhere: what is left to chance and to the size of the box."""
    subject.values(batch, target)
    return torch.ones(batch.mask.shape)


@whence.method(family="baseline", signed=False)
def centre(subject: Any, batch: Any, target: Any) -> torch.Tensor:
    """The middle of the picture, whatever it shows: a bell of a quarter of the side. Objects stand in the middle."""
    subject.values(batch, target)
    scores = torch.zeros(batch.mask.shape)
    for row, item in enumerate(batch.inputs):
        rows, columns = item.grid
        y, x = np.meshgrid((np.arange(rows) + 0.5) / rows, (np.arange(columns) + 0.5) / columns, indexing="ij")
        bell = np.exp(-((y - 0.5) ** 2 + (x - 0.5) ** 2) / (2 * 0.25**2))
        scores[row, torch.from_numpy(~item.special)] = torch.from_numpy(bell.ravel()).float()
    return scores


# ---- data ------------------------------------------------------------------------------------------------------------


def photos_of(folder: Path) -> list[Photo]:
    """The validation pictures, in the order of their names."""
    with (folder / "boxes.csv").open(encoding="utf-8") as lines:
        rows = {row["file"]: row for row in csv.DictReader(lines) if row["split"] == "val"}
    found = []
    with tarfile.open(folder / "val.tar") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                row = rows[member.name]
                x0, y0, x1, y1 = (int(row[key]) for key in ("x0", "y0", "x1", "y1"))
                with Image.open(io.BytesIO(content.read())) as picture:
                    pixels = np.asarray(picture.convert("RGB"))
                found.append(Photo(member.name, pixels, row["label"], (x0, y0, x1 + 1, y1 + 1)))
    return sorted(found, key=lambda photo: photo.name)


def balanced(photos: Sequence[Photo], count: int, seed: int) -> list[Photo]:
    """So many pictures, every class in turn."""
    rng = np.random.default_rng(seed)
    of_class: dict[str, list[Photo]] = {}
    for number in rng.permutation(len(photos)):
        of_class.setdefault(photos[number].label, []).append(photos[number])
    turns = [[of_class[label][turn] for label in sorted(of_class)] for turn in range(min(map(len, of_class.values())))]
    return [photo for turn in turns for photo in turn][:count]


# ---- methods ---------------------------------------------------------------------------------------------------------


def measure(subject: whence.Subject, photos: Sequence[Photo], method: str, file: Path) -> dict[str, np.ndarray]:
    """Every metric of one method, (picture,); pictures that the file holds are not run again."""
    metrics = (*METRICS, *PIXELS) if method in PUBLISHED else METRICS
    weights, known = model_hash(subject), {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        row = json.loads(line)
        if (row["method"], row["weights"]) == (method, weights) and set(metrics) <= row["values"].keys():
            known[row["picture"]] = row["values"]
    missing = [photo for photo in photos if photo.name not in known]
    for start in range(0, len(missing), CHUNK):
        chunk = missing[start : start + CHUNK]
        raws, truths = [photo.pixels for photo in chunk], [{"box": photo.box} for photo in chunk]
        examples, encoded = encode_examples(subject, raws, [[photo.label] for photo in chunk], truths, False)
        plan = Plan(subject.name, weights, examples, (method,), metrics)
        values = run_chunk(plan, range(len(chunk)), subject, encoded.items).values[0, :, :, 0]  # (metric, picture)
        with file.open("a", encoding="utf-8") as lines:
            for photo, column in zip(chunk, values.T, strict=True):
                known[photo.name] = dict(zip(metrics, column.tolist(), strict=True))
                line = {"method": method, "weights": weights, "picture": photo.name, "values": known[photo.name]}
                lines.write(json.dumps(line) + "\n")
    return {metric: np.array([known[photo.name][metric] for photo in photos]) for metric in metrics}


def with_interval(values: np.ndarray) -> str:
    """Mean and 95 % bootstrap interval."""
    mean, (low, high) = bootstrap(values, 0)
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


def best_threshold(found: dict[str, np.ndarray], metrics: Sequence[str], level: float | None = None) -> str:
    """The mean at the threshold where it is highest over all pictures; given a level, how often it is reached."""
    columns = [found[metric] if level is None else _reached(found[metric], level) for metric in metrics]
    best = int(np.argmax([np.nanmean(column) for column in columns]))
    return f"{with_interval(columns[best])} at {THRESHOLDS[best]}"


def _reached(values: np.ndarray, level: float) -> np.ndarray:
    return np.where(np.isnan(values), np.nan, values >= level)


def print_methods(subject: whence.Subject, photos: Sequence[Photo], methods: Sequence[str], file: Path) -> None:
    """Tables of localisation, and of insertion and deletion, then one beside published figures."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for method in dict.fromkeys([*BASELINES, *methods]):
        try:
            found[method] = measure(subject, photos, method, file)
        except ValueError as error:
            print(f"{method} does not apply: {error}", flush=True)
    print("\n| method | pointing | energy | IoU, best threshold | box IoU >= 0.5, best threshold |")
    print("|---|---:|---:|---:|---:|")
    print("\n".join(localisation_rows(found)))
    print("\n| method | insertion | deletion | difference |\n|---|---:|---:|---:|")
    print("\n".join(curve_rows(found)))
    print("\n| method | pixel accuracy | mAP | mIoU | negative | positive |\n|---|---:|---:|---:|---:|---:|")
    for method, published in PUBLISHED.items():
        if method in found:
            ours = [100 * np.nanmean(found[method][metric]) for metric in (*SEGMENTS, *PIXELS)]
            pairs = zip(ours, published, strict=True)
            cells = [f"{value:.1f} ({'-' if np.isnan(known) else known})" for value, known in pairs]
            print(f"| `{method}` | " + " | ".join(cells) + " |")


def localisation_rows(found: dict[str, dict[str, np.ndarray]]) -> list[str]:
    """The rows of methods, the highest energy first."""
    rows = []
    for method, one in sorted(found.items(), key=lambda pair: -np.nanmean(pair[1][REGION[1]])):
        cells = [with_interval(one[metric]) for metric in REGION]
        cells += [best_threshold(one, OVERLAP), best_threshold(one, BOXES, 0.5)]
        rows.append(f"| {_named(method)} | " + " | ".join(cells) + " |")
    return rows


def curve_rows(found: dict[str, dict[str, np.ndarray]]) -> list[str]:
    """The rows of methods, the largest difference of insertion and deletion first."""
    gaps = {method: one[CURVES[0]] - one[CURVES[1]] for method, one in found.items()}
    rows = []
    for method, gap in sorted(gaps.items(), key=lambda pair: -pair[1].mean()):
        cells = [with_interval(values) for values in (found[method][CURVES[0]], found[method][CURVES[1]], gap)]
        rows.append(f"| {_named(method)} | " + " | ".join(cells) + " |")
    return rows


def _named(method: str) -> str:
    return f"*{method}*" if method in BASELINES else f"`{method}`"


# ---- concepts and units ----------------------------------------------------------------------------------------------


def print_concepts(subject: whence.Subject, photos: Sequence[Photo], layers: Sequence[int]) -> None:
    """For every class and concept: effect, score, p and verdict; then the accuracy of the probes."""
    rule = "\n|---|---:|" + "---:|" * len(CONCEPTS)
    print("\n| class | layer | " + " | ".join(CONCEPTS) + " |" + rule)
    sets = {name: zoo.concepts(name, 50) for name in CONCEPTS}
    random = zoo.concepts("random", 1000, seed=1)
    for label in CLASSES:
        own = [photo.pixels for photo in photos if photo.label == label]
        g = whence.concept(subject, sets, label, own, random=random, layers=list(layers))
        for n, layer in enumerate(layers):
            cells = [
                f"{g.effect(c, layer):+.1f} ({g.score(c, layer):.2f}), p {g.corrected[i, n]:.3f}: {g.verdict(c, layer)}"
                for i, c in enumerate(CONCEPTS)
            ]
            print(f"| {label} | {layer} | " + " | ".join(cells) + " |", flush=True)
    print(
        "\n| probe's accuracy at layer | random | " + " | ".join(CONCEPTS) + " |\n|---:|---:|" + "---:|" * len(CONCEPTS)
    )
    for n, layer in enumerate(layers):
        cells = [f"{g.accuracy(c, layer):.2f}" for c in CONCEPTS]
        print(f"| {layer} | {g.random_accuracies[0, n].mean():.2f} | " + " | ".join(cells) + " |")


def print_units(subject: whence.Subject, photos: Sequence[Photo], steps: int, views: int, picture: Path | None) -> None:
    """The activation of made pictures beside the highest over all validation pictures."""
    m = whence.maximize(subject, list(UNITS), [photo.pixels for photo in photos], steps=steps, views=views)
    assert m.excited is not None
    print(f"\n| unit | made picture | highest of {len(photos)} pictures | ratio |\n|---|---:|---:|---:|")
    for target, real, highest in zip(m.targets, m.real, m.excited[:, 0], strict=True):
        print(f"| {target} | {real:.2f} | {highest:.2f} | {real / highest:.1f} |")
    if picture is not None:
        side, gap = 2 * m.made[0].shape[0], 6
        sheet = Image.new("RGB", (5 * (side + gap) - gap, 2 * (side + gap) - gap), "white")
        for number, made in enumerate(m.made):
            place = (number % 5 * (side + gap), number // 5 * (side + gap))
            sheet.paste(Image.fromarray(made).resize((side, side), Image.Resampling.NEAREST), place)
        sheet.quantize(128).save(picture, optimize=True)


def draw_maps(subject: whence.Subject, file: Path) -> None:
    """Maps of five methods over three drawings that the zoo may show, and that the model classifies rightly."""
    drawn = [zoo.examples("photos", 16, seed=3)[number] for number in (8, 9, 13)]
    maps = whence.compare(subject, [one.input for one in drawn], list(SHOWN))
    buffer = io.BytesIO()
    whence.PictureGrid(tuple(maps), tuple(one.label for one in drawn)).plot().savefig(buffer, format="png", dpi=72)
    Image.open(buffer).convert("RGB").quantize(96).save(file, optimize=True)


def main() -> None:
    """Print all tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds tiny_imagenet16")
    parser.add_argument("--model", default="photos")
    parser.add_argument("--only", nargs="+", default=["methods", "concepts", "units"])
    parser.add_argument("--pictures", type=int, default=200)
    names = [record.name for record in whence.list_methods()]
    parser.add_argument("--methods", nargs="+", default=[*names, "grad_cam(of='attention')"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out/vision.jsonl"))
    parser.add_argument("--layers", nargs="+", type=int, default=[1, 3, 5])
    parser.add_argument("--steps", type=int, default=100, help="of the search for what excites a unit")
    parser.add_argument("--views", type=int, default=4, help="of a step of that search")
    parser.add_argument("--picture", type=Path, help="write what was made for the units as one picture")
    parser.add_argument("--maps", type=Path, help="write maps over drawings as one picture, and do nothing else")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    subject = whence.load(options.model)
    if options.maps is not None:
        draw_maps(subject, options.maps)
        return
    photos = photos_of(options.data / "tiny_imagenet16")
    if "methods" in options.only:
        print_methods(subject, balanced(photos, options.pictures, options.seed), options.methods, options.out)
    if "concepts" in options.only:
        print_concepts(subject, photos, options.layers)
    if "units" in options.only:
        print_units(subject, photos, options.steps, options.views, options.picture)


if __name__ == "__main__":
    main()
