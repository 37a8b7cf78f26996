"""Targets: labels and near labels, indices, kinds, states, Target objects put together wrongly, functions that fail."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from families import LABELS, SHAPES
from outcomes import Injected
from strategies import Strategy, texts, wrong_values
from whence.core.inputs import POSITIONS, Target
from whence.model.places import ANSWERS
from whence.model.target_specs import KINDS, STATE_KINDS

NAMES = (*LABELS, *SHAPES, " film", "the", "nope", "Positive", "positiv", "POSITIVE ", "similarity")
INDICES = (0, 1, 2, 3, -1, 10**6, 2**31, 2**63, -(2**70), True, 1.5, np.int64(1), np.float64(1), np.array(1))
SITES = (
    "0",
    "1",
    "-1",
    "99",
    "mlp:0",
    "mlp:1",
    "mlp:99",
    "mlp:-1",
    "heads:0",
    "heads:99",
    "heads:",
    "embeddings",
    "word",
    "pixels",
    "nope",
    "",
    "module:",
)
ARGUMENTS = (
    *("0", "1", "99", "-1", "1.5", "True", "None", "'positive'", "'nope'", "''", "[0]", "x", "**{}"),
    *("'B-PER'", "'O'", "'film'", "'old man'", "'the'", "'was'"),
    *("at='mean'", "at=3", "at=-1", "at=10**9", "at='film'", "at='the'", "at=(1, 2)", "of='start'", "of='nope'"),
)


def first_logit(logits: Any, batch: Any) -> Any:
    """A function target that is right."""
    return logits[:, 0]


def squared(logits: Any, batch: Any) -> Any:
    """Another function that is right."""
    return logits.square().sum(-1)


def not_a_number(logits: Any, batch: Any) -> Any:
    return logits[:, 0] * float("nan")


def infinite(logits: Any, batch: Any) -> Any:
    return logits[:, 0] / 0


def complex_numbers(logits: Any, batch: Any) -> Any:
    return logits[:, 0] * 1j


def whole_matrix(logits: Any, batch: Any) -> Any:
    return logits


def one_number(logits: Any, batch: Any) -> Any:
    return logits.sum()


def a_float(logits: Any, batch: Any) -> Any:
    return float(logits.sum())


def nothing(logits: Any, batch: Any) -> Any:
    return None


def whole_numbers(logits: Any, batch: Any) -> Any:
    return logits.argmax(-1)


def detached(logits: Any, batch: Any) -> Any:
    return logits[:, 0].detach()


def a_constant(logits: Any, batch: Any) -> Any:
    return torch.ones(len(logits))


def in_place(logits: Any, batch: Any) -> Any:
    return logits.mul_(2)[:, 0]


def raising(logits: Any, batch: Any) -> Any:
    raise Injected("the caller's own target failed")


def without_arguments() -> Any:
    return None


FUNCTIONS = (
    first_logit,
    squared,
    not_a_number,
    infinite,
    complex_numbers,
    whole_matrix,
    one_number,
    a_float,
    nothing,
    whole_numbers,
    detached,
    a_constant,
    in_place,
    raising,
    without_arguments,
)


def _spec(kind: str, arguments: list[str]) -> str:
    return f"{kind}({', '.join(arguments)})"


def specs() -> Strategy[str]:
    """Written targets, most of them malformed."""
    kinds = st.sampled_from((*KINDS, *STATE_KINDS, *ANSWERS, "nokind", "logits", "print"))
    calls = st.builds(_spec, kinds, st.lists(st.sampled_from([*ARGUMENTS, *map(repr, SITES)]), max_size=3))
    deep = st.sampled_from(("logit(" * 500, "[" * 5000, "contrast(" + "0," * 3000 + ")", "logit(" + "-" * 3000 + "1)"))
    short = st.sampled_from(("mlp:0:0", "mlp:1:5", "mlp:99:0", "mlp:0:99999", "mlp:-1:3", "mlp:0:-1", "mlp::", "mlp:0"))
    heads = st.sampled_from(("head:0:0", "head:-1:1", "head:99:0", "head:0:99", "head:0", "head(0, 1)", "head('0', 1)"))
    return st.one_of(kinds, calls, calls, deep, short, heads, calls.map(lambda spec: spec[:-1]))


def made_targets() -> Strategy[Target]:
    """Target objects with fields that do not go together; those that cannot be made are left out."""
    positions = st.one_of(st.none(), st.sampled_from((*POSITIONS, "first", 0, -1, 99, 1.5)))
    sites, indices = st.sampled_from(SITES), st.one_of(st.none(), st.sampled_from(INDICES))
    plain = st.fixed_dictionaries(
        {"kind": st.one_of(st.sampled_from((*KINDS, *STATE_KINDS, "function", "nope", "", 3)))},
        optional={
            "index": indices,
            "against": indices,
            "name": texts(),
            "site": sites,
            "position": positions,
            "of": st.sampled_from(("", "output", *ANSWERS, "nope")),
            "vector": st.sampled_from((np.ones(32), np.ones(3), np.full(32, np.nan), [1.0] * 32)),
        },
    )
    return st.one_of(
        plain.map(lambda fields: Target(**fields)),
        st.builds(
            Target.neuron, sites, st.sampled_from((0, 5, -1, 99999)), st.sampled_from((None, *POSITIONS, 0, -1, 99))
        ),
        st.builds(Target.channel, sites, st.sampled_from((0, 5, 99999))),
        st.builds(Target.direction, sites, st.sampled_from((np.ones(32), np.ones(64), np.ones(3)))),
    )


def targets() -> Strategy[Any]:
    """Anything that a caller may give as a target."""
    functions, one = st.sampled_from(FUNCTIONS), st.sampled_from([*NAMES, *INDICES])
    return st.one_of(one, specs(), specs(), made_targets(), functions, functions, texts(), wrong_values())
