"""The command line: `whence explain | compare | attention | conservation | methods | models`."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperCommand

import whence
from whence.core import registry
from whence.core.files import PICTURES
from whence.core.specs import parse
from whence.core.tasks import NAMES as ALL_TASKS
from whence.core.wording import suggest

TEXT_MODEL, PICTURE_MODEL = "sst2", "digits"  # the embedded models that are used when none is named

EXAMPLES = """[bold]Examples[/bold]
whence explain "a masterful film"
whence explain cat.png --model ./my-vit --method integrated_gradients --steps 50
whence compare "a masterful film" -m ./my-model --method attention,gradient
whence attention "a masterful film" --layer 3 --head 5 --save map.png

Exit codes: 0 done, 1 the work failed, 2 the command line cannot be read."""
EXPLAIN_EXAMPLES = """[bold]Examples[/bold]
whence explain "a masterful film" --model ./my-model --target positive --words
whence explain "a masterful film" -m ./my-model --method attention --layer 0
whence explain "two dogs play" "animals are outside" -m ./my-nli-model
whence explain '{"prompt": "Paris is", "continuation": " a city"}' -m gpt2
whence explain - --model ./my-model --json < texts.txt > results.jsonl

Options of the method go here too, as --layer 0; [cyan]whence methods NAME[/cyan] lists them."""
COMPARE_EXAMPLES = """[bold]Examples[/bold]
whence compare "a masterful film" -m ./my-model --method attention --method gradient
whence compare "a masterful film" -m ./my-model --method "attention(layer=0),attention"

An option such as --at goes to every method that takes it; name(option=value) sets it for one."""
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
FORMATS = (".png", ".svg", ".html", ".json")


class Misuse(Exception):
    """A command line that cannot be read."""


class Command(TyperCommand):
    """A command that reports a failure in one line."""

    def invoke(self, ctx: Any) -> None:
        try:
            super().invoke(ctx)
            sys.stdout.flush()  # a closed pipe shows here, not while Python shuts down
        except (typer.Exit, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.find_root().params["debug"]:
                raise
            foreseen = isinstance(error, (Misuse, ValueError, TypeError, OSError, ImportError)) and str(error)
            typer.echo("error: " + " ".join((str(error) if foreseen else repr(error)).split()), err=True)
            raise typer.Exit(2 if isinstance(error, Misuse) else 1) from error


class MethodCommand(Command):
    """A command that takes the options of a method beside its own, and keeps them in `ctx.obj`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options: list[Any] = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        own, ctx.obj = _split(args, {flag: not param.is_flag for param in options for flag in param.opts})
        return super().parse_args(ctx, own)


app = typer.Typer(epilog=EXAMPLES, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command line, with results on stdout and no advice from the libraries below."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):  # a character that the terminal lacks is escaped, and stops nothing
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app(prog_name="whence")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"whence {whence.__version__}")
        raise typer.Exit


EXPLAIN = "Say which parts of the input a prediction came from."
COMPARE = "Set several methods beside each other, on one input and one target."
SPEC = "A name, or name(option=value); [cyan]whence methods[/cyan] lists them. To compare, repeat it or use commas."
INPUT = 'A text, a picture file, or named parts as {"text": "...", "pair": "..."}; - reads one per line from stdin.'
TARGET = "A label, class number or token, or a kind of them, as \"log_odds('positive')\"; default: the prediction."
InputText = Annotated[str, typer.Argument(metavar="INPUT", help=INPUT, show_default=False)]
Pair = Annotated[str | None, typer.Argument(metavar="PAIR", help="The second part: pair, continuation, output.")]
Model = Annotated[str | None, typer.Option("--model", "-m", envvar="WHENCE_MODEL", help="A name, folder or hub id.")]
Method = Annotated[list[str] | None, typer.Option("--method", metavar="SPEC", help=SPEC)]
Target = Annotated[str | None, typer.Option("--target", help=TARGET)]
Words = Annotated[bool, typer.Option("--words", help="Merge pieces into words.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: a line per result, as --save writes it.")]
Html = Annotated[Path | None, typer.Option("--html", help="Write a web page; numbered when there are several inputs.")]
Save = Annotated[Path | None, typer.Option("--save", help="Write a JSON file; numbered likewise.")]
Seed = Annotated[int, typer.Option("--seed", help="For what is drawn at random.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut a text that is too long for the model.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", min=1, help="Inputs in one pass.")]
Device = Annotated[str | None, typer.Option("--device", help="Where the model runs, as cpu or cuda:0.")]
QUERY = 'A token by number or name; over a picture by default "[CLS]" or its like. "all": the whole matrix.'
STREAMS = "As target:source. Default: cross-attention of an encoder-decoder, else self-attention."
SAVE_MAP = "Write a .png, .svg, .html or .json file; may be repeated; numbered when there are several inputs."
RULES = "lrp, attnlrp or gradient_x_input, or name(option=value)."
Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where an error happened.")]


