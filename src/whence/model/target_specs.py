"""Reading targets as callers write them: labels, indices, tokens, kinds such as `contrast(...)`, states, functions."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from whence.core.inputs import POSITIONS, Target
from whence.core.specs import expression
from whence.core.wording import shown, suggest
from whence.model.targets import FORMULAS, Function

KINDS = tuple(FORMULAS)  # of a class or token
MAX_LETTERS = 1_000  # of a written target; no label or token is as long
STATE_KINDS = ("neuron", "channel", "direction")


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
    """What a caller wrote, as a Target: first a label, then an index, `kind(...)`, a token's text; or a function."""
    if wanted is None:
        return Target()
    if isinstance(wanted, Target):
        _check_target(wanted)
        return wanted
    if callable(wanted):
        return wanted
    if isinstance(wanted, bool) or not isinstance(wanted, (str, int, np.integer)):
        raise ValueError(f"a target is a label, an index, a token's text or a function, not {shown(wanted)}")
    if isinstance(wanted, str) and len(wanted) > MAX_LETTERS:
        raise ValueError(f"a target has at most {MAX_LETTERS:,} letters, and {shown(wanted)} came")
    # kinds come before tokens: a vocabulary may hold "margin", and to some tokenizers any text is one unknown token
    spec = None if wanted in (subject.labels or ()) else _parsed(wanted)
    if spec is None:
        index = _known_index(wanted, subject)
        return Target("logit", index, subject.name_of(index))
    if spec.kind in STATE_KINDS:
        return _state_target(spec)
    if spec.keywords or (len(spec.arguments) != 2 if spec.kind == "contrast" else len(spec.arguments) > 1):
        count = "two classes or tokens" if spec.kind == "contrast" else "one class or token, or none"
        given = len(spec.arguments) + len(spec.keywords)
        raise ValueError(f"the target {spec.kind}(...) takes {count}, and {wanted!r} has {given}")
    indices = [_known_index(argument, subject) for argument in spec.arguments]
    names = [subject.name_of(index) for index in indices]
    if spec.kind == "contrast":
        return Target(spec.kind, indices[0], names[0], indices[1], names[1])
    return Target(spec.kind, indices[0], names[0]) if indices else Target(spec.kind)


def _check_target(target: Target) -> None:
    """An error for a Target that was put together by hand and cannot be computed."""
    if target.kind not in (*KINDS, *STATE_KINDS):
        raise ValueError(f"unknown kind of target {target.kind!r}; {suggest(target.kind, (*KINDS, *STATE_KINDS))}")
    for name in ("index", "against"):
        number = getattr(target, name)
        if number is not None and (isinstance(number, bool) or not isinstance(number, (int, np.integer))):
            raise ValueError(f"Target.{name} is a whole number, not {number!r}")
    if target.kind == "contrast" and target.against is None:
        raise ValueError("a contrast needs a second class or token; give Target an against=")
    if target.of_state != (target.kind in STATE_KINDS):
        raise ValueError(
            f"a {target.kind} is made by Target.{target.kind}(...)"
            if not target.of_state
            else f"a {target.kind} is one of the outputs, and has no site; use a neuron, channel or direction"
        )


def _state_target(spec: _Spec) -> Target:
    """`neuron('MODULE', 17, at='mean')`, `channel('MODULE', 17)`, `direction('MODULE', 'vector.npy')`, `mlp:3:17`."""
    entry = "the file of a vector (.npy)" if spec.kind == "direction" else "a number"
    form = f"{spec.kind}('MODULE', {entry}), and where it is read as at='deciding', 'mean', 'max' or a token's number"
    given = [*spec.arguments, *([spec.keywords["at"]] if "at" in spec.keywords else [])]
    if spec.keywords.keys() - {"at"} or len(given) not in (2, 3) or not isinstance(given[0], (str, int)):
        raise ValueError(f"the target {spec.text!r} cannot be read; write {form}")
    site, unit = given[:2]
    at = given[2] if len(given) == 3 else "mean" if spec.kind == "channel" else None
    if isinstance(at, bool) or not (isinstance(at, int) or at in (None, *POSITIONS)):
        raise ValueError(f"the target {spec.text!r} is read at {at!r}; write {form}")
    if spec.kind == "direction":
        if not isinstance(unit, str):
            raise ValueError(f"the target {spec.text!r} cannot be read; write {form}, or use whence.Target.direction")
        return Target.direction(site, _vector(unit), at, name=f"direction {Path(unit).stem} in {site}")
    if not isinstance(unit, int) or isinstance(unit, bool):
        raise ValueError(f"the target {spec.text!r} cannot be read; write {form}")
    return (Target.neuron if spec.kind == "neuron" else Target.channel)(site, unit, at)


