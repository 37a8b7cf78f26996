"""Where pieces came from: characters of the original text, also for tokenizers that do not say."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence

from whence.model.encoding.features import NO_SPAN, Span


def span_or_none(name: str, span: Span, text: str) -> Span:
    """The span, or none for a piece that came from no text, as a space that the tokenizer put before the first word."""
    origin = text[span[0] : span[1]] if span[0] >= 0 else ""
    invented = not origin or (not name.strip() and origin.strip())
    return NO_SPAN if invented else (span[0], span[1])


def parts_between_special_tokens(special: Sequence[int], order: list[str]) -> list[str]:
    """The part of each token for tokenizers that do not say: each run of tokens between special ones is a part."""
    parts, run = [], -1
    for special_before, is_special in zip([1, *special], special, strict=False):
        run += bool(special_before and not is_special)
        parts.append("" if is_special else order[min(run, len(order) - 1)])
    return parts


def searched_spans(names: list[str], parts: list[str], texts: dict[str, str]) -> list[Span]:
    """The span of each piece for tokenizers that do not say: where it comes next in the text, case and accents aside.

    Between two pieces only whitespace may be skipped, unless the piece before was not found: the text between the two
    may be what that piece stands for.
    """
    forms = {part: [_by_character(str.lower, text), _by_character(_unaccented, text)] for part, text in texts.items()}
    ends, spans, missed_before = dict.fromkeys(texts, 0), [], False
    for name, part in zip(names, parts, strict=True):
        piece = _by_character(str.lower, name.removeprefix("##").strip() or name)
        places = [form.find(piece, ends[part]) for form in forms.get(part, ())]
        start = min((place for place in places if place >= 0), default=-1)
        if start < 0 or (not missed_before and texts[part][ends[part] : start].strip()):
            spans.append(NO_SPAN)
            missed_before = bool(part)
        else:
            ends[part], missed_before = start + len(piece), False
            spans.append((start, ends[part]))
    return spans


def _by_character(change: Callable[[str], str], text: str) -> str:
    """Change each character where that leaves one character, so that places do not move."""
    return "".join(new if len(new := change(old)) == 1 else old for old in text)


def _unaccented(character: str) -> str:
    """A lower-case character without its accents."""
    base, *accents = list(unicodedata.normalize("NFD", character))
    return (base if all(map(unicodedata.combining, accents)) else character).lower()
