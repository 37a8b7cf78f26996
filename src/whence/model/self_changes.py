"""What a model's own forward changes about itself, and how that is undone.

Some models keep what they computed (`self.last = weights`), fill caches, count in buffers, resize buffers, or exchange
their own submodules (BigBird on short texts). A model that is lent must come back as it was all the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

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

    def restore(self) -> list[tuple[dict[str, Any], str]]:
        """Put everything back; what had changed: the holder of each attribute, or of an entry, and its name."""
        changed: list[tuple[dict[str, Any], str]] = []
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
    """Undoes what every call of a model changes; the first call finds out what, later calls look only there."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._entries: list[tuple[dict[str, Any], str]] | None = None  # attributes and entries that change
        self._buffers: list[tuple[dict[str, Any], str]] = []  # buffers whose numbers change, by module

    @contextlib.contextmanager
    def undone(self) -> Iterator[None]:
        """A scope for one call of the model."""
        if self._entries is None:
            with self._observed():
                yield
            return
        if not self._entries and not self._buffers:
            yield
            return
        saved = [(own, name, own.get(name, _MISSING)) for own, name in self._entries]
        with _on_copies(self._buffers):
            try:
                yield
            finally:
                for own, name, value in saved:
                    if value is _MISSING:
                        own.pop(name, None)
                    else:
                        own[name] = value

    @contextlib.contextmanager
    def _observed(self) -> Iterator[None]:
        """The first call: everything is put back, and what had changed is remembered."""
        snapshot = Snapshot(self._model, [])
        tables = [module._buffers for module in self._model.modules()]
        buffers = [(table, name) for table in tables for name, buffer in table.items() if buffer is not None]
        now: list[Any] = []
        try:
            with _on_copies(buffers) as copies:
                yield
                now = [table.get(name) for table, name in buffers]
        finally:
            changed = snapshot.restore()
        places = zip(buffers, now, copies, strict=True)
        self._buffers = [place for place, buffer, copy in places if buffer is not copy or copy._version]
        known = {(id(table), name) for table, name in self._buffers}
        self._entries = [(own, name) for own, name in changed if (id(own), name) not in known]


@contextlib.contextmanager
def _on_copies(buffers: list[tuple[dict[str, Any], str]]) -> Iterator[list[Tensor]]:
    """Copies stand in for these buffers, so that their own numbers stay as they are."""
    saved = [table[name] for table, name in buffers]
    copies = [buffer.detach().clone() for buffer in saved]
    try:
        for (table, name), copy in zip(buffers, copies, strict=True):
            table[name] = copy
        yield copies
    finally:
        for (table, name), buffer in zip(buffers, saved, strict=True):
            table[name] = buffer


def _restore_content(container: Any, content: Any) -> list[tuple[Any, Any]]:
    """Put back what a container held, in place: others may hold the container; the entries that had changed."""
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
