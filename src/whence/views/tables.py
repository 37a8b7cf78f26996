"""Results as tables of plain values, for CSV, Parquet and data frames. Attention maps, with four axes, have none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from whence.core import display
from whence.core.audits import Audit
from whence.core.display import Table
from whence.core.guidances import Guidance
from whence.core.maximisations import Maximisation
from whence.core.name_audits import NameAudit
from whence.core.picture_grids import PictureGrid
from whence.core.relevance_balance import Conservation
from whence.core.results import Attribution, Comparison
from whence.core.run_summaries import RunSummary, Verification
from whence.core.scoreboards import Arbitration, Score, Scoreboard
from whence.core.sensitivities import Sensitivity
from whence.core.shortcut_audits import ShortcutAudit
from whence.views.content.conservation import methods
from whence.views.content.run_summary import method_times
from whence.views.content.sensitivity import rows as sensitivity_rows

FEATURE = ("feature", "stream", "special", "score")
# Columns of generated text: the row's number, its target, whether the row could see the feature.
GENERATED = ("row", "target", "visible")


@display.table.register(Attribution)
def attribution(a: Attribution) -> Table:
    """A row per feature; of generated text a row per generated token and feature."""
    return Table((*(GENERATED if a.scores.ndim == 2 else ()), *FEATURE), list(_features(a)))


@display.table.register(Comparison)
def comparison(c: Comparison) -> Table:
    """The rows of every method's attribution below each other."""
    columns = ("method", *attribution(c[0]).columns)
    return Table(columns, [(a.method, *row) for a in c for row in _features(a)])


@display.table.register(PictureGrid)
def picture_grid(grid: PictureGrid) -> Table:
    """The rows of every picture's comparison below each other."""
    named = zip(grid.names, grid, strict=True)
    columns = ("picture", *comparison(grid[0]).columns)
    return Table(columns, [(name, *row) for name, c in named for row in comparison(c).rows])


def _features(a: Attribution) -> Iterator[tuple[Any, ...]]:
    """One row of the table of an attribution after the other."""
    special = a.special.tolist()
    if a.scores.ndim == 1:
        yield from zip(a.features, a.streams, special, a.scores.astype(float).tolist(), strict=True)
        return
    targets = a.target if isinstance(a.target, tuple) else (a.target,) * len(a.scores)
    for row, (scores, visible, target) in enumerate(zip(a.scores, a.visible, targets, strict=True)):
        own = zip(visible.tolist(), a.features, a.streams, special, scores.astype(float).tolist(), strict=True)
        yield from ((row, str(target), *values) for values in own)


@display.table.register(Conservation)
def conservation(c: Conservation) -> Table:
    """A row per call of a module, by the method and by gradient_x_input where that is kept beside it."""
    names = ("module", "kind", "call", "depth", "block")
    numbers = ("relevance_out", "relevance_in", "bias", "leak", "own_leak", "absolute")
    calls = [(method, row) for method, rows in methods(c) for row in rows]
    rows = [
        (
            method,
            *(row.name, row.kind, row.call, row.depth, row.block),
            *(float(getattr(row, number)) for number in numbers),
            ", ".join(row.uncovered),
        )
        for method, row in calls
    ]
    return Table(("method", *names, *numbers, "uncovered"), rows)


@display.table.register(Sensitivity)
def sensitivity(s: Sensitivity) -> Table:
    """A row per layer and concept."""
    columns = ("layer", "concept", "score", "low", "high", "derivative", "effect", "accuracy", "p", "verdict")
    return Table(
        columns,
        [
            (r.layer, r.concept, r.score, *r.interval, r.derivative, r.effect, r.accuracy, r.p, r.verdict)
            for r in sensitivity_rows(s)
        ],
    )


@display.table.register(Maximisation)
def maximisation(m: Maximisation) -> Table:
    """A row per unit; made texts are in it, pictures are not."""
    columns = ("unit", "start", "free", "real", "best example", "made")
    best = [None] * len(m.targets) if m.excited is None else m.excited[:, 0].tolist()
    made = [one if isinstance(one, str) else None for one in m.made]
    numbers = zip(m.start.tolist(), m.free.tolist(), m.real.tolist(), strict=True)
    return Table(
        columns,
        [(str(t), *own, b, one) for t, own, b, one in zip(m.targets, numbers, best, made, strict=True)],
    )


@display.table.register(Score)
def score(s: Score) -> Table:
    """A row per example; only the mean, without the number of an example, where the values are not kept."""
    columns = ("metric", "better", "hidden", "example", "value")
    numbered = [(None, s.value)] if s.values is None else list(enumerate(s.values.astype(float).tolist()))
    return Table(columns, [(s.metric, s.better, s.hidden, example, value) for example, value in numbered])


