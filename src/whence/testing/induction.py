"""A causal language model built by hand: an induction head among many layers whose attention goes to a sink.

A prompt alternates words of two kinds, `the river Norway Rome that road Norway`, and the last word comes a second time:
the model goes on with the word after its first occurrence, `Rome`. Every weight is written down here, so what the
model looks at is known at any length: the earlier occurrence of the last word, and the word after it.

- Layer 0: a head attends to the word before (rotary positions make its score peak there) and copies what it was. The
  first place has no word before and copies itself; the feed-forward part detects this, and makes one entry of that
  place's state massive. Later norms then make all other entries there small, and its value vectors too.
- One layer in the middle: a head looks for the place whose word before was the last word, and copies the word there.
- All other heads give their attention to the first place, whatever word stands there, and take from it the same small
  vector, which adds the same amount to every logit: it decides nothing, and most of every logit comes from it.

That is the attention sink of large language models (Xiao et al. 2023, Sun et al. 2024, Gu et al. 2024) with its
mechanism. Queries share keys and values in groups of two. With `sink=False` the other heads attend to all words alike.
"""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

import whence
from whence.zoo.example import Example

KEYS = (
    *("Norway", "France", "Italy", "Spain", "Japan", "Peru", "Kenya", "Chile"),
    *("Egypt", "Cuba", "Nepal", "Ghana", "India", "China", "Fiji", "Malta"),
)
VALUES = (
    *("Oslo", "Paris", "Rome", "Madrid", "Tokyo", "Lima", "Nairobi", "Santiago"),
    *("Cairo", "Havana", "Kathmandu", "Accra", "Delhi", "Beijing", "Suva", "Valletta"),
)
FIRST_FILLERS = ("the", "that", "some", "every", "this", "one", "any", "my")
SECOND_FILLERS = ("river", "road", "hill", "house", "garden", "bridge", "tower", "lake")
UNKNOWN, PADDING = "<unk>", "<pad>"
WORDS = (PADDING, UNKNOWN, *KEYS, *VALUES, *FIRST_FILLERS, *SECOND_FILLERS)

WIDTH, HEAD, HEADS, KEY_HEADS = 96, 64, 4, 2
THETA = 1e9  # base of the rotary positions: the first dozen frequencies tell places apart, the last 17 hardly rotate
# Entries of a state: a constant, the massive one, what the sink writes, the kind of the word and of the word before.
CONSTANT, MASSIVE, BIAS, KIND, KIND_BEFORE = 0, 1, 2, 3, 6
KEY, KEY_BEFORE, VALUE, COPIED, FILLER, NOISE = 9, 25, 41, 57, 73, 89
SIZE = 2.0  # size of the entry that says which word it is; entries of the constant and the kind have size 1
MASSIVE_SIZE = 300.0
SINK_SCORE, MATCH_SCORE = 7.5, 10.5  # attention scores: of the first place for every query, and of the matching place
BIAS_SIZE = 2.5  # the bias that all layers together copy from the sink


def subject(layers: int = 30, *, sink: bool = True, longest: int = 2048) -> whence.Subject:
    """The model with its tokenizer; `longest` is the most words that it takes."""
    return whence.wrap(model(layers, sink=sink, longest=longest), tokenizer(longest))


