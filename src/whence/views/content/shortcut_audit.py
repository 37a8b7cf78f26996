"""What every medium says about a ShortcutAudit: its facts, and a row per word."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from whence.core.shortcut_audits import SHORTCUT_GRADES, ShortcutAudit, WordEffect
from whence.core.wording import counted
from whence.views.content.attribution import Facts
from whence.views.text import printable

HEADS = (
    *("word", "grade", "texts", "speaks for", "attributed", "strongest", "p", "predicted", "labelled"),
    *("hidden: p falls by", "hidden: flips", "put elsewhere: turns", "misleads"),
)
MOST = 40  # words that a page or figure shows; a terminal shows fewer
COLOURS = {"shortcut": "#b2182b", "suspect": "#e08214", "strong": "#2166ac", "": "#878787"}


@dataclass(frozen=True)
class WordRow:
    """One word, as media show it."""

    cells: tuple[str, ...]  # as `HEADS` name them
    grade: str
    turned: float  # NaN for a word that was not tried elsewhere
    interval: tuple[float, float]
    others: float
    examples: tuple[str, ...]


def reading(found: ShortcutAudit) -> str:
    """What was found, as a sentence."""
    return printable(f"{found.answer[:1].upper()}{found.answer[1:]}.")


def facts(found: ShortcutAudit) -> Facts:
    """What every medium says before it shows rows, printable."""
    classes = ", ".join(f"{name} {share:.0%}" for name, share in found.classes.items())
    right = f"; {found.accuracy:.0%} of those with a label are right" if found.labelled else "; no labels"
    said = [
        ("question", "which words act as shortcuts?"),
        ("answer", found.answer),
        ("model", found.model),
        ("texts", f"{found.texts}, decided for {classes}{right}"),
        ("words", f"{len(found.words)} that stand in {counted(found.least, 'text')} or more"),
        ("attributed", f"{found.method}: mean share of the sizes of all scores, in texts of each predicted class"),
        ("strongest", "in how many of its texts no other word has a greater score, and by chance; p exact, Holm"),
        ("predicted, labelled", "how many of its texts are decided, and labelled, for its class (without it)"),
        ("hidden", "what hiding it does to the probability of its class and to decisions for it"),
        ("put elsewhere", "how many texts decided otherwise it turns, 95 % interval (another word in its place)"),
        ("misleads", "how many of its texts with another label are decided for its class (texts without it)"),
    ]
    said += [(f"grade {grade}" if grade else "no grade", told) for grade, told in SHORTCUT_GRADES.items()]
    said += [("note", note) for note in dict.fromkeys(found.notes)]
    return [(label, printable(text)) for label, text in said]


def word_rows(found: ShortcutAudit, most: int = MOST) -> tuple[list[WordRow], str]:
    """A row per word in the order of suspicion, and a sentence on those that are left out."""
    rows = [_row(own) for own in found.words[:most]]
    left = len(found.words) - len(rows)
    return rows, f"{counted(left, 'more word')} not shown" if left > 0 else ""


def _row(own: WordEffect) -> WordRow:
    low, high = own.turned_interval
    attributed = ", ".join(f"{printable(name)} {share:+.2f}" for name, share in own.attributed.items())
    turned = f"{_share(own.turned)} [{low:.2f}, {high:.2f}] ({_share(own.turned_by_others)})" if own.contexts else "-"
    misled = f"{_share(own.misled)} ({_share(own.misled_elsewhere)}) of {own.contrary}" if own.contrary else "-"
    cells = (
        *(printable(own.word), own.grade or "-", str(own.texts), printable(own.pulls), attributed),
        *(f"{own.strongest:.2f} ({own.chance:.2f})", f"{own.corrected:.2g}"),
        *(f"{own.predicted:.2f} ({_share(own.predicted_elsewhere)})", _share(own.labelled)),
        *("-" if np.isnan(own.hidden) else f"{own.hidden:+.2f}", _share(own.flips), turned, misled),
    )
    return WordRow(
        cells, own.grade, own.turned, own.turned_interval, own.turned_by_others, tuple(map(printable, own.examples))
    )


def _share(value: float) -> str:
    return "-" if np.isnan(value) else f"{value:.2f}"
