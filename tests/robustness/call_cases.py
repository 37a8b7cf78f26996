"""Cases of calls in memory: inputs, targets, options, metrics, attention maps, relevance balance, misuse of `wrap`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

import whence
from families import family
from option_strategies import FUNCTIONS, options_of, record_of, written
from outcomes import Case, Injected, Wrong
from rightness import check_attribution, check_list, check_same
from strategies import Strategy, numbers_or_wrong, raws, texts, wrong_values
from target_strategies import FUNCTIONS as TARGET_FUNCTIONS
from target_strategies import targets
from whence.core.results import Attribution
from whence.core.scoreboards import Score
from worlds import KINDS, explained, plain_input, shared

SETTINGS = {"seed": (0, 0, 1, 2**40), "batch_size": (None, 1, 2, 10**12), "truncate": (False, True)}
QUICK = ("attention_x_gradient", "gradient_x_input", "leave_one_out", "gae", "lrp", "random", None)


@st.composite
def settings_of(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of `explain` itself, most often none."""
    chosen = draw(st.lists(st.sampled_from(sorted(SETTINGS)), max_size=2, unique=True))
    return {name: draw(numbers_or_wrong(*SETTINGS[name])) for name in chosen}


def _check_explained(kind: str, raw: Any, target: Any, again: Any) -> Any:
    """A check of what `explain` returned for one input or a list; `again` repeats the call, where it is wanted."""

    def check(found: Any) -> None:
        several = isinstance(raw, list)
        if several != isinstance(found, list):
            raise Wrong(f"a {type(raw).__name__} came to a {type(found).__name__}")
        raws_, found_ = (raw, found) if several else ([raw], [found])
        wanted = target if several and isinstance(target, list) else [target] * len(raws_)
        check_list(shared(kind), found_, raws_, wanted)
        if again is not None:
            repeated = again()
            for a, b in zip(found_, repeated if several else [repeated], strict=True):
                check_same(a, b, "a second run")

    return check


@st.composite
def explain_cases(draw: st.DrawFn, area: str, raw: Any, method: Any, target: Any, options: Any) -> Case:
    """A call of `explain` with values from each of the strategies (functions of the kind of model)."""
    kind = draw(st.sampled_from(KINDS))
    given, aimed, name = draw(raw(kind)), draw(target(kind)), draw(method)
    chosen = draw(options(name))
    name = name if name is None or isinstance(name, str) else name.name
    subject = shared(kind)

    def call() -> Any:
        return whence.explain(subject, given, name, aimed, **chosen)

    shown = getattr(aimed, "__name__", None) or repr(aimed)
    text = f"explain(<{kind}>, {given!r}, {name!r}, {shown}{written(chosen)})"
    again = call if draw(st.integers(0, 4)) == 0 else None
    return Case(area, text, call, _check_explained(kind, given, aimed, again), (subject,))


def _one_or_several(kind: str) -> Strategy[Any]:
    one = raws(kind, family(kind).task)
    return st.one_of(one, one, one, st.lists(one, max_size=3))


def _plain(kind: str) -> Strategy[Any]:
    one = st.integers(0, 3).map(lambda number: plain_input(kind, number))
    return st.one_of(one, one, st.lists(one, min_size=2, max_size=3))


def _targets(kind: str) -> Strategy[Any]:
    return st.one_of(targets(), targets(), targets(), st.lists(targets(), max_size=3))


def input_cases() -> Strategy[Case]:
    """Odd inputs, alone and in lists, with odd settings."""
    none = st.none()
    return explain_cases(
        "inputs", _one_or_several, st.sampled_from(QUICK), lambda kind: none, lambda name: settings_of()
    )


def target_cases() -> Strategy[Case]:
    """Odd targets of ordinary inputs."""
    empty = st.just({})
    return explain_cases("targets", _plain, st.sampled_from(QUICK), _targets, lambda name: empty)


def option_cases() -> Strategy[Case]:
    """Every method with odd options."""
    aimed = st.one_of(st.none(), st.none(), st.sampled_from(TARGET_FUNCTIONS[:2]), st.sampled_from((0, "margin")))
    return explain_cases("options", _plain, record_of("method"), lambda kind: aimed, options_of)


# --- Metrics ----------------------------------------------------------------------------------------------------------

