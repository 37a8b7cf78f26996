"""Reading data sets (lists, data frames, tables, folders of pictures): inputs, labels, and truths on what decides."""

from __future__ import annotations

import ast
import glob
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.core.files import PICTURES, TABLES
from whence.core.tasks import PARTS
from whence.core.wording import quoted, shown
from whence.measure.table_files import assumed, rows_of

if TYPE_CHECKING:
    from whence.model.subject import Subject

_TRUTHS = ("truth", "rationale")
FRAME_ROWS = 1000  # rows of a data frame that are converted at a time
_BOX = ("x0", "y0", "x1", "y1")


@dataclass(frozen=True)
class Row:
    """One example of the data, or the sentence on why this row alone cannot be read."""

    number: int  # from 0, over all files
    id: str  # the column id, else file:row of a table, the path of a picture, or the number
    raw: Any
    label: Any = None
    truth: Any = None
    error: str = ""


def stream(data: Any, limit: int | None = None) -> Iterator[Row]:
    """Every row of the data in order, one at a time; a row that cannot be read has an error, a file that cannot raises.

    Data is what `read` takes. Of files, folders and patterns the order is sorted.
    """
    return islice(_rows(data), limit)


def read(data: Any, limit: int | None = None) -> tuple[list[Any], list[Any], list[Any]]:
    """Inputs, labels and truths (None where not given) of a list, a data frame, tables in files, or a folder.

    A table (CSV, TSV, JSONL, Parquet, data frame, or a list of dicts) has a column per part of an input (text, pair,
    prompt, continuation, source, output, image; the only column beside `id`, `label` and `truth` is text, whatever its
    name), and may have `label` and `truth` (phrases, marks, the file of a mask or boxes: see `rationales`); of a
    picture, the columns x0, y0, x1, y1 are the box of what decides. A folder holds pictures, or folders of them named
    by their labels, or tables. A pattern as "data/*.parquet", or a list of files, is all of them; "a.tsv:quotes=text"
    says that quotes are part of the texts, "a.tsv:quotes=quoting" that they go around cells.
    """
    rows = []
    for row in stream(data, limit):
        if row.error:
            raise ValueError(row.error)
        rows.append(row)
    if not rows:
        raise ValueError("there is nothing to evaluate: the data is empty")
    return [row.raw for row in rows], [row.label for row in rows], [row.truth for row in rows]


def assumptions(data: Any) -> tuple[str, ...]:
    """Sentences on what was assumed to read the data, by file: what quotes mean, and what separates cells."""
    files: dict[str, list[str]] = {}
    for source in _sources(data) or ():
        for sentence in assumed(source.path, source.quotes) if source.path.suffix.lower() in TABLES else ():
            files.setdefault(sentence, []).append(source.name)
    notes = [f"{names[0] if len(names) == 1 else f'{len(names)} files'}: {told}." for told, names in files.items()]
    return tuple(notes)


def exists(given: str | Path) -> bool:
    """Whether there is a file, a folder, or a file that matches the pattern."""
    name, _ = _name_and_quotes(given)
    return os.path.exists(name) or bool(_matching(name)[1])


def names_data(given: str | Path) -> bool:
    """Whether a text names data: a table, there or not, a file or folder that is no picture, a pattern of pictures."""
    name, _ = _name_and_quotes(given)
    kind = os.path.splitext(name)[1].lower()
    if kind in PICTURES:
        return not os.path.isfile(name) and exists(name)
    return kind in TABLES or os.path.exists(name)


def as_target(subject: Subject, label: Any) -> Any:
    """A label as a target: by name where the model has it, else by number; of generated text, the token itself."""
    if subject.task == "seq2seq-lm":
        return None
    if subject.regression and len(subject.labels or ()) <= 1:
        return None  # a regression: its labels are numbers, no classes, and its only output is explained
    if subject.predicts_tokens or subject.reads == "span" or label in (subject.labels or ()):
        return label  # stays a text: a token or an answer may look like a number
    number = label
    if isinstance(label, str):
        number = float(label) if re.fullmatch(r"\d+(\.0*)?", label.strip()) else label
    return int(number) if isinstance(number, float) and number.is_integer() else label


