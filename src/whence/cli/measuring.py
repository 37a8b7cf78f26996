"""The commands that measure: `whence metrics`, `whence score`, `whence evaluate`, `whence arbitrate`."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Annotated, Any

import typer

import whence
from whence.cli import (
    Command,
    Device,
    Misuse,
    Model,
    Seed,
    Truncate,
    _check_folders,
    _load,
    _print_table,
    _raw,
    _show,
    _specs,
    app,
)
from whence.core import registry
from whence.core.files import PICTURES
from whence.measure.datasets import read, written

SCORE_EXAMPLES = (
    "Example: [cyan]whence explain 'a masterful film' --save a.json && whence score a.json --metric auac[/cyan]"
)
EVALUATE_EXAMPLES = (
    "Example: [cyan]whence evaluate reviews.tsv --method gae,lrp --metric auac,deletion --limit 100[/cyan]"
)
ARBITRATE_EXAMPLES = (
    "Examples: [cyan]whence arbitrate 'a masterful film'[/cyan], "
    "[cyan]whence arbitrate reviews.tsv --candidates grid,gae,lrp --by set --fit 50[/cyan]"
)
DATA = (
    "A CSV, TSV, JSONL or Parquet file with a column text (or other parts of an input), and label and truth where they "
    "are known; or a folder of pictures, or of folders of them named by their labels."
)
TRUTH = "What decides, for plausibility and localisation: a phrase, marks as '0 1 0', or a mask file; once per FILE."
Specs = Annotated[
    list[str], typer.Option("--method", metavar="SPEC", help="Names or name(option=value), commas between.")
]
Metrics = Annotated[
    list[str],
    typer.Option(
        "--metric", metavar="SPEC", help="Names or name(option=value), commas between; whence metrics lists them."
    ),
]
Save = Annotated[Path | None, typer.Option("--save", help="Write a JSON file, which loads again.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Write the table as CSV.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a web page.")]


@app.command(cls=Command)
def metrics(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show all about this metric.")] = None,
) -> None:
    """List the metrics, or show one with its options."""
    if name is None:
        rows = [(r.name, f"{r.summary}\n{r.family}; {r.better} is better; {r.paper}\n") for r in whence.list_metrics()]
        _print_table("metric", "what it is", rows=rows)
        return
    record = registry.find("metric", name)
    typer.echo(f"{record.name} ({record.family}; {record.better} is better; {record.paper})\n")
    typer.echo(f"{inspect.getdoc(record.function)}\n")
    options = record.options.values()
    if options:
        _print_table("option", "takes", "default", rows=[(o.name, o.takes, repr(o.default)) for o in options])
        some = next(iter(options))
        typer.echo(
            f'\nOptions stand in brackets behind the name, as in --metric "{name}({some.name}={some.default!r})".'
        )


@app.command(cls=Command, epilog=SCORE_EXAMPLES)
def score(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Attributions that --save wrote.")],
    metric: Metrics,
    truth: Annotated[list[str] | None, typer.Option("--truth", help=TRUTH)] = None,
    model: Model = None,
    device: Device = None,
    seed: Seed = 0,
) -> None:
    """Measure how faithful saved explanations are, with the model that they explain."""
    found = [whence.Attribution.load(file) for file in files]
    truths = [written(text) for text in truth] if truth else None
    pictures = found[0].input.image is not None and not found[0].input.texts
    subject = _load(model, Path("picture.png") if pictures else found[0].input.raw, device)
    for spec in (s for text in metric for s in _specs(text)):
        typer.echo(str(whence.score(subject, found, spec, truth=truths, seed=seed)))


@app.command(cls=Command, epilog=EVALUATE_EXAMPLES)
def evaluate(
    data: Annotated[Path, typer.Argument(metavar="DATA", help=DATA)],
    method: Specs,
    metric: Metrics,
    model: Model = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Take so many examples.")] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Keep what is done in this file, and go on from it.")
    ] = None,
    save: Save = None,
    csv: Csv = None,
    html: Html = None,
    device: Device = None,
    seed: Seed = 0,
    truncate: Truncate = False,
) -> None:
    """Set methods against metrics on a data set: means, intervals, and which differences may be chance."""
    _check_files(save, csv, html)
    _check_folders(resume)
    if not data.exists():
        raise Misuse(f"there is no file or folder {str(data)!r} to evaluate on")
    subject = _load(model, _kind_of(data), device)
    methods, measures = ([s for text in texts for s in _specs(text)] for texts in (method, metric))
    board = whence.evaluate(
        subject, data, methods, measures, limit=limit, seed=seed, truncate=truncate, resume=resume, progress=True
    )
    _shown_and_written(board, board, save, csv, html)


@app.command(cls=Command, epilog=ARBITRATE_EXAMPLES)
def arbitrate(
    data: Annotated[str, typer.Argument(metavar="INPUT", help="A text or a picture, or data as evaluate takes it.")],
    candidates: Annotated[
        list[str],
        typer.Option("--candidates", metavar="SPEC", help="Methods; grid stands for every way to read attention."),
    ] = ["grid"],  # noqa: B006
    metric: Annotated[str, typer.Option("--metric", metavar="SPEC", help="What chooses.")] = "rft",
    by: Annotated[str, typer.Option("--by", help="A choice for every instance, every label, or the set.")] = "instance",
    labels: Annotated[
        str | None, typer.Option("--labels", help="Explain the target, or all labels, as --by label does.")
    ] = None,
    held_out: Annotated[
        list[str], typer.Option("--held-out", metavar="SPEC", help="Metrics that judge the choice.")
    ] = ["comprehensiveness"],  # noqa: B006
    fit: Annotated[
        int | None, typer.Option("--fit", min=1, help="Choose for the set on so many, judge on others.")
    ] = None,
    model: Model = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Take so many examples.")] = None,
    save: Save = None,
    csv: Csv = None,
    html: Html = None,
    device: Device = None,
    seed: Seed = 0,
    truncate: Truncate = False,
) -> None:
    """Choose the explanation that the model bears out best, and judge the choice by another metric."""
    _check_files(save, csv, html)
    given = Path(data) if os.path.exists(data) else _raw(data)
    found = whence.arbitrate(
        _load(model, _kind_of(given) if isinstance(given, Path) else given, device),
        given,
        [s for text in candidates for s in _specs(text)],
        metric,
        by=by,  # type: ignore[arg-type]
        labels=labels,  # type: ignore[arg-type]
        held_out=[s for text in held_out for s in _specs(text)],
        fit=fit,
        limit=limit,
        seed=seed,
        truncate=truncate,
        progress=True,
    )
    _shown_and_written(found, found.board, save, csv, html)


def _check_files(save: Path | None, csv: Path | None, html: Path | None) -> None:
    """That files can be written, and are not named for something else."""
    _check_folders(save, csv, html)
    kinds = {".json": ("--save", save), ".csv": ("--csv", csv), ".html": ("--html", html)}
    for ending, (flag, path) in kinds.items():
        if path and path.suffix.lower() in kinds.keys() - {ending}:
            raise Misuse(f"{flag} writes a {ending} file, and {path.name!r} was named")


def _shown_and_written(
    found: whence.Scoreboard | whence.Arbitration,
    board: whence.Scoreboard,
    save: Path | None,
    csv: Path | None,
    html: Path | None,
) -> None:
    _show(found)
    if save:
        found.save(save)
    if csv:
        csv.write_text(board.to_csv(), encoding="utf-8")
    if html:
        html.write_text(found.to_html(), encoding="utf-8")


def _kind_of(data: Path) -> Any:
    """An input of the kind that the data holds, by which a model can be chosen."""
    return data if data.suffix.lower() in PICTURES else read(data, 1)[0][0]
