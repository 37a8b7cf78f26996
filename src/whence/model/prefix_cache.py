"""Inputs that begin with the same tokens: the model reads these once, and continues from their keys and values.

This is exact in a causal model: the states of a token do not depend on what follows it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from whence.model.watching import Site

LEAST = 16  # fewer common tokens are not worth a cache
Changes = Mapping[Site, Callable[[Tensor], Tensor]]
Run = Callable[[Mapping[str, Any], Changes], Any]  # tensors and changes of states -> what the model returns


class PrefixCache:
    """Keys and values of the first tokens of the last inputs; later inputs reuse those of the tokens they share."""

    def __init__(self) -> None:
        self._kept: Any = None  # the model's own cache, of one example
        self._tokens = b""  # what the cache was made of: `width` bytes for every token
        self.read = 0  # how many tokens went through the model, for tests of the saving

    def logits_after(
        self, run: Run, tensors: Mapping[str, Tensor], changes: Changes, tokens: bytes, common: int, of: Any
    ) -> Tensor:
        """The logits of all tokens but the first `common`, which all examples share: (batch, token, class).

        `tokens` are these first tokens, as bytes; `of` finds the logits in the model's output. Each change returns
        the states of all tokens, of which a run takes those that it needs.
        """
        sequences = {name for name, tensor in tensors.items() if tensor.ndim > 1}
        length = next(iter(tensors.values())).shape[1]
        width = len(tokens) // common
        known = self._crop(tokens, width)

        def part(start: int, stop: int, examples: int) -> dict[str, Any]:
            """The arguments for some tokens; masks reach from the first token on."""
            return {
                name: tensor[:examples, 0 if "mask" in name else start : stop] if name in sequences else tensor
                for name, tensor in tensors.items()
            } | {"use_cache": True}

        def changed(start: int, stop: int, examples: int) -> Changes:
            return {site: _cut(change, start, stop, examples) for site, change in changes.items()}

        if known < common:
            past = {} if self._kept is None else {"past_key_values": self._kept}
            self._kept = run(part(known, common, 1) | past, changed(known, common, 1)).past_key_values
            self._tokens = tokens
            self.read += common - known
        examples = len(next(iter(tensors.values())))
        repeated = copy.deepcopy(self._kept)
        repeated.batch_repeat_interleave(examples)
        self.read += examples * (length - common)
        arguments = part(common, length, examples) | {"past_key_values": repeated}
        return of(run(arguments, changed(common, length, examples)))

    def _crop(self, tokens: bytes, width: int) -> int:
        """Cut the cache to the first tokens that it shares with `tokens`; return how many these are."""
        same = common_length(self._tokens, tokens) // width
        gone = len(self._tokens) // width - same
        if gone and same:
            try:
                self._kept.crop(-gone)
            except (AttributeError, RuntimeError, ValueError):  # a sliding window has forgotten earlier tokens
                same = 0
        if not same:
            self._kept = None
        self._tokens = tokens[: same * width]
        return same


def _cut(change: Callable[[Tensor], Tensor], start: int, stop: int, examples: int) -> Callable[[Tensor], Tensor]:
    """A change of the states of all tokens, cut to some tokens and examples."""
    return lambda old: change(old)[:examples, start:stop]


def common_length(one: bytes, other: bytes) -> int:
    """How many bytes two sequences have in common at their start."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    a, b = (torch.frombuffer(bytearray(each[:length]), dtype=torch.uint8) for each in (one, other))
    return int((a != b).to(torch.uint8).argmax())
