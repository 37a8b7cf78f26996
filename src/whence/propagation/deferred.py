"""Parts that are computed only where they are read, and a few rows at a time.

Attention weights are held constant, so the parts of queries and keys are never read, and never computed. Most
operations of a layer keep the rows of a state (its tokens) apart. Through a chain of such operations parts are computed
block by block, some rows at a time, so that intermediate tensors stay in the processor's cache. Where the model uses
only some tokens of a state, as most models do after their last layer, parts are computed for these tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

BLOCK = 2**19  # most numbers in the result of a block of rows; a layer's intermediate tensors are up to 4 times wider

Rows = slice | Tensor  # some rows of a state, by their numbers


class Deferred:
    """Parts that are computed when they are first read: (source and rest, *state)."""

    def __init__(self) -> None:
        self.computed = False
        self._parts: Any = None

    def __call__(self) -> Any:
        if not self.computed:
            with torch.no_grad():
                self._compute()
        return self._parts

    def _compute(self) -> None:
        raise NotImplementedError

    def rows(self, chosen: Rows, found: dict[DeferredRows, Tensor]) -> Tensor:
        """The parts of some rows of the state, all its axes but the last taken as rows: (source and rest, row, width).

        `found` collects the parts that were computed for these same rows, by their `DeferredRows`, so that none is
        computed twice.
        """
        if not self().is_contiguous():
            self._parts = self._parts.contiguous()  # once, and not again for every block of rows
        return self._parts.flatten(1, -2)[:, chosen]


class DeferredWhole(Deferred):
    """Parts that a function computes, all rows together."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__()
        self._function = function

    def _compute(self) -> None:
        self._parts, self.computed = self._function(), True
        del self._function  # this frees the parts that the function reads


class DeferredRows(Deferred):
    """Parts of a state, each row of which is made by one operation from the same row of every operand.

    `fixed` are operands without parts: those of two axes have a row for each row of the state. `still_read` tells
    whether the model still holds a state with the given parts: where such parts are computed on the way to these, they
    are stored too.
    """

    def __init__(
        self,
        operation: Callable[..., Tensor],
        operands: Sequence[Deferred],
        fixed: Sequence[Any],
        shape: Sequence[int],
        still_read: Callable[[Deferred], bool],
    ) -> None:
        super().__init__()
        self._operation, self._operands, self._fixed = operation, operands, fixed
        self._shape, self._still_read = tuple(shape), still_read  # the shape of the state, without its last axis

    def rows(self, chosen: Rows, found: dict[DeferredRows, Tensor]) -> Tensor:
        if self.computed:
            return super().rows(chosen, found)
        if self not in found:
            found[self] = self._computed_rows(chosen, found)
        return found[self]

    def _computed_rows(self, chosen: Rows, found: dict[DeferredRows, Tensor]) -> Tensor:
        fixed = [one[chosen] if isinstance(one, Tensor) and one.ndim == 2 else one for one in self._fixed]
        return self._operation(*[one.rows(chosen, found) for one in self._operands], *fixed)

    def _compute(self) -> None:
        """Compute all rows, and with them those of the states on the way that the model still reads."""
        none: dict[DeferredRows, Tensor] = {}
        self.rows(slice(0), none)  # computes operands that cannot be cut into rows, and tells the width of the others
        count = torch.Size(self._shape).numel()
        kept = {
            one: empty.new_empty(len(empty), count, empty.shape[-1])
            for one, empty in none.items()
            if not one.computed and (one is self or self._still_read(one))  # `rows` may have computed some whole
        }
        block = _rows_at_once(none[self])
        for start in range(0, count, block):
            chosen, found = slice(start, start + block), dict[DeferredRows, Tensor]()
            self.rows(chosen, found)
            for one, parts in kept.items():
                parts[:, chosen] = found[one]
        for one, parts in kept.items():
            one._keep(parts)

    def _keep(self, parts: Tensor) -> None:
        """Store these parts of all rows, and free the operands."""
        self._parts, self.computed = parts.view(len(parts), *self._shape, parts.shape[-1]), True
        self._operands = self._fixed = ()


class ChosenRows(DeferredRows):
    """Parts of a state that consists of some rows of another: the rows `numbers` of the state with the parts `of`."""

    def __init__(
        self, of: Deferred, numbers: Tensor, shape: Sequence[int], still_read: Callable[[Deferred], bool]
    ) -> None:
        super().__init__(lambda parts: parts, [of], [], shape, still_read)
        self._numbers = numbers

    def _computed_rows(self, chosen: Rows, found: dict[DeferredRows, Tensor]) -> Tensor:
        return self._operands[0].rows(self._numbers[chosen], {})


def _rows_at_once(empty: Tensor) -> int:
    """How many rows are computed together: on a GPU all rows, because small operations would leave it idle."""
    each = max(1, len(empty) * empty.shape[-1])
    return max(1, BLOCK // each) if empty.device.type == "cpu" else 2**62
