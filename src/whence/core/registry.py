"""One record per method, metric, experiment and loss; specs such as `lrp(rules='ah')`; look-up with suggestions."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from whence.core import extensions, papers, specs, tasks
from whence.core.wording import shown, suggest

RESERVED = ("target", "seed", "batch_size", "truncate", "progress", "level", "ignore")  # options of `explain` itself
# Options that methods no longer have -> the sentence that says what to write instead.
MOVED = {"unit": "units are an option of explain and compare: level='word', 'sentence', 'message', 'document' or spans"}


@dataclass(frozen=True)
class Option:
    """One keyword-only argument of a method, metric or experiment."""

    name: str
    annotation: Any
    default: Any

    @property
    def takes(self) -> str:
        """What the option takes, in words."""
        return specs.describe(self.annotation)


@dataclass(frozen=True)
class Record:
    """All that is known of a method, metric or experiment: the only place where it is written down."""

    name: str
    kind: str  # "method", "metric", "experiment" or "loss"
    function: Callable[..., Any]
    family: str
    summary: str
    paper: str
    options: Mapping[str, Option]
    needs: tuple[str, ...] = ()  # what one instrumented pass must record; "{at}" is filled from the options
    complete: bool = False  # promises that scores sum to f(x) - f(baseline)
    signed: bool = True  # scores for and against; unsigned scores have no residual
    tasks: tuple[str, ...] = tasks.NAMES
    better: str = ""  # metrics: "higher" or "lower"
    axes: tuple[str, ...] = ()  # metrics with a curve: names of its two axes; options in braces are filled in
    circular: tuple[str, ...] = ()  # metrics: specs of methods whose scores are what the metric compares with
    question: str = ""  # experiments: what is asked
    conclude: Callable[..., Any] | None = None  # experiments: from the numbers of all examples to the answer
    limits: tuple[str, ...] = ()  # experiments: what the answer does not say
    pulls: Callable[..., tuple[str, int]] | None = None  # losses: options -> (what is pulled, +1 or -1)

    def spec(self, options: Mapping[str, Any] | None = None) -> str:
        """The name with the options that differ from their defaults."""
        given = {k: v for k, v in (options or {}).items() if not specs.same(v, self.options[k].default)}
        return f"{self.name}({', '.join(f'{k}={specs.written(v)}' for k, v in given.items())})" if given else self.name

    def __call__(self, subject: Any, batch: Any, target: Any, **options: Any) -> Any:
        """Run a method on a batch, whose passes then record what the method declares to need."""
        if getattr(target, "states", ()) and self.follows_attention_only:
            raise ValueError(
                f"{self.name} follows attention to the model's output, and the target lies inside the model; use a "
                "method that differentiates or perturbs, as gae, lrp or leave_one_out"
            )
        batch.needs = batch.needs | self.wanted(options)
        return self.function(subject, batch, target, **options)

    @property
    def bibtex(self) -> str:
        """The paper as BibTeX, to cite it; "" where there is none."""
        return papers.bibtex(self.paper)

    @property
    def follows_attention_only(self) -> bool:
        """The method reads attention at the tokens that the output reads, and takes no gradient of the target."""
        return "deciding" in self.needs and not any("gradient" in need for need in self.needs)

    def wanted(self, options: Mapping[str, Any]) -> frozenset[str]:
        """What a pass must record for this method with these options: its needs, `{at}` and the like filled in."""
        full = self._filled(options)
        return frozenset(need.format(**full) for need in self.needs)

    def axes_of(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the two axes of a metric's curve, with the options filled in; () without a curve."""
        return tuple(axis.format(**self._filled(options)) for axis in self.axes)

    def compares_with(self, method: str) -> bool:
        """Whether the metric compares scores with those of this method, given as a spec, and so cannot judge it."""
        for name, given in map(specs.parse, self.circular):
            if method.partition("(")[0] == name and given.items() <= specs.parse(method)[1].items():
                return True
        return False

    def _filled(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: option.default for name, option in self.options.items()} | dict(options)


_records: dict[str, dict[str, Record]] = {"method": {}, "metric": {}, "experiment": {}, "loss": {}}