@app.callback()
def _global_options(version: Version = False, debug: Debug = False) -> None:
    """Where a transformer's prediction came from, and how far that answer can be trusted."""


@app.command("compare", help=COMPARE, epilog=COMPARE_EXAMPLES, cls=MethodCommand)
@app.command("explain", help=EXPLAIN, epilog=EXPLAIN_EXAMPLES, cls=MethodCommand)
def _answer(
    ctx: typer.Context,
    input: InputText,
    pair: Pair = None,
    model: Model = None,
    method: Method = None,
    target: Target = None,
    words: Words = False,
    as_json: Json = False,
    html: Html = None,
    save: Save = None,
    seed: Seed = 0,
    truncate: Truncate = False,
    batch_size: BatchSize = None,
    device: Device = None,
) -> None:
    _check_folders(html, save)
    run = _question(ctx, [spec for text in method or () for spec in _specs(text)])
    raws = _inputs(input, pair)
    subject = _load(model, raws, device)
    watched = isinstance(raws, list) and len(raws) > 1 and sys.stderr.isatty()
    settings = {"seed": seed, "batch_size": batch_size, "truncate": truncate, "progress": watched}
    found = run(subject, raws, target=_aim(subject, target), **settings)
    results = found if isinstance(found, list) else [found]
    if words and ctx.info_name == "explain":
        results = [attribution.words() for attribution in results]
    elif words:
        results = [whence.Comparison(tuple(a.words() for a in comparison)) for comparison in results]
    _give(results, as_json, html, save)


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
    save: Annotated[list[Path] | None, typer.Option("--save", help=SAVE_MAP)] = None,
    truncate: Truncate = False,
    device: Device = None,
) -> None:
    """Show what looks at what: the attention weights of a layer and head."""
    files = _writable(save)
    raws = _inputs(input, pair)
    row = int(query) if query and query.lstrip("-").isdecimal() else query
    choice = {"layer": layer, "head": head, "query": row, "streams": streams}
    choice |= {"all_heads": all_heads, "all_layers": all_layers}
    found = whence.attention_maps(_load(model, raws, device), raws, truncate=truncate)
    results = found if isinstance(found, list) else [found]
    for number, maps in enumerate(results, 1):
        view = maps.view(**choice)
        _show(view)
        for path in files:
            _write(maps, view, _numbered(path, number, len(results)))


@app.command(epilog=CONSERVATION_EXAMPLES, cls=Command)
def conservation(
    input: InputText,
    pair: Pair = None,
    model: Model = None,
    method: Annotated[str, typer.Option("--method", metavar="SPEC", help=RULES)] = "lrp",
    target: Target = None,
    token: Annotated[int, typer.Option("--token", help="Which generated token, by its number.")] = 0,
    save: Annotated[list[Path] | None, typer.Option("--save", help=SAVE_MAP)] = None,
    truncate: Truncate = False,
    device: Device = None,
) -> None:
    """Show where relevance leaks: what every module is given of it, and what it hands on."""
    files = _writable(save)
    raws = _inputs(input, pair)
    subject = _load(model, raws, device)
    found = whence.conservation(subject, raws, method, _aim(subject, target), token=token, truncate=truncate)
    results = found if isinstance(found, list) else [found]
    for number, result in enumerate(results, 1):
        _show(result)
        for path in files:
            _write(result, result, _numbered(path, number, len(results)))


