"""Facts about a model on inputs of one kind; each is found out by running the model when first asked for, and kept.

Nothing here is a table of architectures: every fact comes from a pass over one example.
"""

from __future__ import annotations

import contextlib
import difflib
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from whence.core.geometry import on_grid, patch_size
from whence.core.inputs import Input, has_inline_picture
from whence.model.batching import Batch, distinct, grown
from whence.model.encoding import Layout
from whence.model.forward import Forward
from whence.model.loan import attention_path, lent
from whence.model.probing import (
    ModuleCall,
    Probe,
    block_entries,
    head_site,
    input_site,
    normed_site,
    output_site,
    probe,
    producing_site,
    root_site,
    tokens_first,
)
from whence.model.tap import AttentionRecord
from whence.model.watching import Site

# "embeddings", "word", "pixels", the number of a block, "module:NAME", "mlp:NUMBER", "heads:NUMBER", "normed:NUMBER"
At = str | int
_QUANTISED = ("torch.ao.nn.quantized", "torch.nn.quantized")  # modules of torch
T = TypeVar("T")


@dataclass(frozen=True)
class Structure:
    """The structure of a model, as one probing pass found it."""

    roots: dict[str, Site]  # word embeddings, pixels or region features: where each stream enters
    blocks: dict[str, list[Site]]  # the state that enters each block, by stream
    calls: dict[str, list[Site]]  # the same states as arguments of the module calls that are the blocks
    deciding: dict[str, int]  # stream that the output reads -> number of its last attention before that
    connections: tuple[tuple[str, str], ...]  # query and key stream of each attention, in order; "" for windows
    apart: frozenset[str] = frozenset()  # modules that attend within a picture whose patches are tokens of a text

    @property
    def depth(self) -> int:
        """How many blocks the deepest stream has."""
        return max((len(blocks) for blocks in self.blocks.values()), default=0)


