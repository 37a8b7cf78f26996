"""Products of many layers' maps, computed without loss of digits, and the note on a product that has collapsed.

The rows of a product of many positive maps become alike, whatever the maps are: the product tends to a matrix of rank
one. In a model that reads from left to right the first token sees only itself, so weight that reaches it stays there,
and with enough layers nearly all weight does. The weight left on other tokens is then too small for a 32-bit float.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from whence.core.inputs import Input
from whence.model.batching import Batch

# A product has collapsed where all but LEFT of what is read lies on one token while two rows are ALIKE (half the sum of
# their |differences|), or where the rows are the SAME. Rows that are only alike are usual, and still inform.
LEFT, ALIKE, SAME = 0.01, 0.1, 1e-6
FEWEST = 4  # features; with fewer, rows are alike by chance


def rolled_out(start: Tensor, maps: Iterable[Tensor]) -> Tensor:
    """The logarithm of start @ map @ map ..., last layer first: (batch, row, feature), in 64 bits.

    Sums of logarithms neither overflow nor underflow, however many layers there are; an entry of 0 is -inf.
    """
    state = start.double().log()
    for one in maps:
        logs = one.double().log()  # (batch, to, from)
        state = torch.stack([torch.logsumexp(row[:, :, None] + logs, 1) for row in state.unbind(1)], 1)
    return state


def with_halves(start: Tensor, batch: Batch) -> Tensor:
    """The rows that read a product, with two more in front: the mean over tokens 0, 2, 4, ... and over 1, 3, 5, ...

    A product that has collapsed gives nearly the same result for both; the identity gives results without overlap.
    """
    place = batch.mask.cumsum(1) % 2
    halves = torch.stack([batch.mask & (place == 1), batch.mask & (place == 0)], 1).to(start.dtype)
    return torch.cat([halves / halves.sum(-1, keepdim=True).clamp(min=1), start], 1)


def collapse_notes(halves: Tensor, scores: Tensor, batch: Batch) -> list[tuple[str, ...]]:
    """For every example, a note where the product has collapsed; `halves` are the two rows that `with_halves` added."""
    shares = halves.double().masked_fill(~batch.mask[:, None], 0.0)
    shares = shares / shares.sum(-1, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)
    apart = (shares[:, 0] - shares[:, 1]).abs().sum(-1) / 2  # (batch,)
    ordered = scores.double().sort().values  # sums that begin with the smallest keep the digits of small scores
    left = ordered[:, :-1].sum(-1) / ordered.sum(-1).clamp(min=torch.finfo(ordered.dtype).tiny)
    gone = ((left <= LEFT) & (apart <= ALIKE)) | (apart <= SAME)
    gone &= (batch.mask.sum(1) >= FEWEST) & (ordered[:, -1] > 0)
    return [
        (_note(batch.inputs[row], scores[row][batch.mask[row]], float(left[row])),) if gone[row] else ()
        for row in range(len(scores))
    ]


def _note(item: Input, scores: Tensor, left: float) -> str:
    """What a collapsed product means, and what to use."""
    name = item.features[int(scores.argmax())].strip()
    where = f"and all but {left:.1g} of the weight lies on ‘{name}’" if left <= LEFT else "whichever token is read"
    return (
        f"this roll-out has collapsed: after so many layers the rows of all tokens are alike, {where}; the scores say "
        "where the layers lead, and not what this decision draws on: use leave_one_out, attnlrp or integrated_gradients"
    )


def from_logs(state: Tensor) -> Tensor:
    """The product from its logarithm, each example divided by its largest entry, so that none overflows."""
    largest = state.amax((1, 2), keepdim=True)
    return (state - torch.where(largest.isfinite(), largest, 0.0)).exp()
