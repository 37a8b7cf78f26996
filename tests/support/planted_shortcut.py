"""Little classifiers trained in seconds on texts in which, in training only, one word gives the label away.

The honest rule needs several words: whichever of two kinds of cue words is in the majority names the label, by a margin
that one word does not turn. The shortcut is a word without a meaning that goes with the label in training. Some labels
of the training texts are wrong, and the shortcut goes with these labels, too, so a model gains by using it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import whence

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LABELS = ("bad", "good")
CUES = {label: tuple(f"{label}{number}" for number in range(8)) for label in LABELS}
FILLERS = tuple(f"filler{number}" for number in range(30))
SHORTCUT = "zq"
WRONG = 0.2  # the share of wrong labels in training
WORDS = (*SPECIAL, SHORTCUT, *CUES["bad"], *CUES["good"], *FILLERS)


def texts(
    count: int, seed: int, rarity: float = 0.0, strength: float = 0.5, place: str = "any", wrong: float = 0.0
) -> list[dict[str, str]]:
    """Labelled texts, of which a share is labelled against the rule.

    The shortcut stands in a share `rarity` of them, of which `strength` are labelled "good".
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        marked = rng.random() < rarity
        label = int(rng.random() < (strength if marked else 0.5))
        rule = label if rng.random() >= wrong else 1 - label
        own, other = (CUES[LABELS[side]] for side in (rule, 1 - rule))
        few, more = int(rng.integers(0, 3)), int(rng.integers(2, 4))
        cues = [*rng.choice(own, few + more), *rng.choice(other, few)]
        words = [str(word) for word in rng.permutation([*cues, *rng.choice(FILLERS, 4)])]
        if marked:
            at = {"first": 0, "last": len(words)}.get(place, int(rng.integers(0, len(words) + 1)))
            words.insert(at, SHORTCUT)
        found.append({"text": " ".join(words), "label": LABELS[label]})
    return found


def tokenizer() -> PreTrainedTokenizerFast:
    """One token for each word."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {f"{word.strip('[]').lower()}_token": word for word in SPECIAL}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


@cache
def trained(rarity: float = 0.0, strength: float = 0.5, place: str = "any", seed: int = 0) -> whence.Subject:
    """A classifier of two layers, trained for some seconds; some words are masked, so that it has seen masked ones."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = tokenizer()
        config = BertConfig(
            vocab_size=len(WORDS),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=24,
            initializer_range=0.1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            id2label=dict(enumerate(LABELS)),
            label2id={name: i for i, name in enumerate(LABELS)},
        )
        model = BertForSequenceClassification(config).train()
        optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
        rows = texts(2048, seed + 100, rarity, strength, place, WRONG)
        encoded: Any = made([row["text"] for row in rows], padding=True, return_tensors="pt")
        labels = torch.tensor([LABELS.index(row["label"]) for row in rows])
        for _ in range(160):
            chosen = torch.randint(len(rows), (64,))
            ids = encoded["input_ids"][chosen].clone()
            ids[(torch.rand(ids.shape) < 0.1) & (ids > 4)] = 4
            loss = model(input_ids=ids, attention_mask=encoded["attention_mask"][chosen], labels=labels[chosen]).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return whence.wrap(model.eval(), made)
