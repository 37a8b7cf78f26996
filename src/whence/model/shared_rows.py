"""Which inputs are beginnings of others, whether a model reads them alike, and batches that share whole sequences."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.core.inputs import Input, Target
from whence.model.batching import (
    MAX_TOKENS,
    Batch,
    Common,
    Shared,
    enough_tokens,
    is_sequence,
    shapes_without_tokens,
    stream_names,
    stream_of,
)
from whence.model.interventions import described
from whence.model.prefix_cache import LEAST, PrefixCache, common_length
from whence.model.subject import Subject

MAX_ROWS = 128  # of a batch whose size the caller does not choose
ATTENTION_BYTES = 2**30  # of attention weights and their gradients, which every row of a batch has
LONG = 512  # tokens; with longer inputs the model is compared on its own attention path only
FEWEST = 4  # rows; where memory has room for fewer, inputs are long, and methods then keep no attention at all


@dataclass(frozen=True)
class Beginnings:
    """What is known of a model on an input and its beginnings."""

    alike: bool  # the logits of a beginning are those of the whole at the beginning's last token
    padded: bool = False  # beginnings may also be padded on the right


def row_batches(
    subject: Subject,
    inputs: Sequence[Input],
    targets: Sequence[Any],
    batch_size: int | None,
    seed: int,
    *,
    attention: bool = False,
) -> Iterator[tuple[list[int], Batch]]:
    """Batches of rows, each with the numbers of its inputs; rows of one sequence share passes where the model allows.

    A target that reads a state inside the model is not shared: its state may span all tokens. `attention` says that
    attention is recorded, which limits the rows of a batch.
    """
    groups = beginnings(inputs) if subject.generates and not run_alone(subject, inputs) else []
    shared = [own for own in groups if len(own) > 1 and not any(_reads_state(targets[row]) for row in own)]
    shared = [own for own in shared if found_out(subject, inputs[own[0]], inputs[own[-1]]).alike]
    for numbers in _packed(subject, inputs, shared, batch_size, attention):
        yield numbers, _sharing(subject, [inputs[number] for number in numbers], seed)
    taken = {number for own in shared for number in own}
    alone = [number for number in range(len(inputs)) if number not in taken]
    if alone:
        for numbers, batch in subject.batches([inputs[number] for number in alone], batch_size, seed):
            yield [alone[number] for number in numbers], batch


def run_alone(subject: Subject, inputs: Sequence[Input]) -> bool:
    """Whether every input needs a run of its own.

    An intervention on attention is made for the tokens of each input; a statement is read at several tokens.
    """
    return intervened(subject, inputs) or any(item.decides for item in inputs)


def intervened(subject: Subject, inputs: Sequence[Input]) -> bool:
    """Whether attention is changed while these inputs run."""
    return bool(described(subject)) or any(item.ignored for item in inputs)


def first_read(item: Input) -> int:
    """How many tokens of the last stream a model has read when the first logits of an input are needed."""
    length = item.streams.count(item.streams[-1])
    places = [place for place in item.decides if place >= 0]
    return min(places, default=length - 1) + 1 - (len(item.features) - length if places else 0)


def _reads_state(target: Any) -> bool:
    return target.of_state if isinstance(target, Target) else bool(getattr(target, "states", ()))


# ---- beginnings ------------------------------------------------------------------------------------------------------


def beginnings(inputs: Sequence[Input]) -> list[list[int]]:
    """The inputs in groups: the first of a group is the longest, the others are beginnings of it, longest first.

    The last stream of an input is what grows; all else must be equal. Groups that begin alike are neighbours.
    """
    keys = [tokens_of(item) for item in inputs]
    groups: list[list[int]] = []
    # In descending order a beginning comes after its whole, and all inputs in between have that beginning, too. So
    # comparing each input with the one before it finds all of them.
    for number in sorted(range(len(inputs)), key=keys.__getitem__, reverse=True):
        fixed, tokens = keys[groups[-1][-1]] if groups else (b"", b"")
        if groups and fixed == keys[number][0] and tokens.startswith(keys[number][1]):
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def tokens_of(item: Input) -> tuple[bytes, bytes]:
    """A digest of what a beginning and its whole must have in common, and the tokens of the last stream as bytes."""
    names = stream_names(item)
    length = item.streams.count(names[-1])
    start = len(item.features) - length
    zeroed = getattr(item, "zeroed", None)  # marks of tokens whose word embedding is set to zero
    marks = np.zeros(len(item.features), bool) if zeroed is None else zeroed
    fixed, columns = hashlib.blake2b(repr(names).encode() + marks[:start].tobytes()), [marks[start:, None]]
    for name, array in sorted(item.tensors.items()):
        if stream_of(name, names) == names[-1] and is_sequence(name, array, length):
            columns.append(np.ascontiguousarray(array).reshape(length, -1))
            array = array[:0]
        fixed.update(f"{name}{array.shape}{array.dtype.str}".encode() + array.tobytes())
    return fixed.digest(), np.hstack([column.view(np.uint8) for column in columns]).tobytes()


# ---- whether a model reads beginnings alike --------------------------------------------------------------------------


def found_out(subject: Subject, longest: Input, shortest: Input) -> Beginnings:
    """Whether a model reads beginnings as it reads the whole, found by running it.

    The result is kept for inputs of the same kind and of similar lengths. Lengths matter because some models rotate
    positions by other angles in long texts.
    """
    sizes = (len(shortest.features).bit_length(), len(longest.features).bit_length())
    batch = subject.batch([longest])
    discovery = subject.discovery(batch)
    return discovery.remember(("beginnings", *sizes), lambda: _compared(subject, batch, shortest))


def _compared(subject: Subject, whole: Batch, shortest: Input) -> Beginnings:
    """Compare the logits of a beginning, alone and padded on the right, with those of the whole at its last token."""
    alone, stream = subject.batch([shortest]), list(whole.streams)[-1]
    both = subject.batch([whole.inputs[0], shortest], side="right")
    within = replace(whole, read_at=(torch.zeros(1, dtype=torch.long), alone.last_tokens(stream).cpu()))
    try:
        discovery = subject.discovery(whole)
        spans = all(query for query, _ in discovery.structure.connections)
        last = _reads_last(discovery.structure.deciding, discovery, whole)
        # Attention is recorded on the eager path, where a long input would fill the memory.
        paths = (None, "eager") if whole.mask.shape[1] <= LONG else (None,)
        logits = [[subject.logits(batch, path=path) for batch in (alone, within)] for path in paths]
    except ValueError:
        return Beginnings(False)
    alike = spans and last and all(_close(*pair) for pair in logits)
    padded = False
    with contextlib.suppress(ValueError):  # raised by a model that cannot be padded
        padded = alike and _close(logits[0][0], subject.logits(both)[1:])
    return Beginnings(alike, padded)


def _reads_last(streams: Any, discovery: Any, batch: Batch) -> bool:
    """Whether the output reads the last token of every stream that it reads."""
    for stream in streams:
        tokens = discovery.deciding_tokens(batch, stream)
        last = torch.nn.functional.one_hot(batch.last_tokens(stream), batch.streams[stream].shape[1]).bool()
        if tokens is None or not torch.equal(tokens, last):
            return False
    return True


def _close(one: Tensor, other: Tensor) -> bool:
    tolerance = 1e-4 if one.dtype in (torch.float32, torch.float64) else 3e-2
    gap = (one.float() - other.float()).abs().max()
    return bool(gap <= tolerance * one.float().abs().max().clamp(min=1e-6))


def run_together(subject: Subject, inputs: Sequence[Input]) -> list[list[int]]:
    """The inputs in groups of which only the first, the longest, needs to be run; others are its beginnings."""
    if not subject.generates:
        return [[number] for number in range(len(inputs))]
    found: list[list[int]] = []
    for own in beginnings(inputs):
        alike = len(own) == 1 or found_out(subject, inputs[own[0]], inputs[own[-1]]).alike
        found += [own] if alike else [[number] for number in own]
    return found


def common_tokens(subject: Subject, items: Sequence[Input], shortest: int, cache: PrefixCache) -> Common | None:
    """The first tokens of a text that all of these inputs share, where it is worth while to read them only once.

    `shortest` is the number of tokens of the shortest beginning that is read; one token of it is left to be read.
    """
    if not subject.generates or len(stream_names(items[0])) > 1 or shortest <= LEAST:
        return None
    keys = [tokens_of(item) for item in items]
    if any(fixed != keys[0][0] for fixed, _ in keys):
        return None
    width = len(keys[0][1]) // len(items[0].features)
    least, most = min(keys)[1], max(keys)[1]  # all keys begin with what these two share
    count = min(common_length(least, most) // width, shortest - 1)
    return Common(count, least[: count * width], cache) if count >= LEAST else None


def beginning_changes(subject: Subject, items: Sequence[Input], most: int) -> list[int]:
    """The numbers of inputs before which a new pass should begin, so that inputs of one pass have much in common.

    A pass holds `most` inputs or fewer, but tokens enough to be worth its while. A new one begins where the next two
    inputs share clearly more or fewer first tokens than those of the pass do.
    """
    length = len(items[0].features)
    if not subject.generates or len(stream_names(items[0])) > 1 or length <= 2 * LEAST:
        return []
    least = -(-enough_tokens(subject.device) // length)
    keys = [tokens_of(item) for item in items]
    found: list[int] = []
    start, within = 0, list[int]()  # first input of the pass; how many first tokens its neighbours share
    for number in range(1, len(items)):
        width = len(keys[number][1]) // length
        shared = common_length(keys[number - 1][1], keys[number][1]) // width
        shared = shared if shared >= LEAST else 0  # a cache does not keep fewer
        size = number - start
        apart = bool(within) and max(shared - min(within), max(within) - shared) > length / 8
        if size == most or (size >= least and apart):
            found.append(number)
            start, within = number, []
        else:
            within.append(shared)
    return found


def goes_on(subject: Subject, batch: Batch, logits: Callable[[Batch], Tensor]) -> bool:
    """Whether logits stay the same when the model reuses the keys and values of a batch's common first tokens.

    This is compared once per kind of input and range of lengths.
    """
    assert batch.common is not None
    sizes = (batch.common.count.bit_length(), batch.mask.shape[1].bit_length())

    def try_it() -> bool:
        try:
            return _close(logits(replace(batch, common=None)), logits(batch))
        except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError):
            return False  # the model keeps no cache, or one of another kind

    return subject.discovery(batch).remember(("goes on", *sizes), try_it)


# ---- batches ---------------------------------------------------------------------------------------------------------


def _packed(
    subject: Subject, inputs: Sequence[Input], groups: list[list[int]], batch_size: int | None, attention: bool
) -> Iterator[list[int]]:
    """Rows that go together: those of one sequence, and those of others that are as long, as many as fit."""
    packed: list[int] = []

    def shapes_and_length(own: list[int]) -> tuple[Any, ...]:
        return shapes_without_tokens(inputs[own[0]]), len(inputs[own[0]].features)

    for own in sorted(groups, key=shapes_and_length, reverse=True):
        most = batch_size or _most_rows(subject, inputs[own[0]], attention)
        for start in range(0, len(own), most):
            rows = own[start : start + most]
            if packed and not (len(packed) + len(rows) <= most and _together(subject, inputs, packed[0], rows[0])):
                yield packed
                packed = []
            packed = packed + rows
    if packed:
        yield packed


def _most_rows(subject: Subject, longest: Input, attention: bool) -> int:
    """How many beginnings of an input go together."""
    length = len(longest.features)
    most = max(1, min(MAX_ROWS, MAX_TOKENS // length))
    if not attention:
        return most
    layers = max(1, len(subject.structure(subject.batch([longest])).connections))
    kept = (ATTENTION_BYTES - 1) // (8 * length**2 * layers * subject.heads)
    return min(most, kept) if kept >= FEWEST else most


def _together(subject: Subject, inputs: Sequence[Input], first: int, other: int) -> bool:
    """Whether two sequences may stand in one batch: they are of one shape, and padding is small and harmless."""
    a, b = inputs[first], inputs[other]
    if shapes_without_tokens(a) != shapes_without_tokens(b) or stream_names(a) != stream_names(b):
        return False
    if a.streams == b.streams:
        return True
    one_stream = len(stream_names(a)) == 1
    pads = (
        found_out(subject, a, b).padded if one_stream else subject.discovery(subject.batch([a])).padding_side == "right"
    )
    return pads and 0.9 * len(a.features) <= len(b.features) <= len(a.features)


def _sharing(subject: Subject, rows: Sequence[Input], seed: int) -> Batch:
    """Rows as a batch that knows the sequences they are beginnings of."""
    batch = subject.batch(rows, seed, side="right")
    of, longest = torch.zeros(len(rows), dtype=torch.long), list[int]()
    for own in beginnings(rows):
        of[own] = len(longest)
        longest.append(own[0])
    batch.shared = Shared(batch.chosen(longest), of.to(batch.mask.device))
    return batch
