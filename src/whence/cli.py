"""The command line: `whence explain | compare | methods | models`."""

from __future__ import annotations

import ast
import inspect
import json
import os
import shlex
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

import whence

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from whence.registry import Record

DEFAULT_MODEL: str | None = None  # the embedded model that is used when none is named
PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
EXTRA = "whence.method_options"  # where a context keeps the options that are left to the method

EXAMPLES = """[bold]Examples[/bold]
whence explain "a masterful film" --model ./my-model
whence explain cat.png --model ./my-vit --method integrated_gradients --steps 50
whence compare "a masterful film" -m ./my-model --method attention,gradient
whence methods integrated_gradients

Exit codes: 0 done, 1 the work failed, 2 the command line cannot be read."""
EXPLAIN_EXAMPLES = """[bold]Examples[/bold]
whence explain "a masterful film" --model ./my-model --target positive --words
whence explain "a masterful film" -m ./my-model --method attention --layer 0
whence explain "two dogs play" "animals are outside" -m ./my-nli-model
whence explain '{"prompt": "Paris is", "continuation": " a city"}' -m gpt2
whence explain cat.png --model ./my-vit --html cat.html
whence explain - --model ./my-model --json < texts.txt > results.jsonl

Options of the method go here too, as --layer 0; [cyan]whence methods NAME[/cyan] lists them."""
COMPARE_EXAMPLES = """[bold]Examples[/bold]
whence compare "a masterful film" -m ./my-model --method attention --method gradient
whence compare "a masterful film" -m ./my-model --method "attention(layer=0),attention"
whence compare cat.png -m ./my-vit --method gradient,integrated_gradients --at pixels

An option such as --at goes to every method that takes it; name(option=value) sets it for one."""


class Misuse(Exception):
    """A command line that cannot be read."""


class Command(TyperCommand):
    """A command that reports a failure in one line and keeps quiet what other libraries print."""

    def invoke(self, ctx: Any) -> None:
        debug = ctx.find_root().params.get("debug")
        try:
            with nullcontext() if debug else _quiet():
                super().invoke(ctx)
                sys.stdout.flush()  # a closed pipe shows here, not while Python shuts down
        except (typer.Exit, BrokenPipeError):
            raise
        except Exception as error:
            if debug:
                raise
            foreseen = isinstance(error, (Misuse, ValueError, TypeError, OSError, ImportError)) and str(error)
            message = " ".join((str(error) if foreseen else repr(error)).split())
            typer.echo(f"error: {message}", err=True)
            raise typer.Exit(2 if isinstance(error, Misuse) else 1) from error


