"""Evaluating methods by metrics: shared passes against a plain loop, in one run.

    python benchmarks/evaluate.py --data FOLDER [--sentences 200] [--threads 2]

`whence.evaluate` encodes every sentence once, explains in batches whose passes the methods share, and asks the model
about every masked input once, for all methods and metrics; that each method is timed alone on a few sentences is part
of its time. The plain loop takes one sentence, one method and one metric at a time; its masked inputs still go through
the model together, metric by metric. Both must find the same values. The two take turns, a few sentences each, so that
a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

import whence

METHODS = (
    "random", "attention", "rollout", "grad_sam", "gae", "attcat", "gradient", "gradient_x_input", "lrp", "attnlrp",
)  # fmt: skip
METRICS = ("auac", "comprehensiveness", "sufficiency", "loo_agreement", "infidelity")
TURN = 16  # sentences


def plain(subject: whence.Subject, texts: list[str], metrics: list[str]) -> np.ndarray:
    """(method, metric, example)"""
    values = np.zeros((len(METHODS), len(metrics), len(texts)))
    for e, text in enumerate(texts):
        for m, method in enumerate(METHODS):
            for n, metric in enumerate(metrics):
                values[m, n, e] = whence.score(subject, whence.explain(subject, text, method), metric).value
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds sst2/dev.tsv")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--metrics", nargs="+", default=list(METRICS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = (options.data / "sst2" / "dev.tsv").read_text(encoding="utf-8").split("\n")[1 : options.sentences + 1]
    texts = [line.split("\t", 1)[1] for line in lines]
    subject = whence.load("sst2")
    plain(subject, texts[:1], options.metrics)  # the first calls pay for imports
    ours = theirs = 0.0
    for begin in range(0, len(texts), TURN):
        part = texts[begin : begin + TURN]
        start = time.perf_counter()
        board = whence.evaluate(subject, part, METHODS, options.metrics)
        middle = time.perf_counter()
        looped = plain(subject, part, options.metrics)
        ours, theirs = ours + middle - start, theirs + time.perf_counter() - middle
        np.testing.assert_allclose(board.values, looped, rtol=1e-3, atol=1e-3, equal_nan=True)
        print(
            f"{begin + len(part)} sentences: {ours:.0f} s against {theirs:.0f} s, {theirs / ours:.2f} times", flush=True
        )


if __name__ == "__main__":
    main()
