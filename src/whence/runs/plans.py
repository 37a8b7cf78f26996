"""A run as a plan: an immutable description of model, data, methods, metrics and options, which JSON can hold."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from whence.core import registry
from whence.core.specs import Between, checked
from whence.core.wording import quoted, shown

if TYPE_CHECKING:
    from whence.model.subject import Subject

MEMORY = "in memory"  # what JSON says in place of a model or data that no other process can read
_KINDS = {
    "target": str | int | None,
    "limit": Annotated[int, Between(1, 10**12)] | None,
    "seed": Annotated[int, Between(0, 2**63 - 1)],
    "truncate": bool,
    "inputs": bool,
    "chunk": Annotated[int, Between(1, 100_000)],
    "device": str | None,
    "dtype": str | None,
    "trust_remote_code": bool,
}
_SPECS = {"methods": "method", "metrics": "metric", "experiments": "experiment"}


@dataclass(frozen=True, eq=False)
class Plan:
    """Every method, metric and experiment on every row of a data set.

    `model` is the name of an embedded model, a folder, a hub id or "package:function" (a function without arguments
    that returns a Subject); or a Subject, which only the local engine in this process can run. `data` is what
    `evaluate` takes: a file, several, a folder, a pattern such as "data/*.parquet", a data frame, a list. The results
    are written to `folder`; a plan that was begun there is continued.
    """

    model: str | Path | Subject
    data: Any
    methods: Sequence[str] = ()
    metrics: Sequence[str] = ()  # of every explanation
    experiments: Sequence[str] = ()  # of an audit, on every row
    target: str | int | None = None  # of all rows, in place of their labels
    limit: int | None = None  # take so many rows
    seed: int = 0
    truncate: bool = False  # cut texts that are too long for the model, instead of recording them as failed
    inputs: bool = True  # False leaves texts, features and labels out of the results, because they are confidential
    chunk: int = 64  # rows that are run together and kept together, at most
    folder: str | Path = "run"
    device: str | None = None
    dtype: str | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        for name, kind in _SPECS.items():
            object.__setattr__(self, name, _specs(name, kind, getattr(self, name)))
        if not self.methods and not self.experiments:
            raise ValueError("a plan needs methods or experiments, such as methods=['gae']; it has neither")
        if self.metrics and not self.methods:
            raise ValueError("metrics measure explanations; give the plan methods, such as methods=['gae']")
        for name, annotation in _KINDS.items():
            checked(name, getattr(self, name), annotation)
        if hasattr(self.data, "__next__"):
            raise TypeError(
                f"the data of a plan is read twice, and a {type(self.data).__name__} only once; give a list or a file"
            )
        if isinstance(self.model, (str, Path)) and not str(self.model).strip():
            raise ValueError(
                "a plan needs a model: a name, a folder, a hub id or 'package:function', not an empty text"
            )
        if not str(self.folder).strip():
            raise ValueError("a plan needs the folder that results are written to, not an empty text")

    @property
    def model_is_named(self) -> bool:
        """Whether other processes can load the model."""
        return isinstance(self.model, (str, Path))

    @property
    def files(self) -> tuple[str, ...] | None:
        """The files, folders or patterns of the data; None for data in memory."""
        several = self.data if isinstance(self.data, (list, tuple)) else [self.data]
        named = [isinstance(one, Path) or (isinstance(one, str) and not isinstance(self.data, list)) for one in several]
        return tuple(map(str, several)) if named and all(named) else None

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON values; a model or data in memory is written as "in memory"."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values["model"] = str(self.model) if self.model_is_named else {MEMORY: getattr(self.model, "name", "")}
        values["data"] = list(self.files) if self.files is not None else {MEMORY: type(self.data).__name__}
        values["folder"] = str(self.folder)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_dict(cls, values: Any) -> Plan:
        """The plan that `to_dict` wrote."""
        names = {item.name for item in fields(cls)}
        if not isinstance(values, dict) or not {"model", "data"} <= values.keys() <= names:
            raise ValueError(f"expected a plan with the keys {quoted(sorted(names))}, got {shown(values)}")
        for name in ("model", "data"):
            if isinstance(values[name], dict):
                raise ValueError(f"the {name} of this plan was {MEMORY}; give the plan with it again")
        data = values["data"]
        return cls(**{**values, "data": tuple(map(Path, data)) if isinstance(data, list) else data})

    def as_elsewhere(self) -> dict[str, Any]:
        """The plan as JSON values for a worker, which may have another working directory."""
        values = self.to_dict()
        if self.model_is_named and Path(str(self.model)).expanduser().is_dir():
            values["model"] = str(Path(str(self.model)).expanduser().resolve())
        values["data"] = []  # workers are sent the rows
        return values

    def questions(self) -> list[str]:
        """The specs of methods, then of experiments: every row of the data has one result of each."""
        return [*self.methods, *self.experiments]

    def heading(self, hashes: dict[str, str], data: str) -> dict[str, Any]:
        """All that the numbers depend on, in JSON values: equal for plans that give the same results.

        `hashes` are those of the model, `data` is the digest of the rows.
        """
        values = self.to_dict()
        kept = ("methods", "metrics", "experiments", "target", "seed", "truncate", "inputs", "chunk", "dtype")
        return {**{name: values[name] for name in kept}, "model": hashes, "data": data}


def names_function(model: str) -> bool:
    """Whether the name of a model is that of a function that makes one: "package.module:function"."""
    return re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", model) is not None


def _specs(name: str, kind: str, given: Any) -> tuple[str, ...]:
    """Specs in their resolved form; a wrong one raises before anything is read."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ValueError(f"{name} is a list of specs, such as {[given] if isinstance(given, str) else ['gae']}")
    resolved = [registry.resolve(kind, spec) for spec in given]
    found = tuple(record.spec(options) for record, options in resolved)
    twice = next((spec for spec in found if found.count(spec) > 1), None)
    if twice is not None:
        raise ValueError(f"{name} names {shown(twice)} twice; name it once")
    return found