@display.table.register(Scoreboard)
def scoreboard(board: Scoreboard) -> Table:
    """A row per method and metric: mean, interval, p against the best, examples, seconds per example."""
    columns = ("method", "metric", "better", "hidden", "mean", "low", "high", "p", "examples", "seconds")
    rows = []
    for place, method in enumerate(board.methods):
        for number, metric in enumerate(board.metrics):
            s = board.score(method, metric)
            low, high = s.interval or (float("nan"), float("nan"))
            count = int((~np.isnan(board.values[place, number])).sum())
            numbers = (s.value, low, high, float(board.p_value(method, metric)), count)
            rows.append((method, metric, s.better, s.hidden, *numbers, float(board.seconds[place].mean())))
    return Table(columns, rows, {"seconds": 4})


@display.table.register(Arbitration)
def arbitration(found: Arbitration) -> Table:
    """The table of the board: the choice, and single candidates, by every metric."""
    return scoreboard(found.board)


@display.table.register(NameAudit)
def name_audit(found: NameAudit) -> Table:
    """A row per sentence and name."""
    columns = ("sentence", "original", "name", *found.kinds, "pieces", "output", "change", "relevance", "predicted")
    groups = list(zip(*found.kinds.values(), strict=True))
    rows: list[tuple[Any, ...]] = []
    for i, sentence in enumerate(found.sentences):
        for j, name in enumerate(found.names):
            numbers = [float(array[i, j]) for array in (found.outputs, found.changes, found.relevance)]
            start = (sentence, found.originals[i], name, *groups[j], float(found.pieces[j]))
            rows.append((*start, *numbers, int(found.predicted[i, j])))
    return Table(columns, rows)


@display.table.register(ShortcutAudit)
def shortcut_audit(found: ShortcutAudit) -> Table:
    """A row per word, the most suspicious first."""
    attributed = {f"attributed: {name}": name for name in found.classes}
    plain = (
        *("word", "grade", "texts", "pulls", "strongest", "chance", "p", "corrected", "predicted"),
        *("predicted_elsewhere", "exclusive_p", "labelled", "hidden", "flips", "contexts", "turned"),
        *("turned_by_others", "turned_p", "contrary", "misled", "misled_elsewhere", "misled_p"),
    )
    columns = (*plain, *attributed, "hidden low", "hidden high", "turned low", "turned high")
    rows = [
        (
            *(getattr(own, name) for name in plain),
            *(own.attributed.get(name, float("nan")) for name in attributed.values()),
            *(*own.hidden_interval, *own.turned_interval),
        )
        for own in found.words
    ]
    return Table(columns, rows)


@display.table.register(Audit)
def audit(a: Audit) -> Table:
    """A row per number of an experiment and example."""
    columns = ("experiment", "grade", "number", "attention", "example", "predicted", "label", "length", "value")
    facts = list(zip(range(len(a.examples)), a.predicted, a.labels, a.lengths.tolist(), strict=True))
    rows = [
        (finding.experiment, finding.grade, quantity.name, quantity.where, *own, value)
        for finding in a.findings
        for quantity in finding.quantities
        for own, value in zip(facts, quantity.values.tolist(), strict=True)
    ]
    return Table(columns, rows)


@display.table.register(RunSummary)
def run_summary(r: RunSummary) -> Table:
    """A row per method: its time and the means of its metrics, NaN where it has none.

    The examples that are done and those that failed, by at least one method, are those of the whole run.
    """
    metrics = () if r.board is None else r.board.metrics
    rows: list[tuple[Any, ...]] = []
    for time in method_times(r):
        means = [_mean(r.board, time.spec, metric) for metric in metrics]
        rows.append((time.spec, r.done, r.failed, float(time.seconds), time.each, *means))
    return Table(("method", "examples", "failed", "seconds", "seconds per example", *metrics), rows)


def _mean(board: Scoreboard | None, method: str, metric: str) -> float:
    """The mean of a metric; NaN for names that are not on the board, such as experiments of an audit."""
    return board.score(method, metric).value if board is not None and method in board.methods else float("nan")


@display.table.register(Verification)
def verification(v: Verification) -> Table:
    """A row per result that was compared."""
    numbered = enumerate(v.differences.astype(float).tolist())
    return Table(("row", "difference", "within"), [(n, value, value <= v.tolerance) for n, value in numbered])


@display.table.register(Guidance)
def guidance(g: Guidance) -> Table:
    """A row per measure, arm and seed; the last columns are the mean of the arm and the interval of the mean."""
    columns = ("measure", "better", "arm", "seed", "value", "mean", "low", "high")
    rows: list[tuple[Any, ...]] = []
    for measure in g.measures:
        for place, arm in enumerate(g.arms):
            low, high = g.interval(measure.name, arm) or (float("nan"), float("nan"))
            numbers = (g.mean(measure.name, arm), low, high)
            seeds = zip(g.seeds, measure.values[place].tolist(), strict=True)
            rows += [(measure.name, measure.better, arm, seed, value, *numbers) for seed, value in seeds]
    return Table(columns, rows)
