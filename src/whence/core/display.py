"""How results are shown and written: one generic function per medium, which finds its view by the type of the result.

`whence.views` registers the views of the package's own results. A new type of result registers its own, in any module:

    @display.fragment.register(MyResult)
    def fragment_of_my_result(result: MyResult) -> str: ...

Media: `terminal` (a rich renderable), `text` (plain text; by default what the terminal shows, without colours),
`title` (of a page; by default the kind of result), `fragment` (HTML to stand inside a page), `page` (a whole page; by
default the fragment in the shell that all pages share), `figure` (a matplotlib Figure), `table` (columns and rows).
`write` chooses among them by the ending of a file.
A medium may show a type in several ways: `figure.register(MyResult, "waterfall")` adds one with a name, a kind, which
takes its keyword-only arguments as options.
"""

from __future__ import annotations

import csv
import html
import importlib
import importlib.util
import inspect
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from os import PathLike
from pathlib import Path
from typing import Any, Generic, TypeVar

from whence.core import extensions
from whence.core.files import FIGURES
from whence.core.looks import Look
from whence.core.specs import checked, parse
from whence.core.wording import shown, suggest

WIDTH = 100  # columns of plain text; a wider table takes what it needs
DOTS_PER_INCH = 150  # of figures that are saved as pixels
DRAWN = (".html", *FIGURES)
DIGITS = 6  # significant digits of numbers in CSV

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Medium(Generic[T]):
    """A function of a result that dispatches on the result's type, once the views of the package are loaded."""

    def __init__(self, name: str, noun: str, default: Callable[[Any], T] | None = None) -> None:
        self.name, self.noun = name, noun
        self._default = default or self._refuse
        self._functions = singledispatch(self._default)
        self._kinds: dict[str, Any] = {}  # name of a further way to show results -> its function by type

    def __call__(self, result: Any, look: Look | None = None, kind: str | None = None) -> T:
        """The result in this medium, in the way that `kind` names, as "waterfall" or "waterfall(most=20)".

        Only functions with an argument `look` take a look of scores over a picture; further arguments are options.
        """
        extensions.load("view")
        function, options = self._functions.dispatch(type(result)), dict[str, Any]()
        if kind is not None:
            function, options = self._of_kind(type(result), kind)
        if look is not None:
            if "look" not in inspect.signature(function).parameters:
                named = f"{self.noun} {parse(kind)[0]!r}" if kind else self.noun
                raise ValueError(f"the {named} of the type {type(result).__name__} takes no options of pictures")
            options["look"] = look
        return function(result, **options)

    def register(self, kind: type, name: str = "") -> Callable[[F], F]:
        """A decorator for the function that shows results of this type in this medium, or in one named way of it."""

        def registered(function: F) -> F:
            functions = self._kinds.setdefault(name, singledispatch(self._default)) if name else self._functions
            functions.register(kind, function)
            return function

        return registered

    def kinds(self, kind: type) -> tuple[str, ...]:
        """The names of the further ways to show results of this type."""
        extensions.load("view")
        return tuple(name for name, own in self._kinds.items() if own.dispatch(kind) is not self._default)

    def check_kind(self, of: type, kind: str) -> None:
        """Refuse a name, or options behind it, that results of this type do not have in this medium."""
        self._of_kind(of, kind)

    def _of_kind(self, of: type, kind: str) -> tuple[Callable[..., T], dict[str, Any]]:
        """The function that a spec names for results of this type, and its options."""
        name, options = parse(kind)
        known = self.kinds(of)
        if name not in known:
            raise ValueError(f"a {self.noun} of the type {of.__name__} is not {shown(name)}; {suggest(name, known)}")
        function = self._kinds[name].dispatch(of)
        taken = {
            k: p for k, p in inspect.signature(function, eval_str=True).parameters.items() if p.kind == p.KEYWORD_ONLY
        }
        for option, value in options.items():
            if option not in taken:
                raise ValueError(f"the {self.noun} {name!r} has no option {option!r}; {suggest(option, taken)}")
            options[option] = checked(option, value, taken[option].annotation)
        return function, options

    def covers(self, kind: type) -> bool:
        """Whether results of this type have a function of their own in this medium."""
        extensions.load("view")
        return self._functions.dispatch(kind) is not self._default

    def _refuse(self, result: Any) -> T:
        kind = type(result).__name__
        raise TypeError(
            f"the type {kind} has no {self.noun}; register a function with "
            f"whence.core.display.{self.name}.register({kind})"
        )


class Provided(Generic[T]):
    """A function that the views provide, because `core` holds neither templates nor style sheets."""

    _function: Callable[..., T]

    def __call__(self, *given: Any, **options: Any) -> T:
        """Call the function that the views provide."""
        extensions.load("view")
        return self._function(*given, **options)

    def provide(self, function: Callable[..., T]) -> Callable[..., T]:
        """A decorator by which the views provide the function."""
        self._function = function
        return function


def _whole_page(result: Any, look: Look | None = None) -> str:
    """The fragment of a result as a page of its own."""
    return shell([fragment(result, look)], title(result))


def _kind(result: Any) -> str:
    """The kind of a result in words: "Name audit" of a NameAudit."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(result).__name__).capitalize()


def _uncoloured(result: Any) -> str:
    """The text that the terminal shows, without colours."""
    return uncoloured(terminal(result))


@dataclass(frozen=True)
class Table:
    """Columns and rows of plain Python values: texts, numbers, truth values, None."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    digits: Mapping[str, int] = field(default_factory=dict)  # column -> significant digits in CSV, where not DIGITS


