"""Costs of explaining generated text: all rows together beside plain passes, single rows and captum's LLM attribution.

    python benchmarks/generated.py [NAME ...] [--repeats 3] [--prompt 96] [--produced 32] [--layers 8] [--width 384]

A decoder of a Llama's shape with grouped queries and random weights explains every token of a continuation. Times are
processor times on one thread, taken turn by turn; the table has ratios of medians. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

import tokenizers
import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import whence
from whence.model import shared_rows

WORDS = 4000
METHODS = ("gradient_x_input", "lrp", "gae", "rollout", "attention_x_gradient", "decompx", "alti", "value_zeroing")
PATH = ("integrated_gradients(steps=16, rule='midpoint', baseline='zero')",)
HIDING = ("leave_one_out(mask='unknown')",)


class Scene(NamedTuple):
    """What is explained: a model and the same text for whence, for plain torch and for captum."""

    subject: whence.Subject
    model: LlamaForCausalLM
    tokenizer: PreTrainedTokenizerFast
    prompt: str
    continuation: str
    ids: torch.Tensor  # (1, token), the continuation included
    produced: int

    @property
    def raw(self) -> dict[str, str]:
        """The text as whence takes it."""
        return {"prompt": self.prompt, "continuation": self.continuation}


def scene(prompt: int, produced: int, layers: int, width: int) -> Scene:
    """A random decoder, and a text of random words."""
    vocabulary = {"<unk>": 0, "<pad>": 1, "</s>": 2} | {f"w{number}": number for number in range(3, WORDS)}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", pad_token="<pad>", eos_token="</s>", model_input_names=["input_ids"]
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=WORDS,
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // 32,
            num_key_value_heads=width // 96,
        )
        model = LlamaForCausalLM(config).eval().requires_grad_(False)
        ids = torch.randint(3, WORDS, (1, prompt + produced))
    texts = [" ".join(f"w{number}" for number in part) for part in (ids[0, :prompt].tolist(), ids[0, prompt:].tolist())]
    subject = whence.wrap(model, tokenizer)
    return Scene(subject, model, tokenizer, texts[0], " " + texts[1], ids, produced)


# ---- what is timed: whence, the plain model, captum ------------------------------------------------------------------


def explained(s: Scene, method: str) -> Callable[[], object]:
    """All rows, as `explain` makes them; decompx takes logits apart and no logarithms."""
    target = None if method == "decompx" else "log_probability"
    return lambda: whence.explain(s.subject, s.raw, method, target=target)


def single_rows(s: Scene, method: str) -> Callable[[], object]:
    """The same rows without sharing: a batch of beginnings, as for a model that does not allow sharing."""

    def run() -> object:
        with patch.object(shared_rows, "found_out", lambda *given: shared_rows.Beginnings(False)):
            return explained(s, method)()

    return run


def plain_passes(s: Scene, path: str) -> Callable[[], object]:
    """One forward and backward pass of the model itself for every produced token, parameters frozen."""

    def run() -> object:
        s.model.set_attn_implementation(path)
        found = []
        first = s.ids.shape[1] - s.produced
        for place in range(first, s.ids.shape[1]):
            words = s.model.get_input_embeddings()(s.ids[:, :place]).detach().requires_grad_()
            logits = s.model(inputs_embeds=words, use_cache=False).logits[0, -1]
            value = logits.log_softmax(-1)[s.ids[0, place]]
            found.append(torch.autograd.grad(value, words)[0])
        s.model.set_attn_implementation("sdpa")
        return found

    return run


def captum_gradients(s: Scene, kind: str, **options: Any) -> Callable[[], object]:
    """Captum's gradient attribution of a whole continuation, one row after the other."""
    from captum.attr import (
        LayerGradientXActivation,
        LayerIntegratedGradients,
        LLMGradientAttribution,
        TextTokenInput,
    )

    makers = {"gradient": LayerGradientXActivation, "integrated": LayerIntegratedGradients}
    method = LLMGradientAttribution(makers[kind](s.model, s.model.get_input_embeddings()), s.tokenizer)
    given = TextTokenInput(s.prompt, s.tokenizer)
    target = s.ids[0, -s.produced :]
    return lambda: method.attribute(given, target=target, **options)


def captum_ablation(s: Scene) -> Callable[[], object]:
    """Captum's ablation of every token of the prompt (not of the continuation), for all produced tokens."""
    from captum.attr import FeatureAblation, LLMAttribution, TextTokenInput

    method = LLMAttribution(FeatureAblation(s.model), s.tokenizer)
    given = TextTokenInput(s.prompt, s.tokenizer, baselines=0)
    target = s.ids[0, -s.produced :]
    return lambda: method.attribute(given, target=target)


# ---- measuring -------------------------------------------------------------------------------------------------------


def races(s: Scene) -> Iterator[tuple[str, dict[str, Callable[[], object]]]]:
    """A method's name, and the sides that are measured beside each other."""
    for method in METHODS:
        path = "sdpa" if method == "gradient_x_input" else "eager"
        sides = {"whence": explained(s, method), "single": single_rows(s, method), "plain": plain_passes(s, path)}
        if method == "gradient_x_input":
            sides["captum"] = captum_gradients(s, "gradient")
        yield method, sides
    for method in PATH:
        captum = captum_gradients(s, "integrated", n_steps=16, method="riemann_middle")
        yield method, {"whence": explained(s, method), "single": single_rows(s, method), "captum": captum}
    for method in HIDING:
        yield method, {"whence": explained(s, method), "single": single_rows(s, method), "captum": captum_ablation(s)}


def timed(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median processor seconds of every side, taken turn by turn."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    sides["whence"]()  # the first call finds out about the model
    for _ in range(repeats):
        for name, run in sides.items():
            start = time.process_time()
            run()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="methods; all of them by default")
    for name, default in (("repeats", 3), ("prompt", 96), ("produced", 32), ("layers", 8), ("width", 384)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    s = scene(options.prompt, options.produced, options.layers, options.width)
    table = Table("method", "whence, s", "to plain passes", "to single rows", "to captum")
    with contextlib.suppress(KeyboardInterrupt):
        for method, sides in races(s):
            if options.names and not any(method.startswith(name) for name in options.names):
                continue
            seconds = timed(sides, options.repeats)
            ratios = [
                f"{seconds['whence'] / seconds[side]:.2f}" if side in seconds else "-"
                for side in ("plain", "single", "captum")
            ]
            table.add_row(method, f"{seconds['whence']:.2f}", *ratios)
            print(method, {name: round(value, 2) for name, value in seconds.items()}, flush=True)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
