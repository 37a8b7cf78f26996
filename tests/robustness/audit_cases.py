"""Cases of audits: every experiment with odd options on every kind of model, and odd lists of names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

import whence
from option_strategies import options_of, record_of
from outcomes import Case, Wrong
from strategies import Strategy, numbers_or_wrong, texts, wrong_values
from whence.core.audits import Audit
from whence.core.name_audits import NameAudit
from whence.core.shortcut_audits import ShortcutAudit
from worlds import KINDS, plain_input, shared

SETTINGS = {
    "layers": (None, "last", "each", "all", 0, [0, 1], 99, []),
    "heads": (None, "together", "each", 0, [0], -1),
    "rows": (None, "deciding", "all"),
    "special": (None, False, True),
    "limit": (None, 1, 2),
    "seed": (0, 7),
}
LISTS: tuple[Any, ...] = (
    {"a": ["good", "bad"], "b": ["film", "actor"]},
    {"a": ["good"], "b": ["good", "bad"]},
    {"a": [], "b": []},
    {"a": ["good", "bad"]},
    {},
    "faker",
    "faker:,",
    "faker:..",
    "missing.csv",
)
SENTENCES = (["{name} is a film"], ["a good film", "{name} and {name}"], ["no place"], [], [{"text": "a {name} film"}])


def audit_cases() -> Strategy[Case]:
    """Audits of attention, of names, and of shortcuts."""
    return st.one_of(_experiment_cases(), _experiment_cases(), _name_cases(), _shortcut_cases())


@st.composite
def _experiment_cases(draw: st.DrawFn) -> Case:
    """One experiment on one or two ordinary inputs, few repetitions unless an odd option asks for more."""
    kind, record = draw(st.sampled_from(KINDS)), draw(record_of("experiment"))
    options = {name: value for name, value in draw(options_of(record)).items() if name not in SETTINGS}
    if isinstance(options.get("steps"), int):
        options["steps"] = min(options["steps"], 50)  # more steps test nothing further, and are slow
    few = {
        name: count for name, count in (("permutations", 5), ("restarts", 2), ("steps", 3)) if name in record.options
    }
    spec = f"{record.name}({', '.join(f'{name}={value!r}' for name, value in (few | options).items())})"
    data = [plain_input(kind, number) for number in range(draw(st.integers(1, 2)))]
    chosen = draw(st.lists(st.sampled_from(sorted(SETTINGS)), max_size=2, unique=True))
    settings = {name: draw(numbers_or_wrong(*SETTINGS[name])) for name in chosen}
    subject = shared(kind)
    text = f"audit(<{kind}>, {len(data)} inputs, [{spec!r}], {settings!r})"
    return Case("audits", text, lambda: whence.audit(subject, data, [spec], **settings), _check_audit, (subject,))


def _check_audit(found: Audit) -> None:
    """Numbers are finite or not defined, and distances within their bounds."""
    for finding in found:
        for quantity in finding.quantities:
            if np.isinf(quantity.values).any():
                raise Wrong(f"{quantity.name} is infinite")
            if "divergence" in quantity.name and (quantity.values > math.log(2) + 1e-6).any():
                raise Wrong(f"{quantity.name} is above ln 2: {quantity.values}")


@st.composite
def _name_cases(draw: st.DrawFn) -> Case:
    """Odd names in odd sentences."""
    kind = draw(st.sampled_from(KINDS))
    odd = st.dictionaries(texts(), st.lists(texts(), max_size=3), max_size=3)
    names = draw(st.one_of(st.sampled_from(LISTS), st.sampled_from(LISTS), odd, wrong_values()))
    data = draw(st.one_of(st.sampled_from(SENTENCES), st.lists(texts().map("{{name}} {}".format), max_size=2)))
    settings: dict[str, Any] = {"method": "gradient_x_input", "draws": 19, "per_group": draw(numbers_or_wrong(2, 3))}
    find = draw(st.one_of(st.none(), st.lists(texts(), max_size=3)))
    subject = shared(kind)

    def call() -> Any:
        return whence.audit_names(subject, data, names, find=find, **settings)

    text = f"audit_names(<{kind}>, {data!r}, {names!r}, find={find!r}, {settings!r})"
    return Case("audits", text, call, _check_names, (subject,))


@st.composite
def _shortcut_cases(draw: st.DrawFn) -> Case:
    """Odd texts and settings of an audit of shortcuts."""
    kind = draw(st.sampled_from(KINDS))
    odd = st.lists(texts(), min_size=0, max_size=4)
    data: list[Any] = draw(odd) + [plain_input(kind)] * draw(st.sampled_from([0, 20]))
    settings: dict[str, Any] = {"method": "gradient_x_input", "contexts": 5, "truncate": True}
    settings["least"] = draw(numbers_or_wrong(1, 3))
    subject = shared(kind)
    text = f"audit_shortcuts(<{kind}>, {data!r}, {settings!r})"
    return Case("audits", text, lambda: whence.audit_shortcuts(subject, data, **settings), _check_shortcuts, (subject,))


def _check_shortcuts(found: ShortcutAudit) -> None:
    """Every p lies within 0 and 1, and so does every share."""
    for word in found.words:
        if not (0 <= word.p <= word.corrected <= 1 and 0 <= word.strongest <= 1 and 0 <= word.predicted <= 1):
            raise Wrong(f"{word.word!r}: p {word.p}, {word.corrected}, shares {word.strongest}, {word.predicted}")
    str(found)


def _check_names(found: NameAudit) -> None:
    """Every number is finite, and every p lies within 0 and 1."""
    if not (np.isfinite(found.outputs).all() and np.isfinite(found.relevance).all()):
        raise Wrong("outputs and relevance must be finite")
    if not all(0 < test.p <= test.corrected <= 1 for test in found.tests):
        raise Wrong(f"p: {[(test.p, test.corrected) for test in found.tests]}")
    str(found)
