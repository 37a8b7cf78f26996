"""Running one input many times with its attention edited; layers whose output no edit changes run once.

Layers that end before the edited attention begins give the same output in every variant. They run once; while the
variants run, side by side as one batch, these layers return the stored output. Where the edited layer is the last one
and the output reads only a few of its tokens, such as [CLS], the layer runs on these tokens alone: the keys and values
of all tokens are stored. Each shortcut is first compared with a run of the whole model; where the logits differ, every
variant runs the whole model.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from whence.core.inputs import Input
from whence.model.batching import Batch, stream_of
from whence.model.discovery import no_attention, no_gradients
from whence.model.layers import repeated
from whence.model.masked_runs import CPU_TOKENS, MAX_ROWS, MAX_TOKENS
from whence.model.subject import Subject
from whence.model.tap import AttentionRecord, Edit
from whence.model.watching import hooked

Call = tuple[str, int]  # a layer's module, and which of its calls in one pass
TOLERANCE = 1e-4  # between the logits of a whole run and those of a run in which layers return stored outputs


@dataclass(frozen=True)
class NewWeights:
    """Weights to be used by one attention block in place of its own, at some of its queries."""

    weights: Tensor  # (variant, head, row, key)
    rows: Tensor  # (row,): numbers of the queries


Edits = Mapping[int, NewWeights]  # by the number of the attention block
Way = Callable[..., Tensor]  # (edits, variants, whether to keep the graph) -> logits


@dataclass(eq=False)
class _Outputs:
    """The outputs of the layers in one pass, and which layers had ended or were running at each attention block."""

    calls: list[tuple[Call, Any]] = field(default_factory=list)  # in the order in which they ended
    ended: list[int] = field(default_factory=list)  # of each attention block: how many layers had ended before it
    inside: list[set[Call]] = field(default_factory=list)  # of each attention block: the layers that were running

    def left(self, given: Mapping[Call, Any]) -> list[int]:
        """The numbers of the attention blocks that still run when the layers in `given` do not run."""
        return [number for number, around in enumerate(self.inside) if around.isdisjoint(given)]


def cannot_edit(subject: Subject, batch: Batch) -> str | None:
    """Why attention over the inputs cannot be read and edited here, as a sentence; None where it can."""
    discovery = subject.discovery(batch)
    if discovery.quantised:
        return no_gradients(subject.name)
    structure = discovery.structure
    if not structure.connections:
        return no_attention(subject.model)
    if any(not query for query, _ in structure.connections):
        return (
            f"{subject.name} attends within windows, not over the whole sequence, so its weights belong to no features"
        )
    if not structure.deciding:
        return f"{subject.name} reads no attention that spans its inputs"
    return None


class AttentionRuns:
    """One input with its own attention, and with attention that is edited.

    `trace` holds the attention blocks as the model used them, and the tokens that the output reads.
    """

    def __init__(self, subject: Subject, item: Input, target: Any = None, seed: int = 0) -> None:
        self.subject, self.batch = subject, subject.batch([item], seed)
        self.aim = subject.aim([target])
        self.trace = subject.trace(self.batch, self.aim, ("attention", "deciding", "values"))
        self._own_kept: dict[tuple[int, ...], bool] = {}  # blocks -> whether their own weights give the own logits
        self.passes = 0  # variants that went through the model

    @cached_property
    def _layers(self) -> _Outputs:
        return _outputs_of(self.subject, self.batch)

    @property
    def records(self) -> list[AttentionRecord]:
        """The attention blocks of the model on the input, in order."""
        return self.trace.attention

    def logits(self, edits: Edits, *, variants: int = 1, whole: bool = False, graph: bool = False) -> Tensor:
        """The decision logits of every variant, (variant, class), with these blocks' weights replaced.

        `edits` are by the number of the block. `whole` runs every layer again; `graph` keeps the graph that leads from
        the weights to the logits, and runs all variants in one pass.
        """
        how = self._whole if whole else self._cheapest(edits)
        if graph:
            return how(edits, slice(0, variants), True)
        tokens = CPU_TOKENS if self.subject.device.type == "cpu" else MAX_TOKENS
        length = len(self._read) if how == self._at_read_tokens else self.batch.mask.shape[1]
        size = max(1, min(MAX_ROWS, tokens // length))
        return torch.cat([how(edits, slice(s, min(s + size, variants)), False) for s in range(0, variants, size)])

    def own(self, number: int, rows: Tensor) -> NewWeights:
        """The block's own weights at some queries, as the one variant of an edit."""
        return NewWeights(self.records[number].weights[:, :, rows], rows)

    # ---- ways to run -------------------------------------------------------------------------------------------------

    def _whole(self, edits: Edits, part: slice, graph: bool = False) -> Tensor:
        """The logits of some variants, every layer run."""
        return self._run(self.batch, {}, _replacing(_cut(edits, part)), part, graph)

    def _after_shared_layers(self, edits: Edits, part: slice, graph: bool = False) -> Tensor:
        """The logits of some variants, layers before the first edited attention left out."""
        given = self._before(min(edits))
        left = self._layers.left(given)
        chosen = {left.index(number): new for number, new in _cut(edits, part).items()}
        return self._run(self.batch, given, _replacing(chosen), part, graph)

    def _at_read_tokens(self, edits: Edits, part: slice, graph: bool = False) -> Tensor:
        """The logits of some variants, shared layers left out and later layers run only on the tokens that are read."""
        stream, rows = next(iter(self.trace.deciding)), self._read
        length = self.batch.streams[stream].shape[1]
        shortened = {
            call: _mapped(output, lambda leaf: leaf.at(rows, length))
            for call, output in self._before(min(edits)).items()
        }
        own = [self.records[number] for number in self._layers.left(shortened)]
        edit = _edit_for_few_tokens(own, _cut(edits, part), rows, part.stop - part.start)
        return self._run(_shorter(self.batch, stream, rows), shortened, edit, part, graph)

    def _run(self, batch: Batch, given: Mapping[Call, Any], edit: Edit, part: slice, graph: bool) -> Tensor:
        """One pass over copies of the input, a copy per variant."""
        count = part.stop - part.start
        self.passes += count
        with self.subject.lent(), _with_stored_outputs(self.subject.model, given, count):
            return self.subject.decision(batch.chosen([0] * count), edit=edit, graph=graph)[0]

    def _cheapest(self, edits: Edits) -> Way:
        """The cheapest way to run variants with these blocks edited that gives what the whole model gives."""
        numbers = tuple(sorted(edits))
        changed = self.subject.change(self.batch) is not None  # a Change counts blocks in a run of all layers
        if changed or not numbers or not self._layers.ended[numbers[0]]:
            return self._whole
        if (
            self._reads_edited(edits)
            and self._matches_whole(self._at_read_tokens, numbers)
            and self._reproduces_own(numbers)
        ):
            return self._at_read_tokens
        return self._after_shared_layers if self._matches_whole(self._after_shared_layers, numbers) else self._whole

    @cached_property
    def _read(self) -> Tensor:
        """The numbers of the tokens that the output reads, of the first stream that it reads."""
        return next(iter(self.trace.deciding.values()))[0].nonzero()[:, 0]

    def _reads_edited(self, edits: Edits) -> bool:
        """Whether the edited rows are the tokens that the output reads, of one stream alone, and not all tokens."""
        stream = next(iter(self.trace.deciding))
        left = [self.records[number] for number in self._layers.left(self._before(min(edits)))]
        single = len(self.trace.deciding) == 1 and not self.subject.reads and stream in self.batch.streams
        same = all(torch.equal(new.rows, self._read) for new in edits.values())
        some = len(self._read) < self.records[min(edits)].weights.shape[2]
        return single and same and some and all(record.query == stream for record in left)

    def _matches_whole(self, way: Way, numbers: tuple[int, ...]) -> bool:
        """Whether a shortcut gives the same logits as the whole model, compared once per kind of input.

        The weights that the comparison puts in are the model's own in reversed order.
        """

        def find_out() -> bool:
            edits = {}
            for number in numbers:
                own = self.records[number].weights[:, :, self._read]
                edits[number] = NewWeights(own.flip(-1), self._read)
            try:
                return _close(way(edits, slice(0, 1)), self._whole(edits, slice(0, 1)))
            except (IndexError, RuntimeError, ValueError):  # the model cannot be run on a part of the tokens
                return False

        return self.subject.discovery(self.batch).remember((way.__name__, numbers), find_out)

    def _reproduces_own(self, numbers: tuple[int, ...]) -> bool:
        """Whether the model's own weights give its own logits on this input when only the tokens that are read run."""
        if numbers not in self._own_kept:
            edits = {number: self.own(number, self._read) for number in numbers}
            self._own_kept[numbers] = _close(self._at_read_tokens(edits, slice(0, 1)), self.trace.logits)
        return self._own_kept[numbers]

    def _before(self, first: int) -> dict[Call, Any]:
        """The outputs of the layers that end before attention block `first`, with their axes of examples: by call."""
        ended = self._layers.calls[: self._layers.ended[first]]
        axes = _example_axes(self.subject, self.batch) if ended else {}
        return {call: _with_axes(output, axes[call]) for call, output in ended}


