"""A small causal model that decides at an early token, so that later tokens provably cannot matter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

READ = 2  # the token at which the model decides
WIDTH = 8


class _Block(nn.Module):
    """Causal attention of one head, added to its input."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)  # (4, width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = (hidden @ weights for weights in self.weights[:3])
        future = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).triu(1)
        scores = (query @ key.transpose(1, 2) / math.sqrt(WIDTH)).masked_fill(future, float("-inf"))
        return hidden + nn.functional.linear(scores.softmax(-1) @ value, self.weights[3])


class PlantedModel(nn.Module):
    """Two causal blocks and a decision at an early token, so that later tokens provably cannot matter."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator) / math.sqrt(WIDTH)

        self.word = nn.Embedding.from_pretrained(drawn(26, WIDTH), freeze=False)
        self.blocks = nn.Sequential(_Block(drawn(4, WIDTH, WIDTH)), _Block(drawn(4, WIDTH, WIDTH)))
        self.head = nn.Parameter(drawn(WIDTH, 2))

    def forward(self, input: Tensor) -> Tensor:
        return self.blocks(self.word(input))[:, READ] @ self.head


def letters(word: str) -> dict[str, Any]:
    """A word as the model's inputs: a token per letter from a to z."""
    ids = np.array([ord(letter) - ord("a") for letter in word])
    return {"tensors": {"input": ids}, "features": {"text": list(word)}}