class Discovery:
    """The facts about a model on inputs of one kind: the same streams and arguments."""

    def __init__(
        self,
        forward: Forward,
        item: Input,
        batch_of: Callable[[Sequence[Input]], Batch],
        *,
        name: str,
        embedding: str | None,
    ) -> None:
        self.name = name  # of the subject, for errors
        self.padding_side: str | None = None  # where padding changes no logits; None: only equal lengths go together
        self.padding_tried = False
        self._forward, self._item, self._batch_of, self._embedding = forward, item, batch_of, embedding
        self._known: dict[Any, Any] = {}

    def remember(self, fact: Any, find_out: Callable[[], T]) -> T:
        """A fact that a caller names and knows how to find out; kept like the others."""
        if fact not in self._known:
            self._known[fact] = find_out()
        return self._known[fact]

    @cached_property
    def probe_batch(self) -> Batch:
        """One example whose streams differ in length, so that they can be told apart."""
        return self._batch_of([distinct(self._item)])

    @cached_property
    def structure(self) -> Structure:
        """Where streams enter, the blocks, the streams that attention connects, the streams that the output reads."""
        batch = self.probe_batch
        with lent(self._forward.model), attention_path(self._forward.model, "eager"):
            seen = self._probed(batch)
            logits = self._forward.decision(seen.outputs, batch)
            return structure_of(seen, batch, logits.detach() if self.quantised else logits, self._embedding)

    @cached_property
    def quantised(self) -> bool:
        """Whether some layers compute in whole numbers, through which no gradient flows."""
        return any(type(module).__module__.startswith(_QUANTISED) for module in self._forward.model.modules())

    @cached_property
    def enters_whole(self) -> bool:
        """Whether the output depends on the inputs only through the states that enter the first blocks.

        A state that no module returned may be used outside its block too, as by a residual: replacing the block's
        argument then misses that use.
        """
        structure = self.structure
        roots = set(structure.roots.values())
        cut_off = {blocks[0] for blocks in structure.blocks.values()} - roots
        changes = dict.fromkeys(roots, as_leaf) | dict.fromkeys(cut_off, Tensor.detach)
        with lent(self._forward.model), torch.enable_grad():
            logits, seen = self._forward.run(self.probe_batch, roots, changes)
            leaves = [seen[site] for site in roots]
            differentiable = logits.requires_grad and bool(leaves)
            grads = torch.autograd.grad(summary(logits), leaves, allow_unused=True) if differentiable else []
        return all(grad is None or not grad.any() for grad in grads)

    def sites(self, at: At) -> dict[str, Site]:
        """The sites of a place, by stream; the sites of a module's outputs by the number of the call."""
        if isinstance(at, str) and at.startswith("module:"):
            name = at.removeprefix("module:")
            return self.remember(at, lambda: self._module_outputs(name))
        if isinstance(at, str) and at.startswith("mlp:"):
            return self.remember(at, lambda: self._hidden_neurons(_block_number(at)))
        if isinstance(at, str) and at.startswith("heads:"):
            return {site.stream: site for site, _ in self._head_outputs(at)}
        if isinstance(at, str) and at.startswith("normed:"):
            return self._normed(_block_number(at))
        structure = self.structure
        if at == "word":
            return structure.roots
        if at == "pixels":
            image = structure.roots.get("image")
            if image is None or image.where != "tensor":
                raise ValueError(f"at='pixels' needs a picture, and {self.name} takes none here; use at='word'")
            return {"image": image}
        if at == "embeddings" and (not structure.blocks or not self.enters_whole):
            return structure.roots
        number = 0 if at == "embeddings" else at
        if not isinstance(number, int) or isinstance(number, bool):
            raise ValueError(f"at takes 'embeddings', 'word', 'pixels' or the number of a block, not {at!r}")
        self._check_block(number)
        return {s: blocks[number] for s, blocks in structure.blocks.items() if -len(blocks) <= number < len(blocks)}

    def deciding_tokens(self, batch: Batch, stream: str) -> Tensor | None:
        """The tokens of a stream that the output reads, (batch, token) bool; None where they follow no simple rule."""
        mask = batch.mask if stream == "*" else batch.streams.get(stream)
        if mask is not None and all(len(item.decides) == 1 and not item.answer for item in batch.inputs):
            return torch.nn.functional.one_hot(batch.decides[:, 0], mask.shape[1]).bool()
        rule = self._reading_rules.get(stream)
        if rule is None or mask is None:
            return None
        if rule == "all":
            return mask
        place = mask.to(torch.int).argmax(1) if rule == "first" else batch.last_tokens(stream)
        return torch.nn.functional.one_hot(place, mask.shape[1]).bool()

    @cached_property
    def _reading_rules(self) -> dict[str, str]:
        """stream -> the tokens that the output reads: "first", "last" or "all"; without streams read in another way."""
        structure, batch = self.structure, self.probe_batch
        with lent(self._forward.model), attention_path(self._forward.model, "eager"):
            seen = self._probed(batch)
            read = deciding_rows(seen.records, self._forward.decision(seen.outputs, batch), structure)
        rules: dict[str, str] = {}
        for stream, rows in read.items():
            marks = rows[0].tolist()
            shapes = {"first": [True] + [False] * (len(marks) - 1), "last": [False] * (len(marks) - 1) + [True]}
            shapes["all"] = [True] * len(marks)
            rule = next((name for name, shape in shapes.items() if shape == marks), None)
            if rule is not None:
                rules[stream] = rule
        return rules

    def _probed(self, batch: Batch) -> Probe:
        """One probing pass over a batch."""
        self._forward.observe(batch.tensors)
        seen = probe(self._forward.model, len(batch), lambda: self._forward.outputs(batch.tensors))
        return seen.without(self._apart) if self._apart else seen

    @cached_property
    def _apart(self) -> frozenset[str]:
        """The modules that attend within a picture whose patches are tokens of a text; a longer text tells them."""
        if not has_inline_picture(self._item):
            return frozenset()
        item, records = distinct(self._item), list[list[AttentionRecord]]()
        for one in (item, grown(item, item.streams[-1]) or item):
            tensors = self._batch_of([one]).tensors
            self._forward.observe(tensors)
            records.append(probe(self._forward.model, 1, partial(self._forward.outputs, tensors)).records)
        return frozenset(a.module for a, b in zip(*records, strict=True) if a.weights.shape == b.weights.shape)

    def _copies(self) -> Batch:
        """Copies of the example; no stream is as long as their number, so axes of examples and tokens differ."""
        item = distinct(self._item)
        count = next(n for n in (2, 3, 4, 5) if n not in self._batch_of([item]).lengths.values())
        return self._batch_of([item] * count)

    def _module_outputs(self, name: str) -> dict[str, Site]:
        """The sites of a module's outputs, by the number of the call."""
        names = [known for known, _ in self._forward.model.named_modules() if known]
        if name not in names:
            near = " or ".join(map(repr, difflib.get_close_matches(name, names, n=3, cutoff=0.0)))
            raise ValueError(f"{self.name} has no module {name!r}; did you mean {near}?")
        batch = self._copies()
        with lent(self._forward.model), attention_path(self._forward.model, "eager"):
            calls = [call for call in self._probed(batch).calls if call.name == name]
        if not calls:
            raise ValueError(f"the module {name!r} of {self.name} does not run on this input; choose one that does")
        return {str(call.number): output_site(call, batch) for call in calls}

    def _hidden_neurons(self, block: int) -> dict[str, Site]:
        """The neurons of a block's feed-forward part: the input of the layer that narrows the widest states again."""
        self._check_block(block)
        found: dict[str, Site] = {}
        with lent(self._forward.model), attention_path(self._forward.model, "eager"):
            seen = self._probed(self.probe_batch)
        for stream, sites in self.structure.calls.items():
            if -len(sites) <= block < len(sites):
                own = next(c for c in seen.calls if (c.name, c.number) == (sites[block].module, sites[block].call))
                # output projections may narrow, too; a block that computes its attention itself has no such module
                attention = tuple(f"{record.module}." for record in seen.records if record.module != own.name)
                inside = [call for call in seen.calls if call.inside(own)]
                narrowing = [call for call in inside if _narrows(call) and not call.name.startswith(attention)]
                if narrowing:
                    widest = max(narrowing, key=lambda call: call.args[0].shape[-1])
                    found[stream] = input_site(stream, widest, 0, widest.args[0])
        if not found:
            raise ValueError(
                f"block {block} of {self.name} has no layer that narrows a wide state again; "
                "name a module, as neuron('MODULE', 17)"
            )
        return found

    def head_count(self, at: At, stream: str) -> int:
        """How many attention heads stand side by side in the state at a place: 1 unless it is "heads:NUMBER"."""
        if not isinstance(at, str) or not at.startswith("heads:"):
            return 1
        return next(count for site, count in self._head_outputs(at) if site.stream == stream)

    def _head_outputs(self, at: str) -> list[tuple[Site, int]]:
        """Where the heads of a block's self-attention enter its output projection, and how many: one entry a stream."""
        return self.remember(at, lambda: self._found_heads(_block_number(at)))

    def _found_heads(self, block: int) -> list[tuple[Site, int]]:
        self._check_block(block)
        structure, found = self.structure, []
        with lent(self._forward.model), attention_path(self._forward.model, "eager"):
            seen = self._probed(self.probe_batch)
        for stream, sites in structure.calls.items():
            if -len(sites) <= block < len(sites):
                own = (sites[block].module, sites[block].call)
                inside = [n for n, path in enumerate(seen.around) if own in path.items()]
                within = [n for n in inside if structure.connections[n] == (stream, stream)]
                site = head_site(seen, within[0], stream) if within else None
                found += [site] if site else []
        if not found:
            raise ValueError(
                f"the heads of block {block} of {self.name} enter no module side by side, so none can be read; use a "
                "neuron, as 'mlp:3:17', or name a module"
            )
        return found

    def _normed(self, block: int) -> dict[str, Site]:
        """The normed states of a picture that a block's attention reads; blocks are counted through all stages.

        Where a model merges patches from stage to stage, later blocks have fewer tokens than the picture has patches.
        """
        sites = self.remember("normed", self._normed_sites)
        if not sites:
            raise ValueError(no_attention(self._forward.model))
        if not -len(sites) <= block < len(sites):
            raise ValueError(
                f"layer {block} is out of range: {self.name} has {len(sites)} layers that read a picture, from 0"
            )
        return {sites[block].stream: sites[block]}

    def _normed_sites(self) -> list[Site]:
        """`_normed` of all blocks that attend within the picture, in order."""
        model, batch, structure = self._forward.model, self.probe_batch, self.structure
        picture = next((stream for stream in batch.streams if on_grid(self._item, stream)), "")
        with lent(model), attention_path(model, "eager"):
            seen = self._probed(batch)
            found: list[Site] = []
            for number, (query, _) in enumerate(structure.connections):
                if query in (picture, "*", ""):
                    stream = query or picture
                    entries = structure.blocks.get(stream, [])
                    entry = entries[len(found)] if query and len(found) < len(entries) else None
                    site = normed_site(seen, number, stream, model) or entry
                    if site is not None:
                        found.append(site)
        return found

    def _check_block(self, number: int) -> None:
        depth = self.structure.depth
        if not -depth <= number < depth:
            raise ValueError(f"at={number} names no block: {self.name} has {depth}, numbered from 0")

    def try_padding(
        self,
        shorter: Input,
        longer: Input,
        logits: Callable[[list[Input], str], Tensor],
        preferred: str,
        tolerance: float,
    ) -> None:
        """Find the side on which padding up to a longer input does not change logits; `preferred` is tried first."""
        alone = logits([shorter], preferred).float()
        for side in dict.fromkeys((preferred, "right")):
            with contextlib.suppress(ValueError):  # raised by a classifier that needs a padding token
                padded = [logits([longer, shorter], side)]
                # also on the eager path: in double precision, a padded row may become NaN there
                with lent(self._forward.model), attention_path(self._forward.model, "eager"):
                    padded.append(logits([longer, shorter], side))
                # a longer context has more answers; those of the shorter one come first
                gap = torch.stack([p.float()[1, : alone.shape[1]] - alone[0] for p in padded]).abs().max()
                if bool(gap <= tolerance * alone.abs().max().clamp(min=1e-6)):
                    self.padding_side = side
                    return


