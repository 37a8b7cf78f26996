"""What every verb checks before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from whence.core.inputs import Input
from whence.core.levels import Level, at_level
from whence.core.specs import Between, checked
from whence.core.wording import shown
from whence.methods.explaining import as_list, encoded
from whence.model.interventions import entries_of, ignoring
from whence.model.subject import Subject

Count = Annotated[int, Between(1, 10**9)]

_SETTINGS: dict[str, Any] = {
    "seed": Annotated[int, Between(0, 2**63 - 1)],
    "batch_size": Count | None,
    "limit": Count | None,
    "fit": Count | None,
    "token": Annotated[int, Between(-(10**9), 10**9)],
    "truncate": bool,
    "progress": bool,
    "resume": str | Path | None,
}


def encoded_inputs(
    subject: Subject,
    inputs: Any,
    target: Any,
    truncate: bool,
    level: Level = None,
    ignore: Any = None,
    progress: bool = False,
) -> tuple[list[Input], list[Any], bool]:
    """Inputs encoded, their targets, and whether one input was given instead of a list.

    Words to `ignore` are marked in the inputs, and so are the units of tokens at the `level`.
    """
    entries = None if ignore is None else entries_of(ignore)
    several = as_list(inputs)
    raws = [inputs] if several is None else several
    targets = as_list(target) if several is not None else None
    if targets is not None and len(targets) != len(raws):
        raise ValueError(f"a list of targets has one per input: {len(raws)} were expected, {len(targets)} came")
    targets = [target] * len(raws) if targets is None else targets
    tokens = ignoring(encoded(subject, raws, truncate, several is None, progress, targets), entries)
    return [at_level(item, level) for item in tokens], targets, several is None


def check_call(subject: Any, **settings: Any) -> None:
    """Raise unless the subject is one and the settings of the call are of their kinds and within their bounds."""
    if not isinstance(subject, Subject):
        kind = type(subject).__name__
        raise TypeError(f"the first argument is a Subject, not a {kind}; make one with whence.load or whence.wrap")
    for name, value in settings.items():
        checked(name, value, _SETTINGS[name])


EXAMPLES = {"metrics": "auac", "experiments": "permutation"}


def check_specs(name: str, specs: Any) -> None:
    if isinstance(specs, str) or not isinstance(specs, Sequence) or not specs:
        example = specs if isinstance(specs, str) and specs else EXAMPLES.get(name, "gae")
        raise ValueError(f"{name} is a list of at least one, such as [{example!r}], not {shown(specs)}")