# ---- rows ------------------------------------------------------------------------------------------------------------


def _rows(data: Any) -> Iterator[Row]:
    """Every row of the data."""
    sources = _sources(data)
    if sources is not None:
        yield from _rows_of_files(sources)
    elif hasattr(data, "to_dict") and hasattr(data, "columns"):  # a data frame
        for start in range(0, len(data), FRAME_ROWS):
            for number, cells in enumerate(data[start : start + FRAME_ROWS].to_dict("records"), start):
                yield _row(number, str(number), cells, f"row {number}", None)
    elif isinstance(data, Mapping) or not hasattr(data, "__iter__"):
        raise TypeError(
            f"data is a list of inputs, a data frame, or the name of a file or folder, not {type(data).__name__}"
        )
    else:
        for number, item in enumerate(data):
            if hasattr(item, "truth"):
                yield Row(number, str(number), item.input, item.label, item.truth)
            elif isinstance(item, Mapping) and not item.keys().isdisjoint(("id", "label", *_TRUTHS, *_BOX)):
                yield _row(number, str(number), item, f"example {number}", None)
            else:
                yield Row(number, str(number), item)


def _rows_of_files(sources: Iterable[_Source]) -> Iterator[Row]:
    """Every picture, and every row of every table."""
    numbers = count()
    for source in sources:
        if source.picture:
            yield Row(next(numbers), source.name, source.path, source.label)
            continue
        for place, found in enumerate(rows_of(source.path, source.quotes), 1):
            name, where = f"{source.name}:{place}", f"{source.path.name}, row {place}"
            if found.error:
                yield Row(next(numbers), name, None, error=found.error)
            else:
                yield _row(next(numbers), name, found.cells, where, source.path.parent)


def _row(number: int, name: str, row: Mapping[str, Any], where: str, folder: Path | None) -> Row:
    """One row of a table, with the id that it has or else this name."""
    cells = {str(key).strip(): value for key, value in row.items() if not _missing(value)}
    name = str(cells.pop("id", name))
    try:
        return Row(number, name, *_example(cells, where, folder))
    except ValueError as error:
        return Row(number, name, None, error=str(error))


def _example(cells: Mapping[str, Any], where: str, folder: Path | None) -> tuple[Any, Any, Any]:
    """Input, label and truth of one row of a table; pictures are looked for beside the table."""
    parts = {key: cells[key] for key in PARTS if key in cells}
    others = cells.keys() - {"label", *_TRUTHS}
    if not parts and len(others) == 1:
        parts = {"text": cells[others.pop()]}
    if not parts:
        raise ValueError(f"{where} fills the columns {quoted(cells) or '(none)'}; one of {', '.join(PARTS)} is needed")
    if isinstance(parts.get("image"), str) and folder is not None:
        parts["image"] = folder / parts["image"]
    single = next(iter(parts.values())) if set(parts) in ({"text"}, {"image"}, {"prompt"}, {"source"}) else parts
    return single, cells.get("label"), _truth(cells, where, folder)


def _truth(cells: Mapping[str, Any], where: str, folder: Path | None) -> Any:
    """The truth of a row: its own cell or, of a picture, the box in x0, y0, x1 and y1; None where there is neither."""
    truth = written(next((cells[key] for key in _TRUTHS if key in cells), None), folder)
    edges = {key: cells[key] for key in _BOX if key in cells} if "image" in cells else {}
    if not edges:
        return truth
    if truth is not None:
        raise ValueError(f"{where} has a truth and a box; leave one of them empty")
    try:
        return {"box": [float(edges[key]) for key in _BOX]}
    except (KeyError, TypeError, ValueError):
        given = ", ".join(f"{key}={shown(value)}" for key, value in edges.items())
        raise ValueError(f"{where} needs numbers in all of x0, y0, x1 and y1, and has {given}") from None


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value) or (isinstance(value, float) and math.isnan(value))


