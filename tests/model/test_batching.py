"""Batches: which rows go together, and positions that only padding fills are cut off."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from families import CORPUS, subject_of
from whence.model.batching import like_lengths

PADDED = [("bert", "right"), ("llama", "left"), ("llama", "right"), ("bart", "right")]


@pytest.mark.parametrize(("name", "side"), PADDED)
def test_a_trimmed_batch_is_that_of_its_examples_alone(name: str, side: str) -> None:
    subject = subject_of(name)
    texts = [CORPUS[0], f"{CORPUS[1]} {CORPUS[3]}", CORPUS[2]]
    raws = [{"source": text, "output": text} if name == "bart" else text for text in texts]
    items = [subject.encode(raw) for raw in raws]
    items = [subject.rows(item)[-1][0] if item.generated else item for item in items]
    together, short = subject.batch(items, side=side), [0, 2]
    alone, trimmed = (
        subject.batch([items[number] for number in short], side=side),
        together.chosen(short).trimmed(),
    )
    for found, expected in ((trimmed.tensors, alone.tensors), (trimmed.streams, alone.streams)):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert together.mask.shape[1] > alone.mask.shape[1] and together.trimmed() is together
    torch.testing.assert_close(subject.logits(trimmed), subject.logits(alone))
    kept = together.chosen(short).filled(next(iter(together.streams)))
    assert bool(kept[0]) == (side == "right") and bool(kept[-1]) == (side == "left")


@pytest.mark.parametrize("spare", [0, 16, 10_000])
def test_rows_of_like_lengths_go_together(spare: int) -> None:
    lengths = np.random.default_rng(0).integers(5, 30, (200, 2))
    groups = like_lengths(lengths, lambda tokens: 500 // tokens, spare)
    assert sorted(np.concatenate(groups)) == list(range(200))
    padded = 0
    for group in groups:
        longest, kinds = lengths[group].max(0), len(np.unique(lengths[group], axis=0))
        assert len(group) <= 500 // longest.sum()
        padding = (longest - lengths[group]).sum()
        assert padding <= spare * (kinds - 1)
        padded += padding
    assert (padded == 0) == (spare == 0)


def test_points_of_equal_length_fill_a_pass() -> None:
    groups = like_lengths(np.full((130, 1), 7), lambda tokens: 64, 16)
    assert [len(group) for group in groups] == [64, 64, 2] and like_lengths(np.zeros((0, 1), int), len, 16) == []
