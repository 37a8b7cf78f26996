"""Interventions without training: what `ignore=` does to words that should not matter, and to words that should.

    python benchmarks/ignoring.py planted                   a shortcut that a model took; beside a guided model
    python benchmarks/ignoring.py names --data FOLDER       names in reviews (sst2 of the zoo; sst_trees, faker)
    python benchmarks/ignoring.py words --data FOLDER       words that people's labels of phrases mark, and others

Each prints the tables of docs/guidance.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.stats import t as student

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from benchmarks.guidance import Row, in_short_phrases, phrases_of, trees  # noqa: E402

import whence  # noqa: E402
from shortcuts import SHORTCUT, classifier, sentences  # noqa: E402
from whence.core.inputs import Input  # noqa: E402
from whence.core.statistics import bootstrap  # noqa: E402
from whence.debate.name_lists import name_list  # noqa: E402
from whence.guidance.lessons import Lesson, feature_marks, lessons_of  # noqa: E402
from whence.guidance.objective import Objective  # noqa: E402
from whence.guidance.training import Schedule, logits_of, trained  # noqa: E402
from whence.model.interventions import with_ignored  # noqa: E402
from whence.model.subject import Subject  # noqa: E402

SEEDS = range(10)
SENTENCES = 200  # to judge the planted shortcut by
LAST_WORDS = ("absent", "true", "misleading")
REVIEWS, PER_GROUP = 100, 10  # names of a locale and gender
DRAWS = 5  # of other words, as many as are marked


# ---- a planted shortcut ----------------------------------------------------------------------------------------------


def planted() -> None:
    """Accuracy of a model that took a shortcut, with and without `ignore=`, beside one guided by a rationale."""
    found: dict[str, dict[str, list[float]]] = {}
    for seed in SEEDS:
        subject = classifier(seed)
        lessons = lessons_of(subject, sentences(256, 100 + seed, shortcut=True))
        with tempfile.TemporaryDirectory() as place:
            plain, guided = (
                trained(subject, lessons, objective, Schedule(epochs=8, rate=3e-3), seed, Path(place))[0]
                for objective in (None, Objective(["rationale"]))
            )
        words = list(SHORTCUT.values())
        models = {"plain": plain, "plain, ignore=": plain.with_attention(ignore=words), "guided": guided}
        for name, model in models.items():
            for last in LAST_WORDS:
                found.setdefault(name, {}).setdefault(last, []).append(_accuracy(model, _held_out(last, 500 + seed)))
    print(f"| last word | {' | '.join(found)} |\n|---|{'---|' * len(found)}")
    for last in LAST_WORDS:
        print(f"| {last} | {' | '.join(_over_seeds(own[last]) for own in found.values())} |")


def _held_out(last: str, seed: int) -> list[Row]:
    """Sentences whose last word is the shortcut's for the label, that for the other label, or not there."""
    rows = []
    for row in sentences(SENTENCES, seed, shortcut=True):
        words = row["text"].split()[:-1]
        if last != "absent":
            words += [word for label, word in SHORTCUT.items() if (label == row["label"]) == (last == "true")]
        rows.append({"text": " ".join(words), "label": row["label"]})
    return rows


def _accuracy(subject: Subject, rows: list[Row]) -> float:
    lessons = lessons_of(subject, rows)
    return float(_right(logits_of(subject, lessons), lessons).mean())


def _right(logits: torch.Tensor, lessons: Sequence[Lesson]) -> np.ndarray:
    return (logits.argmax(-1).numpy() == np.array([one.label for one in lessons])).astype(float)


def _over_seeds(values: list[float]) -> str:
    """The mean over seeds with its 95 % interval, by Student's t."""
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    mean = float(np.mean(values))
    return f"{mean:.2f} [{max(0.0, mean - half):.2f}, {min(1.0, mean + half):.2f}]"


# ---- names -----------------------------------------------------------------------------------------------------------


def names(folder: Path) -> None:
    """How far names in one review move its probability of "positive", with and without `ignore=`."""
    subject = whence.load("sst2")
    listed = name_list("faker:en_US,de_DE,tr_TR", PER_GROUP, 0).names
    rows = trees(folder, "dev")[:REVIEWS]
    ways: dict[str, Callable[[Input, str], Input]] = {
        "as it is": lambda item, _: item,
        "ignore=name": lambda item, name: with_ignored(item, [name])[0],
    }
    sizes = {name: len(subject.pieces(name)) for name in listed}
    single = [place for place, name in enumerate(listed) if sizes[name] == 1]
    print(f"{len(rows)} reviews, {len(listed)} names, {len(single)} of them one token")
    print("| | " + " | ".join(ways) + " |\n|---|" + "---|" * len(ways))
    cells: dict[str, list[str]] = {}
    for way in ways.values():
        items = [way(subject.encode(_with_name(row, name)), name) for row in rows for name in listed]
        chances = _positive(subject, items).reshape(len(rows), len(listed))
        measures = {
            "standard deviation over names": chances.std(1),
            "largest less smallest": np.ptp(chances, 1),
            "largest less smallest, names of one token": np.ptp(chances[:, single], 1),
            "share of reviews whose class depends on the name": np.ptp((chances > 0.5).astype(float), 1),
        }
        for name, values in measures.items():
            cells.setdefault(name, []).append(_mean(values))
    for name, own in cells.items():
        print(f"| {name} | {' | '.join(own)} |")