class MethodCommand(Command):
    """A command that takes the options of a method beside its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [param for param in self.get_params(ctx) if param.param_type_name == "option"]
        takes_value = {flag: not param.is_flag for param in options for flag in (*param.opts, *param.secondary_opts)}
        own, ctx.meta[EXTRA] = _split(args, takes_value)
        return super().parse_args(ctx, own)


app = typer.Typer(
    help="Where a transformer's prediction came from, and how far that answer can be trusted.",
    epilog=EXAMPLES,
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):  # a character that the terminal lacks is escaped, and stops nothing
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app(prog_name="whence")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"whence {whence.__version__}")
        raise typer.Exit


def _writable(path: Path | None) -> Path | None:
    """Refuse a file that has no folder before the work is done, not after."""
    if path is not None and not path.parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(path.parent)!r} to write into")
    return path


EXPLAIN = "Say which parts of the input a prediction came from."
COMPARE = "Set several methods beside each other, on one input and one target."
SPEC = "A name, or name(option=value); [cyan]whence methods[/cyan] lists them. To compare, repeat it or use commas."
INPUT = (
    'A text; a picture file; a JSON object with named parts, as {"text": "...", "pair": "..."}; '
    "or - to read one of these per line from stdin."
)
PAIR = "The second part: a pair, continuation, output, or the text that goes with a picture."
TARGET = "A label, class number or token, or a kind of them, as \"log_odds('positive')\"; default: the prediction."

InputText = Annotated[str, typer.Argument(metavar="INPUT", help=INPUT, show_default=False)]
Pair = Annotated[str | None, typer.Argument(metavar="[PAIR]", help=PAIR)]
Model = Annotated[str | None, typer.Option("--model", "-m", envvar="WHENCE_MODEL", help="A name, folder or hub id.")]
Method = Annotated[list[str] | None, typer.Option("--method", help=SPEC)]
Target = Annotated[str | None, typer.Option("--target", help=TARGET)]
Words = Annotated[bool, typer.Option("--words", help="Merge pieces into words.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print what --save writes, a line per input.")]
Html = Annotated[Path | None, typer.Option("--html", dir_okay=False, callback=_writable, help="Write a web page.")]
Save = Annotated[Path | None, typer.Option("--save", dir_okay=False, callback=_writable, help="Write a JSON file.")]
Seed = Annotated[int, typer.Option("--seed", help="For methods that draw random numbers.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut a text that is too long for the model.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", min=1, help="Inputs in one pass.")]
Device = Annotated[str | None, typer.Option("--device", help="Where the model runs, as cpu or cuda:0.")]
Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show where errors happen and what other libraries print.")]


@app.callback()
def _global_options(version: Version = False, debug: Debug = False) -> None:
    pass


@app.command("explain", help=EXPLAIN, epilog=EXPLAIN_EXAMPLES, cls=MethodCommand)
@app.command("compare", help=COMPARE, epilog=COMPARE_EXAMPLES, cls=MethodCommand)
def _answer(
    ctx: typer.Context,
    input: InputText,
    pair: Pair = None,
    model: Model = None,
    method: Method = None,
    target: Target = None,
    words: Words = False,
    as_json: JsonLines = False,
    html: Html = None,
    save: Save = None,
    seed: Seed = 0,
    truncate: Truncate = False,
    batch_size: BatchSize = None,
    device: Device = None,
) -> None:
    run = _question(ctx, [spec for text in method or () for spec in _specs(text)])
    raws = _inputs(input, pair)
    name = model or DEFAULT_MODEL
    if name is None:
        raise Misuse("no model was named; name a model with --model (a folder or hub id), or set WHENCE_MODEL")
    subject = whence.load(name, device=device)
    found = run(
        subject,
        raws,
        target=_target(subject, target),
        seed=seed,
        batch_size=batch_size,
        truncate=truncate,
        progress=isinstance(raws, list) and len(raws) > 1 and sys.stderr.isatty(),
    )
    results = found if isinstance(found, list) else [found]
    for number, result in enumerate(map(_in_words, results) if words else results, 1):
        _show(result, as_json, first=number == 1)
        suffix = f"-{number}" if len(results) > 1 else ""
        if html:
            html.with_stem(html.stem + suffix).write_text(result.to_html(), encoding="utf-8")
        if save:
            result.save(save.with_stem(save.stem + suffix))


@app.command(cls=Command)
def methods(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show all about this method.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or show one with its options and an example."""
    from whence import registry

    records = whence.list_methods() if name is None else [registry.find("method", name)]
    if as_json:
        facts = [_facts(record) for record in records]
        typer.echo(json.dumps(facts if name is None else facts[0], indent=2, default=repr))
    elif name is None:
        _console().print(_overview(records))
    else:
        _show_method(records[0])


@app.command(cls=Command)
def models(as_json: Json = False) -> None:
    """List the models that ship with whence."""
    found = whence.list_models()
    if as_json:
        typer.echo(json.dumps(found, indent=2, default=str))
    elif found:
        _console().print(_table(list(found[0]), [[str(value) for value in model.values()] for model in found]))
    else:
        typer.echo("No models ship with this version of whence; name your own folder or a hub id:")
        typer.echo('  whence explain "a masterful film" --model ./my-model')


