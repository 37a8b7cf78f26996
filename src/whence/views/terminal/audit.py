"""An Audit in the terminal: its facts, and every finding with its grade and its answer."""

from __future__ import annotations

from typing import Any

from whence.core import display
from whence.core.audits import Audit, Finding
from whence.views.content.audit import QUESTION, facts, facts_of
from whence.views.terminal.layout import facts_table
from whence.views.text import printable

STYLES = {
    "explains": "bold rgb(38,110,214)",
    "partly": "bold rgb(150,110,0)",
    "does not": "bold rgb(208,48,48)",
    "cannot tell": "dim",
}


@display.terminal.register(Audit)
def terminal(a: Audit) -> Any:
    """What rich prints: blue where attention explains, red where it does not."""
    from rich.console import Group
    from rich.text import Text

    return Group(
        Text(QUESTION, style="bold"), facts_table(facts(a)), *(part for f in a.findings for part in _finding(f))
    )


def _finding(finding: Finding) -> list[Any]:
    from rich.text import Text

    title = Text(f"\n{printable(finding.experiment)}  ", style="bold")
    title.append(finding.grade, style=STYLES[finding.grade])
    told = [(label, text) for label, text in facts_of(finding) if label in ("attention", "grades", "note")]
    return [title, Text(finding.question, style="italic"), Text(printable(finding.answer)), facts_table(told)]
