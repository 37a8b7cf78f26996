"""The commands that list what there is to use: `whence methods`, `metrics`, `experiments`, `models`, `samples`."""

from __future__ import annotations

import inspect
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import whence
from whence.cli.explaining import flag_of
from whence.cli.output import print_table
from whence.cli.program import Command, Misuse, app
from whence.core import registry
from whence.core.tasks import NAMES as ALL_TASKS
from whence.core.wording import shown

Bibtex = Annotated[bool, typer.Option("--bibtex", help="Print the papers as BibTeX.")]


@app.command(cls=Command)
def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show all about this method.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table for documents.")] = False,
    bibtex: Bibtex = False,
) -> None:
    """List the methods, or show one with its options and an example."""
    records = whence.list_methods() if name is None else [registry.find("method", name)]
    if as_json:
        typer.echo(json.dumps([_facts(record) for record in records], indent=2, default=repr))
    elif markdown:
        typer.echo(_markdown(records))
    elif bibtex:
        _cite(records)
    elif name is None:
        print_table("method", "what it is", rows=map(_row, records))
    else:
        _show_method(records[0])


@app.command(cls=Command)
def metrics(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show all about this metric.")] = None,
    bibtex: Bibtex = False,
) -> None:
    """List the metrics, or show one with its options."""
    if bibtex:
        _cite(whence.list_metrics() if name is None else [registry.find("metric", name)])
        return
    if name is None:
        rows = [(r.name, f"{r.summary}\n{r.family}; {r.better} is better; {r.paper}\n") for r in whence.list_metrics()]
        print_table("metric", "what it is", rows=rows)
        return
    record = registry.find("metric", name)
    typer.echo(f"{record.name} ({record.family}; {record.better} is better; {record.paper})\n")
    typer.echo(f"{inspect.getdoc(record.function)}\n")
    options = list(record.options.values())
    if options:
        print_table("option", "takes", "default", rows=[(o.name, o.takes, repr(o.default)) for o in options])
        example = f"{name}({options[0].name}={options[0].default!r})"
        typer.echo(f'\nOptions stand in brackets behind the name, as in --metric "{example}".')


@app.command(cls=Command)
def experiments(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show all about this experiment.")] = None,
) -> None:
    """List the experiments of an audit, or show one with its options."""
    if name is None:
        rows = [(r.name, f"{r.question}\n{r.summary} {r.paper}\n") for r in whence.list_experiments()]
        print_table("experiment", "what it asks", rows=rows)
        return
    record = registry.find("experiment", name)
    typer.echo(f"{record.name}: {record.question} ({record.paper})\n")
    typer.echo(f"{inspect.getdoc(record.function)}\n")
    for limit in record.limits:
        typer.echo(f"Limit: {limit}")
    print_table(
        "option", "takes", "default", rows=[(o.name, o.takes, repr(o.default)) for o in record.options.values()]
    )


@app.command(cls=Command)
def models() -> None:
    """List the models that ship with whence."""
    rows = [
        (
            card["name"],
            f"{card['accuracy']:.2%}",
            f"{card['size_mb']} MB",
            f"{card['what']}\n{card['family']}; {card['task']}",
        )
        for card in whence.list_models()
    ]
    print_table("model", "accuracy", "size", "what it is", rows=rows)
    typer.echo("\nUse one with --model NAME, or --model with your own folder or a hub id.")


@app.command(cls=Command)
def samples(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to; it must exist.")] = Path("."),
) -> None:
    """Write the samples that ship with whence, pictures and reviews, into a folder."""
    if not folder.is_dir():
        raise Misuse(f"there is no folder {shown(str(folder))} to write into; make it, or name another")
    for name, source in whence.zoo.samples().items():
        place = folder / name
        if place.exists() and place.read_bytes() != source.read_bytes():
            raise ValueError(f"{str(place)!r} exists and is another file; name another folder")
        place.write_bytes(source.read_bytes())
        typer.echo(place)


def _cite(records: Sequence[registry.Record]) -> None:
    """Print the papers of records as BibTeX, each once."""
    typer.echo("\n\n".join(dict.fromkeys(record.bibtex for record in records if record.paper)))


def _row(record: registry.Record) -> tuple[str, str]:
    """A row of the table; family, promises, needs and paper go below the summary, to fit a narrow terminal."""
    promises = "complete, signed" if record.complete else "signed" if record.signed else "unsigned"
    needs = ", ".join(need.partition(":")[0] for need in record.needs) or "nothing"
    facts = f"{record.family}; {promises}\nneeds {needs}; {record.paper or 'no paper'}"
    return record.name, f"{record.summary}\n{facts}\n"


def _show_method(record: registry.Record) -> None:
    """Print everything about one method, with an example to copy."""
    typer.echo(f"{record.name} ({record.family}; {record.paper or 'no paper'})\n")
    typer.echo(f"{inspect.getdoc(record.function)}\n\nWorks on: {', '.join(record.tasks)}.\n")
    options = list(record.options.values())
    if options:
        print_table("option", "takes", "default", rows=[(flag_of(o.name), o.takes, repr(o.default)) for o in options])
    text = "a masterful film" if "text-classification" in record.tasks else "cat.png"
    example = ["whence", "explain", text, "--model", "./my-model", "--method", record.name]
    example += next(([flag_of(o.name), str(o.default)] for o in options if o.default is not None), [])
    typer.echo(f"\nExample: {shlex.join(example)}")


def _facts(record: registry.Record) -> dict[str, Any]:
    """Everything about one method, for JSON."""
    names = ("name", "family", "summary", "paper", "complete", "signed", "needs", "tasks")
    options = [{"name": o.name, "takes": o.takes, "default": o.default} for o in record.options.values()]
    return {name: getattr(record, name) for name in names} | {"options": options}


def _markdown(records: Sequence[registry.Record]) -> str:
    """The methods as a table for documents, a line each."""
    lines = ["| name | family | what it is | signed | complete | works on | paper |", "|---|---|---|---|---|---|---|"]
    for record in records:
        tasks = "all" if record.tasks == ALL_TASKS else ", ".join(record.tasks)
        signed, complete = ("yes" if promise else "no" for promise in (record.signed, record.complete))
        cells = (f"`{record.name}`", record.family, markdown_text(record.summary), signed, complete, tasks)
        lines.append(f"| {' | '.join(cells)} | {_link(record.paper)} |")
    return "\n".join(lines)


def markdown_text(text: str) -> str:
    """The text with Markdown's signs escaped, except in code."""
    return re.sub(r"`[^`|]*`|[|*_<]", lambda match: match[0] if len(match[0]) > 1 else "\\" + match[0], text)


def _link(paper: str) -> str:
    """A paper as a Markdown link, where its number names a page."""
    kind, _, number = paper.partition(":")
    sites = {"arXiv": "https://arxiv.org/abs/", "doi": "https://doi.org/"}
    return f"[{paper}]({sites[kind]}{number})" if kind in sites else markdown_text(paper) or "none"
