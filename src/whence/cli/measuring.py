"""The commands that measure: `whence score`, `whence evaluate`, `whence arbitrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import whence
from whence.cli.arguments import (
    Csv,
    Device,
    Html,
    Limit,
    Model,
    Save,
    Seed,
    Truncate,
    load,
    raw_input,
    specs_of,
    target_of,
)
from whence.cli.output import check_folders, files_for, give
from whence.cli.program import Command, Misuse, app
from whence.core.wording import shown
from whence.measure.datasets import exists, names_data, read, written

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
TARGET_OF_ALL = 'Explain this of all examples, as explain takes it ("mlp:3:17"), in place of labels or predictions.'
DATA = (
    "CSV, TSV, JSONL or Parquet files, a folder of them, or a pattern as 'data/*.parquet', with a column text (or "
    "other parts of an input), and label and truth where they are known; of pictures, image, and x0, y0, x1, y1 for "
    "the box of what decides; or a folder of pictures, or of folders of them named by their labels. FILE:quotes=text "
    "says that quotes in a CSV or TSV are part of the texts, FILE:quotes=quoting that they go around cells."
)
TRUTH = (
    "What decides, for plausibility and localisation: a phrase, marks as '0 1 0', a mask file, or "
    "'{\"box\": \\[x0, y0, x1, y1]}'; once per FILE."
)
DataNames = Annotated[list[str], typer.Argument(metavar="DATA...", help=DATA)]
Specs = Annotated[
    list[str], typer.Option("--method", metavar="SPEC", help="Names or name(option=value), commas between.")
]
Metrics = Annotated[
    list[str],
    typer.Option(
        "--metric", metavar="SPEC", help="Names or name(option=value), commas between; whence metrics lists them."
    ),
]


@app.command(cls=Command, epilog=SCORE_EXAMPLES)
def score(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Attributions that --save wrote.")],
    metric: Metrics,
    truth: Annotated[list[str] | None, typer.Option("--truth", help=TRUTH)] = None,
    model: Model = None,
    save: Save = None,
    html: Html = None,
    csv: Csv = None,
    device: Device = None,
    seed: Seed = 0,
) -> None:
    """Measure how faithful saved explanations are, with the model that they explain."""
    written_files = files_for("Score", save, html, csv)
    found = [whence.Attribution.load(file) for file in files]
    truths = [written(text) for text in truth] if truth else None
    pictures = found[0].input.image is not None and not found[0].input.texts
    subject = load(model, Path("picture.png") if pictures else found[0].input.raw, device)
    scores = [whence.score(subject, found, spec, truth=truths, seed=seed) for spec in specs_of(*metric)]
    give(scores, written_files, lambda one: typer.echo(str(one)))


@app.command(cls=Command, epilog=EVALUATE_EXAMPLES)
def evaluate(
    data: DataNames,
    method: Specs,
    metric: Metrics,
    model: Model = None,
    target: Annotated[str | None, typer.Option("--target", help=TARGET_OF_ALL)] = None,
    limit: Limit = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", help="Keep what is done in this file, and go on from it.")
    ] = None,
    save: Save = None,
    html: Html = None,
    csv: Csv = None,
    device: Device = None,
    seed: Seed = 0,
    truncate: Truncate = False,
) -> None:
    """Set methods against metrics on a data set: means, intervals, and which differences may be chance."""
    files = files_for("Scoreboard", save, html, csv)
    check_folders(resume)
    named = data_of(data, "evaluate on")
    subject = load(model, kind_of(named), device)
    board = whence.evaluate(
        subject,
        named,
        specs_of(*method),
        specs_of(*metric),
        target=target_of(subject, target),
        limit=limit,
        seed=seed,
        truncate=truncate,
        resume=resume,
        progress=True,
    )
    give(board, files)


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
    limit: Limit = None,
    save: Save = None,
    html: Html = None,
    csv: Csv = None,
    device: Device = None,
    seed: Seed = 0,
    truncate: Truncate = False,
) -> None:
    """Choose the explanation that a metric finds most faithful to the model, and judge the choice by other metrics."""
    files = files_for("Arbitration", save, html, csv)
    given = data if names_data(data) else raw_input(data)
    found = whence.arbitrate(
        load(model, kind_of(given) if names_data(data) else given, device),
        given,
        specs_of(*candidates),
        metric,
        by=by,  # type: ignore[arg-type]
        labels=labels,  # type: ignore[arg-type]
        held_out=specs_of(*held_out),
        fit=fit,
        limit=limit,
        seed=seed,
        truncate=truncate,
        progress=True,
    )
    give(found, files)


def data_of(names: list[str], purpose: str) -> str | list[Path]:
    """The data that a command names: a file, folder or pattern, or a list of them; a missing one raises."""
    for name in names:
        if not exists(name):
            raise Misuse(f"there is no file or folder {shown(name)} to {purpose}")
    return names[0] if len(names) == 1 else [Path(name) for name in names]


def kind_of(data: Any) -> Any:
    """An input of the kind that the data holds, by which a model can be chosen."""
    return read(data, 1)[0][0]
