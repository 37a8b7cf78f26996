"""A pass in training: the model runs in the mode it is in, and what the tap saw keeps its graph.

Explaining borrows a model, in eval mode and without gradients of parameters. Training must not: here dropout stays on,
parameters keep their gradients, and attention, head outputs, embeddings and logits are functions of the parameters.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from whence.model.batching import Batch
from whence.model.discovery import deciding_rows, no_attention
from whence.model.forward import PatchesInOrder
from whence.model.loan import attention_path, kept_random_states
from whence.model.subject import Subject
from whence.model.tap import AttentionRecord, Tap
from whence.model.watching import Site, hooked, states_at

__all__ = ["NEEDS", "TrainingPass", "kept_random_states", "module_of", "saved", "training_pass", "watching"]

NEEDS = ("attention", "values", "outputs", "embeddings")  # what a training pass records beside the logits


@dataclass(eq=False)
class TrainingPass:
    """What one pass in training saw, with its graph.

    Attention weights are those before dropout: what the model attends to, not what one draw of dropout left of it.
    """

    batch: Batch
    logits: Tensor = field(default_factory=lambda: torch.empty(0))  # (batch, class)
    attention: list[AttentionRecord] = field(default_factory=list)
    deciding: dict[str, Tensor] = field(default_factory=dict)  # stream -> (batch, token) bool: read by the output
    embeddings: dict[str, Tensor] = field(default_factory=dict)  # stream -> (batch, token, width): enters the blocks
    outputs: Any = None  # what the model returned
    labels: Tensor | None = None  # (batch,): the class of every example
    marks: Tensor | None = None  # (batch, feature) bool: the words that people marked
    marked: Tensor | None = None  # (batch,) bool: the examples that have a rationale
    base: Tensor | None = None  # (batch, class): the logits of the model before training
    _sites: dict[str, Site] = field(default_factory=dict)
    _states: dict[Site, Tensor] = field(default_factory=dict)

    def attention_gradients(self, value: Tensor) -> list[Tensor]:
        """The gradient of a value, (batch,), by the weights of every block, as functions of the parameters.

        (batch, head, query, key) each, by the weights before dropout; zeros for a block that the value does not read.
        """
        parts = [part for record in self.attention for part in record.before_dropout]
        grads = iter(_gradients(value, parts))
        found = []
        for record in self.attention:
            shaped = [
                next(grads)[..., : own.shape[-1]].reshape(own.shape)
                if part.ndim == 4
                else next(grads).reshape(own.shape)
                for part, own in zip(record.before_dropout, record.parts, strict=True)
            ]
            found.append(shaped[0] if len(shaped) == 1 else torch.cat(shaped, 1))
        return found

    def embedding_gradients(self, value: Tensor) -> dict[str, Tensor]:
        """The gradient of a value, (batch,), by the embeddings, stream -> (batch, token, width), with its graph."""
        if not self._sites:
            raise ValueError("this pass kept no embeddings; ask for the need 'embeddings'")
        grads = _gradients(value, [self._states[site] for site in self._sites.values()])
        return {s: site.turned(grad) for (s, site), grad in zip(self._sites.items(), grads, strict=True)}


def _gradients(value: Tensor, tensors: list[Tensor]) -> list[Tensor]:
    """Gradients that can be differentiated again."""
    used = [tensor for tensor in tensors if tensor.requires_grad]
    if not used or not value.requires_grad:
        raise ValueError("the output does not depend on what was recorded in a way that can be differentiated")
    found = torch.autograd.grad(value.sum(), used, create_graph=True, allow_unused=True)
    by_id = {id(tensor): grad for tensor, grad in zip(used, found, strict=True) if grad is not None}
    return [by_id.get(id(tensor), torch.zeros_like(tensor)) for tensor in tensors]


@contextlib.contextmanager
def watching(
    subject: Subject, batch: Batch, needs: Collection[str] = ("attention",), **known: Any
) -> Iterator[TrainingPass]:
    """A scope in which the model is called once, by whoever trains it, on the inputs of a batch; yields what was seen.

    The model runs on its eager attention path, in the mode it is in; its outputs are those without the scope, bit for
    bit, and no random number is drawn. What was seen is there when the scope ends. `needs` are among `NEEDS`; `known`
    are the labels, marks and base logits that losses compare with.
    """
    wrong = sorted(set(needs) - set(NEEDS))
    if wrong:
        raise ValueError(f"a training pass records {', '.join(NEEDS)}, not {wrong[0]!r}")
    _check_known(batch, known)
    discovery = subject.discovery(batch)
    structure, seen = discovery.structure, TrainingPass(batch, **known)
    rules = {stream: discovery.deciding_tokens(batch, stream) for stream in structure.deciding}
    numbers = set(range(len(structure.connections))) if "outputs" in needs else set()
    numbers |= {number for stream, number in structure.deciding.items() if rules[stream] is None}
    tap = Tap(
        subject.model,
        len(batch),
        values="values" in needs,
        outputs=numbers,
        connections=structure.connections,
        undropped=True,
    )
    seen._sites = discovery.sites("embeddings") if "embeddings" in needs else {}
    tensors = [site for site in seen._sites.values() if site.where == "tensor"]
    if tensors:
        raise ValueError(
            f"{subject.name} has no state between its inputs and its first block, so gradients of embeddings cannot be "
            "taken in training; use a loss on attention"
        )
    calls: list[Any] = []
    changes = dict.fromkeys(seen._sites.values(), _in_graph)
    with (
        attention_path(subject.model, "eager"),
        PatchesInOrder() if subject._forward.shuffles else contextlib.nullcontext(),
        states_at(subject.model, (), changes) as seen._states,
        hooked([("", subject.model)], after=lambda *call: calls.append(call[-1])),
        tap if needs else contextlib.nullcontext(),
    ):
        yield seen
    _complete(subject, seen, calls, tap.records, rules, bool(needs))


def _check_known(batch: Batch, known: dict[str, Any]) -> None:
    """Raise where labels, marks or base logits are of another batch; broadcast, they would give wrong numbers."""
    count, features = batch.mask.shape
    wanted = {
        "labels": ((count,), "(batch,)"),
        "marked": ((count,), "(batch,)"),
        "marks": ((count, features), "(batch, feature)"),
        "base": ((count,), "(batch, class)"),
    }
    for name, (shape, axes) in wanted.items():
        found = None if known.get(name) is None else tuple(known[name].shape)
        if found is not None and (found[:1] if name == "base" else found) != shape:
            raise ValueError(
                f"{name} has the shape {found}, and the batch has {count} inputs of {features} features; give {name} "
                f"of this batch, as {axes}"
            )


def _check_classes(seen: TrainingPass) -> None:
    """Raise where labels or base logits are of other classes than the model's."""
    count = seen.logits.shape[-1]
    wrong = [] if seen.labels is None else [label for label in seen.labels.tolist() if not 0 <= label < count]
    if wrong:
        raise ValueError(f"a label is the number of a class, from 0 to {count - 1}, not {wrong[0]}")
    if seen.base is not None and seen.base.shape != seen.logits.shape:
        raise ValueError(
            f"base has the shape {tuple(seen.base.shape)}, and the logits have {tuple(seen.logits.shape)}; give the "
            "logits of the same model before training"
        )


