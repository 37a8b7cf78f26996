"""Does arbitration pay? Chosen explanations against the best single method and plain attention, by a metric that did
not make the choice.

    python benchmarks/arbitration.py --data FOLDER [--sentences 100] [--threads 2]

On sentences of SST-2 dev with `sst2`: a choice for every sentence among the grid of attention, and among the grid and
other methods; and one choice for all, made on half of the sentences and judged on the others.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console

import whence

METHODS = ["gae", "lrp", "attnlrp", "decompx", "integrated_gradients", "leave_one_out"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds sst2/dev.tsv")
    parser.add_argument("--sentences", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = (options.data / "sst2" / "dev.tsv").read_text(encoding="utf-8").split("\n")[1 : options.sentences + 1]
    texts = [line.split("\t", 1)[1] for line in lines]
    subject, console = whence.load("sst2"), Console(width=120)
    judges = ["comprehensiveness", "sufficiency", "auac"]
    for candidates in (["grid"], ["grid", *METHODS]):
        for choice in ({"by": "instance"}, {"by": "set", "fit": len(texts) // 2}):
            console.print(whence.arbitrate(subject, texts, candidates, held_out=judges, **choice))


if __name__ == "__main__":
    main()
