"""On the zoo's models whose deciding features are known, every method that applies finds them better than chance."""

from __future__ import annotations

from pathlib import Path

import pytest

import whence
from whence.testing.planted_truth import MODELS, measured

COUNTS = {"planted": 8, "recall": 8, "dates": 2, "shapes": 6}  # a date has ten rows


@pytest.mark.slow
@pytest.mark.parametrize("method", [r.name for r in whence.list_methods() if r.name != "random"])
@pytest.mark.parametrize("model", MODELS)
def test_every_method_beats_random(model: str, method: str) -> None:
    record = next(r for r in whence.list_methods() if r.name == method)
    found = measured(model, method, COUNTS[model], seed=7)
    if found is None:
        several = model in ("dates", "shapes")  # streams, which some methods do not take
        regions = model == "shapes" and record.family == "vision"  # it is given vectors of regions, not a picture
        fits = whence.load(model).task in record.tasks and not regions
        assert (several and record.family == "decomposition") or not fits
        return
    chance = measured(model, "random", COUNTS[model], seed=7)
    assert chance is not None
    assert found[0] > chance[0] + 0.1


def test_the_documentation_has_a_row_for_every_method() -> None:
    text = (Path(__file__).parents[2] / "docs" / "truth.md").read_text(encoding="utf-8")
    assert [r.name for r in whence.list_methods() if f"| `{r.name}` |" not in text] == []
