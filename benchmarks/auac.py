"""AUAC and AU-MSE of all methods on real data, in the layout of Ali et al. 2022 (Table 1).

    python benchmarks/auac.py sst2 --data FOLDER                    SST-2 dev, the model `sst2`
    python benchmarks/auac.py imdb --data FOLDER --limit 100        reviews cut to 256 tokens, the same model
    python benchmarks/auac.py mnist --data FOLDER --limit 200       test digits, the model `digits`
    python benchmarks/auac.py emotion --data FOLDER --limit 200     TweetEval test, `out/models/emotion` (see training/)
    python benchmarks/auac.py reviews.tsv --model FOLDER            your own file and model
    python benchmarks/auac.py --table out/auac/*.json               the tables of saved runs, as Markdown
    python benchmarks/auac.py --table out/auac/*.json --against lrp     how methods differ from one, and p

The same command continues a run that was stopped. The target is the true class, as in the paper, and hidden tokens are
[UNK], hidden patches black. Methods that do not apply to the model are left out.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import whence
from whence.core.statistics import sign_flips
from whence.measure.datasets import read
from whence.zoo.example import Example

PAPER = (  # the paper's methods; attention and rollout as sums of columns, as there, and at the deciding token
    "random", "attention(read='received_sum')", "attention", "flow", "rollout(read='received_sum')", "rollout",
    "gradient", "gae", "gradient_x_input", "lrp(rules='ah')", "lrp(rules='ln')", "lrp",
)  # fmt: skip
SLOW = ("decompx", "lime", "path_gradients", "shap", "smoothgrad", "value_zeroing")
MASKING = ("leave_one_out", "occlusion", "shap", "lime")
LONGEST = {"imdb": 256}  # tokens


def lines(file: Path) -> list[str]:
    """The lines of a file; `splitlines` would also cut at characters that texts may hold."""
    return file.read_text(encoding="utf-8").rstrip("\n").split("\n")


def sst2(data: Path) -> Iterator[Example]:
    for line in lines(data / "sst2" / "dev.tsv")[1:]:
        label, text = line.split("\t", 1)
        yield Example(text, ("negative", "positive")[int(label)])


def imdb(data: Path) -> Iterator[Example]:
    """Reviews of both labels in turn, in the order of the file."""
    rows = [json.loads(line) for line in lines(data / "imdb" / "test.jsonl")]
    by_label = [[row["text"] for row in rows if int(row["label"]) == label] for label in (0, 1)]
    for pair in zip(*by_label, strict=False):
        for label, text in zip(("negative", "positive"), pair, strict=True):
            yield Example(text.replace("<br />", " "), label)


def mnist(data: Path) -> Iterator[Example]:
    def array(part: str, offset: int) -> np.ndarray:
        file = data / "mnist" / f"t10k-{part}-ubyte.gz"
        return np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=offset)

    images, labels = array("images-idx3", 16), array("labels-idx1", 8)
    for image, label in zip(images.reshape(-1, 28, 28), labels, strict=True):
        yield Example(image, str(label))


def tweets(data: Path, task: str) -> Iterator[Example]:
    folder = data / "tweet_eval" / task
    names = dict(line.split("\t") for line in lines(folder / "mapping.txt"))
    texts, labels = (lines(folder / f"test_{part}.txt") for part in ("text", "labels"))
    for text, label in zip(texts, labels, strict=True):
        yield Example(text, names[label])


READERS = {
    "sst2": (sst2, "sst2"),
    "imdb": (imdb, "sst2"),
    "mnist": (mnist, "digits"),
    "emotion": (lambda data: tweets(data, "emotion"), "out/models/emotion"),
    "sentiment": (lambda data: tweets(data, "sentiment"), "out/models/sentiment"),
}


def applicable(subject: whence.Subject, example: Any, methods: list[str]) -> list[str]:
    """The methods that explain such an input."""
    found = []
    for method in methods:
        try:
            whence.explain(subject, example, method, truncate=True)
            found.append(method)
        except ValueError as error:
            print(f"left out: {error}", flush=True)
    return found


def chosen(names: list[str]) -> list[str]:
    """Methods by group or by name; what the paper compares comes first."""
    others = [r.name for r in whence.list_methods() if r.name not in PAPER]
    groups = {
        "paper": list(PAPER),
        "quick": [n for n in others if n not in SLOW],
        "slow": list(SLOW),
        "all": [*PAPER, *others],
    }
    return [method for name in names for method in groups.get(name, [name])]


def run(options: argparse.Namespace) -> whence.Scoreboard:
    reader, model = READERS.get(options.dataset, (None, "sst2"))
    subject = whence.load(options.model or model)
    pictures = subject.task == "image-classification"
    data = list(reader(options.data)) if reader else options.dataset
    if options.dataset in LONGEST:
        subject.processor.model_max_length = LONGEST[options.dataset]
    methods = applicable(subject, read(data, 1)[0][0], chosen(options.methods))
    mask = "(mask='black')" if pictures else ""
    if pictures:  # methods that hide features hide them as the metrics do
        methods = [method + mask if method in MASKING else method for method in methods]
    place = options.save
    place.parent.mkdir(parents=True, exist_ok=True)
    board = whence.evaluate(
        subject,
        data,
        methods,
        [f"auac{mask}", f"au_mse{mask}"],
        limit=options.limit,
        truncate=True,
        resume=place.with_suffix(".jsonl"),
        progress=True,
    )
    board.save(place)
    return board


def table(files: list[Path]) -> str:
    """Saved boards as Markdown: a row per method, the paper's first, a column per data set (the name before a dash)."""
    cells: dict[str, dict[str, dict[str, str]]] = {"auac": {}, "au_mse": {}}
    columns: dict[str, int] = {}
    order: dict[str, float] = dict.fromkeys(PAPER, 2.0)
    for file in files:
        board, column = whence.Scoreboard.load(file), file.stem.split("-")[0]
        columns[column] = max(columns.get(column, 0), board.values.shape[-1])
        for method in board.methods:
            row = method.replace("(mask='black')", "")
            for metric in board.metrics:
                s = board.score(method, metric)
                low, high = s.interval or (s.value, s.value)
                few = f" ({board.values.shape[-1]})" if board.values.shape[-1] < columns[column] else ""
                name = metric.split("(")[0]
                shown = (f"{x:.3f}" if name == "auac" else f"{x:.3g}" for x in (s.value, low, high))
                cells[name].setdefault(row, {})[column] = "{} [{}, {}]".format(*shown) + few
                if name == "auac":
                    order.setdefault(row, s.value)
    heads = [f"{name} ({count})" for name, count in columns.items()]
    lines = []
    for name, title in (("auac", "AUAC, higher is better"), ("au_mse", "AU-MSE, lower is better")):
        lines += ["", f"**{title}**", "", f"| method | {' | '.join(heads)} |", "|---" + "|---:" * len(heads) + "|"]
        for method in sorted(cells[name], key=lambda m: -order[m]):
            lines.append(f"| `{method}` | " + " | ".join(cells[name][method].get(c, "-") for c in columns) + " |")
    return "\n".join(lines)


