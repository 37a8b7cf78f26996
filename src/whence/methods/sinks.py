"""Attention sinks: tokens that most queries give much of their attention to, and that add next to nothing to any.

Large language models put the attention that a head has no use for on their first token, whose value vectors they learn
to keep small (Xiao et al. 2023; Gu et al. 2024); its states often have massive entries (Sun et al. 2024). Methods that
read attention, and those that divide a logit to which all tokens owe a common amount, then point at that token.

A query of a head *sinks* into a key where it gives it at least `MUCH` of its attention, and at least twice what an even
share would be. A head sinks into a token where at least half of the queries that see it do so, and the token's value
vector is at most `SMALL` times as long as that of a median token. A token is a sink where at least `HEADS` of all heads
sink into it. These tests are made for every token of any model, whatever its text and position. (The *learned* sink
of GPT-OSS is no token: it takes a share of every row, which is in `details["sink"]`.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from whence.core.inputs import Input
from whence.core.registry import Record
from whence.core.results import Attribution
from whence.model.batching import Batch, beginning
from whence.model.rules import Rules
from whence.model.subject import Subject
from whence.model.tap import Align, AttentionRecord

MUCH, SMALL, HEADS = 0.3, 0.5, 1 / 3
FEWEST_KEYS, FEWEST_QUERIES = 3, 3  # queries that see fewer keys, and tokens that fewer queries see, do not count
LOOKED_AT = 128  # tokens of a causal model's text are searched; later ones do not change these

Sinks = Literal["keep", "exclude", "stay"]


@dataclass(frozen=True)
class Found:
    """What was found of one input: which features are sinks and, layer by layer, why."""

    sinks: np.ndarray  # (feature,) bool
    heads: np.ndarray  # (feature,) the share of all heads that sink into it
    received: np.ndarray  # (layer, feature) the mean share of attention that the other queries give it
    values: np.ndarray  # (layer, feature) the length of its value vectors divided by a median token's
    states: np.ndarray  # (layer, feature) the largest entry of the entering state divided by a median token's

    def details(self) -> dict[str, np.ndarray]:
        """What a result keeps: the numbers of the sinks, and their columns."""
        numbers = np.flatnonzero(self.sinks)
        columns = {name: getattr(self, name)[:, numbers] for name in ("received", "values", "states")}
        return {"sinks": numbers} | {f"sink_{name}": column for name, column in columns.items()}


def sinks_of(subject: Subject, items: Sequence[Input]) -> list[Found | None]:
    """The sinks of each input, from one plain pass over it; None where the model's attention cannot be seen."""
    found: list[Found | None] = [None] * len(items)
    with subject.lent():
        looked_at = [_beginning(subject, item) for item in items]
        for numbers, batch in subject.batches(looked_at):
            try:
                of_batch = _of_batch(subject, batch)
            except ValueError:  # the model has no attention, or none that the tap sees
                continue
            for number, one in zip(numbers, of_batch, strict=True):
                found[number] = one and _padded(one, len(items[number].features))
    return found


def sink_tokens(subject: Subject, batch: Batch) -> Tensor:
    """Which features of a batch are sinks: (batch, feature) bool."""
    mask = torch.zeros_like(batch.mask)
    for row, (one, real) in enumerate(zip(sinks_of(subject, batch.inputs), batch.mask, strict=True)):
        if one is not None:
            mask[row, real] = torch.from_numpy(one.sinks).to(mask.device)
    return mask


def without_sinks(maps: Tensor, sinks: Tensor, how: Sinks, rows: slice, keys: slice) -> tuple[Tensor, Tensor]:
    """Maps (batch, query, key) without attention of other tokens to sinks (batch, feature), and what stays in place.

    "exclude" scales what is left of a row to the sum that the row had; where nothing is left, the whole row stays in
    place. "stay" reads attention to a sink as doing nothing: the sink's share stays in place. The share of each row
    that stays in place is returned as (batch, query).
    """
    if how == "keep":
        return maps, maps.new_zeros(maps.shape[:2])
    places = torch.arange(sinks.shape[1], device=maps.device)
    own = places[rows, None] == places[None, keys]
    kept = maps.masked_fill(sinks[:, None, keys] & ~own, 0.0)
    total, left = maps.sum(-1), kept.sum(-1)
    if how == "stay":
        return kept, total - left
    scale = torch.where(left > 0, total / torch.where(left > 0, left, 1.0), 0.0)
    return kept * scale[..., None], torch.where(left > 0, 0.0, total)


