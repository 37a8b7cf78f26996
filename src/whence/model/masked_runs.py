"""One engine asks the model about masked inputs, for perturbation methods, metrics and arbitration.

Callers that share an engine share its runs: equal inputs run once, also for different targets. An engine may carry
an edit of attention, for experiments that change attention instead of inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from whence.core import stopping
from whence.core.inputs import Input, Target, unmerged
from whence.model.batching import MAX_TOKENS, Batch, ids_of
from whence.model.discovery import At
from whence.model.forward import GONE
from whence.model.masked_inputs import PixelWay, Way, Zeroed, added_by_model, blending, digest, hiding, ways
from whence.model.places import tokens_read
from whence.model.prefix_cache import PrefixCache
from whence.model.shared_rows import (
    beginning_changes,
    common_tokens,
    first_read,
    goes_on,
    intervened,
    run_alone,
    run_together,
)
from whence.model.subject import Subject
from whence.model.tap import Edit
from whence.model.targets import Aim, StateSeen, classes_of, names_class, of_logits

MAX_KNOWN = 2**30  # bytes of answers that an engine remembers: the logits of a language model are long
MAX_BYTES = 2**26  # bytes of masked inputs that wait to be run; four times as many where inputs may share runs
MAX_ROWS = 128  # inputs in one pass
MAX_READ = 512  # rows of logits that are read of one pass
CPU_TOKENS = 2048  # tokens in one pass on a CPU; larger passes do not fit its caches
_VALUE_BYTES = 200  # roughly the memory of one remembered number and its key

Key = tuple[Edit | None, bytes]  # the edit of attention under which an input is run, and the input's digest


@dataclass(frozen=True)
class Ask:
    """Which features to keep, (variant, feature) bool, how to hide the others, and whether to hide special ones too.

    Tokens that the model itself adds to a picture, such as a class token, always stay: they are in no argument.
    """

    keep: np.ndarray
    mask: Way = "auto"
    special: bool = False


@dataclass(frozen=True, eq=False)
class Answers:
    """The model's answers for the variants of one ask, in the order of the variants; everything in float64."""

    values: np.ndarray  # (variant,): the target
    probabilities: np.ndarray  # (variant,): p of the target's class; `values` where the target names no class
    rows: list[np.ndarray]  # one array per variant: the decision logits
    of: str = ""  # `Target.of`: which part of a decision the classes are

    @cached_property
    def logits(self) -> np.ndarray:
        """(variant, class). Made on demand, because the logits of a language model are long."""
        logits = classes_of(torch.from_numpy(np.stack(self.rows)), self.of).double().numpy()
        if (logits < GONE / 2).any():
            raise ValueError("answers were deleted with their tokens, and have no logits; hide tokens by another mask")
        return logits


@dataclass(eq=False)
class _Variants:
    """The variants of one input that were asked for: how to make them, and the key of each by its kept features."""

    hide: Callable[[np.ndarray], Iterator[Input]]
    keys: dict[bytes, Key] = field(default_factory=dict)


@dataclass(eq=False)
class _Waiting:
    """An input that waits to be run, and the rows of the aim whose targets are to be computed on it."""

    item: Input
    rows: dict[int, None]


@dataclass(eq=False)
class _Known:
    """All answers so far; shared by an engine and its edited copies."""

    logits: dict[Key, np.ndarray] = field(default_factory=dict)
    values: dict[tuple[Key, Hashable], float] = field(default_factory=dict)
    variants: dict[tuple[Any, ...], _Variants] = field(default_factory=dict)
    bytes: int = 0
    asked: int = 0  # answers
    run: int = 0  # inputs

    def make_room(self) -> None:
        """Forget all answers once they take more than `MAX_KNOWN` bytes."""
        if self.bytes > MAX_KNOWN:
            self.logits.clear()
            self.values.clear()
            self.variants.clear()
            self.bytes = 0