def examples(count: int, seed: int = 0, *, words: int = 31, pairs: int = 5) -> list[Example]:
    """Prompts of an odd number of words with some pairs of key and value anywhere, and their truth.

    The first two words are fillers, so that the sink is no part of the truth.
    """
    if words % 2 == 0 or not 1 <= pairs <= min(len(KEYS), (words - 3) // 2):
        raise ValueError(f"expected an odd number of words with room for {pairs} pairs and a query, got {words}")
    random, made = Random(seed), []
    for _ in range(count):
        places = sorted(random.sample(range(1, words // 2), pairs))
        keys, values = random.sample(KEYS, pairs), random.sample(VALUES, pairs)
        text = [random.choice(FIRST_FILLERS if i % 2 == 0 else SECOND_FILLERS) for i in range(words)]
        for place, key, value in zip(places, keys, values, strict=True):
            text[2 * place : 2 * place + 2] = key, value
        asked = random.randrange(pairs)
        text[-1] = keys[asked]
        truth = np.zeros(words, dtype=bool)
        truth[2 * places[asked] : 2 * places[asked] + 2] = True
        made.append(Example(" ".join(text), values[asked], truth))
    return made


def tokenizer(longest: int) -> Any:
    """One token for each word between spaces; anything else is unknown."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=longest,
        model_input_names=["input_ids", "attention_mask"],
    )


def model(layers: int = 30, *, sink: bool = True, longest: int = 2048) -> Any:
    """A Llama with the weights that are described above."""
    from transformers import LlamaConfig, LlamaForCausalLM

    if layers < 3:
        raise ValueError(f"layers must be at least 3, one for each thing that the model does, got {layers}")
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        head_dim=HEAD,
        intermediate_size=8,
        max_position_embeddings=longest,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    made = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        made.apply(_emptied)
        made.model.embed_tokens.weight.copy_(_embeddings())
        _note_word_before(made.model.layers[0])
        for number in range(1, layers):
            bias = BIAS_SIZE * (number - 1) / (layers - 1)  # what earlier layers copied from the sink
            _attend_to_first(made.model.layers[number], bias, layers, number if sink else 0)
        if sink:
            _mark_first(made.model.layers[0])
        middle = layers // 2
        _copy_after_match(made.model.layers[middle], BIAS_SIZE * (middle - 1) / (layers - 1))
        made.lm_head.weight[:, BIAS] = 3.0  # the same for every word
        for i, value in enumerate(VALUES):
            made.lm_head.weight[WORDS.index(value), COPIED + i] = 1.5
    return made


def _emptied(module: Any) -> None:
    """Put 0 into all weights of a module, and 1 into those of a norm."""
    for weight in vars(module)["_parameters"].values():
        if weight is not None:
            weight.fill_(1.0 if "norm" in type(module).__name__.lower() else 0.0)


def _embeddings() -> Tensor:
    """The states that words start with: (word, width)."""
    made = torch.zeros(len(WORDS), WIDTH)
    made[:, CONSTANT] = 1.0
    kinds = [(FILLER + 15, KIND + 2, [PADDING, UNKNOWN])]
    kinds += [(start, KIND + kind, names) for start, kind, names in ((KEY, 0, KEYS), (VALUE, 1, VALUES))]  # type: ignore
    kinds += [(FILLER, KIND, FIRST_FILLERS), (FILLER + 7, KIND + 1, SECOND_FILLERS)]  # type: ignore[list-item]
    for start, kind, names in kinds:
        for i, name in enumerate(names):
            entry = start if name in (PADDING, UNKNOWN) else start + i
            made[WORDS.index(name), [kind, entry]] = torch.tensor([1.0, SIZE])
    return made


def _scale(bias: float = 0.0, before: bool = True) -> float:
    """What a norm multiplies the state of an ordinary word by."""
    squares = 1 + 1 + SIZE**2 + (1 + SIZE**2) * before + bias**2
    return math.sqrt(WIDTH / squares)


def _note_word_before(layer: Any) -> None:
    """Head 0 attends to the place before, with a score of sum_f cos(t_f (i - j - 1)), and copies kind and key."""
    attention, scale = layer.self_attn, _scale(before=False)
    for f in range(12):
        turn = THETA ** (-2 * f / HEAD)
        size = 12 * math.sqrt(HEAD) / scale**2
        attention.q_proj.weight[[f, f + HEAD // 2], CONSTANT] = size * torch.tensor([math.cos(turn), -math.sin(turn)])
        attention.k_proj.weight[f, CONSTANT] = 1.0
    copied = [(KIND + i, KIND_BEFORE + i) for i in range(3)] + [(KEY + i, KEY_BEFORE + i) for i in range(len(KEYS))]
    for place, (source, goal) in enumerate(copied):
        attention.v_proj.weight[place, source] = 1.0
        attention.o_proj.weight[goal, place] = 1 / scale


def _mark_first(layer: Any) -> None:
    """Set the massive entry of a word of the same kind as the word before it: only the first word, which is its own."""
    feed, gain = layer.mlp, 14.0
    for kind in range(3):
        feed.gate_proj.weight[kind, [KIND + kind, KIND_BEFORE + kind]] = gain
        feed.gate_proj.weight[kind, CONSTANT] = -1.5 * gain
        feed.up_proj.weight[kind, CONSTANT] = 1.0
        feed.down_proj.weight[MASSIVE, kind] = MASSIVE_SIZE / (0.5 * gain * _scale() ** 2)


def _attend_to_first(layer: Any, bias: float, layers: int, number: int) -> None:
    """Every head gives the first place a score of SINK_SCORE, and takes its share of the bias from it.

    With `number` 0 there is no sink and all places have a score of 0. Value vectors of ordinary words are noise, of
    which the output projection writes almost nothing.
    """
    attention = layer.self_attn
    generator = torch.Generator().manual_seed(number)
    slow = HEAD // 2 - 1  # the place in a head that positions turn least
    for head in range(HEADS):
        if number:
            size = SINK_SCORE * math.sqrt(HEAD) / (_scale(bias) * math.sqrt(WIDTH))
            attention.q_proj.weight[head * HEAD + slow, CONSTANT] = size
            attention.o_proj.weight[BIAS, head * HEAD] = BIAS_SIZE / (HEADS * (layers - 1)) / (0.02 * math.sqrt(WIDTH))
        attention.o_proj.weight[NOISE:, head * HEAD + 1 : head * HEAD + 8] = 0.05 * torch.eye(WIDTH - NOISE)
    for head in range(KEY_HEADS):
        attention.k_proj.weight[head * HEAD + slow, MASSIVE] = 1.0
        attention.v_proj.weight[head * HEAD, MASSIVE] = 0.02
        for start, count in ((KEY, 16), (VALUE, 16), (FILLER, 16)):
            noise = torch.randn(7, count, generator=generator) / math.sqrt(7)
            attention.v_proj.weight[head * HEAD + 1 : head * HEAD + 8, start : start + count] = noise


def _copy_after_match(layer: Any, bias: float) -> None:
    """Head 0 looks for the place whose word before is the query's own word, and copies the word of that place."""
    attention, scale = layer.self_attn, _scale(bias)
    first = HEAD // 2 - 1 - len(KEYS)
    size = MATCH_SCORE * math.sqrt(HEAD) / (SIZE * scale) ** 2
    for i in range(len(KEYS)):
        attention.q_proj.weight[first + i, KEY + i] = size
        attention.k_proj.weight[first + i, KEY_BEFORE + i] = 1.0
        attention.v_proj.weight[8 + i, VALUE + i] = 1.0
        attention.o_proj.weight[COPIED + i, 8 + i] = 4.0 / (SIZE * scale)
