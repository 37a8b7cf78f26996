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

# Only unambiguous forms: the month is a name, or the year comes first, or dots show that the day comes first.
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
    day by its number. The rows of the dashes and of the end token mark nothing.
    """
    rng = np.random.default_rng(seed)
    return [_example(rng) for _ in range(n)]


def _example(rng: np.random.Generator) -> Example:
    """A date in a random form, sometimes with words before or after it, sometimes in lower or upper case."""
    day = FIRST + timedelta(days=int(rng.integers((LAST - FIRST).days + 1)))
    before = _pick(rng, BEFORE) if rng.random() < 0.3 else ""
    after = _pick(rng, AFTER) if rng.random() < 0.3 else ""
    source, spans = _filled_in(before + _pick(rng, FORMS) + after, _fields(rng, day))
    source, output = _pick(rng, CASES)(source), day.isoformat()
    return Example({"source": source, "output": output}, output, _truth(len(source), len(output), spans))


def _fields(rng: np.random.Generator, day: date) -> dict[str, str]:
    """What stands in the place of each field of a form, by the field's name."""
    month, weekday = MONTHS[day.month - 1], WEEKDAYS[day.weekday()]
    short = "Sept" if day.month == 9 and rng.random() < 0.5 else month[:3]
    ending = {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10 if day.day not in (11, 12, 13) else 0, "th")
    return {
        "year": f"{day.year}", "month": month, "mon": short, "m": f"{day.month}", "mm": f"{day.month:02}",
        "d": f"{day.day}", "dd": f"{day.day:02}", "th": ending, "weekday": weekday, "wday": weekday[:3],
        "time": f"{rng.integers(24):02}:{rng.integers(60):02}",
    }  # fmt: skip


def _filled_in(form: str, fields: dict[str, str]) -> tuple[str, dict[str, Span]]:
    """The form with its fields filled in, and the span of each field, by the first letter of its name.

    The spans of year, month and day are therefore keyed y, m and d, however the form spells them.
    """
    text, spans = "", {}
    for literal, field, _, _ in Formatter().parse(form):
        text += literal
        if field:
            spans[field[0]] = (len(text), len(text) + len(fields[field]))
            text += fields[field]
    return text, spans


def _truth(source_length: int, output_length: int, spans: dict[str, Span]) -> np.ndarray:
    """The source characters that decide each character of the output, as in 2026-11-17: (generated, feature).

    Features are the source and its end token, the start token, the output and its end token.
    """
    truth = np.zeros((output_length + 1, source_length + 1 + 1 + output_length + 1), dtype=bool)
    year, month, day = (slice(*spans[part]) for part in "ymd")
    truth[range(4), range(year.start, year.stop)] = True
    truth[5:7, month] = True
    truth[8:10, day] = True
    return truth


def _pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    """One of the choices, each as likely as any other."""
    return choices[int(rng.integers(len(choices)))]