@app.command(cls=Command)
def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show all about this method.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a table for documents.")] = False,
) -> None:
    """List the methods, or show one with its options and an example."""
    records = whence.list_methods() if name is None else [registry.find("method", name)]
    if as_json:
        typer.echo(json.dumps([_facts(record) for record in records], indent=2, default=repr))
    elif markdown:
        typer.echo(_markdown(records))
    elif name is None:
        _print_table("method", "what it is", rows=map(_row, records))
    else:
        _show_method(records[0])


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
    _print_table("model", "accuracy", "size", "what it is", rows=rows)
    typer.echo("\nUse one with --model NAME, or --model with your own folder or a hub id.")


def _writable(save: list[Path] | None) -> list[Path]:
    """The files to write, once it is known that they can be."""
    files = save or []
    _check_folders(*files)
    for path in files:
        if path.suffix.lower() not in FORMATS:
            raise Misuse(f"--save writes {', '.join(FORMATS)} files, and {str(path)!r} is none of them")
    return files


def _check_folders(*paths: Path | None) -> None:
    for path in paths:
        if path and not path.parent.is_dir():
            raise Misuse(f"there is no folder {str(path.parent)!r} to write into; make it, or name another")
        if path and path.is_dir():
            raise Misuse(f"{str(path)!r} is a folder; name a file in it")


def _load(model: str | None, raws: Any, device: str | None) -> whence.Subject:
    """The model that was named, else the embedded one that fits the input."""
    if model is None:
        from whence import zoo

        model = _default_model(raws)
        if model not in zoo.names():
            shipped = ", ".join(zoo.names()) or "none"
            raise Misuse(
                f"no model was named, and the default, {model!r}, is not among those that ship here ({shipped}); "
                "name a model with --model (one of these, a folder or hub id), or set WHENCE_MODEL"
            )
        typer.echo(f"no model was named: {model} is used (see whence models)", err=True)
    return whence.load(model, device=device)


def _default_model(raws: Any) -> str:
    """The embedded model for these inputs: one for pictures, one for texts."""
    return PICTURE_MODEL if all(map(_is_picture, raws if isinstance(raws, list) else [raws])) else TEXT_MODEL


def _is_picture(raw: Any) -> bool:
    """A picture, or what was meant as one: a file that is missing is better said than explained as a text."""
    named = raw.get("image") if isinstance(raw, dict) and len(raw) == 1 else raw
    return isinstance(named, Path) or (isinstance(named, str) and named.lower().endswith(PICTURES))


def _split(args: Sequence[str], takes_value: dict[str, bool]) -> tuple[list[str], list[tuple[str, str]]]:
    """A command's own arguments, and the options that are not its own: each with the text after it, else True."""
    own, extra = list[str](), list[tuple[str, str]]()
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        flag, equals, value = arg.partition("=")
        if arg == "--":
            return [*own, arg, *rest], extra
        if not arg.startswith("--") or flag in takes_value:
            own.append(arg)
            if takes_value.get(flag) and not equals and rest:
                own.append(rest.pop(0))
        elif not equals and rest and not rest[0].startswith("--") and rest[0] not in takes_value:
            extra.append((flag, rest.pop(0)))
        else:
            extra.append((flag, value if equals else "True"))
    return own, extra


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _question(ctx: typer.Context, specs: list[str]) -> Callable[..., Any]:
    """`explain` or `compare`, with its methods and their options filled in."""
    from whence.methods.explaining import DEFAULT_METHOD

    if ctx.info_name == "explain":
        if len(specs) > 1:
            raise Misuse(f"explain takes one method, and {len(specs)} were named; use whence compare")
        [(record, options)] = _resolved(ctx, specs or [DEFAULT_METHOD])
        return partial(whence.explain, method=record.name if specs else None, **options)
    if not specs:
        raise Misuse("compare needs methods, and none was named; use --method attention --method gradient")
    methods = [
        f"{record.name}({', '.join(f'{name}={value!r}' for name, value in options.items())})"
        for record, options in _resolved(ctx, specs)
    ]
    return partial(whence.compare, methods=methods)


