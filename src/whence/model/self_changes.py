"""What a model's own forward changes about itself, and how that is undone.

Some models keep what they computed (`self.last = weights`), fill caches, count in buffers, resize buffers, exchange
their own submodules (BigBird on short texts), or change their weights (`nn.Embedding(max_norm=...)`, constraints set
through `.data`). A model that is lent must come back as it was all the same.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Entry = tuple[dict[str, Any], str]  # an attribute, or an entry of a dict: what holds it, and its name

_CONTAINERS = (dict, list, set)
_MISSING = object()


class Snapshot:
    """The attributes of every module, and what its lists, dicts and sets hold; hooks are not among them."""

    def __init__(self, model: nn.Module, extra: list[Any]) -> None:
        """`extra` are further objects with attributes, as configs."""
        self._holders = [vars(holder) for holder in (*model.modules(), *extra)]
        self._attributes = [{k: v for k, v in own.items() if "hook" not in k} for own in self._holders]
        self._contents = [
            (value, value.copy())
            for own in self._attributes
            for value in own.values()
            if isinstance(value, _CONTAINERS)
        ]

    def restore(self) -> list[Entry]:
        """Put everything back; return the entries that had changed."""
        changed: list[Entry] = []
        for container, content in self._contents:
            changed += _restore_content(container, content)
        for own, attributes in zip(self._holders, self._attributes, strict=True):
            for name in [name for name in own if name not in attributes and "hook" not in name]:
                del own[name]
                changed.append((own, name))
            for name, value in attributes.items():
                if own.get(name, _MISSING) is not value:
                    own[name] = value
                    changed.append((own, name))
        return changed


class SelfChanges:
    """Undoes what every call of a model changes: `observe` finds out what, later calls look only there."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._observed = False
        self._entries: list[Entry] = []  # attributes and entries that change
        self._tensors: list[Entry] = []  # parameters and buffers whose numbers change, by the module's table of them

    def observe(self, call: Callable[[], Any]) -> None:
        """Run the model for the first time, only to see what it changes, and put everything back."""
        if self._observed:
            return
        snapshot, writes = Snapshot(self._model, []), ParameterWrites(self._model)
        tables = [module._buffers for module in self._model.modules()]
        buffers: list[Entry] = [(table, name) for table in tables for name, b in table.items() if b is not None]
        now: list[Any] = []
        try:
            with _on_copies(buffers) as copies, writes:
                call()
                now = [table.get(name) for table, name in buffers]
        finally:
            changed = snapshot.restore()
            written = writes.restore()
        places = zip(buffers, now, copies, strict=True)
        self._tensors = [place for place, buffer, copy in places if buffer is not copy or copy._version]
        self._tensors += [
            (module._parameters, name)
            for module in self._model.modules()
            for name, parameter in module._parameters.items()
            if id(parameter) in written
        ]
        known = {(id(table), name) for table, name in self._tensors}
        self._entries = [(own, name) for own, name in changed if (id(own), name) not in known]
        self._observed = True

    @contextlib.contextmanager
    def undone(self, at_first: Sequence[Any] | None = None) -> Iterator[None]:
        """A scope for one call of the model, after which the model's changes to itself are undone.

        A layer that is called alone starts with `at_first`: what `now` returned when the model called that layer.
        """
        if not self._entries and not self._tensors:
            yield
            return
        saved = self.now()
        with _on_copies(self._tensors):
            try:
                self._set(saved if at_first is None else at_first)
                yield
            finally:
                self._set(saved)

    def now(self) -> list[Any]:
        """The present values of the attributes and entries that the model changes."""
        return [own.get(name, _MISSING) for own, name in self._entries]

    def _set(self, values: Sequence[Any]) -> None:
        for (own, name), value in zip(self._entries, values, strict=True):
            if value is _MISSING:
                own.pop(name, None)
            else:
                own[name] = value


class ParameterWrites(TorchDispatchMode):
    """Sees every operation that writes to a parameter's memory, by whichever name; `restore` undoes the writes.

    Version counters do not show all writes: a change through `.data` does not count. A parameter is copied just
    before the first write, so that a model that changes none costs no memory.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._before = [(p, p.detach(), p._version) for p in model.parameters() if p.device.type != "meta"]
        self._by_memory: Mapping[int, list[Tensor]] = defaultdict(list)
        for _, alias, _ in self._before:
            self._by_memory[alias.untyped_storage().data_ptr()].append(alias)
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}  # by identity: memory, and a copy from before a write

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "_schema", None) is not None and func._schema.is_mutable:
            for number, argument in enumerate(func._schema.arguments):
                given = args[number] if number < len(args) else kwargs.get(argument.name)
                if argument.alias_info is not None and argument.alias_info.is_write:
                    self._keep(given if isinstance(given, (list, tuple)) else [given])
        return func(*args, **kwargs)

    def _keep(self, tensors: Sequence[Any]) -> None:
        for tensor in tensors:
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
                for alias in self._by_memory.get(tensor.untyped_storage().data_ptr(), ()):
                    self._copies.setdefault(id(alias), (alias, alias.clone()))

    def restore(self) -> set[int]:
        """Give every parameter its memory and numbers back; return the identities of the changed ones."""
        changed = set()
        for parameter, alias, version in self._before:
            exchanged = parameter.data_ptr() != alias.data_ptr()
            if exchanged:
                parameter.data = alias
            if id(alias) in self._copies:
                alias.data.copy_(self._copies[id(alias)][1])
            if exchanged or id(alias) in self._copies:
                changed.add(id(parameter))
                torch._C._autograd._unsafe_set_version_counter((parameter,), (version,))
        return changed


@contextlib.contextmanager
def _on_copies(places: list[Entry]) -> Iterator[list[Tensor]]:
    """Copies stand in for these parameters and buffers, so that their own numbers stay as they are."""
    saved = [table[name] for table, name in places]
    by_identity = {id(tensor): _copy(tensor) for tensor in saved}  # a tensor that two modules share has one copy
    copies = [by_identity[id(tensor)] for tensor in saved]
    try:
        for (table, name), copy in zip(places, copies, strict=True):
            table[name] = copy
        yield copies
    finally:
        for (table, name), tensor in zip(places, saved, strict=True):
            table[name] = tensor


def _copy(tensor: Tensor) -> Tensor:
    copy = tensor.detach().clone()
    return nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy


def _restore_content(container: Any, content: Any) -> list[Entry]:
    """Restore a container in place, because other objects may hold it; return the entries that had changed."""
    if isinstance(container, dict):
        keys = [k for k in {**content, **container} if container.get(k, _MISSING) is not content.get(k, _MISSING)]
        if keys:
            container.clear()
            container.update(content)
        return [(container, key) for key in keys if isinstance(key, str)]
    if isinstance(container, set):  # the order of a set that is filled again may differ, so equal ones are left alone
        if container != content:
            container.clear()
            container.update(content)
    elif len(container) != len(content) or any(a is not b for a, b in zip(container, content, strict=True)):
        container[:] = content
    return []
