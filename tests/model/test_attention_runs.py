"""One input with its attention edited: the own weights give the own output, and leaving out layers changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import whence
from families import FAMILIES, family, fresh, subject_of
from whence.model import attention_runs
from whence.model.attention_runs import AttentionRuns, NewWeights, cannot_edit

WINDOWED = {"swin"}
NAMES = sorted(set(FAMILIES) - WINDOWED)


def runs_of(name: str, subject: whence.Subject | None = None) -> AttentionRuns:
    """The first example of a family; of generated text, as the model saw it before the last token."""
    subject = subject or subject_of(name)
    item = subject.encode(family(name).inputs[0])
    rows = subject.rows(item)
    return AttentionRuns(subject, rows[-1][0] if rows else item)


def reversed_weights(runs: AttentionRuns, number: int, copies: int = 1) -> dict[int, NewWeights]:
    """Weights of a block in reverse order, at every query."""
    own = runs.records[number].weights
    return {number: NewWeights(own.flip(-1).repeat(copies, 1, 1, 1), torch.arange(own.shape[2]))}


@pytest.mark.parametrize("name", NAMES)
def test_own_weights_give_the_own_output_and_shared_layers_that_of_a_whole_run(name: str) -> None:
    runs = runs_of(name)
    last = len(runs.records) - 1
    every = torch.arange(runs.records[last].weights.shape[2])
    own = runs.logits({last: runs.own(last, every)})
    scale = runs.trace.logits.abs().max().clamp(min=1.0)
    assert (own - runs.trace.logits).abs().max() <= 1e-6 * scale
    for number in sorted({0, last}):
        edits = reversed_weights(runs, number, copies=3)
        shared, whole = runs.logits(edits, variants=3), runs.logits(edits, variants=3, whole=True)
        assert (shared - whole).abs().max() <= 1e-6 * scale
    assert (runs.logits(reversed_weights(runs, 0)) - runs.trace.logits).abs().max() > 1e-3  # an edit does something


@pytest.mark.parametrize("name", ["bert", "vit", "llama", "t5", "lxmert", "from-scratch"])
def test_an_edit_is_what_a_hook_on_the_attention_would_do(name: str) -> None:
    """The whole model under a tap of the test's own, which knows nothing of variants and rows."""
    runs = runs_of(name)
    last = len(runs.records) - 1
    edits = reversed_weights(runs, last)

    def swap(record: Any, weights: torch.Tensor, values: torch.Tensor) -> Any:
        return (weights.flip(-1) if record.order == last else weights), values

    plain = runs.subject.logits(runs.batch, edit=swap)
    assert (runs.logits(edits) - plain).abs().max() <= 1e-6 * plain.abs().max().clamp(min=1.0)


@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "vit"])
def test_layers_before_the_edited_one_run_once(name: str) -> None:
    """Layers are counted by their feed-forward parts: hooks on layers themselves also see calls that are not run."""
    made = fresh(name)
    runs = runs_of(name, whence.wrap(made.model, made.processor, **made.kwargs))
    last = len(runs.records) - 1
    runs.logits(reversed_weights(runs, last))  # finds out about layers
    sites = runs.subject.structure(runs.batch).calls
    first = next(iter(sites.values()))[0].module
    inside = next(m for n, m in made.model.named_modules() if n.startswith(f"{first}.") and not list(m.children()))
    calls: list[int] = []
    handle = inside.register_forward_hook(lambda *given: calls.append(1))
    runs.logits(reversed_weights(runs, last, copies=40), variants=40)
    assert calls == []
    runs.logits(reversed_weights(runs, last), whole=True)
    handle.remove()
    assert calls == [1]


def at_read_tokens(runs: AttentionRuns, copies: int = 1) -> dict[int, NewWeights]:
    """Reversed weights of the last blocks of the stream that decides, at the tokens that the output reads."""
    stream, marks = next(iter(runs.trace.deciding.items()))
    rows = marks[0].nonzero()[:, 0]
    last = {record.key: record.order for record in runs.records if record.query == stream}
    return {
        number: NewWeights(runs.records[number].weights[:, :, rows].flip(-1).repeat(copies, 1, 1, 1), rows)
        for number in last.values()
    }


@pytest.mark.parametrize("name", NAMES)
def test_running_only_the_tokens_that_are_read_gives_what_the_whole_model_gives(name: str) -> None:
    runs = runs_of(name)
    edits = at_read_tokens(runs, copies=3)
    fast, whole = runs.logits(edits, variants=3), runs.logits(edits, variants=3, whole=True)
    assert (fast - whole).abs().max() <= 2e-6 * whole.abs().max().clamp(min=1.0)
    assert (fast - runs.trace.logits).abs().max() > 1e-4


