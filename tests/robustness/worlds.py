"""The models that cases run on: one tiny random model of each kind, made once, and the folders they are saved in."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import transformers

import whence
from families import family, subject_of
from whence.core.results import Attribution
from whence.model.subject import Subject

# An encoder, a vision transformer, a grouped-query language model, an encoder-decoder, image and text, a language model
# that looks at pictures, a plain module.
DECIDE_ONCE = ("bert", "vit", "qwen3", "t5", "clip", "llava", "torch-sdpa")
DECIDE_AT_TOKENS = ("bert-tagger", "distilbert-answerer", "albert-filler")
KINDS = DECIDE_ONCE + DECIDE_AT_TOKENS
SAVED = ("bert", "vit", "qwen3", "t5", "clip", "llava", *DECIDE_AT_TOKENS)


def shared(kind: str) -> Subject:
    """The subject of a kind that all cases share; they must leave it as it is."""
    return subject_of(kind)


def new(kind: str) -> Subject:
    """A new subject of the shared model: nothing is known yet of what probing finds out."""
    made = family(kind)
    return whence.wrap(made.model, made.processor, **made.kwargs)


def plain_input(kind: str, number: int = 0) -> Any:
    """An ordinary input of a kind of model."""
    return family(kind).inputs[number]


@cache
def scratch() -> Path:
    """A folder for files of this process, which is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="whence-robustness-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def saved(kind: str) -> Path:
    """The folder of a model with all that belongs to it, as save_pretrained writes it."""
    folder, made = scratch() / "models" / kind, family(kind)
    transformers.logging.disable_progress_bar()
    made.model.save_pretrained(folder)
    made.processor.save_pretrained(folder)
    return folder


@cache
def explained(kind: str, method: str) -> Attribution:
    """The attribution of the ordinary input by a method, for cases that need one or compare with it."""
    return whence.explain(shared(kind), plain_input(kind), method)
