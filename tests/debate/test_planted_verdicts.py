"""Verdicts on planted models: attention that explains by construction, that cannot matter, and that does in part."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import whence
from planted_attention import SHARES, planted, texts

EXPERIMENTS = [
    *(
        "agreement",
        "permutation",
        "uniform",
        "adversary(steps=40, rate=0.2, restarts=2)",
        "erasure",
        "removal",
        "signs",
    ),
]
NAMES = [spec.partition("(")[0] for spec in EXPERIMENTS]
pytestmark = pytest.mark.slow


@cache
def audited(kind: str) -> whence.Audit:
    """The audit of a planted model."""
    return whence.audit(planted(kind), texts(20), EXPERIMENTS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("kind", "grade"), [("explains", "explains"), ("irrelevant", "does not")])
def test_every_experiment_sees_what_was_planted(kind: str, grade: str, name: str) -> None:
    assert audited(kind)[name].grade == grade


@pytest.mark.parametrize(
    ("kind", "verdict"), [("explains", "explains"), ("between", "partly"), ("irrelevant", "does not")]
)
def test_the_verdict_over_all_is_graded(kind: str, verdict: str) -> None:
    assert audited(kind).verdict == verdict


def test_what_lies_in_between_is_graded_in_between() -> None:
    graded = [finding.grade for finding in audited("between")]
    assert graded.count("partly") >= 4 and "does not" not in graded


IN_BETWEEN = [
    ("agreement", "tau: attention, gradient"),
    ("agreement", "tau: attention, left out"),
    ("permutation", "median change"),
    ("uniform", "change"),
    ("erasure", "effect of highest"),
]


@pytest.mark.parametrize(("name", "number"), IN_BETWEEN)
def test_numbers_fall_from_one_model_to_the_other(name: str, number: str) -> None:
    means = [audited(kind)[name][number].mean for kind in SHARES]
    assert means == sorted(means, reverse=True) and len(set(means)) == 3


def test_the_adversary_finds_what_construction_allows() -> None:
    """No attention but the own gives the own output; where values are alike, any attention does."""
    assert audited("explains")["adversary"]["divergence"].mean < 0.1
    assert audited("irrelevant")["adversary"]["divergence"].mean > 0.5
    for kind in SHARES:
        found = audited(kind)["adversary"]
        assert (found["change"].values <= 0.01).all()
        assert (found["divergence"].values >= 0).all() and (found["divergence"].values <= np.log(2)).all()