def structure_of(seen: Probe, batch: Batch, logits: Tensor, embedding: str | None) -> Structure:
    """Read the structure off a pass over one example; streams are told apart by their lengths."""
    lengths = batch.lengths
    if len(set(lengths.values())) < len(lengths):
        raise ValueError("streams of equal length cannot be told apart; probe with other lengths")
    names = {length: name for name, length in lengths.items()}
    connections, by_stream = [], defaultdict(list)
    for record, around in zip(seen.records, seen.around, strict=True):
        examples, _, queries, keys = record.weights.shape
        query, key = names.get(queries, ""), names.get(keys, "")
        connections.append((query, key) if examples == len(batch) and query and key else ("", ""))
        by_stream[connections[-1][0] or next(iter(lengths))].append(around)
    blocks: dict[str, list[Site]] = {}
    calls: dict[str, list[Site]] = {}
    for name, paths in by_stream.items():
        entries = block_entries(seen.calls, paths, partial(_spans, lengths[name]))
        if entries:
            blocks[name] = [producing_site(seen.calls, site, tensor, name) for site, tensor in entries]
            calls[name] = [replace(site, stream=name, tokens_first=tokens_first(tensor)) for site, tensor in entries]
    roots = {name: site for name in batch.streams if (site := root_site(seen.calls, batch, name, embedding))}
    deciding = last_reads(seen.records, connections, summary(logits))
    return Structure(roots, blocks, calls, deciding, tuple(connections), seen.apart)


