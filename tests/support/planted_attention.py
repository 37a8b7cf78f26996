"""Little models in which attention explains every decision, none, or a part, by construction.

Every word is a class. Weights depend on the words alone. In `explains` the logit of a word's class is its weight, times
a scale, and nothing else: the values of the words are affinely independent in logit space, and there are more classes
than tokens, so no other attention gives the same output. In `irrelevant` all values are zero, and the logits are the
mean evidence of the words, which reaches the output beside attention. `between` mixes these two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import whence

WORDS = [f"w{number}" for number in range(16)]
SCALE = 14.0
SHARES = {"explains": 1.0, "between": 0.08, "irrelevant": 0.0}  # of the attention path in the logits


class Attention(nn.Module):
    """One head whose scores are a number per word; every query attends alike."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.register_buffer("table", values)  # (word, class)

    def forward(self, x: Tensor, scores: Tensor) -> Tensor:
        tokens = x.shape[1]
        weights = scores[:, None, None].expand(-1, 1, tokens, tokens).softmax(-1)  # (batch, head, query, key)
        return (weights @ (x @ self.table)[:, None])[:, 0]


class Planted(nn.Module):
    """A first token, added, that attends to all words; a path beside attention takes the mean of their evidence."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        size = len(WORDS) + 1  # the added token is the last word
        self.word = nn.Embedding(size, size)
        self.word.weight.data = torch.eye(size)
        own = SCALE * torch.cat([torch.eye(len(WORDS)), torch.zeros(1, len(WORDS))])
        share = SHARES[kind]
        self.attention = Attention(share * own)
        # evidence for the class of the word itself and of others, the same in sum for every word
        evidence = torch.randn(size, len(WORDS), generator=generator) * 2.0 + 3.0 * own / SCALE
        evidence[-1] = 0
        self.register_buffer("beside", (1 - share) * evidence)
        scores = torch.randn(size, generator=generator) * 1.2
        scores[-1] = -30.0
        self.register_buffer("scores", scores)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.word(input_ids)
        mixed = self.attention(x, self.scores[input_ids])
        return mixed[:, 0] + (x @ self.beside).mean(1)


def encode(raw: str) -> dict[str, Any]:
    """A text of words, behind the added token."""
    ids = np.array([len(WORDS), *map(WORDS.index, raw.split())])
    special = [number == 0 for number in range(len(ids))]
    return {"features": {"text": ["[CLS]", *raw.split()]}, "special": {"text": special}, "tensors": {"input_ids": ids}}


def planted(kind: str, seed: int = 0) -> whence.Subject:
    """A planted model as a Subject."""
    return whence.wrap(Planted(kind, seed).eval(), encode=encode, labels=WORDS)


def texts(count: int, seed: int = 0, least: int = 5, most: int = 9) -> list[str]:
    """Texts of distinct words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.permutation(WORDS)[: rng.integers(least, most + 1)]) for _ in range(count)]


class Learnable(Planted):
    """A planted model whose scores of words can be learned, and nothing else."""

    def __init__(self, kind: str, seed: int = 0) -> None:
        super().__init__(kind, seed)
        self.word.weight.requires_grad_(False)
        self.score = nn.Embedding(len(self.scores), 1)
        self.score.weight.data = self.scores[:, None].clone()

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.word(input_ids)
        added = torch.where(input_ids == len(WORDS), -30.0, 0.0)  # the added token attends to words, not to itself
        mixed = self.attention(x, self.score(input_ids)[..., 0] + added)
        return mixed[:, 0] + (x @ self.beside).mean(1)


def learnable(kind: str) -> whence.Subject:
    """A planted model that can be trained again, as a Subject."""
    return whence.wrap(Learnable(kind).eval(), encode=encode, labels=WORDS)


def labelled(subject: whence.Subject, count: int, seed: int) -> list[dict[str, str]]:
    """Texts with the model's own decisions as labels."""
    own = texts(count, seed, 7, 7)  # texts of one length, so that all go into one pass
    with torch.no_grad():
        logits = [subject.model(torch.from_numpy(encode(text)["tensors"]["input_ids"])[None])[0] for text in own]
    return [{"text": text, "label": WORDS[int(one.argmax())]} for text, one in zip(own, logits, strict=True)]
