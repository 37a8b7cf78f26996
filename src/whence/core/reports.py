"""Several results of any type as one: a report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike

from whence.core.results import Result, load_result

Reported = Result | str | PathLike[str]


@dataclass(frozen=True, eq=False, repr=False)
class Report(Result):
    """Results one after the other, with a table of contents before them."""

    results: tuple[Result, ...]
    title: str = "Report"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.results:
            raise ValueError("a report needs at least one result, got none")

    def __repr__(self) -> str:
        return f"Report({self.title}: {', '.join(type(result).__name__ for result in self.results)})"

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __getitem__(self, number: int) -> Result:
        return self.results[number]


def report(results: Reported | Iterable[Reported], title: str = "Report") -> Report:
    """Results of any type, or the files that they were saved to, as one report, in the order given: a Report.

    `whence.report([board, "audit.json"]).write("report.html")` is one page with all of them. A report among
    the results is replaced by the results in it.
    """
    if not isinstance(title, str) or not title.strip():
        raise ValueError(f"the title of a report is a text, not {title!r}")
    several = [results] if isinstance(results, (Result, str, PathLike)) else results
    found: list[Result] = []
    for one in several:
        result = load_result(one) if isinstance(one, (str, PathLike)) else one
        if not isinstance(result, Result):
            raise TypeError(f"a report holds results and files of saved results, not a {type(result).__name__}")
        found += result.results if isinstance(result, Report) else [result]
    return Report(tuple(found), title)
