"""Sets of examples: concepts, the examples of a class, random ones; from folders, files, lists or the zoo."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whence import zoo
from whence.core.files import PICTURES, TABLES
from whence.core.inputs import Input
from whence.core.tasks import TASKS
from whence.core.wording import counted, shown, suggest
from whence.measure import datasets
from whence.methods.explaining import as_list
from whence.model.subject import Subject

LEAST = 6  # examples of a concept: four to train a probe and two to test it
CLASS_EXAMPLES = 50  # of a class of an embedded model, where no data is given


def named_sets(concepts: Any, size: int, seed: int) -> dict[str, list[Any]]:
    """Every concept by its name: a mapping to sets, or a list of zoo names, folders and files."""
    if isinstance(concepts, (str, Path)):
        concepts = [concepts]
    if isinstance(concepts, Mapping):
        sets = {str(name): read(one, f"the concept {str(name)!r}", size, seed)[0] for name, one in concepts.items()}
    elif isinstance(concepts, Sequence) and all(isinstance(one, (str, Path)) for one in concepts):
        names = [Path(one).stem if _is_path(one) else str(one) for one in concepts]
        if len(set(names)) < len(names):
            raise ValueError(f"concepts need different names, but {', '.join(names)} came; give a dict of sets by name")
        pairs = zip(names, concepts, strict=True)
        sets = {name: read(one, f"the concept {name!r}", size, seed)[0] for name, one in pairs}
    else:
        raise TypeError(
            f"concepts is a dict of names and sets, or a list of names, folders and files, not {shown(concepts)}"
        )
    if not sets:
        raise ValueError("there is no concept to probe: give at least one")
    return sets


def read(data: Any, what: str, size: int = 50, seed: int = 0) -> tuple[list[Any], list[Any]]:
    """The inputs of a set, and their labels, None where not given: of a folder, a file, a zoo concept or a list."""
    several = as_list(data)
    if several is not None or (isinstance(data, np.ndarray) and data.ndim == 4):
        rows = list(data) if several is None else several
        inputs, labels, _ = datasets.read(rows) if rows else ([], [], [])
        return inputs, labels
    if not isinstance(data, (str, Path)):
        raise TypeError(f"{what} is a folder, a file, a list or the name of a zoo concept, not {shown(data)}")
    path = Path(data)
    if path.is_file() and path.suffix.lower() not in TABLES:
        if path.suffix.lower() in PICTURES:
            return [path], [None]
        return _lines(path, what), []
    if path.exists():
        inputs, labels, _ = datasets.read(path)
        return inputs, labels
    if str(data) in zoo.CONCEPTS:
        return list(zoo.concepts(str(data), size, seed)), []
    known = suggest(str(data), zoo.CONCEPTS)
    raise ValueError(f"{what}: {shown(str(data))} is no file or folder and no concept of the zoo; {known}")


def encoded(subject: Subject, raws: Sequence[Any], what: str, truncate: bool) -> list[Input]:
    """The inputs of a set as the model takes them; an error names the set."""
    for raw in raws:
        is_text = isinstance(raw, str) and not raw.lower().endswith(PICTURES)
        is_picture = isinstance(raw, np.ndarray) or (isinstance(raw, (str, Path)) and not is_text)
        if (is_text and takes_pictures(subject)) or (is_picture and takes_texts(subject)):
            holds, takes = ("texts", "pictures") if is_text else ("pictures", "texts")
            raise ValueError(f"{what} holds {holds}, and {subject.name} takes {takes}; give {takes} that show it")
    items = []
    for number, raw in enumerate(raws):
        try:
            items.append(subject.encode(raw, truncate=truncate))
        except (ValueError, TypeError, OSError, LookupError) as error:
            raise ValueError(f"{what}, example {number}: {error or repr(error)}") from error
        if items[-1].generated:
            raise ValueError(f"{what}, example {number}, has a generated output; concepts take inputs without one")
    return items


def check_sizes(sets: Mapping[str, list[Input]]) -> None:
    """An error for a concept of too few different examples, or for two concepts of the same ones."""
    keys = {name: {_key(item) for item in items} for name, items in sets.items()}
    for name, own in keys.items():
        if len(own) < LEAST:
            different = f"{counted(len(own), 'different example')}" if own else "no example"
            raise ValueError(f"the concept {name!r} has {different}, and a probe needs at least {LEAST}; give more")
    names = list(keys)
    for number, name in enumerate(names):
        for other in names[:number]:
            if keys[name] == keys[other]:
                raise ValueError(f"the concepts {other!r} and {name!r} hold the same examples; give different sets")


def check_random(name: str, own: list[Input], random: list[Input]) -> None:
    """An error where a concept is made of random examples."""
    if {_key(item) for item in own} <= {_key(item) for item in random}:
        raise ValueError(f"all examples of the concept {name!r} are among the random ones; give different sets")


def of_class(subject: Subject, data: Any, label: str, seed: int) -> list[Any]:
    """The examples of a class: those with its label where there are labels, else all; without data those of the zoo."""
    if data is None:
        if subject.name not in zoo.names():
            raise ValueError("data= are the examples of the class that is explained; give a folder, a file or a list")
        own = len({e.label for e in zoo.examples(subject.name, CLASS_EXAMPLES, seed)})  # how many labels there are
        examples = zoo.examples(subject.name, CLASS_EXAMPLES * own, seed + 10**6)
        inputs, labels = [e.input for e in examples], [e.label for e in examples]
    else:
        inputs, labels = read(data, "data")
    if any(one is not None for one in labels):
        kept = [raw for raw, one in zip(inputs, labels, strict=True) if _same(subject, one, label)]
        if not kept:
            raise ValueError(f"data has no example of the class {shown(label)}; its labels are {_some(labels)}")
        return kept[:CLASS_EXAMPLES] if data is None else kept
    if not inputs:
        raise ValueError("data is empty; give examples of the class whose target is explained")
    return inputs


def random_examples(subject: Subject, random: Any, concepts: Any, count: int, seed: int) -> list[Any]:
    """Examples that show nothing in particular: those given, else drawn like the concepts, else the model's own.

    A probe must tell a concept from pictures of the same kind: from photos it would learn what a drawing looks like.
    """
    if random is not None:
        return read(random, "random", count, seed + 1)[0]
    if subject.name == "textures" or (takes_pictures(subject) and _all_drawn(concepts)):
        return list(zoo.concepts("random", count, seed + 1))
    if subject.name in zoo.names():
        return [example.input for example in zoo.examples(subject.name, count, seed + 1)]
    raise ValueError("random= are examples that show nothing in particular; give a folder, a file or a list of them")


def _lines(path: Path, what: str) -> list[str]:
    """The texts of a file, one per line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{what}: {str(path)!r} cannot be read ({error}); give a file with a text per line") from error
    return [line for line in lines if line.strip()]


