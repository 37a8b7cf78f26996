"""What goes in and what comes out: Input, Target, Attribution, Comparison. Numpy only; no model, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Input:
    """One encoded example: what was given, its named features, and what the model is fed."""

    raw: Any  # what was given: a string, an image array, or a dict with named parts
    features: tuple[str, ...]  # names: token pieces, "patch 0,3", regions
    streams: tuple[str, ...]  # the stream of each feature: "text", "image", "source", "target"
    special: np.ndarray  # (feature,) bool: put there by the tokenizer or the model, as [CLS]
    tensors: dict[str, np.ndarray]  # what the model is fed, without the batch axis
    words: np.ndarray  # (feature,) int: number of the word a piece belongs to, -1 for none
    offsets: np.ndarray  # (feature, 2) int: characters of texts[part], -1 for none
    parts: tuple[str, ...]  # the text each feature's offsets point into: "text", "pair", ..., "" for none
    texts: dict[str, str] = field(default_factory=dict)  # part -> the original text
    grid: tuple[int, int] | None = None  # rows and columns of the patches or regions
    image: np.ndarray | None = None  # (height, width, 3) uint8: the picture the model saw
    box: tuple[float, float, float, float] | None = None  # left, top, right, bottom of that in the original
    size: tuple[int, int] | None = None  # width and height of the original picture
    generated: tuple[int, ...] = ()  # features that were generated, one row of scores each
    notes: tuple[str, ...] = ()  # what was done to the input, as truncation


@dataclass(frozen=True)
class Target:
    """The scalar that is explained, by name; `targets.py` computes it."""

    kind: str = "logit"  # logit, probability, log_probability, log_odds, margin, contrast, function
    index: int | None = None  # class or token
    name: str = ""  # its label or text
    against: int | None = None  # the other class or token of a contrast
    against_name: str = ""
    predicted: bool = False  # not asked for: it is what the model predicted

    def __str__(self) -> str:
        if self.kind == "function":
            return self.name
        if self.kind == "contrast":
            return f"logit of {self.name!r} minus logit of {self.against_name!r}"
        words = {"log_probability": "log-probability", "log_odds": "log-odds", "margin": "margin to the runner-up"}
        return f"{words.get(self.kind, self.kind)} of {self.name!r}"


@dataclass(frozen=True, eq=False)
class Attribution:
    """Scores of one example's features for one target, with what they explain and what they do not."""

    scores: np.ndarray  # (feature,) or (generated, feature)
    input: Input
    method: str  # the spec: name and options
    target: Target | tuple[Target, ...]  # one, or one per generated token
    output: Any  # f(x): a float, or (generated,)
    base: Any = None  # f(baseline) where the method has one, else 0.0; None for unsigned methods
    residual: Any = None  # output - base - sum of scores; None for unsigned methods
    axes: tuple[str, ...] = ("feature",)
    visible: np.ndarray | None = None  # like scores: what the row could see; None: everything
    details: dict[str, Any] = field(default_factory=dict)  # arrays and plain values, by name
    notes: tuple[str, ...] = ()  # what the caller should know: default method, guessed target, truncation
