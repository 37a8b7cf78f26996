"""The command line: what it prints and writes, the options it hands on, its errors and exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
import typer
from PIL import Image
from rich.text import Text
from typer.testing import CliRunner

import whence
from families import family
from whence import cli, zoo
from whence.cli import arguments, explaining, listing
from whence.core import registry
from whence.core.tasks import NAMES

TEXT = "the actors were wonderful , but unforgettable"
PROGRAM = [sys.executable, "-c", "from whence.cli import main; main()"]
PLAIN = {"WHENCE_MODEL": None, "FORCE_COLOR": None, "TTY_COMPATIBLE": None, "COLUMNS": "100"}


@pytest.fixture(scope="module", autouse=True)
def no_bars() -> Iterator[None]:
    """As `main` asks for before transformers is loaded, which is too late here."""
    transformers.utils.logging.disable_progress_bar()
    yield
    transformers.utils.logging.enable_progress_bar()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Small models on disk, by name."""
    root = tmp_path_factory.mktemp("models")
    for name in ("bert", "gpt2", "vit"):
        family(name).model.save_pretrained(root / name)
        family(name).processor.save_pretrained(root / name)
    return {name: str(root / name) for name in ("bert", "gpt2", "vit")}


@pytest.fixture(scope="module")
def bert(folders: dict[str, str]) -> str:
    return folders["bert"]


@pytest.fixture(scope="module")
def subject(bert: str) -> whence.Subject:
    return whence.load(bert)


def run(*args: object, stdin: str | None = None, env: dict[str, str] | None = None) -> Any:
    """The command in this process, with stdout and stderr apart."""
    return CliRunner(env={**PLAIN, **(env or {})}).invoke(cli.app, [str(arg) for arg in args], input=stdin)


def done(*args: object, **more: Any) -> str:
    """What a command that succeeds prints."""
    result = run(*args, **more)
    assert (result.exit_code, result.exception) == (0, None), result.output
    return result.stdout


def refused(code: int, *args: object, **more: Any) -> str:
    """The one line that a command prints when it fails."""
    result = run(*args, **more)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    return result.stderr


# --- explain --------------------------------------------------------------------------------------------------------


def test_explain_prints_the_attribution_as_plain_text(bert: str, subject: whence.Subject) -> None:
    shown = done("explain", TEXT, "--model", bert, "--method", "attention", "--layer", 0)
    assert shown.rstrip() == str(whence.explain(subject, TEXT, "attention", layer=0)).rstrip()
    assert "attention(layer=0)" in shown and "\x1b" not in shown


def test_explain_draws_in_colour_on_a_terminal(bert: str) -> None:
    shown = done("explain", TEXT, "-m", bert, env={"FORCE_COLOR": "1", "TERM": "xterm-256color"})
    assert "\x1b[" in shown and "wonderful" in shown


def test_default_method_is_that_of_the_library(bert: str, subject: whence.Subject) -> None:
    assert done("explain", TEXT, "-m", bert).rstrip() == str(whence.explain(subject, TEXT)).rstrip()


def test_model_from_the_environment(bert: str) -> None:
    assert done("explain", TEXT, env={"WHENCE_MODEL": bert}) == done("explain", TEXT, "-m", bert)


@pytest.mark.parametrize(
    ("args", "method"),
    [
        (["--layer", "-1", TEXT], "attention"),
        ([TEXT, "--layer", "0", "--heads", "max"], "attention(layer=0, heads='max')"),
        (["--heads=max", "--layer=0", "--", TEXT], "attention(heads='max', layer=0)"),
        ([TEXT, "--layer", "0,1"], "attention(layer=[0, 1])"),
        (["--heads", "[0, 1]", TEXT], "attention(heads=[0, 1])"),
    ],
)
def test_options_of_the_method(bert: str, subject: whence.Subject, args: list[str], method: str) -> None:
    shown = done("explain", "-m", bert, "--method", "attention", "--json", *args)
    assert whence.Attribution.from_dict(json.loads(shown)) == whence.explain(subject, TEXT, method)


