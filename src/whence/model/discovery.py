"""Find out by running once: where a model's streams enter, its blocks, and which streams each attention connects."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from whence.core.geometry import patch_size
from whence.model.batching import Batch, ids_of, stream_of
from whence.model.encoding import Layout
from whence.model.tap import Record, Tap


@dataclass(frozen=True)
class Site:
    """A place where a stream's state can be read, differentiated or replaced."""

    stream: str  # "*": all streams side by side
    where: str  # "tensor": a model input; "input" or "output" of a module's call
    module: str = ""
    call: int = 0  # which of the module's calls in one pass
    key: str | int = 0  # argument or result, by position or name
    tokens_first: bool = False  # the model keeps it as (token, batch, width)

    def turned(self, tensor: Tensor) -> Tensor:
        """From the model's order of axes to (batch, token, width), and back."""
        return tensor.transpose(0, 1) if self.tokens_first else tensor


@dataclass(frozen=True)
class Anatomy:
    """What one probing pass found."""

    roots: dict[str, Site]  # word embeddings, pixels or region features: where each stream enters
    blocks: dict[str, list[Site]]  # the state that enters each block, by stream
    calls: dict[str, list[Site]]  # the same states as arguments of the module calls that are the blocks
    deciding: dict[str, int]  # the streams that the output reads, and the number of the attention it reads them after
    connections: tuple[tuple[str, str], ...]  # query and key stream of each attention, in order; "" for windows


@dataclass(eq=False)
class _Call:
    name: str
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


@contextlib.contextmanager
def watched(
    model: nn.Module, sites: Iterable[Site], change: Mapping[Site, Callable[[Tensor], Tensor]]
) -> Iterator[dict[Site, Tensor]]:
    """Hooks that note the states at the sites, axes as the model has them, after changing them where asked."""
    states: dict[Site, Tensor] = {}
    modules = dict(model.named_modules())
    by_module: dict[tuple[str, str], list[Site]] = defaultdict(list)
    for site in {*sites, *change}:
        if site.where != "tensor":
            by_module[site.module, site.where].append(site)
    handles = []

    def visit(calls: list[int], here: list[Site], holder: Any) -> Any:
        for site in here:
            if site.call == calls[0]:
                tensor = _pick(holder, site.key)
                if site in change:
                    tensor = site.turned(change[site](site.turned(tensor)))
                    holder = _put(holder, site.key, tensor)
                states[site] = tensor  # as the model has it and goes on with, in all places
        calls[0] += 1
        return holder

    def before(calls: list[int], here: list[Site]) -> Callable[..., Any]:
        return lambda module, args, kwargs: visit(calls, here, (args, kwargs))

    def after(calls: list[int], here: list[Site]) -> Callable[..., Any]:
        return lambda module, args, output: visit(calls, here, output)

    try:
        for (name, where), here in by_module.items():
            if where == "input":
                handles.append(modules[name].register_forward_pre_hook(before([0], here), with_kwargs=True))
            else:
                handles.append(modules[name].register_forward_hook(after([0], here)))
        yield states
    finally:
        for handle in handles:
            handle.remove()


def dissect(
    model: nn.Module,
    batch: Batch,
    run: Callable[[dict[str, Tensor]], Any],
    decide: Callable[[Any], Tensor],
    embedding: str | None = None,
) -> Anatomy:
    """Run one example and read the anatomy off the calls; streams are told apart by their lengths."""
    lengths = batch.lengths
    if len(set(lengths.values())) < len(lengths):
        raise ValueError("streams of equal length cannot be told apart; probe with other lengths")
    calls, records, paths, outputs = probe(model, batch, run)
    names = {length: name for name, length in lengths.items()}

    def stream(length: int) -> str:
        return names.get(length, "")

    connections, by_stream = [], defaultdict(list)
    for record, path in zip(records, paths, strict=True):
        weights = record.weights
        whole = weights.shape[0] == len(batch)
        query, key = stream(weights.shape[2]), stream(weights.shape[3])
        connections.append((query, key) if whole and query and key else ("", ""))
        by_stream[connections[-1][0] or next(iter(lengths))].append(path)
    blocks: dict[str, list[Site]] = {}
    own: dict[str, list[Site]] = {}
    for name, its in by_stream.items():
        found = entries(calls, its, functools.partial(_spans, lengths[name]))
        if found:
            blocks[name] = [_produced(calls, site, tensor, name) for site, tensor in found]
            own[name] = [replace(site, stream=name, tokens_first=_tokens_first(tensor)) for site, tensor in found]
    roots = {name: site for name in batch.streams if (site := _root(calls, batch, name, embedding))}
    return Anatomy(roots, blocks, own, _deciding(records, connections, summary(decide(outputs))), tuple(connections))


