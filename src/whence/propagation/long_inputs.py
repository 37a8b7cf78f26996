"""Long inputs: attention and its gradient are computed one head and a few rows at a time, and never kept whole.

The model runs on its fused path, `scaled_dot_product_attention`. Weights A and gradients G are computed again, tile by
tile, and handed to a fold over layers, last to first: in the backward pass, or, where a fold reads no gradients, after
a forward pass that made no graph below its last attention.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from whence.model.batching import Batch
from whence.model.discovery import summary
from whence.model.passes import Request
from whence.model.recomputing import layers_run_again
from whence.model.rules import Rules, when_known
from whence.model.subject import Subject
from whence.model.targets import Aim
from whence.propagation.fused_attention import Attended, Masks

# The most bytes of attention weights and their gradients that are kept. Beyond them attention is folded, which saves
# memory; methods that run together then take a pass each, because there is no kept attention for them to share.
LONG_BYTES = 2**28


@dataclass(frozen=True)
class Fold:
    """A method as a fold over attention blocks, last to first; the state is (batch, row, feature).

    `start(deciding)` makes the state from the tokens that the output reads, stream -> (batch, token) bool.
    `tile(state, added, rows, keys, weights, gradient, share)` adds the contribution of some heads and queries to
    `added`: `weights` and `gradient` are (batch, head, query, key), `rows` and `keys` the places of queries and keys
    among the features, and `share` is 1 / heads. A query whose gradients are 0 adds nothing; in a fold that reads no
    `gradient`, a query whose state is 0 adds nothing. `merge(state, added, queries)` makes the next state.

    `sums` says that `tile` only adds up A o G at the queries of the given mask: over queries, a sum for every key
    ("keys"), or over keys, a sum for every query ("queries"). The sum for a key is its value times the gradient of the
    value, the sum for a query its output times the gradient of the output, so neither needs tiles.
    """

    start: Callable[[dict[str, Tensor]], Tensor]
    tile: Callable[[Tensor, Tensor, slice, slice, Tensor, Any, float], None]
    merge: Callable[[Tensor, Tensor, slice], Tensor]
    gradient: bool = True
    sums: tuple[str, Tensor] | None = None  # "keys" or "queries", and which queries count


FoldOf = Callable[[Batch], Fold]  # a method as the fold for a batch


def fold_attention(subject: Subject, batch: Batch, aim: Aim, fold_of: FoldOf, start_layer: int = 0) -> Tensor | None:
    """The result of a fold over all attention, in memory that does not grow with the number of layers.

    Examples that are beginnings of one sequence share the forward pass over it, and each has a fold of its own. None
    where keeping attention is cheaper, or where folding is not possible: the model has several streams, its fused path
    does not make the same logits, or an intervention changes attention, which the fused path does not show.
    """
    if subject.change(batch) is not None:
        return None
    layers = len(subject.structure(batch).connections)
    if not is_long(subject, batch) or not 0 <= start_layer < layers or not has_fused_path(subject, batch):
        return None
    known = batch.trace
    if known is not None and known.aim is aim and known.attention and batch.needs <= known.needs:
        return None  # another method has kept the attention of this batch already
    if aim.states and len({aim.key(row) for row in range(len(batch))}) > 1:
        return None  # the targets may end in different layers, and the fold starts once for all examples
    stream, folds = next(iter(batch.streams)), _folds(subject, batch, aim, fold_of)
    if folds[0].gradient or aim.states:
        rules = TiledAttention(folds, stream, start_layer, keeps=not subject.recomputes)
        with layers_run_again(subject, batch, rules) if subject.recomputes else contextlib.nullcontext():
            subject.run(batch, aim, Request(frozenset({"gradient:word"}), rules=rules))
        states = [state for state in rules.states if state is not None]
        return torch.cat(states) if len(states) == len(folds) else None
    kept = QueriesAndKeys(layers)
    kept.shares = len(folds) > 1
    subject.run(batch, aim, Request(rules=kept))
    return kept.folded(folds, stream, start_layer, aim)


def _folds(subject: Subject, batch: Batch, aim: Aim, fold_of: FoldOf) -> list[Fold]:
    """One fold for the whole batch, or one for each example where all are beginnings of one sequence."""
    whole = batch.sequences
    if whole is None or len(whole.wholes) > 1 or aim.states or subject.recomputes:
        return [fold_of(batch)]
    return [fold_of(batch.chosen([row])) for row in range(len(batch))]


def is_long(subject: Subject, batch: Batch) -> bool:
    """Whether a batch of one stream has so much attention that it is better not kept."""
    layers = len(subject.structure(batch).connections)
    weights = len(batch) * batch.mask.shape[1] ** 2 * layers * subject.heads
    return len(batch.streams) == 1 and weights * 8 >= LONG_BYTES


def has_fused_path(subject: Subject, batch: Batch) -> bool:
    """Whether the fused path makes all of the model's attention, and the same logits as the eager one: tried once."""
    discovery = subject.discovery(batch)

    def try_it() -> bool:
        rules = Fused()
        plain = subject.logits(discovery.probe_batch, path="eager")
        fused = subject.logits(discovery.probe_batch, rules=rules)
        self_attention = all(query == key != "" for query, key in discovery.structure.connections)
        same = torch.allclose(plain, fused, rtol=1e-3, atol=1e-3)
        return same and self_attention and rules.calls == len(discovery.structure.connections)

    return discovery.remember("the fused path makes all attention", try_it)


