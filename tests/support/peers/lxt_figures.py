"""Relevance of small random models by LXT, frozen in lxt_figures.json for the tests to compare with.

LXT does not run beside transformers 5, so the figures come from an environment of their own:

    pip install torch==2.13.0 "transformers==4.57.6"
    pip install --no-deps lxt==2.1
    python tests/support/peers/lxt_figures.py

LXT's list of models imports torchvision for a model that is not used here; where torchvision is missing, an empty
module replaces it. LXT's patches cannot be undone, so every figure is made in a process of its own.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

FIGURES = Path(__file__).with_name("lxt_figures.json")
SIZE = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {**SIZE, "num_key_value_heads": 2, "max_position_embeddings": 32}),
    "qwen3": ("Qwen3ForCausalLM", {**SIZE, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32}),
    "gemma3": ("Gemma3ForCausalLM", {**SIZE, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32}),
    "gpt2": ("GPT2LMHeadModel", {**SIZE, "n_inner": 48, "max_position_embeddings": 32}),
    "bert": ("BertForSequenceClassification", {**SIZE, "max_position_embeddings": 32, "num_labels": 3}),
}
EMBEDDINGS = {
    **dict.fromkeys(("llama", "qwen3", "gemma3"), "model.embed_tokens"),
    "gpt2": "transformer.drop",
    "bert": "bert.embeddings",
}
CASES = [(name, rules) for name in ("llama", "qwen3", "gemma3", "gpt2") for rules in ("attnLRP", "cp_LRP")]
CASES += [("bert", "attnLRP")]
INPUTS = [[1, 7, 30, 12, 5, 44, 2], [1, 9, 9, 23, 41, 3, 17, 28, 36, 11, 2]]


def made(name: str) -> Any:
    """The model with weights drawn by numpy, parameter by parameter in the order of their names."""
    kind, settings = MODELS[name]
    model_class = getattr(importlib.import_module(f"transformers.models.{name}.modeling_{name}"), kind)
    model = model_class(model_class.config_class(**settings)).eval()
    generator = np.random.default_rng(0)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            drawn = torch.from_numpy(generator.normal(0, 0.25, tuple(parameter.shape)))
            parameter.copy_(drawn if parameter.ndim > 1 else 0.8 + drawn)  # norms near 1; biases are large
    return model


def explained(name: str, rules: str) -> dict[str, Any]:
    """Logit and relevance of the prediction for each input, by LXT."""
    import transformers.modeling_utils  # noqa: F401, before the empty module, since it looks for the real one

    try:
        import torchvision  # noqa: F401
    except ImportError:
        for part in ("torchvision", "torchvision.models", "torchvision.models.vision_transformer"):
            sys.modules[part] = types.ModuleType(part)
        vision = sys.modules["torchvision.models.vision_transformer"]
        sys.modules["torchvision.models"].vision_transformer = vision
        vision.nn = torch.nn
    from lxt.efficient import models, monkey_patch

    patches = getattr(models, name)
    monkey_patch(getattr(patches, f"modeling_{name}"), getattr(patches, rules))
    model = made(name)
    states: list[torch.Tensor] = []
    model.get_submodule(EMBEDDINGS[name]).register_forward_hook(lambda m, a, out: states.append(out) or out)
    found: dict[str, Any] = {"logit": [], "relevance": []}
    for ids in INPUTS:
        logits = model(torch.tensor([ids])).logits.flatten(0, -2)[-1]
        (gradient,) = torch.autograd.grad(logits.max(), states[-1])
        found["logit"].append(logits.max().item())
        found["relevance"].append((states[-1] * gradient)[0].sum(-1).tolist())
    return found


def main() -> None:
    if len(sys.argv) == 3:
        print(json.dumps(explained(sys.argv[1], sys.argv[2])))
        return
    figures: dict[str, Any] = {
        "versions": {name: importlib.metadata.version(name) for name in ("lxt", "transformers", "torch", "numpy")}
    }
    for case in CASES:
        run = subprocess.run([sys.executable, __file__, *case], capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"{' '.join(case)}: {run.stderr}")
        figures[" ".join(case)] = json.loads(run.stdout.splitlines()[-1])
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
