"""What is explained: one scalar per example, computed from the decision logits and from states inside the model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from whence.core.inputs import Target
from whence.model.places import ANSWERS, answer_text, entries
from whence.model.precision import wide

# (logits, batch) -> (batch,); with an attribute `states`, a list of places, (logits, batch, {place: state}) -> (batch,)
Function = Callable[..., Tensor]


def logit(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """z_c"""
    return _entry(logits, index)


def probability(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """p_c = softmax(z)_c; with one output, or classes that do not exclude each other, the sigmoid of z_c."""
    return log_probability(logits, index, against).exp()


def log_probability(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """log p_c"""
    if logits.shape[-1] == 1:
        return torch.nn.functional.logsigmoid(logits[:, 0])
    return _entry(logits.log_softmax(-1), index)


def log_odds(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """log p_c / (1 - p_c) = z_c - logsumexp of the others; for two classes, z_1 - z_0 exactly."""
    if logits.shape[-1] == 1:
        return logits[:, 0]
    return _entry(logits, index) - _other_logits(logits, index).logsumexp(-1)


def margin(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """z_c minus the largest other logit."""
    return _entry(logits, index) - _other_logits(logits, index).amax(-1)


def contrast(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """z_c - z_d"""
    return _entry(logits, index) - _entry(logits, against)


def statement(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """sum_t log p_t: the log-probability of a part of a generated text; here `logits` are those of its tokens."""
    return logits.sum(-1)


def statement_probability(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """p = exp(sum_t log p_t)"""
    return logits.sum(-1).exp()


def statement_log_odds(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """log p / (1 - p), as ContextCite explains an answer; log p is kept below 0, so that the value is finite."""
    log_p = logits.sum(-1).clamp(max=-torch.finfo(logits.dtype).tiny)
    return log_p - torch.log(-torch.expm1(log_p))


def _entry(logits: Tensor, index: Tensor) -> Tensor:
    return logits.gather(-1, index[:, None])[:, 0]


def _other_logits(logits: Tensor, index: Tensor) -> Tensor:
    return logits.scatter(-1, index[:, None], float("-inf"))


_CLASS_FORMULAS = (logit, probability, log_probability, log_odds, margin, contrast)
_STATEMENT_FORMULAS = (statement, statement_probability, statement_log_odds)
FORMULAS = {f.__name__: f for f in (*_CLASS_FORMULAS, *_STATEMENT_FORMULAS)}
_PROBABILITY_KINDS = ("probability", "log_probability", "log_odds")


def of_logits(target: Target) -> bool:
    """Whether the target names a class or token, so that its value follows from the logits alone."""
    return target.kind in FORMULAS


def names_class(target: Target) -> bool:
    """Whether the target names something that has a probability: a class, a token or an answer."""
    return of_logits(target) and target.of != "output"


def classes_of(logits: Tensor, of: str) -> Tensor:
    """The logits among which a target's class is numbered: (batch, class).

    An extractive model gives starts and ends of an answer in turn, for every token of the context. The logit of a span
    is the sum of that of its start and that of its end, so its p is over all spans of the context.
    """
    if of not in ANSWERS:
        return logits
    start, end = logits[..., 0::2], logits[..., 1::2]
    if of != "span":
        return start if of == "start" else end
    last, first = torch.tril_indices(start.shape[-1], start.shape[-1], device=logits.device)  # as span_number counts
    return start[..., first] + end[..., last]


@dataclass(frozen=True, eq=False)
class StateSeen:
    """A state inside the model, as a target reads it."""

    state: Tensor  # (batch, token, width), (batch, width) or (batch, channel, height, width)
    real: Tensor | None  # (batch, token) bool; None for a state without a stream's tokens
    deciding: Tensor | None  # (batch, token) bool: tokens that the output reads; None where unknown
    heads: int = 1  # the state is the outputs of this many attention heads, side by side

    def chosen(self, rows: Sequence[int]) -> StateSeen:
        """The state of these examples."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.state.device)
        real, deciding = (None if marks is None else marks[index] for marks in (self.real, self.deciding))
        return StateSeen(self.state[index], real, deciding, self.heads)


