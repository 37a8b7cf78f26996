"""Cost against length and depth: methods beside the model's own fused forward and backward pass, in one run.

    python benchmarks/length.py [--shapes bert decoder windows] [--lengths 512 1024 2048 4096] [--plot docs/length.png]
                                [--depths 6 12 30] [--kept cells.json]

Models have random weights: `bert` is bert-base, `decoder` has 30 layers with grouped queries (hidden 576, 9 heads, 3
key heads: a 135-million-parameter chat model), `windows` is the same with sliding windows of 512 tokens. One text.
Methods and the plain pass take turns in one process; seconds are medians of processor time, memory is the highest
resident size above that before the call. Ratios are to the plain pass. A cell of the table is written to the file
`--kept` as soon as it is measured; cells in that file are not measured again.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)

import whence
from run import example

METHODS = ("gae", "grad_sam", "attention_x_gradient", "rollout", "lrp")
VOCABULARY = 2000
Cost = dict[str, float]  # "seconds" and "mb"
Costs = dict[str, Cost]  # by method, and "plain"


def model_of(shape: str, length: int, depth: int | None) -> torch.nn.Module:
    """A model of a shape, with as many layers as wanted, or as the shape has."""
    options: dict[str, Any] = {"vocab_size": VOCABULARY, "attn_implementation": "sdpa"}
    torch.manual_seed(0)
    if shape == "bert":
        options |= {"max_position_embeddings": max(512, length), "num_hidden_layers": depth or 12}
        model: Any = BertForSequenceClassification(BertConfig(**options))
    else:
        options |= {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": depth or 30}
        options |= {"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192}
        windows = shape == "windows"
        model = (
            MistralForCausalLM(MistralConfig(**options, sliding_window=512))
            if windows
            else LlamaForCausalLM(LlamaConfig(**options))
        )
    return model.eval().requires_grad_(False)


def runs_of(shape: str, length: int, depth: int | None, methods: list[str]) -> dict[str, Callable[[], object]]:
    """The calls to measure, by name; every method was called once before, to find out about the model."""
    model = model_of(shape, length, depth)
    items = []
    for number, tokens in enumerate((64, length)):
        item = example(tokens, number)
        tensors = {
            "input_ids": item.tensors["input_ids"] % VOCABULARY,
            "attention_mask": item.tensors["attention_mask"],
        }
        items.append({"tensors": tensors, "features": {"text": item.features}})
    decides = {} if shape == "bert" else {"output": lambda outputs: outputs.logits[:, -1]}
    subject = whence.wrap(model, encode=lambda raw: items[raw], **decides)
    tensors = {name: torch.from_numpy(array)[None] for name, array in items[1]["tensors"].items()}

    def plain() -> None:
        leaves = []

        def leaf(module: object, args: object, output: torch.Tensor) -> torch.Tensor:
            leaves.append(output.detach().requires_grad_())
            return leaves[0]

        handle = model.get_input_embeddings().register_forward_hook(leaf)
        logits = model(**tensors, **({} if shape == "bert" else {"use_cache": False})).logits
        torch.autograd.grad((logits if shape == "bert" else logits[:, -1])[:, 0].sum(), leaves)
        handle.remove()

    for method in methods:
        whence.explain(subject, 0, method, 0)
    return {"plain": plain} | {name: lambda name=name: whence.explain(subject, 1, name, 0) for name in methods}


def resident(name: str) -> float:
    """A line of the process's own status, in MB: VmRSS is what it holds, VmHWM the most since the last reset."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(name)) / 1024