def written(truth: Any, folder: Path | None = None) -> Any:
    """A truth from its text in a cell or command: "0 1 0", a phrase, a JSON list of phrases or spans, a mask's file."""
    if not isinstance(truth, str):
        return truth
    text = truth.strip()
    for parse in (json.loads, ast.literal_eval) if text[:1] in ("[", "{") else ():
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: too deep a nesting
            return parse(text)
    marks = re.sub(r"[][,;\s]+", " ", text).split()
    if set(marks) <= {"0", "1", "true", "false", "True", "False"}:
        return [mark in ("1", "true", "True") for mark in marks]
    return (folder or Path()) / text if text.lower().endswith(PICTURES) else text


# ---- files -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """A file of the data: a table, or a picture with its label."""

    path: Path
    name: str  # in ids: the path from the folder that was named
    quotes: str = ""  # "quoting" or "text", where the caller said which; else ""
    label: str | None = None
    picture: bool = False


def _sources(data: Any) -> list[_Source] | None:
    """The files of data that is given by name, or by a list of names of tables and folders; None for other data."""
    if isinstance(data, (str, Path)):
        return _named(data)
    if not isinstance(data, (list, tuple)) or not data or not all(map(_names_tables, data)):
        return None
    found = [source for one in data for source in _named(one)]
    if len({source.name for source in found}) < len(found):  # files in several folders have the same name
        found = [replace(source, name=str(source.path)) for source in found]
    return found


def _names_tables(item: Any) -> bool:
    """Whether one of a list of inputs names tables in place of being a text or picture."""
    if not isinstance(item, (str, Path)):
        return False
    name, _ = _name_and_quotes(item)
    is_table = os.path.splitext(name)[1].lower() in TABLES
    return is_table and os.path.isfile(name) if isinstance(item, str) else is_table or os.path.isdir(name)


def _name_and_quotes(given: str | Path) -> tuple[str, str]:
    """The name of data, and what stands behind it on its quotes ("a.tsv:quotes=text"); "" where nothing does."""
    name, said, quotes = str(given).rpartition(":quotes=")
    return (name, quotes) if said else (quotes, "")


def _named(given: str | Path) -> list[_Source]:
    """The file, or the files of a folder or pattern: its pictures or, where there are none, its tables."""
    name, quotes = _name_and_quotes(given)
    if os.path.isfile(name):
        return [_Source(Path(name), Path(name).name, quotes)]
    if os.path.isdir(name):
        folder, found = Path(name), list(Path(name).rglob("*"))
    else:
        folder, found = _matching(name)
        if not found:
            raise FileNotFoundError(f"there is no file or folder {shown(name)} to evaluate on")
    pictures = sorted(file for file in found if file.suffix.lower() in PICTURES)
    if pictures:
        labels = [file.parent.name if file.parent != folder else None for file in pictures]
        names = [str(file.relative_to(folder)) for file in pictures]
        return [_Source(*one, picture=True) for one in zip(pictures, names, [""] * len(names), labels, strict=True)]
    tables = sorted(file for file in found if file.suffix.lower() in TABLES and file.name[0] != "." and file.is_file())
    return [_Source(file, str(file.relative_to(folder)), quotes) for file in tables]


def _matching(pattern: str) -> tuple[Path, list[Path]]:
    """The folder in which a pattern begins, and the files that match it or are in folders that do."""
    parts = Path(pattern).parts
    fixed = list(takewhile(lambda part: not glob.has_magic(part), parts))
    if len(fixed) == len(parts) or "\0" in pattern:
        return Path(), []
    found = [Path(one) for one in glob.glob(pattern, recursive=True)]
    inside = {file for one in found for file in (one.rglob("*") if one.is_dir() else [one])}
    return Path(*fixed), list(inside)
