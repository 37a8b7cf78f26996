"""Borrowing a model: one lock per model, everything restored on every exit, and a fingerprint to prove it."""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whence.model.foreign_calls import held_back
from whence.model.self_changes import Snapshot

_SCALARS = frozenset({str, int, float, bool, type(None)})
_EMPTY: dict[str, Any] = {}
_CAPTURING = "transformers.utils.output_capturing"  # leaves hooks on a model that was asked for its hidden states
_CAPTURED = "_output_capturing_hooks_installed"  # what it notes on the model then
_EXTRA_OUTPUTS = ("_output_attentions", "output_attentions", "output_hidden_states")


class _Loan:
    """The lock of one model and how deep it is held."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.depth = 0


_loans: weakref.WeakKeyDictionary[nn.Module, _Loan] = weakref.WeakKeyDictionary()
_loans_lock = threading.Lock()


@contextlib.contextmanager
def lent(model: nn.Module) -> Iterator[None]:
    """Hold the model alone: eval mode, no parameter gradients, random states saved; given back as it was.

    Re-entrant: only the outermost entry changes and restores. A change that is left over raises on the way out.
    Calls of the model by other threads wait until the loan ends.
    """
    with _loans_lock:
        loan = _loans.setdefault(model, _Loan())
    with loan.lock, torch.inference_mode(False):  # a caller's inference mode would leave nothing to differentiate
        loan.depth += 1
        try:
            with contextlib.nullcontext() if loan.depth > 1 else held_back(model, loan.lock), _changed(model, loan):
                yield
        finally:
            loan.depth -= 1


@contextlib.contextmanager
def _changed(model: nn.Module, loan: _Loan) -> Iterator[None]:
    """The outermost scope of a loan: what explaining needs to be otherwise is set, then put back and compared."""
    if loan.depth > 1:
        yield
        return
    parameters = list(model.parameters())
    if any(parameter.is_inference() for parameter in parameters):
        raise ValueError("the model was made in torch.inference_mode() and has no gradients; make it outside of it")
    known = configs(model)
    before, samples, snapshot = _state(model), Samples(parameters), Snapshot(model, known)
    extra = [(vars(c), key, vars(c)[key]) for c in known for key in _EXTRA_OUTPUTS if vars(c).get(key)]
    modes = [(module, module.training) for module in model.modules()]
    frozen = [parameter for parameter in parameters if parameter.requires_grad]
    hooks = hooks_on(model)
    states = _random_states()
    try:
        for holder, key, _ in extra:  # asked for extra outputs, transformers leaves hooks on the model
            holder[key] = False
        for module, training in modes:
            if training:
                module.training = False
        for parameter in frozen:
            parameter.requires_grad_(False)
        yield
    finally:
        snapshot.restore()  # what the model's own forward changed about itself
        unhook(hooks)
        for holder, key, value in extra:
            holder[key] = value
        for module, training in modes:
            if module.training is not training:
                module.training = training
        for parameter in frozen:
            parameter.requires_grad_(True)
        _restore_random(states)
    changed = difference(before, _state(model)) or samples.changed()
    if changed:
        raise RuntimeError(f"the model was not given back as it was lent: {changed} changed while explaining")


Hooks = list[tuple[nn.Module, set[int], bool]]  # each module's hooks, and whether it is marked to have transformers'


def hooks_on(model: nn.Module) -> Hooks:
    """The hooks that a model has now, for `unhook`."""
    return [(module, set(module._forward_hooks), _CAPTURED in vars(module)) for module in model.modules()]


def unhook(before: Hooks) -> bool:
    """Take off the hooks that transformers hung on parts of a model which asks them for hidden states, as LLaVA does.

    The result is whether there were any.
    """
    found = False
    for module, numbers, marked in before:
        for number, hook in list(module._forward_hooks.items()):
            if number not in numbers and getattr(hook, "__module__", None) == _CAPTURING:
                del module._forward_hooks[number]
                found = True
        if not marked:
            vars(module).pop(_CAPTURED, None)
    return found


class Samples:
    """A few numbers of every parameter, which tell of changes behind the back of version counters.

    A change through `.data` leaves the counter as it is. Comparing all numbers would cost a tenth of a short call;
    these few cost less than a fiftieth.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._views: dict[tuple[Any, Any], list[Tensor]] = defaultdict(list)  # by device and type of number
        with torch.no_grad():
            for parameter in parameters:
                if parameter.layout is torch.strided and not parameter.is_meta and parameter.numel():
                    self._views[parameter.device, parameter.dtype].append(_spread(parameter))
        self._before = self._bytes()

    def _bytes(self) -> list[Tensor]:
        return [torch.cat(views).view(torch.uint8) for views in self._views.values()]

    def changed(self) -> str:
        """What had changed, in words; empty when nothing had."""
        same = all(torch.equal(old, new) for old, new in zip(self._before, self._bytes(), strict=True))
        return "" if same else "the numbers of a parameter"


