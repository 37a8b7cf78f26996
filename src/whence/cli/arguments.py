"""Arguments and options that several commands share, and reading inputs, models, targets and specs from them."""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import whence
from whence.cli.program import Misuse
from whence.core import display
from whence.core.display import DRAWN
from whence.core.files import FIGURES, PICTURES
from whence.core.looks import look_of
from whence.core.specs import expression
from whence.core.tasks import GENERATION, PARTS
from whence.core.wording import first_sentence

MAX_DIGITS = 1_000
TEXT_MODEL, PICTURE_MODEL = "sst2", "digits"  # the embedded models that are used if the caller names none

NAMED_PART = re.compile(rf"""\s*{{\s*['"]({"|".join(PARTS)})['"]\s*:""")
EXAMPLE = '{"text": "...", "pair": "..."}'

INPUT = (
    'A text, a picture file, named parts as {"text": "...", "pair": "..."} or a .json file with them; - reads one per '
    "line from stdin."
)
TARGET = (
    "A label, class number or token, or a kind of them, as \"log_odds('positive')\", \"logit('B-PER', at='Obama')\" or "
    "\"start('Paris')\"; default: the prediction."
)
IGNORE = (
    "A word or phrase that must not count: attention to it is closed in every pass. Also the number of a patch of a "
    'picture, [START, END] in characters, or {"word": ..., "occurrence": 0}. May be repeated.'
)
SAVE = (
    "Write a file in the form that its ending names: .json (loads again), .html, .png, .svg, .pdf; .csv and .parquet "
    "where there is a table. May be repeated; numbered when there are several results."
)
InputText = Annotated[str, typer.Argument(metavar="INPUT", help=INPUT, show_default=False)]
Pair = Annotated[
    str | None, typer.Argument(metavar="PAIR", help="The second part: pair, continuation, output, context.")
]
SECOND = "The second part: pair, continuation, output, context. After a picture: further pictures, inputs of their own."
More = Annotated[list[str] | None, typer.Argument(metavar="PAIR|PICTURE...", help=SECOND, show_default=False)]
Clip = Annotated[float | None, typer.Option("--clip", help="Over a picture: full colour from this percentile, as 99.")]
Contour = Annotated[
    float | None, typer.Option("--contour", help="Over a picture: a line around this share of the scores, as 0.5.")
]
Figure = Annotated[
    str | None,
    typer.Option("--figure", metavar="KIND", help="The kind of figure that --save writes, as waterfall or text."),
]
Patches = Annotated[bool, typer.Option("--patches", help="Over a picture: every patch in one colour, not smoothed.")]
Model = Annotated[str | None, typer.Option("--model", "-m", envvar="WHENCE_MODEL", help="A name, folder or hub id.")]
Target = Annotated[str | None, typer.Option("--target", help=TARGET)]
Ignore = Annotated[list[str] | None, typer.Option("--ignore", metavar="WORD", help=IGNORE)]
Save = Annotated[list[Path] | None, typer.Option("--save", metavar="FILE", help=SAVE)]
Html = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="The same as --save with a .html file.")]
Csv = Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="The same as --save with a .csv file.")]
Seed = Annotated[int, typer.Option("--seed", help="For what is drawn at random.")]
Truncate = Annotated[bool, typer.Option("--truncate", help="Cut a text that is too long for the model.")]
BatchSize = Annotated[int | None, typer.Option("--batch-size", min=1, help="Inputs in one pass.")]
Device = Annotated[str | None, typer.Option("--device", help="Where the model runs, as cpu or cuda:0.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Take so many examples.")]


def inputs(text: str, pair: str | None) -> Any:
    """The raw input that the arguments name, or a list with one input per line of stdin."""
    if text != "-":
        return raw_input(text) if pair is None else (raw_input(text), raw_input(pair))
    if pair is not None:
        raise Misuse('a PAIR goes with one INPUT, not with "-"; write lines such as {"text": "...", "pair": "..."}')
    lines = [raw_input(line.removesuffix("\n")) for line in sys.stdin]
    if not lines:
        raise Misuse("stdin is empty; give it one input per line")
    return lines


def several_inputs(first: str, more: list[str] | None) -> Any:
    """The raw inputs that the arguments name: pictures are inputs of their own, what follows a text is its pair."""
    texts = [first, *(more or ())]
    if len(texts) > 1 and all(text.lower().endswith(PICTURES) for text in texts):
        return [raw_input(text) for text in texts]
    if len(texts) > 2:
        raise Misuse(f"an input has two parts at most, and {len(texts)} came; give several texts as lines, with -")
    return inputs(first, texts[1] if len(texts) == 2 else None)


