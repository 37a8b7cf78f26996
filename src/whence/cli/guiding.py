"""The commands `whence guide`, which trains with attention in the loss, and `whence losses`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any

import typer

import whence
from whence.cli.arguments import Csv, Device, Html, Limit, Model, Save, Truncate, load, specs_of
from whence.cli.measuring import DataNames, data_of, kind_of
from whence.cli.output import files_for, give, print_table
from whence.cli.program import Command, Misuse, app
from whence.core import registry

EXAMPLES = """[bold]Examples[/bold]
whence guide tweets.csv -m ./my-model --loss "rationale(weight=0.5)" --folder guided --html guided.html
whence guide reviews.tsv --loss "right_reasons(forbidden='marked')" --seeds 0,1,2,3,4 --epochs 1
whence guide train.csv --held-out test.csv --loss disagreement --loss "entropy(sharper=False, weight=0.1)"
whence losses rationale"""
LOSS = "Names or name(option=value, weight=0.5), commas between; may be repeated. whence losses lists them."
HELD_OUT = "What the models are measured on: the share of the data, as 0.2, or another file."
FOLDER = "Keep the guided models in this new folder, one per seed; whence -m FOLDER/seed-0 reads one."
PATIENCE = "Set a tenth of the data aside, look at it twice an epoch, and stop after so many looks without a gain."


@app.command(cls=Command, epilog=EXAMPLES)
def guide(
    data: DataNames,
    loss: Annotated[list[str] | None, typer.Option("--loss", metavar="SPEC", help=LOSS)] = None,
    model: Model = None,
    held_out: Annotated[str, typer.Option("--held-out", metavar="SHARE|FILE", help=HELD_OUT)] = "0.2",
    folder: Annotated[Path | None, typer.Option("--folder", metavar="FOLDER", help=FOLDER)] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Commas between; a model is trained for each.")] = "0,1,2",
    epochs: Annotated[float, typer.Option("--epochs", help="How often the data is gone through.")] = 2.0,
    rate: Annotated[float, typer.Option("--rate", help="The highest learning rate.")] = 5e-5,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Examples in one step.")] = 32,
    patience: Annotated[int | None, typer.Option("--patience", min=1, help=PATIENCE)] = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="What is judged; may be repeated.")] = None,
    control: Annotated[bool, typer.Option(help="Train on labels alone, too, to compare with.")] = True,
    limit: Limit = None,
    save: Save = None,
    html: Html = None,
    csv: Csv = None,
    device: Device = None,
    truncate: Truncate = False,
) -> None:
    """Train a classifier with attention in the loss, and say what that changes, over several seeds."""
    if not loss:
        raise Misuse("name a loss with --loss, as --loss rationale; whence losses lists them")
    files = files_for("Guidance", save, html, csv)
    named = data_of(data, "train on")
    subject = load(model, kind_of(named), device)
    found = whence.guide(
        subject,
        named,
        specs_of(*loss),
        held_out=_held_out(held_out),
        folder=folder,
        seeds=_numbers(seeds),
        epochs=epochs,
        rate=rate,
        batch_size=batch_size,
        patience=patience,
        methods=specs_of(*method) if method else ("attention", "gae"),
        control=control,
        limit=limit,
        truncate=truncate,
        progress=True,
    )
    give(found, files)


@app.command(cls=Command)
def losses(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show all about this loss.")] = None,
) -> None:
    """List the losses of whence guide, or show one with its options."""
    if name is None:
        rows = [(r.name, f"{r.summary}\n{r.family}; {r.paper}\n") for r in whence.list_losses()]
        print_table("loss", "what it is", rows=rows)
        return
    record = registry.find("loss", name)
    typer.echo(f"{record.name} ({record.family}; {record.paper})\n")
    typer.echo(f"{inspect.getdoc(record.function)}\n")
    options = record.options.values()
    print_table("option", "takes", "default", rows=[(o.name, o.takes, repr(o.default)) for o in options])
    typer.echo(f'\nExample: whence guide tweets.csv --loss "{name}(weight=0.5)"')


def _held_out(text: str) -> Any:
    """A share, or the name of a file."""
    try:
        return float(text)
    except ValueError:
        return text


def _numbers(text: str) -> list[int]:
    """Whole numbers with commas between."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) < 12 for part in parts):
        raise Misuse(f"--seeds takes whole numbers with commas between, as 0,1,2, not {text!r}")
    return [int(part) for part in parts]
