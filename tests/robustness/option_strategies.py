"""Options of every registered method and metric, read from the registry: a new one is fuzzed on the day it is added."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
import torch
from hypothesis import strategies as st

from outcomes import Injected
from strategies import VALUES, Strategy, texts, wrong_values
from whence.core import registry
from whence.core.registry import Option, Record
from whence.core.specs import Between


def _raises(*arguments: Any) -> Any:
    raise Injected("the caller's own function failed")


def _first(*arguments: Any) -> Any:
    return arguments[0]


def _nothing(*arguments: Any) -> Any:
    return None


def _nan(*arguments: Any) -> Any:
    return arguments[0] * float("nan")


def _scalar(*arguments: Any) -> Any:
    return torch.zeros(())


def _transposed(*arguments: Any) -> Any:
    return arguments[0].mT


FUNCTIONS = (_first, _nothing, _nan, _scalar, _transposed, _raises)
ARRAYS = (*(np.zeros(shape) for shape in ((), (1,), (32,), (3, 32), (0,))), np.full(32, np.nan))


def fitting(annotation: Any) -> Strategy[Any]:
    """Values that an annotation allows; of numbers those that a user tries, in and out of range."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        bounds = [edge for one in arguments[1:] if isinstance(one, Between) for edge in (one.least, one.most + 1)]
        return st.one_of(fitting(arguments[0]), st.sampled_from([1, *bounds]))
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(fitting(part) for part in arguments))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if annotation in (None, type(None)):
        return st.none()
    if annotation is bool:
        return st.booleans()
    if annotation is int:
        return st.integers(-3, 12)
    if annotation is float:
        return st.one_of(st.sampled_from((0.0, 0.25, 0.5, 1.0, 2.0, -0.5)), st.floats(0, 1))
    if annotation is str:
        return texts()
    if origin is list:
        return st.lists(fitting(arguments[0]), max_size=3)
    if annotation is np.ndarray:
        return st.sampled_from(ARRAYS)
    if origin is typing.get_origin(Callable[..., Any]):
        return st.sampled_from(FUNCTIONS)
    return wrong_values()  # a type that is not known here: anything


def values_of(option: Option) -> Strategy[Any]:
    """Values of one option: the default, fitting ones, wrong and extreme ones."""
    return st.one_of(st.just(option.default), fitting(option.annotation), fitting(option.annotation), wrong_values())


@st.composite
def options_of(draw: st.DrawFn, record: Record) -> dict[str, Any]:
    """Some options of a method or metric with odd values; seldom one that it does not have."""
    chosen = draw(st.lists(st.sampled_from(sorted(record.options)), max_size=3, unique=True)) if record.options else []
    options = {name: draw(values_of(record.options[name])) for name in chosen}
    if draw(st.integers(0, 24)) == 0:
        options[draw(st.sampled_from(("nope", "layers", "seeds")))] = draw(st.sampled_from(VALUES))
    return options


def record_of(kind: str) -> Strategy[Record]:
    """Any method or metric that is registered when the case is drawn."""
    return st.deferred(lambda: st.sampled_from(registry.records(kind)))


def written(options: dict[str, Any]) -> str:
    """Options as a caller writes them."""
    return "".join(f", {name}={_shown(value)}" for name, value in options.items())


def _shown(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)
