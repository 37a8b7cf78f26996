"""Which sentence of a long context an answer came from: cost and exactness, beside captum's LLMAttribution.

    python benchmarks/context.py                 (some minutes on one core; --quick for a small model)

A decoder of the shape of small chat models (grouped queries, weights drawn large enough that attention matters) reads
a context of 30 sentences and about 1,000 tokens, and an answer of 8 tokens is explained as one statement. Methods and
captum hide the same sentences by deleting them. Times are processor time, medians of interleaved rounds, as ratios; the
unit of these ratios is a forward pass of the plain model over context and answer. Exactness is measured on the first 8
sentences, of which all 256 coalitions are run.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from itertools import chain, combinations
from math import factorial
from typing import Any

import numpy as np
import tokenizers as tk
import torch
import transformers as hf

import whence
from whence.core.inputs import unmerged
from whence.model.masked_runs import Ask, MaskedRuns

SENTENCES, BEFORE, ANSWER = 30, "the letter :", " the red lamp was lit before the rain"
WORDS = [
    "the",
    "a",
    "red",
    "blue",
    "small",
    "old",
    "lamp",
    "door",
    "river",
    "teacher",
    "captain",
    "garden",
    "letter",
    "window",
    "rain",
    "winter",
    "market",
    "stone",
    "bridge",
    "was",
    "is",
    "stood",
    "opened",
    "carried",
    "answered",
    "waited",
    "before",
    "after",
    "near",
    "under",
    "while",
    "because",
    "and",
    "but",
    "then",
    "never",
    "often",
    "quietly",
]
HIDE = "mask='delete'"


def sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences of 32 words, each of which is 33 tokens to the tokenizer below."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 32)) + "." for _ in range(count)]


def tokenizer() -> Any:
    """A fast tokenizer with a token per word: what is deleted between two sentences changes no other token."""
    vocabulary = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", ".", ":", "lit", *WORDS])}
    made = tk.Tokenizer(tk.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tk.pre_tokenizers.Whitespace()
    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=4096, **special)


def subject(layers: int, width: int) -> Any:
    """A decoder with grouped queries, its weights drawn."""
    words = tokenizer()
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=len(words),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        num_key_value_heads=max(width // 96, 1),
        max_position_embeddings=4096,
        pad_token_id=words.pad_token_id,
    )
    model: Any = hf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 1.1 / width**0.5)
    return whence.wrap(model, words, name="drawn decoder")


def ours(s: Any, context: list[str], method: str) -> whence.Attribution:
    return whence.explain(s, asked(context), method, "statement", level=context)


def asked(context: list[str]) -> dict[str, str]:
    return {"prompt": f"{BEFORE} {' '.join(context)}", "continuation": ANSWER}


def captums(s: Any, context: list[str], method: str, **options: Any) -> np.ndarray:
    """The scores of captum's LLMAttribution, sentences deleted: (sentence,)."""
    from captum.attr import FeatureAblation, LLMAttribution, ShapleyValueSampling, TextTemplateInput

    kinds = {"FeatureAblation": FeatureAblation, "ShapleyValueSampling": ShapleyValueSampling}
    template = f"{BEFORE} {' '.join('{}' for _ in context)}"
    given = TextTemplateInput(template, values=context, baselines=[""] * len(context))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        # With its default, captum 0.9 beside transformers 5 is far from a plain loop, which it equals without a cache.
        options = {"target": ANSWER, "use_cached_outputs": False, **options}
        found = LLMAttribution(kinds[method](s.model), s.processor).attribute(given, **options)
    return found.seq_attr.detach().double().numpy()


def forward(s: Any, context: list[str]) -> Callable[[], None]:
    ids = torch.tensor(s.encode(asked(context)).tensors["input_ids"])[None]

    def run() -> None:
        with torch.no_grad():
            s.model(ids)

    return run