TRUTHS = (None, "film", [0, 1, 0], [[0, 3]], [], "", {}, [True] * 500, [[5, 2]], [-1], np.ones((4, 4)), 3, "nope.png")


@st.composite
def metric_cases(draw: st.DrawFn) -> Case:
    """Every metric with odd options and truths, of an ordinary attribution."""
    kind, record = draw(st.sampled_from(KINDS)), draw(record_of("metric"))
    options = draw(options_of(record))
    a = explained(kind, draw(st.sampled_from(("random", "gradient_x_input", "leave_one_out"))))
    truth = draw(st.one_of(st.none(), st.none(), st.sampled_from(TRUTHS), wrong_values()))
    seed = draw(numbers_or_wrong(0)) if draw(st.integers(0, 9)) == 0 else 0
    subject = shared(kind)

    def call() -> Any:
        return whence.score(subject, a, record.name, truth=truth, seed=seed, **options)

    def check(score: Score) -> None:
        counted = np.asarray(score.values)
        if np.isinf(counted).any() or (np.isfinite(counted).any() and not np.isfinite(score.value)):
            raise Wrong(f"the value is {score.value}, of {counted}")

    text = f"score(<{kind}>, {a.method}, {record.name!r}, truth={truth!r}, seed={seed!r}{written(options)})"
    return Case("metrics", text, call, check, (subject,))


# --- Looking inside ---------------------------------------------------------------------------------------------------

VIEWS = {
    "layer": (None, 0, 1, -1, 2, 99, -99, True, 1.5, "0", [0]),
    "head": (None, 0, 3, -1, 4, 99, True, 1.5, "0", [0]),
    "query": (None, 0, -1, 99, "[CLS]", "film", "all", "", "nope", 1.5, True),
    "streams": (None, "text:text", "target:source", "image:image", ":", "a:b:c", "", 3),
    "all_heads": (False, True, 1),
    "all_layers": (False, True, None),
}


@st.composite
def looking_cases(draw: st.DrawFn) -> Case:
    """Attention maps of odd layers and heads; the balance of odd methods, tokens and targets; odd comparisons."""
    kind = draw(st.sampled_from(KINDS))
    subject, raw = shared(kind), plain_input(kind, draw(st.integers(0, 3)))
    what = draw(st.sampled_from(("maps", "balance", "compare")))
    if what == "maps":
        chosen = draw(st.lists(st.sampled_from(sorted(VIEWS)), max_size=3, unique=True))
        view = {name: draw(st.sampled_from(VIEWS[name])) for name in chosen}
        text = f"attention_maps(<{kind}>, {raw!r}).view({view})"
        return Case("looking", text, lambda: str(whence.attention_maps(subject, raw).view(**view)), subjects=(subject,))
    aimed = draw(st.one_of(st.none(), targets()))
    if what == "balance":
        method = draw(st.sampled_from(("lrp", "attnlrp", "gradient_x_input", "gae", "lrp(rules='ah')", "lrp(x=1)", "")))
        token = draw(numbers_or_wrong(0, 1, -1))
        text = f"conservation(<{kind}>, {raw!r}, {method!r}, {aimed!r}, token={token!r})"

        def balance() -> Any:
            return str(whence.conservation(subject, raw, method, aimed, token=token))

        return Case("looking", text, balance, subjects=(subject,))
    methods = draw(st.one_of(st.lists(st.one_of(st.sampled_from(QUICK), texts()), max_size=3), wrong_values()))

    def check(found: Any) -> None:
        for a in found:
            check_attribution(subject, a, aimed)

    text = f"compare(<{kind}>, {raw!r}, {methods!r}, {aimed!r})"
    return Case("looking", text, lambda: whence.compare(subject, raw, methods, aimed), check, (subject,))


# --- Misuse of wrap ---------------------------------------------------------------------------------------------------