def _resolved(ctx: typer.Context, specs: Sequence[str]) -> list[tuple[registry.Record, dict[str, Any]]]:
    """Every method with the options of its spec and those of the command line that it takes."""
    records = [registry.find("method", parse(spec)[0]) for spec in specs]
    given: list[dict[str, Any]] = [{} for _ in specs]
    for flag, text in ctx.obj:
        name = flag[2:].replace("-", "_")
        takers = [(record, mine) for record, mine in zip(records, given, strict=True) if name in record.options]
        if not takers:
            raise Misuse(_unknown(ctx, flag, name, records))
        for record, mine in takers:
            mine[name] = _value(record, name, text)
    return [registry.resolve("method", spec, mine) for spec, mine in zip(specs, given, strict=True)]


def _unknown(ctx: typer.Context, flag: str, name: str, records: Sequence[registry.Record]) -> str:
    """What is wrong with an option that neither the command nor its methods take."""
    names = " nor ".join(dict.fromkeys(record.name for record in records))
    owners = [record.name for record in registry.records("method") if name in record.options]
    known = {own for param in ctx.command.params for own in param.opts if own.startswith("--")}
    known |= {_flag(option) for record in records for option in record.options}
    hint = f"it is an option of {', '.join(owners)}" if owners else suggest(flag, known)
    return f"neither whence {ctx.info_name} nor {names} has the option {flag!r}; {hint}"


def _value(record: registry.Record, option: str, text: str) -> Any:
    """The text as a Python literal, or as it stands where the option takes only that."""
    with suppress(ValueError, TypeError, SyntaxError):
        value = ast.literal_eval(text)  # 0,1 on the command line is a list
        return registry.validate(record, {option: list(value) if isinstance(value, tuple) else value})[option]
    return registry.validate(record, {option: text})[option]


def _specs(text: str) -> list[str]:
    """`"a,b(x=1, y=2)"` to its specs: commas inside brackets and quotes part nothing."""
    code = f"[{text}]"
    with suppress(SyntaxError):
        tree = ast.parse(code, mode="eval").body
        if isinstance(tree, ast.List):
            return [ast.get_source_segment(code, item) or "" for item in tree.elts]
    return [text]  # the registry says what is wrong with it


def _inputs(text: str, pair: str | None) -> Any:
    """What the arguments name: one raw input, or a list with one per line of stdin."""
    if text != "-":
        return _raw(text) if pair is None else (_raw(text), _raw(pair))
    if pair is not None:
        raise Misuse('a PAIR goes with one INPUT, not with "-"; write lines such as {"text": "...", "pair": "..."}')
    lines = [_raw(line.removesuffix("\n")) for line in sys.stdin]
    if not lines:
        raise Misuse("stdin is empty; give it one input per line")
    return lines


def _raw(text: str) -> Any:
    """A JSON object has named parts; the name of a picture that exists is a path; all else is text."""
    if text.lstrip().startswith("{"):
        with suppress(ValueError):
            return json.loads(text)
    return Path(text) if text.lower().endswith(PICTURES) and os.path.isfile(text) else text


def _aim(subject: whence.Subject, target: str | None) -> str | int | None:
    """Digits that are no label are a class number; where tokens are generated, they are a token."""
    if target is None or not target.isdecimal() or subject.generates or target in (subject.labels or ()):
        return target
    return int(target)


def _give(results: Sequence[Any], as_json: bool, html: Path | None, save: Path | None) -> None:
    """Print every result, as JSON, coloured on a terminal, else plain; write the files."""
    from whence.core.storage import VERSION

    for number, result in enumerate(results, 1):
        if as_json:
            typer.echo(json.dumps({"format": "whence", "version": VERSION, **result.to_dict()}))
        else:
            _show(result)
        if html:
            _numbered(html, number, len(results)).write_text(result.to_html(), encoding="utf-8")
        if save:
            result.save(_numbered(save, number, len(results)))


