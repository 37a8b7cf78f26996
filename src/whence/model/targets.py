"""What is explained: scalars of the decision logits, `(logits, batch) -> (batch,)`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from whence.core.inputs import Target
from whence.core.wording import suggest

KINDS = ("logit", "probability", "log_probability", "log_odds", "margin", "contrast")
Function = Callable[[Tensor, Any], Tensor]


def logit(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """z_c"""
    return _at(logits, index)


def probability(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """p_c = softmax(z)_c; with one output, or classes that do not exclude each other, the sigmoid of z_c."""
    return log_probability(logits, index, against).exp()


def log_probability(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """log p_c"""
    if logits.shape[-1] == 1:
        return torch.nn.functional.logsigmoid(logits[:, 0])
    return _at(logits.log_softmax(-1), index)


def log_odds(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """log p_c / (1 - p_c) = z_c - logsumexp of the others; for two classes, z_1 - z_0 exactly."""
    if logits.shape[-1] == 1:
        return logits[:, 0]
    return _at(logits, index) - _without(logits, index).logsumexp(-1)


def margin(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """z_c minus the largest other logit."""
    return _at(logits, index) - _without(logits, index).amax(-1)


def contrast(logits: Tensor, index: Tensor, against: Tensor) -> Tensor:
    """z_c - z_d"""
    return _at(logits, index) - _at(logits, against)


def _at(logits: Tensor, index: Tensor) -> Tensor:
    return logits.gather(-1, index[:, None])[:, 0]


def _without(logits: Tensor, index: Tensor) -> Tensor:
    return logits.scatter(-1, index[:, None], float("-inf"))


_FUNCTIONS = {f.__name__: f for f in (logit, probability, log_probability, log_odds, margin, contrast)}
_OF_PROBABILITY = ("probability", "log_probability", "log_odds")


def of_logits(target: Target) -> bool:
    """The target names a class or token, and its value follows from the logits alone."""
    return target.kind in _FUNCTIONS


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
        """No target waits for a prediction."""
        return self.values is not None

    def fix(self, logits: Tensor, batch: Any) -> None:
        """Open targets become what these logits of the plain inputs predict; f(x) is kept."""
        if self.fixed:
            return
        best = logits.argmax(-1).tolist()
        self.targets = [
            Target(t.kind, b, self._name_of(b), t.against, t.against_name, True)
            if t.index is None and t.kind != "function"
            else t
            for t, b in zip(self.targets, best, strict=True)
        ]
        self.values = self(logits.detach(), batch).detach()

    def key(self, row: int) -> Hashable:
        """Equal for targets that have the same value on the same input."""
        target, function = self.targets[row], self._functions[row]
        return (target.kind, target.index, target.against) if function is None else function

    def chosen(self, rows: Sequence[int]) -> Aim:
        """The targets of these examples, for the batch chosen likewise."""
        copy = Aim([], self._name_of, self._multi_label)
        copy.targets = [self.targets[row] for row in rows]
        copy._functions = [self._functions[row] for row in rows]
        copy.values = None if self.values is None else self.values[list(rows)]
        return copy

    def __call__(self, logits: Tensor, batch: Any) -> Tensor:
        """f of every example: (batch,)."""
        if any(t.index is None and t.kind != "function" for t in self.targets):
            raise RuntimeError("the target is not fixed yet: run the plain inputs first")
        classes = logits.shape[-1]
        wrong = [i for t in self.targets for i in (t.index or 0, t.against or 0) if not 0 <= i < classes]
        if wrong:
            raise ValueError(
                f"the target index {wrong[0]} is out of range: there are {classes} classes or tokens, from 0"
            )
        if classes == 1 and any(t.kind == "margin" for t in self.targets):
            raise ValueError("the model has one output, so there is no margin to a runner-up; use the logit")
        index = torch.tensor([t.index or 0 for t in self.targets], device=logits.device)
        against = torch.tensor([t.against or 0 for t in self.targets], device=logits.device)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        out = logits.new_zeros(len(logits))
        for kind in dict.fromkeys(t.kind for t in self.targets):
            here = torch.tensor([t.kind == kind for t in self.targets], device=logits.device)
            if kind == "function":
                continue
            if self._multi_label and kind in _OF_PROBABILITY:  # the class by itself, as an only output
                value = _FUNCTIONS[kind](_at(logits, index)[:, None], torch.zeros_like(index), against)
            else:
                value = _FUNCTIONS[kind](logits, index, against)
            out = torch.where(here, value, out)
        for function in {f for f in self._functions if f is not None}:
            here = torch.tensor([f is function for f in self._functions], device=logits.device)
            out = torch.where(here, _checked(function, logits, batch), out)
        return out


def _checked(function: Function, logits: Tensor, batch: Any) -> Tensor:
    value = function(logits, batch)
    if not isinstance(value, Tensor) or value.shape != logits.shape[:1]:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"a target function returns one value per example, shape ({len(logits)},), not {got}")
    return value


class Namer(Protocol):
    """What resolving a target needs to know of a Subject."""

    name: str
    labels: tuple[str, ...] | None

    @property
    def generates(self) -> bool: ...
    @property
    def unknown(self) -> int | None: ...
    def name_of(self, index: int) -> str: ...
    def pieces(self, text: str) -> list[tuple[int, str]]: ...


def resolve(wanted: Any, subject: Namer) -> Target | Function:
    """What the caller wrote to a Target: a label first, then an index, `kind(...)`, a token's text; or a function."""
    if wanted is None:
        return Target()
    if isinstance(wanted, Target):
        if wanted.kind not in KINDS:
            raise ValueError(f"unknown kind of target {wanted.kind!r}; {suggest(wanted.kind, KINDS)}")
        return wanted
    if callable(wanted):
        return wanted
    if isinstance(wanted, bool) or not isinstance(wanted, (str, int, np.integer)):
        raise ValueError(f"a target is a label, an index, a token's text or a function, not {wanted!r}")
    # an LM's vocabulary may hold the word "margin", and any text is one unknown token to some: kinds come first
    kind, arguments = ("", []) if wanted in (subject.labels or ()) else _spec(wanted)
    if not kind:
        index = _find(wanted, subject)
        if index is None:
            raise _unknown(wanted, subject)
        return Target("logit", index, subject.name_of(index))
    if len(arguments) != 2 if kind == "contrast" else len(arguments) > 1:
        count = "two classes or tokens" if kind == "contrast" else "one class or token, or none"
        raise ValueError(f"the target {kind}(...) takes {count}, and {wanted!r} has {len(arguments)}")
    indices = []
    for argument in arguments:
        index = _find(argument, subject)
        if index is None:
            raise _unknown(argument, subject)
        indices.append(index)
    names = [subject.name_of(index) for index in indices]
    if kind == "contrast":
        return Target(kind, indices[0], names[0], indices[1], names[1])
    return Target(kind, indices[0], names[0]) if indices else Target(kind)


