"""The attention debate on transformers: the tables of docs/debate.md.

    python benchmarks/debate.py sst2 imdb babi digits photos recall --data FOLDER [--limit N] [--threads 1]

Each name is a model on data: `sst2` on SST-2 dev and on IMDB (reviews cut to 256 tokens), `babi` (out/models/babi, made
by `python -m training babi`) on bAbI task 1, `digits` on what ships, `photos` on the validation photos of
tiny_imagenet16, `recall` on generated sequences. Every run goes on from out/debate/NAME.jsonl where it was stopped, and
leaves its audit in out/debate/NAME.json.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import whence
from whence import zoo

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out" / "debate"
TOKENS = 256  # of an IMDB review


@dataclass(frozen=True)
class Setting:
    """A model on data, and what is asked of it."""

    model: str
    examples: Callable[[Path | None, int], list[Any]]
    limit: int
    experiments: tuple[str, ...] | None = None  # None: all


def sst2(data: Path | None, limit: int) -> list[Any]:
    """Sentences of SST-2 dev, in their order."""
    with (_folder(data) / "sst2" / "dev.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [{"text": row["content"], "label": ("negative", "positive")[int(row["label"])]} for row in rows[:limit]]


def imdb(data: Path | None, limit: int) -> list[Any]:
    """Reviews of both labels in turn, in the order of IMDB's test file, cut to their first tokens."""
    lines = (_folder(data) / "imdb" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    by_label = [[row["text"] for row in rows if int(row["label"]) == label] for label in (0, 1)]
    names, subject = ("negative", "positive"), whence.load("sst2")
    pairs = [(text, label) for pair in zip(*by_label, strict=False) for text, label in zip(pair, names, strict=True)]
    return [{"text": _cut(subject, text.replace("<br />", " ")), "label": label} for text, label in pairs[:limit]]


def babi(data: Path | None, limit: int) -> list[Any]:
    """Stories and questions of bAbI task 1."""
    return [
        {"text": " ".join(story), "pair": question, "label": answer}
        for story, question, answer, _ in babi_questions(data)[:limit]
    ]


def babi_questions(data: Path | None) -> list[tuple[list[str], str, str, int]]:
    """Story, question, answer, and the number of the sentence that gives it away, of every test question."""
    file = _folder(data) / "babi" / "qa1_single-supporting-fact_10k_test.txt"
    found: list[tuple[list[str], str, str, int]] = []
    story: dict[int, str] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        number, text = line.split(" ", 1)
        story = {} if number == "1" else story
        if "\t" in text:
            question, answer, supporting = text.split("\t")
            found.append((list(story.values()), question.strip(), answer, list(story).index(int(supporting))))
        else:
            story[int(number)] = text.strip()
    return found


def digits(data: Path | None, limit: int) -> list[Any]:
    """Handwritten digits that ship."""
    return list(zoo.examples("digits", limit))


def photos(data: Path | None, limit: int) -> list[Any]:
    """Validation photos, as many of every class."""
    found: dict[str, list[Any]] = {}
    with tarfile.open(_folder(data) / "tiny_imagenet16" / "val.tar") as archive:
        for member in archive:
            content = archive.extractfile(member)
            if content is not None:
                picture = np.asarray(Image.open(io.BytesIO(content.read())).convert("RGB"))
                label = member.name.split("/")[0]
                found.setdefault(label, []).append({"image": picture, "label": label})
    return [row for rows in zip(*found.values(), strict=True) for row in rows][:limit]


def recall(data: Path | None, limit: int) -> list[Any]:
    """Generated sequences of keys and values; the last value is what is decided."""
    return [example.input for example in zoo.examples("recall", limit)]


SETTINGS = {
    "sst2": Setting("sst2", sst2, 300),
    "sst2-all-layers": Setting("sst2", sst2, 20, ("adversary(layers='all')",)),
    "imdb": Setting("sst2", imdb, 50),
    "babi": Setting(str(ROOT / "out" / "models" / "babi"), babi, 100),
    "digits": Setting("digits", digits, 100),
    "photos": Setting("photos", photos, 96),
    "recall": Setting("recall", recall, 100),
}


def main() -> None:
    """Run the audits that were asked for and print their numbers as tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=SETTINGS, help="models on data")
    parser.add_argument("--data", type=Path, help="the folder that holds sst2/, imdb/, babi/, tiny_imagenet16/")
    parser.add_argument("--limit", type=int, help="examples, instead of each setting's own number")
    parser.add_argument("--threads", type=int, help="threads of torch")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    OUT.mkdir(parents=True, exist_ok=True)
    for name in given.names:
        found = run(name, given.data, given.limit)
        print("\n".join(table(name, found)), flush=True)


def run(name: str, data: Path | None, limit: int | None) -> whence.Audit:
    """The audit of one setting, from its file where it is done."""
    setting = SETTINGS[name]
    count = limit or setting.limit
    start = time.process_time()
    found = whence.audit(
        whence.load(setting.model),
        setting.examples(data, count),
        setting.experiments,
        resume=OUT / f"{name}.{count}.jsonl",
        progress=True,
    )
    found.save(OUT / f"{name}.json")
    print(f"{name}: {len(found.examples)} examples, {time.process_time() - start:.0f} s of CPU")
    return found


def table(name: str, found: whence.Audit) -> Iterator[str]:
    """The numbers of an audit, a row each, with their intervals, and the grade of every experiment."""
    yield f"\n### {name}: {found.model}, {len(found.examples)} examples; verdict: {found.verdict}\n"
    yield "| experiment | number | attention | mean | 95 % | examples | grade |\n|---|---|---|---:|---|---:|---|"
    for finding in found:
        for quantity in finding.quantities:
            ends = "" if quantity.interval is None else f"{quantity.interval[0]:.3g} to {quantity.interval[1]:.3g}"
            grade = finding.grades.get(quantity.where, finding.grade) if quantity.where else finding.grade
            cells = (finding.name, quantity.name, quantity.where, f"{quantity.mean:.3g}", ends, quantity.defined, grade)
            yield "| " + " | ".join(map(str, cells)) + " |"


def _folder(data: Path | None) -> Path:
    if data is None:
        raise SystemExit("this needs --data FOLDER")
    return data


def _cut(subject: whence.Subject, text: str) -> str:
    """The text up to its last token that the model is given."""
    item = subject.encode(text, truncate=True)
    ends = [int(end) for _, end in item.offsets if end > 0][: TOKENS - 2]
    return text[: max(ends)]


if __name__ == "__main__":
    main()