def versus(files: list[Path], name: str) -> str:
    """For every data set and metric: mean differences from one method on the same examples, and p by sign flips."""
    found: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for file in files:
        board = whence.Scoreboard.load(file)
        for metric, by_method in zip(board.metrics, board.values.swapaxes(0, 1), strict=True):
            its = found.setdefault((file.stem.split("-")[0], metric.split("(")[0]), {})
            its.update({m.replace("(mask='black')", ""): v for m, v in zip(board.methods, by_method, strict=True)})
    lines = []
    for (column, metric), its in found.items():
        lines += ["", f"{column}, {metric}: difference from {name} on as many examples, p"]
        for method, values in its.items():
            count = min(len(values), len(its[name]))
            gap = values[:count] - its[name][:count]
            p = sign_flips(gap, draws=10_000)
            lines.append(f"  {method:34} {np.nanmean(gap):+8.3f}  ({count})  p = {p:.4f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", nargs="?", help=f"{', '.join(READERS)}, or a file")
    parser.add_argument("--data", type=Path, help="the folder that holds sst2/, imdb/, mnist/, tweet_eval/")
    parser.add_argument("--model", help="a name, a folder or a hub id; default: the one that fits the data set")
    parser.add_argument("--methods", nargs="+", default=["all"], help="paper, quick, slow, all, or names")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--save", type=Path, help="default: out/auac/DATASET.json")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--against", metavar="METHOD", help="with --table: paired tests against this method instead")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.table:
        print(versus(options.table, options.against) if options.against else table(options.table))
        return
    if options.dataset is None:
        parser.error("name a data set, or files with --table")
    if options.dataset in READERS and options.data is None:
        parser.error(f"{options.dataset} needs --data FOLDER")
    options.save = options.save or Path("out/auac") / f"{Path(options.dataset).stem}.json"
    Console().print(run(options))


if __name__ == "__main__":
    main()
