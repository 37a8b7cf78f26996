"""Reads the pages that views write."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
from PIL import Image


class Page(HTMLParser):
    """The elements of a page, and whether every one that was opened is closed again."""

    VOID = ("meta", "img", "hr", "!doctype")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):
            self.texts.append(data)

    def find(self, tag: str, kind: str = "") -> list[dict[str, str]]:
        return [given for name, given in self.elements if name == tag and kind in [*given.get("class", "").split(), ""]]

    def pictures(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Every photo under scores: the photo, and the picture that a reader sees (height, width, 3)."""
        found: list[tuple[np.ndarray, np.ndarray]] = []
        photo, seen = None, False
        for tag, given in self.elements:
            source = re.search(r"--photo:url\((.*?)\)", given.get("style", ""))
            if source:
                photo = pixels(source[1])[..., :3]
            elif tag == "figure":
                seen = given.get("class") == "overlaid"
                found += [(photo, photo.astype(float))] if seen else []
            elif tag == "img" and seen:
                found[-1] = (photo, _covered(found[-1][1], pixels(given["src"])))
        return [(photo, np.round(shown).astype(np.uint8)) for photo, shown in found]


def pixels(uri: str) -> np.ndarray:
    """The picture of a data URI, (height, width, 4)."""
    with Image.open(io.BytesIO(base64.b64decode(uri.partition("base64,")[2]))) as image:
        return np.asarray(image.convert("RGBA"))


def _covered(ground: np.ndarray, layer: np.ndarray) -> np.ndarray:
    """The picture that a reader sees: a photo under a layer that is stretched over it."""
    stretched = np.asarray(Image.fromarray(layer).resize(ground.shape[1::-1], Image.Resampling.NEAREST), dtype=float)
    opacity = stretched[..., 3:] / 255
    return ground * (1 - opacity) + stretched[..., :3] * opacity