# --- what is asked for ----------------------------------------------------------------------------------------------


def _split(args: Sequence[str], takes_value: dict[str, bool]) -> tuple[list[str], list[tuple[str, str]]]:
    """A command's own arguments, and the options that are not its own with their values."""
    own: list[str] = []
    extra: list[tuple[str, str]] = []
    rest = deque(args)
    while rest:
        arg = rest.popleft()
        flag, equals, value = arg.partition("=")
        if arg == "--":
            return [*own, arg, *rest], extra
        if not arg.startswith("--") or flag in takes_value:
            own.append(arg)
            if takes_value.get(flag) and not equals and rest:
                own.append(rest.popleft())
        elif equals:
            extra.append((flag, value))
        elif rest and not rest[0].startswith("--") and rest[0] not in takes_value and not _is_switch(flag):
            extra.append((flag, rest.popleft()))
        else:
            extra.append((flag, "True"))
    return own, extra


def _is_switch(flag: str) -> bool:
    """Whether the option is one of True or False, so that the text after it is the input."""
    from whence import registry

    options = (record.options.get(_option(flag)) for record in registry.records("method"))
    return any(option is not None and option.annotation is bool for option in options)


def _option(flag: str) -> str:
    return flag[2:].replace("-", "_")


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _question(ctx: typer.Context, specs: list[str]) -> Callable[..., Any]:
    """`explain` or `compare` with its methods filled in."""
    from whence.api import DEFAULT_METHOD

    if ctx.info_name == "compare":
        if not specs:
            raise Misuse("compare needs methods, and none was named; use --method attention --method gradient")
        written = [f"{record.name}(**{options!r})" for record, options in _resolved(ctx, specs)]
        return partial(whence.compare, methods=written)
    if len(specs) > 1:
        raise Misuse(f"explain takes one method, and {len(specs)} were named; use whence compare")
    [(record, options)] = _resolved(ctx, specs or [DEFAULT_METHOD])
    return partial(whence.explain, method=record.name if specs else None, **options)


def _resolved(ctx: typer.Context, specs: Sequence[str]) -> list[tuple[Record, dict[str, Any]]]:
    """Every method with the options of its spec and those of the command line that it takes."""
    from whence import registry

    resolved = [registry.resolve("method", spec) for spec in specs]
    for flag, text in ctx.meta[EXTRA]:
        takers = [(record, options) for record, options in resolved if _option(flag) in record.options]
        if not takers:
            known = {name for param in ctx.command.params for name in param.opts if name.startswith("--")}
            known |= {_flag(name) for record, _ in resolved for name in record.options}
            names = " nor ".join(dict.fromkeys(record.name for record, _ in resolved))
            message = f"neither {ctx.info_name} nor {names} has the option {flag!r}"
            raise Misuse(f"{message}; {registry.suggest(flag, known)}")
        for record, options in takers:
            if _option(flag) in options:
                raise Misuse(f"{record.name} is given the option {flag!r} twice; give it once")
            options[_option(flag)] = _value(record, _option(flag), text)
    return resolved


def _value(record: Record, option: str, text: str) -> Any:
    """The text as a Python literal, or as it stands where the option takes that."""
    from whence import registry

    value: Any = text
    with suppress(ValueError, SyntaxError):
        value = ast.literal_eval(text)
    value = list(value) if isinstance(value, tuple) else value  # 0,1 on the command line is a list
    try:
        return registry.validate(record, {option: value})[option]
    except ValueError:
        with suppress(ValueError):
            return registry.validate(record, {option: text})[option]
        raise


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
        return _raw(text) if pair is None else (_picture_or_text(text), _picture_or_text(pair))
    if pair is not None:
        raise Misuse('a PAIR goes with one INPUT, not with "-"; write lines such as {"text": "...", "pair": "..."}')
    lines = [_raw(line.removesuffix("\n")) for line in sys.stdin]
    if not lines:
        raise Misuse("stdin is empty; give it one input per line")
    return lines