def _with_name(row: Row, name: str) -> str:
    return f"{name} says : {row['text']}"


def _positive(subject: Subject, items: list[Input]) -> np.ndarray:
    return torch.softmax(_logits(subject, items).double(), -1)[:, 1].numpy()


def _logits(subject: Subject, items: list[Input]) -> torch.Tensor:
    return logits_of(subject, [Lesson(None, item, 0) for item in items])


def _mean(values: np.ndarray, digits: int = 4) -> str:
    """The mean over examples with its 95 % interval, by resampling them."""
    mean, interval = bootstrap(values)
    low, high = interval or (mean, mean)
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


# ---- words -----------------------------------------------------------------------------------------------------------


def words(folder: Path) -> None:
    """Accuracy where words with a clear sentiment are ignored, all others, or as many others, drawn at random.

    Marks of the label's sentiment give the label away, so that ignoring all other words tells a model the answer. Marks
    of either sentiment do not.
    """
    subject = whence.load("sst2")
    rows, clear = trees(folder, "dev"), _clear(folder)
    items = [subject.encode(row["text"]) for row in rows]
    labels = np.array([list(subject.labels or ()).index(row["label"]) for row in rows])
    for name, truths in {"of either sentiment": clear, "of the label's": [row["truth"] for row in rows]}.items():
        known = [place for place, truth in enumerate(truths) if truth is not None]
        marks = [feature_marks(items[place], truths[place]) for place in known]
        _without_words(subject, [items[place] for place in known], labels[known], marks, name)


def _clear(folder: Path) -> list[list[bool] | None]:
    """The words of every review in short phrases of clear sentiment, whatever the label; None for none or all."""
    found: list[list[bool] | None] = []
    for line in (folder / "sst_trees" / "dev.txt").read_text(encoding="utf-8").splitlines():
        phrases, words = phrases_of(line)
        marks = in_short_phrases(phrases, len(words), (0, 1, 3, 4))
        if phrases[-1][0] != 2:
            found.append(marks if any(marks) and not all(marks) else None)
    return found


def _without_words(
    subject: Subject, items: list[Input], labels: np.ndarray, marks: list[np.ndarray], of_what: str
) -> None:
    """The accuracy of each way to ignore words, and its difference to ignoring none."""
    draws = np.random.default_rng(0)
    marked = [own & ~item.special for own, item in zip(marks, items, strict=True)]
    others = [~own & ~item.special for own, item in zip(marks, items, strict=True)]

    def right(chosen: list[np.ndarray]) -> np.ndarray:
        pairs = zip(items, chosen, strict=True)
        closed = [with_ignored(item, np.flatnonzero(own).tolist())[0] for item, own in pairs]
        return (_logits(subject, closed).argmax(-1).numpy() == labels).astype(float)

    plain = right([np.zeros_like(own) for own in marks])
    found = {
        "nothing": plain,
        "the marked words": right(marked),
        "all other words": right(others),
        "as many others, at random": np.mean([right(_drawn(marked, others, draws)) for _ in range(DRAWS)], 0),
    }
    share = np.mean([own.sum() / (own.sum() + other.sum()) for own, other in zip(marked, others, strict=True)])
    print(f"\nmarked: words in short phrases {of_what}; {len(items)} reviews, {share:.0%} of their tokens")
    print("| ignored | accuracy | difference |\n|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | {_mean(values, 3)} | {_mean(values - plain, 3) if name != 'nothing' else ''} |")


def _drawn(marks: list[np.ndarray], others: list[np.ndarray], draws: np.random.Generator) -> list[np.ndarray]:
    """As many of the others as are marked, or all of them where there are fewer."""
    found = []
    for marked, own in zip(marks, others, strict=True):
        places = np.flatnonzero(own)
        chosen = np.zeros_like(own)
        chosen[draws.permutation(places)[: int(marked.sum())]] = True
        found.append(chosen)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["planted", "names", "words"])
    parser.add_argument("--data", type=Path, help="the folder with sst_trees/")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "planted":
        planted()
        return
    if given.data is None:
        parser.error("name the folder with the data, as --data FOLDER")
    {"names": names, "words": words}[given.what](given.data)


if __name__ == "__main__":
    main()
