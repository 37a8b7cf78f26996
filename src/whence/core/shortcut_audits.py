"""Words that decide nearly alone: the effect of each word of a data set on a model's decisions. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass

from whence.core import display
from whence.core.results import Result
from whence.core.storage import Storable
from whence.core.wording import suggest

SHORTCUT_GRADES = {
    "shortcut": "it decides wherever it stands, also where the labels say otherwise",
    "suspect": "it decides wherever it stands or against the labels, but not both could be shown",
    "strong": "it is attributed beyond chance, but other words can outweigh it",
    "": "it is attributed no more than chance would",
}
Ends = tuple[float, float]


@dataclass(frozen=True, eq=False)
class WordEffect(Storable):
    """One word: its attributions, the decisions and labels of its texts, the effects of hiding or inserting it.

    Numbers that are measured only for candidates (words attributed beyond chance) are NaN for other words.
    """

    word: str
    texts: int  # in which it stands
    pulls: str  # the class that it speaks for
    attributed: dict[str, float]  # predicted class -> mean share of the scores' sizes, signed: > 0 speaks for the class
    strongest: float  # share of its texts in which no other word has a greater score for the predicted class
    chance: float  # the same share where scores are dealt to the words of a text at random
    p: float  # of `strongest`, exact
    corrected: float  # p by Holm's correction over all words
    predicted: float  # share of its texts that the model decides for `pulls`
    predicted_elsewhere: float  # of the texts without it
    exclusive_p: float  # of the difference of these two shares, by Fisher's exact test and Holm's correction
    labelled: float = float("nan")  # share of its texts whose label is `pulls`; NaN without labels
    hidden: float = float("nan")  # by how much p of `pulls` falls when it is hidden, mean over its texts
    hidden_interval: Ends = (float("nan"), float("nan"))  # 95 %, by resampling texts
    flips: float = float("nan")  # share of its texts decided for `pulls` that are decided otherwise when it is hidden
    contexts: int = 0  # texts decided otherwise, into which it was put
    turned: float = float("nan")  # share of these that are then decided for `pulls`
    turned_interval: Ends = (float("nan"), float("nan"))  # 95 %, exact
    turned_by_others: float = float("nan")  # share of these that another word in its place turns
    turned_p: float = float("nan")  # of the difference of these two shares, exact, by Holm's correction over candidates
    contrary: int = 0  # how many of its texts have another class as label
    misled: float = float("nan")  # share of these that the model decides for `pulls` all the same
    misled_elsewhere: float = float("nan")  # of the texts with another label and without the word
    misled_p: float = float("nan")  # of the difference of these two shares, by Fisher's exact test, Holm's correction
    grade: str = ""  # one of `SHORTCUT_GRADES`
    examples: tuple[str, ...] = ()  # a few of its texts, cut

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grade not in SHORTCUT_GRADES:
            raise ValueError(f"a grade is one of {', '.join(map(repr, SHORTCUT_GRADES))}, not {self.grade!r}")


@dataclass(frozen=True, eq=False, repr=False)
class ShortcutAudit(Result):
    """Which words act as shortcuts: all words of a data set that stand in enough texts, the most suspicious first."""

    words: tuple[WordEffect, ...]
    model: str
    method: str  # what gave the attributions
    texts: int
    classes: dict[str, float]  # name -> share of the texts that the model decides for it
    labelled: bool  # whether the data has labels
    accuracy: float = float("nan")
    least: int = 3  # texts in which a word must stand
    alone: float = 0.5  # share of contexts that a word must turn, with its interval, to decide alone
    level: float = 0.05
    seed: int = 0
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"ShortcutAudit({self.model}: {len(self.words)} words in {self.texts} texts)"

    def __getitem__(self, word: str) -> WordEffect:
        """A word by its spelling."""
        for own in self.words:
            if own.word == word:
                return own
        raise KeyError(f"no word {word!r} is in this audit; {suggest(word, (own.word for own in self.words))}")

    def graded(self, grade: str) -> tuple[WordEffect, ...]:
        """The words of a grade, in their order."""
        if grade not in SHORTCUT_GRADES:
            raise ValueError(f"a grade is one of {', '.join(map(repr, SHORTCUT_GRADES))}, not {grade!r}")
        return tuple(own for own in self.words if own.grade == grade)

    @property
    def answer(self) -> str:
        """What was found, in one careful sentence."""
        for grade, one, several in (
            (
                "shortcut",
                "decides wherever it stands, also against the labels",
                "decide wherever they stand, also against the labels",
            ),
            (
                "suspect",
                "may be a shortcut, which only a person can tell",
                "may be shortcuts, which only a person can tell",
            ),
        ):
            found = self.graded(grade)
            if found:
                names = ", ".join(repr(own.word) for own in found[:5]) + (", ..." if len(found) > 5 else "")
                return f"{names} {one if len(found) == 1 else several}"
        strong = len(self.graded("strong"))
        return f"no word decides alone; {strong} of {len(self.words)} words are attributed beyond chance"

    def to_csv(self) -> str:
        """A row per word, as CSV."""
        return display.csv_text(self)
