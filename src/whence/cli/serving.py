"""The command `whence serve`: the app in a browser, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import whence
from whence.cli.program import Command, app
from whence.core.display import need

SERVE_EXAMPLES = """[bold]Examples[/bold]
whence serve
whence serve --model ./my-model --open
whence serve --run reviews-run

The server has no passwords: it listens on this machine alone, and stops with Ctrl-C."""
MODEL = "The folder of a model of yours, beside those that ship along; may be repeated."
PORT = "Default: the first free one from 8642."
REMOTE = "Let other machines in, with --host 0.0.0.0; whoever reaches the port can use the server."
RUN = "The folder of a run over a data set, which gets a page of its own; may be repeated."
NAME = "A name that other machines call this one by; may be repeated."


@app.command(epilog=SERVE_EXAMPLES, cls=Command)
def serve(
    model: Annotated[list[Path] | None, typer.Option("--model", "-m", metavar="FOLDER", help=MODEL)] = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help=PORT)] = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    allow_remote: Annotated[bool, typer.Option("--allow-remote", help=REMOTE)] = False,
    allow_host: Annotated[list[str] | None, typer.Option("--allow-host", metavar="NAME", help=NAME)] = None,
    run: Annotated[list[Path] | None, typer.Option("--run", metavar="FOLDER", help=RUN)] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1, help="Seconds that one run may take.")] = 120,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Explain in a browser: type a text or drop a picture, and watch explanations arrive."""
    for package in ("fastapi", "uvicorn"):
        need(package, "web", "whence serve")
    for folder in run or ():
        whence.load_run(folder)  # a folder of no run is refused before anything is served
    from whence.web import limits, server

    server.serve(
        model or (),
        host=host,
        port=port,
        remote=allow_remote,
        hosts=allow_host or (),
        limits=limits.Limits(seconds=seconds),
        runs=run or (),
        open_page=open_page,
        ready=lambda address: typer.echo(f"whence serves at {address} (stop it with Ctrl-C)"),
    )