def _raw(text: str) -> Any:
    if text.lstrip().startswith("{"):
        with suppress(ValueError):
            return json.loads(text)  # an input with named parts
    return _picture_or_text(text)


def _picture_or_text(text: str) -> str | Path:
    return Path(text) if text.lower().endswith(PICTURES) and os.path.isfile(text) else text


def _target(subject: whence.Subject, text: str | None) -> str | int | None:
    """Digits that are no label are a class number; a model that generates has tokens of digits."""
    if text is None or subject.generates or not text.isdecimal() or text in (subject.labels or ()):
        return text
    return int(text)


# --- what is shown --------------------------------------------------------------------------------------------------


def _in_words(result: Any) -> Any:
    if isinstance(result, whence.Comparison):
        return whence.Comparison(tuple(attribution.words() for attribution in result))
    return result.words()


def _show(result: Any, as_json: bool, first: bool) -> None:
    """One result on stdout: JSON, in colour on a terminal, else plain; a blank line before the next."""
    from whence.types import VERSION

    if as_json:
        typer.echo(json.dumps({"format": "whence", "version": VERSION, **result.to_dict()}))
        return
    console = _console()
    typer.echo("" if first else "\n", nl=False)
    console.print(result) if console.is_terminal else typer.echo(str(result))


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=120)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    return table


def _overview(records: Sequence[Record]) -> Table:
    """A row per method; needs and paper stand below the summary, so that it fits a narrow terminal."""
    from rich.markup import escape

    rows = []
    for record in records:
        promises = [name for name in ("complete", "signed") if getattr(record, name)]
        needs = ", ".join(need.partition(":")[0] for need in record.needs) or "only outputs"
        about = f"{escape(record.summary)}\n[dim]needs {needs}; {record.paper or 'no paper'}[/dim]"
        rows.append((f"[bold]{record.name}[/bold]", record.family, ", ".join(promises) or "unsigned", about))
    return _table(("method", "family", "scores are", "what they say"), rows)


def _show_method(record: Record) -> None:
    """All about one method, with an example that can be copied."""
    from rich.markup import escape

    console = _console()
    promises = ["scores sum to f(x) - f(baseline)"] * record.complete
    promises += ["scores for and against" if record.signed else "scores without sign"]
    console.print(f"[bold]{record.name}[/bold]  {record.family}; {', '.join(promises)}; {record.paper}")
    for paragraph in (inspect.getdoc(record.function) or "").split("\n\n"):
        console.print("\n" + paragraph if "\n " in paragraph else "\n" + " ".join(paragraph.split()), markup=False)
    options = record.options.values()
    rows = [(_flag(option.name), escape(option.takes), escape(repr(option.default))) for option in options]
    console.print("", _table(("option", "takes", "default"), rows) if rows else "It has no options.", "")
    console.print(f"Works on {', '.join(record.tasks)} models.\n")
    example = ["whence", "explain", "a masterful film", "--model", "./my-model", "--method", record.name]
    if "text-classification" not in record.tasks and "image-classification" in record.tasks:
        example[2] = "cat.png"
    shown = next((option for option in options if option.default is not None), None)
    example += [_flag(shown.name), str(shown.default)] if shown else []
    console.print(shlex.join(example), style="cyan", markup=False, soft_wrap=True)


def _facts(record: Record) -> dict[str, Any]:
    names = ("name", "family", "summary", "paper", "complete", "signed", "needs", "tasks")
    options = [{"name": o.name, "takes": o.takes, "default": o.default} for o in record.options.values()]
    return {name: getattr(record, name) for name in names} | {"options": options}


# --- quiet and errors -----------------------------------------------------------------------------------------------


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars, advice and warnings of the libraries below."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
