"""The commands that look inside a pass: `whence attention` and `whence conservation`."""

from __future__ import annotations

from typing import Annotated

import typer

import whence
from whence.cli.arguments import (
    Csv,
    Device,
    Html,
    InputText,
    Model,
    Pair,
    Save,
    Target,
    Truncate,
    inputs,
    is_number,
    load,
    target_of,
)
from whence.cli.output import files_for, give
from whence.cli.program import Command, app

ATTENTION_EXAMPLES = """[bold]Examples[/bold]
whence attention "a masterful film" --layer 3 --head 5 --save map.png
whence attention "a masterful film" --all-layers --save maps.svg
whence attention digit.png --query "[CLS]" --save map.html
whence attention "two houses" -m ./my-translator --streams target:target

Layers, heads and queries are numbered from 0."""
CONSERVATION_EXAMPLES = """[bold]Examples[/bold]
whence conservation "a masterful film" --save leaks.png
whence conservation "a masterful film" -m ./my-model --method "lrp(rules='ah')"
whence conservation "Paris is" -m gpt2 --method attnlrp --target " a"

gradient_x_input is always shown beside the method."""
QUERY = 'A token by number or name; over a picture by default "[CLS]" or its like. "all": the whole matrix.'
STREAMS = "As target:source. Default: cross-attention of an encoder-decoder, else self-attention."
RULES = "lrp, attnlrp or gradient_x_input, or name(option=value)."


@app.command(epilog=ATTENTION_EXAMPLES, cls=Command)
def attention(
    input: InputText,
    pair: Pair = None,
    model: Model = None,
    layer: Annotated[int | None, typer.Option("--layer", help="Default: the last.")] = None,
    head: Annotated[int | None, typer.Option("--head", help="Default: the mean of all.")] = None,
    all_heads: Annotated[bool, typer.Option("--all-heads", help="All heads of the layer.")] = False,
    all_layers: Annotated[bool, typer.Option("--all-layers", help="All heads of all layers, small.")] = False,
    query: Annotated[str | None, typer.Option("--query", help=QUERY)] = None,
    streams: Annotated[str | None, typer.Option("--streams", metavar="QUERY:KEY", help=STREAMS)] = None,
    save: Save = None,
    html: Html = None,
    truncate: Truncate = False,
    device: Device = None,
) -> None:
    """Show what looks at what: the attention weights of a layer and head."""
    files = files_for("AttentionMaps", save, html)
    raws = inputs(input, pair)
    row = int(query) if query and is_number(query.removeprefix("-")) else query
    found = whence.attention_maps(load(model, raws, device), raws, truncate=truncate)
    selected = [
        maps.view(layer=layer, head=head, query=row, streams=streams, all_heads=all_heads, all_layers=all_layers)
        for maps in (found if isinstance(found, list) else [found])
    ]
    give(selected, files)


@app.command(epilog=CONSERVATION_EXAMPLES, cls=Command)
def conservation(
    input: InputText,
    pair: Pair = None,
    model: Model = None,
    method: Annotated[str, typer.Option("--method", metavar="SPEC", help=RULES)] = "lrp",
    target: Target = None,
    token: Annotated[int, typer.Option("--token", help="Which generated token, by its number.")] = 0,
    save: Save = None,
    html: Html = None,
    csv: Csv = None,
    truncate: Truncate = False,
    device: Device = None,
) -> None:
    """Show where relevance leaks: what every module is given of it, and what it hands on."""
    files = files_for("Conservation", save, html, csv)
    raws = inputs(input, pair)
    subject = load(model, raws, device)
    aimed = target_of(subject, target)
    give(whence.conservation(subject, raws, method, aimed, token=token, truncate=truncate), files)
