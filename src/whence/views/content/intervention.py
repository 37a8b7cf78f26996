"""What every medium says about an intervention: the ignored words, and predictions without and with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from whence.core.interventions import Intervention
from whence.core.results import Attribution
from whence.views.text import listed, number, printable

MOST = 6  # ignored words that are named
Facts = list[tuple[str, str]]


@dataclass(frozen=True)
class SideBySide:
    """The model without an intervention and under it: the heads of two columns, and named rows of both."""

    heads: tuple[str, str]
    rows: tuple[tuple[str, str, str], ...]


def facts(a: Attribution) -> Facts:
    """The ignored words, and the model's output without the intervention; empty without one."""
    done = a.intervention
    if done is None:
        return []
    found = []
    if done.ignored:
        found.append(("ignored", f"{_names(done)}: attention to {_them(done)} is closed in every pass"))
    if done.edit:
        found.append(("attention", f"edited by {done.edit} in every pass"))
    if a.scores.ndim == 1:
        found.append(("without that", f"f(x) {number(done.without)}{_turned(done)}"))
    return found


def _turned(done: Intervention) -> str:
    """The predictions without the intervention and under it."""
    known = done.likeliest()
    if known is None:
        return ""
    same = f", {known[0]} is predicted either way"
    return same if known[0] == known[1] else f", {known[0]} is predicted instead of {known[1]}"


def side_by_side(a: Attribution) -> SideBySide | None:
    """Predictions and f(x) without the intervention and under it; of generated text a row per token."""
    done = a.intervention
    if done is None:
        return None
    heads = ("as it is", f"ignoring {_names(done)}" if done.ignored else "with edited attention")
    rows = _generated(a, done) if a.scores.ndim == 2 else _single(done, float(a.output))
    return SideBySide(
        (heads[0], printable(heads[1])), tuple((printable(name), printable(x), printable(y)) for name, x, y in rows)
    )


def _single(done: Intervention, output: float) -> list[tuple[str, str, str]]:
    known, rows = done.likeliest(), []
    if known is not None:
        rows.append(("prediction", *known))
        rows += [(one.name, share(one.without), share(one.under)) for one in done.predictions[0]]
    return [*rows, ("f(x)", number(done.without), number(output))]


def _generated(a: Attribution, done: Intervention) -> list[tuple[str, str, str]]:
    targets = a.target if isinstance(a.target, tuple) else (a.target,) * len(a.scores)
    rows = []
    for row, target in enumerate(targets):
        known = done.likeliest(row)
        texts = [f"f(x) {number(value)}" for value in (done.without[row], a.output[row])]
        if known is not None:
            texts = [f"{text}, likeliest {name}" for text, name in zip(texts, known, strict=True)]
        rows.append((f"{row + 1}. {target.name or target}", texts[0], texts[1]))
    return rows


def share(probability: float) -> str:
    """A probability in percent."""
    return f"{probability:.1%}"


def _names(done: Intervention) -> str:
    counts = Counter(done.ignored)
    return listed([f"‘{printable(word)}’{f' ({n} times)' * (n > 1)}" for word, n in counts.items()], MOST)


def _them(done: Intervention) -> str:
    return "it" if len(done.ignored) == 1 else "them"
