"""Who has the signs right? Sign agreement and AUAC of the methods that take one pass, on the models of the zoo.

    python benchmarks/signs.py --data FOLDER [--models planted sst2 ...] [--examples 200]     start or continue a run
    python benchmarks/signs.py --data FOLDER --models sst2 --part signed                      only methods with a sign
    python benchmarks/signs.py --table                                                        the tables, as Markdown

Examples of `planted`, `recall`, `dates` and `shapes` are made anew from a seed; `sst2` is all of SST-2 dev and `digits`
the first test digits of MNIST, both read from the folder. The target is the label. Every model has a file in
out/signs/, from which a stopped run is continued.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import whence
from auac import applicable, mnist, sst2
from whence.core import registry
from whence.zoo.example import Example

MODELS = ("planted", "recall", "dates", "shapes", "digits", "sst2")
ONE_PASS = (  # one forward pass, with a backward pass or without
    "lrp", "attnlrp", "gradient_x_input", "attention_x_gradient", "attcat", "gae", "grad_sam", "gradient",
    "transformer_attribution", "attention", "rollout", "value_norms", "residual_norms", "globenc", "alti",
)  # fmt: skip
BESIDE = ("random", "integrated_gradients", "decompx", "leave_one_out")
SIGNS = {  # how each column of signs is measured
    "by effect": "sign_agreement",
    "top 3": "sign_agreement(top=3, weighed=False)",
    "first score": "sign_agreement(top=1, by='score')",
}
SEED = 100


def data_of(model: str, folder: Path | None, examples: int) -> list[Example]:
    """The examples that a model is measured on."""
    if model not in ("sst2", "digits"):
        return whence.zoo.examples(model, examples, SEED)
    if folder is None:
        raise SystemExit(f"{model} needs --data FOLDER")
    return list(sst2(folder)) if model == "sst2" else list(mnist(folder))[:examples]


def metrics_of(model: str) -> list[str]:
    """The metrics of a model: pictures are hidden by grey, as methods do unless told, and by black, as AUAC does."""
    if model != "digits":
        return [*SIGNS.values(), "auac"]
    return [*SIGNS.values(), "auac(mask='black')", "sign_agreement(mask='black')"]


def methods_of(part: str) -> list[str]:
    """The methods of a part: "signed" ones, "unsigned" ones, or "all"."""
    signed = {"signed": (True,), "unsigned": (False,), "all": (True, False)}[part]
    return [method for method in (*ONE_PASS, *BESIDE) if registry.find("method", method).signed in signed]


def run(model: str, options: argparse.Namespace) -> None:
    """Measure methods on one model, and save the board."""
    subject, data = whence.load(model), data_of(model, options.data, options.examples)
    methods = applicable(subject, data[0].input, methods_of(options.part))
    place = options.save / (model if options.part == "all" else f"{model}-{options.part}")
    place.parent.mkdir(parents=True, exist_ok=True)
    resume = place.with_suffix(".jsonl")
    board = whence.evaluate(subject, data, methods, metrics_of(model), seed=SEED, resume=resume, progress=True)
    board.save(place.with_suffix(".json"))


def cell(boards: list[whence.Scoreboard], method: str, metric: str) -> str:
    """A mean with its interval; a dash where a method does not apply, words where its signs cannot be measured."""
    board = next((one for one in boards if method in one.methods and metric in one.metrics), None)
    if board is None:
        return "-"
    record = registry.find("method", method)
    if metric.startswith("sign") and not record.signed:
        return "no sign"
    if registry.resolve("metric", metric)[0].compares_with(method):
        return "circular"
    found = board.score(method, metric)
    low, high = found.interval or (found.value, found.value)
    return f"{found.value:.2f} [{low:.2f}, {high:.2f}]"


def table(boards: dict[str, list[whence.Scoreboard]], title: str, metrics: dict[str, str]) -> list[str]:
    """A row per method, a column per model; methods without a sign are left out of tables of signs."""
    heads = [f"{model} ({own[0].values.shape[-1]})" for model, own in boards.items()]
    lines = ["", f"**{title}**", "", f"| method | {' | '.join(heads)} |", "|---" + "|---:" * len(heads) + "|"]
    for method in (*ONE_PASS, *BESIDE):
        cells = [cell(own, method, metrics[model]) for model, own in boards.items()]
        if not {"no sign", "circular"} & set(cells):
            lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return lines


def tables(place: Path) -> str:
    """All tables of saved runs."""
    found = {m: [whence.Scoreboard.load(file) for file in sorted(place.glob(f"{m}*.json"))] for m in MODELS}
    boards = {m: own for m, own in found.items() if own}
    lines = []
    for title, metric in SIGNS.items():
        lines += table(boards, f"Signs, {title}", dict.fromkeys(boards, metric))
    lines += table(boards, "AUAC", {m: "auac(mask='black')" if m == "digits" else "auac" for m in boards})
    if "digits" in boards:
        black = {"digits": metrics_of("digits")[-1]}
        lines += table({"digits": boards["digits"]}, "Signs, by effect, hidden by black", black)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder that holds sst2/ and mnist/")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--examples", type=int, default=200, help="of every model but sst2")
    parser.add_argument("--part", choices=("all", "signed", "unsigned"), default="all", help="of the methods")
    parser.add_argument("--save", type=Path, default=Path("out/signs"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.table:
        print(tables(options.save))
        return
    for model in options.models:
        print(model, flush=True)
        run(model, options)


if __name__ == "__main__":
    main()
