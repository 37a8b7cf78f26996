"""Checksums: of plain values, of files, and of JSON records that must not be changed unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np

from whence.core.storage import Storable

SEAL = "checksum"  # the key of a sealed record under which its checksum stands


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
    elif isinstance(value, Path) and value.is_file():
        value = ["file", file_checksum(value)]
    elif isinstance(value, partial):
        value = ["partial", digest_of([value.func, value.args, value.keywords])]
    elif isinstance(value, Storable):
        value = digest_of(value.to_dict())
    elif hasattr(value, "__code__"):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]  # the variables around a function
        held = [one for one in cells if one is not value]  # one that calls itself is among them
        value = [
            value.__qualname__,
            code_of(value.__code__),
            digest_of([held, value.__defaults__, value.__kwdefaults__]),
        ]
    elif not isinstance(value, (str, int, float, bool, Path, type(None))):
        pixels = np.asarray(value.detach().cpu().float() if hasattr(value, "detach") else value)
        value = [type(value).__name__, pixels.shape, "" if pixels.dtype == object else pixels.tobytes().hex()]
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()


def code_of(code: CodeType) -> list[Any]:
    """What a function does, without where it was written; the same in every process of one version of Python."""
    return [code.co_code.hex(), list(code.co_names), [_constant(one) for one in code.co_consts]]


def _constant(value: Any) -> Any:
    """A constant of a function; the order of a set differs from process to process."""
    if isinstance(value, CodeType):
        return code_of(value)
    return sorted(map(repr, value)) if isinstance(value, frozenset) else repr(value)
