"""Speed as ratios: each measurement and its named peer in one run, interleaved, medians compared.

    python benchmarks/run.py [NAME ...] [--repeats 7] [--threads 2]

Ratios carry over from machine to machine where seconds do not; they are printed, never asserted.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from transformers import BertConfig, BertForSequenceClassification

import whence
from whence.types import Input


class Race(NamedTuple):
    """One line of the table: what is measured, against what, and how far it may go."""

    name: str
    peer: str
    goal: str
    ours: Callable[[], object]
    theirs: Callable[[], object]


def interleaved(race: Race, repeats: int) -> tuple[float, float]:
    """Median seconds of both sides, taken turn by turn so that a busy machine slows both alike."""
    race.ours(), race.theirs()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for side, run in enumerate((race.ours, race.theirs)):
            start = time.perf_counter()
            run()
            times[side].append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1])


def bert() -> BertForSequenceClassification:
    """A bert-base-shaped model with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BertForSequenceClassification(BertConfig()).eval().requires_grad_(False)


def example(length: int, seed: int) -> Input:
    """An encoded text of random tokens, as an encoder without a tokenizer would give it."""
    ids = np.random.default_rng(seed).integers(1000, 20000, length)
    ones = np.ones(length, np.int64)
    return Input(
        raw="random tokens",
        features=tuple(map(str, ids)),
        streams=("text",) * length,
        special=np.zeros(length, bool),
        tensors={"input_ids": ids, "attention_mask": ones, "token_type_ids": 0 * ones},
        words=np.arange(length),
        offsets=np.full((length, 2), -1),
        parts=("",) * length,
    )


def plain_pass(model: BertForSequenceClassification, tensors: dict[str, torch.Tensor]) -> Callable[[], None]:
    """The model's own eager forward and backward pass to its word embeddings, parameters frozen."""

    def run() -> None:
        model.set_attn_implementation("eager")
        leaves = []

        def leaf(module: object, args: object, output: torch.Tensor) -> torch.Tensor:
            leaves.append(output.detach().requires_grad_())
            return leaves[0]

        handle = model.get_input_embeddings().register_forward_hook(leaf)
        try:
            torch.autograd.grad(model(**tensors).logits[:, 0].sum(), leaves)
        finally:
            handle.remove()
            model.set_attn_implementation("sdpa")

    return run


def trace_race() -> Race:
    model = bert()
    subject = whence.wrap(model, task="text-classification")
    batch = subject.batch([example(128, seed) for seed in range(8)])

    def ours() -> None:
        batch.trace = None
        subject.trace(batch, subject.aim([0] * len(batch)), ("attention", "attention_gradient"))

    goal = "all attention maps and their gradients, 8 x 128 tokens"
    return Race(goal, "plain eager forward+backward", "<= 1.15", ours, plain_pass(model, batch.tensors))


def batching_race() -> Race:
    model = bert()
    items = [example(12, seed) for seed in range(32)]
    subject = whence.wrap(
        model, encode=lambda raw: {"tensors": items[raw].tensors, "features": {"text": items[raw].features}}
    )

    def together() -> None:
        whence.explain(subject, list(range(32)), method="gradient_x_input")

    def alone() -> None:
        for number in range(32):
            whence.explain(subject, number, method="gradient_x_input")

    return Race("32 texts of 12 tokens in one call", "one at a time", "<= 0.33", together, alone)


def help_race() -> Race:
    def ours() -> None:
        subprocess.run([sys.executable, "-m", "whence", "--help"], check=True, capture_output=True)

    def theirs() -> None:
        subprocess.run([sys.executable, "-c", "import torch"], check=True, capture_output=True)

    return Race("whence --help", "python -c 'import torch'", "< 1 second", ours, theirs)


RACES: dict[str, Callable[[], Race]] = {"trace": trace_race, "batching": batching_race, "help": help_race}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", choices=[[], *RACES], help=f"which to run: {', '.join(RACES)}; all by default"
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = Table("measured", "peer", "ratio", "goal", "seconds", "peer's seconds")
    for race, ours, theirs in _measured(options.names or list(RACES), options.repeats):
        table.add_row(race.name, race.peer, f"{ours / theirs:.2f}", race.goal, f"{ours:.3f}", f"{theirs:.3f}")
    Console().print(table)


def _measured(names: list[str], repeats: int) -> Iterator[tuple[Race, float, float]]:
    for name in names:
        race = RACES[name]()
        yield race, *interleaved(race, repeats)


if __name__ == "__main__":
    main()
