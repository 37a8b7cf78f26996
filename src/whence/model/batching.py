"""Batches of inputs: grouping inputs of similar length, padding them, and marking which tokens are real."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.core.geometry import patch_of_pixels
from whence.core.inputs import Input
from whence.model.precision import wide

MAX_TOKENS = 8192  # in a batch whose size the caller does not choose; the same holds for MAX_EXAMPLES
MAX_EXAMPLES = 32
_COLUMNS = ("special", "words", "offsets")  # arrays of an Input with one row per feature


@dataclass(frozen=True, eq=False)
class Shared:
    """Examples of a batch that are beginnings of a few whole sequences, so that one pass over these serves them all."""

    wholes: Batch  # the sequences
    of: Tensor  # (batch,): the number of the sequence that an example is the beginning of

    def chosen(self, rows: Sequence[int]) -> Shared:
        """The sequences of these examples alone."""
        of = self.of[torch.tensor(list(rows), dtype=torch.long, device=self.of.device)]
        used, numbers = of.unique(return_inverse=True)
        wholes = self.wholes if len(used) == len(self.wholes) else self.wholes.chosen(used.tolist())
        return Shared(wholes, numbers)

    def spread(self, by_sequence: Tensor) -> Tensor:
        """(sequence, ...) to (batch, ...); of a single sequence no copy is made."""
        if len(by_sequence) == 1:
            return by_sequence.expand(len(self.of), *by_sequence.shape[1:])
        return by_sequence[self.of.to(by_sequence.device)]


@dataclass(frozen=True, eq=False)
class Common:
    """The first tokens of the last stream, which all examples of a batch share."""

    count: int
    tokens: bytes  # the tokens, `count` pieces of one size; equal bytes mean equal tokens
    cache: Any  # what the model keeps of them: a `PrefixCache`


@dataclass(eq=False)
class Batch:
    """Inputs padded to one length per stream. Features of a batch are its streams side by side, padding included."""

    inputs: list[Input]
    tensors: dict[str, Tensor]  # the model's arguments, by name
    streams: dict[str, Tensor]  # name -> (batch, length) bool: True where a token is real
    seed: int = 0
    needs: frozenset[str] = frozenset()  # what the methods that share this batch need recorded
    trace: Any = field(default=None, repr=False)  # the last trace, for a method that needs nothing beyond it
    known: Any = field(default=None, repr=False)  # (aim, f of every example), once computed on these inputs
    masked_runs: Any = field(default=None, repr=False)  # the engine for masked inputs that callers share, if any
    shared: Shared | None = field(default=None, repr=False)  # the whole sequences that the examples are beginnings of
    # Of generated text, (example, position) of the logits to read, where it is not the last token of every example.
    read_at: tuple[Tensor, Tensor] | None = field(default=None, repr=False)
    common: Common | None = field(default=None, repr=False)  # first tokens of all examples that are read only once

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def mask(self) -> Tensor:
        """(batch, feature) bool: True where a feature is real."""
        return torch.cat(list(self.streams.values()), 1)

    @property
    def special(self) -> Tensor:
        """(batch, feature) bool: special tokens and padding."""
        special = ~self.mask
        for row, item in enumerate(self.inputs):
            special[row, self.mask[row]] = torch.tensor(item.special, device=special.device)
        return special

    @property
    def lengths(self) -> dict[str, int]:
        """Padded length of each stream, and of all together as "*" when there are several."""
        lengths = {name: mask.shape[1] for name, mask in self.streams.items()}
        return lengths | {"*": sum(lengths.values())} if len(lengths) > 1 else lengths

    def last_tokens(self, stream: str) -> Tensor:
        """The position of the last real token of a stream: (batch,)."""
        mask = self.mask if stream == "*" else self.streams[stream]
        return mask.shape[1] - 1 - mask.flip(1).to(torch.int).argmax(1)

    @property
    def decides(self) -> Tensor:
        """The positions of the tokens that decisions are read from, (batch, place); -1 for none.

        Where no token was named, it is the first one that is not special.
        """
        # A statement's tokens are in the last stream. Feature numbers count the tokens of the streams before it, too.
        name = list(self.streams)[-1 if self.inputs[0].answer else 0]
        mask, before = self.streams[name], self.inputs[0].streams.index(name)
        first = (mask.to(torch.int).argmax(1) - before).tolist()
        places = [item.decides or (int(np.argmin(item.special)),) for item in self.inputs]
        positions = torch.full((len(self), max(map(len, places))), -1)
        for row, (own, start) in enumerate(zip(places, first, strict=True)):
            positions[row, : len(own)] = torch.tensor([-1 if place < 0 else place + start for place in own])
        return positions.to(mask.device)

    @property
    def answers(self) -> Tensor:
        """The token ids whose log-probabilities are read at `decides`, (batch, place); 0 where there is none."""
        ids = torch.zeros((len(self), max(len(item.decides) for item in self.inputs)), dtype=torch.long)
        for row, item in enumerate(self.inputs):
            ids[row, : len(item.answer)] = torch.tensor(item.answer)
        return ids.to(self.mask.device)

    def span(self, stream: str) -> slice:
        """Where a stream lies on the feature axis."""
        if stream == "*":
            return slice(0, sum(mask.shape[1] for mask in self.streams.values()))
        start = 0
        for name, mask in self.streams.items():
            if name == stream:
                return slice(start, start + mask.shape[1])
            start += mask.shape[1]
        raise KeyError(stream)

    def generators(self) -> list[np.random.Generator]:
        """One random generator per example: seed and example determine it, the place in the batch does not.

        Two answers to one text get the same numbers, so that chance does not add to the difference of their scores.
        """
        return [np.random.default_rng([self.seed, _digest(item)]) for item in self.inputs]

    @property
    def sequences(self) -> Shared | None:
        """The whole sequences that are run in place of the examples; None where the examples themselves are."""
        return None if self.shared is None or len(self.shared.wholes) == len(self) else self.shared

    def spread(self, by_sequence: Tensor) -> Tensor:
        """A tensor with a row per sequence that was run, as a tensor with a row per example of the batch."""
        return by_sequence if self.sequences is None else self.sequences.spread(by_sequence)

    def chosen(self, rows: Sequence[int]) -> Batch:
        """The batch of these examples alone; a number that comes twice gives the example twice."""
        index = torch.tensor(list(rows), dtype=torch.long)
        return replace(
            self,
            inputs=[self.inputs[row] for row in rows],
            tensors={name: tensor[index.to(tensor.device)] for name, tensor in self.tensors.items()},
            streams={name: mask[index.to(mask.device)] for name, mask in self.streams.items()},
            needs=frozenset(),
            trace=None,
            known=None,
            shared=None if self.shared is None else self.shared.chosen(rows),
            read_at=None,
            common=None,
        )

    def filled(self, stream: str) -> Tensor:
        """The positions at which any example has a real token, (position,) bool; "*" is all streams side by side."""
        return self.mask[:, self.span(stream)].any(0)

    def trimmed(self) -> Batch:
        """The batch without positions that are padding in every example, as where only short ones were chosen."""
        filled = {name: self.filled(name) for name in self.streams}
        if all(bool(own.all()) for own in filled.values()):
            return self
        tensors = dict(self.tensors)
        for key, tensor in tensors.items():
            stream = stream_of(key, tuple(self.streams))
            by_token = all(is_sequence(key, item.tensors[key], item.streams.count(stream)) for item in self.inputs)
            if by_token and tensor.shape[1] == len(filled[stream]):
                tensors[key] = tensor[:, filled[stream]]
        streams = {name: mask[:, filled[name]] for name, mask in self.streams.items()}
        return replace(self.chosen(range(len(self))), tensors=tensors, streams=streams)

    def unpadded(self, features: Tensor) -> list[np.ndarray]:
        """(batch, ..., feature) to one array per example, without padding."""
        arrays = wide(features.detach()).cpu().numpy()
        masks = self.mask.cpu().numpy()
        return [np.ascontiguousarray(array[..., mask]) for array, mask in zip(arrays, masks, strict=True)]


def stream_of(name: str, streams: Sequence[str]) -> str:
    """The stream that a model argument belongs to, by the argument's name; the first stream for any other name."""
    if name.startswith("decoder_") and "target" in streams:
        return "target"
    if name.startswith(("pixel", "visual", "image")) and "image" in streams:
        return "image"
    return streams[0]


