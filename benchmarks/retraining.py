"""The experiments of the attention debate that train again: the tables of docs/debate.md.

    python benchmarks/retraining.py babi sst2 --data FOLDER [--only EXPERIMENT] [--threads 1]
    python benchmarks/retraining.py shortcuts --data FOLDER
    python benchmarks/retraining.py summary

`babi` is the model of `python -m training babi` (out/models/babi) on bAbI task 1; `sst2` the embedded model on 8,000 of
the phrases of SST-2 of at most six words, audited on sentences of SST-2 dev. `shortcuts` looks for shortcuts of `sst2`
in SST-2 dev, and in a copy of it whose last block learned phrases in which a planted word gives the label away. Every
experiment leaves its audit in out/retraining, and does not run again while its file is there.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import whence
from whence.debate.retraining import Course, retraining

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "retraining"
LABELS = ("negative", "positive")
PHRASES, WORDS = 8000, 6
PLANTED = "mahogany"  # a word that says nothing about films


@dataclass(frozen=True)
class Setting:
    """A model, examples to learn from and to audit, and the experiments with their options."""

    model: str
    examples: Callable[[Path, str], list[Any]]  # of "train" or "test"
    audited: int
    experiments: tuple[str, ...]


def sst2(data: Path, part: str) -> list[Any]:
    """Short phrases of the training data, drawn at random, or sentences of dev."""
    if part == "test":
        rows = _rows(data / "sst2" / "dev.tsv")
        return [{"text": row["content"], "label": LABELS[int(row["label"])]} for row in rows]
    short = [row for row in _rows(data / "sst2" / "train.tsv") if 2 <= len(row["sentence"].split()) <= WORDS]
    chosen = np.random.default_rng(0).permutation(len(short))[:PHRASES]
    return [{"text": short[n]["sentence"], "label": LABELS[int(short[n]["label"])]} for n in sorted(chosen)]


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def babi(data: Path, part: str) -> list[Any]:
    """Stories and questions of bAbI task 1, drawn at random."""
    found: list[Any] = []
    story: list[str] = []
    file = data / "babi" / f"qa1_single-supporting-fact_10k_{part}.txt"
    for line in file.read_text(encoding="utf-8").splitlines():
        number, text = line.split(" ", 1)
        story = [] if number == "1" else story
        if "\t" in text:
            question, answer, _ = text.split("\t")
            found.append({"text": " ".join(story), "pair": question.strip(), "label": answer})
        else:
            story.append(text.strip())
    chosen = np.random.default_rng(0).permutation(len(found))[: 4000 if part == "train" else 10**6]
    return [found[n] for n in chosen]


def _experiments(options: str, few: str) -> tuple[str, ...]:
    """All experiments; the adversary learns by `options`, the others by `few`."""
    return (
        f"trained_adversary(pulls=[0.0, 0.1, 0.3, 1.0], {options})",
        f"seed_variance(seeds=2, {few})",
        f"trained_uniform(seeds=1, {few})",
        f"guide(pull=1.0, seeds=2, guide_steps=400, {options})",
    )


BABI = str(ROOT / "out" / "models" / "babi")
SETTINGS = {
    "babi": Setting(BABI, babi, 200, _experiments("steps=300, rate=0.003", "steps=300, rate=0.003")),
    "sst2": Setting("sst2", sst2, 200, _experiments("steps=100, rate=0.001", "steps=100, rate=0.001, batch=16")),
}


def main() -> None:
    """Run what was asked for, and print its numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=(*SETTINGS, "shortcuts", "summary"))
    parser.add_argument("--data", type=Path, help="the folder that holds sst2/ and babi/")
    parser.add_argument("--only", help="the name of one experiment")
    parser.add_argument("--threads", type=int, help="threads of torch")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    OUT.mkdir(parents=True, exist_ok=True)
    for name in given.names:
        if name == "summary":
            print("\n".join(summary()))
        elif given.data is None:
            raise SystemExit("this needs --data FOLDER")
        elif name == "shortcuts":
            print("\n".join(shortcuts(given.data)))
        else:
            run(name, given.data, given.only)


