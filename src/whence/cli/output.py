"""Results of commands: files are written before anything is printed, so that a closed pipe loses no result."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from whence.cli.program import Misuse
from whence.core.display import DRAWN
from whence.core.files import FIGURES
from whence.core.wording import shown


def files_for(kind: str, save: Sequence[Path] | None, html: Path | None = None, csv: Path | None = None) -> list[Path]:
    """The files to write for results of a type (a public name), after checking that they can be written."""
    import whence
    from whence.core import display

    files = [*(save or ()), *(path for path in (html, csv) if path)]
    check_folders(*files)
    for flag, ending, path in (("--html", ".html", html), ("--csv", ".csv", csv)):
        if path and path.suffix.lower() != ending:
            raise Misuse(f"{flag} writes a {ending} file, and {shown(path.name)} was named")
    for path in files:
        known = display.endings(getattr(whence, kind))
        if path.suffix.lower() not in known:
            raise Misuse(f"--save writes {', '.join(known)} files here, and {shown(str(path))} is none of them")
        display.check(getattr(whence, kind), path)
    return files


def check_folders(*paths: Path | None) -> None:
    """Raise unless files can be written where they are named."""
    for path in paths:
        if path and not path.parent.is_dir():
            raise Misuse(f"there is no folder {shown(str(path.parent))} to write into; make it, or name another")
        if path and path.is_dir():
            raise Misuse(f"{shown(str(path))} is a folder; name a file in it")


def give(
    found: Any,
    files: Sequence[Path],
    show: Callable[[Any], None] | None = None,
    look: Mapping[str, Any] | None = None,
    kind: str | None = None,
) -> None:
    """Write the files of a result, or of every result of a list, and only then show them: by default, print them.

    `look` are the options of pages and figures with scores over a picture, `kind` is that of figures.
    """
    results = found if isinstance(found, list) else [found]
    for number, result in enumerate(results, 1):
        for path in files:
            own = dict(look) if look and path.suffix.lower() in DRAWN else {}
            own |= {"kind": kind} if kind and path.suffix.lower() in FIGURES else {}
            result.write(path.with_stem(f"{path.stem}-{number}") if len(results) > 1 else path, **own)
    for result in results:
        (show or print_result)(result)


def print_json(result: Any) -> None:
    """Print a result as the JSON that `save` writes, on one line."""
    typer.echo(json.dumps(result.content()))


def print_result(result: Any, kind: str | None = None) -> None:
    """Print a result, coloured on a terminal (in the way that `kind` names, where the result has it), else plain."""
    from whence.core import display

    console = Console()
    if not console.is_terminal:
        print(result)
    elif kind in display.terminal.kinds(type(result)):
        console.print(display.terminal(result, kind=kind))
    else:
        console.print(result)
    typer.echo()


def print_table(*columns: str, rows: Iterable[Iterable[str]]) -> None:
    """Print a table without lines."""
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0)  # names stay whole, so that they can be copied
    for row in rows:
        table.add_row(*row)
    Console(markup=False, emoji=False).print(table)  # cells may hold square brackets
