"""Inputs that begin alike: which are beginnings of others, and runs that continue from the tokens that inputs share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import whence
from families import CORPUS, family, subject_of
from passes import CAUSAL, counted
from whence.core.inputs import Input
from whence.model import masked_runs, shared_rows
from whence.model.masked_inputs import masked
from whence.model.masked_runs import Ask, MaskedRuns
from whence.model.prefix_cache import PrefixCache, common_length


def tokens(*ids: int, source: tuple[int, ...] = ()) -> Input:
    """An input of these tokens; with a source, of an encoder-decoder."""
    count = len(ids) + len(source)
    named = (
        {"input_ids": np.array(source), "decoder_input_ids": np.array(ids)} if source else {"input_ids": np.array(ids)}
    )
    return Input(
        raw="",
        features=("x",) * count,
        streams=("source",) * len(source) + ("target" if source else "text",) * len(ids),
        special=np.zeros(count, bool),
        tensors=named,
        words=np.arange(count),
        offsets=np.full((count, 2), -1),
        parts=("",) * count,
    )


def test_beginnings_are_found_among_other_inputs() -> None:
    inputs = [tokens(1, 2), tokens(1, 2, 3, 4), tokens(1, 3), tokens(1, 2, 3), tokens(300, 2), tokens(1, 2, 3, 5)]
    groups = {own[0]: own[1:] for own in shared_rows.beginnings(inputs)}
    assert sorted([*groups, *groups[1], *groups[5]]) == list(range(6))
    assert groups[2] == groups[4] == []
    assert [3, 0] in (groups[1], groups[5]) and [] in (groups[1], groups[5])  # either of the two may be read


def test_the_source_of_a_beginning_is_the_same() -> None:
    inputs = [tokens(1, 2, 3, source=(7, 8)), tokens(1, 2, source=(7, 8)), tokens(1, 2, source=(7, 9))]
    assert sorted(shared_rows.beginnings(inputs)) == [[0, 1], [2]]


def test_tokens_in_common() -> None:
    assert common_length(b"abcd", b"abxd") == 2 and common_length(b"ab", b"abcd") == 2 and common_length(b"", b"a") == 0


def long_input(name: str) -> tuple[whence.Subject, Input]:
    """A text of some forty tokens."""
    subject = subject_of(name)
    return subject, subject.encode(f"{CORPUS[1]} {CORPUS[3]}")


def leaving_one_out(item: Input) -> np.ndarray:
    """(1 + feature, feature): everything, and everything but one feature."""
    free = np.flatnonzero(~item.special)
    keep = np.ones((1 + len(free), len(item.features)), bool)
    keep[np.arange(1, len(keep)), free] = False
    return keep


def one_by_one(subject: whence.Subject, item: Input, ask: Ask, index: int) -> np.ndarray:
    """The slow twin: every variant in a pass of its own."""
    variants = masked(subject, item, ask.keep, ask.mask)
    from whence.model.masked_runs import _words_with_zeros

    batches = [subject.batch([variant]) for variant in variants]
    return np.array([float(subject.logits(b, _words_with_zeros(subject, b))[0, index]) for b in batches])


@pytest.mark.parametrize("name", CAUSAL)
def test_variants_go_on_from_the_tokens_that_they_share(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, item = long_input(name)
    made: list[PrefixCache] = []

    class Counting(PrefixCache):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(masked_runs, "PrefixCache", Counting)
    aim = subject.aim([5])
    for way in ("zero", "delete", "auto"):
        ask = Ask(leaving_one_out(item), way)
        values = MaskedRuns(subject).values([item], [ask], aim)[0]
        expected = one_by_one(subject, item, ask, 5)
        np.testing.assert_allclose(values, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))
    assert sum(cache.read for cache in made) > 0
    with counted() as passes:
        MaskedRuns(subject).values([item], [Ask(leaving_one_out(item), "zero")], aim)
    assert sum(passes) < 0.8 * len(item.features) * (1 + int((~item.special).sum()))


def test_a_cache_that_is_not_cut_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: whatever tokens were kept last are taken for the ones that are shared now."""
    subject, item = long_input("gpt2")
    ask, aim = Ask(leaving_one_out(item), "zero"), subject.aim([5])
    expected = one_by_one(subject, item, ask, 5)
    np.testing.assert_allclose(MaskedRuns(subject).values([item], [ask], aim)[0], expected, atol=1e-4)
    monkeypatch.setattr(shared_rows, "goes_on", lambda *given: True)
    monkeypatch.setattr(masked_runs, "goes_on", lambda *given: True)

    def stale(self: PrefixCache, common: bytes, width: int) -> int:
        return 0 if self._kept is None else len(common) // width

    monkeypatch.setattr(PrefixCache, "_crop", stale)
    with pytest.raises((AssertionError, ValueError)):
        np.testing.assert_allclose(MaskedRuns(subject).values([item], [ask], aim)[0], expected, atol=1e-4)


def test_a_model_without_a_cache_reads_everything_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = family("gpt2")
    subject = whence.wrap(made.model, made.processor)
    item = subject.encode(f"{CORPUS[1]} {CORPUS[3]}")
    ask, aim = Ask(leaving_one_out(item), "zero"), subject.aim([5])
    monkeypatch.setattr(PrefixCache, "logits_after", lambda *given: torch.zeros(1).cache)  # type: ignore[attr-defined]
    values = MaskedRuns(subject).values([item], [ask], aim)[0]
    np.testing.assert_allclose(values, one_by_one(subject, item, ask, 5), atol=1e-4)


def test_random_variants_stay_together() -> None:
    """Nothing is won by small passes where variants have no tokens in common."""
    subject, item = long_input("llama")
    keep = np.random.default_rng(0).random((40, len(item.features))) < 0.5
    variants: list[Any] = list(masked(subject, item, keep, "zero"))
    ordered = [variants[own[0]] for own in shared_rows.beginnings(variants)]
    assert shared_rows.beginning_changes(subject, ordered, 128) == []


@pytest.mark.parametrize("mask", ["zero", "delete"])
def test_variants_of_a_statement_go_on_from_the_tokens_that_they_share(
    mask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities of several tokens are read after the tokens that variants share."""
    subject = subject_of("llama")
    raw = {"prompt": CORPUS[1], "continuation": " the house was warm"}
    options: dict[str, Any] = {"method": f"leave_one_out(mask='{mask}')", "target": "statement('the house was warm')"}
    shared = whence.explain(subject, raw, **options)
    with counted() as fewer:
        whence.explain(subject, raw, **options)
    monkeypatch.setattr(masked_runs, "common_tokens", lambda *given: None)
    with counted() as all_tokens:
        alone = whence.explain(subject, raw, **options)
    assert sum(fewer) < 0.9 * sum(all_tokens)
    np.testing.assert_allclose(shared.scores, alone.scores, atol=1e-5 * float(np.abs(alone.scores).max()))
    np.testing.assert_allclose(shared.output, alone.output, rtol=1e-5)
