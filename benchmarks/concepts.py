"""Is a concept called significant no more often than it should be? `python benchmarks/concepts.py` prints two tables.

The first table: for every class of `textures`, effect, score and verdict of every concept. The second table: sets of
random pictures taken for concepts, each told apart from counter-sets; the share that is called significant at the
level .05 by ranks among random concepts and by the t-test of the TCAV paper, with Wilson's 95 % interval.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import whence
from whence import zoo

CONCEPTS = ("striped", "dotted", "checked", "zigzag", "plain", "red", "blue", "round", "star")


def main() -> None:
    """Print both tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=1000, help="sets of random pictures")
    parser.add_argument("--size", type=int, default=20, help="pictures of such a set")
    parser.add_argument("--layer", type=int, default=3)
    options = parser.parse_args()
    subject = whence.load("textures")
    print(f"Effect (and TCAV score) at layer {options.layer}.\n")
    print("| class | " + " | ".join(CONCEPTS) + " |\n|---|" + "---:|" * len(CONCEPTS), flush=True)
    for label in subject.labels or ():
        g = whence.concept(subject, list(CONCEPTS), label, layers=[options.layer])
        cells = [
            f"{g.effect(c, options.layer):+.1f} ({g.score(c, options.layer):.2f}) {g.verdict(c, options.layer)}"
            for c in CONCEPTS
        ]
        print(f"| {label} | " + " | ".join(cells) + " |", flush=True)
    print(f"\n{options.sets} sets of {options.size} random pictures as concepts, level .05.\n")
    print("| test | called significant | 95 % |\n|---|---:|---:|", flush=True)
    for test in ("rank", "t"):
        called = _called(subject, test, options)
        low, high = _wilson(called, options.sets)
        print(f"| {test} | {called / options.sets:.1%} | {low:.1%} to {high:.1%} |", flush=True)


def _called(subject: whence.Subject, test: Any, options: argparse.Namespace) -> int:
    """How many sets of random pictures a test calls significant, before any correction."""
    size = options.size
    pictures = [p for part in range(options.sets // 50) for p in zoo.concepts("random", 50 * size, seed=100 + part)]
    sets = {f"set {n}": pictures[size * n : size * (n + 1)] for n in range(len(pictures) // size)}
    random = zoo.concepts("random", 40 * size, seed=1)
    settings: dict[str, Any] = {"layers": [options.layer], "random_concepts": 999, "random": random, "test": test}
    return int((whence.concept(subject, sets, "striped", **settings).p <= 0.05).sum())


def _wilson(called: int, count: int) -> tuple[float, float]:
    """Wilson's interval of a share."""
    z, share = 1.96, called / count
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return middle - half, middle + half


if __name__ == "__main__":
    main()
