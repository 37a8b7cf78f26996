"""Where the sentences of a text begin and end, by rules with a short list of abbreviations and without a model.

A sentence ends after one or more stops (. ! ? … and those of other scripts), with the quotes and brackets that close
after them, where white space or the end of the text follows; full stops of Chinese and Japanese need no space. It ends
at a blank line too, and at the end of a line unless the next line goes on with a small letter.

A stop does not end a sentence where

- a small letter follows ("Really?" he asked), unless the text has no capital letters, so that case says nothing;
- no space follows: it belongs to a number (3.14) or an address (example.com);
- it is one of an ellipsis in a text without capitals, where nothing tells "well ..." from an end;
- it follows an abbreviation that stands before a name (Mr. Dr. e.g.) or a number (No. 5), an initial (J. Smith), or,
  unless a capital follows, an abbreviation that may end a sentence (etc. Inc. U.S.);
- it numbers a line: the sentence so far is nothing but "1." or "a.".
"""

from __future__ import annotations

import re

STOPS = ".!?…‽؟۔।॥܀።፧"
WIDE_STOPS = "。！？｡．"  # stops of Chinese and Japanese, after which no space is written
OPENERS, CLOSERS = "\"'“‘«‹([{¿¡", "\"'”’»›)]}」』）】》〉"
END = re.compile(f"([{re.escape(STOPS)}]+|[{re.escape(WIDE_STOPS)}]+)[{re.escape(CLOSERS)}]*")
OPENING = re.compile(rf"\s*[{re.escape(OPENERS)}]*")
LINE_NUMBER = re.compile(r"[(\[]?(\d{1,3}|[A-Za-z])")
DOTTED = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")
LONGEST = 40  # characters before a stop that are looked at for an abbreviation
NAMES = "mr mrs ms messrs dr prof st mt rev hon gen col maj capt cmdr lt sgt gov sen rep e.g i.e eg ie cf vs viz ca"
BEFORE_NAMES = frozenset(NAMES.split(" "))
# Abbreviations before a number; before anything else, they are words.
BEFORE_NUMBERS = frozenset(["no", "nos", "p", "pp", "sec", "ch", "vol", "fig", "figs", "eq", "eqs"])
MAY_END = frozenset(["etc", "inc", "ltd", "co", "corp", "bros", "jr", "sr", "ph.d", "al"])


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """The first character and the one after the last of every sentence, without the white space between sentences."""
    cased = any(c.isupper() for c in text)
    cuts = [*_cuts(text, cased), len(text)]
    spans, start = [], 0
    for cut in cuts:
        own = text[start:cut]
        if own.strip():
            first = start + len(own) - len(own.lstrip())
            spans.append((first, first + len(own.strip())))
            start = cut
    return spans


def _cuts(text: str, cased: bool) -> list[int]:
    """The places after which a new sentence begins, in order."""
    lines = [
        gap.end()
        for gap in re.finditer(r"\s+", text)
        if gap[0].count("\n") > 1 or ("\n" in gap[0] and not (cased and text[gap.end() : gap.end() + 1].islower()))
    ]
    cuts, start, line = list(lines), 0, 0
    for found in END.finditer(text):
        while line < len(lines) and lines[line] <= found.start():
            start, line = lines[line], line + 1
        if _ends(text, start, found, cased):
            cuts.append(found.end())
            start = found.end()
    return sorted(cuts)


def _ends(text: str, start: int, found: re.Match[str], cased: bool) -> bool:
    """Whether these stops end the sentence that begins at `start`."""
    stops, end = found[1], found.end()
    if stops[0] in WIDE_STOPS:
        return not (stops == "．" and text[end : end + 1].isdigit())
    if end < len(text) and not text[end].isspace():
        return False
    place = OPENING.match(text, end).end()  # type: ignore[union-attr]  # always matches, perhaps the empty text
    following = text[place : place + 1]
    if cased and following.islower():
        return False
    if stops == "…" or (len(stops) > 1 and set(stops) == {"."}):
        return cased or not following
    return stops != "." or not following or not _inside(text[start : found.start()][-LONGEST:], following)


def _inside(before: str, following: str) -> bool:
    """Whether a full stop between these two belongs to an abbreviation, an initial or the number of a line."""
    words = before.split()
    if not words:
        return False
    if len(words) == 1 and LINE_NUMBER.fullmatch(words[0]):
        return True
    last = words[-1].lstrip(OPENERS)
    attached = not before[-1].isspace()
    if attached and len(last) == 1 and last.isupper() and last != "I":
        return True
    if last.lower() in BEFORE_NUMBERS:
        return following.isdigit()
    if last.lower() in BEFORE_NAMES:
        return True
    return (last.lower() in MAY_END or DOTTED.fullmatch(last) is not None) and not following.isupper()
