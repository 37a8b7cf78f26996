"""How many tokens models take: decoding stops there, longer texts are cut or refused, encoder and decoder differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import transformers as hf
from tests.support.families import (
    BART,
    MAX_TOKENS,
    SIZE,
    T5,
    _drawn,
    _vocabulary,
    family,
    gpt2_tokenizer,
    roberta_tokenizer,
    t5_tokenizer,
)

import whence
from whence.model.lengths import most_tokens

LONG = "the old man was singing and nobody understood why the music stopped " * 4
LAYERS = {"num_encoder_layers": 1, "num_decoder_layers": 1}
HEADS = {"num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4}
WIDE = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 24}
PROPHET = {"hidden_size": 32, **LAYERS, **HEADS, **WIDE}
LED = {**BART, "max_encoder_position_embeddings": 44, "max_decoder_position_embeddings": 24, "attention_window": 8}
SHORT = {**BART, "max_position_embeddings": 24}
# class of model, tokenizer, sizes, the most tokens of a source and of an output with its start
SEQ2SEQ: dict[str, tuple[Callable[..., Any], dict[str, Any], int, int]] = {
    "BartForConditionalGeneration": (roberta_tokenizer, SHORT, 24, 24),
    "MBartForConditionalGeneration": (roberta_tokenizer, SHORT, 24, 24),
    "MarianMTModel": (t5_tokenizer, SHORT, 24, 24),
    "PegasusForConditionalGeneration": (t5_tokenizer, SHORT, 24, 24),
    "BlenderbotForConditionalGeneration": (roberta_tokenizer, SHORT, 24, 24),
    "BlenderbotSmallForConditionalGeneration": (roberta_tokenizer, SHORT, 24, 24),
    "ProphetNetForConditionalGeneration": (roberta_tokenizer, PROPHET, 22, 22),
    "LEDForConditionalGeneration": (roberta_tokenizer, LED, 40, 24),  # 44 rows, and windows of 8
}
CAUSAL: dict[str, tuple[dict[str, Any], int]] = {
    "MptForCausalLM": ({"d_model": 32, "n_heads": 4, "n_layers": 1, "max_seq_len": 24}, 24),
    "GPT2LMHeadModel": ({"n_embd": 32, "n_head": 4, "n_layer": 1, "n_positions": 24}, 24),
    "OPTForCausalLM": ({**SIZE, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 24}, 24),
}


def made(name: str, tokenizer: Any, **sizes: Any) -> whence.Subject:
    """A small model whose tokenizer sets no limit."""
    tokenizer.model_max_length = int(1e30)
    model_class: Any = getattr(hf, name)
    vocabulary = _vocabulary(tokenizer)
    start = {"decoder_start_token_id": vocabulary["eos_token_id"]}
    model: Any = _drawn(lambda: model_class(model_class.config_class(**{**vocabulary, **start, **sizes})))
    model.config.eos_token_id = model.generation_config.eos_token_id = None  # so that decoding never ends by itself
    model.generation_config.forced_eos_token_id = None
    return whence.wrap(model, tokenizer)


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_encoder_decoders_stop_at_their_positions(name: str) -> None:
    tokenizer, sizes, source, output = SEQ2SEQ[name]
    subject = made(name, tokenizer(), **sizes)
    assert (subject.max_length, subject.max_output) == (source, output)
    a = whence.explain(subject, "the house was warm", "gradient_x_input")
    assert a.scores.shape[0] == output - 1 == a.input.streams.count("target") - 1
    assert f"decoding was stopped after {output - 1} tokens, as many as the decoder takes" in a.notes
    with pytest.raises(ValueError, match=f"the source has .* more than the {source} the model takes"):
        subject.encode(LONG)
    with pytest.raises(ValueError, match=f"the output has .* more than the {output - 1} the model takes"):
        subject.encode({"source": "the house", "output": LONG})
    cut = whence.explain(subject, {"source": LONG, "output": LONG}, "gradient_x_input", truncate=True)
    assert [cut.input.streams.count(stream) for stream in ("source", "target")] == [source, output]


@pytest.mark.parametrize("name", CAUSAL)
def test_prompts_are_cut_to_what_the_model_takes(name: str) -> None:
    sizes, most = CAUSAL[name]
    subject = made(name, gpt2_tokenizer(), **sizes)
    with pytest.raises(ValueError, match=f"more than the {most} the model takes"):
        whence.explain(subject, LONG, "random")
    assert len(whence.explain(subject, LONG, "gradient_x_input", truncate=True).features) == most
    with pytest.raises(ValueError, match=f"the continuation alone has .* tokens, and the model takes {most}"):
        whence.explain(subject, ("the house", LONG), "random", truncate=True)


def test_models_without_positions_have_no_limit() -> None:
    t5 = made("T5ForConditionalGeneration", t5_tokenizer(), **T5)
    assert (t5.max_length, t5.max_output) == (None, None)
    assert most_tokens(family("clip").model, "encoder") == MAX_TOKENS  # not the 17 positions of patches


def test_a_limit_of_the_generation_config_is_kept() -> None:
    subject = made("BartForConditionalGeneration", roberta_tokenizer(), **SHORT)
    settings: Any = subject.model.generation_config
    for limits, tokens in (({"max_length": 6}, 5), ({"max_new_tokens": 7}, 7), ({"max_length": 200}, 23)):
        settings.max_length, settings.max_new_tokens = limits.get("max_length"), limits.get("max_new_tokens")
        item = subject.encode("the house was warm")
        assert len(item.generated) == tokens
        assert any(f"decoding was stopped after {tokens} tokens" in note for note in item.notes)
