"""Cost against length: time and peak memory of GAE and Grad-SAM beside the model's own SDPA forward+backward pass.

    python benchmarks/length.py [--lengths 128 512 2048 4096] [--plot docs/length.png]

A bert-base-shaped model with random weights, one text. Every measurement is a process of its own: memory is the highest
resident size above that of the loaded model, seconds are the best of two passes after a short one.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

import whence
from run import example, known

WHATS = ("plain", "gae", "grad_sam", "rollout")


def resident() -> float:
    """The most memory this process held so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(what: str, length: int) -> dict[str, float]:
    """Seconds and MB above the loaded model of one pass."""
    torch.manual_seed(0)
    config = BertConfig(max_position_embeddings=max(512, length), attn_implementation="sdpa")
    model = BertForSequenceClassification(config).eval().requires_grad_(False)
    subject = known(model, [example(64, 0), example(length, 1)])

    def run(number: int) -> None:
        if what != "plain":
            whence.explain(subject, number, what, 0)
            return
        tensors = subject.batch([subject.encode(number)]).tensors
        leaves = []

        def leaf(module: object, args: object, output: torch.Tensor) -> torch.Tensor:
            leaves.append(output.detach().requires_grad_())
            return leaves[0]

        handle = model.get_input_embeddings().register_forward_hook(leaf)
        torch.autograd.grad(model(**tensors).logits[:, 0].sum(), leaves)
        handle.remove()

    run(0)
    before, seconds = resident(), []
    for _ in range(2):
        start = time.perf_counter()
        run(1)
        seconds.append(time.perf_counter() - start)
    return {"seconds": min(seconds), "mb": resident() - before}


def drawn(found: dict[str, dict[int, dict[str, float]]], file: Path) -> None:
    """Time and memory against length, on logarithmic axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, key, label in zip(
        figure.subplots(1, 2), ("seconds", "mb"), ("seconds", "MB above the model"), strict=True
    ):
        for what, by_length in found.items():
            name = "SDPA forward+backward" if what == "plain" else what
            axes.plot(list(by_length), [v[key] for v in by_length.values()], "o-", label=name)
        axes.set(xlabel="tokens", ylabel=label, xscale="log", yscale="log")
        axes.set_xticks(list(by_length), [str(length) for length in by_length])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=130)


def main() -> None:
    """Measure, print a table and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096])
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return
    found: dict[str, dict[int, dict[str, float]]] = {what: {} for what in WHATS}
    print("| tokens | " + " | ".join(f"{what}: s, MB" for what in WHATS) + " | ratios to plain |")
    print("|---:|" + "---:|" * (len(WHATS) + 1), flush=True)
    for length in options.lengths:
        for what in WHATS:
            command = [sys.executable, __file__, "--one", what, str(length), "--threads", str(options.threads)]
            result = subprocess.run(command, check=True, capture_output=True, text=True)
            found[what][length] = json.loads(result.stdout.splitlines()[-1])
        cells = [f"{found[w][length]['seconds']:.2f}, {found[w][length]['mb']:.0f}" for w in WHATS]
        plain = found["plain"][length]
        ratios = [
            f"{w} {found[w][length]['seconds'] / plain['seconds']:.2f} x, {found[w][length]['mb'] / plain['mb']:.2f} x"
            for w in WHATS[1:]
        ]
        print(f"| {length} | " + " | ".join(cells) + " | " + "; ".join(ratios) + " |", flush=True)
    if options.plot:
        drawn(found, options.plot)


if __name__ == "__main__":
    main()