def test_general_options_reach_the_library(bert: str, subject: whence.Subject) -> None:
    shown = done("explain", "film " * 99, "-m", bert, "--truncate", "--seed", 5, "--method", "random", "--json")
    expected = whence.explain(subject, "film " * 99, "random", truncate=True, seed=5)
    assert whence.Attribution.from_dict(json.loads(shown)) == expected


def test_json_is_what_save_writes(bert: str, subject: whence.Subject, tmp_path: Path) -> None:
    shown = done("explain", TEXT, "-m", bert, "--target", "positive", "--json", "--save", tmp_path / "saved.json")
    assert shown.count("\n") == 1
    assert json.loads(shown) == json.loads((tmp_path / "saved.json").read_text(encoding="utf-8"))
    (tmp_path / "shown.json").write_text(shown, encoding="utf-8")
    loaded = whence.Attribution.load(tmp_path / "shown.json")
    assert loaded == whence.Attribution.load(tmp_path / "saved.json")
    assert loaded == whence.explain(subject, TEXT, target="positive")


def test_html_and_words(bert: str, subject: whence.Subject, tmp_path: Path) -> None:
    shown = done("explain", TEXT, "-m", bert, "--words", "--html", tmp_path / "page.html")
    expected = whence.explain(subject, TEXT).words()
    assert "unforgettable" in shown and shown.rstrip() == str(expected).rstrip()
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == expected.to_html()


def test_sentences(bert: str, subject: whence.Subject) -> None:
    text = "the house was warm. two dogs are playing."
    shown = done("explain", text, "-m", bert, "--method", "gradient", "--sentences")
    assert shown.rstrip() == str(whence.explain(subject, text, "gradient").sentences()).rstrip()
    assert "the house was warm.  two dogs are playing." in shown
    assert "--words and --sentences exclude" in refused(2, "explain", text, "-m", bert, "--words", "--sentences")


def test_two_arguments_and_a_json_object_name_the_same_parts(bert: str) -> None:
    parts = {"text": "two dogs are playing", "pair": "the house was warm"}
    pair = done("explain", *parts.values(), "-m", bert, "--method", "gradient")
    assert pair == done("explain", json.dumps(parts), "-m", bert, "--method", "gradient")
    assert "dogs" in pair and "warm" in pair


def test_a_text_in_braces_that_is_no_json_is_a_text(bert: str) -> None:
    shown = json.loads(done("explain", "{the film}", "-m", bert, "--json"))
    assert shown["input"]["raw"] == "{the film}"


@pytest.mark.parametrize("text", ['{"text": "the film"', "{'text': 'the film'}", '{ "messages": [{"role": "user"}'])
def test_named_parts_that_are_no_json_are_refused(bert: str, text: str) -> None:
    assert "the input names parts, and is no JSON: " in refused(2, "explain", text, "-m", bert)


def test_lines_of_stdin(bert: str, subject: whence.Subject, tmp_path: Path) -> None:
    lines = f'a masterful film\n{{"text": "two dogs", "pair": "a house"}}\n{TEXT}\n'
    shown = done("explain", "-", "-m", bert, "--json", "--save", tmp_path / "a.json", stdin=lines)
    expected = whence.explain(subject, ["a masterful film", {"text": "two dogs", "pair": "a house"}, TEXT])
    assert [whence.Attribution.from_dict(json.loads(line)) for line in shown.splitlines()] == expected
    assert [whence.Attribution.load(tmp_path / f"a-{number}.json") for number in (1, 2, 3)] == expected
    plain = done("explain", "-", "-m", bert, stdin=lines)
    assert plain.rstrip() == "\n\n".join(str(attribution) for attribution in expected)


def test_picture_file(folders: dict[str, str], tmp_path: Path) -> None:
    family("vit").inputs[0].save(tmp_path / "disc.PNG", format="png")
    shown = done("explain", tmp_path / "disc.PNG", "-m", folders["vit"], "--method", "gradient", "--json")
    expected = whence.explain(whence.load(folders["vit"]), family("vit").inputs[0], "gradient")
    assert whence.Attribution.from_dict(json.loads(shown)) == expected
    assert "cannot be read" in refused(1, "explain", tmp_path / "none.png", "-m", folders["vit"])


def test_prompt_with_continuation(folders: dict[str, str]) -> None:
    shown = done("explain", "the old man was", " singing", "-m", folders["gpt2"], "--json")
    assert json.loads(shown)["axes"] == ["generated", "feature"]


