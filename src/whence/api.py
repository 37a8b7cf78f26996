"""The verbs: each validates its arguments and calls the module that does the work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, overload

from whence import zoo
from whence.concepts.activations import Reading
from whence.concepts.maximising import Search, maximised
from whence.concepts.probes import ProbeKind
from whence.concepts.sensitivity import Settings as ConceptSettings
from whence.concepts.sensitivity import Test, sensitivity
from whence.core import registry
from whence.core.attention_maps import AttentionMaps
from whence.core.audits import Audit
from whence.core.inputs import Input
from whence.core.maximisations import Maximisation
from whence.core.registry import Record
from whence.core.relevance_balance import Conservation
from whence.core.results import Attribution, Comparison
from whence.core.scoreboards import Arbitration, Score, Scoreboard
from whence.core.sensitivities import Sensitivity
from whence.core.specs import Between, checked
from whence.core.wording import shown
from whence.debate.auditing import audited
from whence.debate.places import AttentionReading, Heads, Layers, Rows
from whence.measure.arbitration import By, Labels, arbitrated
from whence.measure.call_types import Data, Raw, RawInput, RawInputs, TargetLike, TargetLikes, Truth
from whence.measure.evaluation import evaluated
from whence.measure.scoring import scored
from whence.methods.attention_maps import maps_of
from whence.methods.explaining import Settings, as_list, encoded, explained, usual_method
from whence.model.subject import Subject
from whence.model.targets import Function
from whence.propagation.relevance_balance import balanced

Count = Annotated[int, Between(1, 10**9)]
_SETTINGS: dict[str, Any] = {
    "seed": Annotated[int, Between(0, 2**63 - 1)],
    "batch_size": Count | None,
    "limit": Count | None,
    "fit": Count | None,
    "token": Annotated[int, Between(-(10**9), 10**9)],
    "truncate": bool,
    "progress": bool,
    "resume": str | Path | None,
}


@overload
def explain(
    subject: Subject,
    inputs: RawInput,
    method: str | None = ...,
    target: TargetLike = ...,
    *,
    seed: int = ...,
    batch_size: int | None = ...,
    truncate: bool = ...,
    progress: bool = ...,
    **options: Any,
) -> Attribution: ...
@overload
def explain(
    subject: Subject,
    inputs: RawInputs[Raw],
    method: str | None = ...,
    target: TargetLikes = ...,
    *,
    seed: int = ...,
    batch_size: int | None = ...,
    truncate: bool = ...,
    progress: bool = ...,
    **options: Any,
) -> list[Attribution]: ...
def explain(
    subject: Subject,
    inputs: RawInput | RawInputs,
    method: str | None = None,
    target: TargetLikes = None,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    truncate: bool = False,
    progress: bool = False,
    **options: Any,
) -> Attribution | list[Attribution]:
    """Attribute the target to the features of one input (an Attribution) or of a list of inputs (a list).

    `target`: a label, an index, a token's text, `kind(...)` such as "log_odds('positive')", at a token as
    "logit('B-PER', at='Obama')", an answer as "start('Paris')", a function
    `(logits, batch) -> (batch,)`, or a list with one per input; by default what the model predicts.
    """
    _check_call(subject, seed=seed, batch_size=batch_size, truncate=truncate, progress=progress)
    if method is not None:
        registry.resolve("method", method, options)  # what is wrong with it is said before anything is encoded
    items, targets, single = _encoded(subject, inputs, target, truncate)
    usual = usual_method(subject, items) if method is None else method
    notes = () if method is not None else (f"no method was named: {usual} was used",)
    specs = [registry.resolve("method", usual, options)]
    results = [
        found[0] for found in explained(subject, items, specs, targets, Settings(seed, batch_size, progress, notes))
    ]
    return results[0] if single else results


@overload
def compare(
    subject: Subject,
    inputs: RawInput,
    methods: Sequence[str],
    target: TargetLike = ...,
    *,
    seed: int = ...,
    batch_size: int | None = ...,
    truncate: bool = ...,
    progress: bool = ...,
) -> Comparison: ...
@overload
def compare(
    subject: Subject,
    inputs: RawInputs[Raw],
    methods: Sequence[str],
    target: TargetLikes = ...,
    *,
    seed: int = ...,
    batch_size: int | None = ...,
    truncate: bool = ...,
    progress: bool = ...,
) -> list[Comparison]: ...
def compare(
    subject: Subject,
    inputs: RawInput | RawInputs,
    methods: Sequence[str],
    target: TargetLikes = None,
    *,
    seed: int = 0,
    batch_size: int | None = None,
    truncate: bool = False,
    progress: bool = False,
) -> Comparison | list[Comparison]:
    """Several methods on one input (a Comparison) or on each of a list (a list): one target, shared passes."""
    _check_call(subject, seed=seed, batch_size=batch_size, truncate=truncate, progress=progress)
    _check_specs("methods", methods)
    specs = [registry.resolve("method", spec) for spec in methods]
    items, targets, single = _encoded(subject, inputs, target, truncate)
    found = explained(subject, items, specs, targets, Settings(seed, batch_size, progress))
    results = [Comparison(tuple(attributions)) for attributions in found]
    return results[0] if single else results


@overload
def attention_maps(subject: Subject, inputs: RawInput, *, truncate: bool = ...) -> AttentionMaps: ...
@overload
def attention_maps(subject: Subject, inputs: RawInputs[Raw], *, truncate: bool = ...) -> list[AttentionMaps]: ...
def attention_maps(
    subject: Subject, inputs: RawInput | RawInputs[Raw], *, truncate: bool = False
) -> AttentionMaps | list[AttentionMaps]:
    """All attention weights of one input (AttentionMaps) or of each of a list (a list), as the model used them."""
    _check_call(subject, truncate=truncate)
    items, _, single = _encoded(subject, inputs, None, truncate)
    with subject.lent():
        found = [maps_of(subject, item) for item in items]
    return found[0] if single else found


@overload
def conservation(
    subject: Subject,
    inputs: RawInput,
    method: str = ...,
    target: TargetLike = ...,
    *,
    token: int = ...,
    truncate: bool = ...,
) -> Conservation: ...
@overload
def conservation(
    subject: Subject,
    inputs: RawInputs[Raw],
    method: str = ...,
    target: TargetLikes = ...,
    *,
    token: int = ...,
    truncate: bool = ...,
) -> list[Conservation]: ...
def conservation(
    subject: Subject,
    inputs: RawInput | RawInputs,
    method: str = "lrp",
    target: TargetLikes = None,
    *,
    token: int = 0,
    truncate: bool = False,
) -> Conservation | list[Conservation]:
    """Where relevance leaks: what every module is given and hands on, for one input (Conservation) or a list of them.

    `method` hands relevance down in one backward pass: lrp, attnlrp, gradient_x_input, each with options; the last is
    always there to compare. Of generated text, one `token` is looked at, by its number.
    """
    _check_call(subject, token=token, truncate=truncate)
    spec = registry.resolve("method", method)
    items, targets, single = _encoded(subject, inputs, target, truncate)
    found = [balanced(subject, item, spec, aimed, token) for item, aimed in zip(items, targets, strict=True)]
    return found[0] if single else found


@overload
def score(
    subject: Subject,
    attributions: Attribution,
    metric: str,
    *,
    truth: Truth = ...,
    target: Function | None = ...,
    seed: int = ...,
    **options: Any,
) -> Score: ...
@overload
def score(
    subject: Subject,
    attributions: Sequence[Attribution],
    metric: str,
    *,
    truth: Sequence[Truth] | None = ...,
    target: Function | None = ...,
    seed: int = ...,
    **options: Any,
) -> Score: ...
def score(
    subject: Subject,
    attributions: Attribution | Sequence[Attribution],
    metric: str,
    *,
    truth: Truth | Sequence[Truth] = None,
    target: Function | None = None,
    seed: int = 0,
    **options: Any,
) -> Score:
    """A metric of one attribution, or of each of a list: their mean, a bootstrap interval, and every value.

    `truth`, one per attribution, says what decides, for metrics that compare with it: phrases of the text, pairs of
    characters, one mark per score, word or pixel, or the file of a mask. `target` gives a function that was explained
    again, because an attribution cannot hold it. Every row of generated text counts as an example. Values that are not
    defined are left out of the mean.
    """
    _check_call(subject, seed=seed)
    record, options = registry.resolve("metric", metric, options)
    single = isinstance(attributions, Attribution)
    found = [attributions] if isinstance(attributions, Attribution) else list(attributions)
    if not found or not all(isinstance(a, Attribution) for a in found):
        raise TypeError("score takes an Attribution or a list of them, as explain returns")
    truths: list[Any] = [truth] if single else [None] * len(found) if truth is None else list(truth)  # type: ignore[arg-type]
    if len(truths) != len(found):
        raise ValueError(f"truth has one entry per attribution: {len(found)} were expected, {len(truths)} came")
    if target is not None and not callable(target):
        raise TypeError(f"an attribution knows what it explains; target= takes a function alone, not {shown(target)}")
    return scored(subject, found, record, options, truths=truths, function=target, seed=seed)


def evaluate(
    subject: Subject,
    data: Data,
    methods: Sequence[str],
    metrics: Sequence[str],
    *,
    target: TargetLike = None,
    limit: int | None = None,
    seed: int = 0,
    truncate: bool = False,
    resume: str | Path | None = None,
    progress: bool = False,
) -> Scoreboard:
    """Every method by every metric on a data set; labels that are given are the targets, else what is predicted.

    `target` is one for all examples, as `explain` takes it, in place of labels. Methods share passes; the seconds of a
    method are measured on a few examples, by each method alone. `resume` names a file to which the values of every few
    examples are added as they are made; a run that was stopped goes on from it.
    """
    _check_call(subject, limit=limit, seed=seed, truncate=truncate, resume=resume, progress=progress)
    _check_specs("methods", methods)
    _check_specs("metrics", metrics)
    return evaluated(
        subject,
        data,
        methods,
        metrics,
        target=target,
        limit=limit,
        seed=seed,
        truncate=truncate,
        resume=resume,
        progress=progress,
    )


def arbitrate(
    subject: Subject,
    data: RawInput | Data,
    candidates: Sequence[str] = ("grid",),
    metric: str = "rft",
    *,
    by: By = "instance",
    labels: Labels | None = None,
    held_out: str | Sequence[str] = "comprehensiveness",
    fit: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    truncate: bool = False,
    progress: bool = False,
) -> Arbitration:
    """Choose among candidates by a metric: for every input, for every input and label, or one for the whole set.

    `data` is one input, or a list, file or folder as `evaluate` takes it. Candidates are methods; "grid" stands for
    every way to read attention (heads x layers x read-outs), "grid(scores=True)" for the same of what the softmax is
    given. Of equal ones the first is chosen. `labels="all"` asks for every class, as a choice by label does; "target"
    for the label of an example, or what is predicted. A choice for the set is made on the first `fit` examples and
    judged on the others. `held_out` metrics judge the choice, because the one that chose cannot. A metric whose usual
    mask cannot hide such inputs, as "unknown" cannot hide patches, takes mask="auto".
    """
    _check_call(subject, fit=fit, limit=limit, seed=seed, truncate=truncate, progress=progress)
    if by not in ("instance", "label", "set"):
        raise ValueError(f"by is 'instance', 'label' or 'set', not {shown(by)}")
    if fit is not None and by != "set":
        raise ValueError("fit sets examples apart for a choice for the set; give by='set' with it")
    _check_specs("candidates", candidates)
    judges = [held_out] if isinstance(held_out, str) else held_out
    if judges:
        _check_specs("held_out", judges)
    return arbitrated(
        subject,
        data,
        candidates,
        metric,
        by=by,
        labels=labels or ("all" if by == "label" else "target"),
        held_out=judges,
        fit=fit,
        limit=limit,
        seed=seed,
        truncate=truncate,
        progress=progress,
    )


def concept(
    subject: Subject,
    concepts: Mapping[str, Data] | Sequence[str | Path] | str | Path,
    target: TargetLike,
    data: Data | None = None,
    *,
    random: Data | None = None,
    layers: str | int | Sequence[str | int] = "all",
    at: Reading = "deciding",
    probe: ProbeKind = "difference",
    relative: bool = False,
    counter_sets: int = 10,
    random_concepts: int | None = None,
    size: int = 50,
    test: Test = "rank",
    level: float = 0.05,
    seed: int = 0,
    batch_size: int | None = None,
    truncate: bool = False,
    progress: bool = False,
) -> Sensitivity:
    """TCAV: whether the target grows along concepts, at every layer, and more than along random ones.

    `concepts` names sets of examples: a dict of lists, folders or files (a text per line, or a table), or a list of
    folders, files and names that `zoo.concepts` draws, `size` examples each. `data` are examples of the class (those
    with its label, where there are labels), `random` ones that show nothing in particular; embedded models have both.
    A layer is the state that enters a block, by its number, or a module, by its name; it is read `at` the tokens that
    the output reads ("deciding", as [CLS]), as the "mean" of all tokens, or "flat". Each concept is told apart from
    `counter_sets` random sets, or from the other concepts (`relative`). p is the rank of the concept's mean derivative
    among `random_concepts`, with Holm's correction over concepts and layers; `test="t"` is the paper's, which finds
    too much.
    """
    given: dict[str, Any] = {"at": at, "probe": probe, "relative": relative, "counter_sets": counter_sets, "size": size}
    given |= {"random_concepts": random_concepts, "test": test, "level": level, "seed": seed}
    given |= {"batch_size": batch_size, "truncate": truncate, "progress": progress}
    _check_call(subject)
    return sensitivity(subject, concepts, target, data, random, layers, ConceptSettings(**given))


def maximize(
    subject: Subject,
    units: TargetLike | list[TargetLike],
    data: Data | None = None,
    *,
    steps: int = 256,
    rate: float = 0.1,
    views: int = 8,
    jitter: int | None = None,
    colour: float = 0.5,
    tv: float = 0.3,
    length: int = 8,
    seed: int = 0,
    progress: bool = False,
) -> Maximisation:
    """Inputs made to excite units as much as can be: classes, neurons ("mlp:3:17"), channels, directions.

    A picture starts as noise; each of `steps` sees `views` of it, shifted by up to `jitter` pixels and in `colour`,
    which the second half of the search gives up little by little, while total variation pulls with the share `tv`. A
    text of `length` tokens is searched among embeddings and then turned into the nearest words; the result says what
    that costs. A state is read as the mean of all tokens unless the unit says where. `data` are examples to show
    beside: those that excite a unit most.
    """
    _check_call(subject)
    search = Search(steps, rate, views, jitter, colour, tv, length, seed, progress)
    return maximised(subject, units, data, search)


def audit(
    subject: Subject,
    data: Data,
    experiments: Sequence[str] | None = None,
    *,
    layers: Layers | None = None,
    heads: Heads | None = None,
    rows: Rows | None = None,
    special: bool | None = None,
    reading: AttentionReading | None = None,
    limit: int | None = None,
    seed: int = 0,
    truncate: bool = False,
    resume: str | Path | None = None,
    progress: bool = False,
) -> Audit:
    """Is attention an explanation here? The experiments of the debate on a model and a data set: an Audit.

    `experiments` are names, or names with options as "adversary(epsilon=0.05, layers='all')"; `list_experiments` has
    them, and all that edit attention are run if none is named. `layers`, `heads`, `rows` and `special` say for all of
    them what attention is read and edited, where an experiment does not say so itself: the "last" layer, "each" in
    turn, "all" at once, or numbers; heads "together", one by one ("each") or numbers; the rows of the "deciding" tokens
    or "all"; whether special tokens take part; `reading` "rollout" where weights are only read. Decisions are those
    that the model makes; labels tell which are right.
    `resume` names a file to which every few examples are added; a run that was stopped goes on from it.
    """
    _check_call(subject, limit=limit, seed=seed, truncate=truncate, resume=resume, progress=progress)
    if experiments is not None:
        _check_specs("experiments", experiments)
    options = {"layers": layers, "heads": heads, "rows": rows, "special": special, "reading": reading}
    shared = {name: value for name, value in options.items() if value is not None}
    settings: dict[str, Any] = {"limit": limit, "seed": seed, "truncate": truncate}
    return audited(subject, data, experiments, shared, resume=resume, progress=progress, **settings)


def list_methods() -> list[Record]:
    """The record of every method: name, family, options, needs, promises, paper."""
    return registry.records("method")


def list_metrics() -> list[Record]:
    """The record of every metric."""
    return registry.records("metric")


def list_experiments() -> list[Record]:
    """The record of every experiment of an audit."""
    return registry.records("experiment")


def list_models() -> list[dict[str, Any]]:
    """The card of every model that ships with the package: name, family, task, accuracy, size, licence."""
    return [zoo.card(name) for name in zoo.names()]


def _encoded(subject: Subject, inputs: Any, target: Any, truncate: bool) -> tuple[list[Input], list[Any], bool]:
    """Inputs encoded, their targets, and whether one input was given instead of a list."""
    several = as_list(inputs)
    raws = [inputs] if several is None else several
    targets = as_list(target) if several is not None else None
    if targets is not None and len(targets) != len(raws):
        raise ValueError(f"a list of targets has one per input: {len(raws)} were expected, {len(targets)} came")
    items = encoded(subject, raws, truncate, several is None)
    return items, [target] * len(raws) if targets is None else targets, several is None


def _check_call(subject: Any, **settings: Any) -> None:
    """Raise unless the subject is one and the settings of the call are of their kinds and within their bounds."""
    if not isinstance(subject, Subject):
        kind = type(subject).__name__
        raise TypeError(f"the first argument is a Subject, not a {kind}; make one with whence.load or whence.wrap")
    for name, value in settings.items():
        checked(name, value, _SETTINGS[name])


EXAMPLES = {"metrics": "auac", "experiments": "permutation"}


def _check_specs(name: str, specs: Any) -> None:
    if isinstance(specs, str) or not isinstance(specs, Sequence) or not specs:
        example = specs if isinstance(specs, str) and specs else EXAMPLES.get(name, "gae")
        raise ValueError(f"{name} is a list of at least one, such as [{example!r}], not {shown(specs)}")
