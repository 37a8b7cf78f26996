"""A RunSummary as a page: progress, time by method, failures, workers, features, the scoreboard, facts."""

from __future__ import annotations

import math
from typing import Any

from whence.core import display
from whence.core.run_summaries import FrequentFeature, RunSummary
from whence.views.colours import AGAINST, FOR, css
from whence.views.content.run_summary import (
    FEATURE_HEADS,
    METHOD_HEADS,
    SHARES,
    TIMES,
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
from whence.views.pages import scoreboard
from whence.views.pages.layout import Part, rendered
from whence.views.text import number, printable

REASONS = 20  # for failures that are shown
WORKERS = 100  # that are shown
FEATURES = 12  # of every method that are shown


@display.fragment.register(RunSummary)
def fragment(r: RunSummary) -> str:
    """The body of its page."""
    done, failed = progress(r)
    reasons, reasons_left_out = failure_rows(r, REASONS)
    workers, workers_left_out = worker_rows(r, WORKERS)
    given = {
        "reading": reading(r),
        "state": r.state,
        "percent": f"{math.floor(100 * done)}\u00a0%",
        "done": f"{done - failed:.2%}",
        "failed": f"{failed:.2%}" if failed else "",
        "times": TIMES,
        "method_heads": METHOD_HEADS,
        "methods": _times(r) if r.done else [],
        "reasons": [(reason, f"{count:,}") for reason, count in reasons],
        "reasons_left_out": reasons_left_out,
        "worker_heads": WORKER_HEADS,
        "workers": workers,
        "workers_left_out": workers_left_out,
        "shares": SHARES,
        "feature_heads": FEATURE_HEADS,
        "features": [_features(method, own) for method, own in features_by_method(r, FEATURES).items()],
        "facts": facts(r),
    }
    board = [] if r.board is None else [scoreboard.part(r.board, "Metrics")]
    return rendered(Part("run_summary.html", given), *board, Part("run_facts.html", given))


@display.title.register(RunSummary)
def title(r: RunSummary) -> str:
    """The title of its page."""
    return printable(f"The run {r.name}" + (f" of {r.model}" if r.model else ""))


def _times(r: RunSummary) -> list[dict[str, Any]]:
    """The row of every method, with the bar of its time."""
    rows = method_times(r)
    longest = max((row.seconds for row in rows), default=0.0) or 1.0
    return [
        {"name": scoreboard.breakable(row.spec), "cells": row.cells[1:], "width": f"{row.seconds / longest:.2%}"}
        for row in rows
    ]


def _features(method: str, own: list[FrequentFeature]) -> dict[str, Any]:
    """The features of one method, with the bars of their shares."""
    widest = own[0].share or 1.0
    return {
        "method": scoreboard.breakable(method),
        "name": method,
        "rows": [
            {
                "feature": printable(one.feature),
                "cells": (percent(one.share), number(one.score), f"{one.count:,}"),
                "width": f"{one.share / widest:.2%}",
                "colour": css(AGAINST if one.score < 0 else FOR),
            }
            for one in own
        ],
    }
