"""Speed as ratios: each measurement and its named peer in one run, interleaved, medians compared.

    python benchmarks/run.py [NAME ...] [--repeats 7] [--threads 2]

Ratios carry over from machine to machine where seconds do not; they are printed, never asserted.
"""

from __future__ import annotations

import argparse
import functools
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
from whence.core.inputs import Input


class Race(NamedTuple):
    """One line of the table: a measurement, its peer, and the ratio that is the goal."""

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


def known(model: BertForSequenceClassification, items: list[Input]) -> whence.Subject:
    """A subject whose inputs are the numbers of these items."""
    return whence.wrap(
        model, encode=lambda raw: {"tensors": items[raw].tensors, "features": {"text": items[raw].features}}
    )


def batching_race() -> Race:
    subject = known(bert(), [example(12, seed) for seed in range(32)])

    def together() -> None:
        whence.explain(subject, list(range(32)), method="gradient_x_input")

    def alone() -> None:
        for number in range(32):
            whence.explain(subject, number, method="gradient_x_input")

    return Race("32 texts of 12 tokens in one call", "one at a time", "<= 0.33", together, alone)


def method_race(*methods: str, goal: str = "<= 1.10") -> Race:
    """One method, or several in one `compare`, on 8 x 128 tokens."""
    model, items = bert(), [example(128, seed) for seed in range(8)]
    subject, numbers = known(model, items), list(range(8))
    tensors = subject.batch([subject.encode(number) for number in numbers]).tensors
    peer = plain_pass(model, tensors)
    if len(methods) == 1:
        name = f"{methods[0]}, 8 x 128 tokens"
        return Race(
            name, "plain eager forward+backward", goal, lambda: whence.explain(subject, numbers, *methods, 0), peer
        )
    name = f"compare of {len(methods)} single-pass methods, 8 x 128 tokens"
    return Race(name, "plain eager forward+backward", goal, lambda: whence.compare(subject, numbers, methods, 0), peer)


def sentences_race(method: str, count: int = 32) -> Race:
    """A method on sentences of `sst2` as they come, against gradient x input: one forward and one backward pass."""
    subject = whence.load("sst2")
    sentences = [e.input for e in whence.zoo.examples("sst2", count)]
    peer, goal = "gradient_x_input", "none: for the choice of a default"
    run, plain = (functools.partial(whence.explain, subject, sentences, one) for one in (method, peer))
    return Race(f"{method}, {count} sentences of sst2", peer, goal, run, plain)


SINGLE_PASS = (
    "attention", "attention(read='received')", "rollout", "grad_sam", "grad_sam(read='received')",
    "attention_x_gradient", "attcat", "gae", "gradient", "gradient_x_input",
)  # fmt: skip


def flow_race(tokens: int = 64, layers: int = 6, pairs: int = 4) -> Race:
    """The flow to a few tokens of a random graph, with the same capacities for both."""
    import networkx

    from whence.methods.maxflow import Graph

    rng = np.random.default_rng(0)
    maps = np.exp(2 * rng.normal(size=(layers, tokens, tokens)))
    maps /= maps.sum(-1, keepdims=True)
    start, chosen = np.eye(tokens)[0], np.arange(tokens) < pairs
    steps = [(0.5 * m, slice(0, tokens), slice(0, tokens)) for m in maps]

    def ours() -> np.ndarray:
        graph = Graph(steps, 0.5, np.ones(tokens, bool), 10**6)
        graph.real = np.flatnonzero(chosen)  # the sinks to solve for
        return graph.row(start)

    theirs_graph = networkx.DiGraph()
    for level, m in enumerate(maps):
        mixed = 0.5 * m + 0.5 * np.eye(tokens)
        theirs_graph.add_weighted_edges_from(
            ((level + 1, i), (level, j), mixed[i, j]) for i in range(tokens) for j in range(tokens)
        )
    for *_, edge in theirs_graph.edges(data=True):
        edge["capacity"] = edge.pop("weight")

    def theirs() -> list[float]:
        return [networkx.maximum_flow_value(theirs_graph, (layers, 0), (0, j)) for j in range(pairs)]

    gap = np.abs(ours()[:pairs] - theirs()).max()
    if gap > 1e-4:
        raise SystemExit(f"the flows differ by {gap}")
    return Race(f"flow to {pairs} of {tokens} tokens, {layers} layers", "networkx", "<= 0.01", ours, theirs)


