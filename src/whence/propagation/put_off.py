"""Parts that are computed only where they are read: those of queries and keys, which attention holds, never are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary


class Later:
    """Parts that are computed when they are first read."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._made: Any = None

    def __call__(self) -> Any:
        if self._make is not None:
            with torch.no_grad():
                self._made, self._make = self._make(), None
        return self._made


def now(parts: Any) -> Any:
    """Parts as a tensor, whether they were put off or not."""
    return parts() if isinstance(parts, Later) else parts


def entry(parts: Any, number: int) -> Any:
    """The parts of one of several results of an operation."""
    return now(parts)[number]


class PartsOf(WeakIdKeyDictionary):
    """Tensor -> its parts, as long as the model keeps the tensor.

    Reading an entry computes parts that were put off, `raw` leaves them so. What was put off must not refer to the
    tensor that it belongs to: neither would ever be freed.
    """

    def __getitem__(self, tensor: Any) -> Any:
        return now(super().__getitem__(tensor))

    def raw(self, tensor: Any) -> Any:
        return super().__getitem__(tensor)

    def get(self, tensor: Any, default: Any = None) -> Any:
        return now(super().get(tensor, default))


class Before(dict[int, Any]):
    """The parts of an operation's operands as they were before it, by the operands' identity; read as `PartsOf`."""

    def __getitem__(self, number: int) -> Any:
        return now(super().__getitem__(number))

    def raw(self, number: int) -> Any:
        return super().__getitem__(number)

    def get(self, number: int, default: Any = None) -> Any:
        return now(super().get(number, default))