def ids_of(tensors: dict[str, Any], streams: Sequence[str], stream: str) -> str | None:
    """The name of the argument that holds a stream's token ids; None for a stream without token ids."""
    arguments = [name for name in tensors if stream_of(name, streams) == stream]
    named = [n for n in arguments if n.endswith("ids") and "type" not in n and "position" not in n]
    return next(iter(named or [n for n in arguments if n == "input" and not tensors[n].is_floating_point()]), None)


def collate(
    inputs: Sequence[Input], *, pad_id: int, side: str, device: torch.device, dtype: torch.dtype, seed: int = 0
) -> Batch:
    """Inputs to a Batch, padded on the given side."""
    names = stream_names(inputs[0])
    counts = [_lengths(item) for item in inputs]
    longest = {name: max(count[name] for count in counts) for name in names}
    streams = {}
    for name in names:
        mask = np.zeros((len(inputs), longest[name]), bool)
        for row, count in enumerate(counts):
            mask[row, _place(count[name], longest[name], side)] = True
        streams[name] = torch.from_numpy(mask).to(device)
    tensors = {}
    for key in inputs[0].tensors:
        stream = stream_of(key, names)
        arrays = [item.tensors[key] for item in inputs]
        if all(is_sequence(key, a, count[stream]) for a, count in zip(arrays, counts, strict=True)):
            fill = pad_id if key.endswith("input_ids") or key == "input" else 0
            padded = np.full((len(arrays), longest[stream], *arrays[0].shape[1:]), fill, arrays[0].dtype)
            for row, array in enumerate(arrays):
                padded[row, _place(len(array), longest[stream], side)] = array
        else:
            padded = np.stack(arrays)
        tensor = torch.from_numpy(padded).to(device)
        tensors[key] = tensor.to(dtype) if tensor.is_floating_point() else tensor
    return Batch(list(inputs), tensors, streams, seed)