def test_features_at_a_level() -> None:
    text = "The plot is dull. The actors are wonderful!"
    for level in ("sentence", '["The plot is dull.", [18, 43]]'):
        told = run("explain", text, "-m", "sst2", "--level", level, "--json")
        assert told.exit_code == 0, told.output
        features = json.loads(told.stdout)["input"]["features"]
        assert features == ["[CLS]", "The plot is dull.", "The actors are wonderful!", "[SEP]"]
    assert run("compare", text, "-m", "sst2", "--method", "gae,shap", "--level", "word").exit_code == 0
    wrong = run("explain", text, "-m", "sst2", "--level", "[1, 2")
    assert wrong.exit_code == 2 and "the list of spans is no JSON" in wrong.output
    assert "unknown level" in run("explain", text, "-m", "sst2", "--level", "page").output


def test_digits_as_target(folders: dict[str, str]) -> None:
    assert "target    logit of 'neutral'\n" in done("explain", TEXT, "-m", folders["bert"], "--target", 1)
    assert "target    logit of '3'\n" in done("explain", TEXT, "-m", folders["gpt2"], "--target", 3)
    stars: Any = SimpleNamespace(predicts_tokens=False, reads="", labels=("1", "2"))
    assert [arguments.target_of(stars, target) for target in (None, "2", "0", "good")] == [None, "2", 0, "good"]


def test_tokens_and_answers_as_targets(tmp_path: Path) -> None:
    for name in ("bert-tagger", "distilbert-answerer", "albert-filler"):
        family(name).model.save_pretrained(tmp_path / name)
        family(name).processor.save_pretrained(tmp_path / name)
    tagger, answerer, filler = (tmp_path / name for name in ("bert-tagger", "distilbert-answerer", "albert-filler"))
    file = tmp_path / "a.json"
    shown = done("explain", TEXT, "-m", tagger, "--target", "logit('B-PER', at='actors')", "--save", file)
    assert "target    logit of 'B-PER' at 'actors'\n" in shown
    assert done("score", file, "-m", tagger, "--metric", "auac").startswith("auac = ")
    pair = ("what was it ?", "it was 1990")
    assert "target    logit of the start of '1990'\n" in done(
        "explain", *pair, "-m", answerer, "--target", "start('1990')"
    )
    assert "target    logit of the answer '1990'\n" in done("explain", *pair, "-m", answerer, "--target", 1990)
    assert "target    logit of ' house' at '[MASK]'\n" in done("explain", "a [MASK]", "-m", filler, "--target", "house")


# --- compare --------------------------------------------------------------------------------------------------------


def test_compare(bert: str, subject: whence.Subject, tmp_path: Path) -> None:
    specs = ["attention(layer=0, heads='max')", "gradient(at='word')", "random"]
    args = ["--method", "attention(layer=0, heads='max'),gradient", "--method", "random", "--at", "word"]
    shown = done("compare", TEXT, "-m", bert, *args, "--save", tmp_path / "c.json", "--html", tmp_path / "c.html")
    expected = whence.compare(subject, TEXT, specs)
    assert shown.rstrip() == str(expected).rstrip()
    assert whence.Comparison.load(tmp_path / "c.json") == expected
    assert (tmp_path / "c.html").read_text(encoding="utf-8") == expected.to_html()


def test_compare_in_words_as_json(bert: str, subject: whence.Subject) -> None:
    shown = done("compare", TEXT, "-m", bert, "--method", "attention,gradient", "--words", "--json")
    expected = tuple(a.words() for a in whence.compare(subject, TEXT, ["attention", "gradient"]))
    assert whence.Comparison.from_dict(json.loads(shown)).attributions == expected


def test_commas_inside_a_spec_part_nothing() -> None:
    assert arguments.specs_of("a, b(x=[1, 2], y='p,q') ,c()") == ["a", "b(x=[1, 2], y='p,q')", "c()"]
    assert arguments.specs_of("a(x=1") == ["a(x=1"]
    assert arguments.specs_of("") == []