def times(tasks: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median of the processor times of every task, taken in turn."""
    found: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, run in tasks.items():
            start = time.process_time()
            run()
            found[name].append(time.process_time() - start)
            print(f"  {name}: {found[name][-1]:.2f} s", file=sys.stderr, flush=True)
    return {name: statistics.median(values) for name, values in found.items()}


def cost(s: Any, rounds: int) -> None:
    """Seconds and forward passes of every method on the whole context, and how near they come to each other."""
    context = sentences(SENTENCES)
    tokens = len(s.encode(asked(context)).features)
    evals = 2 * SENTENCES + 1  # one order of the sentences, forwards and backwards
    tasks: dict[str, Callable[[], Any]] = {
        "forward": forward(s, context),
        "leave_one_out": lambda: ours(s, context, f"leave_one_out({HIDE})"),
        "captum FeatureAblation": lambda: captums(s, context, "FeatureAblation"),
        f"shap(permutation, {evals} evaluations)": lambda: ours(
            s, context, f"shap(algorithm='permutation', max_evals={evals}, {HIDE})"
        ),
        "captum ShapleyValueSampling, 2 orders": lambda: captums(s, context, "ShapleyValueSampling", n_samples=2),
        "shap(partition, 100 evaluations)": lambda: ours(s, context, f"shap(max_evals=100, {HIDE})"),
        "context_cite(64 + 16 ablations)": lambda: ours(s, context, f"context_cite({HIDE})"),
    }
    for run in tasks.values():  # the first time pays for imports, and for discovering the model
        run()
    found = times(tasks, rounds)
    print(f"\n{SENTENCES} sentences, {tokens} tokens, an answer of 8 tokens explained as one statement\n")
    print("| what | seconds | forward passes of the whole text |\n|---|---:|---:|")
    for name, seconds in found.items():
        print(f"| {name} | {seconds:.2f} | {seconds / found['forward']:.1f} |")
    mine = ours(s, context, f"leave_one_out({HIDE})")
    theirs = captums(s, context, "FeatureAblation")
    gap = np.abs(mine.scores[~mine.special] - theirs).max() / np.abs(theirs).max()
    print(f"\nleave_one_out and captum's FeatureAblation differ by at most {gap:.1e} of the largest score.")


def exact(s: Any) -> None:
    """How near every method comes to exact Shapley values of 8 sentences, from all 256 coalitions."""
    context = sentences(8)
    a = ours(s, context, f"leave_one_out({HIDE})")
    item, players = unmerged(a.input), np.flatnonzero(~a.special)
    n = len(players)
    coalitions = list(chain.from_iterable(combinations(range(n), size) for size in range(n + 1)))
    keep = np.ones((len(coalitions), len(item.features)), bool)
    for row, coalition in enumerate(coalitions):
        keep[row] = ~np.isin(item.units, [players[i] for i in range(n) if i not in coalition])
    values = MaskedRuns(s).values([item], [Ask(keep, "delete")], s.aim([a.target]))[0]
    value = dict(zip(coalitions, values, strict=True))
    truth = np.zeros(n)
    for coalition in coalitions:
        for i in set(range(n)) - set(coalition):
            weight = factorial(len(coalition)) * factorial(n - len(coalition) - 1) / factorial(n)
            truth[i] += weight * (value[tuple(sorted((*coalition, i)))] - value[coalition])
    everything = value[tuple(range(n))]
    drops = np.array([everything - value[tuple(j for j in range(n) if j != i)] for i in range(n)])
    print("\n8 sentences: the distance from exact values, |scores - exact| / |exact|, and the rank correlation\n")
    print("| method | exact values | distance | rank correlation |\n|---|---|---:|---:|")
    _row("leave_one_out", "drops", a.scores[players], drops)
    for method in (
        "shap(algorithm='exact', {})",
        "shap(algorithm='permutation', max_evals=170, {})",
        "shap(max_evals=60, {})",
    ):
        _row(method.replace(", {}", ""), "Shapley", ours(s, context, method.format(HIDE)).scores[players], truth)
    _row(
        "captum ShapleyValueSampling, 25 orders",
        "Shapley",
        captums(s, context, "ShapleyValueSampling", n_samples=25),
        truth,
    )
    for method in ("context_cite({})", "lime({})"):
        _row(method.replace("({})", ""), "Shapley", ours(s, context, method.format(HIDE)).scores[players], truth)


def _row(method: str, kind: str, scores: np.ndarray, truth: np.ndarray) -> None:
    from scipy.stats import spearmanr

    distance = np.linalg.norm(scores - truth) / np.linalg.norm(truth)
    print(f"| {method} | {kind} | {distance:.1e} | {spearmanr(scores, truth).statistic:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model and one round")
    given = parser.parse_args()
    torch.set_num_threads(1)
    s = subject(2, 96) if given.quick else subject(4, 192)
    cost(s, 1 if given.quick else 3)
    exact(s)


if __name__ == "__main__":
    main()
