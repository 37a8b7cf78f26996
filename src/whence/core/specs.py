"""Specs such as `lrp(rules='ah')`: how they are read and written, and which values an option takes."""

from __future__ import annotations

import ast
import inspect
import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from whence.core.wording import shown

MAX_LETTERS = 10_000  # characters of a spec
MAX_LISTED = 1_000  # entries of a list
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)  # the last two: brackets in brackets without end


@dataclass(frozen=True)
class Between:
    """The bounds of a number, as `Annotated[int, Between(1, 1000)]`; both bounds are allowed values unless left out."""

    least: float
    most: float
    without_least: bool = False
    without_most: bool = False

    def __contains__(self, value: float) -> bool:
        above = value > self.least if self.without_least else value >= self.least
        return above and (value < self.most if self.without_most else value <= self.most)

    def __str__(self) -> str:
        """The bounds in words, behind "a number": `from 1 to 9`, `above 0 and at most 1`."""
        least, most = (f"{bound:,}" if isinstance(bound, int) else f"{bound:g}" for bound in (self.least, self.most))
        if not self.without_least and not self.without_most:
            return f"from {least} to {most}"
        lower, upper = "above" if self.without_least else "at least", "below" if self.without_most else "at most"
        return f"{lower} {least} and {upper} {most}"


# The number of a layer, head, block or class, negative from the end; only the model knows how many there are.
Number = Annotated[int, Between(-10_000, 10_000)]
Share = Annotated[float, Between(0, 1)]


def expression(text: str) -> ast.expr | None:
    """A text as one Python expression, which is never run; None where it is none, or too long or too deep to read."""
    try:
        return ast.parse(text, mode="eval").body if len(text) <= MAX_LETTERS else None
    except _UNREADABLE:
        return None


def parse(spec: str) -> tuple[str, dict[str, Any]]:
    """`"lrp(rules='ah')"` to `("lrp", {"rules": "ah"})`; values are Python literals."""
    if not isinstance(spec, str):
        raise TypeError(f"a method or metric is named by a string such as \"lrp(rules='ah')\", not {spec!r}")
    try:
        tree = expression(spec.strip())
        if isinstance(tree, ast.Name):
            return tree.id, {}
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and not tree.args:
            names = [keyword.arg for keyword in tree.keywords]
            if None not in names and len(set(names)) == len(names):
                return tree.func.id, {str(k.arg): ast.literal_eval(k.value) for k in tree.keywords}
    except _UNREADABLE:
        pass
    raise ValueError(f"cannot read the spec {shown(spec)}; write a name, or name(option=value), each option once")


def same(a: Any, b: Any) -> bool:
    """Whether two values of an option are equal and of one type: 1, 1.0 and True are different values."""
    try:
        return type(a) is type(b) and bool(a == b)
    except (ValueError, RuntimeError):  # arrays have no single truth value
        return a is b


def written(value: Any) -> str:
    """A value of an option as a spec shows it: a literal, else the name of the function or type."""
    literal = isinstance(value, (str, int, float, bool, list, tuple, dict, type(None)))
    return repr(value) if literal else getattr(value, "__name__", f"<{type(value).__name__}>")


def checked(name: str, value: Any, annotation: Any) -> Any:
    """The value of an argument with this annotation, a tuple that stands for a list as that list; else an error."""
    if not fits(value, annotation):
        raise ValueError(f"{name} takes {describe(annotation)}, not {shown(value)}")
    return as_list(value, annotation)


def check_fields(record: Any) -> None:
    """An error for a dataclass of settings whose values do not fit the annotations of its fields."""
    for name, annotation in typing.get_type_hints(type(record), include_extras=True).items():
        checked(name, getattr(record, name), annotation)


def fits(value: Any, annotation: Any) -> bool:
    """Whether an argument with this annotation takes the value; an annotation that is not understood takes any.

    No number is infinite or NaN, and no list is empty.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        bounds = [one for one in arguments[1:] if isinstance(one, Between)]
        return fits(value, arguments[0]) and all(value in one for one in bounds)
    if annotation is Any or annotation is inspect.Parameter.empty:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, part) for part in arguments)
    if origin is typing.Literal:
        return any(type(value) is type(part) and value == part for part in arguments)
    if annotation is None or annotation is type(None):
        return value is None
    if annotation is bool:
        return isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation is float:
        return fits(value, int) or (isinstance(value, float) and math.isfinite(value))
    if origin is not None and isinstance(origin, type) and issubclass(origin, (list, tuple)):
        of_items = [argument for argument in arguments if argument is not Ellipsis]
        listed = isinstance(value, (list, tuple)) and 0 < len(value) <= MAX_LISTED
        return listed and all(any(fits(item, one) for one in of_items) for item in value)
    if origin is not None:
        return callable(value) if origin is typing.get_origin(Callable[..., Any]) else isinstance(value, origin)
    return isinstance(value, annotation) if isinstance(annotation, type) else True


def as_list(value: Any, annotation: Any) -> Any:
    """A tuple that stands for a list, as layer=(0, 1), as that list; other values as they are."""
    parts = parts_of(annotation)
    kinds = [typing.get_origin(part) for part in parts]
    return list(value) if isinstance(value, tuple) and list in kinds and tuple not in kinds else value


def parts_of(annotation: Any) -> tuple[Any, ...]:
    """The kinds of values that an annotation names: those of a union, else itself alone."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)


def describe(annotation: Any) -> str:
    """What an argument with this annotation takes, in words: `a whole number from 1 to 9 or None`."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return " ".join([describe(arguments[0]), *(str(one) for one in arguments[1:] if isinstance(one, Between))])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(describe(part) for part in arguments)
    if origin is typing.Literal:
        return " or ".join(repr(part) for part in arguments)
    if annotation in (None, type(None)):
        return "None"
    names: dict[Any, str] = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", Any: "any"}
    if annotation in names:
        return names[annotation]
    if isinstance(origin, type) and issubclass(origin, (list, tuple)):
        return f"a list of 1 to {MAX_LISTED:,}, each {describe(arguments[0])}"
    if origin is not None:
        return "a function" if origin is typing.get_origin(Callable[..., Any]) else origin.__name__
    return getattr(annotation, "__name__", str(annotation))
