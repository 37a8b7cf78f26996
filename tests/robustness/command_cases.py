"""Cases of the command line: every registered command, with odd values for any of its options."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer
from hypothesis import strategies as st
from typer.testing import CliRunner

from outcomes import Case, Refused, Wrong, no_sentence
from strategies import Strategy, picture_files, texts
from whence import cli
from whence.core import registry
from worlds import SAVED, explained, saved, scratch

NUMBERS = ("0", "1", "-1", "3", "99", "1.5", "nan", "1e308", "", "x", str(10**12))
FILES = ("a.json", "a.html", "a.csv", "a.svg", "a.parquet", "a.txt", "a", "", ".", "no/a.json", "\x00.json", "é.html")
TABLE = "text,label\na film,positive\nthe plot was slow,negative\n"


@cache
def commands() -> dict[str, Any]:
    """The commands, by name, as they are registered; not `serve`, which goes on until it is stopped (tests/web)."""
    known = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    return {name: command for name, command in known.items() if name != "serve"}


@cache
def _attribution_file() -> str:
    file = scratch() / "attribution.json"
    explained("bert", "gradient_x_input").save(file)
    return str(file)


@cache
def _table_file() -> str:
    (scratch() / "table.csv").write_text(TABLE)
    return str(scratch() / "table.csv")


def _inputs() -> Strategy[str]:
    files = st.deferred(lambda: st.sampled_from([*map(str, picture_files()), _attribution_file(), _table_file()]))
    plain = st.sampled_from(("a film", "-", '{"text": "a film", "pair": "b"}', '{"txt": 1}', "nowhere.csv"))
    return st.one_of(st.just("a film"), st.just("a film"), plain, files, texts())


def _specs(kind: str) -> Strategy[str]:
    names = st.deferred(lambda: st.sampled_from([record.name for record in registry.records(kind)]))
    odd = st.sampled_from(("", "nope", "gae,lrp", "lrp(rules='ah')", "lrp(", "attention(layer=99)", ",", "grid", "["))
    return st.one_of(names, names, odd, texts())


def _values(name: str) -> Strategy[str]:
    """Values for an option of this name."""
    if name in ("save", "html", "csv", "resume"):
        return st.sampled_from(FILES)
    if name in ("method", "candidates"):
        return _specs("method")
    if name in ("metric", "held_out"):
        return _specs("metric")
    if name == "device":
        return st.sampled_from(("cpu", "nope", "cuda:99", "", "meta"))
    return st.one_of(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), texts())


@st.composite
def _arguments(draw: st.DrawFn, name: str) -> list[str]:
    """The arguments of a command: what it needs, and some odd options."""
    given, parameters = [name], commands()[name].params
    for one in parameters:
        if one.param_type_name == "argument" and (one.required or draw(st.integers(0, 5)) == 0):
            given.append(draw(_inputs()))
        elif one.param_type_name == "option" and (one.required or draw(st.integers(0, 11)) == 0):
            flag = draw(st.sampled_from(one.opts))
            given += [flag] if one.is_flag else [flag, draw(_values(one.name))]
    if draw(st.integers(0, 9)) == 0:
        given += draw(
            st.lists(st.one_of(st.sampled_from(("--nope", "--layer", "--steps=3", "--")), texts()), max_size=2)
        )
    return given


@contextlib.contextmanager
def _in_a_folder() -> Iterator[Path]:
    """A scope that runs in an empty folder, into which the files of a command go."""
    here = os.getcwd()
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(here)


@st.composite
def command_cases(draw: st.DrawFn) -> Case:
    """A command line of any command, most often with a tiny model."""
    name = draw(st.sampled_from(sorted(commands())))
    arguments, kind = draw(_arguments(name)), draw(st.sampled_from(SAVED))
    takes_model = any(one.name == "model" for one in commands()[name].params)
    if takes_model and "--model" not in arguments and "-m" not in arguments:
        other = st.sampled_from((str(saved(kind)), "sts2", "nope", ""))
        model = draw(other) if draw(st.integers(0, 5)) == 0 else str(saved("bert"))
        arguments = [name, "--model", model, *arguments[1:]]
    stdin = draw(st.sampled_from(("", "a film\n", "a film\nthe plot\n", "\n", "\x00\n", '{"text": 1}\n')))

    def call() -> Any:
        with _in_a_folder(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as `main` does
            return CliRunner().invoke(cli.app, arguments, input=stdin)

    return Case("commands", f"whence {arguments} < {stdin!r}", call, check_command)


def check_command(result: Any) -> None:
    """Raise `Wrong` unless a command worked, or says in one line why not; the library's error must be a sentence."""
    if result.exit_code == 0:
        return
    if result.exit_code not in (1, 2):
        raise Wrong(f"the exit code is {result.exit_code} ({result.exception!r})")
    error = result.exception
    if not isinstance(error, SystemExit):
        raise Wrong(f"{type(error).__name__} came through: {error}")
    lines = result.stderr.strip().splitlines()
    if "Traceback" in result.stderr or not lines:
        raise Wrong(f"a traceback or nothing was printed: {result.stderr[:300]!r}")
    below = _below(error)
    if lines[0].startswith("Usage:") or type(below).__module__.startswith(("typer.", "click.")):
        raise Refused(lines[-1])  # the command line could not be read
    why = no_sentence(below) if below is not None and type(below).__name__ != "Misuse" else ""
    if why:
        raise Wrong(f"{why}: {type(below).__name__}: {below}"[:500])
    if sum(line.startswith("error: ") for line in lines) != 1 or not lines[-1].startswith("error: "):
        raise Wrong(f"no line says what is wrong: {result.stderr[:300]!r}")
    raise Refused(lines[-1])


def _below(error: BaseException | None) -> BaseException | None:
    """The error that a command reported before it ended."""
    seen = error
    while seen is not None and (isinstance(seen, SystemExit) or type(seen).__name__ == "Exit"):
        seen = seen.__cause__ or seen.__context__
    return seen
