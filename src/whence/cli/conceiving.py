"""The command `whence concept`, which asks whether a model goes by concepts."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import whence
from whence.cli.arguments import BatchSize, Csv, Device, Html, Model, Save, Seed, Truncate, load, target_of
from whence.cli.output import files_for, give
from whence.cli.program import Command, Misuse, app

EXAMPLES = """[bold]Examples[/bold]
whence concept striped red round --target striped -m textures
whence concept striped dotted --target striped -m textures --relative --save bars.png --save page.html
whence concept ./dotted ./yellow --data ./ladybugs --random ./photos --target ladybug -m ./my-vit --layer 8
whence concept praise.txt time.txt --target positive -m sst2

A concept is a folder of pictures, a file with a text per line, or a name that the zoo draws: striped, dotted, checked,
zigzag, plain; red, green, blue, yellow, purple, grey; round, square, triangular, star; random."""
CONCEPTS = "Folders of pictures, files with a text per line, or names that the zoo draws."
DATA = "Examples of the class: a folder, or a file; an embedded model has its own."
RANDOM = "Examples that show nothing in particular; an embedded model has its own."
LAYER = "The number of a block, whose input is read, or a module's name. May be repeated; default: all blocks."
AT = "deciding (the tokens that the output reads), mean (of all tokens) or flat."
PROBE = "difference (of means), logistic or hinge; the last two need scikit-learn."
ROUNDS = "Random concepts to rank among; default: as many as the correction needs."
TEST = "rank, or t: the test of the TCAV paper, which finds too much."


@app.command(epilog=EXAMPLES, cls=Command)
def concept(
    concepts: Annotated[list[str], typer.Argument(metavar="CONCEPT...", help=CONCEPTS, show_default=False)],
    model: Model = None,
    target: Annotated[
        str | None, typer.Option("--target", help="The class: a label, or a kind of target of it.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", metavar="PATH", help=DATA)] = None,
    random: Annotated[str | None, typer.Option("--random", metavar="PATH", help=RANDOM)] = None,
    layer: Annotated[list[str] | None, typer.Option("--layer", help=LAYER)] = None,
    at: Annotated[str, typer.Option("--at", help=AT)] = "deciding",
    probe: Annotated[str, typer.Option("--probe", help=PROBE)] = "difference",
    relative: Annotated[bool, typer.Option("--relative", help="Tell concepts from each other.")] = False,
    counter_sets: Annotated[int, typer.Option("--counter-sets", help="Random sets to tell a concept from.")] = 10,
    random_concepts: Annotated[int | None, typer.Option("--random-concepts", help=ROUNDS)] = None,
    size: Annotated[int, typer.Option("--size", help="Examples of a concept that the zoo draws.")] = 50,
    test: Annotated[str, typer.Option("--test", help=TEST)] = "rank",
    level: Annotated[float, typer.Option("--level", help="Of significance.")] = 0.05,
    save: Save = None,
    html: Html = None,
    csv: Csv = None,
    seed: Seed = 0,
    truncate: Truncate = False,
    batch_size: BatchSize = None,
    device: Device = None,
) -> None:
    """Ask whether a class depends on concepts, more than on random ones (TCAV)."""
    if target is None:
        raise Misuse("concept needs the class that is explained; name it with --target")
    if model is None:
        raise Misuse("concept needs a model; name it with --model, as textures, or set WHENCE_MODEL")
    files = files_for("Sensitivity", save, html, csv)
    subject = load(model, None, device)
    found = whence.concept(
        subject,
        concepts,
        target_of(subject, target),
        data,
        random=random,
        layers=layer or "all",
        at=at,  # type: ignore[arg-type]
        probe=probe,  # type: ignore[arg-type]
        relative=relative,
        counter_sets=counter_sets,
        random_concepts=random_concepts,
        size=size,
        test=test,  # type: ignore[arg-type]
        level=level,
        seed=seed,
        batch_size=batch_size,
        truncate=truncate,
        progress=sys.stderr.isatty(),
    )
    give(found, files)
