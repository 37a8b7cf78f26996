"""Attributions of small random language models by inseq, frozen in inseq_figures.json for the tests to compare with.

inseq's value zeroing reads the source of transformers 4, so the figures come from an environment of their own:

    pip install torch==2.13.0 inseq==0.7.1 "transformers==4.57.6"
    python tests/support/peers/inseq_figures.py

Methods that both libraries define alike are here, under whence's spec of the method. inseq attributes at the word
embeddings, before positions, and its baseline is the unknown token, ends of the text left in place. Its figures are
taken before it divides them by their sum. Where inseq's definitions differ:

- Its occlusion is the absolute value of the drop.
- Its value zeroing compares the last layer after the model's final norm, where there is one: GPT-2 and T5 are compared
  below it. It divides self- and cross-attention each by its own sum, and within a decoder layer it lets the weights of
  the cross-attention follow the zeroed self-attention; whence keeps them. So in an encoder-decoder only the
  cross-attention is compared, which nothing follows.

Left out: LIME and gradient SHAP, which draw at random, and what whence has no twin of (DeepLIFT, ReAGent, the
discretised and the sequential path).
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers as tk
import torch
from transformers import PreTrainedTokenizerFast

FIGURES = Path(__file__).with_name("inseq_figures.json")
LAYERS = 2
PIECES = ["<pad>", "</s>", "<s>", "<unk>", *(f"w{number}" for number in range(4, 50))]
ENDS = {"vocab_size": len(PIECES), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
SIDE = {"layers": LAYERS, "attention_heads": 4, "ffn_dim": 48}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 32, "n_layer": LAYERS, "n_head": 4, "n_inner": 48, "n_positions": 32}),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": LAYERS, "num_heads": 4, "decoder_start_token_id": 0},
    ),
    "bart": (
        "BartForConditionalGeneration",
        {f"{side}_{size}": value for side in ("encoder", "decoder") for size, value in SIDE.items()}
        | {"d_model": 32, "max_position_embeddings": 32, "decoder_start_token_id": 2},
    ),
}
TEXTS = [("w7 w30 w12 w5 w44", "w9 w23 w41"), ("w11 w28 w28 w36 w17 w41 w13 w8", "w20 w6")]
INSTEAD = "w33"  # what the first token of each output is contrasted with

# whence spec and kind of target -> inseq method, what it attributes, how it goes from numbers to scores, its options
AIMED: dict[tuple[str, str], tuple[str, str, str, dict[str, Any]]] = {
    ("gradient(at='word')", "logit"): ("saliency", "logit", "vnorm", {}),
    ("gradient(at='word', reduce='l1')", "logit"): ("saliency", "logit", "sum", {}),
    ("gradient_x_input(at='word')", "logit"): ("input_x_gradient", "logit", "sum", {}),
    ("gradient_x_input(at='word')", "probability"): ("input_x_gradient", "probability", "sum", {}),
    ("integrated_gradients(steps=6, baseline='unknown')", "logit"): (
        "integrated_gradients", "logit", "sum", {"n_steps": 6},
    ),
    ("leave_one_out(mask='unknown')", "logit"): ("occlusion", "logit", "", {}),
    ("leave_one_out(mask='unknown')", "probability"): ("occlusion", "probability", "", {}),
}  # fmt: skip


def tokenizer(name: str) -> PreTrainedTokenizerFast:
    """Words of the vocabulary, split at spaces; encoder-decoders end their texts."""
    model = tk.Tokenizer(tk.models.WordLevel({piece: n for n, piece in enumerate(PIECES)}, unk_token="<unk>"))
    model.pre_tokenizer = tk.pre_tokenizers.WhitespaceSplit()
    if name != "gpt2":
        model.post_processor = tk.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    named = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=model, model_max_length=32, **named)


def made(name: str) -> Any:
    """The model with weights drawn by numpy, parameter by parameter in the order of their names."""
    kind, settings = MODELS[name]
    model_class = getattr(importlib.import_module(f"transformers.models.{name}.modeling_{name}"), kind)
    model = model_class(model_class.config_class(**ENDS, **settings)).eval()
    model.set_attn_implementation("eager")
    generator = np.random.default_rng(0)
    with torch.no_grad():
        for key, parameter in sorted(model.named_parameters()):
            drawn = torch.from_numpy(generator.normal(0, 0.25, tuple(parameter.shape)))
            norm = parameter.ndim == 1 and key.endswith("weight")
            parameter.copy_(0.8 + drawn if norm else drawn)
    return model


def explained(name: str) -> dict[str, Any]:
    """Figures of one model: by spec and kind of target, one list per text of one list per generated token."""
    import inseq

    if name == "gpt2":  # the variable is named so in transformers 4.57
        settings = {"self_attention_module": "attn", "value_vector": "value_states"}
        inseq.register_model_config("GPT2LMHeadModel", settings, overwrite=True, allow_partial=True)
    model, words = made(name), tokenizer(name)

    def attributed(method: str, source: str, output: str, function: str | None, **options: Any) -> Any:
        whole = {"attribute_target": True}
        if name == "gpt2":  # to inseq a continuation begins with its prompt
            output, whole = f"{source} {output}", {}
            if "contrast_targets" in options:
                options["contrast_targets"] = f"{source} {options['contrast_targets']}"
        subject = inseq.load_model(model, method, tokenizer=words)
        scores = [] if function is None else [function]
        found = subject.attribute(
            source, output, attributed_fn=function, step_scores=scores, show_progress=False, **whole, **options
        )
        return found.sequence_attributions[0]

    figures: dict[str, Any] = {}
    for (spec, target), (method, function, aggregation, options) in AIMED.items():
        found = [attributed(method, *text, function, **options) for text in TEXTS]
        found = [one.aggregate(aggregation, normalize=False) if aggregation else one for one in found]
        figures[target] = [one.step_scores[function].tolist() for one in found]
        figures[f"{spec} {target}"] = [_rows(one.source_attributions, one.target_attributions) for one in found]

    found = [
        attributed(
            "input_x_gradient", source, output.split()[0], "contrast_logits_diff", contrast_targets=INSTEAD
        ).aggregate("sum", normalize=False)
        for source, output in TEXTS
    ]
    figures["contrast"] = [one.step_scores["contrast_logits_diff"].tolist()[:1] for one in found]
    rows = [_rows(one.source_attributions, one.target_attributions)[:1] for one in found]
    figures["gradient_x_input(at='word') contrast"] = rows

    attention = [attributed("attention", *text, None) for text in TEXTS]
    zeroing = [attributed("value_zeroing", *text, None) for text in TEXTS]
    stream = "target_attributions" if name == "gpt2" else "source_attributions"
    for layer in range(LAYERS):
        parts = [(one.source_attributions, one.target_attributions) for one in attention]
        of_layer = [[None if part is None else part.mean(-1)[..., layer] for part in pair] for pair in parts]
        figures[f"attention(layer={layer})"] = [_rows(*pair) for pair in of_layer]
        if name == "bart" or layer < LAYERS - 1:
            rows = [_rows(None, getattr(one, stream)[..., layer]) for one in zeroing]
            figures[f"value_zeroing(layer={layer})"] = rows
    return figures


def _rows(source: torch.Tensor | None, target: torch.Tensor) -> list[list[float]]:
    """(feature, generated token) by stream to a list per generated token, of what it could see."""
    both = target if source is None else torch.cat([source, target])
    return [[float(f"{score:.7g}") for score in column[~column.isnan()].tolist()] for column in both.T]


def main() -> None:
    names = ("inseq", "captum", "transformers", "torch", "numpy")
    figures: dict[str, Any] = {"versions": {name: importlib.metadata.version(name) for name in names}}
    figures |= {name: explained(name) for name in MODELS}
    FIGURES.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
