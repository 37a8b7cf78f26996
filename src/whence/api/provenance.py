"""What every verb adds to its results: versions, the hash of the weights, seed, and what was asked."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from whence.core.provenance import versions
from whence.core.results import Comparison, Result
from whence.core.wording import shown
from whence.model.identity import known_weights
from whence.model.interventions import described
from whence.model.subject import Subject

P = ParamSpec("P")
R = TypeVar("R")
_GIVEN = ("subject", "inputs", "attributions", "progress", "resume")  # held by the result, or without effect on it


def stamped(verb: Callable[P, R]) -> Callable[P, R]:
    """A verb whose results say where they came from; its first argument is the subject."""
    signature = inspect.signature(verb)

    @functools.wraps(verb)
    def call(*given: P.args, **options: P.kwargs) -> R:
        found = verb(*given, **options)
        asked = signature.bind(*given, **options).arguments
        stamp(found, asked["subject"], verb.__name__, asked)
        return found

    return call


def stamp(found: Any, subject: Subject, verb: str, asked: Mapping[str, Any]) -> None:
    """Write the provenance of a result, or of every result of a list."""
    provenance: dict[str, Any] = {
        "versions": versions(),
        "model": subject.name,
        "weights": known_weights(subject),
        "seed": asked.get("seed", 0),
        "asked": {"verb": verb, **{name: _plain(value) for name, value in asked.items() if name not in _GIVEN}},
    }
    if under := described(subject):
        provenance["intervention"] = _plain(under)
    for result in found if isinstance(found, list) else [found]:
        for one in (result, *(result if isinstance(result, Comparison) else ())):
            if isinstance(one, Result):
                one.stamp(provenance)


def _plain(value: Any) -> Any:
    """An argument as JSON holds it; other values are described in words."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value if not isinstance(value, str) or len(value) <= 1_000 else shown(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping) and len(value) <= 100:
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)) and len(value) <= 100:
        return [_plain(one) for one in value]
    return getattr(value, "__qualname__", None) or type(value).__name__