terminal: Medium[Any] = Medium("terminal", "view for the terminal")
text: Medium[str] = Medium("text", "plain text", _uncoloured)
title: Medium[str] = Medium("title", "title", _kind)
fragment: Medium[str] = Medium("fragment", "page")
page: Medium[str] = Medium("page", "page", _whole_page)
shell: Provided[str] = Provided()  # (fragments, title) -> a page that needs nothing else
assets: Provided[dict[str, str]] = Provided()  # () -> the style sheet and the script of all pages, by file name
figure: Medium[Any] = Medium("figure", "figure")
table: Medium[Table] = Medium("table", "table")


def uncoloured(shown: Any, width: int = WIDTH) -> str:
    """A rich renderable as text without colour codes, the same on every machine.

    Lines are as long as `width`, and longer where a table with a header needs more room.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table as RichTable

    file = io.StringIO()
    console = Console(file=file, width=10_000, color_system=None, force_jupyter=False, legacy_windows=False)
    parts = getattr(shown, "renderables", [shown])
    tables = [part for part in parts if isinstance(part, RichTable) and part.show_header]
    console.width = max([width, *(Measurement.get(console, console.options, part).maximum for part in tables)])
    console.print(shown)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def in_notebook(result: Any) -> str:
    """The page of a result in a frame, so that the styles of a notebook and of the page leave each other alone.

    The page's own script fits the frame to its content; where scripts are off, the frame scrolls.
    """
    style = "width:100%;height:32em;border:0"
    return f'<iframe title="{type(result).__name__}" style="{style}" srcdoc="{html.escape(page(result))}"></iframe>'


def csv_text(result: Any) -> str:
    """The table of a result as CSV, with numbers of six significant digits."""
    own, written = table(result), io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow(own.columns)
    digits = [own.digits.get(column, DIGITS) for column in own.columns]
    for row in own.rows:
        pairs = zip(map(_in_arrow, row), digits, strict=True)
        lines.writerow([f"{value:.{count}g}" if isinstance(value, float) else value for value, count in pairs])
    return written.getvalue()


def frame(result: Any) -> Any:
    """The table of a result as a pandas DataFrame."""
    own = table(result)
    need("pandas", "data", "to_frame()")
    return importlib.import_module("pandas").DataFrame(_columns(own), columns=list(own.columns))


def need(package: str, extra: str, what: str) -> None:
    """One sentence where an optional package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"{what} needs {package}, which is not installed; run: pip install whence[{extra}]")


def endings(kind: Any) -> tuple[str, ...]:
    """The endings of files that `write` makes of results of this type (or of the type of this result)."""
    own = kind if isinstance(kind, type) else type(kind)
    groups = {
        (".json",): hasattr(own, "save"),
        (".html",): page.covers(own) or fragment.covers(own),
        FIGURES: figure.covers(own),
        (".csv", ".parquet"): table.covers(own),
    }
    return tuple(ending for group, applies in groups.items() if applies for ending in group)


def check(kind: Any, path: str | PathLike[str]) -> None:
    """Refuse a file that `write` could not make of this type, for its ending or for a package that is missing."""
    ending, own = Path(path).suffix.lower(), kind if isinstance(kind, type) else type(kind)
    applying = endings(own)
    if ending not in applying:
        known = f"as {', '.join(applying)}" if applying else "to no file"
        raise ValueError(f"the type {own.__name__} is written {known}, and {shown(str(path))} has another ending")
    if ending in FIGURES:
        need("matplotlib", "plot", f"a {ending} file")
    if ending == ".parquet":
        need("pyarrow", "data", f"a {ending} file")


def write(result: Any, path: str | PathLike[str], look: Look | None = None, kind: str | None = None) -> None:
    """Write a result in the form that the file's ending names: JSON, a page, a figure (of a kind), or a table."""
    check(result, path)
    file, ending = Path(path), Path(path).suffix.lower()
    if kind is not None and ending not in FIGURES:
        raise ValueError(f"a kind of figure goes with {', '.join(FIGURES)}, not with {shown(file.name)}")
    if look is not None and ending not in DRAWN:
        raise ValueError(f"options of scores over a picture go with {', '.join(DRAWN)}, not with {shown(file.name)}")
    if ending == ".json":
        result.save(file)
    elif ending == ".html":
        file.write_text(page(result, look), encoding="utf-8")
    elif ending == ".csv":
        file.write_text(csv_text(result), encoding="utf-8", newline="")
    elif ending == ".parquet":
        _write_parquet(table(result), file)
    else:
        _write_figure(figure(result, look, kind), file, ending)


def _write_figure(drawn: Any, file: Path, ending: str) -> None:
    """Write a matplotlib Figure; in files of lines and letters, pictures keep all of their pixels."""
    if ending != ".png":
        for image in (image for axes in drawn.axes for image in axes.images):
            if image.get_interpolation() in (
                "auto",
                "antialiased",
            ):  # the default, by its new and old name
                image.set_interpolation("none")
    drawn.savefig(file, format=ending[1:], dpi=DOTS_PER_INCH, bbox_inches="tight", pad_inches=0.05)


def _write_parquet(own: Table, file: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(_columns(own)), file)


def _columns(own: Table) -> dict[str, list[Any]]:
    return {column: [_in_arrow(row[place]) for row in own.rows] for place, column in enumerate(own.columns)}


def _in_arrow(value: Any) -> Any:
    """A value as Arrow can hold it: lone surrogates of a text as escapes, whole numbers beyond 64 bits as floats."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return float(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value
