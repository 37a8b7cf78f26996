"""The command `whence audit`: is attention an explanation here?"""

from __future__ import annotations

import ast
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import whence
from whence.cli.arguments import Csv, Device, Html, Limit, Model, Save, Seed, Truncate, load, specs_of, target_of
from whence.cli.measuring import DataNames, data_of, kind_of
from whence.cli.output import check_folders, files_for, give
from whence.cli.program import Command, Misuse, app

EXAMPLES = """[bold]Examples[/bold]
whence audit reviews.tsv --limit 100 --html audit.html
whence audit reviews.tsv --experiment permutation --experiment "adversary(restarts=10)" --layers each
whence audit reviews.tsv --names faker:en_US,tr_TR,yo_NG --target positive --html names.html
whence audit reviews.tsv --shortcuts --html shortcuts.html
whence audit reviews.tsv --train train.tsv --seeds 5 --experiment "seed_variance, trained_adversary"
whence audit ./digits -m digits --experiment "removal(methods=['gae', 'lrp'])" --resume run.jsonl"""
EXPERIMENT = "Names or name(option=value), commas between; may be repeated. whence experiments lists them."
LAYERS = "What layers are read and edited: last, each (in turn), all (at once), or numbers as 3 or [0, 5]."
HEADS = "together, each (one by one, averaged), or numbers."
NAMES = (
    "Ask instead whether a name moves the decision: a table with the columns name and a kind of group (origin, ...), "
    "or faker:en_US,tr_TR."
)
SHORTCUTS = "Ask instead which words act as shortcuts: those that decide nearly alone, wherever they stand."
FIND = "With --names: the names to exchange in the texts, commas between; default: those of the list, and {name}."
TRAIN = "Labelled examples: run the experiments that train copies of the model again, too, and learn from these."
METHOD = "With --names or --shortcuts: what gives the relevance."
READING = "attention or rollout, where weights are only read."
RESUME = "Keep what is done in this file, and go on from it."
ROWS = "deciding (of the tokens that the output reads) or all."


@app.command(cls=Command, epilog=EXAMPLES)
def audit(
    data: DataNames,
    experiment: Annotated[list[str] | None, typer.Option("--experiment", metavar="SPEC", help=EXPERIMENT)] = None,
    model: Model = None,
    layers: Annotated[str | None, typer.Option("--layers", help=LAYERS)] = None,
    heads: Annotated[str | None, typer.Option("--heads", help=HEADS)] = None,
    rows: Annotated[str | None, typer.Option("--rows", help=ROWS)] = None,
    reading: Annotated[str | None, typer.Option("--reading", help=READING)] = None,
    special: Annotated[bool, typer.Option("--special", help="Edit the weights of special tokens, too.")] = False,
    names: Annotated[str | None, typer.Option("--names", metavar="LIST", help=NAMES)] = None,
    find: Annotated[str | None, typer.Option("--find", metavar="NAMES", help=FIND)] = None,
    shortcuts: Annotated[bool, typer.Option("--shortcuts", help=SHORTCUTS)] = False,
    method: Annotated[str | None, typer.Option("--method", help=METHOD)] = None,
    target: Annotated[str | None, typer.Option("--target", help="With --names: what is explained.")] = None,
    train: Annotated[str | None, typer.Option("--train", metavar="FILE", help=TRAIN)] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", help="With --train: how often models are trained.")] = None,
    limit: Limit = None,
    resume: Annotated[Path | None, typer.Option("--resume", help=RESUME)] = None,
    save: Save = None,
    html: Html = None,
    csv: Csv = None,
    device: Device = None,
    seed: Seed = 0,
    truncate: Truncate = False,
) -> None:
    """Ask whether attention explains a model's decisions: the experiments of the debate, on your data."""
    files = files_for("ShortcutAudit" if shortcuts else "Audit" if names is None else "NameAudit", save, html, csv)
    check_folders(resume)
    named = data_of(data, "audit on")
    subject = load(model, kind_of(named), device)
    edits: dict[str, Any] = {"layers": _choice(layers), "heads": _choice(heads), "rows": rows, "reading": reading}
    edits |= {"special": special or None, "train": train, "seeds": seeds, "resume": resume}
    more: dict[str, Any] = {"seed": seed, "truncate": truncate, "progress": True}
    words = {"names": names, "find": find, "target": target}
    if shortcuts:
        _refuse("--shortcuts edits no attention", {"experiment": experiment, **edits, **words})
        give(whence.audit_shortcuts(subject, named, method=method or "lrp", limit=limit or 1000, **more), files)
    elif names is not None:
        _refuse("--names exchanges names and edits no attention", {"experiment": experiment, **edits})
        give(_of_names(subject, named, names, find, method, target, limit=limit or 100, **more), files)
    else:
        _refuse("without --names or --shortcuts no word is looked at", {**words, "method": method})
        specs = specs_of(*experiment) if experiment else None
        give(whence.audit(subject, named, specs, limit=limit, **edits, **more), files)


def _of_names(
    subject: whence.Subject,
    data: Any,
    names: str,
    find: str | None,
    method: str | None,
    target: str | None,
    **options: Any,
) -> whence.NameAudit:
    """The audit of names."""
    wanted = [part.strip() for part in find.split(",")] if find else None
    aimed = target_of(subject, target)
    return whence.audit_names(subject, data, names, target=aimed, method=method or "lrp", find=wanted, **options)


def _refuse(reason: str, given: dict[str, Any]) -> None:
    """An error for options that have no meaning together."""
    needless = [f"--{name}" for name, value in given.items() if value not in (None, False, [])]
    if needless:
        raise Misuse(f"{reason}, so {' and '.join(needless)} cannot be used here; leave it out")


def _choice(text: str | None) -> Any:
    """A word as it is; a number, or a list of numbers, as such."""
    if text is None:
        return None
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(text)
    return text
