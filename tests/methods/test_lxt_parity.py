"""Parity with LXT, by figures that were made beside transformers 4; peers/lxt_figures.py says how."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import whence
from peers.lxt_figures import CASES, FIGURES, INPUTS, made

METHODS = {"attnLRP": "attnlrp", "cp_LRP": "lrp"}


def encode(ids: list[int]) -> dict[str, Any]:
    tensors = {"input_ids": np.array(ids), "attention_mask": np.ones(len(ids), dtype=np.int64)}
    return {"tensors": tensors, "features": {"text": [str(number) for number in ids]}}


@pytest.mark.parametrize(("name", "rules"), CASES)
def test_parity(name: str, rules: str) -> None:
    output = (lambda out: out.logits) if name == "bert" else (lambda out: out.logits[:, -1])
    subject = whence.wrap(made(name), task="module", encode=encode, output=output)
    figures = json.loads(FIGURES.read_text())[f"{name} {rules}"]
    for method in METHODS.values():
        found = whence.explain(subject, INPUTS, method)
        for a, logit, relevance in zip(found, figures["logit"], figures["relevance"], strict=True):
            assert a.output == pytest.approx(logit, rel=1e-5)
            away = np.abs(a.scores - relevance).max() / np.abs(relevance).max()
            assert away <= 1e-4 if method == METHODS[rules] else away > 0.05
