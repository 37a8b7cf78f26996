"""The command that joins saved results: `whence report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import whence
from whence.cli.arguments import Html, Save
from whence.cli.output import files_for, give
from whence.cli.program import Command, Misuse, app
from whence.core import display

EXAMPLES = """[bold]Examples[/bold]
whence explain "a masterful film" --save a.json
whence evaluate reviews.tsv --method gae,lrp,random --metric auac --limit 20 --save board.json
whence report a.json board.json reviews-run --title "My classifier" --html report.html"""
FILES = "Files that --save wrote with the ending .json, of any command, and folders of runs; their order is kept."


@app.command(epilog=EXAMPLES, cls=Command)
def report(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help=FILES, show_default=False)],
    title: Annotated[str, typer.Option("--title", help="The heading of the page.")] = "Report",
    save: Save = None,
    html: Html = None,
) -> None:
    """Join saved results of any kind on one page, with a table of contents."""
    written = files_for("Report", save, html)
    if not title.strip():
        raise Misuse("--title takes a text, and an empty one came")
    results = [whence.load_run(path).summary() if path.is_dir() else path for path in files]
    give(whence.report(results, title), written, _print_contents if written else None)


def _print_contents(found: whence.Report) -> None:
    """Print what the report holds, a line per result."""
    for number, result in enumerate(found, 1):
        typer.echo(f"{number}. {display.title(result)}")
