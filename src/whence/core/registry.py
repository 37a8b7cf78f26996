"""One record per method and per metric; specs such as `lrp(rules='ah')`; look-up with suggestions."""

from __future__ import annotations

import ast
import difflib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

RESERVED = ("target", "seed", "batch_size", "truncate", "progress")  # options of `explain` itself
TASKS = ("text-classification", "image-classification", "causal-lm", "seq2seq-lm", "image-text", "module")


@dataclass(frozen=True)
class Option:
    """One keyword-only argument of a method or metric."""

    name: str
    annotation: Any
    default: Any

    @property
    def takes(self) -> str:
        """What the option takes, in words."""
        return _describe(self.annotation)


@dataclass(frozen=True)
class Record:
    """All that is known of a method or metric: the only place where it is written down."""

    name: str
    kind: str  # "method" or "metric"
    function: Callable[..., Any]
    family: str
    summary: str
    paper: str
    options: Mapping[str, Option]
    needs: tuple[str, ...] = ()  # what one instrumented pass must record; "{at}" is filled from the options
    complete: bool = False  # promises that scores sum to f(x) - f(baseline)
    signed: bool = True  # scores for and against; unsigned scores have no residual
    tasks: tuple[str, ...] = TASKS
    better: str = ""  # metrics: "higher" or "lower"

    def spec(self, options: Mapping[str, Any] | None = None) -> str:
        """The name with the options that differ from their defaults."""
        given = {k: v for k, v in (options or {}).items() if not _same(v, self.options[k].default)}
        return f"{self.name}({', '.join(f'{k}={_show(v)}' for k, v in given.items())})" if given else self.name

    def wanted(self, options: Mapping[str, Any]) -> frozenset[str]:
        """The needs with the options filled in."""
        full = {name: option.default for name, option in self.options.items()} | dict(options)
        return frozenset(need.format(**full) for need in self.needs)


_records: dict[str, dict[str, Record]] = {"method": {}, "metric": {}}