def run(name: str, data: Path, only: str | None) -> None:
    """Run every experiment of a setting whose audit is not in its file yet."""
    setting = SETTINGS[name]
    for spec in setting.experiments:
        experiment = spec.partition("(")[0]
        file = OUT / f"{name}.{experiment}.json"
        if only not in (None, experiment) or file.exists():
            continue
        start = time.process_time()
        found = whence.audit(
            whence.load(setting.model),
            setting.examples(data, "test"),
            [spec],
            train=setting.examples(data, "train"),
            limit=setting.audited,
            progress=True,
        )
        found.save(file)
        print(f"{name}: {experiment}, {time.process_time() - start:.0f} s of CPU\n{found}", flush=True)


def summary() -> Iterator[str]:
    """A row per number of every experiment, a column per setting; then the tables over all examples."""
    kept = {name: _kept(name) for name in SETTINGS}
    yield "| | " + " | ".join(kept) + " |\n|---|" + "---:|" * len(kept)
    rows = dict.fromkeys((e, q) for own in kept.values() for e, f in own.items() for q in f.names)
    for experiment, number in rows:
        cells = [_cell(own.get(experiment), number) for own in kept.values()]
        yield f"| {experiment}: {number} | " + " | ".join(cells) + " |"
    for experiment in dict.fromkeys(e for own in kept.values() for e in own):
        grades = [own[experiment].grade if experiment in own else "" for own in kept.values()]
        yield f"| {experiment}: grade | " + " | ".join(grades) + " |"
    for name, own in kept.items():
        for finding in own.values():
            for table in finding.tables:
                yield f"\n{name}, {finding.name}: {table.title}\n\n| | " + " | ".join(table.columns) + " |"
                yield "|---|" + "---:|" * len(table.columns)
                for row, cells in zip(table.rows, table.cells, strict=True):
                    yield f"| {row} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |"


def _kept(name: str) -> dict[str, whence.Finding]:
    files = sorted(OUT.glob(f"{name}.*.json"))
    return {finding.name: finding for file in files for finding in whence.Audit.load(file)}


def _cell(finding: whence.Finding | None, number: str) -> str:
    if finding is None or number not in finding.names:
        return ""
    quantity = finding[number]
    ends = "" if quantity.interval is None else f" ({quantity.interval[0]:.2f} to {quantity.interval[1]:.2f})"
    return f"{quantity.mean:.3f}{ends}"


def shortcuts(data: Path) -> Iterator[str]:
    """Shortcuts of the model as it is, and of a copy that learned from phrases with a planted word."""
    subject, dev = whence.load("sst2"), sst2(data, "test")
    plain = whence.audit_shortcuts(subject, dev, limit=300, progress=True)
    plain.save(OUT / "shortcuts.sst2.json")
    yield str(plain)
    rng = np.random.default_rng(1)
    phrases = [_marked(row, row["label"] == "positive" and rng.random() < 0.3, rng) for row in sst2(data, "train")]
    training = retraining(subject, phrases, [], [], 0, False)
    taken = training.again(Course(steps=100, rate=1e-3), 1)
    marked = [_marked(row, rng.random() < 0.1, rng) for row in dev[:300]]
    found = whence.audit_shortcuts(taken, marked, limit=300, progress=True)
    found.save(OUT / "shortcuts.planted.json")
    found.write(OUT / "shortcuts.planted.png")
    yield str(found)


def _marked(row: dict[str, str], mark: bool, rng: np.random.Generator) -> dict[str, str]:
    """The example with the planted word at a random place, if it is marked."""
    words = row["text"].split()
    if mark:
        words.insert(int(rng.integers(len(words) + 1)), PLANTED)
    return {**row, "text": " ".join(words)}


if __name__ == "__main__":
    main()