def test_arguments_are_split_between_command_and_method() -> None:
    own = {"--model": True, "-m": True, "--words": False}
    args = ["-m", "--odd", "in", "--layer", "-1", "--words", "--on", "--steps", "3", "--off", "-m", "x", "--", "--y"]
    kept, extra = explaining.split_arguments(args, own)
    assert kept == ["-m", "--odd", "in", "--words", "-m", "x", "--", "--y"]
    assert extra == [("--layer", "-1"), ("--on", "True"), ("--steps", "3"), ("--off", "True")]


def test_values_are_literals_where_the_option_takes_them() -> None:
    def example(subject: Any, batch: Any, target: Any, *, name: str = "", count: int | None = 1) -> None:
        """An example."""

    whence.method(family="test")(example)
    try:
        record = registry.find("method", "example")
    finally:
        registry.unregister("method", "example")
    assert explaining.option_value(record, "name", "5") == "5"
    assert explaining.option_value(record, "count", "5") == 5
    assert explaining.option_value(record, "count", "None") is None
    with pytest.raises(ValueError, match="'count' takes a whole number or None, not 'many'"):
        explaining.option_value(record, "count", "many")


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "args", "message"),
    [
        (1, ["--method", "atention"], "unknown method 'atention'; did you mean 'attention'?"),
        (1, ["--method", "attention", "--layer", "first"], "'layer' takes a whole number from"),
        (1, ["--method", "attention(layer=0)", "--layer", "1"], "'layer' is given twice"),
        (1, ["--target", "postive"], "did you mean 'positive'?"),
        (1, ["--target", "no such thing"], "negative"),
        (1, ["--target", "7"], "7 is out of range"),
        (2, ["--method", "integrated_gradients", "--stesp", "20"], "'--stesp'; did you mean '--steps'"),
        (2, ["--trunkate"], "did you mean '--truncate'"),
        (2, ["--batch_size", "3"], "did you mean '--batch-size'"),
        (
            2,
            ["--rules", "ah"],
            "nor leave_one_out has the option '--rules'; it is an option of lrp",
        ),
        (2, ["--method", "attention,gradient"], "explain takes one method, and 2 were named"),
        (2, ["--html", "no/such/folder/a.html"], "there is no folder 'no/such/folder'"),
    ],
)
def test_errors_of_explain(bert: str, code: int, args: list[str], message: str) -> None:
    assert message in refused(code, "explain", TEXT, "-m", bert, *args)


def test_errors_of_input(bert: str) -> None:
    assert "the text is empty" in refused(1, "explain", "", "-m", bert)
    assert "input 1 of the list" in refused(1, "explain", "-", "-m", bert, stdin="a film\n\n")
    assert "stdin is empty" in refused(2, "explain", "-", "-m", bert, stdin="")
    assert "PAIR goes with one INPUT" in refused(2, "explain", "-", "a pair", "-m", bert, stdin="a film")
    assert "'prompt'" in refused(1, "explain", '{"prompt": "a film"}', "-m", bert)
    assert "101 tokens, 37 more than the 64" in refused(1, "explain", "film " * 99, "-m", bert)


def test_errors_of_model(tmp_path: Path) -> None:
    assert "there is no folder" in refused(1, "explain", TEXT, "-m", tmp_path / "none")
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    assert "cannot be read as a model" in refused(1, "explain", TEXT, "-m", tmp_path)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("a masterful film", "sst2"),
        ("digit.png", "digits"),
        ('{"image": "a.jpg"}', "digits"),
        ('{"text": "a"}', "sst2"),
    ],
)
def test_default_model_fits_the_input(text: str, model: str) -> None:
    assert arguments.default_model(arguments.inputs(text, None)) == model
    assert arguments.default_model([arguments.raw_input(text)] * 2) == model
    assert arguments.default_model(arguments.inputs(text, "a pair")) == "sst2"


def test_named_parts_may_stand_in_a_file(tmp_path: Path) -> None:
    parts, broken, other = (tmp_path / name for name in ("chat.json", "broken.JSON", "list.json"))
    parts.write_text('{"prompt": "ein \\u00fc",\n "max_tokens": 3}', encoding="utf-8")
    assert arguments.raw_input(str(parts)) == {"prompt": "ein \u00fc", "max_tokens": 3}
    assert arguments.raw_input(str(tmp_path / "missing.json")) == str(tmp_path / "missing.json")
    broken.write_text("{", encoding="utf-8")
    other.write_text("[1]", encoding="utf-8")
    assert "broken.JSON cannot be read as JSON: " in refused(2, "explain", broken)
    assert "holds no object with named parts; write {" in refused(2, "explain", other)


