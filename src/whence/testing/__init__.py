"""Checks that every method must pass, the library's own and a user's: `check_method("my_method", subject, inputs)`.

The promises in a method's record decide which checks apply. Scores are compared relative to the sum of their absolute
values, because readers compare scores on that scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from whence.core import registry
from whence.core.wording import suggest
from whence.model.subject import Subject
from whence.testing.checks import CHECKS
from whence.testing.trials import Check, CheckFailed, NotApplicable, Report, Trial

__all__ = ["Check", "Report", "check_method", "checks"]

_FIRST = ("given_back", "well_formed")  # the other checks need a method that passes these


def checks(method: str) -> list[Check]:
    """The checks that apply to a method's promises, in the order in which they run."""
    record, _ = registry.resolve("method", method)
    return [check for check in CHECKS if check.applies(record)]


def check_method(method: str, subject: Subject, inputs: Sequence[Any], *, only: Sequence[str] | None = None) -> Report:
    """Run the checks of a method, given as a spec, on a subject and a few raw inputs of different lengths."""
    if isinstance(inputs, (str, dict)) or not inputs:
        raise ValueError(f"check_method takes a list of raw inputs, best of different lengths, not {inputs!r}")
    names = [check.name for check in CHECKS]
    for name in only or ():
        if name not in names:
            raise ValueError(f"unknown check {name!r}; {suggest(name, names)}")
    trial = Trial(method, subject, inputs)
    passed: list[str] = []
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for check in CHECKS:
        if only is not None and check.name not in only:
            continue
        failed_first = next((name for name in _FIRST if name in failed), None)
        if failed_first and check.name not in _FIRST:
            skipped[check.name] = f"not run, since {failed_first} failed"
        elif not check.applies(trial.record):
            skipped[check.name] = check.otherwise
        else:
            try:
                check.function(trial)
                passed.append(check.name)
            except NotApplicable as reason:
                skipped[check.name] = str(reason)
            except CheckFailed as reason:
                failed[check.name] = str(reason)
            except Exception as error:  # whatever a method raises is a finding, and the report goes on
                failed[check.name] = f"{type(error).__name__} was raised: {error}"
    return Report(trial.record.spec(trial.options), subject.name, tuple(passed), failed, skipped)
