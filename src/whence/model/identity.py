"""Which model gave a number: hashes of all of its weights, of its code and settings, and of how it encodes inputs."""

from __future__ import annotations

import hashlib
import json
import weakref
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from whence.core.checksums import checksum, code_of, digest_of
from whence.model.interventions import described
from whence.model.loan import Samples, configs
from whence.model.subject import Subject

_known: weakref.WeakKeyDictionary[nn.Module, tuple[Any, Samples, str]] = weakref.WeakKeyDictionary()
_PLAIN = (str, int, float, bool, type(None), torch.dtype)
_PROCESSOR_PARTS = ("tokenizer", "image_processor")
_LIBRARIES = ("builtins", "torch", "transformers", "typing", "abc")  # a result records their versions beside the hash
# Entries of a config that say where it came from, not what the model computes.
_ORIGIN = ("transformers_version", "name_or_path", "dtype", "torch_dtype")


def model_hashes(subject: Subject) -> dict[str, str]:
    """Hashes that tell models apart: "weights" (every number), "settings" (modules, config, task), "encoding"."""
    return {
        "weights": weights_hash(subject.model, anew=True),
        "settings": _settings(subject),
        "encoding": _encoding(subject),
    }


def model_hash(subject: Subject) -> str:
    """One hash of all that `model_hashes` tells apart."""
    return checksum(model_hashes(subject))


def known_weights(subject: Subject) -> str:
    """The hash of a subject's weights for every result that it gives: computed once, and again after a change."""
    return weights_hash(subject.model)


def weights_hash(model: nn.Module, anew: bool = False) -> str:
    """The SHA-256 of every parameter and buffer: name, type, shape and bytes.

    The hash of a model is kept until a parameter or buffer is exchanged or written to. A write through `.data` leaves
    no trace but the numbers, of which a few are looked at; `anew` looks at all.
    """
    tensors = [*model.named_parameters(), *model.named_buffers()]
    state = [(name, id(one), None if one.is_inference() else one._version, one.data_ptr()) for name, one in tensors]
    known = _known.get(model)
    if not anew and known is not None and known[0] == state and not known[1].changed():
        return known[2]
    found = hashlib.sha256()
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(_content(tensor))
    _known[model] = (state, Samples([p for p in model.parameters() if not p.is_inference()]), found.hexdigest())
    return found.hexdigest()


def _content(tensor: Tensor) -> Any:
    """The bytes of a tensor, without a copy where its memory is here and in one piece."""
    if tensor.is_meta or not tensor.numel():
        return b""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return str(tensor.detach().cpu()).encode()
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _settings(subject: Subject) -> str:
    """Everything but weights that decides what the model computes: its modules and their settings, configs, task."""
    modules = [
        [name, f"{type(module).__module__}.{type(module).__qualname__}", _attributes(module), _own_code(type(module))]
        for name, module in subject.model.named_modules()
    ]
    known = [
        json.dumps({k: v for k, v in vars(config).items() if not k.startswith("_") and k not in _ORIGIN}, default=str)
        for config in configs(subject.model)
    ]
    under = described(subject)  # an intervention on attention computes something else
    changed = [under, _function(subject._edit)] if under else []
    return checksum([modules, known, subject.task, list(subject.labels or ()), str(subject.dtype), *changed])


def _attributes(module: nn.Module) -> dict[str, str]:
    """The plain settings of a module, as `eps`, and the functions that it holds, by name."""
    found = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name == "training":
            continue
        if isinstance(value, _PLAIN):
            found[name] = repr(value)
        elif isinstance(value, (list, tuple)) and all(isinstance(one, _PLAIN) for one in value):
            found[name] = repr(list(value))
        elif isinstance(value, partial) or hasattr(value, "__qualname__"):
            found[name] = repr(_called(value))
    return found


def _called(value: Any) -> list[Any]:
    """A function or class by its name and, where it is of no library that `versions` names, by what it does."""
    if isinstance(value, partial):
        bound = [*enumerate(value.args), *sorted(value.keywords.items())]
        return ["partial", _called(value.func), [[k, repr(v)] for k, v in bound if isinstance(v, _PLAIN)]]
    name = f"{value.__module__}.{getattr(value, '__qualname__', type(value).__qualname__)}"
    if not hasattr(value, "__code__") or _of_library(value):
        return [name]
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    return [name, code_of(value.__code__), repr([one for one in cells if isinstance(one, _PLAIN)])]


def _own_code(kind: type) -> list[Any]:
    """What the functions of a user's own modules do: a changed `forward` is another model, whatever its weights."""
    own = [base for base in kind.__mro__ if not _of_library(base)]
    return [
        [name, code_of(value.__code__)]
        for base in own
        for name, value in vars(base).items()
        if hasattr(value, "__code__")
    ]


def _of_library(value: Any) -> bool:
    return (value.__module__ or "").partition(".")[0] in _LIBRARIES


def _encoding(subject: Subject) -> str:
    """How raw inputs become tensors: tokenizer, image processor, own functions."""
    parts: list[Any] = [_function(one) for one in (subject._encode, subject._output)]
    for holder in (subject.processor, *(getattr(subject.processor, part, None) for part in _PROCESSOR_PARTS)):
        backend = getattr(holder, "backend_tokenizer", None)
        if backend is not None:
            parts.append(backend.to_str())
        elif hasattr(holder, "get_vocab"):
            parts.append(sorted(holder.get_vocab().items()))
        elif hasattr(holder, "to_json_string"):
            parts.append(holder.to_json_string())
        parts.append(type(holder).__name__)
    return checksum(parts)


def _function(function: Any) -> str:
    """A function by what it does, an object that can be called by its type."""
    known = function.func if isinstance(function, partial) else function
    return digest_of(known) if hasattr(known, "__code__") else type(known).__qualname__