def measured(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds of processor time, and MB above what the process held before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before, start = resident("VmRSS"), time.process_time()
    run()
    return time.process_time() - start, resident("VmHWM") - before


def costs(shape: str, length: int, depth: int | None, methods: list[str], rounds: int) -> Costs:
    """The cost of every method: medians over rounds in which each is measured once."""
    runs = runs_of(shape, length, depth, methods)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(measured(run))
    return {
        name: {"seconds": statistics.median(s for s, _ in pairs), "mb": statistics.median(m for _, m in pairs)}
        for name, pairs in found.items()
    }


def line(shape: str, length: int, found: Costs) -> str:
    """A row of the table: time and memory of every method as ratios to the plain pass."""
    plain = found["plain"]
    cells = [
        f"{cost['seconds'] / plain['seconds']:.2f}, {cost['mb'] / plain['mb']:.2f}"
        for name, cost in found.items()
        if name != "plain"
    ]
    return f"| {shape} | {length:,} | {plain['seconds']:.1f} s, {plain['mb']:.0f} MB | " + " | ".join(cells) + " |"


def drawn(found: dict[str, dict[int, Costs]], deep: dict[int, Costs], file: Path) -> None:
    """Ratios of time against length for every shape, and against depth."""
    from matplotlib.figure import Figure

    panels = [(f"{shape}, by length", by_length) for shape, by_length in found.items()]
    panels += [("decoder of 1,024 tokens, by depth", deep)] if deep else []
    figure = Figure(figsize=(4.2 * len(panels), 3.6), layout="constrained")
    for axes, (title, rows) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name in next(iter(rows.values())):
            if name != "plain":
                ratios = [row[name]["seconds"] / row["plain"]["seconds"] for row in rows.values()]
                axes.plot(list(rows), ratios, "o-", label=name)
        axes.axhline(1, color="grey", linewidth=1)
        axes.axhline(1.5, color="grey", linewidth=1, linestyle="--")
        axes.set(title=title, xlabel="layers" if "depth" in title else "tokens", xscale="log")
        axes.set(ylabel="time / fused forward+backward", ylim=(0, None))
        axes.set_xticks(list(rows), [f"{number:,}" for number in rows])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(file, dpi=130)


def main() -> None:
    """Measure, print a table and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=["bert", "decoder", "windows"], default=["bert", "decoder"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--depths", type=int, nargs="*", default=[], help="of the decoder, at 1,024 tokens")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--kept", type=Path, help="a JSON file of cells")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        torch.set_num_threads(options.threads)
        shape, length, depth = json.loads(options.one)
        print(json.dumps(costs(shape, length, depth, options.methods, options.rounds)))
        return

    kept: dict[str, Costs] = json.loads(options.kept.read_text()) if options.kept and options.kept.exists() else {}

    def in_a_process(shape: str, length: int, depth: int | None = None) -> Costs:
        cell = f"{shape}, {length} tokens" + (f", {depth} layers" if depth else "")
        if cell not in kept:
            kept[cell] = measured_in_a_process(shape, length, depth)
            if options.kept:
                options.kept.write_text(json.dumps(kept, indent=1))
        return kept[cell]

    def measured_in_a_process(shape: str, length: int, depth: int | None) -> Costs:
        command = [sys.executable, __file__, "--one", json.dumps([shape, length, depth]), "--methods", *options.methods]
        command += ["--rounds", str(options.rounds), "--threads", str(options.threads)]
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(result.stdout.splitlines()[-1])

    print("| shape | tokens | fused forward+backward | " + " | ".join(f"`{m}`: time, memory" for m in options.methods))
    print("|---|---:|" + "---:|" * (len(options.methods) + 1), flush=True)
    found: dict[str, dict[int, Costs]] = {shape: {} for shape in options.shapes}
    for shape in options.shapes:
        for length in options.lengths:
            found[shape][length] = in_a_process(shape, length)
            print(line(shape, length, found[shape][length]), flush=True)
    deep = {}
    for depth in options.depths:
        deep[depth] = in_a_process("decoder", 1024, depth)
        print(line(f"decoder, {depth} layers", 1024, deep[depth]), flush=True)
    if options.plot:
        drawn(found, deep, options.plot)


if __name__ == "__main__":
    main()