def enough_tokens(device: torch.device) -> int:
    """How many tokens make a pass worth its fixed cost: few on a CPU, many on an accelerator."""
    return 128 if device.type == "cpu" else 4096


def like_lengths(lengths: np.ndarray, most: Callable[[int], int], spare: int) -> list[np.ndarray]:
    """Numbers of rows that go together, of like lengths, (row, stream), longest first.

    All rows of one length join longer ones where that adds no more than `spare` tokens of padding. `most(tokens)` is
    how many rows of so many tokens may go together.
    """
    kinds, kind_of_row = np.unique(lengths, axis=0, return_inverse=True)
    groups: list[list[int]] = []
    longest: list[np.ndarray] = []  # by group
    for kind in reversed(range(len(kinds))):
        rows = np.flatnonzero(kind_of_row.reshape(-1) == kind).tolist()
        if groups:
            joined = np.maximum(longest[-1], kinds[kind])
            padding = len(rows) * (joined - kinds[kind]).sum() + len(groups[-1]) * (joined - longest[-1]).sum()
            if padding <= spare:
                groups[-1] += rows
                longest[-1] = joined
                continue
        groups.append(rows)
        longest.append(kinds[kind])
    sizes = [most(int(tokens.sum())) for tokens in longest]
    return [
        np.array(rows[first : first + size])
        for rows, size in zip(groups, sizes, strict=True)
        for first in range(0, len(rows), size)
    ]


def buckets(
    inputs: Sequence[Input], batch_size: int | None, *, exact: bool, enough: int = MAX_TOKENS
) -> Iterator[list[int]]:
    """Numbers of inputs that go together: like shapes, similar lengths (equal ones when `exact`), longest first.

    A batch with `enough` tokens does not take shorter inputs that would be padded by more than a tenth.
    """

    def key(number: int) -> tuple[Any, ...]:
        item = inputs[number]  # `decides` must be of one length in a batch
        return (shapes_without_tokens(item), len(item.decides)), tuple(_lengths(item).values())

    keys = [key(number) for number in range(len(inputs))]
    group: list[int] = []
    for number in sorted(range(len(inputs)), key=lambda n: (repr(keys[n][0]), keys[n][1]), reverse=True):
        if group:
            first = keys[group[0]]
            alike = keys[number] == first if exact else keys[number][0] == first[0]
            tokens = sum(max(a, b) for a, b in zip(first[1], keys[number][1], strict=True)) if alike else 0
            full = len(group) >= (batch_size or MAX_EXAMPLES)
            if batch_size is None:
                full |= (len(group) + 1) * tokens > MAX_TOKENS
                full |= len(group) * sum(first[1]) >= enough and sum(keys[number][1]) < 0.9 * tokens
            if full or not alike:
                yield group
                group = []
        group.append(number)
    if group:
        yield group