def _complete(
    subject: Subject,
    seen: TrainingPass,
    calls: list[Any],
    records: list[AttentionRecord],
    rules: dict[str, Tensor | None],
    tapped: bool,
) -> None:
    """Fill in `seen` from the calls, attention records and states of the pass."""
    if len(calls) != 1:
        raise RuntimeError(
            f"{subject.name} was called {len(calls)} times in the scope of a training pass; call it once, on the "
            "inputs of the batch"
        )
    seen.outputs, seen.attention = calls[0], records
    seen.logits = subject._forward.decision(seen.outputs, seen.batch)
    _check_classes(seen)
    seen.embeddings = {stream: site.turned(seen._states[site]) for stream, site in seen._sites.items()}
    if tapped and not records:
        raise ValueError(no_attention(subject.model))
    open_ones = [stream for stream, rows in rules.items() if rows is None]
    found = deciding_rows(records, seen.logits, subject.structure(seen.batch)) if open_ones and records else {}
    seen.deciding = {
        s: rows if rows is not None else found[s] for s, rows in rules.items() if rows is not None or s in found
    }


def training_pass(
    subject: Subject, batch: Batch, needs: Collection[str] = ("attention",), **known: Any
) -> TrainingPass:
    """One pass over a batch, in the mode the model is in, that keeps its graph; as `watching`, with the call made."""
    tensors: dict[str, Any] = dict(batch.tensors)
    first = [tensors.pop("input")] if "input" in tensors else []
    if subject.generates:
        tensors["use_cache"] = False
    with watching(subject, batch, needs, **known) as seen:
        subject.model(*first, **tensors)
    return seen


def _in_graph(state: Tensor) -> Tensor:
    """The state itself; where nothing below it is trained, as a leaf, so that it can be differentiated at."""
    return state if state.requires_grad else state.detach().requires_grad_()


def module_of(subject: Subject) -> nn.Module:
    """The model, for a trainer, which must touch it."""
    return subject.model


def saved(subject: Subject, folder: Path) -> None:
    """Write the model as a folder that `whence.load` reads: weights as safetensors, config, tokenizer or processor.

    Of a plain torch module there are only weights, model.safetensors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for checkpoint in folder.glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    write = getattr(subject.model, "save_pretrained", None)
    if write is not None:
        write(folder)
    else:
        save_model(subject.model, str(folder / "model.safetensors"))
    if subject.processor is not None:
        subject.processor.save_pretrained(folder)
