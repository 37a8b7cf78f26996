"""Tables in files (CSV, TSV, JSONL, Parquet), row by row and larger than memory; how their quotes were read."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TextIO

from whence.core.files import TABLES
from whence.core.wording import in_one_line, shown

DELIMITED = (".csv", ".tsv")
MAX_CELL = 2**24  # characters of a cell: a quote that is not closed must not read the rest of a large file
BATCH_ROWS = 256  # rows of a Parquet file that are in memory at a time
BUFFER_BYTES = 2**20  # of a column of a Parquet file that are read at a time
DELIMITERS = {";": "Semicolons", "\t": "Tabs"}  # what may separate the cells of a CSV in place of commas
QUOTES = {
    "quoting": "Quotes around cells were read as quoting, as spreadsheets and pandas write them",
    "text": "Quotes were read as part of the texts",
}

Quotes = Literal["", "quoting", "text"]


@dataclass(frozen=True)
class TableRow:
    """One row of a table by column, or the sentence on why this row alone cannot be read."""

    cells: Mapping[str, Any]
    error: str = ""


def rows_of(file: Path, quotes: str = "") -> Iterator[TableRow]:
    """The rows of a table in a file; `quotes` says what quotes in a CSV or TSV are, "" to find out."""
    kind = file.suffix.lower()
    with _readable_errors(file, quotes):
        if kind == ".parquet":
            yield from _parquet(file)
            return
        with _opened(file) as lines:
            yield from _delimited(file, lines, quotes) if kind in DELIMITED else _objects(file, lines)


def records(file: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a table in a file, by column; a row that cannot be read raises."""
    for row in rows_of(file):
        if row.error:
            raise ValueError(row.error)
        yield row.cells


def assumed(file: Path, quotes: str = "") -> tuple[str, ...]:
    """Sentences, without their full stop, on what was assumed to read a CSV or TSV; none where nothing was."""
    if file.suffix.lower() not in DELIMITED:
        return ()
    with _readable_errors(file, quotes), _opened(file) as lines:
        first = next(lines, "")
        delimiter = _delimiter(file, first)
        if not quotes and delimiter == "\t":
            quotes = _quotes_of(file)
        elif not quotes:
            begun = f'{delimiter}"'
            quotes = "quoting" if any(line[:1] == '"' or begun in line for line in chain([first], lines)) else ""
    parted = DELIMITERS.get(delimiter) if file.suffix.lower() == ".csv" else None
    return (*([QUOTES[quotes]] if quotes else ()), *([f"{parted} were read as what parts cells"] if parted else ()))


@contextmanager
def _readable_errors(file: Path, quotes: str) -> Iterator[None]:
    """A scope in which an error of a reader becomes a sentence that names the file."""
    if file.suffix.lower() not in TABLES:
        raise ValueError(f"{file.name} is none of CSV, TSV, JSONL and Parquet")
    if quotes not in ("", *QUOTES) or (quotes and file.suffix.lower() not in DELIMITED):
        raise ValueError(f"quotes={quotes} was said of {file.name}; CSV and TSV take quotes=quoting or quotes=text")
    try:
        yield
    except UnicodeDecodeError as error:
        raise ValueError(f"{file.name} is not UTF-8 text ({error.reason}); save it as UTF-8") from error
    except csv.Error as error:
        raise ValueError(
            f"{file.name} cannot be read as a table ({in_one_line(error)}); look for a quote that is not closed, or a "
            f"cell of more than {MAX_CELL:,} characters"
        ) from error


def _opened(file: Path) -> TextIO:
    """The opened file; line ends stay as they are, since they may be part of a quoted text."""
    return file.open(encoding="utf-8-sig", newline="")


# ---- CSV and TSV -----------------------------------------------------------------------------------------------------


def _delimited(file: Path, lines: Iterator[str], quotes: str) -> Iterator[TableRow]:
    """The rows of a CSV or TSV below its header."""
    first = next(lines, "")
    delimiter = _delimiter(file, first)
    quotes = quotes or (_quotes_of(file) if delimiter == "\t" else "quoting")
    last = ""  # the line that ends the row

    def watched() -> Iterator[str]:
        nonlocal last
        for line in chain([first], lines):
            last = line
            yield line

    style: Any = csv.QUOTE_NONE if quotes == "text" else csv.QUOTE_MINIMAL
    rows = _long_cells(csv.reader(watched(), delimiter=delimiter, quoting=style, strict=True))
    names = _names(file, next(rows, []), first)
    end, number = _end(last), 0
    for row in rows:
        if not _ends_alike(end, _end(last)):
            raise ValueError(
                f"{file.name}, row {number + 1} ends in {_end(last)!r} and the header in {end!r}, so that a carriage "
                "return may be of a text or of the line end; save it with one kind of line end, or with quotes"
            )
        if not row:
            continue  # an empty line
        number += 1
        if len(row) > len(names):
            hint = "" if delimiter == "\t" else f"; put texts that hold {delimiter!r} in quotes"
            yield TableRow({}, f"{file.name}, row {number} has more cells than the header names{hint}")
        else:
            yield TableRow(dict(zip(names, row, strict=False)))


def _long_cells(rows: Iterator[list[str]]) -> Iterator[list[str]]:
    """Rows whose cells may be long. The limit of `csv` is the whole process's, so each row sets and restores it."""
    while True:
        before = csv.field_size_limit(MAX_CELL)
        try:
            row = next(rows, None)
        finally:
            csv.field_size_limit(before)
        if row is None:
            return
        yield row


