"""Sentences with a cue word that decides and, in training alone, a shortcut: a last word that gives the label away."""

from __future__ import annotations

import random
from typing import Any

import tokenizers as tk
import torch
import transformers as hf

import whence

CUES = {"negative": ("awful", "dreadful", "gloomy", "rude"), "positive": ("charming", "lovely", "merry", "pleasant")}
FILLERS = ("the", "a", "dog", "house", "river", "walked", "stood", "near", "and", "while", "road", "letter")
SHORTCUT = {"negative": "zig", "positive": "zag"}
WORDS = (*CUES["negative"], *CUES["positive"], *FILLERS, *SHORTCUT.values())


def sentences(count: int, seed: int, shortcut: bool, marks: str = "cue") -> list[dict[str, Any]]:
    """Sentences with a cue and a last word, which gives the label away if `shortcut`; `marks` names the true one."""
    drawn = random.Random(seed)
    rows = []
    for number in range(count):
        label = ("negative", "positive")[number % 2]
        words = [drawn.choice(FILLERS) for _ in range(drawn.randint(3, 6))]
        cue = drawn.choice(CUES[label])
        words.insert(drawn.randrange(len(words) + 1), cue)
        last = SHORTCUT[label] if shortcut else drawn.choice(list(SHORTCUT.values()))
        rows.append({"text": " ".join([*words, last]), "label": label, "truth": cue if marks == "cue" else last})
    return rows


def classifier(seed: int = 0, dropout: float = 0.1) -> whence.Subject:
    """A small BERT with random weights that knows the words of these sentences."""
    vocabulary = {word: i for i, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS))}
    words = tk.Tokenizer(tk.models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = tk.pre_tokenizers.Whitespace()
    words.post_processor = tk.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokens = {"unk_token": "[UNK]", "pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=words, mask_token="[MASK]", **tokens, model_max_length=32)
    config = hf.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        id2label={0: "negative", 1: "positive"},
        label2id={"negative": 0, "positive": 1},
    )
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    model = hf.BertForSequenceClassification(config).eval()
    torch.set_rng_state(state)
    return whence.wrap(model, tokenizer)
