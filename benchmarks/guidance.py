"""Training with attention in the loss: which loss helps which measure, at which price in accuracy, over seeds.

    python benchmarks/guidance.py tweets --data FOLDER      tweets with the words that people marked (tweet_spans)
    python benchmarks/guidance.py trees --data FOLDER       reviews, rationales from labels of phrases (sst_trees)
    python benchmarks/guidance.py cost --data FOLDER        a guided step against a plain one, interleaved
    python benchmarks/guidance.py table tweets              the tables of docs/guidance.md, of models measured so far

MiniLM with a new head is trained on labels alone and by each loss, with the same seeds, order and steps. Every model's
numbers go into out/guidance/<data and sizes>/<arm>-<seed>.json as soon as it is measured, so that a stopped run
keeps them.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from training import minilm  # noqa: E402

from whence import wrap  # noqa: E402
from whence.core.guidances import Difference, Guidance  # noqa: E402
from whence.guidance.guiding import Arm, measures_of  # noqa: E402
from whence.guidance.lessons import Lesson, lessons_of  # noqa: E402
from whence.guidance.measuring import ABOUT, Measured, measured, metric_names  # noqa: E402
from whence.guidance.objective import Objective  # noqa: E402
from whence.guidance.training import History, Schedule, step_losses, trained  # noqa: E402
from whence.model.subject import Subject  # noqa: E402
from whence.model.training_pass import module_of  # noqa: E402
from whence.model.weights import duplicate  # noqa: E402

OUT = ROOT / "out" / "guidance"
LABELS = ("negative", "positive")
METHODS = ("attention",)
LONGEST = 32  # tokens
PLAIN = "plain"
# Each weight makes the loss's gradient about half as long as that of the labels, on a model half-way through training.
ARMS: dict[str, list[str]] = {
    PLAIN: [],
    "rationale": ["rationale(weight=0.5)"],
    "positions": ["disagreement(of='positions', weight=4)"],
    "attribution_prior": ["attribution_prior(weight=0.05)"],
    "flatter": ["entropy(sharper=False, weight=0.5)"],
    "sharper": ["entropy(weight=0.5)"],
    "right_reasons": ["right_reasons(weight=0.3)"],
}
Row = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How much is trained and measured."""

    arms: tuple[str, ...]
    train: int
    test: int
    epochs: int
    seeds: tuple[int, ...]
    explained: int  # of the examples to judge by: explanations are slow, and accuracy is not

    @property
    def schedule(self) -> Schedule:
        return Schedule(epochs=self.epochs, rate=1e-4, batch_size=16)


PLANS = {
    "tweets": Plan(tuple(ARMS), 4000, 4000, 2, (0, 1, 2, 3, 4), 100),
    "trees": Plan((PLAIN, "rationale", "attribution_prior"), 1600, 800, 1, (0, 1, 2), 100),
}


# ---- data ------------------------------------------------------------------------------------------------------------


