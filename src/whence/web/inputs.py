"""Requests as raw inputs: texts stay texts; pictures are uploads or examples, and never files of this machine."""

from __future__ import annotations

import io
import json
import secrets
import threading
import warnings
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from whence.core.pictures import bounded, upright_rgb
from whence.core.tasks import TASKS
from whence.core.wording import quoted
from whence.web.catalogue import Catalogue
from whence.web.limits import Limits
from whence.zoo.planted_data import truth

FORMS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # formats of pictures; the decoders of other formats are less tested


class Gone(LookupError):
    """Raised for a job or picture that is not kept any more, or never existed."""


class TooLarge(ValueError):
    """Raised where a request asks for more than the server allows."""


class Pictures:
    """The newest pictures that were sent, by names that cannot be guessed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._kept: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, sent: bytes) -> tuple[str, np.ndarray]:
        """Decode a picture and keep it, at most 1024 pixels a side, under a new name."""
        picture = decoded(sent, self._limits.pixels)
        name = secrets.token_urlsafe(16)
        with self._lock:
            self._kept[name] = picture
            while len(self._kept) > self._limits.pictures:
                self._kept.popitem(last=False)
        return name, picture

    def get(self, name: str) -> np.ndarray:
        """The picture of this name."""
        with self._lock:
            if name not in self._kept:
                raise Gone(
                    f"the picture is not kept any more: only the last {self._limits.pictures} are; send it again"
                )
            self._kept.move_to_end(name)
            return self._kept[name]


def decoded(sent: bytes, most: int) -> np.ndarray:
    """The picture (height, width, 3) that these bytes hold; its size is read before anything is decoded."""
    if not sent:
        raise ValueError("a picture was expected, and an empty request came; send the bytes of a PNG or JPEG file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the limit below is the one that counts
        try:
            with Image.open(io.BytesIO(sent), formats=FORMS) as file:
                if file.width * file.height > most:
                    raise TooLarge(
                        f"a picture may have {most:,} pixels, and this one has {file.width:,} x {file.height:,}; "
                        "make it smaller"
                    )
                file.load()
                return bounded(np.asarray(upright_rgb(file)))
        except TooLarge:
            raise
        except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
            raise ValueError(f"the bytes are no picture that can be read; send one of {', '.join(FORMS)}") from error


@dataclass(frozen=True)
class Asked:
    """The input of a request: texts by part, and a picture that was sent or that of an example."""

    model: str
    texts: dict[str, str]
    picture: str | None = None
    example: int | None = None


def check_letters(texts: Mapping[str, str], limits: Limits) -> None:
    """Refuse a text that is longer than allowed."""
    for part, text in texts.items():
        if len(text) > limits.letters:
            raise TooLarge(f"the {part[:20]} may have {limits.letters:,} letters, and {len(text):,} came; send less")


def raw_input(asked: Asked, catalogue: Catalogue, pictures: Pictures, limits: Limits) -> tuple[Any, Any]:
    """The parts that the model is given, and the truth on what decides, where the input is an example that has one."""
    task = TASKS[str(catalogue.detail(asked.model)["task"])]
    texts = {part: text for part, text in asked.texts.items() if text}
    known = [part for part in (*task.parts, *task.further) if part != "image"]
    if unknown := [part for part in asked.texts if part not in known]:
        raise ValueError(f"{asked.model} takes the texts {quoted(known) or 'none'}, and {quoted(unknown)} came")
    check_letters(texts, limits)
    example = {} if asked.example is None else catalogue.parts(asked.model, asked.example)
    parts: dict[str, Any] = dict(texts)
    if "messages" in texts:
        parts["messages"] = _messages(texts["messages"])
    if "image" in task.parts:
        if asked.picture is None and "image" not in example:
            raise ValueError(f"{asked.model} needs a picture, and none came; send one, or name an example")
        parts["image"] = pictures.get(asked.picture) if asked.picture is not None else example["image"]
    elif asked.picture is not None:
        raise ValueError(f"{asked.model} takes no picture, and one came; leave it out")
    return parts, _truth(asked, texts, example, catalogue)


def _messages(text: str) -> Any:
    """The messages of a chat, which the page sends as the JSON that a person wrote."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            'messages are JSON such as [{"role": "user", "content": "..."}], and what came is not: ' + str(error)
        ) from error


def _truth(asked: Asked, texts: dict[str, str], example: dict[str, Any], catalogue: Catalogue) -> np.ndarray | None:
    """Which features decide, where that is known: of an example as it was drawn, and of any text for `planted`."""
    if asked.model == "planted" and asked.model not in catalogue.folders and set(texts) == {"text"}:
        return truth(texts["text"].split())
    unchanged = asked.picture is None and texts == {part: value for part, value in example.items() if part != "image"}
    return catalogue.examples(asked.model)[asked.example].truth if unchanged and asked.example is not None else None
