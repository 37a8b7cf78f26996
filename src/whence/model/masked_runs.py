"""One engine asks the model about masked inputs, for perturbation methods, metrics and arbitration.

Equal inputs run once for all who ask the same engine, also when they ask about different targets. An engine may carry
an edit of attention, for experiments that change attention instead of inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.core.inputs import Input, Target
from whence.model.batching import MAX_TOKENS, Batch, ids_of
from whence.model.discovery import At
from whence.model.masked_inputs import Way, Zeroed, added_by_model, digest, hiding
from whence.model.subject import Subject
from whence.model.tap import Edit
from whence.model.targets import Aim, StateSeen, of_logits

MAX_KNOWN = 2**30  # bytes of answers that an engine remembers: the logits of a language model are long
MAX_BYTES = 2**26  # bytes of masked inputs that wait to be run
MAX_ROWS = 128  # inputs in one pass
CPU_TOKENS = 2048  # tokens in one pass on a processor, whose caches larger passes outgrow
_VALUE_BYTES = 200  # about what one remembered number takes, with its key

Key = tuple[Edit | None, bytes]  # the edit of attention under which an input is run, and the input's digest


@dataclass(frozen=True)
class Ask:
    """Which features to keep, (variant, feature) bool, how the others are hidden, and whether special ones may be.

    What a model itself adds to a picture, as a class token, is in no argument that could be masked: it always stays.
    """

    keep: np.ndarray
    mask: Way = "auto"
    special: bool = False


@dataclass(frozen=True, eq=False)
class Answers:
    """What the model says to the variants of one ask, in the order of the variants; everything in float64."""

    values: np.ndarray  # (variant,): the target
    probabilities: np.ndarray  # (variant,): p of the target's class; `values` where the target names no class
    rows: list[np.ndarray]  # one array (class,) per variant

    @cached_property
    def logits(self) -> np.ndarray:
        """(variant, class). Put together on demand, because those of a language model are long."""
        return np.stack(self.rows).astype(float)


@dataclass(eq=False)
class _Variants:
    """The variants of one input that were asked for: how to make them, and the key of each by its kept features."""

    hide: Callable[[np.ndarray], Iterator[Input]]
    keys: dict[bytes, Key] = field(default_factory=dict)


@dataclass(eq=False)
class _Waiting:
    """An input that is to be run, and the rows of the aim whose targets are wanted of it."""

    item: Input
    rows: dict[int, None]


@dataclass(eq=False)
class _Known:
    """What was answered so far; shared by an engine and its edited copies."""

    logits: dict[Key, np.ndarray] = field(default_factory=dict)
    values: dict[tuple[Key, Hashable], float] = field(default_factory=dict)
    variants: dict[tuple[Any, ...], _Variants] = field(default_factory=dict)
    bytes: int = 0
    asked: int = 0
    run: int = 0

    def make_room(self) -> None:
        """Forget everything once there is too much of it."""
        if self.bytes > MAX_KNOWN:
            self.logits.clear()
            self.values.clear()
            self.variants.clear()
            self.bytes = 0


class MaskedRuns:
    """Runs inputs, and variants of inputs with features hidden, each once; remembers logits and values of targets.

    Without `keep_logits` only values of targets are remembered, unless logits are asked for: so much is kept of a
    language model that a method perturbs. What is remembered is forgotten when it fills `MAX_KNOWN`.
    """

    def __init__(self, subject: Subject, *, edit: Edit | None = None, keep_logits: bool = True) -> None:
        self.subject, self.edit, self.keep_logits = subject, edit, keep_logits
        self._known = _Known()

    def edited(self, edit: Edit | None) -> MaskedRuns:
        """This engine with attention edited by `edit`; both remember answers together, under different keys."""
        other = copy.copy(self)
        other.edit = edit
        return other

    @property
    def asked(self) -> int:
        """How many answers were asked for."""
        return self._known.asked

    @property
    def run(self) -> int:
        """How many inputs went through the model for them."""
        return self._known.run

    def values(
        self, items: Sequence[Input], asks: Sequence[Ask | list[Input]], aim: Aim, rows: Sequence[int] | None = None
    ) -> list[np.ndarray]:
        """The target on every variant, one array (variant,) per ask.

        An ask is about the item of the same number, or has inputs of its own. `rows` are the numbers of the asks'
        targets in `aim`, by default in order. A target that was left open must be fixed by a pass over plain inputs.
        """
        rows = range(len(items)) if rows is None else rows
        order = self._completed(items, asks, [aim], rows, logits=False)
        return [self._values(keys, aim, row) for keys, row in zip(order, rows, strict=True)]

    def answers(
        self, items: Sequence[Input], asks: Sequence[Ask | list[Input]], aim: Aim, rows: Sequence[int] | None = None
    ) -> list[Answers]:
        """Logits, the target and p of its class on every variant of every ask; arguments as in `values`."""
        rows = range(len(items)) if rows is None else rows
        chance = self.subject.aim([Target("probability", t.index if of_logits(t) else 0) for t in aim.targets])
        order = self._completed(items, asks, [aim, chance], rows, logits=True)
        found = []
        for keys, row in zip(order, rows, strict=True):
            values = self._values(keys, aim, row)
            probabilities = self._values(keys, chance, row) if of_logits(aim.targets[row]) else values
            found.append(Answers(values, probabilities, [self._known.logits[key] for key in keys]))
        return found

    def masked_values(self, batch: Batch, aim: Aim, keeps: Sequence[np.ndarray], how: Way = "auto") -> list[np.ndarray]:
        """The target on variants of every example of a batch: one array (variant,) each.

        `keeps` has one array (variant, feature) of bools per example.
        """
        self.subject.values(batch, aim)  # fixes targets that were left open
        return self.values(batch.inputs, [Ask(keep, how) for keep in keeps], aim)

    # ---- finding out what must be run --------------------------------------------------------------------------------

    def _completed(
        self,
        items: Sequence[Input],
        asks: Sequence[Ask | list[Input]],
        aims: list[Aim],
        rows: Sequence[int],
        *,
        logits: bool,
    ) -> list[list[Key]]:
        """The keys of the variants of every ask, after everything wanted of them has become known.

        Variants are made as they are needed and run as soon as `MAX_BYTES` of them wait.
        """
        known = self._known
        known.make_room()
        order: list[list[Key]] = []
        waiting: dict[Key, _Waiting] = {}
        from_logits: dict[tuple[Key, int], None] = {}  # values that logits known already lead to
        size = 0
        with self.subject.lent(), torch.no_grad():
            for item, ask, row in zip(items, asks, rows, strict=True):
                names = [aim.key(row) for aim in aims]
                derived = all(of_logits(aim.targets[row]) for aim in aims)
                order.append([])
                for key, make in self._variants(item, ask):
                    order[-1].append(key)
                    if all((key, name) in known.values for name in names) and (not logits or key in known.logits):
                        continue
                    if derived and key in known.logits:
                        from_logits[key, row] = None
                    elif key in waiting:
                        waiting[key].rows[row] = None
                    else:
                        waiting[key] = _Waiting(make(), {row: None})
                        size += sum(array.nbytes for array in waiting[key].item.tensors.values())
                    if size > MAX_BYTES:
                        self._run(waiting, aims, logits)
                        size = 0
            self._run(waiting, aims, logits)
            self._derive(list(from_logits), aims)
        known.asked += sum(map(len, order))
        return order

    def _variants(self, item: Input, ask: Ask | list[Input]) -> Iterator[tuple[Key, Callable[[], Input]]]:
        """The key of every variant, and how to get the variant itself."""
        if isinstance(ask, list):
            for variant in ask:
                yield (self.edit, digest(variant)), lambda variant=variant: variant  # type: ignore[misc]
            return
        item = replace(item, special=added_by_model(item)) if ask.special else item
        name = (self.edit, digest(item), item.special.tobytes(), ask.mask)
        if name not in self._known.variants:
            self._known.variants[name] = _Variants(hiding(self.subject, item, ask.mask))
            self._known.bytes += 2 * sum(
                array.nbytes for array in item.tensors.values()
            )  # the input, and what hides it
        own = self._known.variants[name]
        for row in ask.keep:
            kept, made = row.tobytes(), None
            if kept not in own.keys:
                made = next(own.hide(row[None]))
                own.keys[kept] = (self.edit, digest(made))
                self._known.bytes += len(kept) + _VALUE_BYTES
            yield own.keys[kept], lambda row=row, made=made: made or next(own.hide(row[None]))  # type: ignore[misc]

    # ---- running -----------------------------------------------------------------------------------------------------

    def _run(self, waiting: dict[Key, _Waiting], aims: list[Aim], logits: bool) -> None:
        """Run inputs; inputs of one shape go together, so that nothing is padded."""
        groups: dict[Any, list[Key]] = {}
        for key, one in waiting.items():
            shapes = tuple((name, array.shape) for name, array in one.item.tensors.items())
            groups.setdefault((one.item.streams, shapes), []).append(key)
        tokens = CPU_TOKENS if self.subject.device.type == "cpu" else MAX_TOKENS
        for (streams, _), keys in groups.items():
            size = max(1, min(MAX_ROWS, tokens // len(streams)))
            for start in range(0, len(keys), size):
                self._pass(keys[start : start + size], waiting, aims, logits)
        self._known.run += len(waiting)
        waiting.clear()

    def _pass(self, keys: list[Key], waiting: dict[Key, _Waiting], aims: list[Aim], logits: bool) -> None:
        """One pass of the model, and what is remembered of it."""
        batch = self.subject.batch([waiting[key].item for key in keys])
        places, rows = zip(*((p, row) for p, key in enumerate(keys) for row in waiting[key].rows), strict=True)
        wanted = [at for aim in aims for at in aim.chosen(rows).states]
        found, states = self.subject.decision(batch, wanted, words=_zeroed(self.subject, batch), edit=self.edit)
        self._evaluate(keys, places, rows, aims, found, batch, states)
        if logits or (self.keep_logits and self._known.bytes < MAX_KNOWN):
            wide = (found if found.dtype.itemsize > 2 else found.float()).cpu().numpy()
            self._known.logits.update(zip(keys, wide, strict=True))
            self._known.bytes += wide.nbytes

    def _derive(self, pairs: list[tuple[Key, int]], aims: list[Aim]) -> None:
        """Values of targets that follow from logits which are known already, for pairs of a key and a row."""
        for start in range(0, len(pairs), MAX_ROWS):
            keys, rows = zip(*pairs[start : start + MAX_ROWS], strict=True)
            found = torch.from_numpy(np.stack([self._known.logits[key] for key in keys]))
            self._evaluate(keys, range(len(keys)), rows, aims, found)

    def _evaluate(
        self,
        keys: Sequence[Key],
        places: Sequence[int],
        rows: Sequence[int],
        aims: list[Aim],
        logits: Tensor,
        batch: Batch | None = None,
        states: Mapping[At, StateSeen] | None = None,
    ) -> None:
        """Targets on inputs: that of row `rows[n]` on the input at `places[n]`. Only here are targets evaluated.

        Formulas of logits are evaluated in float64, so that probabilities near 1 stay apart. Other targets are given
        what the model gave, the batch and the states that they read: these are at hand only when it has just been run.
        """
        index = list(places)
        for aim in aims:
            own = aim.chosen(list(rows))
            if all(map(of_logits, own.targets)):
                values = own(logits.cpu().double()[index], None)
            else:
                assert batch is not None
                seen = {at: state.chosen(index) for at, state in (states or {}).items()}
                values = own(logits[index], batch.chosen(index), seen)
            for place, row, value in zip(index, rows, values.tolist(), strict=True):
                self._known.values[keys[place], aim.key(row)] = value
            self._known.bytes += _VALUE_BYTES * len(index)

    def _values(self, keys: list[Key], aim: Aim, row: int) -> np.ndarray:
        name = aim.key(row)
        return np.array([self._known.values[key, name] for key in keys], dtype=float)


def engine_of(subject: Subject, batch: Batch) -> MaskedRuns:
    """The engine that the callers of a batch share, or a new one for a method that is called by itself."""
    return batch.masked_runs or MaskedRuns(subject, keep_logits=False)


def _zeroed(subject: Subject, batch: Batch) -> dict[str, Tensor] | None:
    """The word embeddings of a batch, by stream, some of them zero; None where none is to be."""
    inputs = batch.inputs
    if not any(isinstance(item, Zeroed) for item in inputs):
        return None
    none = np.zeros(len(inputs[0].features), bool)
    marks = np.stack([none if (m := getattr(item, "zeroed", None)) is None else m for item in inputs])
    zeroed = torch.from_numpy(marks).to(batch.mask.device)  # (batch, feature)
    names = tuple(batch.streams)
    ids = {s: batch.tensors[str(ids_of(batch.tensors, names, s))] for s in names if zeroed[:, batch.span(s)].any()}
    states = subject.embedded(batch, ids)
    return {s: state.masked_fill(zeroed[:, batch.span(s), None], 0.0) for s, state in states.items()}
