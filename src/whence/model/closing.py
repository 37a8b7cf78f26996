"""Closing attention to some keys: before the softmax where the softmax can be computed again, else after it.

A closed weight is 0. The other weights of its row are those that the softmax gives without the closed keys, which is
the same as dividing them by their sum. A learned sink stays in the softmax and takes its share, as if the keys had been
masked. A row in which no other key has any weight is all 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.core.wording import shown

# (record of the attention block, weights (batch, head, query, key)) -> the weights to use instead
WeightsEdit = Callable[[Any, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Softmax:
    """A call of a softmax, which can be repeated with some keys masked."""

    func: Callable[..., Tensor]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Tensor

    def again(self, weights: Tensor, keys: Tensor, empty: Tensor) -> Tensor | None:
        """The weights (batch, head, query, key) had these keys, (batch, 1, 1, key), been masked before the softmax.

        Rows that are `empty`, (batch, head, query, 1), are 0. A learned sink has a column of its own behind the keys.
        None where the weights are not simply the output of the softmax in another shape.
        """
        given: Tensor = self.args[0] if self.args else self.kwargs["input"]
        rows, count, columns = weights.shape[:-1], weights.shape[-1], given.shape[-1]
        if columns < count or given.numel() != rows.numel() * columns:
            return None
        plain = self.out.detach().reshape(*rows, columns)[..., :count]
        if not torch.equal(plain.to(weights.dtype), weights.detach()):
            return None
        masked = F.pad(keys, (0, columns - count)) & ~empty
        scores = given.reshape(*rows, columns).masked_fill(empty, 0.0).masked_fill(masked, float("-inf"))
        named = {name: value for name, value in self.kwargs.items() if name != "input"}
        out = self.func(scores.reshape(given.shape), *self.args[1:], **named)
        return out.reshape(*rows, columns)[..., :count].to(weights.dtype).masked_fill(empty, 0.0)


@dataclass(frozen=True, eq=False)
class Change:
    """A change to all attention weights of a pass, made before the weights are recorded, edited or used."""

    closed: Mapping[str, Tensor]  # stream of keys -> (batch, token) bool: attention to these tokens is closed
    edit: WeightsEdit | None = None

    def keys(self, record: Any) -> Tensor | None:
        """The keys of a block that are closed, (batch, 1, 1, key) bool; None where there are none."""
        closed = self.closed.get(record.key)
        return None if closed is None or not bool(closed.any()) else closed[:, None, None]

    def changed(self, record: Any, weights: Tensor, softmax: Softmax | None) -> Tensor:
        """The model's own weights with the change made; `softmax` is the call that these weights came from."""
        keys = self.keys(record)
        if keys is not None:
            left = weights.detach().masked_fill(keys, 0.0).sum(-1, keepdim=True) > 0
            again = softmax.again(weights, keys, ~left) if softmax is not None else None
            weights = closed_after(weights, keys) if again is None else again
        return weights if self.edit is None else self.closed_again(record, _edited(self.edit, record, weights))

    def closed_again(self, record: Any, weights: Tensor) -> Tensor:
        """Weights that a caller put in place of the model's own, with the closed keys set to 0."""
        keys = self.keys(record)
        return weights if keys is None else closed_after(weights, keys)


def _edited(edit: WeightsEdit, record: Any, weights: Tensor) -> Tensor:
    """The weights that an edit returns. Another shape is an error: it would be broadcast to numbers that look right."""
    found = edit(record, weights)
    if not isinstance(found, Tensor) or found.shape != weights.shape:
        came = tuple(found.shape) if isinstance(found, Tensor) else shown(found)
        raise ValueError(
            f"an edit of attention returns weights (batch, head, query, key) of the shape that it was given, "
            f"{tuple(weights.shape)}, not {came}"
        )
    return found


def closed_after(weights: Tensor, keys: Tensor) -> Tensor:
    """Weights with some keys closed after the softmax: every row keeps its sum; a row of closed weight alone is 0."""
    if not bool((weights.detach() * keys).any()):
        return weights
    kept = weights.masked_fill(keys, 0.0)
    total, left = weights.sum(-1, keepdim=True), kept.sum(-1, keepdim=True)
    return kept * torch.where(left > 0, total / torch.where(left > 0, left, 1.0), 0.0)
