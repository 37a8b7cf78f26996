"""The example of a transformer from scratch: it learns, whence sees each of its heads, and finds what was planted."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whence


def _example() -> Any:
    path = Path(__file__).parents[1] / "examples" / "from_scratch.py"
    spec = importlib.util.spec_from_file_location("from_scratch", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


example = _example()
KINDS = list(example.POSITIONS)


def _made(kind: str) -> Any:
    """The model with random weights, its questions and keys large enough that attention has something to say."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = example.Transformer(kind).eval()
        for name, weight in model.named_parameters():
            if "query" in name or "key" in name:
                weight *= 2
    return model


def _wrapped(model: Any) -> whence.Subject:
    return whence.wrap(model, encode=example.encode, labels=example.LABELS)


def _sentences(count: int) -> list[Any]:
    rng = random.Random(10)
    return [example.make_sentence(rng, rng.choice(example.LENGTHS)) for _ in range(count)]


def _own_weights(model: Any, ids: torch.Tensor) -> list[list[torch.Tensor]]:
    """By block and head, the weights (batch, query, key) that each Head hands to its dropout in a plain pass."""
    seen: list[list[torch.Tensor]] = [[] for _ in model.blocks]
    handles = [
        head.dropout.register_forward_pre_hook(lambda module, args, own=own: own.append(args[0]))
        for own, block in zip(seen, model.blocks, strict=True)
        for head in block.attention.heads
    ]
    with torch.no_grad():
        model(ids)
    for handle in handles:
        handle.remove()
    return seen


def test_labels_and_planted_words_follow_the_rule() -> None:
    labels = []
    for text, label, planted in _sentences(500):
        words = text.split()
        (cue,) = [place for place, word in enumerate(words) if word in ("blick", "wug")]
        negated = cue > 0 and words[cue - 1] == "not"
        assert label == ((words[cue] == "blick") != negated)
        assert planted == ({cue - 1, cue} if negated else {cue})
        labels.append(label)
    assert 0.4 < np.mean(labels) < 0.6


def test_sinusoidal_positions_tell_only_distances() -> None:
    table = example.SinusoidalPositions(12, 8)(12)
    products = table @ table.T
    for distance in range(12):
        diagonal = products.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert (products.diagonal(1) < products[0, 0] - 0.1).all()  # neighbours differ


@pytest.mark.parametrize("kind", KINDS)
def test_order_matters_only_through_positions(kind: str) -> None:
    model = _made(kind)
    ids = torch.tensor([example.to_ids("dax not wug sul"), example.to_ids("dax wug not sul")])
    with torch.no_grad():
        words, both = model.answer(model.words(ids)), model(ids)
    torch.testing.assert_close(words[0], words[1], atol=1e-5, rtol=0)
    assert (both[0] - both[1]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_each_head_is_recorded_as_it_was(kind: str) -> None:
    model = _made(kind)
    subject = _wrapped(model)
    texts = ["dax not wug sul not pok", "not tov blick gim rin fep"]
    ids = torch.tensor([example.to_ids(text) for text in texts])
    batch = subject.batch([subject.encode(text) for text in texts])
    trace = subject.trace(batch, subject.aim([None, None]), ["attention"])
    own = [torch.stack(heads, dim=1) for heads in _own_weights(model, ids)]  # (batch, head, query, key) of each block
    assert all((weights[:, 0] - weights[:, 1]).abs().max() > 0.1 for weights in own)  # heads can be told apart
    assert [record.layer for record in trace.attention] == [0, 1]
    for record, weights in zip(trace.attention, own, strict=True):
        assert torch.equal(record.weights, weights)
    with torch.no_grad():
        assert torch.equal(trace.logits, model(ids))


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_the_row_of_the_start_token(kind: str) -> None:
    model = _made(kind)
    own = _own_weights(model, torch.tensor([example.to_ids(example.TEXT)]))
    expected = torch.stack(own[-1], dim=1).mean(1)[0, 0]  # last layer, mean of its heads
    scores = whence.explain(_wrapped(model), example.TEXT, method="attention").scores
    np.testing.assert_allclose(scores, expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_lists_of_unequal_lengths_equal_one_at_a_time(kind: str) -> None:
    subject = _wrapped(_made(kind))
    texts = [text for text, _, _ in _sentences(12)]
    assert {len(text.split()) for text in texts} == set(example.LENGTHS)
    together = whence.explain(subject, texts, method="gradient_x_input")
    for text, attribution in zip(texts, together, strict=True):
        alone = whence.explain(subject, text, method="gradient_x_input")
        np.testing.assert_allclose(attribution.scores, alone.scores, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_learns_the_language_and_planted_words_come_out_on_top(kind: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(example.SEED)
        model = example.Transformer(kind)
        example.train(model, random.Random(example.SEED))
    assert example.accuracy(model, random.Random(10), size=400) >= 0.98

    methods = ["attention", "gradient_x_input", "integrated_gradients(steps=32)", "random"]
    marks = example.mark(_wrapped(model), _sentences(100), methods)
    guessing = marks.pop("guessing")
    assert abs(marks.pop("random") - guessing) < 0.1
    assert min(marks.values()) > guessing + 0.12, marks


@pytest.mark.parametrize("kind", KINDS)
def test_example_prints_every_step(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(example, "train", lambda model, rng: None)
    monkeypatch.setattr(sys, "argv", ["from_scratch.py", "--positions", kind])
    with torch.random.fork_rng():
        example.main()
    printed = capsys.readouterr().out
    assert all(f"\n{number}. " in f"\n{printed}" for number in range(1, 7))
    assert f"{kind} positions" in printed and "differ by 0.0e+00" in printed
    assert all(f"layer {layer} head {head} " in printed for layer in range(2) for head in range(4))
