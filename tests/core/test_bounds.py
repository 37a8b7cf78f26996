"""Bounds of numbers: they stand in signatures, every numeric option has them, others are refused in a sentence."""

from __future__ import annotations

import math
import typing
from typing import Annotated, Any

import pytest
from tests.support.families import subject_of

import whence
from whence.core import registry, specs
from whence.core.specs import Between

RECORDS = [*registry.records("method"), *registry.records("metric")]
OPTIONS = [(record, option) for record in RECORDS for option in record.options.values()]
VALUES: list[Any] = [10**5000, "x" * 10**6, [[0] * 10**6], -1, 1.0, True, None, "0", [], {}]


def kinds(annotation: Any) -> list[Any]:
    """All that an annotation is made of, unions and lists opened."""
    parts = specs.parts_of(annotation)
    inside = [] if len(parts) == 1 else [kind for part in parts for kind in kinds(part)]
    if typing.get_origin(annotation) is list:
        inside = [kind for part in typing.get_args(annotation) for kind in kinds(part)]
    return inside or [annotation]


def bounds(annotation: Any) -> list[tuple[type, Between]]:
    return [
        (kind.__origin__, one)
        for kind in kinds(annotation)
        if typing.get_origin(kind) is Annotated
        for one in kind.__metadata__
        if isinstance(one, Between)
    ]


@pytest.mark.parametrize(("record", "option"), OPTIONS, ids=[f"{r.name}-{o.name}" for r, o in OPTIONS])
def test_every_number_has_bounds(record: Any, option: Any) -> None:
    bare = [kind for kind in kinds(option.annotation) if kind in (int, float)]
    assert not bare, f"write {option.name}: Annotated[..., Between(least, most)] in {record.name}"
    assert option.default is None or specs.fits(option.default, option.annotation)
    for kind, between in bounds(option.annotation):
        assert math.isfinite(between.least) and math.isfinite(between.most)
        beyond = [between.least - 1, between.most + 1, between.most * 10**9 + 1]
        for value in [*beyond, *([math.nan, math.inf, -math.inf] if kind is float else [True, 0.5])]:
            with pytest.raises(ValueError, match=f"{record.name}: the option '{option.name}' takes .*, not") as error:
                registry.validate(record, {option.name: value})
            assert "\n" not in str(error.value) and len(str(error.value)) < 700
        for value in (between.least, between.most):
            left_out = between.without_least if value == between.least else between.without_most
            taken = [specs.fits(one, option.annotation) for one in (kind(value), [kind(value)])]
            assert any(taken) is not left_out


def test_bounds_in_words() -> None:
    assert specs.describe(Annotated[int, Between(1, 10_000)] | None) == "a whole number from 1 to 10,000 or None"
    assert specs.describe(Annotated[float, Between(0, 1, without_least=True)]) == "a number above 0 and at most 1"
    assert specs.describe(Annotated[float, Between(0, 0.5, without_most=True)]) == "a number at least 0 and below 0.5"
    assert specs.describe(list[specs.Share]) == "a list of 1 to 1,000, each a number from 0 to 1"


def test_lists_are_neither_empty_nor_endless() -> None:
    for value in ([], [0] * (specs.MAX_LISTED + 1), [0, 2.0], [0, math.nan]):
        assert not specs.fits(value, list[specs.Share])
    assert specs.fits([0, 0.5], list[specs.Share]) and specs.fits((0, 1), list[specs.Share])


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_settings_of_a_call_are_checked_before_anything_runs(value: Any) -> None:
    subject = subject_of("bert")
    calls = [
        lambda: whence.explain(subject, "a film", "random", seed=value),
        lambda: whence.compare(subject, "a film", ["random"], seed=value),
        lambda: whence.evaluate(subject, ["a film"], ["random"], ["auac"], seed=value),
        lambda: whence.arbitrate(subject, "a film", ["random"], seed=value),
    ]
    if value is not None:
        calls += [
            lambda: whence.explain(subject, "a film", "random", batch_size=value),
            lambda: whence.evaluate(subject, ["a film"], ["random"], ["auac"], limit=value),
            lambda: whence.arbitrate(subject, ["a film", "a plot"], ["random"], by="set", fit=value),
        ]
    if value != -1:
        calls.append(lambda: whence.conservation(subject, "a film", token=value))
    for call in calls:
        with pytest.raises(ValueError, match=r"^(seed|batch_size|limit|fit|token) takes a whole number from") as error:
            call()
        assert "\n" not in str(error.value) and len(str(error.value)) < 300


def test_switches_are_true_or_false() -> None:
    subject = subject_of("bert")
    with pytest.raises(ValueError, match=r"^truncate takes True or False, not 'no'$"):
        whence.explain(subject, "a film", "random", truncate="no")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"^resume takes a text or Path or None, not 3$"):
        whence.evaluate(subject, ["a film"], ["random"], ["auac"], resume=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [3, {"random"}, "", (), None])
def test_lists_of_methods_and_metrics(value: Any) -> None:
    subject = subject_of("bert")
    for call in (
        lambda: whence.compare(subject, "a film", value),
        lambda: whence.evaluate(subject, ["a film"], value, ["auac"]),
        lambda: whence.evaluate(subject, ["a film"], ["random"], value),
        lambda: whence.arbitrate(subject, "a film", value),
    ):
        with pytest.raises(ValueError, match=r"^(methods|metrics|candidates) is a list of at least one, such as \["):
            call()