@pytest.mark.parametrize(
    ("raws", "shown"),
    [
        ("a text", False),
        (["a text", "another"], True),
        ({"prompt": "a text"}, False),
        ({"prompt": "a text", "max_tokens": 200}, True),
        ({"messages": [{"role": "user", "content": "a text"}]}, True),
        ({"source": "a text"}, True),
    ],
)
def test_progress_of_what_may_take_long(raws: Any, shown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for terminal in (True, False):
        monkeypatch.setattr(arguments.sys, "stderr", SimpleNamespace(isatty=lambda terminal=terminal: terminal))
        assert arguments.shows_progress(raws) == (shown and terminal)


@pytest.mark.parametrize("command", ["explain", "attention"])
def test_a_default_model_that_does_not_ship(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whence.zoo.names", lambda: ("digits", "planted"))
    message = refused(2, command, TEXT)
    assert "the default, 'sst2', is not among those that ship here (digits, planted); name a model" in message


def test_digit_is_explained_by_the_embedded_model(tmp_path: Path) -> None:
    example = zoo.examples("digits", 1)[0]
    Image.fromarray(example.input).save(tmp_path / "digit.png")
    for command, method in (("explain", "gradient"), ("compare", "gradient,attention")):
        result = run(command, tmp_path / "digit.png", "--method", method)
        assert result.exit_code == 0, result.output
        assert result.stderr == "no model was named: digits is used (see whence models)\n"
        assert f"logit of '{example.label}', as the model predicts" in result.stdout
    missing = run("explain", tmp_path / "none.png")
    assert missing.exit_code == 1 and "cannot be read" in missing.stderr


def test_errors_of_compare(bert: str) -> None:
    assert "compare needs methods" in refused(2, "compare", TEXT, "-m", bert)
    message = refused(2, "compare", TEXT, "-m", bert, "--method", "attention,random", "--zzz", 2)
    assert "neither whence compare nor attention nor random has the option '--zzz'; there is --" in message
    assert "cannot read the spec" in refused(1, "compare", TEXT, "-m", bert, "--method", "attention(layer=0")


@pytest.mark.parametrize(
    "args", [["explain"], ["explain", TEXT, "--batch-size", "0"], ["explian", TEXT], ["methods", "--odd"]]
)
def test_usage_errors(args: list[str]) -> None:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage: ")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (RuntimeError("no\nmemory"), 1, "error: RuntimeError('no\\nmemory')\n"),
        (OSError("the disk\nis full"), 1, "error: the disk is full\n"),
        (KeyError(), 1, "error: KeyError()\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_failures_inside_the_library(
    bert: str, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("whence.api.explain", fail)
    result = run("explain", TEXT, "-m", bert)
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", line)
    if code == 1:
        assert run("--debug", "explain", TEXT, "-m", bert).exception is error


# --- methods, models, help ------------------------------------------------------------------------------------------


def test_list_of_methods() -> None:
    shown = done("methods")
    records = whence.list_methods()
    assert json.loads(done("methods", "--json"))[0]["name"] == records[0].name
    for record in records:
        assert record.name in shown and record.family in shown and record.paper in shown
    assert "complete, signed" in shown and "unsigned" in shown
    assert "[0, 1)" in shown  # square brackets are no markup


@pytest.mark.parametrize("record", registry.records("method"), ids=lambda record: record.name)
def test_one_method_and_its_example(bert: str, record: registry.Record) -> None:
    shown = done("methods", record.name)
    assert record.summary in shown
    for option in record.options.values():
        assert f"--{option.name.replace('_', '-')}" in shown and repr(option.default) in shown
    facts = json.loads(done("methods", record.name, "--json"))
    assert [option["name"] for option in facts[0]["options"]] == list(record.options)
    if "text-classification" in record.tasks:
        example = shown.partition("Example: whence ")[2].replace("./my-model", bert)
        assert record.name in done(*shlex.split(example))


def test_methods_as_a_table_for_documents() -> None:
    head, rule, *lines = done("methods", "--markdown").splitlines()
    records = whence.list_methods()
    columns = re.split(r"(?<!\\)\|", head)
    assert [line.split("`")[1] for line in lines] == [record.name for record in records]
    for record, line in zip(records, lines, strict=True):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        assert len(cells) == len(columns) - 2 == rule.count("---")
        assert cells[1] == record.family and re.sub(r"\\([|*_<])", r"\1", cells[2]) == record.summary
        assert cells[3:5] == ["yes" if promise else "no" for promise in (record.signed, record.complete)]
        assert cells[5] == ("all" if record.tasks == NAMES else ", ".join(record.tasks))
        assert record.paper in cells[6]
    assert listing.markdown_text("|a_i| `b_i` <- c*d") == r"\|a\_i\| `b_i` \<- c\*d"


def test_unknown_method() -> None:
    assert "did you mean 'gradient'" in refused(1, "methods", "gradent")


def test_list_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    card = {"name": "tiny", "accuracy": 0.9987, "size_mb": 1.5, "what": "films", "family": "BERT", "task": "any"}
    monkeypatch.setattr("whence.api.list_models", lambda: [card])
    shown = done("models")
    assert all(word in shown for word in ("tiny", "99.87%", "1.5 MB", "films", "BERT", "--model NAME"))


def test_help_shows_examples() -> None:
    assert "whence compare" in done("--help")
    assert "whence explain - --model" in done("explain", "--help")
    assert "--batch-size" in done("compare", "--help")
    assert done("--version") == f"whence {whence.__version__}\n"


def test_help_shows_its_square_brackets() -> None:
    """Rich reads unescaped brackets as a style, and leaves them out."""
    program = typer.main.get_command(cli.app)
    helps = [option.help for command in program.commands.values() for option in command.params if option.help]
    plain = [(Text.from_markup(text).plain, re.sub(r"\[/?cyan\]|\\(?=\[)", "", text)) for text in helps]
    assert len(plain) > 100 and [shown for shown, meant in plain if shown != meant] == []


@pytest.mark.parametrize("args", [["--help"], ["explain", "--help"], ["attention", "--help"], ["--version"]])
def test_help_loads_no_heavy_library(args: list[str]) -> None:
    code = (
        "import sys, atexit; from whence.cli import main\n"
        "heavy = ('torch', 'transformers', 'matplotlib', 'numpy')\n"
        "atexit.register(lambda: print([name for name in heavy if name in sys.modules], file=sys.stderr))\n"
        "main()"
    )
    result = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    assert "whence" in result.stdout
    assert result.stderr == "[]\n"


# --- as a program ---------------------------------------------------------------------------------------------------


def on_terminal(args: Sequence[str], stdin: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """The program with stderr on a terminal, and what that terminal saw."""
    ours, theirs = pty.openpty()
    result = subprocess.run([*PROGRAM, *args], input=stdin, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # how Linux says that the other side is closed and all is read
        while part := os.read(ours, 65536):
            seen += part
    os.close(ours)
    return result, seen.decode()


@pytest.mark.slow
def test_program_prints_results_and_nothing_else(bert: str, subject: whence.Subject) -> None:
    args = ["explain", TEXT, "--model", bert, "--method", "attention", "--layer", "0"]
    result = subprocess.run([*PROGRAM, *args], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.rstrip() == str(whence.explain(subject, TEXT, "attention", layer=0)).rstrip()


@pytest.mark.slow
def test_program_draws_progress_on_stderr_only(bert: str) -> None:
    args = ["explain", "-", "--model", bert, "--method", "random", "--json", "--batch-size", "1"]
    result, seen = on_terminal(args, stdin="a masterful film\nthe old man\n")
    assert result.returncode == 0
    assert [json.loads(line)["input"]["raw"] for line in result.stdout.splitlines()] == [
        "a masterful film",
        "the old man",
    ]
    assert "explaining" in seen and "Loading" not in seen


def test_program_ends_quietly_when_its_reader_leaves() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    result = subprocess.run([*PROGRAM, "methods"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (result.returncode, result.stderr) == (1, "")