class Fused(Rules):
    """A pass on the fused path; `calls` is the number of attention blocks so far."""

    attention_path = "sdpa"

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self._masks: Masks = {}

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        self.calls += 1
        return self.attended(Attended.of(args, kwargs or {}, self._masks), self.calls - 1)

    def attended(self, block: Attended, layer: int) -> Tensor:
        """The output of an attention block."""
        return block.output()


class TiledAttention(Fused):
    """A pass on the fused path whose backward passes feed a fold each; `states` are those of the folds.

    Without `keeps` no block of the forward pass is stored: layers run again in the backward pass, and the folds take
    the blocks of this second run.
    """

    def __init__(self, folds: list[Fold], stream: str, start_layer: int = 0, *, keeps: bool = True) -> None:
        super().__init__()
        self.folds, self.stream, self.start_layer = folds, stream, start_layer
        self.states: list[Tensor | None] = [None] * len(folds)
        self.shares = len(folds) > 1
        self.number = 0  # the number of the fold that the backward pass feeds
        self._keeps, self._second_run = keeps, False
        self._folded: dict[int, _Folded] = {}  # by the number of the block, until the second run gives the block

    @property
    def fold(self) -> Fold:
        """The fold that the backward pass feeds."""
        return self.folds[self.number]

    def turn(self, rows: list[int]) -> None:
        [self.number] = rows

    @contextlib.contextmanager
    def again(self, first: int) -> Iterator[None]:
        """A scope in which a layer is run again whose first attention block is number `first`."""
        self._second_run, self.calls = True, first
        try:
            with self:
                yield
        finally:
            self._second_run = False

    def attended(self, block: Attended, layer: int) -> Tensor:
        if not block.value.requires_grad or layer < self.start_layer:
            return block.output()
        onto_keys = self.fold.sums is not None and self.fold.sums[0] == "keys"
        if onto_keys:
            block.value = block.value.view_as(block.value)  # its gradient is that of this block alone
        value, out = block.value, block.output()
        if self._second_run:
            self._folded.pop(layer).take(block, out)
            return out
        folded = _Folded(self, out, value if onto_keys else None)
        if self._keeps:
            folded.take(block, out)
        else:
            self._folded[layer] = folded
        return out