def summary(logits: Tensor) -> Tensor:
    """A scalar that depends on every logit."""
    return (logits * torch.arange(1, logits.shape[-1] + 1, device=logits.device, dtype=logits.dtype).cos()).sum()


def last_reads(
    records: list[AttentionRecord], connections: Sequence[tuple[str, str]], scalar: Tensor
) -> dict[str, int]:
    """Of each stream that the scalar reads, the number of the last attention whose queries it depends on.

    A stream to which an already found stream attends is left out: the scalar may depend on it through that stream only.
    """
    found: dict[str, int] = {}
    if not scalar.requires_grad:  # the graph is cut: nothing can be told
        return found
    for record, (query, _) in reversed(list(zip(records, connections, strict=True))):
        looked_at = any((other, query) in connections for other in found)
        if query and query not in found and not looked_at and record.read(scalar) is not None:
            found[query] = record.order
    return found


def last_rows(
    records: list[AttentionRecord], connections: Sequence[tuple[str, str]], scalar: Tensor
) -> dict[str, Tensor]:
    """As `last_reads`, for examples whose targets end in different layers: the queries themselves, (batch, token) bool.

    Each example has the queries of the last attention that its own part of the scalar depends on.
    """
    found: dict[str, Tensor] = {}
    for record, (query, _) in reversed(list(zip(records, connections, strict=True))):
        rows = record.read(scalar) if query else None
        if rows is None:
            continue
        done = found[query].any(1) if query in found else torch.zeros_like(rows[:, 0])
        for other, marks in found.items():
            if (other, query) in connections and other != query:
                done = done | marks.any(1)
        own = rows & ~done[:, None]
        found[query] = found[query] | own if query in found else own
    return found


