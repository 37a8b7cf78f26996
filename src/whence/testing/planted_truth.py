"""How well a method finds the features that are planted in the embedded models, for tests and benchmarks.

The sizes of scores are judged, without their signs. Special tokens, and the query that ends a prompt of `recall`, are
left out. Words and regions of `shapes`, and the rows of generated text, are measured separately and averaged.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import numpy as np

import whence
from whence.measure.metrics.plausibility import average_precision, top_recall
from whence.zoo.example import Example

MODELS = ("planted", "recall", "dates", "shapes")


def judged(attribution: whence.Attribution, example: Example, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Scores and truth of each row and stream that has deciding features."""
    scores, truth = np.atleast_2d(np.abs(attribution.scores)), np.atleast_2d(np.asarray(example.truth))
    seen = np.atleast_2d(attribution.visible) if attribution.visible is not None else np.ones_like(truth)
    streams = np.array(attribution.input.streams)
    for row in range(len(truth)):
        for stream in dict.fromkeys(streams):
            counted = (streams == stream) & ~np.asarray(attribution.special) & seen[row]
            if name == "recall":
                counted[-1] = False
            if truth[row, counted].any():
                yield scores[row, counted], truth[row, counted]


loaded = functools.cache(whence.load)


def measured(name: str, method: str, count: int, seed: int) -> tuple[float, float, float] | None:
    """Mean average precision, mean top-k recall and seconds per example; None where the method does not apply."""
    subject, examples = loaded(name), whence.zoo.examples(name, count, seed)
    start = time.perf_counter()
    try:
        attributions = whence.explain(subject, [example.input for example in examples], method=method)
    except ValueError as error:
        if "works on" in str(error) or "; " in str(error):
            return None
        raise
    seconds = (time.perf_counter() - start) / count
    pairs = [pair for a, e in zip(attributions, examples, strict=True) for pair in judged(a, e, name)]
    return (
        float(np.mean([average_precision(*pair) for pair in pairs])),
        float(np.mean([top_recall(*pair) for pair in pairs])),
        seconds,
    )
