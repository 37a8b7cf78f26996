"""The models that a request may name: those that ship along, and folders that the server was started with."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence import zoo
from whence.core.tasks import TASKS
from whence.core.wording import suggest
from whence.zoo import Example

if TYPE_CHECKING:
    from whence.model.subject import Subject

EXAMPLES = 8  # examples of every embedded model
SEED = 17  # seed of these examples
_LOADING = threading.RLock()  # libraries are imported and models read by one thread of the process at a time


class UnknownModel(LookupError):
    """A request named a model that is not in the catalogue."""


class Catalogue:
    """Models by name, loaded when first asked for; nothing but a name of this list leads to a model."""

    def __init__(self, folders: Mapping[str, Path] | None = None) -> None:
        self.folders = dict(folders or {})
        self.names = (*self.folders, *(name for name in zoo.names() if name not in self.folders))
        self._subjects: dict[str, Subject] = {}
        self._examples: dict[str, list[Example]] = {}
        self._drawing = threading.Lock()  # held while examples are drawn; drawing must not wait for `_LOADING`

    def check(self, name: str) -> str:
        """The name, where it is in the catalogue."""
        if name not in self.names:
            raise UnknownModel(f"there is no model {name!r} here; {suggest(name, self.names)}")
        return name

    def subject(self, name: str) -> Subject:
        """The model of this name; read from its folder the first time."""
        self.check(name)
        with _LOADING:
            if name not in self._subjects:
                from whence.model.loading import load

                self._subjects[name] = load(self.folders.get(name, name))
            return self._subjects[name]

    def methods(self) -> list[Any]:
        """The records of all methods, which imports the libraries they stand on."""
        with _LOADING:
            from whence.api import list_methods

            return list_methods()

    def examples(self, name: str) -> list[Example]:
        """Examples of an embedded model; none of a folder."""
        if self.check(name) in self.folders:
            return []
        with self._drawing:
            if name not in self._examples:
                self._examples[name] = zoo.examples(name, EXAMPLES, SEED)
            return self._examples[name]

    def summary(self, name: str) -> dict[str, Any]:
        """The facts about a model that need no weights."""
        if self.check(name) in self.folders:
            return {"name": name, "embedded": False, "what": "a model of your own", "task": None, "family": None}
        card = zoo.card(name)
        return {"name": name, "embedded": True, **{key: card.get(key) for key in ("what", "task", "family")}}

    def detail(self, name: str) -> dict[str, Any]:
        """What a model takes and gives, with examples; reads the weights of a folder, not those of embedded models."""
        found = self.summary(name)
        folder = self.folders.get(name) or zoo.folder(name)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        labels = list(config["id2label"].values()) if "id2label" in config else None
        if name in self.folders:
            subject = self.subject(name)
            found |= {"task": subject.task, "family": ", ".join(config.get("architectures") or ())}
            labels = None if subject.labels is None else list(subject.labels)
        task = TASKS[found["task"]]
        further = [part for part in task.further if part != "messages" or self._chats(name)]
        examples = self.examples(name)
        return found | {
            "labels": labels if labels and not task.generates else None,
            "parts": [
                {"name": part, "required": part in task.required, "kind": "picture" if part == "image" else "text"}
                for part in (*task.parts, *further)
            ],
            "planted": any(example.truth is not None for example in examples),
            "examples": [self._shown(name, number) for number in range(len(examples))],
        }

    def _chats(self, name: str) -> bool:
        """Whether a model has a chat template, by which it reads messages; embedded models have none."""
        processor = self.subject(name).processor if name in self.folders else None
        several = (processor, getattr(processor, "tokenizer", None))
        return any(getattr(one, "chat_template", None) is not None for one in several)

    def parts(self, name: str, number: int) -> dict[str, Any]:
        """The parts of an example by their names."""
        examples = self.examples(name)
        if not 0 <= number < len(examples):
            raise UnknownModel(f"{name} has {len(examples)} examples, from 0, and none of the number {number}")
        raw, task = examples[number].input, TASKS[str(self.summary(name)["task"])]
        return raw if isinstance(raw, dict) else {task.parts[0]: raw}

    def _shown(self, name: str, number: int) -> dict[str, Any]:
        """An example as the page shows it: texts as they are, a picture by its address."""
        parts, example = self.parts(name, number), self.examples(name)[number]
        return {
            "number": number,
            "label": example.label,
            "texts": {part: text for part, text in parts.items() if part != "image"},
            "picture": f"/api/models/{name}/examples/{number}.png" if "image" in parts else None,
            "truth": example.truth is not None,
        }