def summary(logits: Tensor) -> Tensor:
    """A scalar that depends on every logit."""
    return (logits * torch.arange(1, logits.shape[-1] + 1, device=logits.device, dtype=logits.dtype).cos()).sum()


def _deciding(records: list[Record], connections: list[tuple[str, str]], scalar: Tensor) -> dict[str, int]:
    """The output reads the last attention's queries; other streams only where those do not look at them."""
    found: dict[str, int] = {}
    for record, (query, _) in reversed(list(zip(records, connections, strict=True))):
        seen = any((other, query) in connections for other in found)
        if query and query not in found and not seen and record.read(scalar) is not None:
            found[query] = record.order
    return found


def probe(
    model: nn.Module, batch: Batch, run: Callable[[dict[str, Tensor]], Any]
) -> tuple[list[_Call], list[Record], list[dict[str, int]], Any]:
    """All module calls of one pass, its attention records, for each the calls of the modules around it, the output."""
    calls: list[_Call] = []
    started: dict[str, int] = defaultdict(int)
    paths: list[dict[str, int]] = []
    handles = []

    def edit(record: Record, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if record.order == len(paths):
            parts = record.module.split(".")
            names = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
            paths.append({name: started[name] - 1 for name in names if started[name]})
        return weights, values

    try:
        for name, module in model.named_modules():
            if name:
                number: list[int] = []  # calls under way: a module may call itself

                def before(module: Any, args: Any, name: str = name, number: list[int] = number) -> None:
                    number.append(started[name])
                    started[name] += 1

                def after(
                    module: Any, args: Any, kwargs: Any, output: Any, name: str = name, number: list[int] = number
                ) -> None:
                    calls.append(_Call(name, number.pop(), args, kwargs, output))

                handles += [
                    module.register_forward_pre_hook(before),
                    module.register_forward_hook(after, with_kwargs=True),
                ]
        tap = Tap(model, len(batch), edit=edit, outputs=range(10**6))
        with torch.enable_grad(), tap:
            outputs = run(batch.tensors)
    finally:
        for handle in handles:
            handle.remove()
    return calls, tap.records, paths, outputs


def entries(
    calls: list[_Call], paths: list[dict[str, int]], fits: Callable[[Tensor], bool]
) -> list[tuple[Site, Tensor]]:
    """The blocks around these attentions, in order: where the state enters each, and that state.

    A block is the outermost call that is around some of the attentions, not around all, and is given a state.
    """
    chains = [list(path.items()) for path in paths]
    shared = 0
    while len(chains) > 1 and all(len(c) > shared and c[shared] == chains[0][shared] for c in chains):
        shared += 1
    if len(chains) == 1:  # a single block: prefer what stands in a list of blocks
        chains = [sorted(chains[0], key=lambda step: not step[0].split(".")[-1].isdigit())]
    found: dict[tuple[str, int], tuple[Site, Tensor]] = {}
    for chain in chains:
        for step in chain[shared:]:
            call = next((c for c in calls if (c.name, c.number) == step), None)
            given = call and next(((k, t) for k, t in _tensors(call.args, call.kwargs) if fits(t)), None)
            if call and given:
                found.setdefault(step, (Site("", "input", *step, given[0]), given[1]))
                break
    return list(found.values())


def find_layout(
    model: nn.Module, tensors: dict[str, Tensor], run: Callable[[dict[str, Tensor]], Any], text_length: int = 0
) -> Layout | None:
    """Patch grid and special tokens of an image stream: change one patch of pixels and see which token changes.

    None when no attention differs in length from the text: then a text of another length may tell.
    """
    pixels = tensors["pixel_values"]
    batch = Batch([None], tensors, {})  # type: ignore[list-item]

    def entering(changed: Tensor) -> tuple[Tensor | None, list[_Call]]:
        calls, records, paths, _ = probe(model, Batch([None], tensors | {"pixel_values": changed}, {}), run)  # type: ignore[list-item]
        image = [
            path
            for record, path in zip(records, paths, strict=True)
            if record.weights.shape[0] != len(batch) or record.weights.shape[2] != text_length
        ]
        if not image:
            return None, calls
        return entries(calls, image, lambda t: t.ndim == 3 and t.shape[1] != text_length)[0][1], calls

    plain, calls = entering(pixels)
    if plain is None:
        return None
    grid = next(
        (
            tuple(c.output.shape[2:])
            for c in calls
            if isinstance(c.output, Tensor) and c.output.ndim == 4 and c.args and isinstance(c.args[0], Tensor)
            if c.args[0].shape == pixels.shape
        ),
        None,
    )
    if grid is None:
        raise ValueError(
            f"{type(model).__name__} cuts its patches in a way that was not recognised; "
            "pass whence.wrap(..., encode=...) with the names of its features"
        )
    rows, columns = grid
    changed = pixels.clone()
    high, wide = patch_size(pixels.shape[-2], pixels.shape[-1], (rows, columns))
    changed[..., :high, :wide] += 1.0
    after = entering(changed)[0]
    assert after is not None  # the same model on the same shapes
    moved = torch.ne(after, plain).any(-1)[0].nonzero()[:, 0].tolist()
    joint = plain.shape[1] > text_length > 0 and bool(moved) and moved[0] >= text_length
    start = moved[0] - (text_length if joint else 0)
    length = plain.shape[1] - (text_length if joint else 0)
    prefix = tuple("[CLS]" if number == 0 else f"[extra {number}]" for number in range(start))
    suffix = tuple(f"[extra {number}]" for number in range(start, length - rows * columns))
    return Layout(prefix, rows, columns, suffix)


def no_attention(model: nn.Module) -> str:
    """The sentence for a model in which the tap saw nothing."""
    return (
        f"no attention was seen while {type(model).__name__} ran: it has none, or computes it with operations that are "
        "not a softmax followed by a product; use a gradient or perturbation method"
    )


def _root(calls: list[_Call], batch: Batch, stream: str, embedding: str | None) -> Site | None:
    names = tuple(batch.streams)
    own = {key: tensor for key, tensor in batch.tensors.items() if stream_of(key, names) == stream}
    key = ids_of(batch.tensors, names, stream)
    if key is not None:
        ids = own[key]
        for call in calls:  # in the order in which calls end: the innermost first
            given = next((t for _, t in _tensors(call.args, call.kwargs, floating=False)), None)
            if (
                (embedding is None or call.name == embedding)
                and given is not None
                and given.numel() == ids.numel()
                and torch.equal(given.reshape(-1), ids.reshape(-1))
                and isinstance(call.output, Tensor)
                and call.output.is_floating_point()
                and call.output.ndim == 3
            ):
                return Site(stream, "output", call.name, call.number, -1, _tokens_first(call.output))
    floats = [key for key, tensor in own.items() if tensor.is_floating_point() and tensor.ndim >= 3]
    return Site(stream, "tensor", key=floats[0]) if floats else None


def _produced(calls: list[_Call], site: Site, tensor: Tensor, stream: str) -> Site:
    """The site as the output of the module that made the tensor, where there is one: all its users are then reached."""
    found: tuple[str, str, int, str | int] = (site.where, site.module, site.call, site.key)
    for call in calls:
        if call.output is tensor:
            found = ("output", call.name, call.number, -1)
        elif isinstance(call.output, tuple) and any(part is tensor for part in call.output):
            position = next(i for i, part in enumerate(call.output) if part is tensor)
            found = ("output", call.name, call.number, position)
    return Site(stream, *found, tokens_first=_tokens_first(tensor))


def _spans(length: int, state: Tensor) -> bool:
    return state.ndim == 3 and length in state.shape[:2]


def _tokens_first(state: Tensor) -> bool:
    """The probe has one example, so the longer of the first two axes is that of the tokens."""
    return state.shape[0] > state.shape[1]


def _tensors(args: Any, kwargs: Any, floating: bool = True) -> list[tuple[str | int, Tensor]]:
    both = [*enumerate(args), *kwargs.items()]
    return [(key, t) for key, t in both if isinstance(t, Tensor) and t.is_floating_point() == floating]


def _pick(holder: Any, key: str | int) -> Tensor:
    if key == -1:
        return holder
    if isinstance(holder, tuple) and len(holder) == 2 and isinstance(holder[1], dict):
        return holder[1][key] if isinstance(key, str) else holder[0][key]
    return holder[key]


def _put(holder: Any, key: str | int, tensor: Tensor) -> Any:
    if key == -1:
        return tensor
    if isinstance(holder, tuple) and len(holder) == 2 and isinstance(holder[1], dict):
        args, kwargs = holder
        if isinstance(key, str):
            return args, {**kwargs, key: tensor}
        return tuple(tensor if i == key else a for i, a in enumerate(args)), kwargs
    return tuple(tensor if i == key else part for i, part in enumerate(holder))