@pytest.mark.parametrize("name", ["bert", "xlnet", "vit", "llama", "gpt-oss", "t5", "from-scratch"])
def test_the_last_layer_is_run_at_the_tokens_that_are_read_alone(name: str) -> None:
    made = fresh(name)
    runs = runs_of(name, whence.wrap(made.model, made.processor, **made.kwargs))
    runs.logits(at_read_tokens(runs))  # finds out about layers
    last = runs.subject.structure(runs.batch).calls[next(iter(runs.trace.deciding))][-1].module
    inside = next(m for n, m in made.model.named_modules() if n.startswith(last) and isinstance(m, torch.nn.Linear))
    shapes: list[Any] = []
    handle = inside.register_forward_hook(lambda module, given, out: shapes.append(tuple(out.shape[:2])))
    runs.logits(at_read_tokens(runs, copies=7), variants=7)
    handle.remove()
    assert [sorted(shape) for shape in shapes] == [[1, 7]]  # some models have tokens first


def test_the_model_is_given_back_as_it_was() -> None:
    made = fresh("bert")
    subject = whence.wrap(made.model, made.processor, **made.kwargs)
    before = subject.fingerprint(full=True)
    runs = runs_of("bert", subject)
    runs.logits(reversed_weights(runs, len(runs.records) - 1))
    assert subject.fingerprint(full=True) == before
    assert not any("forward" in vars(module) for module in made.model.modules())


def test_layers_hand_out_what_they_gave_only_while_the_model_is_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else another thread could call a model whose layers are not run."""
    made = fresh("bert")
    runs = runs_of("bert", whence.wrap(made.model, made.processor, **made.kwargs))
    stand_in, lent = attention_runs._stand_in, []

    def noted(*given: Any) -> Any:
        lent.append(not any(parameter.requires_grad for parameter in made.model.parameters()))  # as in a loan
        return stand_in(*given)

    monkeypatch.setattr(attention_runs, "_stand_in", noted)
    runs.logits(reversed_weights(runs, len(runs.records) - 1))
    assert lent and all(lent)


def test_a_stopped_run_gives_forwards_back() -> None:
    made = fresh("bert")
    runs = runs_of("bert", whence.wrap(made.model, made.processor, **made.kwargs))
    last = len(runs.records) - 1
    wrong = NewWeights(torch.zeros(1, 1, 1, 1), torch.tensor([0]))
    runs.logits(reversed_weights(runs, last))
    with pytest.raises(Exception):  # noqa: B017  whatever torch says of the shapes
        runs.logits({last: wrong})
    assert not any("forward" in vars(module) for module in made.model.modules())


class Remembering(torch.nn.Module):
    """Adds what its layers have seen, which a layer that is left out does not note."""

    def __init__(self) -> None:
        super().__init__()
        made = fresh("from-scratch")
        self.inner = made.model
        self.total: list[torch.Tensor] = []
        for block in self.inner.blocks:  # type: ignore[union-attr]
            block.network.register_forward_hook(lambda m, a, out: self.total.append(out.sum((1, 2))))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self.total.clear()
        logits = self.inner(input)
        return logits + torch.stack(self.total).sum(0)[:, None] * torch.tensor([0.1, -0.1, 0.3])


def test_a_model_that_does_more_than_its_layers_is_run_whole() -> None:
    made = fresh("from-scratch")
    subject = whence.wrap(Remembering().eval(), **made.kwargs)
    runs = runs_of("from-scratch", subject)
    last = len(runs.records) - 1
    edits = reversed_weights(runs, last)
    assert torch.equal(runs.logits(edits), runs.logits(edits, whole=True))


def test_gradients_reach_the_new_weights() -> None:
    runs = runs_of("llama")
    last = len(runs.records) - 1
    own = runs.records[last].weights.clone().requires_grad_()
    rows = torch.arange(own.shape[2])
    with torch.enable_grad():
        value = runs.logits({last: NewWeights(own, rows)}, graph=True)[0, 3]
        (gradient,) = torch.autograd.grad(value, own)
    step = torch.zeros_like(own)
    step[0, 1, -1, 2] = 1e-2
    ends = [runs.logits({last: NewWeights((own + sign * step).detach(), rows)})[0, 3] for sign in (1, -1)]
    assert gradient[0, 1, -1, 2].item() == pytest.approx(((ends[0] - ends[1]) / 2e-2).item(), rel=0.05)


def test_what_cannot_be_edited_is_said() -> None:
    swin = subject_of("swin")
    assert "within windows" in str(cannot_edit(swin, swin.batch([swin.encode(family("swin").inputs[0])])))
    bert = subject_of("bert")
    assert cannot_edit(bert, bert.batch([bert.encode("a film")])) is None