def _vector(file: str) -> np.ndarray:
    """The numbers of a .npy file, never a pickle."""
    try:
        return np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"the vector {file!r} cannot be read ({error}); give a .npy file of numbers") from error


def of_generated(subject: Namer, target: Any, token: int) -> Any:
    """The target of one generated token: that token, in the kind that was asked for; other targets stay."""
    name = subject.name_of(token)
    if target is None:
        return Target("logit", token, name)
    wanted = resolve(target, subject)
    if not isinstance(wanted, Target) or wanted.of_state:
        return wanted
    if wanted.index is not None and wanted.kind != "contrast":
        raise ValueError(
            f"every generated token is explained as itself, so the target {target!r} cannot name one; "
            "give only a kind, as 'probability', or a prompt without a continuation"
        )
    return Target(wanted.kind, token, name, wanted.against, wanted.against_name)


def _known_index(wanted: Any, subject: Namer) -> int:
    index = _index_of(wanted, subject)
    if index is None:
        raise _unknown_target(wanted, subject)
    return index


def _index_of(wanted: Any, subject: Namer) -> int | None:
    """The index of a label, a class number or a single token; None for anything else."""
    labels = subject.labels if not subject.generates else None
    if isinstance(wanted, (int, np.integer)) and not isinstance(wanted, bool):
        if labels and not 0 <= wanted < len(labels):
            raise ValueError(f"the target index {wanted} is out of range: there are {len(labels)} classes, from 0")
        if abs(int(wanted)) >= 2**31:  # no model has so many, and tokenizers cannot hold such a number
            raise ValueError(f"the target index {wanted} is out of range: classes and tokens are numbered from 0")
        return int(wanted)
    if labels and wanted in labels:
        return labels.index(wanted)
    if labels and isinstance(wanted, str):  # regardless of case, where that leaves one label
        alike = [number for number, label in enumerate(labels) if label.casefold() == wanted.casefold()]
        if len(alike) == 1:
            return alike[0]
    if subject.generates and isinstance(wanted, str):
        pieces = subject.pieces(wanted)
        known = len(pieces) == 1 and (pieces[0][0] != subject.unknown or wanted.strip() == pieces[0][1].strip())
        return pieces[0][0] if known else None
    return None


def _unknown_target(wanted: Any, subject: Namer) -> ValueError:
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


class _Spec(NamedTuple):
    """A written target, as `"contrast('positive', 'negative')"`, split into its kind and arguments."""

    text: str
    kind: str
    arguments: list[Any]
    keywords: dict[str, Any]


def _parsed(text: Any) -> _Spec | None:
    """The kind and arguments of a written target; None for a text that names no kind."""
    written = str(text)
    if written in KINDS:
        return _Spec(written, written, [], {})
    if short := re.fullmatch(r"mlp:(-?\d+):(\d+)", written):
        return _Spec(written, "neuron", [f"mlp:{short[1]}", int(short[2])], {})
    tree = expression(written.strip())
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        return None
    if tree.func.id not in (*KINDS, *STATE_KINDS) or any(keyword.arg is None for keyword in tree.keywords):
        return None
    try:
        keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
        return _Spec(written, tree.func.id, [ast.literal_eval(argument) for argument in tree.args], keywords)
    except (ValueError, RecursionError):
        raise ValueError(f"cannot read the target {text!r}; put labels in quotes: {tree.func.id}('label')") from None