def method(
    *,
    family: str,
    paper: str = "",
    needs: tuple[str, ...] = (),
    complete: bool = False,
    signed: bool = True,
    tasks: tuple[str, ...] = tasks.NAMES,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register an attribution method: `function(subject, batch, target, *, options)` -> scores (batch, feature)."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _add("method", function, family=family, paper=paper, needs=needs, complete=complete, signed=signed, tasks=tasks)
        return function

    return register


def metric(
    *,
    better: str,
    paper: str = "",
    family: str = "faithfulness",
    axes: tuple[str, str] | None = None,
    circular: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """Register a metric: `function(subject, case, *, options)` -> value, or a generator that asks the model.

    A metric that returns a Curve names its `axes`: the quantity that grows along the curve, and the one measured.
    `circular` names methods whose scores are what the metric compares with, so that it never judges them.
    """
    if better not in ("higher", "lower"):
        raise ValueError(f"better must be 'higher' or 'lower', not {better!r}")

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _add("metric", function, family=family, paper=paper, better=better, axes=axes or (), circular=circular)
        return function

    return register


def experiment(
    *, question: str, conclude: Callable[..., Any], limits: tuple[str, ...] = (), paper: str = "", family: str = "edits"
) -> Callable[..., Any]:
    """Register an experiment of an audit: `function(scene, *, options)` -> {place: {name: number}} of one example.

    `conclude(evidence, options)` is given the numbers of all examples at one place and returns a Conclusion: a grade
    and the answer in one sentence. The option names `layers`, `heads`, `rows` and `special` are those of `audit`.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        facts: dict[str, Any] = {"question": question, "conclude": conclude, "limits": limits}
        _add("experiment", function, family=family, paper=paper, **facts)
        return function

    return register


def loss(
    *,
    needs: tuple[str, ...],
    paper: str = "",
    family: str = "attention",
    pulls: Callable[..., tuple[str, int]] | None = None,
) -> Callable[..., Any]:
    """Register a loss of training: `function(seen, *, options)` -> a number with its graph, of what a pass saw.

    `needs` says what the pass records; "marks" (rationales), "base" (the outputs before training) and "gradient" (a
    second backward pass) are possible needs, too. Every loss has the option `weight`, which the function itself is not
    given. `pulls` returns, from the options, what the loss pulls and the direction, +1 or -1; opposite directions are
    refused.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        _add("loss", function, family=family, paper=paper, needs=needs, pulls=pulls)
        record = _records["loss"][function.__name__]
        options = {**record.options, "weight": Option("weight", Annotated[float, specs.Between(0, 10**6)], 1.0)}
        _records["loss"][function.__name__] = replace(record, options=types.MappingProxyType(options))
        return function

    return register


def _add(kind: str, function: Callable[..., Any], **facts: Any) -> None:
    """Make the record of a function: its keyword-only arguments are the options, its docstring gives the summary."""
    name = function.__name__
    known = _records[kind].get(name)
    if known and known.function.__module__ != function.__module__:
        raise ValueError(f"a {kind} named {name!r} is registered already, by {known.function.__module__}")
    hints = typing.get_type_hints(function, include_extras=True)
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
    extensions.load(kind)
    return list(_records[kind].values())


def find(kind: str, name: str) -> Record:
    """The record of that name, or an error that suggests the nearest."""
    extensions.load(kind)
    known = _records[kind]
    if name in known:
        return known[name]
    raise ValueError(f"unknown {kind} {shown(name)}; {suggest(name, known)}")


def resolve(kind: str, spec: str, options: Mapping[str, Any] | None = None) -> tuple[Record, dict[str, Any]]:
    """A spec and further options to a record and validated options."""
    name, written = specs.parse(spec)
    record = find(kind, name)
    both = set(written) & set(options or {})
    if both:
        raise ValueError(f"the option {min(both)!r} is given twice: in {shown(spec)} and as a keyword; give it once")
    return record, validate(record, {**written, **(options or {})})


def validate(record: Record, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options checked against the signature; one sentence says what is wrong."""
    for name in options:
        if name not in record.options and record.kind == "method" and name in (*MOVED, "level"):
            raise ValueError(f"{record.name} has no option {shown(name)}; {MOVED.get(name, MOVED['unit'])}")
        if name not in record.options:
            raise ValueError(f"{record.name} has no option {shown(name)}; {suggest(name, record.options)}")
    return {
        name: specs.checked(f"{record.name}: the option {name!r}", value, record.options[name].annotation)
        for name, value in options.items()
    }


@dataclass(frozen=True)
class Explained:
    """What a method returns beside its scores: a base, details, notes."""

    scores: Any  # (batch, feature) tensor
    base: Any = None  # (batch,) f(baseline) where the method has a baseline
    details: dict[str, Any] = field(default_factory=dict)  # name -> (batch, ...) tensor, or a list with one per example
    notes: tuple[str, ...] = ()  # about every example
    notes_by_example: Sequence[tuple[str, ...]] = ()  # further notes: for each example, those about it alone
    signed: bool | None = None  # where the options decide it; None: as the record promises
