"""Calling a model: its arguments, undoing what its forward changes about itself, and its decision logits."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whence.core import stopping
from whence.core.wording import first_sentence
from whence.model.batching import Batch, Common
from whence.model.loan import hooks_on, unhook
from whence.model.precision import wide
from whence.model.self_changes import SelfChanges
from whence.model.watching import Site, hooked, states_at

Changes = Mapping[Site, Callable[[Tensor], Tensor]]
GONE = -1e4  # the logit of an answer at a deleted token or at padding: its p is 0


class Forward:
    """A model that is called on tensors.

    `observe` runs it once, only to find out what its forward changes about itself and whether it shuffles patches.
    Every call undoes those changes, and patches keep their order.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        generates: bool,
        output: Callable[[Any], Tensor] | None,
        reads: str = "",
        classes: int | None = None,
    ) -> None:
        self.model, self._classes = model, classes  # how many classes have names; None where that is not known
        self._generates, self._output, self._reads = generates, output, reads
        self.self_changes = SelfChanges(model)
        self._shuffles: bool | None = None  # the model draws the order of its patches; None: not known yet
        self._hangs_hooks: bool | None = None  # its forward has transformers hang hooks on its parts; None: not known

    @property
    def shuffles(self) -> bool:
        """Whether the model was seen to draw the order of its patches at random."""
        return bool(self._shuffles)

    def observe(self, tensors: Mapping[str, Tensor]) -> None:
        """Find out, by the first run of the model, what its forward changes; to be called before hooks are set."""
        self.self_changes.observe(lambda: self._called(tensors))

    def outputs(self, tensors: Mapping[str, Any]) -> Any:
        """What the model returns; the tensor "input" is its first positional argument."""
        with self.self_changes.undone():
            return self._called(tensors)

    def _called(self, tensors: Mapping[str, Any]) -> Any:
        """Call the model on copies of the tensors, because some models change their inputs in place."""
        arguments = {name: given.clone() if isinstance(given, Tensor) else given for name, given in tensors.items()}
        first = [arguments.pop("input")] if "input" in arguments else []
        if self._generates:
            arguments.setdefault("use_cache", False)
        order = PatchesInOrder()
        in_order = contextlib.nullcontext() if self._shuffles is False else order
        hooks = [] if self._hangs_hooks is False else hooks_on(self.model)
        try:
            with stoppable_modules(self.model), self.misfits(tensors), in_order:
                outputs = self.model(*first, **arguments)
        finally:
            hung = unhook(hooks)
        if self._shuffles is None:
            self._shuffles, self._hangs_hooks = order.used, hung
        return outputs

    @contextlib.contextmanager
    def misfits(self, tensors: Mapping[str, Any]) -> Iterator[None]:
        """A scope in which an operation of the model that fails on these tensors is said to do so in one sentence."""
        try:
            yield
        except (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            if not _of_an_operation(error):
                raise
            name = type(self.model).__name__
            given = [(key, t) for key, t in tensors.items() if isinstance(t, Tensor)]
            shapes = ", ".join(f"{key} {tuple(t.shape)} of {str(t.dtype)[6:]}" for key, t in given)
            raise ValueError(
                f"{name} cannot be run on {shapes}: {first_sentence(error)}; check that its "
                "tokenizer, processor or encode= fits it"
            ) from error

    def logits(self, outputs: Any) -> Tensor:
        """The logits among what the model returned, axes as the model has them."""
        logits = self._output(outputs) if self._output is not None else logits_of(outputs)
        if not isinstance(logits, Tensor):
            raise ValueError(
                f"no logits were found in the output of {type(self.model).__name__}, a {type(outputs).__name__}; "
                "pass whence.wrap(..., output=function) that returns them, shape (batch, class)"
            )
        return logits

    def decision(self, outputs: Any, batch: Batch) -> Tensor:
        """The logits that the model decides by: (batch, class).

        For generated text those at the last real position, or at `batch.read_at`; of a model that decides at single
        tokens, those at the tokens that `batch.decides` names, one after the other. Of a statement, the
        log-probabilities of its tokens.
        """
        logits = self.logits(outputs)
        if logits.ndim != 3 and (self._generates or self._reads):
            raise ValueError(
                f"a model of this task gives logits at every token, shape (batch, token, class), and "
                f"{type(self.model).__name__} gave {tuple(logits.shape)}; name the task that it was made for as task="
            )
        if logits.ndim == 3 and self._reads:
            return _at_tokens(logits, batch.decides)
        if logits.ndim == 3 and self._generates and batch.inputs[0].answer:
            return _of_answers(logits, batch.decides, batch.answers)
        if logits.ndim == 3 and self._generates:
            last = torch.arange(len(batch), device=logits.device), batch.last_tokens(list(batch.streams)[-1])
            return logits[batch.read_at or last]
        logits = logits[:, None] if logits.ndim == 1 else logits
        if logits.ndim != 2 or len(logits) != len(batch):
            raise ValueError(
                f"expected one row of logits per example, shape ({len(batch)}, class), and got {tuple(logits.shape)}; "
                "pass whence.wrap(..., output=function) that returns them"
            )
        if not logits.is_floating_point() or not logits.shape[1]:
            raise ValueError(
                f"logits are numbers with a fraction, one per class, and {type(self.model).__name__} gave "
                f"{logits.shape[1]} of {str(logits.dtype)[6:]}; "
                "pass whence.wrap(..., output=function) that returns them as they were before a decision"
            )
        if self._classes not in (None, logits.shape[1]):
            raise ValueError(
                f"labels= names {self._classes} classes, and {type(self.model).__name__} gives {logits.shape[1]} "
                "logits; give every class a name"
            )
        return logits

    def run(self, batch: Batch, watch: Iterable[Site] = (), changes: Changes | None = None) -> Seen:
        """The decision logits, and the states at the sites, axes as the model has them."""
        changes = changes or {}
        tensors = dict(batch.tensors)
        inputs = {}
        for site in {*watch, *changes}:
            if site.where == "tensor":
                key = str(site.key)
                tensors[key] = changes[site](tensors[key]) if site in changes else tensors[key]
                inputs[site] = tensors[key]
        self.observe(tensors)
        if batch.common is not None:
            return self._after(batch, tensors, changes, batch.common), inputs
        with states_at(self.model, watch, changes) as states:
            outputs = self.outputs(tensors)
        return self.decision(outputs, batch), {**states, **inputs}

    def _after(self, batch: Batch, tensors: Mapping[str, Tensor], changes: Changes, common: Common) -> Tensor:
        """The decision logits of examples that go on from the same first tokens."""

        def run(tensors: Mapping[str, Any], changes: Changes) -> Any:
            with states_at(self.model, (), changes):
                return self.outputs(tensors)

        given = (tensors, changes, common.tokens, common.count)
        logits = common.cache.logits_after(run, *given, self.logits)
        if batch.inputs[0].answer:
            places = batch.decides.to(logits.device)
            return _of_answers(logits, torch.where(places < 0, places, places - common.count), batch.answers)
        examples, places = batch.read_at or (torch.arange(len(batch)), batch.last_tokens(list(batch.streams)[-1]))
        return logits[examples.to(logits.device), places.to(logits.device) - common.count]


def stoppable_modules(module: nn.Module) -> contextlib.AbstractContextManager[None]:
    """A scope in which work that may be stopped is asked about at every call of a module's parts."""
    if not stopping.may_stop():
        return contextlib.nullcontext()
    stopping.check()
    return hooked(module.named_modules(), before=lambda *call: stopping.check())


def _of_an_operation(error: Exception) -> bool:
    """Whether an operation of torch, or code of transformers, raised an error; not a hook or a module of the user's."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    theirs = any(f"{os.sep}{package}{os.sep}" in last.filename for package in ("torch", "transformers"))
    watched = (
        last.name == "__torch_function__" and f"{os.sep}whence{os.sep}" in last.filename
    )  # it called the operation
    return (theirs or watched) and str(error).strip() != "" and not isinstance(error, torch.OutOfMemoryError)


Seen = tuple[Tensor, dict[Site, Tensor]]  # decision logits, and states by site


def _at_tokens(logits: Tensor, places: Tensor) -> Tensor:
    """(batch, token, class) at some tokens, (batch, place): (batch, place x class)."""
    examples = torch.arange(len(logits), device=logits.device)
    if places.shape[1] == 1:
        return logits[examples, places[:, 0]]
    rows = logits[examples[:, None], places.clamp(min=0)]
    if bool((places < 0).any()):
        rows = torch.where((places < 0)[..., None], torch.full_like(rows, GONE), rows)
    return rows.flatten(1)


def _of_answers(logits: Tensor, places: Tensor, ids: Tensor) -> Tensor:
    """The log-probabilities of given tokens, each read at a place: (batch, place); 0 where there is no place."""
    examples = torch.arange(len(logits), device=logits.device)[:, None]
    rows = wide(logits[examples, places.clamp(min=0)]).log_softmax(-1)  # (batch, place, token)
    return rows.gather(-1, ids[..., None])[..., 0].masked_fill(places < 0, 0.0)


class PatchesInOrder(TorchFunctionMode):
    """Keeps the patches of a model that shuffles all of them (ViLT) in order: each feature then has a known place.

    The logits stay the same, because attention sums over patches in any order.
    """

    used = False  # the model did shuffle

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.multinomial and out.shape == args[0].shape:
            places = torch.arange(out.shape[-1], device=out.device).expand_as(out)
            if torch.equal(out.sort(-1).values, places):
                self.used = True
                return places
        return out


def logits_of(outputs: Any) -> Any:
    """The logits among what a model returns; None where there are none."""
    if isinstance(outputs, Tensor):
        return outputs
    similarity = getattr(outputs, "logits_per_image", None)
    if similarity is not None:
        return similarity.diagonal()[:, None]
    if getattr(outputs, "start_logits", None) is not None:
        return torch.stack([outputs.start_logits, outputs.end_logits], -1)  # (batch, token, start and end)
    for name in ("logits", "question_answering_score", "prediction_logits"):
        if getattr(outputs, name, None) is not None:
            return getattr(outputs, name)
    return outputs[0] if isinstance(outputs, (tuple, list)) and outputs else None
