"""What attention an experiment reads or edits: layers, heads and rows of the model on one input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from whence.core.specs import Number
from whence.debate.distances import jensen_shannon
from whence.methods.attention import by_key_stream
from whence.model.attention_runs import AttentionRuns, NewWeights
from whence.model.tap import AttentionRecord

Layers = Literal["last", "each", "all"] | Number | list[Number]
Heads = Literal["together", "each"] | Number | list[Number]
Rows = Literal["deciding", "all"]
AttentionReading = Literal["attention", "rollout"]


@dataclass(frozen=True, eq=False)
class Block:
    """Some heads and rows of one attention block: their own weights, and the keys whose weights may be edited."""

    record: AttentionRecord
    rows: Tensor  # (row,): numbers of the queries
    heads: list[int]
    span: slice  # of the keys, among the features
    free: Tensor  # (row, key) bool: weights that may be edited

    @cached_property
    def weights(self) -> Tensor:
        """The own weights of the chosen heads and rows: (head, row, key)."""
        return self.record.weights[0][self.heads][:, self.rows].double()

    @cached_property
    def mass(self) -> Tensor:
        """The weight that free keys have together: (head, row, 1). The other keys keep theirs."""
        return (self.weights * self.free).sum(-1, keepdim=True)

    def shares(self, weights: Tensor) -> Tensor:
        """Weights (..., head, row, key) of free keys as shares of their sum; 0 for others."""
        own = weights * self.free
        return own / own.sum(-1, keepdim=True).clamp(min=1e-30)


class Place:
    """The weights that are edited at once: in blocks of one layer or of several, of all heads or one."""

    def __init__(self, runs: AttentionRuns, name: str, blocks: Sequence[Block], features: int) -> None:
        self.runs, self.name, self.blocks, self.features = runs, name, list(blocks), features

    @cached_property
    def free(self) -> np.ndarray:
        """(feature,) bool: features whose weights may be edited; the numbers of experiments are about these."""
        free = np.zeros(self.features, bool)
        for block in self.blocks:
            free[block.span] |= block.free.any(0).cpu().numpy()
        return free

    @cached_property
    def attention(self) -> np.ndarray:
        """(feature,): the own weights, as the mean over heads, rows and layers."""
        return self.on_features([block.weights for block in self.blocks], mean=True)

    def on_features(self, by_block: Sequence[Tensor], mean: bool = False) -> np.ndarray:
        """(head, row, key) of every block as one number per feature: sums, or means over heads, rows and layers."""
        total, counts = np.zeros(self.features), np.zeros(self.features)
        for block, values in zip(self.blocks, by_block, strict=True):
            summed = values.detach().double().cpu().numpy()
            total[block.span] += summed.sum((0, 1))
            counts[block.span] += summed.shape[0] * summed.shape[1]
        return total / np.maximum(counts, 1) if mean else total

    # ---- other attention ---------------------------------------------------------------------------------------------

    def permuted(self, count: int, rng: np.random.Generator) -> list[Tensor]:
        """The weights of free keys exchanged at random, all heads alike: (variant, head, row, key) of every block."""
        draws = torch.from_numpy(rng.random((count, self.features)))
        found = []
        for block in self.blocks:
            new = block.weights.repeat(count, 1, 1, 1)
            for row, free in enumerate(block.free):
                keys = free.nonzero()[:, 0]
                order = draws.to(keys.device)[:, block.span][:, keys].argsort(-1)  # (variant, free key)
                moved = block.weights[:, row, keys][:, order]  # (head, variant, free key)
                new[:, :, row, keys] = moved.movedim(1, 0)
            found.append(new)
        return found

    def uniform(self) -> list[Tensor]:
        """Equal weights for all free keys, with the same sum as before: one variant."""
        found = []
        for block in self.blocks:
            equal = block.mass / block.free.sum(-1, keepdim=True).clamp(min=1)
            found.append(torch.where(block.free, equal, block.weights)[None])
        return found

    def without(self, gone: np.ndarray) -> list[Tensor]:
        """Weights that are zero at the free features `gone`, (variant, feature) bool; the others keep the whole sum.

        The weights of the other free features are scaled up to it, unless all of them are zero.
        """
        found = []
        for block in self.blocks:
            hidden = torch.from_numpy(gone[:, block.span]).to(block.free.device)[:, None, None] & block.free
            kept = block.weights * ~hidden  # (variant, head, row, key)
            left = (kept * block.free).sum(-1, keepdim=True)
            scaled = kept * torch.where(left > 0, block.mass / left.clamp(min=1e-30), 1.0)
            found.append(torch.where(block.free, scaled, kept))
        return found

    def divergence(self, new: Sequence[Tensor]) -> Tensor:
        """Jensen-Shannon divergence from the own attention over free keys, (variant,): mean over heads and rows.

        Rows in which fewer than two keys are free cannot be edited and do not count.
        """
        total, count = torch.zeros(len(new[0]), dtype=new[0].dtype, device=new[0].device), 0
        for block, weights in zip(self.blocks, new, strict=True):
            rows = block.free.sum(-1) > 1
            own = block.shares(block.weights).to(weights.dtype)
            distances = jensen_shannon(block.shares(weights), own)[..., rows]  # (variant, head, row)
            total, count = total + distances.sum((1, 2)), count + distances[0].numel()
        return total / max(count, 1)

    # ---- asking the model --------------------------------------------------------------------------------------------

    def logits(self, new: Sequence[Tensor], *, whole: bool = False, graph: bool = False) -> Tensor:
        """The decision logits with new weights in the chosen heads and rows: (variant, class)."""
        edits: dict[int, NewWeights] = {}
        for block, weights in zip(self.blocks, new, strict=True):
            heads = torch.tensor(block.heads, device=weights.device)
            own = block.record.weights[:, :, block.rows].expand(len(weights), -1, -1, -1)
            edits[block.record.order] = NewWeights(own.index_copy(1, heads, weights.to(own.dtype)), block.rows)
        return self.runs.logits(edits, variants=len(new[0]), whole=whole, graph=graph)


def places_of(runs: AttentionRuns, layers: Layers, heads: Heads, rows: Rows, special: bool) -> dict[str, list[Place]]:
    """The places that options name: by the name of the layer, one place, or one for every head that is edited alone."""
    subject, trace = runs.subject, runs.trace
    by_stream = list(by_key_stream(subject, trace))
    depth = max(len(records) for records in by_stream)
    chosen = _numbers(layers, depth, subject.name)
    named = {f"layer {depth + number}": [number] for number in chosen}
    if layers == "all":
        named = {"all layers": chosen}
    found = {}
    for name, numbers in named.items():
        records = [own[number] for number in numbers for own in by_stream if -len(own) <= number]
        found[name] = _by_head(runs, name, sorted(records, key=lambda record: record.order), heads, rows, special)
    return found


def _numbers(layers: Layers, depth: int, name: str) -> list[int]:
    """Numbers of layers, counted from the last one: -1."""
    if isinstance(layers, str):
        return [-1] if layers == "last" else [number - depth for number in range(depth)]
    wanted = layers if isinstance(layers, list) else [layers]
    for number in wanted:
        if not -depth <= number < depth:
            raise ValueError(f"layer {number} is out of range: {name} has {depth} layers that decide, from 0")
    return [number if number < 0 else number - depth for number in wanted]


def _by_head(
    runs: AttentionRuns, name: str, records: list[AttentionRecord], heads: Heads, rows: Rows, special: bool
) -> list[Place]:
    """One place with the chosen heads together, or a place for every head."""
    count = records[0].weights.shape[1]
    features = len(runs.batch.inputs[0].features)
    if isinstance(heads, str):
        sets = [[head] for head in range(count)] if heads == "each" else [None]
    else:
        wanted = heads if isinstance(heads, list) else [heads]
        if not all(-count <= head < count for head in wanted):
            raise ValueError(f"heads={heads} is out of range: the layer has {count} heads, from 0")
        sets = [[head % count for head in wanted]]
    return [
        Place(runs, name, [_block(runs, record, own, rows, special) for record in records], features) for own in sets
    ]


def _block(runs: AttentionRuns, record: AttentionRecord, heads: list[int] | None, rows: Rows, special: bool) -> Block:
    """The rows and heads of a block that are edited; keys that every head of a row leaves at 0 were masked."""
    batch = runs.batch
    span = batch.span(record.key)
    weights = record.weights[0]
    marks = batch.mask[0, batch.span(record.query)]
    if rows == "deciding":
        marks = marks & runs.trace.deciding[record.query][0]
    chosen = marks.nonzero()[:, 0]
    free = (weights[:, chosen] != 0).any(0) & batch.mask[0, span]
    if not special:
        free = free & ~batch.special[0, span]
    return Block(record, chosen, list(range(len(weights))) if heads is None else heads, span, free)
