"""An Audit as a figure: a panel per finding with its numbers and their intervals, the grade above."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.audits import Audit, Finding
from whence.views.colours import AGAINST, FOR, METHODS, in_figure
from whence.views.content.audit import QUESTION, as_rows, facts, headline, spread
from whence.views.content.scoreboard import Style
from whence.views.figures.layout import draw_means, new_figure, wrapped

COLOURS: dict[str, Any] = {
    "explains": in_figure(FOR),
    "partly": "#967000",
    "does not": in_figure(AGAINST),
    "cannot tell": "0.5",
}
LINE = 0.26  # inches of a bar


@display.figure.register(Audit)
def figure(a: Audit) -> Any:
    """A row of two panels per finding: its numbers, and how examples spread."""
    sizes = [max(1.6, 0.9 + LINE * len(headline(f) if f.quantities else ())) for f in a.findings]
    drawn = new_figure(10.0, 1.0 + sum(sizes))
    said = [f"{label}: {text}" for label, text in facts(a) if label in ("model", "examples", "verdict")]
    drawn.suptitle("\n".join([QUESTION, *said]), fontsize="small", parse_math=False)
    rows = drawn.subplots(len(sizes), 2, squeeze=False, height_ratios=sizes, width_ratios=(1.4, 1.0))
    for (left, right), finding in zip(rows, a.findings, strict=True):
        _draw(left, right, finding)
    return drawn


def _draw(left: Any, right: Any, finding: Finding) -> None:
    """The panels of one finding."""
    title = f"{wrapped(finding.experiment, 60)}: {finding.grade}"
    left.set_title(title, fontsize="small", loc="left", color=COLOURS[finding.grade], parse_math=False)
    if not finding.quantities:
        left.set_axis_off()
        right.set_axis_off()
        left.text(0, 0.5, wrapped(finding.answer, 60), fontsize="small", va="center", parse_math=False)
        return
    rows = as_rows(headline(finding))
    draw_means(left, rows, {row.method: Style(METHODS[0]) for row in rows})
    found = spread(finding)
    if found is None:
        right.set_axis_off()
        return
    if found.dots:
        right.plot(found.x, found.y, "o-" if found.line else "o", markersize=3.5, alpha=0.6, color=METHODS[0])
    else:
        right.bar(found.x, found.y, found.width, color=METHODS[0], alpha=0.7)
    right.set_xlabel(found.across, fontsize="small", parse_math=False)
    right.set_ylabel(found.up, fontsize="small", parse_math=False)
    right.tick_params(labelsize="small")
    right.spines[["top", "right"]].set_visible(False)