class MaskedRuns:
    """Runs inputs, and variants of inputs with features hidden, each once; remembers logits and values of targets.

    Without `keep_logits` logits are remembered only where a caller asks for them: those of a language model are long.
    All answers are forgotten when they fill `MAX_KNOWN`.
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
        """How many inputs went through the model for these answers."""
        return self._known.run

    def values(
        self, items: Sequence[Input], asks: Sequence[Ask | Iterable[Input]], aim: Aim, rows: Sequence[int] | None = None
    ) -> list[np.ndarray]:
        """The target on every variant, one array (variant,) per ask.

        An ask is about the item of the same number, or is an iterable of inputs; a generator makes them as they are
        needed. `rows` are the numbers of the asks' targets in `aim`, by default in order. Open targets must have been
        fixed by a pass over plain inputs.
        """
        rows = range(len(items)) if rows is None else rows
        keys_of_asks = self._completed(items, asks, [aim], rows, logits=False)
        return [self._values(keys, aim, row) for keys, row in zip(keys_of_asks, rows, strict=True)]

    def answers(
        self, items: Sequence[Input], asks: Sequence[Ask | Iterable[Input]], aim: Aim, rows: Sequence[int] | None = None
    ) -> list[Answers]:
        """Logits, the target and p of its class on every variant of every ask; arguments as in `values`."""
        rows = range(len(items)) if rows is None else rows
        probability_aim = self.subject.aim([_probability(target) for target in aim.targets])
        keys_of_asks = self._completed(items, asks, [aim, probability_aim], rows, logits=True)
        answers = []
        for keys, row in zip(keys_of_asks, rows, strict=True):
            values = self._values(keys, aim, row)
            probabilities = self._values(keys, probability_aim, row) if names_class(aim.targets[row]) else values
            rows_of_ask = [self._known.logits[key] for key in keys]
            answers.append(Answers(values, probabilities, rows_of_ask, aim.targets[row].of))
        return answers

    def masked_values(self, batch: Batch, aim: Aim, keeps: Sequence[np.ndarray], how: Way = "auto") -> list[np.ndarray]:
        """The target on variants of every example of a batch: one array (variant,) each.

        `keeps` has one array (variant, feature) of bools per example.
        """
        self.subject.values(batch, aim)  # fixes targets that were left open
        return self.values(batch.inputs, [Ask(keep, how) for keep in keeps], aim)

    def soft_values(
        self, batch: Batch, aim: Aim, masks: Sequence[Iterable[np.ndarray]], how: PixelWay = "auto"
    ) -> list[np.ndarray]:
        """The target on pictures seen through soft masks, (height, width), 0 to 1: one array (mask,) per example.

        Masks of an example are taken one by one, so a generator of them keeps memory small. Open targets must be fixed.
        """
        pairs = zip(batch.inputs, masks, strict=True)
        return self.values(batch.inputs, [map(blending(self.subject, item, how), one) for item, one in pairs], aim)

    # ---- finding out what must be run --------------------------------------------------------------------------------

    def _completed(
        self,
        items: Sequence[Input],
        asks: Sequence[Ask | Iterable[Input]],
        aims: list[Aim],
        rows: Sequence[int],
        *,
        logits: bool,
    ) -> list[list[Key]]:
        """Run what has not run, until all values (with `logits`, all logits) are known; return the keys of each ask.

        Variants are made as they are needed and run as soon as `MAX_BYTES` of them wait.
        """
        known = self._known
        known.make_room()
        order: list[list[Key]] = []
        waiting: dict[Key, _Waiting] = {}
        derivable: dict[tuple[Key, int], None] = {}  # (input, row) whose target follows from known logits
        size = 0
        with self.subject.lent(), torch.no_grad():
            for item, ask, row in zip(items, asks, rows, strict=True):
                wanted = [aim.key(row) for aim in aims]
                self._check_position(item, ask, aims[0].targets[row])
                logits_suffice = all(of_logits(aim.targets[row]) for aim in aims)
                order.append([])
                for key, make in self._variants(item, ask, aims[0].targets[row]):
                    stopping.check()
                    order[-1].append(key)
                    if all((key, target) in known.values for target in wanted) and (not logits or key in known.logits):
                        continue
                    if logits_suffice and key in known.logits:
                        derivable[key, row] = None
                    elif key in waiting:
                        waiting[key].rows[row] = None
                    else:
                        waiting[key] = _Waiting(make(), {row: None})
                        size += sum(array.nbytes for array in waiting[key].item.tensors.values())
                    if size > MAX_BYTES * (4 if self.subject.generates else 1):
                        self._run(waiting, aims, logits)
                        size = 0
            self._run(waiting, aims, logits)
            self._derive(list(derivable), aims)
        known.asked += sum(map(len, order))
        return order

    def _check_position(self, item: Input, ask: Ask | Iterable[Input], target: Target) -> None:
        """Raise where the target reads a numbered token and tokens are deleted: deleting changes the numbers."""
        if not isinstance(ask, Ask) or not target.of_state or not isinstance(target.position, int) or ask.keep.all():
            return
        if "delete" in ways(self.subject, item, ask.mask).values():
            raise ValueError(
                f"the target reads token {target.position}, whose number changes when others are deleted; "
                "hide them by another mask, as mask='auto'"
            )

    def _variants(
        self, item: Input, ask: Ask | Iterable[Input], target: Target
    ) -> Iterator[tuple[Key, Callable[[], Input]]]:
        """The key of every variant of an ask, and a function that makes the variant."""
        if not isinstance(ask, Ask):
            for variant in map(unmerged, ask):
                yield (self.edit, digest(variant)), lambda variant=variant: variant  # type: ignore[misc]
            return
        if item.pieces is not None:  # features are units such as sentences: the tokens of a unit are hidden together
            item, ask = unmerged(item), replace(ask, keep=ask.keep[:, item.units])
        # A statement's own tokens are marked as special and always stay: the target is about them.
        item = replace(item, special=added_by_model(item)) if ask.special and not item.answer else item
        if item.decides and not item.answer and "delete" in ways(self.subject, item, ask.mask).values():
            read = np.isin(np.arange(len(item.features)), tokens_read(item, target))
            item = replace(item, special=item.special | read)  # a deleted token has no logits to read
        variants_key = (self.edit, digest(item), item.special.tobytes(), ask.mask)
        if variants_key not in self._known.variants:
            self._known.variants[variants_key] = _Variants(hiding(self.subject, item, ask.mask))
            # the input, and the arrays that hide its features
            self._known.bytes += 2 * sum(array.nbytes for array in item.tensors.values())
        known = self._known.variants[variants_key]
        for row in ask.keep:
            kept, made = row.tobytes(), None
            if kept not in known.keys:
                made = next(known.hide(row[None]))
                known.keys[kept] = (self.edit, digest(made))
                self._known.bytes += len(kept) + _VALUE_BYTES
            yield known.keys[kept], lambda row=row, made=made: made or next(known.hide(row[None]))  # type: ignore[misc]

    # ---- running -----------------------------------------------------------------------------------------------------

    def _run(self, waiting: dict[Key, _Waiting], aims: list[Aim], logits: bool) -> None:
        """Run the waiting inputs; inputs of one shape go together, so that nothing is padded.

        Where the model allows it, the beginning of a longer input is not run: the run of the longer one has its logits.
        """
        groups: dict[Any, list[list[Key]]] = {}
        for own in self._sequences(waiting, aims):
            item = waiting[own[0]].item
            shapes = tuple((name, array.shape) for name, array in item.tensors.items())
            groups.setdefault((item.streams, shapes, len(item.answer)), []).append(own)
        tokens = CPU_TOKENS if self.subject.device.type == "cpu" else MAX_TOKENS
        for (streams, *_), sequences in groups.items():
            size, cache = max(1, min(MAX_ROWS, tokens // len(streams))), PrefixCache()
            changes = beginning_changes(self.subject, [waiting[own[0]].item for own in sequences], size)
            for part in _cut(sequences, size, changes):
                self._pass(part, waiting, aims, logits, cache)
            self._known.run += len(sequences)
        waiting.clear()

    def _sequences(self, waiting: dict[Key, _Waiting], aims: list[Aim]) -> list[list[Key]]:
        """The waiting inputs in groups of which only the first is run."""
        keys = list(waiting)
        rows = {row for entry in waiting.values() for row in entry.rows}
        alone = self.edit is not None or run_alone(self.subject, [entry.item for entry in waiting.values()])
        if alone or not all(of_logits(aim.targets[row]) for aim in aims for row in rows):
            return [[key] for key in keys]
        return [[keys[n] for n in own] for own in run_together(self.subject, [waiting[key].item for key in keys])]

    def _pass(
        self, part: list[list[Key]], waiting: dict[Key, _Waiting], aims: list[Aim], logits: bool, cache: PrefixCache
    ) -> None:
        """Run the model once on the first input of every group, and remember values of targets and, if wanted, logits.

        The other inputs of a group are its beginnings: their logits are read at their last tokens.
        """
        keys, of = zip(*((key, number) for number, own in enumerate(part) for key in own), strict=True)
        batch = self.subject.batch([waiting[own[0]].item for own in part])
        stream = list(batch.streams)[-1]
        lengths = [waiting[key].item.streams.count(stream) for key in keys]
        if self.subject.generates and self.edit is None and not run_alone(self.subject, batch.inputs):
            batch.read_at = torch.tensor(of), torch.tensor(lengths) - 1
        places, rows = zip(*((p, row) for p, key in enumerate(keys) for row in waiting[key].rows), strict=True)
        state_places = [at for aim in aims for at in aim.chosen(rows).states]
        words = _words_with_zeros(self.subject, batch)
        if not state_places and self.edit is None and not intervened(self.subject, batch.inputs):
            self._share_beginning(batch, min(first_read(waiting[key].item) for key in keys), words, cache)
        decision, states = self.subject.decision(batch, state_places, words=words, edit=self.edit)
        self._evaluate(keys, places, rows, aims, decision, batch, states)
        if logits or (self.keep_logits and self._known.bytes < MAX_KNOWN):
            wide = (decision if decision.dtype.itemsize > 2 else decision.float()).cpu().numpy()
            self._known.logits.update(zip(keys, wide, strict=True))
            self._known.bytes += wide.nbytes

    def _share_beginning(
        self, batch: Batch, shortest: int, words: dict[str, Tensor] | None, cache: PrefixCache
    ) -> None:
        """Let the inputs of a batch go on from the tokens that all of them begin with, where the model can."""
        batch.common = common_tokens(self.subject, batch.inputs, shortest, cache)
        if batch.common and not goes_on(self.subject, batch, lambda given: self.subject.logits(given, words)):
            batch.common = None

    def _derive(self, pairs: list[tuple[Key, int]], aims: list[Aim]) -> None:
        """Compute values of targets from logits that are known already, for pairs of a key and a row."""
        for start in range(0, len(pairs), MAX_ROWS):
            keys, rows = zip(*pairs[start : start + MAX_ROWS], strict=True)
            logits = torch.from_numpy(np.stack([self._known.logits[key] for key in keys]))
            self._evaluate(keys, range(len(keys)), rows, aims, logits)

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
        """Compute and remember, for every n, the target of row `rows[n]` on the input at `places[n]`.

        Formulas of logits are evaluated in float64, so that probabilities near 1 stay apart. Other targets get the
        logits as the model returned them, the batch and the states that they read; batch and states exist only right
        after a run.
        """
        index = list(places)
        for aim in aims:
            row_aim = aim.chosen(list(rows))
            if all(map(of_logits, row_aim.targets)):
                parts = [range(start, min(start + MAX_ROWS, len(index))) for start in range(0, len(index), MAX_ROWS)]
                values = torch.cat([self._of_logits(aim, index, rows, part, logits) for part in parts])
            else:
                assert batch is not None
                seen = {at: state.chosen(index) for at, state in (states or {}).items()}
                values = row_aim(logits[index], batch.chosen(index), seen)
            for place, row, value in zip(index, rows, values.tolist(), strict=True):
                self._known.values[keys[place], aim.key(row)] = value
            self._known.bytes += _VALUE_BYTES * len(index)

    def _of_logits(self, aim: Aim, places: Sequence[int], rows: Sequence[int], part: range, logits: Tensor) -> Tensor:
        """The targets of a part of the rows, in float64."""
        wide = logits[[places[n] for n in part]].cpu().double()
        return aim.chosen([rows[n] for n in part])(wide, None)

    def _values(self, keys: list[Key], aim: Aim, row: int) -> np.ndarray:
        name = aim.key(row)
        return np.array([self._known.values[key, name] for key in keys], dtype=float)


def _cut(sequences: list[list[Key]], size: int, changes: Sequence[int]) -> Iterator[list[list[Key]]]:
    """Groups of inputs for one pass: at most `size` groups, whose logits number `MAX_READ` at most unless one has more.

    `changes` are the numbers of groups before which a new pass begins.
    """
    part: list[list[Key]] = []
    for number, own in enumerate(sequences):
        full = len(part) == size or sum(map(len, part)) + len(own) > MAX_READ or number in changes
        if part and full:
            yield part
            part = []
        part.append(own)
    if part:
        yield part


def _probability(target: Target) -> Target:
    """The target that is the probability of the class named; logit 0, as a filler, where no class is named."""
    if target.of_statement:
        return Target("statement_probability", 0)
    return Target("probability", target.index, of=target.of) if names_class(target) else Target("logit", 0)


def engine_of(subject: Subject, batch: Batch) -> MaskedRuns:
    """The engine that the callers of a batch share, or a new one for a method that is called by itself."""
    return batch.masked_runs or MaskedRuns(subject, keep_logits=False)


def _words_with_zeros(subject: Subject, batch: Batch) -> dict[str, Tensor] | None:
    """The word embeddings of a batch, zero for hidden tokens, by stream; None where no token is hidden that way."""
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
