"""Dates in many written forms, and the characters that decide each character of their ISO 8601 form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, timedelta
from string import Formatter
from typing import TypeVar

import numpy as np

from whence.zoo.example import Example

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
FIRST, LAST = date(1000, 1, 1), date(2999, 12, 31)

# Only forms that can be read in one way: the month is a name, or the year comes first, or dots say that the day does.
# Days before months with slashes or dashes, and years of two digits, are left out.
FORMS = (
    "{d} {month} {year}", "{d} {mon} {year}", "{dd} {mon} {year}", "{d}-{mon}-{year}", "{dd}-{mon}-{year}",
    "{d}{th} {month} {year}", "{d}{th} of {month} {year}", "{d}{th} {mon} {year}", "the {d}{th} of {month}, {year}",
    "{month} {d}, {year}", "{month} {d} {year}", "{month} {d}{th}, {year}", "{mon} {d}, {year}", "{mon} {d}{th} {year}",
    "{weekday}, {d} {month} {year}", "{weekday}, {month} {d}, {year}", "{weekday}, {month} {d}{th}, {year}",
    "{wday} {d} {mon} {year}", "{wday}, {dd} {mon} {year}", "{wday} {mon} {d} {year}",
    "{year} {month} {d}", "{year}, {month} {d}", "{year} {mon} {dd}", "{year}-{mon}-{dd}",
    "{year}/{mm}/{dd}", "{year}/{m}/{d}", "{year}-{mm}-{dd}", "{year}-{m}-{d}", "{year}.{mm}.{dd}", "{year}{mm}{dd}",
    "{dd}.{mm}.{year}", "{d}.{m}.{year}", "{d}. {m}. {year}",
)  # fmt: skip
BEFORE = ("on ", "born ", "due ", "since ", "until ", "Date: ", "published ", "Berlin, ")
AFTER = (".", " {time}", ", {time}", " at {time}")
CASES: tuple[Callable[[str], str], ...] = (str, str, str, str.lower, str.upper)

Span = tuple[int, int]  # characters of the source
T = TypeVar("T")


def examples(n: int, seed: int) -> list[Example]:
    """`n` sources with their ISO form as output; truth (generated, feature): the source characters that decide.

    A digit of the year is decided by the digit it copies, those of the month by its name or number, those of the
    day by its number. The dashes and the end have no truth.
    """
    rng = np.random.default_rng(seed)
    return [_example(rng) for _ in range(n)]


def _example(rng: np.random.Generator) -> Example:
    day = FIRST + timedelta(days=int(rng.integers((LAST - FIRST).days + 1)))
    before = _one(rng, BEFORE) if rng.random() < 0.3 else ""
    after = _one(rng, AFTER) if rng.random() < 0.3 else ""
    source, spans = _written(before + _one(rng, FORMS) + after, _fields(rng, day))
    source, output = _one(rng, CASES)(source), day.isoformat()
    return Example({"source": source, "output": output}, output, _truth(len(source), len(output), spans))


def _fields(rng: np.random.Generator, day: date) -> dict[str, str]:
    """What may stand in a form, by name."""
    month, weekday = MONTHS[day.month - 1], WEEKDAYS[day.weekday()]
    short = "Sept" if day.month == 9 and rng.random() < 0.5 else month[:3]
    ending = {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10 if day.day not in (11, 12, 13) else 0, "th")
    return {
        "year": f"{day.year}", "month": month, "mon": short, "m": f"{day.month}", "mm": f"{day.month:02}",
        "d": f"{day.day}", "dd": f"{day.day:02}", "th": ending, "weekday": weekday, "wday": weekday[:3],
        "time": f"{rng.integers(24):02}:{rng.integers(60):02}",
    }  # fmt: skip


def _written(form: str, fields: dict[str, str]) -> tuple[str, dict[str, Span]]:
    """The form filled in, and where the first letter of each field's name says what it is: y, m or d."""
    text, spans = "", {}
    for literal, field, _, _ in Formatter().parse(form):
        text += literal
        if field:
            spans[field[0]] = (len(text), len(text) + len(fields[field]))
            text += fields[field]
    return text, spans


def _truth(source: int, output: int, spans: dict[str, Span]) -> np.ndarray:
    """(generated, feature): features are the source and its end, the start token, the output and its end."""
    truth = np.zeros((output + 1, source + 1 + 1 + output + 1), dtype=bool)
    year, month, day = (slice(*spans[part]) for part in "ymd")
    truth[range(4), range(year.start, year.stop)] = True
    truth[5:7, month] = True
    truth[8:10, day] = True
    return truth


def _one(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]
