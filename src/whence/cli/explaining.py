"""The commands `whence explain` and `whence compare`, which take the options of methods beside their own."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import typer

import whence
from whence.cli.arguments import (
    BatchSize,
    Clip,
    Contour,
    Csv,
    Device,
    Figure,
    Html,
    Ignore,
    InputText,
    Model,
    More,
    Patches,
    Save,
    Seed,
    Target,
    Truncate,
    figure_kind,
    ignore_of,
    load,
    look,
    several_inputs,
    shows_progress,
    specs_of,
    target_of,
)
from whence.cli.output import files_for, give, print_json, print_result
from whence.cli.program import Command, Misuse, app
from whence.core import registry
from whence.core.specs import parse
from whence.core.wording import shown, suggest

EXPLAIN_EXAMPLES = """[bold]Examples[/bold]
whence explain "a masterful film" --model ./my-model --target positive --words
whence explain "a masterful film" -m ./my-model --method attention --layer 0 --save a.json --save a.pdf
whence explain "a masterful film" -m ./my-model --method shap --save a.pdf --figure waterfall
whence explain "a masterful film" -m ./my-model --ignore masterful --save a.pdf --figure intervention
whence explain "two dogs play" "animals are outside" -m ./my-nli-model
whence explain '{"prompt": "Paris is", "continuation": " a city"}' -m gpt2
whence explain '{"messages": [{"role": "user", "content": "..."}]}' -m ./my-chat-model --level sentence
whence explain photo.png -m ./my-vit --method rise --save map.pdf --clip 99 --contour 0.5
whence explain - --model ./my-model --json < texts.txt > results.jsonl

Options of the method go here too, as --layer 0; [cyan]whence methods NAME[/cyan] lists them."""
COMPARE_EXAMPLES = """[bold]Examples[/bold]
whence compare "a masterful film" -m ./my-model --method attention --method gradient
whence compare "a masterful film" -m ./my-model --method "attention(layer=0),attention" --save both.pdf --figure text
whence compare cat.png dog.png -m ./my-vit --method gae --method rise --save grid.pdf

An option such as --at goes to every method that takes it; name(option=value) sets it for one."""
EXPLAIN = "Say which parts of the input a prediction came from."
COMPARE = "Set several methods beside each other, on one input and one target."
SPEC = "A name, or name(option=value); [cyan]whence methods[/cyan] lists them. To compare, repeat it or use commas."
Method = Annotated[list[str] | None, typer.Option("--method", metavar="SPEC", help=SPEC)]
Words = Annotated[bool, typer.Option("--words", help="Merge pieces into words.")]
Sentences = Annotated[bool, typer.Option("--sentences", help="Merge pieces into sentences.")]
LEVEL = (
    "The features: token, word, sentence, message, document, or spans as a JSON list of texts or \\[start, end]. "
    "Methods that hide features hide whole units, others sum over their tokens."
)
AtLevel = Annotated[str | None, typer.Option("--level", metavar="LEVEL", help=LEVEL)]
Values = Annotated[bool, typer.Option("--values", help="On a terminal: the table of scores instead of coloured text.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: a line per result, as --save writes it.")]


class MethodCommand(Command):
    """A command that also takes the options of a method, and keeps them in `ctx.obj`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options: list[Any] = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        own, ctx.obj = split_arguments(args, {flag: not param.is_flag for param in options for flag in param.opts})
        return super().parse_args(ctx, own)


@app.command("compare", help=COMPARE, epilog=COMPARE_EXAMPLES, cls=MethodCommand)
@app.command("explain", help=EXPLAIN, epilog=EXPLAIN_EXAMPLES, cls=MethodCommand)
def _explain_or_compare(
    ctx: typer.Context,
    input: InputText,
    more: More = None,
    model: Model = None,
    method: Method = None,
    target: Target = None,
    ignore: Ignore = None,
    words: Words = False,
    sentences: Sentences = False,
    level: AtLevel = None,
    values: Values = False,
    as_json: Json = False,
    save: Save = None,
    html: Html = None,
    csv: Csv = None,
    clip: Clip = None,
    contour: Contour = None,
    patches: Patches = False,
    figure: Figure = None,
    seed: Seed = 0,
    truncate: Truncate = False,
    batch_size: BatchSize = None,
    device: Device = None,
) -> None:
    single = ctx.info_name == "explain"
    files = files_for("Attribution" if single else "Comparison", save, html, csv)
    drawn = look(clip, contour, patches, files)
    if words and sentences:
        raise Misuse("--words and --sentences exclude each other; leave one of them out")
    kind = figure_kind(figure, "Attribution" if single else "Comparison", files)
    specs = specs_of(*(method or ()))
    if method and not specs:
        raise Misuse("--method names no method; give a name, or leave --method out")
    run = _with_methods(ctx, specs)
    raws = several_inputs(input, more)
    subject = load(model, raws, device)
    settings: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "truncate": truncate}
    settings["progress"] = shows_progress(raws)
    settings["level"] = level_of(level)
    settings["ignore"] = ignore_of(ignore, raws)
    explained = run(subject, raws, target=target_of(subject, target), **settings)
    results = explained if isinstance(explained, list) else [explained]
    if words or sentences:
        results = [_merged(result, "words" if words else "sentences") for result in results]
    if not single and more and len(results) > 1:
        results = [whence.PictureGrid(tuple(results), tuple(str(getattr(raw, "name", raw)) for raw in raws))]
    as_table = values and not single
    show = print_json if as_json else partial(print_result, kind="values") if as_table else None
    give(results, files, show, drawn, kind)