class Aim:
    """The targets of one batch. Targets left open are fixed to the prediction by the first plain pass."""

    def __init__(
        self, wanted: Sequence[Target | Function], name_of: Callable[[int], str], multi_label: bool = False
    ) -> None:
        self.targets: list[Target] = [
            w if isinstance(w, Target) else Target("function", name=getattr(w, "__name__", "function")) for w in wanted
        ]
        self._functions = [None if isinstance(w, Target) else w for w in wanted]
        self._name_of, self._multi_label = name_of, multi_label
        self.values: Tensor | None = None  # f(x) of the plain inputs, once known

    @property
    def fixed(self) -> bool:
        """Whether every target is known: none waits for a prediction."""
        return self.values is not None

    @property
    def states(self) -> tuple[str | int, ...]:
        """The places of the states that the targets read."""
        named = [place_of(target.site) for target in self.targets if target.of_state]
        asked = [place for function in self._functions for place in getattr(function, "states", ())]
        return tuple(dict.fromkeys([*named, *asked]))

    @property
    def reads_states(self) -> Tensor:
        """(batch,) bool: the examples whose target reads a state."""
        pairs = zip(self.targets, self._functions, strict=True)
        return torch.tensor([target.of_state or bool(getattr(f, "states", ())) for target, f in pairs])

    def fix(self, logits: Tensor, batch: Any, states: Mapping[str | int, StateSeen] | None = None) -> None:
        """Open targets become what these logits of the plain inputs predict; f(x) is kept."""
        if self.fixed:
            return
        self.targets = [
            self._predicted(target, int(classes_of(logits[row], target.of).argmax()), batch.inputs[row])
            if target.open
            else target
            for row, target in enumerate(self.targets)
        ]
        with torch.no_grad():
            self.values = self(logits, batch, states).detach()

    def _predicted(self, target: Target, index: int, item: Any) -> Target:
        """An open target as the prediction of this number."""
        name = answer_text(item, target.of, index) if target.of in ANSWERS else self._name_of(index)
        of = "label" if self._multi_label and not target.of else target.of
        return replace(target, index=index, name=name, predicted=True, of=of)

    def classes(self, row: int, logits: Tensor) -> Tensor:
        """The logits among which the target of a row names its class, from the decision logits."""
        return classes_of(logits, self.targets[row].of)

    def read(self, logits: Tensor) -> Tensor:
        """The decision logits without those that belong to other tokens than the ones that the targets read."""
        answers = [row for row, target in enumerate(self.targets) if target.of in ANSWERS and target.index is not None]
        if not answers:
            return logits
        marks = torch.ones_like(logits)
        for row in answers:
            marks[row] = 0
            marks[row, entries(self.targets[row])] = 1
        return logits * marks

    def key(self, row: int) -> Hashable:
        """A key that is equal for targets that have the same value on the same input."""
        target, function = self.targets[row], self._functions[row]
        if function is not None:
            return function
        vector = None if target.vector is None else target.vector.tobytes()
        return target.kind, target.index, target.against, target.site, target.position, target.of, vector

    def chosen(self, rows: Sequence[int]) -> Aim:
        """The targets of these examples, for the batch chosen likewise."""
        copy = Aim([], self._name_of, self._multi_label)
        copy.targets = [self.targets[row] for row in rows]
        copy._functions = [self._functions[row] for row in rows]
        copy.values = None if self.values is None else self.values[list(rows)]
        return copy

    def anew(self, rows: Sequence[int]) -> Aim:
        """The targets of these examples, for other inputs, whose f(x) is not known."""
        copy = self.chosen(rows)
        copy.values = None
        return copy

    def of_probabilities(self) -> Aim:
        """The same targets with the probability of a class in place of its logit; other kinds stay as they are."""
        copy = self.anew(range(len(self.targets)))
        copy.targets = [replace(t, kind="probability") if t.kind == "logit" else t for t in copy.targets]
        return copy

    def __call__(self, logits: Tensor, batch: Any, states: Mapping[str | int, StateSeen] | None = None) -> Tensor:
        """f of every example: (batch,). `states` holds what `self.states` names."""
        self._check(logits, states)
        logits = wide(logits)
        out = logits.new_zeros(len(logits))
        for kind, of in dict.fromkeys((t.kind, t.of) for t in self.targets if of_logits(t)):
            own = [(t.kind, t.of) == (kind, of) for t in self.targets]
            out = self._where(own, self._class_values(kind, classes_of(logits, of), own), out)
        for rows in self._rows_by_state().values():  # other examples may be too short for a target's position
            target = self.targets[rows[0]]
            value = read_state(target, (states or {})[place_of(target.site)].chosen(rows))
            out = out.index_put((torch.tensor(rows, device=out.device),), value.to(out))
        for function in {f for f in self._functions if f is not None}:
            value = _function_values(function, logits, batch, states or {})
            out = self._where([f is function for f in self._functions], value, out)
        return out

    def _rows_by_state(self) -> dict[Hashable, list[int]]:
        """The examples that read the same state in the same way."""
        found: dict[Hashable, list[int]] = {}
        for row, target in enumerate(self.targets):
            if target.of_state:
                found.setdefault(self.key(row), []).append(row)
        return found

    def _where(self, rows: list[bool], value: Tensor, other: Tensor) -> Tensor:
        return torch.where(torch.tensor(rows, device=other.device), value, other)

    def _class_values(self, kind: str, logits: Tensor, rows: list[bool]) -> Tensor:
        """The formula of one kind, for the class or token of these examples, and of class 0 for others: (batch,)."""
        own = list(zip(self.targets, rows, strict=True))
        index = torch.tensor([(t.index or 0) * is_own for t, is_own in own], device=logits.device)
        against = torch.tensor([(t.against or 0) * is_own for t, is_own in own], device=logits.device)
        if self._multi_label and kind in _PROBABILITY_KINDS:  # the class is read as if it were the only output
            return FORMULAS[kind](_entry(logits, index)[:, None], torch.zeros_like(index), against)
        return FORMULAS[kind](logits, index, against)

    def _check(self, logits: Tensor, states: Mapping[str | int, StateSeen] | None) -> None:
        if any(t.open for t in self.targets):
            raise RuntimeError("the target is not fixed yet: run the plain inputs first")
        missing = [place for place in self.states if place not in (states or {})]
        if missing:
            raise ValueError(
                f"the target reads a state inside the model, at {missing[0]!r}, and here only logits are known; "
                "explain a logit, or use a method that runs the model"
            )
        named = [t for t in self.targets if not t.of_state]
        for target in named:
            count = classes_of(logits[:1], target.of).shape[-1]
            wrong = [i for i in (target.index or 0, target.against or 0) if not 0 <= i < count]
            if wrong:
                raise ValueError(
                    f"the target index {wrong[0]} is out of range: there are {count} classes or tokens, from 0"
                )
        if logits.shape[-1] == 1 and any(t.kind == "margin" for t in named):
            raise ValueError("the model has one output, so there is no margin to a runner-up; use the logit")


