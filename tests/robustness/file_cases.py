"""Cases of files: data sets, saved results, views of odd results, model folders."""

from __future__ import annotations

import copy
import io
import json
import math
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
from hypothesis import strategies as st

import whence
from families import LABELS
from outcomes import Case, Wrong
from results_by_hand import every_result
from rightness import check_attribution
from strategies import PAYLOAD, PAYLOADS, texts
from whence.core import display
from worlds import SAVED, plain_input, saved, scratch, shared

JUNK = (
    b"\x00",
    b"\xff\xfe",
    b'"',
    b"\n",
    b"\r",
    b",",
    b"\t",
    b"{",
    b"]",
    b"\\",
    "\ufeff".encode(),
    b"\xed\xa0\x80",
    b"9" * 400,
)


@st.composite
def mangled(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes that are cut off, or have junk somewhere, or one piece twice."""
    place = draw(st.integers(0, len(content)))
    how = draw(st.sampled_from(("cut", "insert", "replace", "twice", "nothing", "junk")))
    if how == "cut":
        return content[:place]
    if how == "insert":
        return content[:place] + draw(st.sampled_from(JUNK)) + content[place:]
    if how == "replace":
        return content[:place] + draw(st.sampled_from(JUNK)) + content[place + 1 :]
    if how == "twice":
        return content + content[place:]
    return draw(st.binary(max_size=40)) if how == "junk" else content


# --- Data sets --------------------------------------------------------------------------------------------------------

COLUMNS = ("text", "label", "truth", "pair", "text", "image", "prompt", "other", "", " text ")
CELLS = (
    "a film",
    "a masterful film",
    "positive",
    "0",
    "1.0",
    "",
    "nope",
    "[0, 1]",
    "film",
    '{"a": [1]}',
    "\x00",
    "a " * 90,
)


def _as_csv(columns: list[str], rows: list[list[Any]], separator: str) -> bytes:
    quoted = ['"' + str(cell).replace('"', '""') + '"' if separator in str(cell) else str(cell) for cell in columns]
    lines = [separator.join(quoted), *(separator.join(map(str, row)) for row in rows)]
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _as_jsonl(columns: list[str], rows: list[list[Any]]) -> bytes:
    return "\n".join(json.dumps(dict(zip(columns, row, strict=False))) for row in rows).encode()


def _as_parquet(columns: list[str], rows: list[list[Any]]) -> bytes:
    table = {name: [str(row[n]).encode("utf-8", "replace").decode() for row in rows] for n, name in enumerate(columns)}
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(table), file)
    return file.getvalue()


@st.composite
def data_cases(draw: st.DrawFn) -> Case:
    """A table with odd columns and cells, mangled, for `evaluate` or `arbitrate`."""
    columns = draw(st.one_of(st.just(["text", "label"]), st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=3)))
    cells = st.one_of(st.sampled_from(CELLS), st.sampled_from(CELLS), texts())
    ending = draw(st.sampled_from((".csv", ".tsv", ".jsonl", ".parquet", ".txt", "")))
    if ending == ".jsonl":
        cells = st.one_of(cells, st.sampled_from((None, 3, math.nan, [1, [2]], {"text": {"text": 1}}, True, 10**40)))
    usual = {"text": CELLS[:2], "label": LABELS, "truth": CELLS[:1]}
    of_row = st.tuples(*(st.one_of(*[st.sampled_from(usual.get(name, CELLS))] * 4, cells) for name in columns))
    rows = draw(st.lists(of_row.map(list), min_size=1, max_size=3))
    writers = {".jsonl": _as_jsonl, ".parquet": _as_parquet, ".tsv": lambda c, r: _as_csv(c, r, "\t")}
    content = writers.get(ending, lambda c, r: _as_csv(c, r, ","))(columns, rows)
    content = draw(st.one_of(st.just(content), mangled(content)))
    subject, arbitrate, limit = shared("bert"), draw(st.integers(0, 3)) == 0, draw(st.sampled_from((None, 1, 2)))
    metric = draw(st.sampled_from(("auac", "completeness", "plausibility")))

    def call() -> Any:
        with tempfile.TemporaryDirectory(dir=scratch()) as folder:
            file = Path(folder) / f"data{ending}"
            file.write_bytes(content)
            if arbitrate:
                return str(whence.arbitrate(subject, file, ["attention", "random"], limit=limit))
            return str(whence.evaluate(subject, file, ["random"], [metric], limit=limit))

    name = f"arbitrate(limit={limit})" if arbitrate else f"evaluate({metric}, limit={limit})"
    return Case("data", f"{name} on a {ending!r} file of {content!r}", call, subjects=(subject,))


# --- Saved results ----------------------------------------------------------------------------------------------------

LEAVES = (None, True, -1, 0, 2**70, 0.5, 1e308, "", "x", [], {}, [[]], [1, "a"], {"$float": "nan"}, {"$array": "<f8"})
DAMAGED = (
    {"$array": "|O", "shape": [1], "list": [1]},
    {"$array": "<f8", "shape": [10**12], "list": [1]},
    {"$array": "<f8", "shape": [-1], "list": [[1], [1, 2]]},
    {"$array": "<f8", "shape": [2], "base64": "AAA"},
    {"$record": "Input"},
    {"$record": "Storable"},
    {"$record": ["x"]},
    {"$tuple": 3},
    {"$dict": [[[], 1]]},
    {"$float": "x"},
    {"$text": "*"},
)


def _places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to everything inside of JSON."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _at(content: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


@cache
def _saved_results() -> dict[str, tuple[type, str]]:
    """Every result by hand, as the JSON that `save` writes, with its class."""
    found = {}
    for name, result in every_result().items():
        result.save(scratch() / "result.json")
        found[name] = (type(result), (scratch() / "result.json").read_text(encoding="utf-8"))
    return found


def _shown_in_all_ways(kind: type, content: bytes, figures: bool) -> list[str]:
    """The pages and drawings of a result, which is loaded and shown in every medium."""
    with tempfile.TemporaryDirectory(dir=scratch()) as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # matplotlib's warning about a letter that its font lacks
        file = Path(folder) / "result.json"
        file.write_bytes(content)
        result = kind.load(file)  # type: ignore[attr-defined]
        str(result)
        repr(result)
        pages = [result.to_html()]
        for ending in display.endings(kind):
            if ending not in (".png", ".svg", ".pdf") or (figures and ending == ".svg"):
                result.write(Path(folder) / f"out{ending}")
        if (Path(folder) / "out.svg").exists():
            pages.append((Path(folder) / "out.svg").read_text(encoding="utf-8"))
        return pages


@st.composite
def result_cases(draw: st.DrawFn) -> Case:
    """A saved result with one or two wrong values, or mangled as text, loaded and shown."""
    name = draw(st.deferred(lambda: st.sampled_from(sorted(_saved_results()))))
    kind, text = _saved_results()[name]
    if draw(st.integers(0, 4)) == 0:
        content, what = draw(mangled(text.encode())), "mangled"
    else:
        tree, what = json.loads(text), ""
        for _ in range(draw(st.integers(1, 2))):
            path = draw(st.sampled_from(list(_places(tree))))
            above = _at(tree, path[:-1])
            value = draw(st.one_of(st.just("delete"), st.sampled_from(LEAVES), st.sampled_from(DAMAGED)))
            what += f" {'/'.join(map(str, path))} = {value!r};"
            if value == "delete":
                del above[path[-1]]
            else:
                above[path[-1]] = copy.deepcopy(value)  # the next change may go into it
            if not tree:
                break
        content = json.dumps(tree).encode()
    figures = draw(st.integers(0, 9)) == 0
    written = f"{kind.__name__}.load of the {name} example with{what} {content[:200] if what == 'mangled' else ''!r}"
    return Case("results", written, lambda: _shown_in_all_ways(kind, content, figures))


# --- Views ------------------------------------------------------------------------------------------------------------


class _Payloads(HTMLParser):
    """The payloads on a page that became markup: tags and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if PAYLOAD in tag or any(PAYLOAD in name for name, _ in attrs):
            self.found.append(tag)


def check_pages(pages: list[str]) -> None:
    """Raise `Wrong` if a text of a result became markup."""
    for page in pages:
        if found := _Payloads(page).found:
            raise Wrong(f"a text became the element or attribute {found[0]!r} of a page")


FIXED = ("$record", "$array", "$float", "format", "list", "base64", "streams", "axes", "kind", "parts", "better", "by")


@st.composite
def view_cases(draw: st.DrawFn) -> Case:
    """A result of any kind whose texts (features, labels, notes, names) are odd, shown in every medium."""
    name = draw(st.deferred(lambda: st.sampled_from(sorted(_saved_results()))))
    kind, text = _saved_results()[name]
    tree = json.loads(text)
    places = [p for p in _places(tree) if isinstance(_at(tree, p), str) and not any(key in FIXED for key in p)]
    odd, what = st.one_of(st.sampled_from(PAYLOADS), texts()), ""
    for path in draw(st.lists(st.sampled_from(places), min_size=1, max_size=4, unique=True)):
        value = draw(odd)
        _at(tree, path[:-1])[path[-1]] = _as_saved(value)
        what += f" {'/'.join(map(str, path))} = {value!r};"
    content = json.dumps(tree).encode()
    figures = draw(st.integers(0, 3)) == 0
    written = f"views of the {name} example with{what}"
    return Case("views", written, lambda: _shown_in_all_ways(kind, content, figures), check_pages)


def _as_saved(text: str) -> Any:
    """A text as `save` writes it."""
    from whence.core.storage import _encode

    return _encode(text, "")


# --- Model folders ----------------------------------------------------------------------------------------------------

CONFIG_VALUES = (None, -1, 0, 1, 3, 100, 1.5, "", "gelu", "nope", [], {}, True, [1, 2], {"height": 8, "width": 8})


@st.composite
def folder_cases(draw: st.DrawFn) -> Case:
    """The folder of a model in which a file is missing or mangled, or a setting is wrong; loaded and asked."""
    kind = draw(st.sampled_from(SAVED))
    name = draw(st.sampled_from(sorted(file.name for file in saved(kind).iterdir() if file.is_file())))
    before = (saved(kind) / name).read_bytes()
    change: bytes | None
    if draw(st.integers(0, 9)) == 0:
        change, what = None, "missing"
    elif name.endswith(".json") and draw(st.integers(0, 3)):
        change, what = draw(_other_setting(before))
    else:
        change, what = draw(mangled(before).map(lambda content: (content, f"{len(content)} of {len(before)} bytes")))

    def call() -> Any:
        with tempfile.TemporaryDirectory(dir=scratch()) as folder:
            place = Path(folder) / "model"
            shutil.copytree(saved(kind), place)
            (place / name).unlink() if change is None else (place / name).write_bytes(change)
            subject = whence.load(place)
            return subject, whence.explain(subject, plain_input(kind), "gradient_x_input")

    return Case("folders", f"load of {kind} with {name} {what}", call, lambda found: check_attribution(*found))


@st.composite
def _other_setting(draw: st.DrawFn, content: bytes) -> tuple[bytes, str]:
    """JSON with one value at the upper levels changed or taken away."""
    tree = json.loads(content)
    places = [path for path in _places(tree) if len(path) <= 3][:200]
    path = draw(st.sampled_from(places))
    value = draw(st.one_of(st.just("delete"), st.sampled_from(CONFIG_VALUES)))
    above = _at(tree, path[:-1])
    if value == "delete":
        del above[path[-1]]
    else:
        above[path[-1]] = value
    return json.dumps(tree).encode(), f"{'/'.join(map(str, path))} = {value!r}"