def _changed(encoded: dict[str, Any], how: str) -> Any:
    """What a user's encoder might return by mistake."""
    tensors, features = dict(encoded["tensors"]), dict(encoded["features"])
    ids = np.asarray(tensors["input_ids"])
    ways: dict[str, Any] = {
        "right": encoded,
        "nothing": None,
        "a list": [encoded],
        "no tensors": {**encoded, "tensors": {}},
        "no features": {key: value for key, value in encoded.items() if key != "features"},
        "too few features": {**encoded, "features": {"text": features["text"][:-1]}},
        "features in no dict": {**encoded, "features": features["text"]},
        "features of two streams": {**encoded, "features": {**features, "image": features["text"]}},
        "numbers as features": {**encoded, "features": {"text": list(range(len(ids)))}},
        "floats as ids": {**encoded, "tensors": {**tensors, "input_ids": ids.astype(float)}},
        "a batch axis": {**encoded, "tensors": {name: np.asarray(x)[None] for name, x in tensors.items()}},
        "empty": {**encoded, "tensors": {n: np.asarray(x)[:0] for n, x in tensors.items()}, "features": {"text": []}},
        "ids out of range": {**encoded, "tensors": {**tensors, "input_ids": ids + 10**6}},
        "negative ids": {**encoded, "tensors": {**tensors, "input_ids": ids - 10**6}},
        "lists as tensors": {**encoded, "tensors": {name: np.asarray(x).tolist() for name, x in tensors.items()}},
        "texts as tensors": {**encoded, "tensors": {**tensors, "input_ids": "a film"}},
        "another name": {**encoded, "tensors": {"ids": ids, "attention_mask": tensors["attention_mask"]}},
        "a short mask": {**encoded, "tensors": {**tensors, "attention_mask": np.ones(2, np.int64)}},
        "special of another length": {**encoded, "special": {"text": [True]}},
        "unknown keys": {**encoded, "featurs": 3},
        "an object": object(),
    }
    if how == "raises":
        raise Injected("the caller's own encoder failed")
    return ways[how]


CHANGES = (
    *("right", "nothing", "a list", "no tensors", "no features", "too few features", "features in no dict"),
    *("features of two streams", "numbers as features", "floats as ids", "a batch axis", "empty", "ids out of range"),
    *(
        "negative ids",
        "lists as tensors",
        "texts as tensors",
        "another name",
        "a short mask",
        "special of another length",
    ),
    *("unknown keys", "an object", "raises"),
)
OUTPUTS = {
    "None": None,
    "identity": lambda outputs: outputs,
    "detached": lambda outputs: outputs.detach(),
    "integers": lambda outputs: outputs.argmax(-1, keepdim=True),
    "no classes": lambda outputs: outputs[:, :0],
    "one axis": lambda outputs: outputs[:, 0],
    "three axes": lambda outputs: outputs[:, None],
    "NaN": lambda outputs: outputs * float("nan"),
    "a number": lambda outputs: 1.0,
    "a dict": lambda outputs: {"logits": outputs},
    "raises": FUNCTIONS[-1],
    "not callable": 3,
    "another batch": lambda outputs: torch.cat([outputs, outputs]),
}
NAMES = (
    None,
    ["one"],
    [],
    ["a", "a", "a"],
    [1, 2, 3],
    "abc",
    3,
    ["a", "b", "c", "d"],
    [None] * 3,
    ["", " ", "x" * 5000],
)


@st.composite
def wrap_cases(draw: st.DrawFn) -> Case:
    """A plain module with an encoder, output function, labels or embedding that do not fit it."""
    made = family("torch-sdpa")
    wrong = draw(st.sampled_from(("encode", "output", "labels", "all")))  # most often only one part is wrong
    how = draw(st.sampled_from(CHANGES)) if wrong in ("encode", "all") else "right"
    output = draw(st.sampled_from(sorted(OUTPUTS))) if wrong in ("output", "all") else "None"
    labels = draw(st.sampled_from(NAMES)) if wrong in ("labels", "all") else made.kwargs["labels"]
    embedding, task = st.sampled_from(("word", "head", "nope", 3)), st.sampled_from(("nope", "module"))
    more = draw(st.one_of(st.just({}), st.fixed_dictionaries({}, optional={"embedding": embedding, "task": task})))
    method = draw(st.sampled_from(QUICK))

    def call() -> tuple[Any, Attribution]:
        subject = whence.wrap(
            made.model,
            encode=lambda raw: _changed(made.kwargs["encode"](raw), how),
            output=OUTPUTS[output],
            labels=labels,
            **more,
        )
        return subject, whence.explain(subject, made.inputs[0], method)

    text = f"wrap(<torch-sdpa>, encode={how!r}, output={output!r}, labels={labels!r}{written(more)}), {method!r}"
    return Case("wrap", text, call, lambda found: check_attribution(*found), (shared("torch-sdpa"),))
