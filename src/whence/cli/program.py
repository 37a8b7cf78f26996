"""The command `whence` itself: its options, the class of its commands, and how they report failures."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

import whence

EXAMPLES = """[bold]Examples[/bold]
whence explain "a masterful film"
whence explain cat.png --model ./my-vit --method integrated_gradients --steps 50
whence compare "a masterful film" -m ./my-model --method attention,gradient --save both.pdf
whence attention "a masterful film" --layer 3 --head 5 --save map.png

Exit codes: 0 done, 1 the work failed, 2 the command line cannot be read."""


class Misuse(Exception):
    """A command line that cannot be read."""


class Command(TyperCommand):
    """A command that reports a failure in one line."""

    def invoke(self, ctx: Any) -> None:
        try:
            super().invoke(ctx)
            sys.stdout.flush()  # a closed pipe shows here, not while Python shuts down
        except (typer.Exit, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.find_root().params["debug"]:
                raise
            foreseen = isinstance(error, (Misuse, ValueError, TypeError, OSError, ImportError)) and str(error)
            typer.echo("error: " + " ".join((str(error) if foreseen else repr(error)).split()), err=True)
            raise typer.Exit(2 if isinstance(error, Misuse) else 1) from error


app = typer.Typer(epilog=EXAMPLES, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command line, with results on stdout and without warnings of other libraries."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):  # escape characters that the terminal lacks, instead of failing
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app(prog_name="whence")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"whence {whence.__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error happened.")]


@app.callback()
def _global_options(version: Version = False, debug: Debug = False) -> None:
    """Where a transformer's prediction came from, and how far that answer can be trusted."""
