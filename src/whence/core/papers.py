"""Papers as BibTeX: `papers.bib` beside this file has every paper that the registry names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


@cache
def entries() -> dict[str, str]:
    """The BibTeX entry of every paper, by the name that records give it, such as "arXiv:1706.03762"."""
    text = Path(__file__).with_suffix(".bib").read_text(encoding="utf-8")
    return {name: entry.strip() for name, entry in re.findall(r"^% (.+)\n(@(?:.+\n)+)", text, re.MULTILINE)}


def bibtex(paper: str) -> str:
    """The entry of a paper; one made of its number where the paper is not known here, and "" without a paper."""
    if not paper or paper in entries():
        return entries().get(paper, "")
    kind, _, number = paper.partition(":")
    where = {"arXiv": f"eprint = {{{number}}},\n  archivePrefix = {{arXiv}}", "doi": f"doi = {{{number}}}"}
    key = re.sub(r"\W+", "", paper).lower()
    return f"@misc{{{key},\n  {where.get(kind, f'note = {{{paper}}}')}\n}}"
