"""Which method should explain a language model? Truth and faithfulness of next-token explanations, with intervals.

    python benchmarks/language.py recall --save out/language/recall.json
    python benchmarks/language.py built --save out/language/built.json          30 layers, 31 words, an attention sink
    python benchmarks/language.py long --save out/language/long.json            the same model, 1,001 words
    python benchmarks/language.py longer --save out/language/longer.json        the same model, 1,999 words
    python benchmarks/language.py --table out/language/*.json                   the tables, as Markdown
    python benchmarks/language.py --table out/language/*.json --against integrated_gradients    paired differences, p
    python benchmarks/language.py --figure docs/sinks.png                       a prompt before and after each way out

Two models whose deciding words are known: `recall`, which was trained, and that of `whence.testing.induction`, built by
hand. What is explained is the token that the model predicts: its logit, and with "contrast" its logit minus
that of the likeliest other token. Features count by their size; the last word is the question and stays.

- AUPRC: average precision of the two words that decide.
- drop: what log p of the token loses when the 1, 2, 4 and 8 words of the largest scores are hidden (mean of the four).
- kept: log p of the token when all but the 2, 4 and 8 words are hidden, above that with everything hidden.

On long prompts the same three are measured over units of 24 words, where methods that hide features are affordable: the
unit that holds the deciding words is to be found, and 1, 2, 4 and 8 units are hidden.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import whence
from whence.core.statistics import bootstrap, sign_flips
from whence.measure.metrics.plausibility import average_precision
from whence.testing import induction
from whence.views.figures.text_rows import Row, text_figure

ONE_PASS = (
    "random", "attention", "attention(sinks='exclude')", "rollout", "rollout(sinks='exclude')", "rollout(sinks='stay')",
    "grad_sam", "attention_x_gradient", "gae", "gae(sinks='exclude')", "gradient", "gradient_x_input", "lrp", "attnlrp",
)  # fmt: skip
PARTS = (
    "value_norms", "globenc", "globenc(sinks='exclude')", "globenc(sinks='stay')", "alti", "alti(sinks='stay')",
    "value_zeroing", "value_zeroing(sinks='exclude')", "value_zeroing(sinks='stay')", "decompx", "flow",
    "flow(sinks='stay')", "attcat",
)  # fmt: skip
MANY_PASSES = ("integrated_gradients", "leave_one_out", "shap(max_evals=200)", "lime(samples=200)", "occlusion")
DIFFERENTIATING = (
    "grad_sam", "attention_x_gradient", "gae", "gradient", "gradient_x_input", "lrp", "attnlrp", "decompx", "attcat",
    "integrated_gradients", "leave_one_out",
)  # fmt: skip
MODELS = {
    "recall": (lambda: whence.load("recall"), lambda n: whence.zoo.examples("recall", n, 100), 24),
    "built": (lambda: induction.subject(30), lambda n: induction.examples(n, 100), 12),
    "long": (lambda: induction.subject(30), lambda n: induction.examples(n, 100, words=1001, pairs=8), 6),
    "longer": (lambda: induction.subject(30), lambda n: induction.examples(n, 100, words=1999, pairs=8), 3),
}
LONG = ("random", "gradient_x_input", "attention_x_gradient", "gae", "lrp", "attnlrp")
OVER_UNITS = ("random", "lrp", "attnlrp", "leave_one_out(mask='delete')", "context_cite(mask='delete')")
UNIT = 24  # words: pairs of a key and a value begin at even places, so that none is cut in two
FIGURES = ("AUPRC", "drop", "kept")


def log_chances(subject: whence.Subject, words: list[str], keeps: list[np.ndarray], index: int) -> np.ndarray:
    """log p of a token when only the words of each mask are kept and the others are unknown."""
    texts = [" ".join(w if k else "<unk>" for w, k in zip(words, keep, strict=True)) for keep in keeps]
    found = []
    for start in range(0, len(texts), 8):
        batch = subject.batch([subject.encode(text) for text in texts[start : start + 8]])
        found.append(subject.logits(batch).double().log_softmax(-1)[:, index])
    return torch.cat(found).numpy()


def judged(
    subject: whence.Subject, a: whence.Attribution, words: list[str], truth: np.ndarray, index: int, unit: int
) -> list[float]:
    """AUPRC, drop and kept of one explanation, whose features are words or units of several words."""
    units = np.minimum(np.arange(len(words)) // unit, (len(words) - 2) // unit)  # the last word has none of its own
    own = len(a.features) - len(words) if unit == 1 else 0  # the number of special tokens before the words
    free = len(words) - 1 if unit == 1 else int(units[-1]) + 1
    sizes = np.abs(a.scores[own : own + free].astype(float))
    order = np.lexsort((np.random.default_rng(len(words)).random(free), -sizes))
    everything, last = np.ones(len(words), bool), np.arange(len(words)) == len(words) - 1
    masks = [everything, last]
    for count in (1, 2, 4, 8):
        masks.append(~np.isin(units, order[:count]) | last)
    for count in (2, 4, 8):
        masks.append(np.isin(units, order[:count]) | last)
    chances = log_chances(subject, words, masks, index)
    deciding = np.zeros(free, bool)
    deciding[units[:-1][truth[-len(words) :][:-1]]] = True
    precision = average_precision(sizes, deciding)
    return [float(precision), float(chances[0] - chances[2:6].mean()), float(chances[6:].mean() - chances[1])]


def spans_of(words: list[str], unit: int) -> list[tuple[int, int]] | None:
    """The characters of every unit of several words; the last word, the question, is in none of them."""
    if unit == 1:
        return None
    ends = np.cumsum([len(word) + 1 for word in words])  # with the space
    starts = list(range(0, len(words) - 1, unit))
    stops = [min(start + unit, len(words) - 1) for start in starts]
    return [(int(ends[i] - len(words[i]) - 1), int(ends[stop - 1] - 1)) for i, stop in zip(starts, stops, strict=True)]


def measured(name: str, methods: list[str], count: int, place: Path, unit: int = 1) -> None:
    """Every method on the same examples; the file keeps what was measured after each of them."""
    subject, examples = MODELS[name][0](), MODELS[name][1](count)
    kept: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {}
    for method in methods:
        for contrast in (False, True) if method in (*DIFFERENTIATING, *OVER_UNITS[3:]) else (False,):
            label = f"{method}, contrast" if contrast else method
            if label in kept:
                continue
            rows, sink_first, start = [], [], time.process_time()
            for example in examples:
                words = example.input.split()
                batch = subject.batch([subject.encode(example.input)])
                best, other = subject.logits(batch)[0].topk(2).indices.tolist()
                names = [subject.name_of(i).strip() for i in (best, other)]
                target = f"contrast({names[0]!r}, {names[1]!r})" if contrast else None
                a = whence.explain(subject, example.input, method, target, level=spans_of(words, unit))
                rows.append(judged(subject, a, words, np.asarray(example.truth), best, unit))
                sink_first.append(bool(a.sinks.any()) and int(np.abs(a.scores).argmax()) == int(a.sinks.argmax()))
            seconds = (time.process_time() - start) / count
            kept[label] = {"values": rows, "sink_first": float(np.mean(sink_first)), "seconds": seconds}
            print(
                label, np.mean(rows, 0).round(2), f"sink first {np.mean(sink_first):.0%}, {seconds:.1f} s", flush=True
            )
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(json.dumps(kept))


def table(files: list[Path]) -> str:
    """A table per file, best drop first."""
    lines = []
    for file in files:
        kept = json.loads(file.read_text())
        count = len(next(iter(kept.values()))["values"])
        lines += ["", f"**{file.stem}** ({count} prompts)", "", "| method | AUPRC | drop | kept | sink first |"]
        lines.append("|---|---:|---:|---:|---:|")
        for label, row in sorted(kept.items(), key=lambda item: -np.mean(item[1]["values"], 0)[1]):
            cells = []
            for column in np.array(row["values"]).T:
                mean, interval = bootstrap(column)
                cells.append(f"{mean:.2f}" + (f" [{interval[0]:.2f}, {interval[1]:.2f}]" if interval else ""))
            method, contrast, _ = label.partition(", contrast")
            shown = f"`{method}`{contrast}"
            lines.append(f"| {shown} | " + " | ".join(cells) + f" | {row['sink_first']:.0%} |")
    return "\n".join(lines)


def versus(files: list[Path], against: str) -> str:
    """Mean differences from one method on the same prompts, and p by sign flips."""
    lines = []
    for file in files:
        kept = json.loads(file.read_text())
        reference = np.array(kept[against]["values"])
        lines += ["", f"{file.stem}: difference from {against}, p"]
        for label, row in kept.items():
            gaps = np.array(row["values"]) - reference
            cells = [
                f"{name} {gap.mean():+.2f} p={sign_flips(gap, draws=10_000):.4f}"
                for name, gap in zip(FIGURES, gaps.T, strict=True)
            ]
            lines.append(f"  {label:40} " + "  ".join(cells))
    return "\n".join(lines)


def drawn(place: Path) -> None:
    """One prompt of the model that was built by hand: every method as it was, its sink shown apart, and a way out."""
    subject = induction.subject(30)
    example = induction.examples(1, 7, words=17, pairs=3)[0]
    other = next(value for value in induction.VALUES if value not in example.input.split())
    contrast = f"contrast({example.label!r}, {other!r})"
    ways = [
        ("gae", "gae", contrast),
        ("lrp", "lrp", contrast),
        ("integrated_gradients", "integrated_gradients", contrast),
    ]
    for method in ("rollout", "globenc", "value_zeroing"):
        ways += [(method, f"{method}(sinks='exclude')", None), (method, f"{method}(sinks='stay')", None)]
    rows, seen = [], set()
    for method, better, target in ways:
        plain = whence.explain(subject, example.input, method)
        sizes, everything = np.abs(plain.scores), list(range(len(plain.features)))
        if method not in seen:
            seen.add(method)
            rows.append(Row(f"{method}, as it was", sizes, everything, float(sizes.max())))
            apart = np.where(plain.sinks, 0.0, sizes)
            rows.append(Row("... the sink shown apart", apart, everything, float(apart.max()), [0]))
        after = np.abs(whence.explain(subject, example.input, better, target).scores)
        name = "... as a contrast" if target else f"... {better.partition('(')[2][:-1]}"
        rows.append(Row(name, after, everything, float(after.max())))
    decides = " ".join(np.array(example.input.split())[example.truth])
    head = [f"The model goes on with {example.label}. What decides: {decides}."]
    foot = ["the stronger the colour, the larger the size of the score, every row on its own scale; grey: the sink"]
    text_figure(plain.input, rows, head, foot, 190).savefig(place, dpi=130)


def main() -> None:
    """Measure, or print tables of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", choices=MODELS)
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--examples", type=int)
    parser.add_argument("--units", action="store_true", help=f"over units of {UNIT} words")
    parser.add_argument("--save", type=Path)
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--against", metavar="METHOD")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.table:
        print(versus(options.table, options.against) if options.against else table(options.table))
        return
    if options.figure:
        drawn(options.figure)
        return
    if options.model is None:
        parser.error("name a model, or files with --table")
    methods = [*ONE_PASS, *PARTS, *MANY_PASSES]
    if options.model.startswith("long"):
        methods = list(OVER_UNITS if options.units else LONG)
    place = options.save or Path("out/language") / f"{options.model}{'_units' * options.units}.json"
    unit = UNIT if options.units else 1
    measured(options.model, options.methods or methods, options.examples or MODELS[options.model][2], place, unit)


if __name__ == "__main__":
    main()