def figure_kind(kind: str | None, of: str, files: Sequence[Path]) -> str | None:
    """The kind of figure that was asked for of results of a type (a public name), checked before anything runs."""
    if kind is not None:
        try:
            display.figure.check_kind(getattr(whence, of), kind)
        except ValueError as error:
            raise Misuse(f"--figure: {error}") from error
        if not any(path.suffix.lower() in FIGURES for path in files):
            raise Misuse(f"--figure names the kind of a figure that is written; add --save {of.lower()}.pdf")
    return kind


def look(clip: float | None, contour: float | None, patches: bool, files: Sequence[Path]) -> dict[str, Any]:
    """The options of scores over a picture, checked before anything runs."""
    given: dict[str, Any] = {"clip": clip, "contour": contour, "patches": patches or None}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        look_of(given)
    except ValueError as error:
        raise Misuse(f"--{error}") from error
    if given and not any(path.suffix.lower() in DRAWN for path in files):
        raise Misuse(f"--{next(iter(given))} changes pages and figures; name one with --save, as --save map.png")
    return given


def raw_input(text: str) -> Any:
    """A text as a raw input: a JSON object with named parts or the file of one, the path of a picture, or the text."""
    if text.lower().endswith(".json") and os.path.isfile(text):
        return _from_file(Path(text))
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except RecursionError:  # JSON that is nested too deeply stays a text
            return text
        except ValueError as error:
            if NAMED_PART.match(text):
                raise Misuse(f"the input names parts, and is no JSON: {error}; write them as {EXAMPLE}") from error
    return Path(text) if text.lower().endswith(PICTURES) and os.path.isfile(text) else text


def _from_file(path: Path) -> dict[str, Any]:
    """The named parts that a file holds, as a chat too long for a command line."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Misuse(f"{path} cannot be read as JSON: {first_sentence(error)}") from error
    if not isinstance(found, dict):
        raise Misuse(f"{path} holds no object with named parts; write {EXAMPLE} or " + '{"messages": [...]}')
    return found


def shows_progress(raws: Any) -> bool:
    """Whether to show how far the work is: on a terminal, for several inputs or one that the model goes on with."""
    several = isinstance(raws, list) and len(raws) > 1
    written = isinstance(raws, dict) and any(raws.get(key) is not None for key in (*GENERATION, "messages", "source"))
    return (several or written) and sys.stderr.isatty()


def load(model: str | None, raws: Any, device: str | None) -> whence.Subject:
    """The model that was named, else the embedded one that fits the input."""
    if model is None:
        from whence import zoo

        model = default_model(raws)
        if model not in zoo.names():
            shipped = ", ".join(zoo.names()) or "none"
            raise Misuse(
                f"no model was named, and the default, {model!r}, is not among those that ship here ({shipped}); "
                "name a model with --model (one of these, a folder or hub id), or set WHENCE_MODEL"
            )
        typer.echo(f"no model was named: {model} is used (see whence models)", err=True)
    return whence.load(model, device=device)


def default_model(raws: Any) -> str:
    """The embedded model for these inputs: one for pictures, one for texts."""
    return PICTURE_MODEL if all(map(_is_picture, raws if isinstance(raws, list) else [raws])) else TEXT_MODEL


def _is_picture(raw: Any) -> bool:
    """Whether an input is, or names, a picture; the name of a missing file counts, so that an error can name it."""
    named = raw.get("image") if isinstance(raw, dict) and len(raw) == 1 else raw
    return isinstance(named, Path) or (isinstance(named, str) and named.lower().endswith(PICTURES))


def target_of(subject: whence.Subject, target: str | None) -> str | int | None:
    """A target as written: digits that are no label become a class number, unless tokens or answers are predicted."""
    written = subject.predicts_tokens or subject.reads == "span" or target in (subject.labels or ())
    if target is None or not is_number(target) or written:
        return target
    return int(target)


def ignore_of(given: list[str] | None, raws: Any) -> list[Any] | None:
    """Words to ignore as written; JSON for other forms, and numbers where all inputs are pictures."""
    pictures = all(map(_is_picture, raws if isinstance(raws, list) else [raws]))
    found: list[Any] = []
    for text in given or ():
        read: Any = text
        if text.lstrip().startswith(("{", "[")):
            with suppress(ValueError, RecursionError):
                read = json.loads(text)
        found.append(int(text) if pictures and is_number(text) else read)
    return found or None


def is_number(text: str) -> bool:
    """Whether a text is a whole number; Python reads no number of thousands of digits."""
    return text.isdecimal() and len(text) <= MAX_DIGITS


def specs_of(*texts: str) -> list[str]:
    """`"a,b(x=1, y=2)"` to its specs: commas inside brackets and quotes do not separate."""
    return [spec for text in texts for spec in _specs_of_one(text)]


def _specs_of_one(text: str) -> list[str]:
    code = f"[{text}]"
    tree = expression(code)
    if isinstance(tree, ast.List):
        return [ast.get_source_segment(code, item) or "" for item in tree.elts]
    return [text]  # the registry raises an error that says what is wrong
