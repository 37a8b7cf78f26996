"""A RunSummary in the terminal: progress, facts, time by method, failures, workers, features, the scoreboard."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from whence.core import display
from whence.core.run_summaries import RunSummary
from whence.views.colours import terminal_colour, terminal_style
from whence.views.content.run_summary import (
    FEATURE_HEADS,
    METHOD_HEADS,
    SHARES,
    WORKER_HEADS,
    facts,
    failure_rows,
    features_by_method,
    method_times,
    percent,
    progress,
    reading,
    worker_rows,
)
from whence.views.terminal import scoreboard
from whence.views.terminal.layout import facts_table
from whence.views.text import number, printable

BAR = 30  # letters of the bar
REASONS = 6  # for failures that are shown
FEATURES = 6  # of every method that are shown
WORKERS = 16  # that are shown


@display.terminal.register(RunSummary)
def terminal(r: RunSummary) -> Any:
    """What rich prints: failures are red, and so are features whose scores speak against the target."""
    from rich.console import Group
    from rich.text import Text

    shown: list[Any] = [progress_bar(*progress(r)), Text(reading(r)), Text(), facts_table(facts(r))]
    if r.done:
        shown += _headed("time by method", plain_table(METHOD_HEADS, (row.cells for row in method_times(r))))
    reasons, left_out = failure_rows(r, REASONS)
    if reasons:
        rows = [(f"{count:,}", reason) for reason, count in reasons]
        shown += _headed("failures", plain_table(("examples", "reason"), rows, left=("reason",)))
        shown += [Text(left_out, style="dim")] if left_out else []
    workers, left_out = worker_rows(r, WORKERS)
    if workers:
        shown += _headed("workers", plain_table(WORKER_HEADS, workers, wrapped=("busy",)))
        shown += [Text(left_out, style="dim")] if left_out else []
    if r.features:
        shown += [Text(), Text("frequent features", style="bold"), Text(SHARES, style="dim"), *_features(r)]
    if r.board is not None:
        shown += _headed("metrics", scoreboard.terminal(r.board))
    return Group(*shown)


def progress_bar(done: float, failed: float) -> Any:
    """Shares of a whole as a bar: the done share (its failed part in red and another character), and the rest."""
    from rich.text import Text

    bad = min(BAR, math.ceil(BAR * failed)) if failed else 0
    good = max(0, math.floor(BAR * done) - bad)
    bar = Text("█" * good, style=terminal_colour(1)) + Text("▒" * bad, style=terminal_colour(-1))
    return bar + Text("·" * (BAR - good - bad), style="dim") + Text(f" {math.floor(100 * done)} %", style="bold")


def plain_table(
    heads: Sequence[str], rows: Iterable[Sequence[Any]], left: Sequence[str] = (), wrapped: Sequence[str] = ()
) -> Any:
    """A table of texts; the first column and those of `left` start at the left, numbers end at the right.

    Where the terminal is too narrow, columns at the left and those of `wrapped` are folded, the widest first.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for place, head in enumerate(heads):
        beside = head in left or (place == 0 and not left)
        table.add_column(
            head, justify="left" if beside else "right", overflow="fold", no_wrap=not beside and head not in wrapped
        )
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def _headed(title: str, part: Any) -> list[Any]:
    from rich.text import Text

    return [Text(), Text(title, style="bold"), part]


def _features(r: RunSummary) -> Iterator[Any]:
    """The features of one method after the other, the stronger the colour the larger the share."""
    from rich.text import Text

    for method, own in features_by_method(r, FEATURES).items():
        rows: list[Sequence[Any]] = []
        for one in own:
            style = terminal_style(math.copysign(one.share, one.score), own[0].share)
            name = Text(printable(one.feature), style=style)
            rows.append((name, percent(one.share), number(one.score), f"{one.count:,}"))
        yield from (Text(), Text(method, style="italic"), plain_table(FEATURE_HEADS, rows))