def deciding_rows(records: list[AttentionRecord], logits: Tensor, structure: Structure) -> dict[str, Tensor]:
    """The positions that the output reads, by stream, (batch, token) bool: a CLS token, the last token, all of them."""
    scalar = summary(logits)
    rows = {stream: records[number].read(scalar) for stream, number in structure.deciding.items()}
    return {stream: read for stream, read in rows.items() if read is not None}


def find_layout(forward: Forward, tensors: dict[str, Tensor], text_length: int = 0) -> Layout | None:
    """Patch grid and special tokens of an image stream: change one patch of pixels and see which token changes.

    None when no attention differs in length from the text: a text of another length may then show the picture's.
    """
    pixels = tensors["pixel_values"]
    forward.observe(tensors)

    def entering(pixels: Tensor) -> tuple[Tensor | None, list[ModuleCall]]:
        """The state that enters the picture's first block, None where there is none, and all calls of the pass."""
        seen = probe(forward.model, 1, lambda: forward.outputs(tensors | {"pixel_values": pixels}))
        pairs = zip(seen.records, seen.around, strict=True)
        image = [path for record, path in pairs if record.weights.shape[::2] != (1, text_length)]
        if not image:
            return None, seen.calls
        return block_entries(seen.calls, image, lambda t: t.ndim == 3 and t.shape[1] != text_length)[0][1], seen.calls

    plain, calls = entering(pixels)
    if plain is None:
        return None
    rows, columns = _patch_grid(calls, pixels, forward.model)
    changed = pixels.clone()
    patch_height, patch_width = patch_size(pixels.shape[-2], pixels.shape[-1], (rows, columns))
    changed[..., :patch_height, :patch_width] += 1.0
    after = entering(changed)[0]
    assert after is not None  # the same model on the same shapes
    changed_tokens = torch.ne(after, plain).any(-1)[0].nonzero()[:, 0].tolist()
    joint = plain.shape[1] > text_length > 0 and bool(changed_tokens) and changed_tokens[0] >= text_length
    start = changed_tokens[0] - (text_length if joint else 0)
    length = plain.shape[1] - (text_length if joint else 0)
    prefix = tuple("[CLS]" if number == 0 else f"[extra {number}]" for number in range(start))
    suffix = tuple(f"[extra {number}]" for number in range(start, length - rows * columns))
    return Layout(prefix, rows, columns, suffix)


def _patch_grid(calls: list[ModuleCall], pixels: Tensor, model: nn.Module) -> tuple[int, int]:
    """Rows and columns of the first map that a module makes of the pixels."""
    for call in calls:
        out, argument = call.output, call.args[0] if call.args else None
        if (
            isinstance(out, Tensor)
            and out.ndim == 4
            and isinstance(argument, Tensor)
            and argument.shape == pixels.shape
        ):
            return out.shape[2], out.shape[3]
    raise ValueError(
        f"{type(model).__name__} cuts its patches in a way that was not recognised; "
        "pass whence.wrap(..., encode=...) with the names of its features"
    )


def no_gradients(name: str) -> str:
    """The sentence for a quantised model."""
    return (
        f"{name} is quantised and has no gradients from its logits back to its inputs, so methods that need them would "
        "give zeros; use leave_one_out, occlusion, shap or lime, or the model before it was quantised"
    )


def no_attention(model: nn.Module) -> str:
    """The error for a model in which the tap saw no attention."""
    return (
        f"no attention was seen while {type(model).__name__} ran: it has none, or computes it with operations that are "
        "not a softmax followed by a product; use a gradient or perturbation method"
    )


def as_leaf(tensor: Tensor) -> Tensor:
    """The tensor as a leaf of the graph: a target can be differentiated at it."""
    return tensor.detach().requires_grad_()


def _block_number(at: str) -> int:
    """The number in a place such as "mlp:3"."""
    kind, _, number = at.partition(":")
    if not number.removeprefix("-").isdecimal():
        raise ValueError(f"{kind}: is followed by the number of a block, as {kind}:3, and {at!r} came")
    return int(number)


def _spans(length: int, state: Tensor) -> bool:
    """Whether a state may have this many tokens."""
    return state.ndim == 3 and length in state.shape[:2]


def _narrows(call: ModuleCall) -> bool:
    """Whether a call makes a state narrower, as the second layer of a feed-forward part does."""
    argument = call.args[0] if call.args else None
    return (
        isinstance(argument, Tensor)
        and isinstance(call.output, Tensor)
        and argument.ndim == call.output.ndim == 3
        and argument.shape[:2] == call.output.shape[:2]
        and argument.shape[-1] > call.output.shape[-1]
    )
