"""One pass over whole sequences for all of their beginnings: in a causal model, no token changes earlier ones.

The rows of generated text are such beginnings. The model runs once over the sequence; the logits of a row are read at
the row's last token, and its gradients come from a backward pass of its own through the one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from whence.model.batching import Batch, Shared
from whence.model.tap import AttentionRecord

At = str | int
Streams = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Running:
    """The inputs that are run for a batch: the batch itself, or whole sequences in its place."""

    batch: Batch  # what the model is given: the batch itself, or the sequences that its examples are beginnings of
    states: Mapping[At, Streams] = field(default_factory=dict)  # put in place of the model's own
    rows: Shared | None = None  # the examples of the batch among the sequences; None where the batch itself is run

    def spread(self, tensor: Tensor) -> Tensor:
        """A recorded tensor with a row per sequence, as a tensor with a row per example of the batch."""
        return tensor if self.rows is None else self.rows.spread(tensor)


def running(batch: Batch, states: Mapping[At, Streams], shares: bool) -> Running:
    """Whole sequences where the batch has some and the request `shares` them; else the batch itself."""
    rows = batch.sequences
    if rows is None or not shares:
        return Running(batch, states)
    if not states:
        return _reading(batch, rows, states)
    longest, of = _same_states(batch, rows.of, states)
    if len(longest) == len(batch):
        return Running(batch, states)
    chosen = {at: {s: state[longest] for s, state in by_stream.items()} for at, by_stream in states.items()}
    return _reading(batch, Shared(replace(batch.chosen(longest), shared=None), of), chosen)


def _reading(batch: Batch, rows: Shared, states: Mapping[At, Streams]) -> Running:
    """A run of sequences, whose logits are read at the last token of every example of the batch."""
    last = batch.last_tokens(list(batch.streams)[-1])
    return Running(replace(rows.wholes, read_at=(rows.of, last)), states, rows)


def _same_states(batch: Batch, of: Tensor, states: Mapping[At, Streams]) -> tuple[list[int], Tensor]:
    """The numbers of the examples to run, and for every example which of these it is a beginning of, states included.

    An example joins the longest example of its sequence that has the same states at all tokens of the shorter one.
    """
    numbers, longest = torch.zeros_like(of), list[int]()
    left = sorted(range(len(batch)), key=lambda row: len(batch.inputs[row].features), reverse=True)
    while left:
        first = left[0]
        alike = [row for row in left if bool(of[row] == of[first])]
        agree = torch.ones(len(alike), dtype=torch.bool)
        for by_stream in states.values():
            for stream, state in by_stream.items():
                same = state[alike] == state[first]
                if state.ndim == 3:
                    real = batch.mask if stream == "*" else batch.streams[stream]
                    same = same.all(-1) | ~real[alike].to(state.device)
                agree &= same.flatten(1).all(1).cpu()
        joined = {row for row, agrees in zip(alike, agree.tolist(), strict=True) if agrees}
        numbers[sorted(joined)] = len(longest)
        longest.append(first)
        left = [row for row in left if row not in joined]
    return longest, numbers


def row_gradients(
    value: Tensor,
    wanted: Sequence[Tensor],
    arranged: Sequence[Callable[[Tensor], Tensor]],
    rows: Shared,
    told: Callable[[list[int]], None],
) -> list[Tensor | None]:
    """Gradients of every row's value with respect to tensors of a pass over whole sequences, (batch, ...) each.

    `told` is called with the rows of every backward pass before it begins. `arranged` brings a tensor's axis of
    sequences to the front. One backward pass serves one row of every sequence. None for a tensor that no value depends
    on.
    """
    found: list[Tensor | None] = [None] * len(wanted)
    turns = _turns(rows.of.tolist())
    for number, turn in enumerate(turns):
        last = number == len(turns) - 1
        told(turn)
        grads = torch.autograd.grad(value[turn].sum(), wanted, allow_unused=True, retain_graph=not last)
        sequences = rows.of[turn]
        for place, grad in enumerate(grads):
            if grad is None:
                continue
            grad = arranged[place](grad)
            if found[place] is None:
                found[place] = grad.new_zeros(len(value), *grad.shape[1:])
            found[place][turn] = grad[sequences.to(grad.device)]  # type: ignore[index]
    return found


def _turns(of: list[int]) -> list[list[int]]:
    """The rows, in turns of at most one row of every sequence."""
    turns: list[list[int]] = []
    seen: dict[int, int] = {}
    for row, sequence in enumerate(of):
        turn = seen.get(sequence, 0)
        seen[sequence] = turn + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(row)
    return turns


def spread_records(records: list[AttentionRecord], rows: Shared) -> None:
    """Give attention records of whole sequences a row per example; gradients already have one."""
    for record in records:
        record.parts = [rows.spread(part) for part in record.parts]
        record.value_parts = [rows.spread(part) for part in record.value_parts]
        record.score_parts = [rows.spread(part) for part in record.score_parts]
