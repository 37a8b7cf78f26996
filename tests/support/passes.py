"""Counting the tokens that go through a model, and the families that write text."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from whence.model.forward import Forward

CAUSAL = ("gpt2", "gpt-neox", "gptj", "llama", "qwen3", "gemma2", "gemma3", "mistral", "gpt-oss")
ENCODER_DECODER = ("t5", "bart", "marian")


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """The number of tokens of every pass in this scope; of an encoder-decoder those of its decoder."""
    tokens: list[int] = []
    called = Forward._called

    def counting(self: Forward, tensors: Any) -> Any:
        names = [name for name in ("decoder_input_ids", "input_ids") if name in tensors]
        tokens.append(tensors[names[0]].numel())
        return called(self, tensors)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Forward, "_called", counting)
        yield tokens
