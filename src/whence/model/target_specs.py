"""Reading targets as callers write them: labels, indices, tokens, kinds such as `contrast(...)`, states, functions."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from whence.core.inputs import POSITIONS, Input, Target
from whence.core.specs import expression
from whence.core.wording import shown, suggest
from whence.model.places import ANSWERS, answer_named, first_pieces, masks, placed, span_number, token_named, words
from whence.model.targets import FORMULAS, Function

STATEMENT_KINDS = ("statement", "statement_probability", "statement_log_odds")  # of a part of a generated text
KINDS = tuple(kind for kind in FORMULAS if kind not in STATEMENT_KINDS)  # of a class or token
MAX_LETTERS = 1_000  # of a written target; no label or token is as long
STATE_KINDS = ("neuron", "channel", "direction", "head")


class Namer(Protocol):
    """What resolving a target needs to know of a Subject."""

    name: str
    labels: tuple[str, ...] | None

    @property
    def generates(self) -> bool: ...
    @property
    def reads(self) -> str: ...
    @property
    def predicts_tokens(self) -> bool: ...
    @property
    def regression(self) -> bool: ...
    @property
    def mask_ids(self) -> dict[str, int | None]: ...
    @property
    def unknown(self) -> int | None: ...
    def name_of(self, index: int) -> str: ...
    def pieces(self, text: str) -> list[tuple[int, str]]: ...


def resolve(wanted: Any, subject: Namer, item: Input | None = None) -> Target | Function:
    """What a caller wrote, as a Target: first a label, then an index, `kind(...)`, a token's text; or a function.

    `item` is the explained input, in which words and answers are looked up.
    """
    if isinstance(wanted, Target):
        _check_target(wanted)
        _check_fits(wanted, subject, item)
        return _of_output(wanted, subject, item) if subject.regression else wanted
    if callable(wanted):
        return wanted
    if isinstance(wanted, bool) or not isinstance(wanted, (str, int, np.integer, type(None))):
        raise ValueError(f"a target is a label, an index, a token's text or a function, not {shown(wanted)}")
    if isinstance(wanted, str) and len(wanted) > MAX_LETTERS:
        raise ValueError(f"a target has at most {MAX_LETTERS:,} letters, and {shown(wanted)} came")
    # kinds come before tokens: a vocabulary may hold "margin", and to some tokenizers any text is one unknown token
    kinds = (
        *KINDS,
        *STATE_KINDS,
        *(("statement",) if subject.generates else ()),
        *(ANSWERS if subject.reads == "span" else ()),
    )
    spec = None if wanted is None or wanted in (subject.labels or ()) else parsed(wanted, kinds)
    if spec is None:
        spec = Spec(str(wanted), "logit", [] if wanted is None else [wanted], {})
    if spec.kind == "statement":
        raise ValueError(
            "a statement is a part of a text that the model writes, and is explained by explain and compare alone"
        )
    if spec.kind in STATE_KINDS:
        return _state_target(spec)
    _check_arguments(spec, subject)
    if subject.reads == "span":
        return _answer_target(spec, item)
    indices = [_known_index(argument, subject) for argument in spec.arguments]
    names = [subject.name_of(index) for index in indices]
    target = _numbered(Target(spec.kind), indices, names)
    if subject.reads and item is not None:
        return _at_token(target, spec, subject, item)
    return _of_output(target, subject, item) if subject.regression else target


def _check_arguments(spec: Spec, subject: Namer) -> None:
    """An error for a kind of output that was given too many arguments, or ones that the model has no use for."""
    one, two = ("answer", "answers") if subject.reads == "span" else ("class or token", "classes or tokens")
    if len(spec.arguments) != 2 if spec.kind == "contrast" else len(spec.arguments) > 1:
        count = f"two {two}" if spec.kind == "contrast" else f"one {one}, or none"
        raise ValueError(f"the target {spec.kind}(...) takes {count}, and {spec.text!r} has {len(spec.arguments)}")
    known = {"": (), "token": ("at",), "mask": ("at",), "span": ("at", "of")}[subject.reads]
    for keyword in spec.keywords.keys() - set(known):
        if keyword == "at":
            raise ValueError(
                f"{subject.name} decides once for the whole input, not at a token; leave at= out of {spec.text!r}"
            )
        takes = " and ".join(f"{name}=" for name in known) or "no options"
        raise ValueError(f"the target {spec.kind}(...) takes {takes}, and {spec.text!r} has {keyword}=")


def _at_token(target: Target, spec: Spec, subject: Namer, item: Input) -> Target:
    """A label, or a word of the vocabulary, at one token; without one where the likeliest is looked for later."""
    at = spec.keywords.get("at")
    if at is not None:
        return placed(target, item, token_named(item, at))
    if item.decides:  # the only mask, or the token of an input that was explained before
        return placed(target, item, item.decides[0])
    if subject.reads == "mask":
        found = masks(item, subject.mask_ids["mask"])
        numbers = " or ".join(f'"probability(at={number})"' for number in found)
        raise ValueError(
            f"the text has {len(found)} masks, and one is explained; name the number of its token, as {numbers}"
            if found
            else f"the text has no mask; write {_mask_text(subject)} for the word that {subject.name} shall predict"
        )
    starts = first_pieces(item)
    if target.index is not None and len(starts) > 1:
        raise ValueError(
            f"{subject.name} labels every token, and {spec.text!r} names none; write where it is read, as "
            f'"logit({target.name!r}, at={words(item)[starts[0]]!r})"'
        )
    return target if target.index is None else placed(target, item, starts[0])


def _mask_text(subject: Namer) -> str:
    """The mask as it is written in a text."""
    number = subject.mask_ids["mask"]
    return "the tokenizer's mask token" if number is None else subject.name_of(number)


def _answer_target(spec: Spec, item: Input | None) -> Target:
    """`start('Paris')`, `end('Paris')`, `span('Paris')`; other kinds are of the span unless `of=` says otherwise."""
    of = spec.kind if spec.kind in ANSWERS else spec.keywords.get("of", "span")
    if of not in ANSWERS or (spec.kind in ANSWERS and "of" in spec.keywords):
        raise ValueError(
            f"of= is one of 'start', 'end' and 'span', in a kind such as probability(...), not {spec.text!r}"
        )
    kind = "logit" if spec.kind in ANSWERS else spec.kind
    if not spec.arguments:
        if "at" in spec.keywords:
            raise ValueError(f"at= says which of several equal answers is meant, and {spec.text!r} names no answer")
        return Target(kind, of=of)
    if item is None:
        raise ValueError(f"the target {spec.text!r} names an answer, which is known only in its context")
    at = spec.keywords.get("at")
    places = list(at) if kind == "contrast" and isinstance(at, (list, tuple)) else [at] * len(spec.arguments)
    if len(places) != len(spec.arguments):
        raise ValueError(f"at= has one number per answer of a contrast, as at=(7, 12), and {spec.text!r} has another")
    spans = [answer_named(item, answer, place) for answer, place in zip(spec.arguments, places, strict=True)]
    numbers = [{"start": first, "end": last, "span": span_number(first, last)}[of] for first, last in spans]
    return _numbered(Target(kind, of=of), numbers, [answer.strip() for answer in spec.arguments])


def _numbered(target: Target, numbers: list[int], names: list[str]) -> Target:
    """The target with the classes that it names: none, one, or the two of a contrast."""
    if numbers:
        target = replace(target, index=numbers[0], name=names[0])
    return replace(target, against=numbers[1], against_name=names[1]) if len(numbers) > 1 else target


def _of_output(target: Target, subject: Namer, item: Input | None) -> Target:
    """A target of a regression: an output, or the difference of two; outputs have no probabilities."""
    if target.of_state or target.kind == "function":
        return target
    if target.kind not in ("logit", "contrast"):
        raise ValueError(
            f"{subject.name} is a regression, whose output is a number and no class, so it has no {target.kind}; "
            "explain the output itself; of a classifier with one logit, config.problem_type is "
            "'multi_label_classification'"
        )
    if target.index is None and len(subject.labels or ()) > 1 and item is not None:
        names = ", ".join(map(repr, subject.labels or ()))
        raise ValueError(f"{subject.name} has several outputs, and none is the prediction; name one as target: {names}")
    if target.index is None and len(subject.labels or ()) <= 1:
        target = replace(target, index=0, name=subject.name_of(0))
    return replace(target, of="output")


def _check_target(target: Target) -> None:
    """An error for a Target that was put together by hand and cannot be computed."""
    if target.kind not in (*KINDS, *STATE_KINDS, *STATEMENT_KINDS):
        raise ValueError(f"unknown kind of target {shown(target.kind)}; {suggest(target.kind, (*KINDS, *STATE_KINDS))}")
    for name in ("index", "against"):
        number = getattr(target, name)
        if number is not None and (isinstance(number, bool) or not isinstance(number, (int, np.integer))):
            raise ValueError(f"Target.{name} is a whole number, not {shown(number)}")
    if target.kind == "contrast" and target.against is None:
        raise ValueError("a contrast needs a second class or token; give Target an against=")
    if target.of_state != (target.kind in STATE_KINDS):
        raise ValueError(
            f"a {target.kind} is made by Target.{target.kind}(...)"
            if not target.of_state
            else f"a {target.kind} is one of the outputs, and has no site; use a neuron, channel or direction"
        )
    if target.kind == "head" and not re.fullmatch(r"heads:-?\d+", target.site):
        raise ValueError(f"a head is made by Target.head(3, 2), and Target.site is {shown(target.site)}")
    is_direction = target.kind == "direction"
    vector_fits = isinstance(target.vector, np.ndarray) if is_direction else target.vector is None
    if not vector_fits or (target.of_state and not is_direction and target.index is None):
        raise ValueError(
            f"a {target.kind} has {'a vector' if is_direction else 'a number'}; make it by Target.{target.kind}(...)"
        )


def _check_fits(target: Target, subject: Namer, item: Input | None) -> None:
    """An error for a Target of another kind of model, which would be read at a wrong place of the outputs."""
    if target.of_state:
        return
    if isinstance(target.position, int) and subject.reads not in ("token", "mask"):
        raise ValueError(f"{subject.name} decides once for the whole input, and Target.position is {target.position}")
    answer, known = target.of in ANSWERS, item is not None or target.of in ANSWERS
    if known and answer != (subject.reads == "span"):
        wanted = "its 'start', its 'end' or its 'span'" if subject.reads == "span" else "a class, a token or an output"
        raise ValueError(f"a target of {subject.name} is of {wanted}, and Target.of is {shown(target.of)}")


def _state_target(spec: Spec) -> Target:
    """`neuron('MODULE', 17, at='mean')`, `channel('MODULE', 17)`, `direction('MODULE', 'vector.npy')`, `head(3, 2)`."""
    entry = "the file of a vector (.npy)" if spec.kind == "direction" else "a number"
    place = "BLOCK" if spec.kind == "head" else "'MODULE'"
    form = f"{spec.kind}({place}, {entry}), and where it is read as at='deciding', 'mean', 'max' or a token's number"
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
    if spec.kind == "head":
        if not isinstance(site, int) or isinstance(site, bool):
            raise ValueError(f"the target {spec.text!r} cannot be read; write {form}, with the number of a block")
        return Target.head(site, unit, at)
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
            f"every generated token is explained as itself, so the target {shown(target)} cannot name one; "
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
    labels = subject.labels if not subject.predicts_tokens else None
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
    if subject.predicts_tokens and isinstance(wanted, str):
        pieces = subject.pieces(wanted)
        known = len(pieces) == 1 and (pieces[0][0] != subject.unknown or wanted.strip() == pieces[0][1].strip())
        return pieces[0][0] if known else None
    return None


def _unknown_target(wanted: Any, subject: Namer) -> ValueError:
    if subject.predicts_tokens and (not isinstance(wanted, str) or not wanted):
        return ValueError(f"a target names an index or a token's text, not {shown(wanted)}")
    if subject.predicts_tokens:
        pieces = subject.pieces(wanted)
        if len(pieces) == 1:
            return ValueError(
                f"the target {shown(wanted)} is not in the vocabulary of {subject.name}; give a token that is"
            )
        listed = ", ".join(repr(piece) for _, piece in pieces)
        all_of_them = ", or explain them all with {'prompt': ..., 'continuation': ...}" * subject.generates
        return ValueError(
            f"the target {shown(wanted)} is {len(pieces)} tokens ({listed}), and a target is one; "
            f"give one of them{all_of_them}"
        )
    labels = ", ".join(map(repr, subject.labels or ())) or "none that are known; give an index"
    near = suggest(str(wanted), subject.labels or ())
    hint = f"; {near}" if near.startswith("did") else ""
    return ValueError(f"the target {shown(wanted)} is not a label of {subject.name}; its labels are {labels}{hint}")


class Spec(NamedTuple):
    """A written target, as `"contrast('positive', 'negative')"`, split into its kind and arguments."""

    text: str
    kind: str
    arguments: list[Any]
    keywords: dict[str, Any]


def names_answers(wanted: Any) -> bool:
    """Whether a target contrasts two texts, so that the model need not write any itself."""
    spec = parsed(wanted, ("contrast",)) if isinstance(wanted, str) else None
    return spec is not None and len(spec.arguments) == 2 and all(isinstance(text, str) for text in spec.arguments)


def parsed(text: Any, kinds: tuple[str, ...]) -> Spec | None:
    """The kind and arguments of a written target; None for a text that names no kind."""
    written = str(text)
    if written in kinds and written not in STATE_KINDS:
        return Spec(written, written, [], {})
    if short := re.fullmatch(r"mlp:(-?\d+):(\d+)", written):
        return Spec(written, "neuron", [f"mlp:{short[1]}", int(short[2])], {})
    if short := re.fullmatch(r"head:(-?\d+):(\d+)", written):
        return Spec(written, "head", [int(short[1]), int(short[2])], {})
    tree = expression(written.strip())
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        return None
    if tree.func.id not in kinds or any(keyword.arg is None for keyword in tree.keywords):
        return None
    try:
        keywords = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
        return Spec(written, tree.func.id, [ast.literal_eval(argument) for argument in tree.args], keywords)
    except (ValueError, RecursionError):
        raise ValueError(f"cannot read the target {text!r}; put labels in quotes: {tree.func.id}('label')") from None
