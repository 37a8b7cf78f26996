"""A subject that shifts the word embedding of every token of one input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from whence.model.batching import Batch, ids_of
from whence.model.forward import Changes, Forward, Seen
from whence.model.subject import Subject
from whence.model.watching import Site


class ShiftedSubject(Subject):
    """The same model; a given shift is added to the word embedding of each token of one input.

    A token that differs from the input's token at that place, as a mask token does, is not shifted.
    """

    def __init__(self, subject: Subject, batch: Batch, shifts: Mapping[str, Tensor]) -> None:
        vars(self).update(vars(subject))
        names = tuple(batch.streams)
        self._shifts = shifts
        self._ids = {stream: batch.tensors[str(ids_of(batch.tensors, names, stream))] for stream in shifts}
        self._forward = _ShiftedForward(subject._forward, self)

    def embedded(self, batch: Batch, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The word embeddings of these ids, by stream; shifted where an id is the input's own."""
        plain = super().embedded(batch, ids)
        return {s: state + self._shift(s, ids[s]) if s in self._shifts else state for s, state in plain.items()}

    def shift_of(self, batch: Batch) -> dict[Site, Tensor]:
        """The shift that is added at the site where each shifted stream of this batch enters."""
        names, roots = tuple(batch.streams), self.sites(batch, "word")
        ids = {stream: batch.tensors[str(ids_of(batch.tensors, names, stream))] for stream in self._shifts}
        return {roots[stream]: self._shift(stream, ids[stream]) for stream in self._shifts}

    def _shift(self, stream: str, ids: Tensor) -> Tensor:
        input_ids = self._ids[stream]
        if ids.shape[1:] != input_ids.shape[1:]:
            raise ValueError(
                "max_sensitivity shifts every token at its place, and the method removes tokens; "
                "let it hide them, as by mask='mask'"
            )
        return self._shifts[stream] * (ids == input_ids)[..., None]


class _ShiftedForward(Forward):
    """Adds the shift before other changes: a state that replaces the embeddings is not shifted."""

    def __init__(self, forward: Forward, shifted: ShiftedSubject) -> None:
        vars(self).update(vars(forward))
        self._shifted = shifted

    def run(self, batch: Batch, watch: Iterable[Site] = (), changes: Changes | None = None) -> Seen:
        added: dict[Site, Any] = dict(changes or {})
        for site, shift in self._shifted.shift_of(batch).items():
            change = added.get(site)
            added[site] = lambda state, shift=shift, change=change: change(state + shift) if change else state + shift
        return super().run(batch, watch, added)