def flow_row_race(tokens: int = 512, layers: int = 12, sinks: int = 8) -> Race:
    """Some tokens of a row at full size, against maximum flows through all edges of the same graph."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    from whence.methods.maxflow import Graph

    scores = 2 * np.random.default_rng(0).normal(size=(layers, tokens, tokens))
    maps = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    everything, scale = slice(0, tokens), 10**6
    graph = Graph([(0.5 * m, everything, everything) for m in maps], 0.5, np.ones(tokens, bool), scale)
    graph.real = np.arange(sinks)  # the sinks to solve for
    edges: tuple[list[np.ndarray], ...] = ([], [], [])
    for level, m in enumerate(maps):
        capacities = np.round((0.5 * m + 0.5 * np.eye(tokens)) * scale).astype(np.int32)
        i, j = np.nonzero(capacities)
        for part, new in zip(edges, ((level + 1) * tokens + i, level * tokens + j, capacities[i, j]), strict=True):
            part.append(new)
    tails, heads, capacities = (np.concatenate(part) for part in edges)
    whole = csr_array((capacities, (tails, heads)), shape=((layers + 1) * tokens,) * 2)

    def ours() -> np.ndarray:
        return graph.row(np.eye(tokens)[0])[:sinks]

    def theirs() -> list[float]:
        return [maximum_flow(whole, layers * tokens, sink).flow_value / scale for sink in range(sinks)]

    if (ours() != theirs()).any():
        raise SystemExit("the flows differ")
    name = f"flow to {sinks} of {tokens} tokens, {layers} layers ({tokens // sinks} times that is the row: below 60 s)"
    return Race(name, "scipy on all edges", "<= 0.37", ours, theirs)


def copies_race(method: str, tokens: int = 128, layers: int = 2) -> Race:
    """A method that carries a copy of every state for each token, against as many forward passes as tokens."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(num_hidden_layers=layers, vocab_size=20000)
        model = BertForSequenceClassification(config).eval().requires_grad_(False)
    subject = known(model, [example(tokens, 0)])
    tensors = subject.batch([subject.encode(0)]).tensors
    side_by_side = {name: tensor.repeat(16, 1) for name, tensor in tensors.items()}

    def passes() -> None:
        with torch.no_grad():
            for _ in range(tokens // 16):
                model(**side_by_side)

    def ours() -> None:
        whence.explain(subject, 0, method, 0)

    return Race(f"{method}, {tokens} tokens, {layers} layers", f"{tokens} forward passes", "below 1", ours, passes)


def zeroing_race(tokens: int = 16) -> Race:
    """All layers of bert-base, against one forward pass per token and layer."""
    model = bert()
    subject = known(model, [example(tokens, 0)])
    tensors = subject.batch([subject.encode(0)]).tensors

    def naive() -> None:
        with torch.no_grad():
            for _ in range(tokens * model.config.num_hidden_layers):
                model(**tensors)

    def ours() -> None:
        whence.explain(subject, 0, "value_zeroing", 0)

    return Race(f"value_zeroing, {tokens} tokens", "a forward pass per token and layer", "<= 0.20", ours, naive)


def help_race() -> Race:
    def ours() -> None:
        subprocess.run([sys.executable, "-m", "whence", "--help"], check=True, capture_output=True)

    def theirs() -> None:
        subprocess.run([sys.executable, "-c", "import torch"], check=True, capture_output=True)

    return Race("whence --help", "python -c 'import torch'", "< 1 second", ours, theirs)


def path_race(count: int = 50) -> Race:
    """Sentences of `sst2`, to 1 % of max(|f(x) - f(x0)|, 0.1); captum with the fewest steps that bring all there."""
    from captum.attr import LayerIntegratedGradients

    subject = whence.load("sst2")
    model, tokenizer = subject.model, subject.processor
    sentences = [e.input for e in whence.zoo.examples("sst2", count)]
    encoded = []
    for sentence in sentences:
        ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
        special = torch.tensor(tokenizer.get_special_tokens_mask(ids[0].tolist(), already_has_special_tokens=True))[
            None
        ]
        encoded.append((ids, torch.where(special.bool(), ids, tokenizer.pad_token_id)))

    def forward(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids, attention_mask=mask).logits

    layer = LayerIntegratedGradients(forward, model.bert.embeddings.word_embeddings)
    with torch.no_grad():
        targets = [int(forward(ids, torch.ones_like(ids)).argmax()) for ids, _ in encoded]
        gaps = [
            float((forward(x, torch.ones_like(x)) - forward(x0, torch.ones_like(x0)))[0, t])
            for (x, x0), t in zip(encoded, targets, strict=True)
        ]

    def captum(number: int, steps: int) -> torch.Tensor:
        (x, x0), target, ones = encoded[number], targets[number], torch.ones_like(encoded[number][0])
        return layer.attribute(
            x, x0, target=target, additional_forward_args=(ones,), n_steps=steps, method="gausslegendre"
        )

    hardest = list(range(count))  # those that failed last time come first, so that most numbers of steps fail at once

    def close(steps: int) -> bool:
        for number in hardest:
            gap = gaps[number]
            if abs(float(captum(number, steps).sum()) - gap) > 0.01 * max(abs(gap), 0.1):
                hardest.insert(0, hardest.pop(hardest.index(number)))
                return False
        return True

    steps = next(n for n in range(8, 1024) if close(n))

    def theirs() -> None:
        for number in range(count):
            captum(number, steps)

    def ours() -> None:
        whence.explain(subject, sentences, "integrated_gradients(baseline='pad')")

    peer = f"captum with {steps} steps"
    return Race(f"integrated gradients of {count} sentences to 1 %", peer, "<= 0.50", ours, theirs)


def shap_race(sentences: int = 5, most: int = 60) -> Race:
    """SHAP on the README's sentences with `sst2`, against a model function that pads every coalition to 512 tokens."""
    import shap

    subject = whence.load("sst2")
    model, tokenizer = subject.model, subject.processor
    texts = [e.input for e in whence.zoo.examples("sst2", 1000)][:sentences]
    targets = [a.target.index for a in whence.explain(subject, texts, "random")]
    masker = shap.maskers.Text(tokenizer, mask_token=tokenizer.mask_token, collapse_mask_token=False)

    def padded(class_: int) -> Callable[[list[str]], np.ndarray]:
        def run(variants: list[str]) -> np.ndarray:
            inputs = tokenizer(
                list(variants), padding="max_length", max_length=512, truncation=True, return_tensors="pt"
            )
            with torch.no_grad():
                return model(**inputs).logits[:, class_].numpy()

        return run

    def ours() -> None:
        whence.explain(subject, texts, f"shap(max_evals={most}, mask='mask')")

    def theirs() -> None:
        for text, target in zip(texts, targets, strict=True):
            shap.PartitionExplainer(padded(int(target)), masker)([text], max_evals=most, silent=True)

    return Race(
        f"shap of {sentences} sentences, {most} evaluations", "coalitions padded to 512", "<= 0.05", ours, theirs
    )


def masks_race(method: str, pictures: int = 4) -> Race:
    """Pictures of `digits` through the method's own masks, against a forward pass of the plain model per mask."""
    from whence.core.geometry import upsample

    subject = whence.load("digits")
    digits = [e.input for e in whence.zoo.examples("digits", pictures)]
    found = whence.explain(subject, digits, method)
    # vit_cx runs every mask twice, with noise around what it keeps and with the noise alone, and the picture once
    counts = [2 * a.details["masks"] + 1 if "masks" in a.details else 300 for a in found]
    encoded = [torch.from_numpy(a.input.tensors["pixel_values"])[None] for a in found]

    def ours() -> None:
        whence.explain(subject, digits, method)

    def theirs() -> None:
        rng = np.random.default_rng(0)
        for pixels, count in zip(encoded, counts, strict=True):
            total = np.zeros(pixels.shape[-2:])
            for _ in range(count):
                mask = upsample(rng.random((7, 7)), *pixels.shape[-2:])
                with torch.no_grad():
                    logits = subject.model(pixels * torch.from_numpy(mask).float()).logits
                total += float(logits.softmax(-1)[0, 0]) * mask

    name = f"{method} of {pictures} digits, {sum(counts)} masked pictures"
    return Race(name, "a forward pass per mask", "below 1", ours, theirs)


RACES: dict[str, Callable[[], Race]] = {
    "trace": trace_race,
    "batching": batching_race,
    "help": help_race,
    **{
        name: functools.partial(method_race, name)
        for name in ("rollout", "grad_sam", "attention_x_gradient", "gae", "gradient_x_input", "lrp", "attnlrp")
    },
    "compare": functools.partial(method_race, *SINGLE_PASS, goal="<= 2.5"),
    "flow": flow_race,
    "flow_row": flow_row_race,
    "value_zeroing": zeroing_race,
    **{f"{name}_128": functools.partial(copies_race, name) for name in ("decompx", "value_zeroing")},
    "integrated_gradients": path_race,
    "shap": shap_race,
    **{
        f"sentences_{name}": functools.partial(sentences_race, name)
        for name in ("attention_x_gradient", "gae", "lrp", "decompx", "integrated_gradients", "leave_one_out")
    },
    "rise": functools.partial(masks_race, "rise(samples=300)"),
    "vit_cx": functools.partial(masks_race, "vit_cx"),
}


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
        table.add_row(race.name, race.peer, f"{ours / theirs:.3g}", race.goal, f"{ours:.3f}", f"{theirs:.3f}")
        print(f"{race.name}: {ours / theirs:.3g} x {race.peer} ({race.goal})", flush=True)
    Console().print(table)


def _measured(names: list[str], repeats: int) -> Iterator[tuple[Race, float, float]]:
    for name in names:
        race = RACES[name]()
        yield race, *interleaved(race, repeats)


if __name__ == "__main__":
    main()
