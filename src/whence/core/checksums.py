"""Checksums: of plain values, of files, and of JSON records that must not be changed unnoticed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from whence.core.files import PICTURES
from whence.core.storage import Storable

SEAL = "checksum"  # the key of a sealed record under which its checksum stands
_PLAIN = (str, int, float, bool, type(None), date, time, timedelta, Decimal)  # cells of tables, told apart by repr


def checksum(value: Any) -> str:
    """The SHA-256 of plain JSON values; dicts count as equal whatever the order of their keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))  # ASCII, so that any text can be encoded
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def file_checksum(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sealed(record: dict[str, Any]) -> dict[str, Any]:
    """The record with its checksum."""
    return {**record, SEAL: checksum(record)}


def unsealed(record: Any) -> dict[str, Any] | None:
    """The record without its checksum; None for anything that `sealed` did not make, or that was changed since."""
    if not isinstance(record, dict):
        return None
    content = {key: value for key, value in record.items() if key != SEAL}
    return content if record.get(SEAL) == checksum(content) else None


def digest_of(value: Any) -> str:
    """A digest that tells data apart: texts, numbers, arrays, files and functions by content, other values by type."""
    if isinstance(value, Mapping):
        value = [[str(key), digest_of(one)] for key, one in value.items()]
    elif isinstance(value, (list, tuple)):
        value = [digest_of(one) for one in value]
    elif isinstance(value, (str, Path)) and _is_file(value):
        value = ["file", file_checksum(Path(value))]
    elif isinstance(value, partial):
        value = ["partial", digest_of([value.func, value.args, value.keywords])]
    elif isinstance(value, Storable):
        value = digest_of(value.to_dict())
    elif hasattr(value, "__code__"):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]  # the variables around a function
        held = [one for one in cells if one is not value]  # a recursive function is among them
        value = [
            value.__qualname__,
            code_of(value.__code__),
            digest_of([held, value.__defaults__, value.__kwdefaults__]),
        ]
    elif not isinstance(value, (*_PLAIN, Path)):
        value = [type(value).__name__, *_numbers(value)]
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()


def _is_file(value: str | Path) -> bool:
    """Whether a path, or a text that ends like the name of a picture, names a file that is there."""
    named = isinstance(value, Path) or value[-5:].lower().endswith(PICTURES)
    return named and os.path.isfile(value)


def _numbers(value: Any) -> list[Any]:
    """The content of an array, tensor or PIL picture: type, shape and bytes; for a picture, its palette too."""
    pixels = np.asarray(value.detach().cpu().float() if hasattr(value, "detach") else value)
    dtype = str(getattr(value, "dtype", getattr(value, "mode", pixels.dtype)))
    palette = value.getpalette() if hasattr(value, "getpalette") else None
    return [dtype, pixels.shape, palette, "" if pixels.dtype == object else pixels.tobytes().hex()]


def code_of(code: CodeType) -> list[Any]:
    """What a function does, without where it was written; the same in every process of one version of Python."""
    return [code.co_code.hex(), list(code.co_names), [_constant(one) for one in code.co_consts]]


def _constant(value: Any) -> Any:
    """A constant of a function; the order of a set differs from process to process."""
    if isinstance(value, CodeType):
        return code_of(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
