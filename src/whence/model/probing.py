"""A probing pass, which notes every module call and every attention; finding blocks and sites in its notes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from whence.model.batching import Batch, ids_of, stream_of
from whence.model.tap import AttentionRecord, Tap
from whence.model.watching import Site, hooked


@dataclass(eq=False)
class ModuleCall:
    """One call of a module: its arguments and its output."""

    name: str
    number: int  # among the calls of this module in the pass
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any
    began: int  # how many calls of any module had begun before this one
    ended: int  # how many had begun when this one ended: the calls inside it have numbers in between
    given: dict[int, int]  # id of a tensor among the arguments -> its version when the call began
    made: dict[int, int]  # id of a tensor in the output -> its version when the call ended

    def inside(self, outer: ModuleCall) -> bool:
        """Whether this call was made while the other was under way."""
        return outer.began < self.began < outer.ended


@dataclass(eq=False)
class Probe:
    """What one probing pass noted."""

    calls: list[ModuleCall]  # in the order in which the calls ended: the innermost first
    records: list[AttentionRecord]
    around: list[dict[str, int]]  # for each attention, the modules around it and the numbers of their calls
    times: list[int]  # for each attention, how many calls of any module had begun before it
    outputs: Any
    apart: frozenset[str] = frozenset()  # modules whose attention was left out

    def without(self, apart: frozenset[str]) -> Probe:
        """The notes without the attention of some modules."""
        kept = [n for n, record in enumerate(self.records) if record.module not in apart]
        records = [self.records[n] for n in kept]
        for order, record in enumerate(records):
            record.order = order
        around, times = [self.around[n] for n in kept], [self.times[n] for n in kept]
        return replace(self, records=records, around=around, times=times, apart=apart)


def probe(model: nn.Module, batch_size: int, run: Callable[[], Any]) -> Probe:
    """Note all module calls, and every attention with the calls around it, while the model runs."""
    calls: list[ModuleCall] = []
    started: dict[str, int] = defaultdict(int)
    # of the calls under way: number among the module's calls, and among all; versions of the arguments
    running: list[tuple[int, int, dict[int, int]]] = []
    around: list[dict[str, int]] = []
    times: list[int] = []

    def before(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        running.append((started[name], sum(started.values()), _versions((*args, *kwargs.values()))))
        started[name] += 1

    def after(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        number, began, given = running.pop()
        ended = sum(started.values())
        calls.append(ModuleCall(name, number, args, kwargs, output, began, ended, given, _versions(output)))

    def edit(record: AttentionRecord, weights: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if record.order == len(around):
            parts = record.module.split(".")
            names = [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
            around.append({name: started[name] - 1 for name in names if started[name]})
            times.append(sum(started.values()))
        return weights, values

    tap = Tap(model, batch_size, edit=edit, outputs=range(10**6))  # the products of all attentions
    inside = [(name, module) for name, module in model.named_modules() if name]
    with hooked(inside, before, after), torch.enable_grad(), tap:
        outputs = run()
    return Probe(calls, tap.records, around, times, outputs)


def block_entries(
    calls: list[ModuleCall], around: list[dict[str, int]], is_state: Callable[[Tensor], bool]
) -> list[tuple[Site, Tensor]]:
    """The blocks around these attentions, in order: where the state enters each block, and that state.

    A block is the outermost call that is around some of the attentions, not around all, and is given a state.
    """
    chains = [list(path.items()) for path in around]
    shared = 0  # calls that are around all attentions: the model, its encoder
    while len(chains) > 1 and all(len(c) > shared and c[shared] == chains[0][shared] for c in chains):
        shared += 1
    if len(chains) == 1:  # a single block: prefer a module that stands in a list
        chains = [sorted(chains[0], key=lambda step: not step[0].split(".")[-1].isdigit())]
    found: dict[tuple[str, int], tuple[Site, Tensor]] = {}
    for chain in chains:
        for step in chain[shared:]:
            call = next((c for c in calls if (c.name, c.number) == step), None)
            given = call and next(((k, t) for k, t in _tensors(call) if is_state(t)), None)
            if call and given:
                found.setdefault(step, (input_site("", call, *given), given[1]))
                break
    return list(found.values())


def normed_site(seen: Probe, number: int, stream: str, model: nn.Module) -> Site | None:
    """The normed state that an attention reads: the output of the last norm between the attention before and this one.

    That is the norm at the start of a block, or the one that ended the block before. Norms of queries and keys, inside
    an attention, are passed over. None where nothing was normed in between.
    """
    first, last = seen.times[number - 1] if number else 0, seen.times[number]
    attention = seen.records[number].module
    own = next((c for c in seen.calls if (c.name, c.number) == (attention, seen.around[number].get(attention))), None)
    entering = {id(tensor) for _, tensor in _tensors(own)} if own else set()
    for call in reversed(seen.calls):
        between = first <= call.began and call.ended <= last
        if not between or (own and call.inside(own) and id(call.args[0] if call.args else None) not in entering):
            continue
        if _normalises(call, model.get_submodule(call.name)):
            changed = _version(call.output) != call.made[id(call.output)]
            return Site(stream, "output", call.name, call.number, -1, tokens_first(call.output), changed)
    return None


def head_site(seen: Probe, number: int, stream: str) -> tuple[Site, int] | None:
    """Where the outputs of an attention's heads, side by side, enter a module, and the number of heads.

    That is the output projection, found by the values that it is given; None where no module is given them.
    """
    with torch.no_grad():
        heads = torch.cat([align(out) for out, align in seen.records[number].outputs], 1)  # (1, head, query, width)
        wanted = heads.transpose(1, 2).flatten(2)  # (1, query, head x width)
    for call in seen.calls:
        for key, state in _tensors(call) if call.began >= seen.times[number] else ():
            turned = state.transpose(0, 1) if state.ndim == 3 and tokens_first(state) else state
            if turned.shape == wanted.shape and torch.equal(turned, wanted):
                return input_site(stream, call, key, state), heads.shape[1]
    return None


def _normalises(call: ModuleCall, module: nn.Module) -> bool:
    """Whether a call norms its states: it keeps their shape and not their scale, and tokens keep apart."""
    state, output = call.args[0] if call.args else None, call.output
    if not isinstance(state, Tensor) or not isinstance(output, Tensor) or any(True for _ in module.children()):
        return False
    if state.ndim != 3 or state.shape != output.shape or not state.any():
        return False
    with torch.no_grad():  # large, so that the small number that norms add to the deviation does not matter
        large = state.detach() * (1000 / state.detach().abs().max())
        once, twice = (module(one, *call.args[1:], **call.kwargs).float() for one in (large, 2 * large))
        scale = once.abs().mean()
        same = (once - twice).abs().max() <= 0.01 * scale and (once - output.float()).abs().mean() <= 0.2 * scale
        apart = (once.flatten(0, 1) - once[:1, :1].flatten(0, 1)).abs().max() > 0.01 * scale  # unlike a layer of zeros
    return bool(same and apart)


def input_site(stream: str, call: ModuleCall, key: str | int, tensor: Tensor) -> Site:
    """The site of a state among the arguments of a call."""
    changed = _version(tensor) != call.given[id(tensor)]
    return Site(stream, "input", call.name, call.number, key, tokens_first(tensor), changed)


def producing_site(calls: list[ModuleCall], site: Site, tensor: Tensor, stream: str) -> Site:
    """The site as the output of the module that returned the tensor, if one did: a change there reaches every use.

    A tensor that was changed in place since is another state than the one that the module returned.
    """
    found: tuple[str, str, int, str | int] = (site.where, site.module, site.call, site.key)
    entered = next(call for call in calls if (call.name, call.number) == (site.module, site.call))
    for call in calls:
        if call.made.get(id(tensor)) != entered.given[id(tensor)]:
            continue
        if call.output is tensor:
            found = ("output", call.name, call.number, -1)
        elif isinstance(call.output, tuple):
            position = next(i for i, part in enumerate(call.output) if part is tensor)
            found = ("output", call.name, call.number, position)
    return Site(stream, *found, tokens_first=tokens_first(tensor), in_place=site.in_place)


def root_site(calls: list[ModuleCall], batch: Batch, stream: str, embedding: str | None) -> Site | None:
    """Where a stream enters: the output of its word embedding, or the argument that holds its pixels or vectors."""
    names = tuple(batch.streams)
    tensors = {key: tensor for key, tensor in batch.tensors.items() if stream_of(key, names) == stream}
    key = ids_of(batch.tensors, names, stream)
    if key is not None:
        for call in calls:  # the innermost first
            if (embedding is None or call.name == embedding) and _embeds(call, tensors[key]):
                place, state = _first_result(call.output)
                changed = _version(state) != call.made[id(state)]
                return Site(stream, "output", call.name, call.number, place, tokens_first(state), changed)
    vectors = [key for key, tensor in tensors.items() if tensor.is_floating_point() and tensor.ndim >= 3]
    return Site(stream, "tensor", key=vectors[0]) if vectors else None


def _embeds(call: ModuleCall, ids: Tensor) -> bool:
    """Whether the call turns exactly these token ids into vectors."""
    argument = next((t for _, t in _tensors(call, floating=False)), None)
    _, result = _first_result(call.output)
    return (
        argument is not None
        and argument.numel() == ids.numel()
        and torch.equal(argument.reshape(-1), ids.reshape(-1))
        and isinstance(result, Tensor)
        and result.is_floating_point()
        and result.ndim == 3
    )


def _first_result(output: Any) -> tuple[int, Any]:
    """What a module returned, or the first part of a tuple (I-BERT's embeddings give a scale as well), and its key."""
    return (0, output[0]) if isinstance(output, tuple) and output else (-1, output)


def output_site(call: ModuleCall, batch: Batch) -> Site:
    """The site of the first tensor in a call's output that has a row for every example of the batch."""
    output = call.output
    entries: Any = (
        output.items() if isinstance(output, Mapping) else enumerate(output if isinstance(output, tuple) else ())
    )
    for key, tensor in [(-1, output)] if isinstance(output, Tensor) else entries:
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            continue
        streams = {length: stream for stream, length in batch.lengths.items()}
        by_token = tensor.ndim == 3
        token_axis_first = by_token and tensor.shape[1] == len(batch) and tensor.shape[0] in streams
        if token_axis_first or tensor.shape[:1] == (len(batch),):
            stream = streams.get(tensor.shape[0 if token_axis_first else 1], "") if by_token else ""
            changed = _version(tensor) != call.made[id(tensor)]
            return Site(stream, "output", call.name, call.number, key, token_axis_first, changed)
    raise ValueError(f"the module {call.name!r} gives no tensor with a row for every example; choose one that does")


def tokens_first(state: Tensor) -> bool:
    """Whether the first axis is that of tokens: the longer of the first two, because a probe has one example."""
    return state.shape[0] > state.shape[1]


def _versions(holder: Any) -> dict[int, int]:
    """The versions of the tensors in the arguments or the output of a module; a change in place makes a new one."""
    parts = holder.values() if isinstance(holder, Mapping) else holder if isinstance(holder, tuple) else (holder,)
    return {id(part): _version(part) for part in parts if isinstance(part, Tensor)}


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _tensors(call: ModuleCall, floating: bool = True) -> list[tuple[str | int, Tensor]]:
    """The tensors among a call's arguments, by position or name."""
    arguments: list[tuple[str | int, Any]] = [*enumerate(call.args), *call.kwargs.items()]
    return [(key, t) for key, t in arguments if isinstance(t, Tensor) and t.is_floating_point() == floating]