def square_without_sinks(maps: Tensor, sinks: Tensor, how: Sinks) -> Tensor:
    """`without_sinks` of maps (batch, feature, feature) over all features, what stays in place on the diagonal."""
    everything = slice(0, maps.shape[-1])
    kept, stays = without_sinks(maps, sinks.to(maps.device), how, everything, everything)
    return kept + torch.diag_embed(stays)


def marked(a: Attribution, found: Found | None, record: Record) -> Attribution:
    """The attribution with the sinks of its input marked, and notes on them."""
    if found is None or not found.sinks.any():
        return a
    notes = (*a.notes, _what_was_found(a, found), *_ways_out(a, found, record))
    return replace(a, sinks=found.sinks, details={**a.details, **found.details()}, notes=notes)


def inside_units(a: Attribution) -> tuple[str, ...]:
    """A note where a unit owes most of its score to an attention sink inside it; `a` has scores of tokens."""
    sizes = np.where(a.visible, np.abs(a.scores), 0.0).reshape(-1, len(a.features)).sum(0)
    units = np.asarray(a.input.units)
    for sink in np.flatnonzero(a.sinks):
        own = units == units[sink]
        if own.sum() > 1 and sizes[sink] > sizes[own].sum() / 2:
            share = sizes[sink] / sizes[own].sum()
            return (
                f"the {a.input.level} that begins with ‘{a.features[own.argmax()].strip()}’ holds an attention sink, "
                f"which makes {share:.0%} of its score",
            )
    return ()


def _what_was_found(a: Attribution, found: Found) -> str:
    """Which tokens are sinks, and why."""
    numbers = np.flatnonzero(found.sinks)
    named = " and ".join(f"‘{a.features[i].strip()}’ (token {i})" for i in numbers[:3])
    named += f" and {len(numbers) - 3} others" if len(numbers) > 3 else ""
    heads, size = found.heads[numbers].max(), np.median(found.values[:, numbers])
    one = len(numbers) == 1
    return (
        f"{named} {'is an attention sink' if one else 'are attention sinks'}: {heads:.0%} of the heads give "
        f"{'it' if one else 'them'} much of their attention, and {'its' if one else 'their'} value vectors have "
        f"{size:.2g} times the usual length"
    )


def _ways_out(a: Attribution, found: Found, record: Record) -> tuple[str, ...]:
    """What to do where a sink has the largest score."""
    sizes = np.where(a.visible, np.abs(a.scores), 0.0)
    if not (sizes * found.sinks).max(initial=0.0) > (sizes * ~found.sinks).max(initial=0.0):
        return ()
    differentiates = record.signed or any("gradient" in need for need in record.needs)
    ways = ["explain a contrast with another token"] if differentiates else []
    if "sinks" in record.options:
        ways.append("pass sinks='stay'" if "stay" in record.options["sinks"].takes else "pass sinks='exclude'")
    ways.append("use leave_one_out or another method that hides words")
    return (f"the largest score is an attention sink's and hardly speaks of the text: {', or '.join(ways)}",)


def _beginning(subject: Subject, item: Input) -> Input:
    """The tokens that are looked at: of a text that a causal model reads, the first ones; else all of them."""
    if not subject.decoder_only or len(item.features) <= LOOKED_AT or set(item.streams) != {"text"}:
        return replace(item, generated=())
    return beginning(item, LOOKED_AT)


def _padded(found: Found, count: int) -> Found:
    """Findings on the first tokens, extended to all `count` features: later ones count as no sinks."""
    missing = count - len(found.sinks)
    if not missing:
        return found
    columns = {n: np.pad(getattr(found, n), ((0, 0), (0, missing))) for n in ("received", "values", "states")}
    return Found(np.pad(found.sinks, (0, missing)), np.pad(found.heads, (0, missing)), **columns)


