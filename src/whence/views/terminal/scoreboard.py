"""A Scoreboard in the terminal: methods by metrics, as many metrics side by side as fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from whence.core import display
from whence.core.scoreboards import Scoreboard
from whence.views.content.scoreboard import cells, facts_line, heading, note, rows
from whence.views.text import printable

ABREAST = 3  # metrics side by side at most
HEAD = 20  # letters of a metric's name before it breaks


@display.terminal.register(Scoreboard)
def terminal(board: Scoreboard) -> Any:
    """Means with their intervals; the best of a column is bold, and * marks methods that are not told apart from it."""
    from rich.console import Group
    from rich.text import Text

    said = " ".join([f"{facts_line(board)}.", note(board), *board.notes])
    return Group(Tables(board), Text(printable(said).rstrip()))


@dataclass(frozen=True)
class Tables:
    """The metrics in tables below each other, each as wide as the terminal allows."""

    board: Scoreboard

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        left = [_column(self.board, metric) for metric in range(len(self.board.metrics))]
        free = options.update_width(10**4)
        while left:
            tables = [_table(self.board, left[:count]) for count in range(1, min(ABREAST, len(left)) + 1)]
            fitting = [t for t in tables if console.measure(t, options=free).maximum <= options.max_width] or tables[:1]
            yield from (fitting[-1], "")
            left = left[len(fitting) :]


def _column(board: Scoreboard, metric: int) -> tuple[str, int, list[Any]]:
    """Head, width and cells of a metric."""
    from rich.text import Text

    written = [
        Text.assemble((mean, "bold" if row.best else ""), row.star or " ", " ", (interval, "dim"))
        for row, mean, interval in cells(rows(board, board.metrics[metric]))
    ]
    head = heading(board, metric)
    return "\n".join(head), max(*map(len, written), min(HEAD, max(map(len, head)))), written


def _table(board: Scoreboard, columns: list[tuple[str, int, list[Any]]]) -> Any:
    """Some of the metrics; if one alone is too wide, long names are broken first, then lines before intervals."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    shown.add_column("method", overflow="fold")
    for head, width, _ in columns:
        shown.add_column(Text(head), max_width=width, overflow="fold")
    shown.add_column("s/example", justify="right", no_wrap=True)
    lines = zip(board.methods, board.seconds.mean(-1), *(written for _, _, written in columns), strict=True)
    for method, seconds, *own in lines:
        shown.add_row(Text(printable(method)), *own, f"{seconds:.3g}")
    return shown