def method(
    *,
    family: str,
    paper: str = "",
    needs: tuple[str, ...] = (),
    complete: bool = False,
    signed: bool = True,
    tasks: tuple[str, ...] = TASKS,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register an attribution method: `function(subject, batch, target, *, options)` -> scores (batch, feature)."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _add("method", function, family=family, paper=paper, needs=needs, complete=complete, signed=signed, tasks=tasks)
        return function

    return register


def metric(*, better: str, paper: str = "", family: str = "faithfulness") -> Callable[..., Any]:
    """Register a metric: `function(subject, attribution, *, options)` -> value."""
    if better not in ("higher", "lower"):
        raise ValueError(f"better must be 'higher' or 'lower', not {better!r}")

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _add("metric", function, family=family, paper=paper, better=better)
        return function

    return register


def _add(kind: str, function: Callable[..., Any], **facts: Any) -> None:
    name = function.__name__
    known = _records[kind].get(name)
    if known and known.function.__module__ != function.__module__:
        raise ValueError(f"a {kind} named {name!r} is registered already, by {known.function.__module__}")
    hints = typing.get_type_hints(function)
    options = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            continue
        if parameter.name in RESERVED:
            raise ValueError(f"{name}: the option {parameter.name!r} belongs to explain(); choose another name")
        if parameter.default is inspect.Parameter.empty:
            raise ValueError(f"{name}: the option {parameter.name!r} needs a default")
        options[parameter.name] = Option(parameter.name, hints.get(parameter.name, Any), parameter.default)
    summary = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
    if not summary:
        raise ValueError(f"{name}: a {kind} needs a docstring; its first sentence is shown to users")
    _records[kind][name] = Record(
        name=name, kind=kind, function=function, summary=summary, options=types.MappingProxyType(options), **facts
    )


def unregister(kind: str, name: str) -> None:
    """Forget a record, for tests and for a user's own method under development."""
    _records[kind].pop(name, None)


def records(kind: str) -> list[Record]:
    """All records of a kind, in the order of their files."""
    _load()
    return list(_records[kind].values())


def find(kind: str, name: str) -> Record:
    """The record of that name, or an error that suggests the nearest."""
    _load()
    known = _records[kind]
    if name in known:
        return known[name]
    raise ValueError(f"unknown {kind} {name!r}; {suggest(name, known)}")


def resolve(kind: str, spec: str, options: Mapping[str, Any] | None = None) -> tuple[Record, dict[str, Any]]:
    """A spec and further options to a record and validated options."""
    name, written = parse(spec)
    record = find(kind, name)
    both = set(written) & set(options or {})
    if both:
        raise ValueError(f"the option {min(both)!r} is given twice: in {spec!r} and as a keyword; give it once")
    return record, validate(record, {**written, **(options or {})})


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """`"lrp(rules='ah')"` to `("lrp", {"rules": "ah"})`; values are Python literals."""
    if not isinstance(spec, str):
        raise TypeError(f"a method or metric is named by a string such as \"lrp(rules='ah')\", not {spec!r}")
    try:
        tree = ast.parse(spec.strip(), mode="eval").body
        if isinstance(tree, ast.Name):
            return tree.id, {}
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args:
            names = [keyword.arg for keyword in tree.keywords]
            if None not in names and len(set(names)) == len(names):
                return tree.func.id, {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
    except (SyntaxError, ValueError):
        pass
    raise ValueError(f"cannot read the spec {spec!r}; write a name, or name(option=value), each option once")


def validate(record: Record, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options checked against the signature; one sentence says what is wrong."""
    for name, value in options.items():
        if name not in record.options:
            raise ValueError(f"{record.name} has no option {name!r}; {suggest(name, record.options)}")
        if not _fits(value, record.options[name].annotation):
            raise ValueError(f"{record.name}: the option {name!r} takes {record.options[name].takes}, not {value!r}")
    return dict(options)


def suggest(name: str, known: typing.Iterable[str]) -> str:
    """`did you mean ...` or the list of what there is."""
    known = sorted(map(str, known))
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(map(repr, near))}?"
    return f"there is {', '.join(known)}" if known else "there is none"


def _load() -> None:
    from whence import methods  # noqa: F401  (importing registers)
    from whence.measure import metrics  # noqa: F401


def _same(a: Any, b: Any) -> bool:
    try:
        return type(a) is type(b) and bool(a == b)
    except (ValueError, RuntimeError):  # arrays have no single truth value
        return a is b


def _show(value: Any) -> str:
    literal = isinstance(value, (str, int, float, bool, list, tuple, dict, type(None)))
    return repr(value) if literal else getattr(value, "__name__", f"<{type(value).__name__}>")


def _fits(value: Any, annotation: Any) -> bool:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any or annotation is inspect.Parameter.empty:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in arguments)
    if origin is typing.Literal:
        return any(type(value) is type(part) and value == part for part in arguments)
    if annotation is None or annotation is type(None):
        return value is None
    if annotation is bool:
        return isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if origin is not None and isinstance(origin, type) and issubclass(origin, (list, tuple)):
        inner = [a for a in arguments if a is not Ellipsis]
        return isinstance(value, (list, tuple)) and all(any(_fits(v, a) for a in inner) for v in value)
    if origin is not None:
        return callable(value) if origin is typing.get_origin(Callable[..., Any]) else isinstance(value, origin)
    return isinstance(value, annotation) if isinstance(annotation, type) else True


def _describe(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(part) for part in arguments)
    if origin is typing.Literal:
        return " or ".join(repr(part) for part in arguments)
    if annotation in (None, type(None)):
        return "None"
    names: dict[Any, str] = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", Any: "any"}
    if annotation in names:
        return names[annotation]
    if isinstance(origin, type) and issubclass(origin, (list, tuple)):
        return f"a list, each {_describe(arguments[0])}"
    if origin is not None:
        return "a function" if origin is typing.get_origin(Callable[..., Any]) else origin.__name__
    return getattr(annotation, "__name__", str(annotation))


@dataclass(frozen=True)
class Explained:
    """What a method returns when scores alone do not say it all."""

    scores: Any  # (batch, feature) tensor
    base: Any = None  # (batch,) f(baseline) where the method has a baseline
    details: dict[str, Any] = field(default_factory=dict)  # name -> (batch, ...) tensor, or a list with one per example
    notes: tuple[str, ...] = ()
