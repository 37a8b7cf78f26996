"""The cost of `whence audit` beside a plain loop that runs the whole model again for every variant.

    python benchmarks/audit.py --data FOLDER [--examples 100] [--beside 3] [--experiments SPEC ...]

`sst2` on sentences of SST-2 dev, read from FOLDER/dev.tsv, all experiments that read or edit attention. The loop asks
the same questions with the same draws: each edited attention and each masked sentence is one pass of the model over one
sentence, with the weights exchanged by an attention function of transformers, and nothing of whence in between. Both
take turns on the first sentences; after these the audit goes on alone to the last sentence.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.models.bert.modeling_bert import eager_attention_forward

import whence
from whence.debate import scenes
from whence.model import masked_runs
from whence.model.attention_runs import AttentionRuns, NewWeights

EDITS: dict[int, tuple[Tensor, Tensor]] = {}  # layer -> weights (head, row, key) and rows, of the variant that runs now


def exchanging(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **options: Any) -> Any:
    """BERT's own attention, with the weights of some rows exchanged."""
    mixed, weights = eager_attention_forward(module, query, key, value, mask, **options)
    if module.layer_idx in EDITS:
        new, rows = EDITS[module.layer_idx]
        weights = weights.index_copy(2, rows, new[None])
        mixed = (weights @ value).transpose(1, 2)
    return mixed, weights


class PlainLoop(AttentionRuns):
    """Runs of edited attention by a plain loop: every variant is one pass of the whole model."""

    def logits(
        self, edits: Mapping[int, NewWeights], *, variants: int = 1, whole: bool = False, graph: bool = False
    ) -> Tensor:
        """The logits of all variants, one after the other."""
        model: Any = self.subject.model
        before = model.config._attn_implementation
        model.config._attn_implementation = "exchanging"
        found = []
        try:
            for variant in range(variants):
                EDITS.update({n: (new.weights[variant], new.rows) for n, new in edits.items()})
                with torch.set_grad_enabled(graph):
                    found.append(model(**self.batch.tensors).logits)
        finally:
            model.config._attn_implementation = before
            EDITS.clear()
        return torch.cat(found)


@contextlib.contextmanager
def plain() -> Iterator[None]:
    """A scope in which an audit runs the whole model for every variant, and masked sentences one by one."""
    with mock.patch.object(scenes, "AttentionRuns", PlainLoop), mock.patch.object(masked_runs, "MAX_ROWS", 1):
        yield


def timed(subject: whence.Subject, text: str, experiments: list[str] | None, loop: bool) -> tuple[Any, float, float]:
    """An audit of one sentence, its seconds by the clock and by the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    with plain() if loop else contextlib.nullcontext():
        found = whence.audit(subject, [text], experiments)
    return found, time.perf_counter() - clock, time.process_time() - processor


def same(one: whence.Audit, other: whence.Audit) -> float:
    """The greatest difference between the numbers of two audits, adversaries aside: their searches amplify rounding."""
    pairs = [
        (a.values, b.values)
        for f, g in zip(one, other, strict=True)
        for a, b in zip(f.quantities, g.quantities, strict=True)
        if f.name != "adversary"
    ]
    return max(float(np.nanmax(np.abs(a - b), initial=0.0)) for a, b in pairs)


def main() -> None:
    """Run, and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--beside", type=int, default=3, help="sentences on which the plain loop is run, too")
    parser.add_argument("--experiments", nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    AttentionInterface.register("exchanging", exchanging)
    with (options.data / "dev.tsv").open(encoding="utf-8", newline="") as lines:
        texts = [row["content"] for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)]
    subject = whence.load("sst2")
    whence.audit(subject, texts[:1], ["erasure"])  # the first call finds out about the model
    took = {"audit": np.zeros(2), "the same sentences": np.zeros(2), "plain loop": np.zeros(2)}
    for number, text in enumerate(texts[: options.examples]):
        found, *seconds = timed(subject, text, options.experiments, loop=False)
        took["audit"] += seconds
        if number < options.beside:
            again, *slow = timed(subject, text, options.experiments, loop=True)
            took["the same sentences"] += seconds
            took["plain loop"] += slow
            gap = same(found, again)
            print(
                f"sentence {number}: {seconds[1]:.1f} s against {slow[1]:.1f} s; numbers differ by {gap:.1e}",
                flush=True,
            )
    count = min(options.examples, len(texts))
    print(f"audit of {count} sentences: {took['audit'][0]:.0f} s by the clock, {took['audit'][1]:.0f} s of processor")
    ratios = took["plain loop"] / took["the same sentences"]
    print(f"the plain loop takes {ratios[0]:.1f} times as long by the clock, {ratios[1]:.1f} times by the processor")


if __name__ == "__main__":
    main()