def shapes_without_tokens(item: Input) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The shapes of an input's arrays by name, without their axes of tokens; equal in all inputs of a batch."""
    names, lengths = stream_names(item), _lengths(item)
    return tuple(
        (name, array.shape[1:] if is_sequence(name, array, lengths[stream_of(name, names)]) else array.shape)
        for name, array in sorted(item.tensors.items())
    )


def stream_names(item: Input) -> tuple[str, ...]:
    """The streams of an input, in order."""
    return tuple(dict.fromkeys(item.streams))


def shown(item: Input) -> str:
    """The input as an error names it."""
    raw = item.raw
    if isinstance(raw, dict):
        raw = next((value for value in raw.values() if isinstance(value, str)), next(iter(raw.values()), None))
    if isinstance(raw, np.ndarray):
        width, height = item.size or raw.shape[1::-1] if raw.ndim in (2, 3) else (0, 0)
        return f"a picture of {width} x {height} pixels" if width else "an array"
    return repr(str(raw)[:60])


def kind_of(item: Input) -> tuple[str, ...]:
    """The streams and arguments of an input; a model treats inputs that have the same ones alike."""
    return (*stream_names(item), "|", *sorted(item.tensors))


def distinct(item: Input) -> Input:
    """The input, changed until every stream of tokens has two or more, and no two streams have the same length.

    Where there are two streams, one is shortened if it can be: a longer one might exceed what the model takes.
    """
    names = stream_names(item)
    item = replace(item, ignored=())  # facts about a model are found without interventions
    for name in names:
        if item.streams.count(name) == 1:
            item = grown(item, name) or item
    while len({item.streams.count(name) for name in names}) < len(names):
        change = _shortened if len(names) == 2 and item.streams.count(names[0]) > 2 else grown
        changed = next((other for name in reversed(names) if (other := change(item, name))), None)
        if changed is None:
            raise ValueError("two streams of this input have the same length and cannot be told apart")
        item = changed
    return item


def _shortened(item: Input, stream: str) -> Input | None:
    """The input without the last token of a stream; None when the stream has no tokens."""
    sequences = _sequences(item, stream)
    end = max(i for i, name in enumerate(item.streams) if name == stream)
    columns: dict[str, Any] = {
        name: (*getattr(item, name)[:end], *getattr(item, name)[end + 1 :]) for name in ("features", "streams", "parts")
    }
    columns |= {name: np.delete(getattr(item, name), end, 0) for name in _COLUMNS}
    tensors = {name: array[:-1] if name in sequences else array for name, array in item.tensors.items()}
    return replace(item, tensors=tensors, units=None, **columns) if sequences else None


def _sequences(item: Input, stream: str) -> list[str]:
    """The arguments with an entry per token of a stream; none for the patches or regions of a picture."""
    names, length = stream_names(item), item.streams.count(stream)
    found = [k for k, a in item.tensors.items() if stream_of(k, names) == stream and is_sequence(k, a, length)]
    return [] if any(key.startswith(("visual", "image")) for key in found) else found


def grown(item: Input, stream: str) -> Input | None:
    """The input with the last token of a stream repeated, or the last that is no patch; None without tokens."""
    sequences = _sequences(item, stream)
    if not sequences:
        return None
    members = [i for i, name in enumerate(item.streams) if name == stream]
    last = max((i for i in members if item.parts[i] != "image"), default=members[-1])
    end = members[-1] + 1
    columns: dict[str, Any] = {
        "features": (*item.features[:end], item.features[last], *item.features[end:]),
        "streams": (*item.streams[:end], stream, *item.streams[end:]),
        "parts": (*item.parts[:end], item.parts[last], *item.parts[end:]),
    }
    columns |= {f: np.insert(getattr(item, f), end, getattr(item, f)[last], 0) for f in _COLUMNS}
    again = members.index(last)
    tensors = {k: np.concatenate([a, a[again : again + 1]]) if k in sequences else a for k, a in item.tensors.items()}
    return replace(item, tensors=tensors, units=None, **columns)