def place_of(site: str) -> str | int:
    """Where a target's state is, as passes name places: 3, "embeddings", "mlp:3", "heads:3", "module:NAME"."""
    if site.lstrip("-").isdigit():
        return int(site)
    named = site in ("embeddings", "word", "pixels") or site.startswith(("mlp:", "heads:", "module:"))
    return site if named else f"module:{site}"  # "module:3" is the module "3", where 3 would be a block


def read_state(target: Target, seen: StateSeen) -> Tensor:
    """A neuron, channel, direction or head of a state, read at the target's position: (batch,)."""
    state = wide(seen.state)
    state = state[:, None] if state.ndim == 1 else state  # one number per example
    state = state.movedim(1, -1).flatten(1, -2) if state.ndim == 4 else state  # places of a feature map are tokens
    units = _units(target, state, seen.heads)  # (batch,) or (batch, token)
    if units.ndim == 1:
        if target.position not in (None, "mean"):
            raise ValueError(f"{target.site!r} has one vector per example, so the target takes no position")
        return units
    return _read_position(target, units, seen)


def _units(target: Target, state: Tensor, heads: int) -> Tensor:
    """The entry, the scalar product with the direction, or the length of a head's output, at every token."""
    if target.kind == "head":
        state = torch.linalg.vector_norm(state.unflatten(-1, (heads, -1)), dim=-1)  # (..., head)
    width = state.shape[-1]
    if target.vector is not None:
        if len(target.vector) != width:
            raise ValueError(f"the direction has {len(target.vector)} entries, and {target.site!r} is {width} wide")
        return state @ torch.as_tensor(target.vector, dtype=state.dtype, device=state.device)
    index = int(target.index or 0)
    if not -width <= index < width:
        size = f"has {width} heads" if target.kind == "head" else f"is {width} wide"
        raise ValueError(f"the target's {target.kind} {index} is out of range: {target.site!r} {size}, from 0")
    return state[..., index]


def _read_position(target: Target, units: Tensor, seen: StateSeen) -> Tensor:
    """(batch, token) to (batch,), by the target's position; padding never counts."""
    real = torch.ones_like(units, dtype=torch.bool) if seen.real is None else seen.real
    position = target.position
    if position is None:
        position = "mean" if seen.deciding is None else "deciding"
    if position == "max":
        return units.masked_fill(~real, float("-inf")).amax(1)
    if isinstance(position, int):
        counts = real.sum(1)
        if not bool(((-counts <= position) & (position < counts)).all()):
            raise ValueError(f"the target reads token {position} of {target.site!r}, and there are {int(counts.min())}")
        number = torch.where(torch.tensor(position < 0, device=real.device), counts + position, position)
        real = real & (real.cumsum(1) - 1 == number[:, None])
    elif position == "deciding":
        if seen.deciding is None:
            raise ValueError(
                f"which token of {target.site!r} the output reads is not known; "
                "give a position: 'mean', 'max' or a number"
            )
        real = real & seen.deciding
    chosen = real.to(units.dtype)
    return (units * chosen).sum(1) / chosen.sum(1)


def _function_values(function: Function, logits: Tensor, batch: Any, states: Mapping[str | int, StateSeen]) -> Tensor:
    asked = {place: states[place].state.clone() for place in getattr(function, "states", ())}
    given = (logits.clone(), batch)  # copies: a function may work in place, and others read the same logits and states
    value = function(*given, asked) if asked else function(*given)
    if not isinstance(value, Tensor) or value.shape != logits.shape[:1]:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"a target function returns one value per example, shape ({len(logits)},), not {got}")
    if value.is_complex():
        raise ValueError(
            "a target function returns real numbers, and complex ones came; return their size or real part"
        )
    if not torch.isfinite(value.detach()).all():
        raise ValueError("a target function returns finite numbers, and NaN or infinity came")
    return value