def _find(wanted: Any, subject: Namer) -> int | None:
    """The index of a label, a class number or a single token; None for anything else."""
    labels = subject.labels if not subject.generates else None
    if isinstance(wanted, (int, np.integer)) and not isinstance(wanted, bool):
        if labels and not 0 <= wanted < len(labels):
            raise ValueError(f"the target index {wanted} is out of range: there are {len(labels)} classes, from 0")
        return int(wanted)
    if labels and wanted in labels:
        return labels.index(wanted)
    if subject.generates and isinstance(wanted, str):
        pieces = subject.pieces(wanted)
        known = len(pieces) == 1 and (pieces[0][0] != subject.unknown or wanted.strip() == pieces[0][1].strip())
        return pieces[0][0] if known else None
    return None


def _unknown(wanted: Any, subject: Namer) -> ValueError:
    if subject.generates and (not isinstance(wanted, str) or not wanted):
        return ValueError(f"a target names an index or a token's text, not {wanted!r}")
    if subject.generates:
        pieces = subject.pieces(wanted)
        if len(pieces) == 1:
            return ValueError(f"the target {wanted!r} is not in the vocabulary of {subject.name}; give a token that is")
        shown = ", ".join(repr(piece) for _, piece in pieces)
        return ValueError(
            f"the target {wanted!r} is {len(pieces)} tokens ({shown}), and a target is one; "
            "give one of them, or explain them all with {'prompt': ..., 'continuation': ...}"
        )
    labels = ", ".join(map(repr, subject.labels or ())) or "none that are known; give an index"
    near = suggest(str(wanted), subject.labels or ())
    hint = f"; {near}" if near.startswith("did") else ""
    return ValueError(f"the target {wanted!r} is not a label of {subject.name}; its labels are {labels}{hint}")


def _spec(text: Any) -> tuple[str, list[Any]]:
    """`"contrast('positive', 'negative')"` to its kind and arguments; nothing for other texts."""
    if text in KINDS:
        return text, []
    try:
        tree = ast.parse(str(text).strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return "", []
    if (
        not isinstance(tree, ast.Call)
        or not isinstance(tree.func, ast.Name)
        or tree.func.id not in KINDS
        or tree.keywords
    ):
        return "", []
    try:
        return tree.func.id, [ast.literal_eval(argument) for argument in tree.args]
    except ValueError:
        raise ValueError(f"cannot read the target {text!r}; put labels in quotes: {tree.func.id}('label')") from None


def of_generated(subject: Namer, target: Any, token: int) -> Any:
    """The target of one generated token: that token, in the kind that was asked for."""
    name = subject.name_of(token)
    if target is None:
        return Target("logit", token, name)
    if callable(target):
        return target
    aimed = resolve(target, subject)
    assert isinstance(aimed, Target)
    if aimed.index is not None and aimed.kind != "contrast":
        raise ValueError(
            f"every generated token is explained as itself, so the target {target!r} cannot name one; "
            "give only a kind, as 'probability', or a prompt without a continuation"
        )
    return Target(aimed.kind, token, name, aimed.against, aimed.against_name)
