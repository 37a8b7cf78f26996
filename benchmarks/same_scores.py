"""Do two versions of whence give the same numbers? Scores of every method on every embedded model, saved and compared.

    python benchmarks/same_scores.py --save before.npz          # with one version
    python benchmarks/same_scores.py --against before.npz       # with the other version

A difference is relative to the sum of |scores| of its row, the scale on which scores are read. Metrics are compared
too, for the scores of two methods on `sst2` and `digits`. Only public names are used, so that old versions run as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import torch

import whence

EXAMPLES = 3
MEASURED = ("gae", "gradient_x_input")  # methods whose scores the metrics measure
UNMEASURED = ("implementation_invariance",)  # needs a second model


def explained() -> Iterator[tuple[str, np.ndarray]]:
    """Scores and outputs by "scores METHOD MODEL NUMBER"; a method that refuses a model gives its sentence instead."""
    for card in whence.list_models():
        name = card["name"]
        subject = whence.load(name)
        inputs = [example.input for example in whence.zoo.examples(name, EXAMPLES, seed=1)]
        for record in whence.list_methods():
            try:
                found = whence.explain(subject, inputs, record.name)
            except ValueError as error:
                yield f"scores {record.name} {name} refused", np.array(str(error))
                continue
            for number, a in enumerate(found):
                yield f"scores {record.name} {name} {number}", np.atleast_2d(a.scores)
                yield f"output {record.name} {name} {number}", np.atleast_2d(a.output)


def measured() -> Iterator[tuple[str, np.ndarray]]:
    """Every metric, by "metric METRIC MODEL METHOD"."""
    for name in ("sst2", "digits"):
        subject = whence.load(name)
        examples = whence.zoo.examples(name, EXAMPLES, seed=1)
        for method in MEASURED:
            found = whence.explain(subject, [example.input for example in examples], method)
            truths = [_truth(a) for a in found]
            for record in whence.list_metrics():
                if record.name in UNMEASURED:
                    continue
                try:
                    values = whence.score(subject, found, record.name, truth=truths).values
                except ValueError as error:
                    values = np.array(str(error))
                yield f"metric {record.name} {name} {method}", np.asarray(values)


def _truth(a: whence.Attribution) -> np.ndarray:
    """A truth for metrics that take one: every third feature of a text, the upper left of a picture."""
    if a.input.image is None:
        return np.arange(len(a.features)) % 3 == 1
    marks = np.zeros(a.input.image.shape[:2], bool)
    marks[: len(marks) // 2, : len(marks) // 2] = True
    return marks


def difference(before: np.ndarray, after: np.ndarray) -> float:
    """The largest difference of a row, as a share of the sum of |scores| of that row; infinite where shapes differ."""
    if before.shape != after.shape or (before.dtype.kind in "US") != (after.dtype.kind in "US"):
        return float("inf")
    if before.dtype.kind in "US":
        return 0.0 if str(before) == str(after) else float("inf")
    if not np.array_equal(np.isnan(before), np.isnan(after)):
        return float("inf")
    scale = np.nansum(np.abs(before), -1, keepdims=True)
    gap = np.nan_to_num(np.abs(after.astype(float) - before))
    return float(np.max(gap / np.where(scale > 0, scale, 1.0), initial=0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", help="write the numbers of this version")
    parser.add_argument("--against", help="compare with numbers that were saved")
    options = parser.parse_args()
    torch.set_num_threads(1)  # sums then add up in the same order
    found = dict([*explained(), *measured()])
    if options.save:
        np.savez_compressed(options.save, **found)
        print(f"{len(found)} arrays saved")
    if options.against:
        before = np.load(options.against)
        worst: dict[str, float] = {}
        for key in {*before.files, *found}:
            there = key in before.files and key in found
            name = " ".join(key.split()[:2])
            worst[name] = max(worst.get(name, 0.0), difference(before[key], found[key]) if there else float("inf"))
        for name in sorted(worst):
            print(f"{name:44} {worst[name]:.3g}")
        print(f"largest: {max(worst.values()):.3g} of {len(found)} arrays")


if __name__ == "__main__":
    main()