def tweets(folder: Path) -> list[Row]:
    """Positive and negative tweets; the marked words as a pair of characters, where not all of the text is marked."""
    rows = []
    with (folder / "tweet_spans" / "train.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["sentiment"] not in LABELS or not row["text"].strip():
                continue
            text, chosen = row["text"].strip(), row["selected_text"].strip()
            start = text.find(chosen)
            span = [[start, start + len(chosen)]] if chosen and start >= 0 and len(chosen) < len(text) else None
            rows.append({"text": text, "label": row["sentiment"], "truth": span})
    return rows


def trees(folder: Path, part: str) -> list[Row]:
    """Movie reviews of two classes; marked are the phrases of at most three words with the label's clear sentiment."""
    rows = []
    for line in (folder / "sst_trees" / f"{part}.txt").read_text(encoding="utf-8").splitlines():
        phrases, words = phrases_of(line)
        label = phrases[-1][0]
        if label == 2:
            continue
        marks = in_short_phrases(phrases, len(words), (0, 1) if label < 2 else (3, 4))
        known = any(marks) and not all(marks)
        name = LABELS[label > 2]
        rows.append({"text": " ".join(words), "label": name, "truth": marks if known else None})
    return rows


def in_short_phrases(phrases: list[tuple[int, int, int]], count: int, sentiments: tuple[int, ...]) -> list[bool]:
    """The words that stand in a phrase of at most three words with one of these sentiments."""
    marks = [False] * count
    for sentiment, start, end in phrases:
        if sentiment in sentiments and end - start <= 3:
            marks[start:end] = [True] * (end - start)
    return marks


def phrases_of(line: str) -> tuple[list[tuple[int, int, int]], list[str]]:
    """The phrases of a tree, inner ones first: label, first word, the word after the last; and the words."""
    words: list[str] = []
    open_ones: list[tuple[int, int]] = []
    found = []
    for token in re.findall(r"\(\d|\)|[^()\s]+", line):
        if token.startswith("("):
            open_ones.append((int(token[1]), len(words)))
        elif token == ")":
            label, start = open_ones.pop()
            found.append((label, start, len(words)))
        else:
            words.append(token.replace("-LRB-", "(").replace("-RRB-", ")").replace("\\/", "/"))
    return found, words


def lessons(subject: Subject, rows: list[Row], count: int) -> list[Lesson]:
    """The first examples that are short enough, those whose rationale marks every token without it."""
    kept = []
    for row in rows:
        item = subject.encode(row["text"])
        if len(item.features) > LONGEST:
            continue
        if row["truth"] is not None:
            try:
                lessons_of(subject, [row])
            except ValueError:
                row = {**row, "truth": None}
        kept.append(row)
        if len(kept) == count:
            break
    return lessons_of(subject, kept)


def prepared(data: str, folder: Path, train: int, test: int) -> tuple[Subject, list[Lesson], list[Lesson]]:
    """MiniLM with a new head, and examples to train on and to judge by."""
    model, tokenizer = minilm.pretrained(LABELS)
    subject = wrap(model, tokenizer)
    if data == "tweets":
        rows = tweets(folder)
        random.Random(0).shuffle(rows)
        found = lessons(subject, rows, train + test)
        return subject, found[test:], found[:test]
    rows, judged = trees(folder, "train"), trees(folder, "test")
    for own in (rows, judged):
        random.Random(0).shuffle(own)
    return subject, lessons(subject, rows, train), lessons(subject, judged, test)


# ---- running ---------------------------------------------------------------------------------------------------------


def run(data: str, folder: Path, plan: Plan) -> None:
    """Train and measure every arm with every seed, one after the other; the numbers of each model are kept."""
    home = home_of(data, plan)
    home.mkdir(parents=True, exist_ok=True)
    subject, given, judged = prepared(data, folder, plan.train, plan.test)
    known = sum(one.marks is not None for one in given)
    print(f"{len(given)} examples, {known} with a rationale, judged by {len(judged)}", flush=True)
    for seed in plan.seeds:  # the seed of every arm first, so that a stopped run leaves arms with the same seeds
        for arm in plan.arms:
            file = home / f"{arm}-{seed}.json"
            if file.exists():
                continue
            started = time.time()
            losses = ARMS[arm]
            with tempfile.TemporaryDirectory() as place:
                model, history = trained(
                    subject, given, Objective(losses) if losses else None, plan.schedule, seed, Path(place)
                )
            middle = time.time()
            found = measured(model, judged, METHODS, 0, plan.explained)
            file.write_text(json.dumps(_record(found, history, losses)), encoding="utf-8")
            accuracy = found.by_example["accuracy"].mean()
            plausible = np.nanmean(found.by_example["plausibility of attention"])
            seconds = f"{middle - started:.0f} s of training, {time.time() - middle:.0f} s of measuring"
            print(f"{arm} {seed}: accuracy {accuracy:.3f}, plausibility {plausible:.3f}; {seconds}", flush=True)


def home_of(data: str, plan: Plan) -> Path:
    """Where the numbers of models go: models of other sizes go elsewhere, so that no table mixes them."""
    return OUT / f"{data}-{plan.train}x{plan.epochs}-{plan.test}"


def _record(found: Measured, history: History, losses: list[str]) -> dict[str, Any]:
    return {
        "losses": losses,
        "by_example": {name: values.tolist() for name, values in found.by_example.items()},
        "whole": found.whole,
        "attention": [row.tolist() for row in found.attention],
        "steps": history.steps,
        "seconds": history.seconds,
    }


def arm_of(data: str, plan: Plan, arm: str) -> Arm | None:
    """The models of an arm that are done; None unless all seeds are."""
    files = [home_of(data, plan) / f"{arm}-{seed}.json" for seed in plan.seeds]
    if not all(file.exists() for file in files):
        return None
    found = Arm()
    for file in files:
        read = json.loads(file.read_text(encoding="utf-8"))
        names = {*metric_names(METHODS, True), *ABOUT}
        by_example = {name: np.array(own, float) for name, own in read["by_example"].items() if name in names}
        found.models.append(Measured(by_example, read["whole"], [np.array(row) for row in read["attention"]]))
        found.histories.append(History(steps=read["steps"], seconds=read["seconds"]))
    return found


def guidance_of(data: str, plan: Plan, arm: str) -> Guidance | None:
    """An arm beside training on labels alone, as `whence.guide` reports it."""
    plain, own = arm_of(data, plan, PLAIN), arm_of(data, plan, arm)
    if plain is None or own is None:
        return None
    arms = {"plain": plain, "guided": own}
    counts = np.array([[h.steps for h in one.histories] for one in arms.values()], float)
    seconds = np.array([[h.seconds for h in one.histories] for one in arms.values()], float)
    measures = tuple(measures_of(arms, METHODS))
    return Guidance("MiniLM", tuple(ARMS[arm]), tuple(arms), plan.seeds, measures, {}, 0, 0, 0, counts, seconds)


# ---- tables ----------------------------------------------------------------------------------------------------------


def table(data: str, plan: Plan) -> Iterator[str]:
    """The difference to training on labels alone, with its interval, by arm and measure; bold where it leaves 0 out."""
    found = {arm: result for arm in ARMS if arm != PLAIN and (result := guidance_of(data, plan, arm)) is not None}
    if not found:
        return
    first = next(iter(found.values()))
    yield f"| measure | labels alone | {' | '.join(found)} |"
    yield f"|---|---|{'---|' * len(found)}"
    for measure in first.measures:
        name = f"{measure.name} ({measure.better})" if measure.better else measure.name
        cells = [_cell(result.difference(measure.name)) for result in found.values()]
        yield f"| {name} | {first.mean(measure.name, 'plain'):.3f} | {' | '.join(cells)} |"


def _cell(difference: Difference) -> str:
    if difference.interval is None:
        return f"{difference.mean:+.3f}"
    low, high = difference.interval
    text = f"{difference.mean:+.3f} [{low:+.3f}, {high:+.3f}]"
    return f"**{text}**" if difference.clear else text


# ---- cost ------------------------------------------------------------------------------------------------------------


def cost(folder: Path, rounds: int) -> None:
    """A guided step against a plain one on the eager path: medians of interleaved steps, by the processor's time."""
    subject, given, _ = prepared("tweets", folder, 320, 1)
    arms = {arm: Objective(ARMS[arm]) if ARMS[arm] else None for arm in ARMS} | {
        "gae": Objective(["attribution_prior(method='gae')"]),
        "gradient_x_input": Objective(["attribution_prior(method='gradient_x_input')"]),
        "each head": Objective(["rationale(each=True, layers=None)"]),
    }
    copies = {arm: duplicate(subject) for arm in arms}
    times: dict[str, list[float]] = {arm: [] for arm in arms}
    for number in range(rounds):
        batch = given[32 * (number % 10) : 32 * (number % 10) + 32]
        for arm, objective in arms.items():
            model = module_of(copies[arm])
            model.train()
            started = time.process_time()
            total = sum(step_losses(copies[arm], subject, batch, objective).values())
            model.zero_grad()
            torch.as_tensor(total).backward()
            times[arm].append(time.process_time() - started)
    plain = statistics.median(times[PLAIN][1:])
    print("| losses | forward and backward against labels alone |\n|---|---|")
    for arm, own in times.items():
        print(f"| {arm} | {statistics.median(own[1:]) / plain:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tweets", "trees", "cost", "table"])
    parser.add_argument("of", nargs="?", default="tweets", choices=["tweets", "trees"])
    parser.add_argument("--data", type=Path, help="the folder with tweet_spans/ and sst_trees/")
    for name in ("train", "test", "epochs", "explained"):
        parser.add_argument(f"--{name}", type=int, help="other than the plan's")
    parser.add_argument("--seeds", type=int, nargs="*")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--arms", nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(1)
    data = given.of if given.what == "table" else given.what
    if data in PLANS:
        asked = {field.name: getattr(given, field.name) for field in fields(Plan)}
        plan = replace(PLANS[data], **{name: value for name, value in asked.items() if value})
    if given.what == "table":
        print("\n".join(table(data, plan)))
        return
    if given.data is None:
        parser.error("name the folder with the data, as --data FOLDER")
    if given.what == "cost":
        cost(given.data, given.rounds)
        return
    run(data, given.data, plan)


if __name__ == "__main__":
    main()