def cut(item: Input, feature: int, streams: tuple[str, ...], tensors: dict[str, np.ndarray]) -> Input:
    """The input up to a feature, with these streams and tensors."""
    kept = {f: getattr(item, f)[:feature] for f in ("features", "parts", *_COLUMNS)}
    kept |= {} if item.units is None else {"units": item.units[:feature]}
    ignored = tuple(number for number in item.ignored if number < feature)
    return replace(item, **kept, streams=streams, tensors=tensors, generated=(), ignored=ignored)


def tensors_up_to(item: Input, count: int) -> dict[str, np.ndarray]:
    """The arguments of a model that writes, with so many tokens of what it goes on with: the decoder's, or all."""
    decoder = "decoder_input_ids" in item.tensors
    length = len(item.tensors["decoder_input_ids" if decoder else "input_ids"])
    return {
        name: array[:count] if name.startswith("decoder") == decoder and is_sequence(name, array, length) else array
        for name, array in item.tensors.items()
    }


def beginning(item: Input, count: int) -> Input:
    """The first tokens of a text, `count` of them, or as many as a picture among them needs to be whole."""
    picture = [number for number, part in enumerate(item.parts) if part == "image"]
    count = min(max(count, *picture[-1:], 0) + bool(picture), len(item.features))
    return cut(item, count, ("text",) * count, tensors_up_to(item, count))


def _lengths(item: Input) -> dict[str, int]:
    return {name: item.streams.count(name) for name in stream_names(item)}


def is_sequence(name: str, array: np.ndarray, length: int) -> bool:
    """Whether an argument has one entry per token of its stream."""
    return array.ndim >= 1 and len(array) == length and not name.startswith("pixel")


def _place(length: int, longest: int, side: str) -> slice:
    """Where the real tokens stand in a row that is padded on this side."""
    return slice(longest - length, longest) if side == "left" else slice(0, length)


def _digest(item: Input) -> int:
    """A checksum of the input's tensors, without the tokens of an answer: two answers to one text have the same."""
    names = stream_names(item)
    length, checksum = item.streams.count(names[-1]), 0
    for name, array in sorted(item.tensors.items()):
        if item.answer and stream_of(name, names) == names[-1] and is_sequence(name, array, length):
            array = array[: length - len(item.answer)]
        checksum = zlib.crc32(np.ascontiguousarray(array).tobytes(), zlib.crc32(name.encode(), checksum))
    return checksum


def on_features(batch: Batch, by_stream: Mapping[str, Tensor]) -> Tensor:
    """Scores by stream, (batch, token) or (batch, height, width) of pixels, to (batch, feature); padding scores 0."""
    first = next(iter(by_stream.values()))
    scores = first.new_zeros(len(batch), batch.mask.shape[1])
    for stream, values in by_stream.items():
        scores[:, batch.span(stream)] = _summed_to_patches(values, batch, stream) if values.ndim == 3 else values
    return scores.masked_fill(~batch.mask.to(scores.device), 0.0)


def _summed_to_patches(pixels: Tensor, batch: Batch, stream: str) -> Tensor:
    """(batch, height, width) summed into the patches: (batch, token of the image stream)."""
    item = batch.inputs[0]
    if item.grid is None:
        raise ValueError("pixels can only be summed to patches where the input has a grid of patches")
    index = torch.from_numpy(patch_of_pixels(pixels.shape[1], pixels.shape[2], item.grid)).reshape(-1)
    sums = pixels.new_zeros(len(pixels), item.grid[0] * item.grid[1])
    sums.index_add_(1, index.to(pixels.device), pixels.flatten(1))
    special = torch.tensor([sp for sp, st in zip(item.special, item.streams, strict=True) if st == stream])
    out = pixels.new_zeros(len(pixels), len(special))
    out[:, ~special.to(pixels.device)] = sums
    return out