def _of_batch(subject: Subject, batch: Batch) -> list[Found | None]:
    structure = subject.structure(batch)
    if not structure.connections or any(not query for query, _ in structure.connections):
        return [None] * len(batch)
    watch = Watch(batch)
    needs = [f"state:{number}" for number in range(structure.depth)]
    with torch.no_grad():
        trace = subject.trace(batch, subject.aim([None] * len(batch)), needs, rules=watch)
    states = [_largest_entries(batch, trace.states[number]) for number in range(structure.depth)]
    share = watch.sinking / watch.heads.clamp(min=1)  # (batch, feature)
    nothing = torch.zeros(len(batch), 0, batch.mask.shape[1], device=batch.mask.device)  # where no block was found
    stacked = [torch.stack(one, 1) if one else nothing for one in (watch.received, watch.values, states)]
    found: list[Found | None] = []
    for row, real in enumerate(batch.mask):
        heads, (received, values, entries) = (
            share[row][real].cpu().numpy(),
            (one[row][:, real].cpu().numpy() for one in stacked),
        )
        found.append(Found(heads >= HEADS, heads, received, values, entries))
    return found


class Watch(Rules):
    """Counts, attention by attention, the heads that sink into each token; keeps no weights."""

    def __init__(self, batch: Batch) -> None:
        super().__init__()
        self.batch = batch
        self.sinking = torch.zeros(batch.mask.shape, device=batch.mask.device)  # heads that sink into each feature
        self.heads = torch.zeros_like(self.sinking)  # heads that look at the feature's stream
        self.received: list[Tensor] = []  # by attention: (batch, feature)
        self.values: list[Tensor] = []

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))

    def seen(self, record: AttentionRecord, weights: Tensor, values: Tensor, product: Tensor, align: Align) -> None:
        """One attention, or one of its heads, was computed."""
        queries, keys = self.batch.span(record.query), self.batch.span(record.key)
        weights, values = weights.detach().float(), values.detach().float()
        record.parts[-1] = record.parts[-1][..., :0]  # the weights of all layers together need not fit into memory
        counted = _counted(weights, self.batch.mask[:, queries], record.query == record.key)  # (batch, query, key)
        even = 1 / (weights > 0).any(1).sum(-1).clamp(min=1)  # (batch, query)
        much = (2 * even).clamp(min=MUCH)[:, None, :, None]
        sinking = ((weights >= much) & counted[:, None]).sum(2)  # (batch, head, key)
        number = counted.sum(1)  # (batch, key)
        sizes = _relative(values.norm(dim=-1).expand(*weights.shape[:2], -1), self.batch.mask[:, keys])
        most = (2 * sinking >= number[:, None]) & (number[:, None] >= FEWEST_QUERIES)
        self.sinking[:, keys] += (most & (sizes <= SMALL)).sum(1)
        self.heads[:, keys] += weights.shape[1]
        received, lengths = torch.zeros_like(self.sinking), torch.zeros_like(self.sinking)
        received[:, keys] = (weights.mean(1) * counted).sum(1) / number.clamp(min=1)
        lengths[:, keys] = sizes.mean(1)
        self.received.append(received)
        self.values.append(lengths)


def _counted(weights: Tensor, real: Tensor, same: bool) -> Tensor:
    """Pairs that count, (batch, query, key): real queries that see several keys, with the other tokens they see."""
    visible = (weights > 0).any(1)
    several = visible.sum(-1) >= FEWEST_KEYS
    counted = visible & (several & real)[:, :, None]
    return counted & ~torch.eye(weights.shape[-1], dtype=torch.bool, device=weights.device) if same else counted


def _relative(sizes: Tensor, real: Tensor) -> Tensor:
    """Sizes (batch, ..., token) divided by their median over the tokens that are no padding."""
    shape = (len(real),) + (1,) * (sizes.ndim - 2) + (real.shape[1],)
    median = sizes.masked_fill(~real.view(shape), float("nan")).nanmedian(-1, keepdim=True).values
    return sizes / median.nan_to_num(0.0).clamp(min=torch.finfo(sizes.dtype).tiny)


def _largest_entries(batch: Batch, states: dict[str, Tensor]) -> Tensor:
    """The largest |entry| of each token's state, divided by the median of its stream: (batch, feature)."""
    found = torch.zeros(batch.mask.shape, device=batch.mask.device)
    for stream, state in states.items():
        if stream in batch.streams and state.shape[:2] == batch.streams[stream].shape:
            entries = state.float().abs().amax(-1)
            found[:, batch.span(stream)] = _relative(entries, batch.streams[stream])
    return found
