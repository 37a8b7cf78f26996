"""The attention debate on transformers: the tables of docs/debate.md.

    python benchmarks/debate.py sst2 imdb babi digits photos recall --data FOLDER [--limit N] [--threads 1]
    python benchmarks/debate.py facts names --data FOLDER     # supporting facts of bAbI; names in sentences of SST-2
    python benchmarks/debate.py summary                       # one table of all audits in out/debate

Each name is a model on data: `sst2` on SST-2 dev and on IMDB (reviews cut to 256 tokens), `babi` (out/models/babi, made
by `python -m training babi`) on bAbI task 1, `digits` on what ships, `photos` on the validation photos of
tiny_imagenet16, `recall` on generated sequences. A run keeps its examples in out/debate/NAME.jsonl, goes on from there
after a stop, and leaves its audit in out/debate/NAME.json.
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
from whence.core.statistics import bootstrap

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
    with (_folder(data) / "imdb" / "test.jsonl").open(encoding="utf-8") as lines:
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
    others = {"facts": facts, "names": names, "summary": summary}
    parser.add_argument("names", nargs="+", choices=(*SETTINGS, *others), help="models on data, and what else there is")
    parser.add_argument("--data", type=Path, help="the folder that holds sst2/, imdb/, babi/, tiny_imagenet16/")
    parser.add_argument("--limit", type=int, help="examples, instead of each setting's own number")
    parser.add_argument("--threads", type=int, help="threads of torch")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    OUT.mkdir(parents=True, exist_ok=True)
    for name in given.names:
        own = others.get(name)
        lines = own(given.data, given.limit) if own else table(name, run(name, given.data, given.limit))
        print("\n".join(lines), flush=True)


def run(name: str, data: Path | None, limit: int | None) -> whence.Audit:
    """The audit of one setting; one that was run before is read from its file."""
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


def summary(data: Path | None, limit: int | None) -> Iterator[str]:
    """A row per number that papers report, a column per audit that was run."""
    kept = {name: whence.Audit.load(OUT / f"{name}.json") for name in SETTINGS if (OUT / f"{name}.json").exists()}
    yield "| | " + " | ".join(kept) + " |\n|---|" + "---:|" * len(kept)
    for label, experiment, *numbers in ROWS:
        cells = [_cell(found, experiment, numbers) for found in kept.values()]
        yield f"| {label} | " + " | ".join(cells) + " |"
    yield "| verdict | " + " | ".join(found.verdict for found in kept.values()) + " |"


PAIRS = ("attention, gradient", "attention, left out", "gradient, left out")
FLIPS = ("both flip", "only highest flips", "only random flips", "neither flips")
RANKINGS = ("random", "attention", "gradient", "attention x gradient")
ROWS = (
    *((f"tau: {pair}", "agreement", f"tau: {pair}") for pair in PAIRS),
    ("share significant, of the three", "agreement", *(f"significant: {pair}" for pair in PAIRS)),
    ("permuted: median change", "permutation", "median change"),
    ("greatest weight", "permutation", "greatest weight"),
    ("adversary: divergence (at most .69)", "adversary", "divergence"),
    ("uniform: change", "uniform", "change"),
    ("uniform: right before, after", "uniform", "right", "right, uniform"),
    ("erased: highest has the greater effect", "erasure", "highest has the greater effect"),
    ("flips: both, highest, random, neither", "erasure", *FLIPS),
    *((f"removed until a flip: {name}", "removal", f"removed, never as all: {name}") for name in RANKINGS),
    ("never flips, by attention", "removal", "never: attention"),
    ("signs violated: attention, chance", "signs", "violated: attention", "violated: chance"),
)


def _cell(found: whence.Audit, experiment: str, numbers: list[str]) -> str:
    """The means of some numbers at the last place that was read or edited; a single one with its interval."""
    if experiment not in [finding.name for finding in found]:
        return ""
    means = []
    for number in numbers:
        last = [own for own in found[experiment].quantities if own.name == number and own.defined][-1:]
        means += [f"{own.mean:.2f}{_ends(own.interval) if len(numbers) == 1 else ''}" for own in last]
    return ", ".join(means)


def _ends(interval: tuple[float, float] | None) -> str:
    return "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"


READINGS = (
    *("attention(layer=-1)", "rollout", "gae", "attention_x_gradient", "lrp", "attnlrp", "gradient_x_input"),
    *("integrated_gradients", "value_zeroing", "leave_one_out", "random"),
)


def facts(data: Path | None, limit: int | None) -> Iterator[str]:
    """Whether methods point at the sentence that gives the answer, and how much of their scores lies there."""
    subject = whence.load(SETTINGS["babi"].model)
    questions = babi_questions(data)[: limit or 200]
    inputs = [{"text": " ".join(story), "pair": question} for story, question, _, _ in questions]
    places = [_within(story, number) for story, _, _, number in questions]
    chance = float(np.mean([1 / len(story) for story, *_ in questions]))
    yield f"\n{len(questions)} questions; a sentence taken at random is the right one in {chance:.2f} of them\n"
    yield "| method | strongest token of the story is in the sentence | share of the story's scores |\n|---|---:|---:|"
    for method in READINGS:
        found = whence.explain(subject, inputs, method)
        hits = [_on_sentence(own, place) for own, place in zip(found, places, strict=True)]
        cells = [bootstrap(np.array(values)) for values in zip(*hits, strict=True)]
        yield f"| `{method}` | " + " | ".join(f"{mean:.2f}{_ends(ends)}" for mean, ends in cells) + " |"


def _within(story: list[str], number: int) -> tuple[int, int]:
    """Where a sentence of a story lies in its text."""
    start = sum(len(sentence) + 1 for sentence in story[:number])
    return start, start + len(story[number])


def _on_sentence(a: whence.Attribution, place: tuple[int, int]) -> tuple[float, float]:
    """Whether the strongest token of the story lies in the sentence, and the share of the scores' sizes that does."""
    own = [i for i, part in enumerate(a.input.parts) if part == "text" and not a.special[i]]
    sizes = np.abs(a.scores[own])
    inside = np.array([place[0] <= a.input.offsets[i][0] < place[1] for i in own])
    return float(inside[sizes.argmax()]), float(sizes[inside].sum() / sizes.sum())


FOUND = (  # first names in sentences of SST-2 dev
    *("david", "anne", "robert", "michael", "martin", "steven", "peter", "oliver", "mike", "jason", "woody", "tom"),
    *("robin", "paul", "john", "hugh", "eddie", "ben", "adam"),
)


def names(data: Path | None, limit: int | None) -> Iterator[str]:
    """First names of three origins, exchanged in sentences of SST-2 that hold a first name."""
    texts = [row["text"] for row in sst2(data, 10**6)]
    found = whence.audit_names(
        whence.load("sst2"), texts, "faker:en_US,tr_TR,yo_NG", target="positive", find=FOUND, limit=limit or 100
    )
    found.save(OUT / "names.json")
    found.write(OUT / "names.png")
    yield str(found)


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
