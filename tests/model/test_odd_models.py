"""Models with unusual forward passes: explanations are right, or a sentence says which methods work."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import whence
from families import bert_tokenizer, fresh

SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "num_labels": 3}
LANDMARKS = {"segment_means_seq_len": 64, "num_landmarks": 64}


def made(name: str, **options: Any) -> tuple[Any, Any]:
    """A model with weights large enough that every part of it matters, and its tokenizer."""
    torch.manual_seed(0)
    tokenizer = bert_tokenizer()
    config = getattr(hf, f"{name}Config")(vocab_size=len(tokenizer), **SIZE, **options)
    model = getattr(hf, f"{name}ForSequenceClassification")(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(4)
    return model, tokenizer


def gradient_by_hand(model: Any, tokenizer: Any, text: str) -> tuple[np.ndarray, float]:
    """x df/dx of every word embedding x, for the first class, and f."""
    kept: list[Any] = []

    def keep(module: Any, args: Any, output: Any) -> Any:
        state = output[0] if isinstance(output, tuple) else output
        kept.append(state.detach().clone().requires_grad_())
        return (kept[0].clone(), *output[1:]) if isinstance(output, tuple) else kept[0].clone()

    handle = model.get_input_embeddings().register_forward_hook(keep)
    value = model(**tokenizer(text, return_tensors="pt")).logits[0, 0]
    handle.remove()
    (gradient,) = torch.autograd.grad(value, kept[0])
    return (gradient * kept[0]).sum(-1)[0].detach().numpy(), float(value.detach())


@pytest.mark.parametrize(("name", "options"), [("Nystromformer", LANDMARKS), ("IBert", {})])
def test_products_changed_in_place_and_embeddings_in_tuples(name: str, options: dict[str, Any]) -> None:
    """Nystromformer adds to the product of its attention in place; I-BERT's embeddings come with a scale."""
    model, tokenizer = made(name, **options)
    expected, value = gradient_by_hand(model, tokenizer, "a good film")
    subject = whence.wrap(model, tokenizer)
    a = whence.explain(subject, "a good film", "gradient_x_input(at='word')", 0)
    np.testing.assert_allclose(a.scores, expected, atol=1e-5 * np.abs(expected).max())
    assert a.output == pytest.approx(value, abs=1e-5) and np.abs(expected).max() > 1e-3
    for method in ("gae", "lrp", None):
        assert np.abs(whence.explain(subject, "a good film", method, 0).scores).max() > 0


def test_a_model_that_pads_its_ids_is_explained_by_hiding() -> None:
    """Longformer's embeddings are of more tokens than it was given, so no gradient can be laid on tokens."""
    model, tokenizer = made("Longformer", attention_window=8, max_position_embeddings=64)
    subject = whence.wrap(model, tokenizer)
    a = whence.explain(subject, "a good film", target=0)
    assert a.method == "leave_one_out" and a.scores.any()
    with pytest.raises(ValueError, match="only runs the model, as leave_one_out"):
        whence.explain(subject, "a good film", "gradient_x_input")


def test_a_model_that_rescales_its_own_weights_comes_back() -> None:
    """RWKV divides its weights in place when it first runs in eval mode, and remembers that it did."""
    torch.manual_seed(0)
    tokenizer = bert_tokenizer()
    config = hf.RwkvConfig(vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=4, rescale_every=2)
    model = hf.RwkvForCausalLM(config).eval()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    a = whence.explain(whence.wrap(model, tokenizer), "a good film", "gradient_x_input")
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    with torch.no_grad():
        ids = torch.tensor([tokenizer("a good film")["input_ids"]])
        assert a.output == pytest.approx(float(model(input_ids=ids).logits[0, -1].max()), abs=1e-5)


@pytest.mark.parametrize("task", ["causal-lm", "token-classification", "masked-lm"])
def test_a_task_that_does_not_fit_is_refused(task: str) -> None:
    made = fresh("bert")
    with pytest.raises(ValueError, match=r"gives logits at every token.*name the task that it was made for"):
        whence.explain(whence.wrap(made.model, made.processor, task=task), "a [MASK] film", "leave_one_out")


@pytest.mark.parametrize("method", ["attention_x_gradient", "gradient_x_input"])
def test_a_module_that_embeds_no_words_leaves_nothing_to_differentiate(method: str) -> None:
    made = fresh("torch-sdpa")
    subject = whence.wrap(made.model, **{**made.kwargs, "embedding": "head"})
    with pytest.raises(ValueError, match="does not depend on the inputs in a way that can be differentiated"):
        whence.explain(subject, made.inputs[0], method)


def test_a_tokenizer_whose_unknown_token_is_empty() -> None:
    """Looking such a token up, transformers looks up the unknown token, without end."""
    made = fresh("bert")
    made.processor.unk_token = ""
    assert whence.wrap(made.model, made.processor).mask_ids["unknown"] is None
