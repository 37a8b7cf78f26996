"""The commands that look inside a pass: `whence attention` and `whence conservation`."""

from __future__ import annotations

from typing import Annotated

import typer

import whence
from whence.cli.arguments import (
    Clip,
    Contour,
    Csv,
    Device,
    Figure,
    Html,
    Ignore,
    InputText,
    Model,
    Pair,
    Patches,
    Save,
    Target,
    Truncate,
    figure_kind,
    ignore_of,
    inputs,
    is_number,
    load,
    look,
    target_of,
)
from whence.cli.output import files_for, give
from whence.cli.program import Command, Misuse, app
from whence.core.wording import shown

ATTENTION_EXAMPLES = """[bold]Examples[/bold]
whence attention "a masterful film" --layer 3 --head 5 --save map.png
whence attention "a masterful film" --all-layers --html heads.html
whence attention "a masterful film" --all-layers --save maps.svg
whence attention "a masterful film" --head 5 --save lines.pdf --figure heads
whence attention digit.png --query "[CLS]" --save map.html
whence attention digit.png --layer 1 --head 0,2 --query "patch 3,3" --save heads.pdf
whence attention "two houses" -m ./my-translator --streams target:target

Layers, heads and queries are numbered from 0. A page opens with what was chosen, and lets its reader choose among all
layers and heads; with --all-layers, thumbnails of all heads come first."""
CONSERVATION_EXAMPLES = """[bold]Examples[/bold]
whence conservation "a masterful film" --save leaks.png
whence conservation "a masterful film" -m ./my-model --method "lrp(rules='ah')"
whence conservation "Paris is" -m gpt2 --method attnlrp --target " a"

gradient_x_input is always shown beside the method."""
HEAD = "A number, or several as 0,2. Default: the mean of all."
ALL_LAYERS = "All heads of all layers, small; on a page, a click opens a head."
QUERY = 'A token by number or name; over a picture by default "[CLS]" or its like. "all": the whole matrix.'
STREAMS = "As target:source. Default: cross-attention of an encoder-decoder, else self-attention."
RULES = "lrp, attnlrp or gradient_x_input, or name(option=value)."


@app.command(epilog=ATTENTION_EXAMPLES, cls=Command)
def attention(
    input: InputText,
    pair: Pair = None,
    model: Model = None,
    layer: Annotated[int | None, typer.Option("--layer", help="Default: the last.")] = None,
    head: Annotated[str | None, typer.Option("--head", help=HEAD)] = None,
    all_heads: Annotated[bool, typer.Option("--all-heads", help="All heads of the layer.")] = False,
    all_layers: Annotated[bool, typer.Option("--all-layers", help=ALL_LAYERS)] = False,
    query: Annotated[str | None, typer.Option("--query", help=QUERY)] = None,
    streams: Annotated[str | None, typer.Option("--streams", metavar="QUERY:KEY", help=STREAMS)] = None,
    save: Save = None,
    html: Html = None,
    clip: Clip = None,
    contour: Contour = None,
    patches: Patches = False,
    figure: Figure = None,
    ignore: Ignore = None,
    truncate: Truncate = False,
    device: Device = None,
) -> None:
    """Show what looks at what: the attention weights of a layer and head."""
    files = files_for("AttentionMaps", save, html)
    drawn, kind = look(clip, contour, patches, files), figure_kind(figure, "AttentionMaps", files)
    heads = _heads(head)
    raws = inputs(input, pair)
    row = int(query) if query and is_number(query.removeprefix("-")) else query
    subject = load(model, raws, device)
    found = whence.attention_maps(subject, raws, truncate=truncate, ignore=ignore_of(ignore, raws))
    selected = [
        maps.view(layer=layer, head=heads, query=row, streams=streams, all_heads=all_heads, all_layers=all_layers)
        for maps in (found if isinstance(found, list) else [found])
    ]
    give(selected, files, look=drawn, kind=kind)


def _heads(text: str | None) -> int | list[int] | None:
    """The heads that an option names: a number, or several with commas between them."""
    parts = [] if text is None else [part.strip() for part in text.split(",")]
    if not all(is_number(part.removeprefix("-")) for part in parts):
        raise Misuse(f"--head takes numbers such as 5 or 0,2, not {shown(text)}")
    numbers = [int(part) for part in parts]
    return None if text is None else numbers[0] if len(numbers) == 1 else numbers


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