def level_of(text: str | None) -> Any:
    """A level as it is written on the command line: a name, or a JSON list of spans."""
    if text is None or not text.lstrip().startswith("["):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Misuse(f'--level: the list of spans is no JSON ({error}); write ["a text", [0, 20]]') from error


def _merged(result: Any, into: str) -> Any:
    """An attribution, or every attribution of a comparison, over words or sentences."""
    if isinstance(result, whence.Comparison):
        return whence.Comparison(tuple(_merged(a, into) for a in result))
    return getattr(result, into)()


def split_arguments(args: Sequence[str], takes_value: dict[str, bool]) -> tuple[list[str], list[tuple[str, str]]]:
    """A command's own arguments, and all other options, each with the text after it, or "True" without one."""
    own_arguments, other_options = list[str](), list[tuple[str, str]]()
    remaining = list(args)
    while remaining:
        arg = remaining.pop(0)
        flag, equals, value = arg.partition("=")
        if arg == "--":
            return [*own_arguments, arg, *remaining], other_options
        if not arg.startswith("--") or flag in takes_value:
            own_arguments.append(arg)
            if takes_value.get(flag) and not equals and remaining:
                own_arguments.append(remaining.pop(0))
        elif not equals and remaining and not remaining[0].startswith("--") and remaining[0] not in takes_value:
            other_options.append((flag, remaining.pop(0)))
        else:
            other_options.append((flag, value if equals else "True"))
    return own_arguments, other_options


def flag_of(option: str) -> str:
    """The option of a method as it is written on the command line."""
    return f"--{option.replace('_', '-')}"


def _with_methods(ctx: typer.Context, specs: list[str]) -> Callable[..., Any]:
    """`explain` or `compare`, with its methods and their options filled in."""
    from whence.methods.explaining import HIDING_METHOD

    if ctx.info_name == "explain":
        if len(specs) > 1:
            raise Misuse(f"explain takes one method, and {len(specs)} were named; use whence compare")
        [(record, options)] = _resolved(ctx, specs or [HIDING_METHOD])
        return partial(whence.explain, method=record.name if specs else None, **options)
    if not specs:
        raise Misuse("compare needs methods, and none was named; use --method attention --method gradient")
    methods = [
        f"{record.name}({', '.join(f'{name}={value!r}' for name, value in options.items())})"
        for record, options in _resolved(ctx, specs)
    ]
    return partial(whence.compare, methods=methods)


def _resolved(ctx: typer.Context, specs: Sequence[str]) -> list[tuple[registry.Record, dict[str, Any]]]:
    """Every method with the options of its spec, and the options of the command line that it takes."""
    records = [registry.find("method", parse(spec)[0]) for spec in specs]
    options_of_each: list[dict[str, Any]] = [{} for _ in specs]
    for flag, text in ctx.obj:
        name = flag[2:].replace("-", "_")
        pairs = zip(records, options_of_each, strict=True)
        takers = [(record, options) for record, options in pairs if name in record.options]
        if not takers:
            raise Misuse(_unknown_option(ctx, flag, name, records))
        for record, options in takers:
            options[name] = option_value(record, name, text)
    return [registry.resolve("method", spec, options) for spec, options in zip(specs, options_of_each, strict=True)]


def _unknown_option(ctx: typer.Context, flag: str, name: str, records: Sequence[registry.Record]) -> str:
    """The error for an option that neither the command nor its methods take."""
    names = " nor ".join(dict.fromkeys(record.name for record in records))
    owners = [record.name for record in registry.records("method") if name in record.options]
    known = {option_flag for param in ctx.command.params for option_flag in param.opts if option_flag.startswith("--")}
    known |= {flag_of(option) for record in records for option in record.options}
    hint = f"it is an option of {', '.join(owners)}" if owners else suggest(flag, known)
    return f"neither whence {ctx.info_name} nor {names} has the option {shown(flag)}; {hint}"


def option_value(record: registry.Record, option: str, text: str) -> Any:
    """An option's text as a Python literal; as plain text where the option does not take the literal."""
    with suppress(ValueError, TypeError, SyntaxError):
        value = ast.literal_eval(text)  # 0,1 on the command line is read as a tuple, and means a list
        return registry.validate(record, {option: list(value) if isinstance(value, tuple) else value})[option]
    return registry.validate(record, {option: text})[option]
