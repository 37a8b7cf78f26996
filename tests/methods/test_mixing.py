"""Models that mix tokens by more than attention: methods that read attention say that they know nothing of it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

import whence
from families import PROMPTS, qwen_tokenizer, subject_of

READS = ("attention", "rollout", "flow", "gae", "attention_x_gradient", "attcat", "globenc", "alti", "value_zeroing")
LAYERS = {
    "hybrid": ["conv", "full_attention", "full_attention"],
    "attention alone": ["full_attention", "full_attention", "full_attention"],
}


def drawn(kind: Any, config: Any, tokenizer: Any) -> whence.Subject:
    """A model of a kind with large random weights, the same every time."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        model = kind(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.2)
    return whence.wrap(model.eval(), tokenizer)


@cache
def lfm2(kind: str) -> whence.Subject:
    """An LFM2, of which some layers may be short convolutions in place of attention."""
    tokenizer = qwen_tokenizer()
    config = hf.Lfm2Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        layer_types=LAYERS[kind],
    )
    return drawn(hf.Lfm2ForCausalLM, config, tokenizer)


def said(a: Any) -> bool:
    return any("also mixes tokens by other means than attention" in note for note in a.notes)


@pytest.mark.parametrize("kind", LAYERS)
def test_methods_that_read_attention_say_what_they_do_not_see(kind: str) -> None:
    for a in whence.compare(lfm2(kind), PROMPTS[0], READS):
        assert said(a) == (kind == "hybrid"), a.method


@pytest.mark.parametrize("method", ["gradient_x_input", "leave_one_out", "lrp", "decompx", "random"])
def test_methods_that_follow_everything_say_nothing(method: str) -> None:
    assert not said(whence.explain(lfm2("hybrid"), PROMPTS[0], method))


def test_the_note_is_there_at_a_level_and_beside_ignored_words() -> None:
    s = lfm2("hybrid")
    assert said(whence.explain(s, {"prompt": PROMPTS[1], "continuation": " film"}, "gae", level="word"))
    assert said(whence.explain(s, PROMPTS[1], "gae", ignore=["film"]))


def falcon(alibi: bool, path: str = "sdpa") -> whence.Subject:
    """A Falcon; with ALiBi, transformers' eager path adds the bias twice."""
    tokenizer = qwen_tokenizer()
    size: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_hidden_size": 64}
    config = hf.FalconConfig(
        vocab_size=len(tokenizer),
        **size,
        alibi=alibi,
        attn_implementation=path,
        multi_query=False,
        parallel_attn=False,
        new_decoder_architecture=False,
    )
    return drawn(hf.FalconForCausalLM, config, tokenizer)


@pytest.mark.parametrize("alibi", [True, False])
def test_an_eager_path_that_computes_something_else_is_told(alibi: bool) -> None:
    s = falcon(alibi)
    own, eager = (s.logits(s.batch([s.encode(PROMPTS[0])]), path=path) for path in (None, "eager"))
    differs = not torch.allclose(own, eager, atol=1e-3)
    if alibi and not differs:
        pytest.skip("this version of transformers computes the same on both paths")
    told = [
        any("something else on the eager path" in note for note in a.notes)
        for a in (
            whence.explain(s, PROMPTS[0], method)
            for method in ("attention", "gae", "lrp", "attnlrp", "gradient_x_input", "leave_one_out")
        )
    ]
    assert told == [differs, differs, differs, differs, False, False]


def test_what_follows_another_computation_is_refused_with_what_to_do() -> None:
    s = falcon(alibi=True)
    own, eager = (s.logits(s.batch([s.encode(PROMPTS[0])]), path=path) for path in (None, "eager"))
    if torch.allclose(own, eager, atol=1e-3):
        pytest.skip("this version of transformers computes the same on both paths")
    with pytest.raises(ValueError, match="attn_implementation='eager'") as error:
        whence.explain(s, PROMPTS[0], "decompx")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", ["value_norms", "globenc", "alti", "decompx"])
def test_decompositions_are_the_same_on_either_path(method: str) -> None:
    fused, eager = (whence.explain(falcon(False, path), PROMPTS[0], method) for path in ("sdpa", "eager"))
    np.testing.assert_allclose(fused.scores, eager.scores, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "gpt-neox", "llama", "mistral", "gpt-oss", "gemma3"])
def test_attention_alone(name: str) -> None:
    assert not said(whence.explain(subject_of(name), PROMPTS[0], "attention"))
