"""A Report as a page: a table of contents, and the pages of its results below each other."""

from __future__ import annotations

import re

from whence.core import display
from whence.core.reports import Report
from whence.core.wording import counted
from whence.views.pages.layout import Part, rendered
from whence.views.text import printable

# Texts in a fragment are escaped, so what looks like a tag or an attribute is one.
HEADING = re.compile(r"(?<=<h|/h)[1-5](?=[ >])")
NAMING = re.compile(r' (id|for|aria-labelledby|aria-describedby|aria-controls|aria-owns)="([^"]*)"')
LINK = re.compile(r'(href="#|url\(#)')


@display.fragment.register(Report)
def fragment(found: Report) -> str:
    """The body of its page."""
    titles = [display.title(result) for result in found]
    given = {"titles": titles, "count": counted(len(found), "result")}
    parts = [rendered(Part("report.html", given))]
    for number, (name, result) in enumerate(zip(titles, found, strict=True), 1):
        parts.append(rendered(Part("report_heading.html", {"number": number, "title": name})))
        parts.append(_inside(display.fragment(result), f"result-{number}-"))
    return "\n".join(parts)


@display.title.register(Report)
def title(found: Report) -> str:
    """The title of its page."""
    return printable(found.title)


def _inside(own: str, prefix: str) -> str:
    """A fragment as a section of the report: headings one level lower, and names with a prefix to keep them unique."""
    deeper = HEADING.sub(lambda level: str(int(level[0]) + 1), own)
    named = NAMING.sub(lambda own: f' {own[1]}="{" ".join(prefix + name for name in own[2].split())}"', deeper)
    return LINK.sub(lambda own: own[0] + prefix, named)