def _spread(tensor: Tensor, count: int = 16) -> Tensor:
    """A view of `count` numbers, or fewer, evenly spread over a tensor's memory."""
    if tensor.is_contiguous():
        reach = tensor.numel()
    else:
        reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    step = -(-reach // count)
    return tensor.as_strided(((reach - 1) // step + 1,), (step,))


@contextlib.contextmanager
def attention_path(model: nn.Module, path: str | None) -> Iterator[None]:
    """Run the model on this attention path, "eager" or "sdpa"; with None, or without the path, on the model's own.

    Every sub-config (each tower of an image+text model has one) is switched, and gets its own setting back.
    """
    if path is None or (path == "sdpa" and not getattr(model, "_supports_sdpa", False)):
        yield
        return
    holders = [vars(c) for c in configs(model) if "_attn_implementation_internal" in vars(c)]
    saved = [(h, "_attn_implementation_internal", h["_attn_implementation_internal"]) for h in holders]
    # some modules keep a copy of their config's setting
    saved += [
        (vars(m), "_attn_implementation", vars(m)["_attn_implementation"])
        for m in model.modules()
        if "_attn_implementation" in vars(m)
    ]
    try:
        for holder, key, _ in saved:
            holder[key] = path
        yield
    finally:
        for holder, key, value in saved:
            holder[key] = value


def configs(model: nn.Module) -> list[Any]:
    """Every config object of the model and its parts, for generation too, each once."""
    found: dict[int, Any] = {}

    def visit(config: Any) -> None:
        if config is None or id(config) in found or not hasattr(config, "__dict__"):
            return
        found[id(config)] = config
        for name in getattr(config, "sub_configs", {}) or {}:
            visit(getattr(config, name, None))

    for module in model.modules():
        for name in ("config", "generation_config"):
            visit(vars(module).get(name))
    return list(found.values())


def fingerprint(model: nn.Module, *, full: bool = False) -> dict[str, Any]:
    """Everything that explaining must not change, random states included; `full` adds a hash of every tensor."""
    prints = _state(model)
    prints["random states"] = [repr(state) if isinstance(state, tuple) else _bytes(state) for state in _random_states()]
    if full:
        tensors = _tensors(model.named_modules())
        prints |= {f"content of {name}": hashlib.sha256(_bytes(tensor)).hexdigest() for name, tensor in tensors}
    return prints


def _state(model: nn.Module) -> dict[str, Any]:
    """Identity and version of every tensor, and the attributes of every module and config."""
    prints: dict[str, Any] = {}
    modules = list(model.named_modules())
    for name, tensor in _tensors(modules):
        version = None if tensor.is_inference() else tensor._version
        grad = None if tensor.grad is None else (id(tensor.grad), tensor.grad._version)
        prints[f"tensor {name}"] = (id(tensor), version, tensor.data_ptr(), tensor.requires_grad, grad)
    for name, module in modules:
        prints[f"module {name or type(model).__name__}"] = {k: _plain(v) for k, v in vars(module).items()}
    for number, config in enumerate(configs(model)):
        prints[f"config {number} ({type(config).__name__})"] = {k: _plain(v) for k, v in vars(config).items()}
    return prints


def _random_states() -> list[Any]:
    name, keys, *rest = np.random.get_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [random.getstate(), (name, tuple(keys), *rest), torch.get_rng_state(), *devices]


def _restore_random(states: list[Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    if states[3:]:
        torch.cuda.set_rng_state_all(states[3:])


@contextlib.contextmanager
def kept_random_states() -> Iterator[None]:
    """A scope that may draw from the global random generators, which are as before when it ends."""
    states = _random_states()
    try:
        yield
    finally:
        _restore_random(states)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The first things in which two fingerprints differ, in words; empty when they are equal."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _tensors(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers of these modules."""
    for prefix, module in modules:
        for table in (module._parameters, module._buffers):
            yield from ((f"{prefix}.{name}", tensor) for name, tensor in table.items() if tensor is not None)


def _plain(value: Any) -> Any:
    """A copy for comparing, which later changes to the value do not reach."""
    if type(value) in _SCALARS:
        return value
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()} if value else _EMPTY  # most tables of hooks are empty
    if isinstance(value, (list, tuple, set)):
        return tuple(map(repr, value))
    return value if isinstance(value, (str, int, float)) else id(value)
