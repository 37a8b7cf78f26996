"""Letters in figures: the fonts that have them, how wide they are, and one warning for those that no font has."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

SIZE = 9.0  # points of the letters
# Fonts for letters that matplotlib's own font lacks, where they are installed.
FALLBACK_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans SC", "Noto Sans JP", "Source Han Sans", "Droid Sans Fallback"),
    *("WenQuanYi Zen Hei", "PingFang SC", "Hiragino Sans", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic"),
    *(
        "Noto Sans Devanagari",
        "Noto Sans Thai",
        "Noto Sans Arabic",
        "Noto Sans Hebrew",
        "Noto Emoji",
        "Arial Unicode MS",
    ),
)


@lru_cache(maxsize=1)
def fallback_fonts() -> tuple[str, ...]:
    """The fonts for letters of other scripts that are installed."""
    from matplotlib.font_manager import fontManager

    known = set(fontManager.get_font_names())
    return tuple(name for name in FALLBACK_FONTS if name in known)


_warnings_caught = threading.RLock()  # catching warnings changes the whole process, so figures are saved one by one


@contextmanager
def missing_letters_said_once(by_viewer: bool = False) -> Iterator[None]:
    """One warning for all letters that no font has, instead of one each; none where the viewer chooses the fonts."""
    with _warnings_caught, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    letters: dict[str, None] = {}
    for one in caught:
        missing = re.match(r"Glyph (\d+) .*missing from", str(one.message))
        if missing:
            letters[chr(int(missing[1]))] = None
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if letters and not by_viewer:
        warnings.warn(
            f"no font that matplotlib finds has {' '.join(list(letters)[:8])!r} ({len(letters)} letters in all), and "
            "boxes are drawn instead; install one, as Noto Sans CJK, or write .svg, where the viewer's fonts are used",
            stacklevel=4,
        )


@lru_cache(maxsize=8192)
def inches(text: str, size: float = SIZE) -> float:
    """The width of a text in letters of so many points."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    family = None if text.isascii() else ["sans-serif", *fallback_fonts()]
    with missing_letters_said_once(by_viewer=True):
        found = text_to_path.get_text_width_height_descent(text, FontProperties(family=family, size=size), False)
    return float(found[0]) / 72