def _close(logits: Tensor, others: Tensor) -> bool:
    """Whether two ways to run gave the same logits, up to rounding."""
    if logits.shape != others.shape:
        return False
    wide, other = logits.float(), others.float()
    return bool((wide - other).abs().max() <= TOLERANCE * other.abs().max().clamp(min=1.0))


def _cut(edits: Edits, part: slice) -> dict[int, NewWeights]:
    """The edits of some variants."""
    return {number: NewWeights(new.weights[part], new.rows) for number, new in edits.items()}


def _shorter(batch: Batch, stream: str, rows: Tensor) -> Batch:
    """A batch of one example with some tokens of one stream.

    Pixels stay whole: the layers that read them do not run, and their stored outputs are cut to the tokens instead.
    """
    length, names = batch.streams[stream].shape[1], tuple(batch.streams)
    tensors = {
        name: tensor[:, rows] if stream_of(name, names) == stream and tensor.shape[1:] == (length,) else tensor
        for name, tensor in batch.tensors.items()
    }
    return replace(batch, tensors=tensors, streams={**batch.streams, stream: batch.streams[stream][:, rows]})


def _edit_for_few_tokens(own: list[AttentionRecord], edits: Edits, rows: Tensor, count: int) -> Edit:
    """An edit for runs of a few tokens: they attend to the stored values of all tokens, by new or by stored weights."""

    def edit(record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        known, part = own[record.order], len(record.parts)
        before, heads = sum(p.shape[1] for p in record.parts), known.parts[part].shape[1]
        new = edits.get(known.order)
        if new is None:
            used = known.parts[part][:, :, rows].expand(count, -1, -1, -1)
        else:
            used = new.weights[:, before : before + heads]
        return used.to(weights.dtype), known.value_parts[part].expand(count, -1, -1, -1)

    return edit


def _replacing(edits: Edits) -> Edit:
    """An edit that puts new weights in place of the model's own.

    Where a model computes the heads of a block one after the other, each call takes the weights of its own heads.
    """

    def edit(record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        new = edits.get(record.order)
        if new is None:
            return weights, values
        before = sum(part.shape[1] for part in record.parts)
        heads = new.weights[:, before : before + weights.shape[1]]
        return weights.index_copy(2, new.rows, heads.to(weights.dtype)), values

    return edit


# ---- layers that return stored outputs -------------------------------------------------------------------------------


def _outputs_of(subject: Subject, batch: Batch) -> _Outputs:
    """What every layer gives in one pass over a batch."""
    found, counts = _Outputs(), defaultdict[str, int](int)
    running: list[Call] = []
    sites = {(site.module, site.call) for own in subject.structure(batch).calls.values() for site in own}

    def before(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        running.append((name, counts[name]))
        counts[name] += 1

    def after(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call = running.pop()
        if call in sites:
            found.calls.append((call, _with_copied_tensors(output)))

    def seen(record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if record.order == len(found.ended):  # a new block, not a further head of the last one
            found.ended.append(len(found.calls))
            found.inside.append(set(running))
        return weights, values

    modules = [(name, subject.model.get_submodule(name)) for name in dict.fromkeys(name for name, _ in sites)]
    with subject.lent(), hooked(modules, before, after):
        subject.logits(batch, edit=seen)
    return found


def _example_axes(subject: Subject, batch: Batch) -> dict[Call, list[int | None]]:
    """The axis of examples of every tensor that a layer gives, in order; None for a tensor without one."""

    def find_out() -> dict[Call, list[int | None]]:
        one, two = (dict(_outputs_of(subject, batch.chosen([0] * count)).calls) for count in (1, 2))
        return {
            call: [_longer(a, b) for a, b in zip(_tensors(one[call]), _tensors(two[call]), strict=True)] for call in one
        }

    return subject.discovery(batch).remember("axes of examples in layers", find_out)


def _longer(one: Tensor, two: Tensor) -> int | None:
    sizes = zip(one.shape, two.shape, strict=True)
    return next((axis for axis, (a, b) in enumerate(sizes) if a != b), None)


@contextlib.contextmanager
def _with_stored_outputs(model: nn.Module, given: Mapping[Call, Any], copies: int) -> Iterator[None]:
    """A scope in which the calls in `given` do not run: they return their stored outputs, repeated `copies` times."""
    patched: list[tuple[nn.Module, Any]] = []
    try:
        for name in dict.fromkeys(name for name, _ in given):
            module = model.get_submodule(name)
            patched.append((module, vars(module).get("forward")))
            module.forward = _stand_in(module.forward, name, given, copies)
        yield
    finally:
        for module, own in patched:
            if own is None:
                del module.forward
            else:
                module.forward = own


def _stand_in(forward: Callable[..., Any], name: str, given: Mapping[Call, Any], copies: int) -> Callable[..., Any]:
    """A forward for the layer that runs only in calls without a stored output."""
    calls = itertools.count()

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        call = (name, next(calls))
        return _repeated(given[call], copies) if call in given else forward(*args, **kwargs)

    return stand_in


@dataclass(frozen=True)
class _Leaf:
    """A tensor that a layer gave, and its axis of examples."""

    tensor: Tensor
    axis: int | None

    def at(self, rows: Tensor, length: int) -> _Leaf:
        """A state of `length` tokens, cut to the tokens `rows`; a tensor that is no state of this length, unchanged."""
        state = self.tensor.ndim == 3 and self.axis in (0, 1) and self.tensor.shape[1 - self.axis] == length
        return (
            _Leaf(self.tensor.index_select(1 - self.axis, rows), self.axis) if state and self.axis is not None else self
        )


def _with_copied_tensors(holder: Any) -> Any:
    """An output with detached copies of all its tensors, because the model may change them in place."""
    if isinstance(holder, Tensor):
        return holder.detach().clone()
    if isinstance(holder, (tuple, list)):
        return type(holder)(_with_copied_tensors(part) for part in holder)
    return {name: _with_copied_tensors(part) for name, part in holder.items()} if type(holder) is dict else holder


def _tensors(holder: Any) -> list[Tensor]:
    """The tensors of an output, in order."""
    if isinstance(holder, Tensor):
        return [holder]
    parts = holder.values() if type(holder) is dict else holder if isinstance(holder, (tuple, list)) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _mapped(holder: Any, function: Callable[[Any], Any]) -> Any:
    """An output with a function applied to its tensors or leaves, in order."""
    if isinstance(holder, (Tensor, _Leaf)):
        return function(holder)
    if isinstance(holder, (tuple, list)):
        return type(holder)(_mapped(part, function) for part in holder)
    return {name: _mapped(part, function) for name, part in holder.items()} if type(holder) is dict else holder


def _with_axes(output: Any, axes: list[int | None]) -> Any:
    left = iter(axes)
    return _mapped(output, lambda tensor: _Leaf(tensor, next(left)))


def _repeated(output: Any, copies: int) -> Any:
    """An output of one example, repeated for `copies` examples."""
    return _mapped(output, lambda leaf: leaf.tensor if leaf.axis is None else repeated(leaf.tensor, copies, leaf.axis))
