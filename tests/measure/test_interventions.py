"""Scores of explanations under an intervention: the metric's masked inputs run under the intervention, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import whence
from families import subject_of
from whence.methods.explaining import Settings, explained

TEXT = "the actors were wonderful , but the ending was disappointing"


@pytest.mark.parametrize("metric", ["auac", "comprehensiveness", "infidelity", "loo_agreement", "max_sensitivity"])
def test_a_saved_intervention_is_applied_to_every_masked_run(metric: str, tmp_path: Path) -> None:
    """The twin is the plain model whose own mask hides the word."""
    subject = subject_of("bert")
    a = whence.explain(subject, TEXT, "gae", 0, ignore="wonderful")
    a.save(tmp_path / "a.json")
    found = whence.score(subject, whence.Attribution.load(tmp_path / "a.json"), metric)
    mask = a.input.tensors["attention_mask"].copy()
    mask[list(a.input.ignored)] = 0
    item = replace(a.input, ignored=(), tensors={**a.input.tensors, "attention_mask": mask})
    [[twin]] = explained(
        subject, [item], [(next(r for r in whence.list_methods() if r.name == "gae"), {})], [0], Settings()
    )
    expected = whence.score(subject, twin, metric)
    assert found.value == pytest.approx(expected.value, abs=1e-4)
    plain = whence.score(subject, whence.explain(subject, TEXT, "gae", 0), metric)
    assert metric in ("loo_agreement", "infidelity") or abs(found.value - plain.value) > 1e-6


def test_an_explanation_without_the_intervention_is_of_another_model() -> None:
    subject = subject_of("bert")
    a = whence.explain(subject, TEXT, "gae", 0, ignore="wonderful")
    with pytest.raises(ValueError, match="explains another model"):
        whence.score(subject, replace(a, input=replace(a.input, ignored=()), output=a.output + 1), "auac")


def test_evaluate_under_an_intervention_says_so_and_does_not_resume_a_plain_run(tmp_path: Path) -> None:
    subject, data = subject_of("bert"), [TEXT, "a masterful film"]
    view = subject.with_attention(ignore=["film", "wonderful"])
    file = tmp_path / "run.jsonl"
    plain = whence.evaluate(subject, data, ["gae"], ["auac"], resume=file)
    with pytest.raises(ValueError):
        whence.evaluate(view, data, ["gae"], ["auac"], resume=file)
    board = whence.evaluate(view, data, ["gae"], ["auac"])
    assert any("intervention on attention" in note and "wonderful" in note for note in board.notes)
    assert not np.allclose(board.values, plain.values)