def _delimiter(file: Path, header: str) -> str:
    """The character between cells: a tab in a TSV; in a CSV a comma, or the separator that the header has instead."""
    if file.suffix.lower() == ".tsv":
        if "\t" not in header and "," in header:
            raise ValueError(f"{file.name} has commas and no tab in its header; name it .csv if commas part its cells")
        return "\t"
    unquoted = re.sub('"[^"]*"', "", header)
    return next((mark for mark in (",", *DELIMITERS) if mark in unquoted), ",")


def _names(file: Path, header: list[str], line: str) -> list[str]:
    """The names of the columns; an error for one that stands twice, and for a text where names should be."""
    names = [name.strip() for name in header]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{file.name} names the column {shown(twice)} twice; give every column a name of its own")
    if len(names) == 1 and len(line.split()) > 3:
        raise ValueError(f"{file.name} begins with a text; the first line of a table names its columns, as text,label")
    return names


def _end(line: str) -> str:
    """The line end of a line; "" of a last line that has none."""
    return line[len(line.rstrip("\r\n")) :]


def _ends_alike(header: str, row: str) -> bool:
    """Whether a row's line end agrees with the header's; if not, a carriage return may be part of the last text."""
    return row == header or row in ("", "\n") if header != "\r" else row in ("", "\r")


class _AsTexts:
    """Passes the lines of a table on, and notes what holds if quotes are part of the texts and each line is a row."""

    def __init__(self, lines: Iterator[str], delimiter: str) -> None:
        self.lines, self.delimiter = lines, delimiter
        self.row = -1  # the number of the last line that was passed on; the header is row 0
        self.width = 0  # cells of the header
        self.uneven: int | None = None  # the first row with another number of cells
        self.quoted: int | None = None  # the first row with a cell that begins with a quote
        self.doubled = False  # whether some cell is in quotes and has all quotes inside doubled, which no text has

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            text = line.rstrip("\r\n")
            if text:
                self._look(text.split(self.delimiter))
            yield line

    def _look(self, cells: list[str]) -> None:
        self.row += 1
        self.width = self.width or len(cells)
        if self.uneven is None and len(cells) != self.width:
            self.uneven = self.row
        for cell in cells:
            if cell[:1] == '"':
                self.quoted = self.row if self.quoted is None else self.quoted
                self.doubled |= '""' in cell[1:-1] and cell[-1] == '"' and '"' not in cell[1:-1].replace('""', "")


def _quotes_of(file: Path) -> Quotes:
    """Whether quotes in a table with tabs are "quoting" or "text", judged by the whole file; "" without quoted cells.

    Quotes are quoting where every cell that begins with one is closed, all rows have equally many cells, and either
    some cell needed its quotes (for a tab, a line end or a doubled quote) or the header has them; they are texts where
    they cannot be quoting and all lines have equally many cells. A file that fits both, or neither, is refused.
    """
    with _opened(file) as lines:
        as_texts = _AsTexts(lines, "\t")
        handed_on = iter(as_texts)
        wrong = _wrong_as_quoting(handed_on)
        for _ in handed_on:
            pass  # where reading as quoting stopped early, the remaining lines still pass
    if as_texts.quoted is None:
        return ""
    needed, even = as_texts.doubled or as_texts.quoted == 0, as_texts.uneven is None
    if not wrong and (needed or not even):
        return "quoting"
    if wrong and not needed and even:
        return "text"
    against_text = "quotes are doubled or in the header" if even else f"row {as_texts.uneven} has more or fewer cells"
    reason = f"as quoting, {wrong}; as texts, {against_text}" if wrong else "both fit every row"
    where = f"row {as_texts.quoted}" if as_texts.quoted else "the header"
    raise ValueError(
        f"{file.name}, {where} has a cell that begins with a quote, and the file leaves open whether quotes are "
        f"quoting or part of the texts ({reason}); say {file.name}:quotes=quoting or {file.name}:quotes=text"
    )


def _wrong_as_quoting(lines: Iterable[str]) -> str:
    """Why quotes around the cells of a table with tabs cannot be quoting; "" where they can be."""
    width, number = 0, 0
    try:
        for row in _long_cells(csv.reader(lines, delimiter="\t", strict=True)):
            if not row:
                continue
            width = width or len(row)
            if len(row) != width:
                return f"row {number} has {len(row)} cells in place of {width}"
            number += 1
    except csv.Error as error:
        return f"row {number}: {in_one_line(error)}"
    return ""


# ---- JSONL and Parquet -----------------------------------------------------------------------------------------------


def _objects(file: Path, lines: Iterable[str]) -> Iterator[TableRow]:
    """The objects of a JSONL file, one per line."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            yield TableRow({}, f"{file.name}, line {number} is not JSON: {in_one_line(error)}")
            continue
        if isinstance(row, dict):
            yield TableRow(row)
        else:
            yield TableRow({}, f"{file.name}, line {number} is no object with keys such as text and label")


def _parquet(file: Path) -> Iterator[TableRow]:
    """The rows of a Parquet file, of which a batch is in memory at a time."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow; install whence[data]") from error
    try:
        with pyarrow.parquet.ParquetFile(file, buffer_size=BUFFER_BYTES) as table:
            for batch in table.iter_batches(BATCH_ROWS):
                yield from map(TableRow, batch.to_pylist())
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file.name} cannot be read as Parquet: {in_one_line(error)}") from error
