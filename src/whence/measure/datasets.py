"""Reading data sets (lists, data frames, tables, folders of pictures): inputs, labels, and truths on what decides."""

from __future__ import annotations

import ast
import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whence.core.files import PICTURES, TABLES
from whence.core.tasks import PARTS
from whence.core.wording import in_one_line, quoted, shown

if TYPE_CHECKING:
    from whence.model.subject import Subject

_TRUTHS = ("truth", "rationale")
_BOX = ("x0", "y0", "x1", "y1")


def read(data: Any, limit: int | None = None) -> tuple[list[Any], list[Any], list[Any]]:
    """Inputs, labels and truths (None where not given) of a list, a data frame, a table in a file, or a folder.

    A table (CSV, TSV, JSONL, Parquet, data frame, or a list of dicts) has a column per part of an input (text, pair,
    prompt, continuation, source, output, image; the only column beside `label` and `truth` is text, whatever its name),
    and may have `label` and `truth` (phrases, marks, the file of a mask or boxes: see `rationales`); of a picture, the
    columns x0, y0, x1, y1 are the box of what decides. A folder holds pictures, or folders of them named by their
    labels.
    """
    rows = list(islice(_rows(data), limit))
    if not rows:
        raise ValueError("there is nothing to evaluate: the data is empty")
    inputs, labels, truths = zip(*rows, strict=True)
    return list(inputs), list(labels), list(truths)


def as_target(subject: Subject, label: Any) -> Any:
    """A label as a target: by name where the model has it, else by number; of generated text, the token itself."""
    if subject.task == "seq2seq-lm":
        return None
    if subject.regression and len(subject.labels or ()) <= 1:
        return None  # a label is the number that the output should be, and the output is explained
    if subject.predicts_tokens or subject.reads == "span" or label in (subject.labels or ()):
        return label  # a token, or an answer, may be a number
    number = label
    if isinstance(label, str):
        number = float(label) if re.fullmatch(r"\d+(\.0*)?", label.strip()) else label
    return int(number) if isinstance(number, float) and number.is_integer() else label


def _rows(data: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Input, label and truth of every example."""
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # a data frame
        yield from (_example(row, f"row {number}", None) for number, row in enumerate(data.to_dict("records")))
        return
    if isinstance(data, (str, Path)):
        yield from _rows_of_path(Path(data))
        return
    if isinstance(data, Mapping) or not hasattr(data, "__iter__"):
        raise TypeError(
            f"data is a list of inputs, a data frame, or the name of a file or folder, not {type(data).__name__}"
        )
    for number, item in enumerate(data):
        if hasattr(item, "truth"):
            yield item.input, item.label, item.truth
        elif isinstance(item, Mapping) and not item.keys().isdisjoint(("label", *_TRUTHS, *_BOX)):
            yield _example(item, f"example {number}", None)
        else:
            yield item, None, None


def _rows_of_path(path: Path) -> Iterator[tuple[Any, Any, Any]]:
    """Input, label and truth of every row of a table, or of every picture in a folder."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in PICTURES)
        yield from ((file, file.parent.name if file.parent != path else None, None) for file in files)
        return
    if not path.is_file():
        raise FileNotFoundError(f"there is no file or folder {str(path)!r} to evaluate on")
    for number, row in enumerate(records(path), 1):
        yield _example(row, f"{path.name}, row {number}", path.parent)


def _example(row: Mapping[str, Any], where: str, folder: Path | None) -> tuple[Any, Any, Any]:
    """Input, label and truth of one row of a table; pictures are looked for beside the table."""
    cells = {str(key).strip(): value for key, value in row.items() if not _missing(value)}
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
        with suppress(ValueError, SyntaxError):
            return parse(text)
    marks = re.sub(r"[][,;\s]+", " ", text).split()
    if set(marks) <= {"0", "1", "true", "false", "True", "False"}:
        return [mark in ("1", "true", "True") for mark in marks]
    return (folder or Path()) / text if text.lower().endswith(PICTURES) else text


def records(file: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a table in a file, by column."""
    kind = file.suffix.lower()
    if kind not in TABLES:
        raise ValueError(f"{file.name} is none of CSV, TSV, JSONL and Parquet")
    try:
        if kind == ".parquet":
            yield from _parquet(file)
            return
        with file.open(encoding="utf-8-sig", newline="") as lines:
            yield from _table(file, lines) if kind in (".csv", ".tsv") else _objects(file, lines)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file.name} is not UTF-8 text ({error.reason}); save it as UTF-8") from error
    except csv.Error as error:
        raise ValueError(
            f"{file.name} cannot be read as a table ({in_one_line(error)}); look for a quote that is not closed, or a "
            f"cell of more than {csv.field_size_limit():,} characters"
        ) from error


def _table(file: Path, lines: Iterator[str]) -> Iterator[Mapping[str, Any]]:
    """Rows of a CSV with commas or semicolons, and of a TSV, whose quotes are part of the texts."""
    tabbed, header = file.suffix.lower() == ".tsv", next(lines, "")
    delimiter = "\t" if tabbed else ";" if ";" in header and "," not in header else ","
    quoting: Any = csv.QUOTE_NONE if tabbed else csv.QUOTE_MINIMAL
    rows = csv.DictReader(chain([header], lines), delimiter=delimiter, quoting=quoting, strict=True)
    names = [str(name).strip() for name in rows.fieldnames or ()]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{file.name} names the column {shown(twice)} twice; give every column a name of its own")
    if len(rows.fieldnames or ()) == 1 and len(header.split()) > 3:
        raise ValueError(f"{file.name} begins with a text; the first line of a table names its columns, as text,label")
    for number, row in enumerate(rows, 1):
        if None in row:
            hint = "" if tabbed else f"; put texts that hold {delimiter!r} in quotes"
            raise ValueError(f"{file.name}, row {number} has more cells than the header names{hint}")
        yield row


def _objects(file: Path, lines: Iterable[str]) -> Iterator[Mapping[str, Any]]:
    """The objects of a JSONL file, one per line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file.name}, line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{file.name}, line {number} is no object with keys such as text and label")
        yield row


def _parquet(file: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow; install whence[data]") from error
    try:
        found: list[dict[str, Any]] = pyarrow.parquet.read_table(file).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file.name} cannot be read as Parquet: {in_one_line(error)}") from error
    return found
