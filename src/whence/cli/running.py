"""The command that runs over data sets: `whence run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import whence
from whence.cli.arguments import Device, Html, Limit, Model, Save, Seed, Truncate, default_model, specs_of
from whence.cli.measuring import DATA, TARGET_OF_ALL, kind_of
from whence.cli.output import files_for, give
from whence.cli.program import Command, Misuse, app
from whence.core.wording import shown

EXAMPLES = """[bold]Examples[/bold]
whence run reviews.tsv --method gae,lrp --out reviews-run
whence run 'data/*.parquet' --model ./my-model --method gae --engine ray --workers 2 --out big-run
whence run --status big-run
whence run --verify big-run
whence report big-run --html big-run.html"""
Specs = Annotated[list[str] | None, typer.Option("--method", metavar="SPEC", help="Methods, commas between.")]
Metrics = Annotated[list[str] | None, typer.Option("--metric", metavar="SPEC", help="Metrics of every explanation.")]
Experiments = Annotated[
    list[str] | None, typer.Option("--experiment", metavar="SPEC", help="Experiments of an audit, on every row.")
]
Out = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Where the results go; a run begun there goes on.")]
Engine = Annotated[str, typer.Option("--engine", help="local, or ray.")]
Workers = Annotated[int, typer.Option("--workers", min=1, max=10_000, help="Processes here, or actors on Ray.")]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="Of torch, in each worker.")]
Address = Annotated[str | None, typer.Option("--address", help="Of a Ray cluster; without one, a cluster starts here.")]
Chunk = Annotated[int, typer.Option("--chunk", min=1, max=100_000, help="Rows that are run and kept together.")]
NoInputs = Annotated[bool, typer.Option("--no-inputs", help="Leave texts, features and labels out of the results.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first row that fails, instead of recording it.")]
Wait = Annotated[bool, typer.Option("--wait", help="Where another run writes to the folder, wait for its end.")]
Status = Annotated[
    Path | None, typer.Option("--status", metavar="FOLDER", help="Show how far a run is, and run nothing.")
]
Verify = Annotated[
    Path | None, typer.Option("--verify", metavar="FOLDER", help="Compute a sample of a run again, and compare.")
]
Sample = Annotated[int, typer.Option("--sample", min=1, max=10_000, help="Chunks that --verify computes again.")]
PlanFile = Annotated[Path | None, typer.Option("--plan", metavar="FILE", help="A plan as JSON, in place of options.")]


@app.command(cls=Command, epilog=EXAMPLES)
def run(
    data: Annotated[list[str] | None, typer.Argument(metavar="DATA...", help=DATA, show_default=False)] = None,
    method: Specs = None,
    metric: Metrics = None,
    experiment: Experiments = None,
    out: Out = Path("run"),
    model: Model = None,
    target: Annotated[str | None, typer.Option("--target", help=TARGET_OF_ALL)] = None,
    limit: Limit = None,
    engine: Engine = "local",
    workers: Workers = 1,
    threads: Threads = None,
    address: Address = None,
    chunk: Chunk = 64,
    no_inputs: NoInputs = False,
    strict: Strict = False,
    wait: Wait = False,
    plan: PlanFile = None,
    status: Status = None,
    verify: Verify = None,
    sample: Sample = 3,
    save: Save = None,
    html: Html = None,
    device: Device = None,
    seed: Seed = 0,
    truncate: Truncate = False,
) -> None:
    """Explain and measure every row of a data set, into a folder of Parquet files; a run that was stopped goes on."""
    files = files_for("Verification" if verify else "RunSummary", save, html)
    asked = bool(data or method or metric or experiment)
    if status is not None or verify is not None:
        if asked:
            raise Misuse("--status and --verify look at a run that exists; give them no data and no methods")
        _look(status, verify, files, chunks=sample, threads=threads, seed=seed)
        return
    if plan is not None and asked:
        raise Misuse("--plan names data and methods; give them there or here, not both")
    specs = {"methods": method, "metrics": metric, "experiments": experiment}
    options = {"target": target, "limit": limit, "seed": seed, "truncate": truncate, "chunk": chunk, "device": device}
    wanted = read_plan(plan) if plan else _plan(data, model, specs, options, folder=out, inputs=not no_inputs)
    where: dict[str, Any] = {"engine": engine, "workers": workers, "threads": threads, "address": address}
    give(whence.run(wanted, **where, strict=strict, wait=wait, progress=True).summary(), files)


def _look(status: Path | None, verify: Path | None, files: list[Path], **options: Any) -> None:
    """Show how far a run has come, or verify a sample of it; if the sample differs, the command fails."""
    if verify is None:
        give(whence.load_run(status or "").summary(), files)
        return
    found = whence.verify(verify, **options)
    give(found, files)
    if found.verdict == "different":
        raise typer.Exit(1)


def _plan(
    data: list[str] | None, model: str | None, specs: dict[str, list[str] | None], options: dict[str, Any], **more: Any
) -> whence.Plan:
    """The plan that the options of the command describe."""
    resolved: dict[str, Any] = {name: specs_of(*(given or ())) for name, given in specs.items()}
    return whence.Plan(_model(model, data), _data(data), **resolved, **options, **more)


def _data(data: list[str] | None) -> tuple[Path, ...]:
    if not data:
        raise Misuse(
            "whence run needs data: a file, several, a folder, or a pattern in quotes such as 'data/*.parquet'"
        )
    return tuple(map(Path, data))


def _model(model: str | None, data: list[str] | None) -> str:
    """The model that was named, else the embedded one that fits the data."""
    if model is not None:
        return model
    chosen = default_model(kind_of(_data(data)[0]))
    typer.echo(f"no model was named: {chosen} is used (see whence models)", err=True)
    return chosen


def read_plan(file: Path) -> whence.Plan:
    """A plan from a JSON file."""
    import json

    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise Misuse(f"{shown(str(file))} is no plan: it is not JSON ({error})") from error
    return whence.Plan.from_dict(values)
