"""States of many inputs at many layers, as probes read them, from one pass per batch; and gradients there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from whence.core.inputs import Input
from whence.core.wording import shown
from whence.methods.explaining import tracked
from whence.model.discovery import At
from whence.model.passes import states_seen, stream_read
from whence.model.precision import wide
from whence.model.subject import Subject
from whence.model.targets import StateSeen, place_of

Reading = Literal["deciding", "mean", "flat"]
MAX_BYTES = 2**31  # bytes of the states of all examples at all places; probes need them together


def layers_of(subject: Subject, item: Input, wanted: Any) -> list[At]:
    """The places that were asked for: every block for "all", else each by number or name."""
    batch = subject.batch([item])
    if wanted == "all":
        depth = subject.structure(batch).depth
        if not depth:
            raise ValueError(f"{subject.name} has no blocks that are known; name modules, as layers=['MODULE']")
        return list(range(depth))
    places = [place_of(str(one)) for one in (wanted if isinstance(wanted, (list, tuple)) else [wanted])]
    if len(set(places)) < len(places):
        raise ValueError(f"every layer is named once, but {shown(wanted)} came")
    for place in places:
        subject.sites(batch, place)  # raises where there is no such place
    return places


def activations(
    subject: Subject, items: Sequence[Input], places: Sequence[At], at: Reading, batch_size: int | None, progress: bool
) -> dict[At, np.ndarray]:
    """What probes see: place -> (example, width). Each input runs once, whatever the number of places."""
    rows: dict[At, list[Any]] = {place: [None] * len(items) for place in places}
    for numbers, batch in tracked(list(subject.batches(items, batch_size)), progress, "states"):
        _, seen = subject.decision(batch, places)
        for place in places:
            for number, row in zip(numbers, _read(seen[place].state, seen[place], at, place), strict=True):
                rows[place][number] = row
        _check_memory([found[numbers[0]] for found in rows.values()], len(items))
    return {place: _stacked(found, place) for place, found in rows.items()}


def gradients(
    subject: Subject, items: Sequence[Input], target: Any, places: Sequence[At], at: Reading, batch_size: int | None
) -> tuple[dict[At, np.ndarray], dict[At, np.ndarray], Any]:
    """States and gradients of the target at every place, place -> (example, width), and the target itself.

    A shift of what the probe sees shifts every token that it reads, so a gradient is the sum over these tokens.
    """
    found: dict[At, list[Any]] = {place: [None] * len(items) for place in places}
    states: dict[At, list[Any]] = {place: [None] * len(items) for place in places}
    aimed: Any = None
    for numbers, batch in subject.batches(items, batch_size):
        aim = subject.aim([target] * len(batch))
        trace = subject.trace(batch, aim, [f"gradient:{place}" for place in places])
        aimed = aim.targets[0]
        for place in places:
            discovery, stream = subject.discovery(batch), stream_read(subject.discovery(batch), place)
            site = discovery.sites(place)[stream]
            seen = states_seen(discovery, batch, [place], {site: site.turned(trace.states[place][stream])})[place]
            read = _read(seen.state, seen, at, place)
            pulled = _read(trace.gradients[place][stream], seen, at, place, summed=True)
            for number, state, gradient in zip(numbers, read, pulled, strict=True):
                states[place][number], found[place][number] = state, gradient
        _check_memory([rows[numbers[0]] for rows in (*states.values(), *found.values())], len(items))
        batch.trace = None
    return (
        {place: _stacked(rows, place) for place, rows in states.items()},
        {place: _stacked(rows, place) for place, rows in found.items()},
        aimed,
    )


def _read(state: Tensor, seen: StateSeen, at: Reading, place: At, summed: bool = False) -> Iterable[np.ndarray]:
    """States or gradients as a probe sees them: of the deciding tokens, the mean of all tokens, or all side by side."""
    state = wide(state.detach())
    state = state.movedim(1, -1).flatten(1, -2) if state.ndim == 4 else state  # places of a feature map are tokens
    if state.ndim == 2:
        return state.cpu().numpy()
    real = torch.ones(state.shape[:2], dtype=torch.bool, device=state.device) if seen.real is None else seen.real
    if at == "flat":
        return [row[marks].flatten().cpu().numpy() for row, marks in zip(state, real, strict=True)]
    if at == "deciding":
        if seen.deciding is None:
            raise ValueError(f"which token of {place!r} the output reads is not known; use at='mean'")
        real = real & seen.deciding
    marks = real.to(state.dtype)[..., None]
    total = (state * marks).sum(1)
    return (total if summed else total / marks.sum(1)).cpu().numpy()


def _check_memory(rows: Sequence[np.ndarray], count: int) -> None:
    """An error where so many examples, each with rows like these, would not fit into `MAX_BYTES`."""
    size = sum(row.nbytes for row in rows) * count
    if size > MAX_BYTES:
        numbers, most = sum(row.size for row in rows), MAX_BYTES / 2**30
        raise ValueError(
            f"the states of {count:,} examples, {numbers:,} numbers each, take {size / 2**30:.1f} GiB, and at most "
            f"{most:.3g} are kept; use at='mean' or 'deciding', fewer layers or fewer examples"
        )


def _stacked(rows: list[np.ndarray], place: At) -> np.ndarray:
    if len({row.shape for row in rows}) > 1:
        raise ValueError("at='flat' needs inputs of one length, and these differ; use at='deciding' or at='mean'")
    array = np.stack(rows)
    if not np.isfinite(array).all():
        raise ValueError(f"the states at {place!r} hold NaN or infinity; check the weights and the precision")
    return array