def _all_drawn(concepts: Any) -> bool:
    """Whether every concept is a name that the zoo draws."""
    several = [concepts] if isinstance(concepts, (str, Path)) else concepts
    given = several.values() if isinstance(several, Mapping) else several
    return all(isinstance(one, str) and not _is_path(one) for one in given)


def _is_path(name: str | Path) -> bool:
    return isinstance(name, Path) or str(name) not in zoo.CONCEPTS


def takes_pictures(subject: Subject) -> bool:
    """Whether an input is a picture and nothing else."""
    return TASKS[subject.task].required == ("image",)


def takes_texts(subject: Subject) -> bool:
    """Whether an input is a text, maybe with a second one."""
    required = TASKS[subject.task].required
    return bool(required) and "image" not in required


def _same(subject: Subject, one: Any, label: str) -> bool:
    """Whether a label of the data names this class, by name or number."""
    if one is None:
        return False
    found = datasets.as_target(subject, one)
    name = subject.name_of(found) if isinstance(found, int) and not isinstance(found, bool) else str(found)
    return name.casefold() == label.casefold()


def _some(labels: Sequence[Any]) -> str:
    names = sorted({str(label) for label in labels})
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")


def _key(item: Input) -> bytes:
    """Equal for inputs that the model cannot tell apart."""
    made = hashlib.blake2b(digest_size=16)
    for name, array in sorted(item.tensors.items()):
        made.update(f"{name} {array.shape} ".encode() + array.tobytes())
    return made.digest()
