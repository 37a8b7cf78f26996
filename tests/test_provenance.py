"""Every result of a verb says where it came from, and its file does, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import whence
from whence.core.provenance import versions
from whence.model.identity import model_hashes, weights_hash
from whence.model.weights import duplicate


@pytest.fixture(scope="module")
def planted() -> whence.Subject:
    return whence.load("planted")


def test_results_of_all_verbs_carry_versions_weights_seed_and_what_was_asked(planted: Any, tmp_path: Path) -> None:
    text = "what a wonderful day"
    a = whence.explain(planted, text, method="gae", target="positive", seed=3)
    results = {
        "explain": a,
        "compare": whence.compare(planted, text, ["gae", "random"], seed=3),
        "score": whence.score(planted, a, "auac", seed=3),
        "evaluate": whence.evaluate(planted, [text], ["gae"], ["auac"], seed=3),
        "arbitrate": whence.arbitrate(planted, text, ["gae", "random"], seed=3),
        "audit": whence.audit(planted, [text], ["uniform"], seed=3),
        "conservation": whence.conservation(planted, text),
        "attention_maps": whence.attention_maps(planted, text),
        "maximize": whence.maximize(planted, "positive", steps=2, seed=3),
    }
    for verb, result in results.items():
        known = result.provenance
        assert known["asked"]["verb"] == verb and known["model"] == "planted" and known["versions"] == versions()
        assert known["weights"] == weights_hash(planted.model) and len(known["weights"]) == 64
        assert known["seed"] == (0 if verb in ("conservation", "attention_maps") else 3)
        file = tmp_path / f"{verb}.json"
        result.save(file)
        assert json.loads(file.read_text())["provenance"] == known
        again = whence.load_result(file)
        assert again == result and again.provenance == known
    assert a.provenance["asked"]["method"] == "gae" and a.provenance["asked"]["target"] == "positive"
    assert a.words().provenance == a.with_signs().provenance == a.provenance
    assert results["compare"][0].provenance == results["compare"].provenance
    assert all(one.provenance for one in whence.explain(planted, [text, text], method="random"))


def test_a_result_that_was_made_by_hand_has_no_provenance(planted: Any, tmp_path: Path) -> None:
    board = whence.Scoreboard(("a",), ("auac",), ("higher",), [[[0.5]]], [[1.0]])
    board.save(tmp_path / "board.json")
    assert whence.load_result(tmp_path / "board.json").provenance == {} == board.provenance


def test_every_weight_counts_and_is_hashed_anew_only_after_a_change(planted: Any) -> None:
    other = duplicate(planted)
    assert model_hashes(other) == model_hashes(planted)
    parameter = max(other.model.parameters(), key=lambda p: p.numel())
    for change in ("in place", "through data", "a buffer", "a type"):
        before = weights_hash(other.model)
        assert weights_hash(other.model) == before
        with torch.no_grad():
            if change == "in place":
                parameter.view(-1)[parameter.numel() // 2 + 1] += 1e-6
            elif change == "through data":
                parameter.data = parameter.data.clone()
                parameter.data.view(-1)[7] += 1.0
            elif change == "a buffer":
                other.model.register_buffer("new", torch.zeros(1))
            else:
                other.model.half()
        assert weights_hash(other.model) != before, change


def test_settings_and_encoding_count(planted: Any) -> None:
    before = model_hashes(planted)
    other = duplicate(planted)
    norm = next(m for m in other.model.modules() if hasattr(m, "eps"))
    norm.eps = norm.eps * 2
    assert model_hashes(other) | {"settings": ""} == before | {"settings": ""}
    assert model_hashes(other)["settings"] != before["settings"]
    assert model_hashes(whence.load("sst2"))["encoding"] != before["encoding"]
