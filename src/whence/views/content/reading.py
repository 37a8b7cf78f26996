"""The reading of an Attribution and of a Comparison: one plain sentence each."""

from __future__ import annotations

import numpy as np

from whence.core.results import Attribution, Comparison
from whence.core.wording import counted
from whence.views.content.attribution import of_row, row_names, row_targets, shown
from whence.views.content.picture import on_picture
from whence.views.text import number, printable, right_to_left

NAMED = 3  # features that a sentence names at most
LONGEST = 40  # letters of a name in a sentence
AGREE, APART = 0.5, 0.3  # Kendall's tau from which two rankings agree, and below which a method stands apart
# The largest residual, as a share of the sum of |scores|, with which scores can be drawn as steps from base to f(x).
MOST_LEFT = 0.5


@np.errstate(over="ignore")
def reading(a: Attribution, row: int | None = None) -> str:
    """What was explained, what speaks for and against it most, and what is left unexplained, printable."""
    if a.scores.ndim == 2 and row is None:
        return _reading_of_rows(a)
    target = row_targets(a)[row or 0]
    scores, output, residual = (of_row(value, row) for value in (a.scores, a.output, a.residual))
    seen = np.asarray(of_row(a.visible, row)) & np.isfinite(scores)
    named = f"{printable(a.method)} on the {printable(str(target))} (f(x) = {number(output)})"
    if not scores[seen].any():
        zero = "all scores are 0" if np.isfinite(scores).all() else "no score is finite but those that are 0"
        return f"{named}: {zero}, so nothing in the input is told apart."
    if not a.signed:
        total, top = float(np.abs(scores[seen]).sum()), _strongest(a, np.where(seen, np.abs(scores), 0))
        shares = [f"{name} ({abs(scores[i]) / total:.0%})" for i, name in top]
        return f"{named} gives most weight to {_listed(shares)}; its scores tell how much, neither for nor against."
    for_it = _strongest(a, np.where(seen, scores, 0))
    against = _strongest(a, np.where(seen, -scores, 0))
    parts = [
        f"{_listed([f'{name} ({scores[i]:+.3g})' for i, name in top])} {verb}"
        for top, verb in ((for_it, "speaks for it most"), (against, "against it"))
        if top
    ]
    said = f"{named}: {', '.join(parts)}".replace(") speaks", ") speak" if len(for_it) > 1 else ") speaks")
    return f"{said}{_left(residual, scores)}."


def _reading_of_rows(a: Attribution) -> str:
    """A sentence on the rows of generated text: their number, and the strongest link."""
    sizes = np.where(a.visible & np.isfinite(a.scores), np.abs(a.scores), 0)
    count = counted(len(a.scores), "generated token")
    named = f"{printable(a.method)} on {count}, each explained by what the model saw before it"
    if not sizes.any():
        return f"{named}: all scores are 0, so nothing in the input is told apart."
    row, i = np.unravel_index(int(sizes.argmax()), sizes.shape)
    score = f"{a.scores[row, i]:+.3g}" if a.signed else f"{sizes[row, i]:.3g}"
    return f"{named}: the strongest link is from {_name(a, int(i))} to ‘{row_names(a)[row]}’ ({score})."


def _strongest(a: Attribution, scores: np.ndarray) -> list[tuple[int, str]]:
    """The features with the largest positive scores, and their names; those that hardly count are left out."""
    order = np.argsort(-scores, kind="stable")[:NAMED]
    return [(int(i), _name(a, int(i))) for i in order if scores[i] > 0.1 * scores[order[0]] and scores[i] > 0]


def _name(a: Attribution, i: int) -> str:
    name = printable(a.features[i])
    short = name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
    if i in on_picture(a.input):
        return short
    quoted = f"\u2068‘{short}’\u2069" if right_to_left(short) else f"‘{short}’"  # keeps numbers in place
    return f"{quoted}, an attention sink" if a.sinks[i] else quoted


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _left(residual: float | None, scores: np.ndarray) -> str:
    """What the scores leave unexplained, as the end of a sentence."""
    total = float(np.abs(scores).sum())
    if residual is None or not np.isfinite(residual) or not np.isfinite(total):
        return ""
    if abs(residual) <= 0.005 * total:
        return "; nothing is left unexplained"
    share = f" ({abs(residual) / total:.0%} of the sum of |scores|)" if abs(residual) < 10 * total else ""
    return f"; {number(residual)} is left unexplained{share}"


@np.errstate(over="ignore")
def leads_to_output(a: Attribution) -> bool:
    """Whether the scores lead from base to f(x), so that they can be drawn as steps from one to the other."""
    if a.scores.ndim == 2 or a.residual is None or a.base is None or not a.signed:
        return False
    total = float(np.abs(a.scores).sum())
    return bool(np.isfinite([total, a.residual, a.output, a.base]).all()) and abs(a.residual) <= MOST_LEFT * total


def reading_of_comparison(c: Comparison, taus: np.ndarray) -> str:
    """How many methods are compared, how to look at them, and which agree."""
    first = shown(c[0])
    what = "order and sign" if any(a.signed for a in c) else "order"
    rows = first.scores.ndim == 2
    target = counted(len(first.scores), "generated token") if rows else f"the {printable(str(row_targets(first)[0]))}"
    methods = f"{len(c)} methods" if len(c) > 1 else "One method"
    said = f"{methods} on {target}, each on its own scale: compare {what}, not size."
    return f"{said} {agreement_in_words(c, taus)}".strip()


def agreement_in_words(c: Comparison, taus: np.ndarray) -> str:
    """Which methods rank the features alike and which stands apart, by Kendall's tau; empty for one method."""
    names = [printable(a.method) for a in c]
    pairs = [(taus[i, j], names[i], names[j]) for i in range(len(c)) for j in range(i) if np.isfinite(taus[i, j])]
    if not pairs:
        return ""
    (low, *_), (high, second, first) = min(pairs), max(pairs)
    if len(pairs) == 1:
        kinds = (
            (AGREE, "agree"),
            (APART, "agree in part"),
            (-APART, "hardly agree"),
            (-2.0, "rank in opposite order"),
        )
        kind = next(kind for limit, kind in kinds if high >= limit)
        return f"{first} and {second} {kind} ({high:.2f})."
    if low >= AGREE:
        return f"All methods agree ({low:.2f} to {high:.2f})."
    if high < APART:
        return f"No two methods agree: {first} and {second} do most ({high:.2f})."
    said = f"{first} and {second} agree {'' if high >= AGREE else 'in part, more than others '}({high:.2f})"
    closest = [max((tau for tau, *pair in pairs if name in pair), default=np.nan) for name in names]
    apart = [name for name, tau in zip(names, closest, strict=True) if tau < APART]
    if not apart:
        return f"{said}."
    return f"{said}; {_listed(apart[:4])} {'stands' if len(apart) == 1 else 'stand'} apart."