def _show(result: Any) -> None:
    """Print a result, coloured on a terminal, else plain."""
    console = Console()
    (console.print if console.is_terminal else print)(result)
    typer.echo()


def _numbered(path: Path, number: int, count: int) -> Path:
    return path.with_stem(f"{path.stem}-{number}") if count > 1 else path


def _write(whole: whence.AttentionMaps | whence.Conservation, view: Any, path: Path) -> None:
    """The whole result as JSON, or what is shown as a page or a figure, by the file's ending."""
    kind = path.suffix.lower()
    if kind == ".json":
        whole.save(path)
    elif kind == ".html":
        path.write_text(view.to_html(), encoding="utf-8")
    else:
        view.plot().savefig(path, dpi=150)


def _print_table(*columns: str, rows: Iterable[Iterable[str]]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for number, column in enumerate(columns):
        table.add_column(column, no_wrap=number == 0)  # names stay whole, so that they can be copied
    for row in rows:
        table.add_row(*row)
    Console(markup=False, emoji=False).print(table)  # cells may hold square brackets


def _row(record: registry.Record) -> tuple[str, str]:
    """Family, promises, needs and paper stand below the summary, so that the table fits a narrow terminal."""
    promises = "complete, signed" if record.complete else "signed" if record.signed else "unsigned"
    needs = ", ".join(need.partition(":")[0] for need in record.needs) or "nothing"
    facts = f"{record.family}; {promises}\nneeds {needs}; {record.paper or 'no paper'}"
    return record.name, f"{record.summary}\n{facts}\n"


def _show_method(record: registry.Record) -> None:
    """All about one method, with an example to copy."""
    typer.echo(f"{record.name} ({record.family}; {record.paper or 'no paper'})\n")
    typer.echo(f"{inspect.getdoc(record.function)}\n\nWorks on: {', '.join(record.tasks)}.\n")
    options = list(record.options.values())
    if options:
        _print_table("option", "takes", "default", rows=[(_flag(o.name), o.takes, repr(o.default)) for o in options])
    text = "a masterful film" if "text-classification" in record.tasks else "cat.png"
    example = ["whence", "explain", text, "--model", "./my-model", "--method", record.name]
    example += next(([_flag(o.name), str(o.default)] for o in options if o.default is not None), [])
    typer.echo(f"\nExample: {shlex.join(example)}")


def _facts(record: registry.Record) -> dict[str, Any]:
    names = ("name", "family", "summary", "paper", "complete", "signed", "needs", "tasks")
    options = [{"name": o.name, "takes": o.takes, "default": o.default} for o in record.options.values()]
    return {name: getattr(record, name) for name in names} | {"options": options}


def _markdown(records: Sequence[registry.Record]) -> str:
    """The methods as a table for documents, a line each."""
    lines = ["| name | family | what it is | signed | complete | works on | paper |", "|---|---|---|---|---|---|---|"]
    for record in records:
        tasks = "all" if record.tasks == ALL_TASKS else ", ".join(record.tasks)
        signed, complete = ("yes" if promise else "no" for promise in (record.signed, record.complete))
        cells = (f"`{record.name}`", record.family, _escaped(record.summary), signed, complete, tasks)
        lines.append(f"| {' | '.join(cells)} | {_link(record.paper)} |")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Markdown's signs outside of code as plain characters."""
    return re.sub(r"`[^`|]*`|[|*_<]", lambda found: found[0] if len(found[0]) > 1 else "\\" + found[0], text)


def _link(paper: str) -> str:
    kind, _, number = paper.partition(":")
    sites = {"arXiv": "https://arxiv.org/abs/", "doi": "https://doi.org/"}
    return f"[{paper}]({sites[kind]}{number})" if kind in sites else _escaped(paper) or "none"


from whence.cli import measuring as measuring  # noqa: E402  (registers its commands on the app above)
