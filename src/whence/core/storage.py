"""Base class of results that can be compared, saved and loaded exactly. Uses numpy only: no model, no torch."""

from __future__ import annotations

import base64
import math
import types
import typing
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

import numpy as np

VERSION = 1  # of the file format; a file of another version is refused
READABLE = 4096  # arrays up to this many entries are saved as lists, larger ones as base64

R = TypeVar("R", bound="Storable")
_classes: dict[str, type[Storable]] = {}  # classes by name, to read results back


class Storable:
    """A dataclass with exact equality that turns into JSON values and back."""

    def __init_subclass__(cls) -> None:
        _classes[cls.__name__] = cls

    def __post_init__(self) -> None:
        for item in fields(self):  # type: ignore[arg-type]
            if "tuple[" in str(item.type) and isinstance(getattr(self, item.name), list):
                self._set(item.name, tuple(getattr(self, item.name)))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self is other or all(
            _equal(getattr(self, item.name), getattr(other, item.name))
            for item in fields(self)  # type: ignore[arg-type]
        )

    def _set(self, name: str, value: Any) -> None:
        """Set a field of a frozen dataclass."""
        object.__setattr__(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """The fields as values that JSON can hold."""
        encoded: dict[str, Any] = {"$record": type(self).__name__}
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if "tuple[" in str(item.type) and isinstance(value, tuple):
                value = list(value)  # becomes a tuple again in __post_init__
            encoded[item.name] = _encode(value, item.name)
        return encoded

    @classmethod
    def from_dict(cls: type[R], data: dict[str, Any]) -> R:
        """The record that `to_dict` wrote."""
        record = _decode(data)
        if not isinstance(record, cls):
            raise ValueError(f"expected a dict written by {cls.__name__}.to_dict, got {type(record).__name__}")
        return record


def floats(name: str, value: Any) -> np.ndarray:
    """The value as an array of floats; `name` is for the error."""
    array = np.array(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must hold numbers, got {array.dtype} from {type(value).__name__}")
    return array if array.dtype.kind == "f" else array.astype(float)


def read_only(array: np.ndarray) -> np.ndarray:
    """The same array, which can no longer be written to."""
    array.setflags(write=False)
    return array


def _equal(a: Any, b: Any) -> bool:
    """Exact equality; arrays by dtype, shape and entries; NaN equals NaN."""
    numeric = (np.ndarray, np.generic, float)
    if isinstance(a, numeric) and isinstance(b, numeric):
        a, b = np.asarray(a), np.asarray(b)
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    if isinstance(a, str) and isinstance(b, str):
        return a == b
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(a == b)


def _encode(value: Any, where: str) -> Any:
    """The value as JSON; a value that JSON cannot hold becomes a dict with a key that starts with $."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": str(float(value))}
    if isinstance(value, str):
        return value if _is_unicode(value) else {"$text": _to_base64(value.encode("utf-8", "surrogatepass"))}
    if isinstance(value, (np.ndarray, np.generic)):
        return _encode_array(
            np.asarray(value), where, shape=list(value.shape) if isinstance(value, np.ndarray) else None
        )
    if isinstance(value, list):
        return [_encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": _encode(list(value), where)}
    if isinstance(value, dict):
        if all(isinstance(key, str) and key[:1] != "$" and _is_unicode(key) for key in value):
            return {key: _encode(item, f"{where}[{key!r}]") for key, item in value.items()}
        return {"$dict": [[_encode(k, where), _encode(v, f"{where}[{k!r}]")] for k, v in value.items()]}
    if isinstance(value, Storable):
        return value.to_dict()
    raise TypeError(f"{where} holds a {type(value).__name__}, which cannot be saved; use arrays and plain values")


def _encode_array(array: np.ndarray, where: str, shape: list[int] | None) -> dict[str, Any]:
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind in "OV":
        raise TypeError(f"{where} is an array of {array.dtype}, which cannot be saved; use numbers or strings")
    encoded: dict[str, Any] = {"$array": array.dtype.str, "shape": shape}
    if array.size <= READABLE and (kind in "biu" or (kind == "f" and size <= 8 and np.isfinite(array).all())):
        return {**encoded, "list": array.ravel().tolist()}
    return {**encoded, "base64": _to_base64(array.tobytes())}


def _decode(value: Any) -> Any:
    """The inverse of `_encode`."""
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        return float(value["$float"])
    if "$text" in value:
        return base64.b64decode(value["$text"]).decode("utf-8", "surrogatepass")
    if "$tuple" in value:
        return tuple(_decode(value["$tuple"]))
    if "$dict" in value:
        return {_decode(key): _decode(item) for key, item in value["$dict"]}
    if "$array" in value:
        return _decode_array(value)
    if "$record" in value:
        cls: Any = _classes.get(value["$record"])
        if cls is None:
            raise ValueError(f"no type {value['$record']!r} is known here")
        names = {item.name for item in fields(cls)} & value.keys()
        record = cls(**{name: _decode(value[name]) for name in names})
        for name, annotation in _types(cls).items():
            if not _suits(getattr(record, name), annotation):
                raise ValueError(f"{cls.__name__}.{name} is no {annotation}")
        return record
    return {key: _decode(item) for key, item in value.items()}


@cache
def _types(cls: Any) -> dict[str, Any]:
    """The annotations of a record's fields."""
    hints = typing.get_type_hints(cls)
    return {item.name: hints[item.name] for item in fields(cls)}


def _suits(value: Any, annotation: Any) -> bool:
    """Whether a value that was read has the type of its field; a float may have been written as a whole number."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(_suits(value, part) for part in arguments)
    if origin is tuple and arguments[-1:] == (Ellipsis,):
        return isinstance(value, tuple) and all(_suits(item, arguments[0]) for item in value)
    if origin is tuple:
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(_suits, value, arguments))
    if origin is dict:
        pairs = (
            [part for pair in value.items() for part in zip(pair, arguments, strict=True)]
            if type(value) is dict
            else []
        )
        return type(value) is dict and all(_suits(*pair) for pair in pairs)
    if annotation is float:
        return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return isinstance(value, annotation)


def _decode_array(value: dict[str, Any]) -> Any:
    dtype = np.dtype(value["$array"])
    if "list" in value:
        array = np.array(value["list"], dtype=dtype)
    else:
        array = np.frombuffer(base64.b64decode(value["base64"]), dtype=dtype).copy()
    return array[0] if value["shape"] is None else array.reshape(value["shape"])  # a numpy number has no shape


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _is_unicode(text: str) -> bool:
    """False for a lone surrogate, which no UTF-8 file can hold."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
