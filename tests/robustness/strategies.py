"""Odd texts, pictures, inputs and plain values that no caller should give, and some that they do."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from PIL import Image

from families import TEXTS
from whence.core.tasks import TASKS
from worlds import plain_input, scratch

Strategy = st.SearchStrategy

PAYLOAD = "whencepayload"  # a tag or attribute that no page of whence has: if seen, a text became markup
PAYLOADS = (
    f"<{PAYLOAD}>",
    f'"><{PAYLOAD} x="',
    f"'><{PAYLOAD}>",
    f"</script><{PAYLOAD}>",
    f"</style><{PAYLOAD}>",
    f"</title><{PAYLOAD}>",
    f'" {PAYLOAD}="1',
    f"' {PAYLOAD}='1",
    f"--><{PAYLOAD}><!--",
    f"]]><{PAYLOAD}/>",
    "{{ 7 * 7 }}{% raw %}",
    "[bold]not markup[/] [/bold] [link=x]",
    "$x_{$ \\frac{1}{ $$",
    "&lt;&amp;&#60;",
)
ODD = (
    "",
    " ",
    "\n\t \u00a0",
    "\x00",
    "a\x00film",
    "a \ud83d film",
    "\udc80",
    "שלום עולם",
    "a \u202eשלום\u202c film",
    "👩‍👩‍👧‍👦 🏳️‍🌈",
    "e\u0301\u0301\u0301",
    "\u200b",
    "\ufeffa film",
    "\U000e0fff",
    "电影很好看",
    "ﷺ" * 5,
    "\x1b[31mred\x1b[0m",
    "\r\n",
    "a\u2028b",
    "[CLS] [SEP] [MASK] [PAD]",
    "</s><s><pad><unk><|endoftext|>",
    "%s %d {0} {}",
    "-",
    "--help",
    "{",
    '{"text": 1}',
    "nan",
    "0",
    "a " * 100,
    "x" * 5000,
)


def texts() -> Strategy[str]:
    """Plain texts, odd ones, texts of any character (lone surrogates too), and pieces of these in a row."""
    some = st.sampled_from([*TEXTS, "a film", *ODD, *PAYLOADS])
    loose = st.text(st.characters(), max_size=12)
    return st.one_of(some, loose, st.lists(st.one_of(some, loose), max_size=3).map("".join))


VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2,
    99,
    -99,
    10**12,
    2**63,
    -(2**63),
    10**400,
    0.0,
    0.5,
    -1.5,
    1e-308,
    1e308,
    math.nan,
    math.inf,
    -math.inf,
    "",
    "mean",
    "x" * 300,
    b"x",
    3j,
    [],
    [0],
    [99],
    [-1, 0],
    (0,),
    {},
    [None],
    [[0]],
    [math.nan],
    [True],
)


@st.composite
def wrong_values(draw: st.DrawFn) -> Any:
    """A value of a wrong type or size."""
    makers = (lambda: np.int64(1), lambda: np.float32(0.5), lambda: np.zeros((2, 2)), object, lambda: torch.zeros(2))
    return draw(st.one_of(st.sampled_from(VALUES), st.sampled_from(makers).map(lambda make: make())))


# --- Pictures ---------------------------------------------------------------------------------------------------------

SIZES = ((1, 1), (32, 32), (1, 40), (40, 1), (3, 300), (33, 17), (2, 2))
MODES = ("RGB", "L", "LA", "1", "P", "RGBA", "CMYK", "I", "F", "HSV", "YCbCr", "LAB", "I;16")
DTYPES = ("uint8", "float32", "float64", "int64", "int8", "uint16", "bool", "float16", "complex64", "object", "U1")
SHAPES = (
    (),
    (0,),
    (5,),
    (4, 4),
    (4, 4, 1),
    (4, 4, 2),
    (4, 4, 3),
    (4, 4, 4),
    (3, 4, 4),
    (1, 4, 4, 3),
    (0, 4, 3),
    (1, 1),
)


def painted(mode: str, size: tuple[int, int]) -> Image.Image:
    """A picture of a mode, with some colours."""
    columns, rows = size
    pixels = np.random.default_rng(rows * 1000 + columns).integers(0, 256, (rows, columns, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    return picture.convert("I").convert(mode) if mode == "I;16" else picture.convert(mode)


@cache
def picture_files() -> tuple[Path, ...]:
    """Files that are a picture, half of one, none, and missing."""
    folder = scratch() / "pictures"
    folder.mkdir()
    painted("RGB", (40, 32)).save(folder / "whole.png")
    painted("P", (9, 9)).save(folder / "moving.gif", save_all=True, append_images=[painted("P", (9, 9))])
    whole = (folder / "whole.png").read_bytes()
    (folder / "half.png").write_bytes(whole[: len(whole) // 2])
    (folder / "text.png").write_text("no picture")
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "other.txt").write_bytes(whole)
    names = ("whole.png", "moving.gif", "half.png", "text.png", "empty.jpg", "other.txt", "missing.png", ".")
    return tuple(folder / name for name in names)


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """An array or tensor that may be a picture, of any kind of number."""
    shape, dtype = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(DTYPES))
    array = np.full(shape, 1).astype(dtype)
    if array.dtype.kind == "f" and array.size:
        number = draw(st.sampled_from((0.0, 0.5, -1.0, 255.0, math.nan, math.inf, 1e30)))
        with np.errstate(over="ignore"):  # 1e30 becomes infinite in half precision
            array.flat[0] = number
    return torch.as_tensor(array) if array.dtype.kind in "fiub" and draw(st.booleans()) else array


def pictures() -> Strategy[Any]:
    """PIL pictures of every mode, arrays, tensors, files."""
    drawn = st.builds(painted, st.sampled_from(MODES), st.sampled_from(SIZES))
    files = st.deferred(lambda: st.sampled_from(picture_files()))
    return st.one_of(drawn, arrays(), files, files.map(str), st.just(Image.new("RGB", (0, 0))))


# --- Inputs -----------------------------------------------------------------------------------------------------------


@st.composite
def raws(draw: st.DrawFn, kind: str, task: str) -> Any:
    """An input for a model of a task: its parts filled with odd things, left out, misspelt, as text, tuple or dict."""
    if draw(st.integers(0, 9)) == 0:
        return draw(wrong_values())
    parts = TASKS[task].parts or ("text",)
    values = [draw(pictures() if part == "image" else texts()) for part in parts]
    form = draw(st.sampled_from(("plain", "first", "dict", "tuple", "required", "odd keys")))
    if form == "plain":
        return plain_input(kind, draw(st.integers(0, 3)))
    if form == "first":
        return values[0]
    if form == "tuple":
        return tuple(values[: draw(st.integers(0, 3))])
    if form == "required":
        return dict(zip(TASKS[task].required, values, strict=False))
    given = dict(zip(parts, values, strict=True))
    if form == "odd keys":
        given[draw(st.sampled_from(("txt", "text", "image", 3, None, "prompt", "output", "label")))] = draw(texts())
    return given


def numbers_or_wrong(*usual: Any) -> Strategy[Any]:
    """Mostly a usual value, sometimes a wrong one."""
    return st.one_of(*[st.sampled_from(usual)] * 3, wrong_values())
