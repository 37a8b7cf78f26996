"""The embedded models: small, trained by `training/`, with examples whose deciding features are known."""

from __future__ import annotations

import csv
import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from whence.core.inputs import Input
from whence.core.wording import suggest
from whence.zoo.example import Example

__all__ = ["CONCEPTS", "Example", "card", "concepts", "encoder", "examples", "folder", "names", "samples"]

_HERE = Path(__file__).parent
# What `concepts` draws: textures, colours, shapes, and pictures that share nothing.
CONCEPTS = (
    *("striped", "dotted", "checked", "zigzag", "plain", "red", "green", "blue", "yellow", "purple", "grey"),
    *("round", "square", "triangular", "star", "random", "orange"),
)
_ORDER = ("sst2", "digits", "planted", "recall", "dates", "shapes", "textures", "photos")


def names() -> tuple[str, ...]:
    """The models that ship with the package."""
    return tuple(name for name in _ORDER if (_HERE / name / "config.json").exists())


def folder(name: str) -> Path:
    """The folder of a model, in the form of Hugging Face."""
    if name not in names():
        raise ValueError(f"there is no embedded model {name!r}; {suggest(name, names())}")
    return _HERE / name


def card(name: str) -> dict[str, Any]:
    """The facts at the head of a model's card: family, task, data, accuracy, size, licence."""
    header = (folder(name) / "README.md").read_text(encoding="utf-8").split("---\n")[1]
    facts: dict[str, Any] = dict(line.split(": ", 1) for line in header.splitlines())
    return facts | {key: float(facts[key]) for key in ("accuracy", "size_mb")}


def examples(name: str, n: int = 10, seed: int = 0) -> list[Example]:
    """`n` examples of a model with their labels and, for planted models, which features decide.

    Planted examples are generated anew for every seed, and so are the drawings that `photos` is shown, since real
    photos may not ship. Of `sst2` and `digits`, examples ship with the package: the seed decides their order, and `n`
    takes no more than there are.
    """
    folder(name)
    shipped: dict[str, Callable[[], list[Example]]] = {"sst2": _sentences, "digits": _digits}
    if name in shipped:
        known = shipped[name]()
        order = np.random.default_rng(seed).permutation(len(known))[:n]
        return [known[i] for i in order]
    return importlib.import_module(f"whence.zoo.{name}_data").examples(n, seed)


def concepts(name: str, n: int = 50, seed: int = 0) -> list[np.ndarray]:
    """`n` pictures (height, width, 3) that share the texture, colour or shape of this name, one of `CONCEPTS`.

    Nothing else is shared: every other texture, colour and shape comes equally often, as far as `n` allows.
    """
    if name not in CONCEPTS:
        raise ValueError(f"there is no concept {name!r} to draw; {suggest(name, CONCEPTS)}")
    from whence.zoo import textures_data

    return textures_data.concepts(name, n, seed)


def samples() -> dict[str, Path]:
    """The sample files that ship with the package, by their names: pictures of `training/samples.py`, `reviews.tsv`."""
    return {path.name: path for path in sorted((_HERE / "data" / "samples").iterdir())}


def encoder(name: str, encode_text: Callable[[str], Input]) -> Callable[[Any], dict[str, Any]] | None:
    """The `encode=` of a model whose inputs no processor makes; None for the others.

    `encode_text` encodes a text with the model's tokenizer.
    """
    if name != "shapes":
        return None
    from whence.zoo.shapes_data import encode

    return functools.partial(encode, encode_text=encode_text)


def _sentences() -> list[Example]:
    """The sentences of SST-2 that ship."""
    with (_HERE / "data" / "sst2.tsv").open(encoding="utf-8", newline="") as file:
        return [
            Example(row["text"], row["label"]) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]


def _digits() -> list[Example]:
    """The handwritten digits that ship: cells of one picture."""
    from PIL import Image

    facts = json.loads((_HERE / "data" / "digits.json").read_text(encoding="utf-8"))
    with Image.open(_HERE / "data" / "digits.png") as file:
        sheet = np.asarray(file.convert("L"))
    side, columns = facts["side"], facts["columns"]
    cells = sheet.reshape(-1, side, columns, side).swapaxes(1, 2).reshape(-1, side, side)  # (digit, y, x)
    return [Example(cell, str(label)) for cell, label in zip(cells, facts["labels"], strict=True)]
