"""The commands `whence concept` and `whence maximize`: which concepts a model uses, and what excites its units."""

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
whence concept red orange blue --target ladybug -m photos
whence concept ./dotted ./yellow --data ./ladybugs --random ./photos --target ladybug -m ./my-vit --layer 8
whence concept praise.txt time.txt --target positive -m sst2

A concept is a folder of pictures, a file with a text per line, or a name that the zoo draws: striped, dotted, checked,
zigzag, plain; red, orange, yellow, green, blue, purple, grey; round, square, triangular, star; random."""
CONCEPTS = "Folders of pictures, files with a text per line, or names that the zoo draws."
DATA = "Examples of the class: a folder, or a file; an embedded model has its own."
RANDOM = "Examples that show nothing in particular; an embedded model has its own."
LAYER = "The number of a block, whose input is read, or a module's name. May be repeated; default: all blocks."
AT = "deciding (the tokens that the output reads), mean (of all tokens) or flat."
PROBE = "difference (of means), logistic or hinge; the last two need scikit-learn."
ROUNDS = "Random concepts to rank among; default: as many as the correction needs."
TEST = "rank, or t: the test of the TCAV paper, which calls chance effects significant too often."


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


MAXIMIZE_EXAMPLES = """[bold]Examples[/bold]
whence maximize striped dotted -m textures --save units.png
whence maximize mlp:2:17 -m textures --data ./pictures --steps 400 --save unit.html
whence maximize positive -m sst2 --length 6"""
UNITS = (
    "Classes, neurons as mlp:3:17, heads as head:3:2, \"channel('MODULE', 5)\", \"direction('MODULE', 'vector.npy')\"."
)
BESIDE = "Examples to show beside: those that excite a unit most."


@app.command(epilog=MAXIMIZE_EXAMPLES, cls=Command)
def maximize(
    units: Annotated[list[str], typer.Argument(metavar="UNIT...", help=UNITS, show_default=False)],
    model: Model = None,
    data: Annotated[str | None, typer.Option("--data", metavar="PATH", help=BESIDE)] = None,
    steps: Annotated[int, typer.Option("--steps", help="Steps of the search.")] = 256,
    rate: Annotated[float, typer.Option("--rate", help="The size of the first steps.")] = 0.1,
    views: Annotated[int, typer.Option("--views", help="Varied copies of a picture that a step sees.")] = 8,
    jitter: Annotated[int | None, typer.Option("--jitter", help="Pixels; default: an eighth of the picture.")] = None,
    colour: Annotated[float, typer.Option("--colour", help="The spread of shifts in colour.")] = 0.5,
    tv: Annotated[float, typer.Option("--tv", help="The pull towards smooth pictures.")] = 0.3,
    length: Annotated[int, typer.Option("--length", help="Tokens of a text.")] = 8,
    save: Save = None,
    html: Html = None,
    csv: Csv = None,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Make pictures or texts that excite classes, neurons and heads as much as can be."""
    if model is None:
        raise Misuse("maximize needs a model; name it with --model, as textures, or set WHENCE_MODEL")
    files = files_for("Maximisation", save, html, csv)
    subject = load(model, None, device)
    settings = {"steps": steps, "rate": rate, "views": views, "jitter": jitter, "colour": colour, "tv": tv}
    found = whence.maximize(
        subject,
        [target_of(subject, unit) for unit in units],
        data,
        length=length,
        seed=seed,
        progress=sys.stderr.isatty(),
        **settings,  # type: ignore[arg-type]
    )
    give(found, files)