class _Folded:
    """The step of a fold over one block, taken once the gradient of its output, or of its values, is known."""

    def __init__(self, rules: TiledAttention, out: Tensor, value: Tensor | None) -> None:
        self._rules = rules
        self._known: Attended | None = None  # the block, once it was taken
        self._out: Tensor | None = None
        self._by_value = False  # the step waits for the gradient of the values, which gives the sums for keys
        when_known(out, self._output_known)
        if value is not None:
            when_known(value, self._value_known)

    def take(self, block: Attended, out: Tensor) -> None:
        """Store the block as it was run, without its graph."""
        block.detach()
        self._known = block
        self._out = out.detach() if self._rules.fold.sums is not None else None

    @property
    def _block(self) -> Attended:
        if self._known is None:
            raise ValueError("an attention block was not run again before its gradient was known; recompute nothing")
        return self._known

    def _output_known(self, d_out: Tensor) -> None:
        rules, block, fold = self._rules, self._block, self._rules.fold
        read = (d_out != 0).any(-1).any(1)  # (batch, query)
        state = rules.states[rules.number]
        if state is None:
            state = rules.states[rules.number] = fold.start({rules.stream: read})
        added = torch.zeros_like(state)
        self._by_value = False
        counted = None if fold.sums is None else fold.sums[1]
        if fold.sums is not None and fold.sums[0] == "queries":
            assert self._out is not None
            sums = torch.linalg.vecdot(self._out.to(added.dtype), d_out.to(added.dtype)).sum(1)
            added[:, 0] = sums.masked_fill(~fold.sums[1], 0.0)
        elif counted is not None and not bool((read & ~counted).any()):
            self._by_value = True
            return
        else:
            share = 1 / block.query.shape[1]
            for tile in block.tiles(read.any(0), d_out):
                fold.tile(state, added, tile.rows, tile.keys, tile.weights, tile.gradient, share)
        self._merge(added)

    def _value_known(self, d_value: Tensor) -> None:
        if not self._by_value:
            return
        state = self._rules.states[self._rules.number]
        assert state is not None
        added = torch.zeros_like(state)
        added[:, 0] = torch.linalg.vecdot(self._block.value.to(added.dtype), d_value.to(added.dtype)).sum(1)
        self._merge(added)

    def _merge(self, added: Tensor) -> None:
        rules = self._rules
        state, everything = rules.states[rules.number], slice(0, added.shape[-1])
        assert state is not None
        rules.states[rules.number] = rules.fold.merge(state, added, everything)
        if rules.number == len(rules.folds) - 1:
            self._known = self._out = None  # the graph still holds this object, and must not hold these tensors


class QueriesAndKeys(Fused):
    """A forward pass on the fused path that keeps queries and keys, and a graph above its last attention only."""

    graph = True

    def __init__(self, layers: int) -> None:
        super().__init__()
        self._layers, self._blocks = layers, list[Attended]()
        self._last: Tensor | None = None
        self._logits: Tensor | None = None

    def attended(self, block: Attended, layer: int) -> Tensor:
        out = block.output()
        block.value = block.key[..., :0]  # the values are not needed again
        self._blocks.append(block)
        if layer == self._layers - 1:
            out = self._last = out.detach().requires_grad_()
        return out

    def decided(self, logits: Tensor) -> None:
        self._logits = logits

    def folded(self, folds: list[Fold], stream: str, start_layer: int, aim: Aim) -> Tensor:
        """The folds over the blocks, last to first, each from the tokens that its output reads."""
        assert self._logits is not None and self._last is not None
        outputs = aim.read(self._logits)
        states = []
        for fold, output in zip(folds, outputs.split(len(outputs) // len(folds)), strict=True):
            scalar, d_out = summary(output), torch.zeros_like(self._last)
            if scalar.requires_grad:
                d_out = torch.autograd.grad(scalar, self._last, retain_graph=True)[0]
            states.append(self._folded(fold, fold.start({stream: (d_out != 0).any(-1).any(1)}), start_layer))
        return torch.cat(states)

    def _folded(self, fold: Fold, state: Tensor, start_layer: int) -> Tensor:
        everything = slice(0, state.shape[-1])
        for block in reversed(self._blocks[start_layer:]):
            added, share = torch.zeros_like(state), 1 / block.query.shape[1]
            for tile in block.tiles((state != 0).any(1).any(0), None):
                fold.tile(state, added, tile.rows, tile.keys, tile.weights, None, share)
            state = fold.merge(state, added, everything)
        return state
