"""Raw inputs to `Input`: text, pairs, prompts, sources, images, image+text, and the user's own encoder."""

from __future__ import annotations

import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from whence.core import pictures
from whence.core.inputs import Input
from whence.core.tasks import TASKS

_NOWHERE = (-1, -1)
_TOKENIZING = threading.RLock()  # cutting changes a tokenizer's settings for the time of the call


@dataclass(frozen=True)
class Layout:
    """How a vision model lays out its tokens: special ones, a grid of patches, special ones."""

    prefix: tuple[str, ...]
    rows: int
    cols: int
    suffix: tuple[str, ...] = ()


class _Piece(NamedTuple):
    """One feature on its way into an Input."""

    name: str
    id: int = -1
    special: bool = False
    part: str = ""
    span: tuple[int, int] = _NOWHERE  # characters of the part
    word: int | None = None  # the pre-tokenizer's word, counted within the part


def encode(
    raw: Any,
    *,
    task: str,
    processor: Any,
    max_length: int | None,
    truncate: bool = False,
    image_layout: Layout | None = None,
    encoder: Callable[[Any], Any] | None = None,
    start_token: int | None = None,
) -> Input:
    """Encode one example as `task` asks for it, or with the user's own `encoder`."""
    if encoder is not None:
        return _from_encoder(raw, encoder)
    if task == "module":
        raise ValueError("a plain torch module needs an encoder: pass whence.wrap(module, encode=...)")
    if task not in TASKS:
        raise ValueError(f"unknown task {task!r}: it must be one of {', '.join(TASKS)}")
    parts = _named_parts(raw, task)
    picture = pictures.picture(parts["image"]) if "image" in parts else None
    texts = {part: _checked_text(part, text) for part, text in parts.items() if part != "image"}
    inputs = []
    if texts:
        inputs.append(_texts(_tokenizer(processor, task), texts, max_length, truncate, start_token))
    if picture is not None:
        inputs.append(_image(processor, picture, image_layout, task))
        parts["image"] = np.asarray(picture)
    named = isinstance(raw, dict | tuple)
    return replace(_join(*inputs), raw=parts if named else next(iter(parts.values())))


def with_output(input: Input, ids: Any, processor: Any, start_token: int) -> Input:
    """The source with the ids (T,) that the model generated from it, in the form of a given output."""
    tokenizer = _tokenizer(processor, "seq2seq-lm")
    ids = [int(i) for i in ids]
    text = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    again = _encoded(tokenizer, {"output": text}, target=True).rows
    if [row.id for row in again[: len(ids)]] == ids and all(row.special for row in again[len(ids) :]):
        rows = again[: len(ids)]  # with the tokenizer's own offsets and words
    else:
        rows = _decoded_rows(tokenizer, ids, text)
    return _join(input, _target(tokenizer, rows, text, start_token))


def pieces(processor: Any, text: str) -> list[tuple[int, str]]:
    """The token ids and pieces of a text, without special tokens."""
    tokenizer = _tokenizer(processor, "a token's text")
    text = _without_surrogates(text)
    ids = list(_call(tokenizer, text, special=False)["input_ids"])
    # A tokenizer that puts a space before every text cuts " Paris" in two, though its vocabulary has it whole.
    whole = text.replace(" ", "▁")
    if len(ids) > 1 and _has_metaspace(tokenizer):
        id = tokenizer.convert_tokens_to_ids(whole)
        ids = [id] if id is not None and tokenizer.convert_ids_to_tokens(id) == whole else ids
    return list(zip(ids, readable(tokenizer, ids), strict=True))


def mask_ids(processor: Any) -> dict[str, int | None]:
    """The ids that stand for nothing: padding, mask, unknown; None where the tokenizer has none."""
    names = {"pad": "pad_token", "mask": "mask_token", "unknown": "unk_token"}
    tokenizer = _find(processor, "tokenizer", "convert_ids_to_tokens")
    known = {} if tokenizer is None else tokenizer.special_tokens_map
    return {key: tokenizer.convert_tokens_to_ids(known[name]) if name in known else None for key, name in names.items()}


# --- what was given -------------------------------------------------------------------------------------------------


def _named_parts(raw: Any, task: str) -> dict[str, Any]:
    """The parts of a raw input by name, whichever form it came in."""
    allowed, required = TASKS[task].parts, TASKS[task].required
    if isinstance(raw, dict):
        if unknown := [key for key in raw if key not in allowed]:
            raise ValueError(f"{task} takes the keys {_listed(allowed)}, but {_listed(unknown)} came")
        parts = {key: raw[key] for key in allowed if raw.get(key) is not None}
    elif isinstance(raw, tuple) and len(raw) == len(allowed) == 2:
        parts = dict(zip(allowed, _image_first(raw) if task == "image-text" else raw, strict=True))
    elif isinstance(raw, str | Path | Image.Image | np.ndarray) and len(required) == 1:
        parts = {allowed[0]: raw}
    else:
        forms = [] if len(required) > 1 else ["a picture" if allowed[0] == "image" else "a string"]
        forms += [f"a tuple ({', '.join(allowed)})"] if len(allowed) == 2 else []
        forms += [f"a dict with the keys {_listed(allowed)}"]
        raise TypeError(f"{task} takes {' or '.join(forms)}, but a {type(raw).__name__} came")
    if missing := [key for key in required if key not in parts]:
        raise ValueError(f"{task} needs the key {_listed(missing)}, but only {_listed(parts) or 'none'} came")
    return parts


def _listed(names: Sequence[Any] | Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in names)


def _image_first(raw: tuple[Any, Any]) -> tuple[Any, Any]:
    """Order (image, text) by type: the text is the only string."""
    strings = [isinstance(item, str) for item in raw]
    if sum(strings) != 1:
        raise TypeError("which is the picture cannot be told: pass a dict with the keys 'image' and 'text'")
    return (raw[1], raw[0]) if strings[0] else raw


def _checked_text(part: str, text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"the {part} must be a string, but a {type(text).__name__} came")
    blank = not text if part in ("continuation", "output") else not text.strip()
    if blank:
        raise ValueError(f"the {part} is empty: give at least one word")
    return text


def _find(processor: Any, part: str, method: str) -> Any:
    """The processor itself where it has the method, else its part of that name, else None."""
    return processor if hasattr(processor, method) else getattr(processor, part, None)


def _tokenizer(processor: Any, task: str) -> Any:
    tokenizer = _find(processor, "tokenizer", "convert_ids_to_tokens")
    if tokenizer is None:
        raise ValueError(f"{task} needs a tokenizer: pass whence.wrap(model, tokenizer)")
    return tokenizer


# --- text -----------------------------------------------------------------------------------------------------------


class _Encoded(NamedTuple):
    """What a tokenizer made of one text or a pair."""

    rows: list[_Piece]
    tensors: dict[str, np.ndarray]
    notes: tuple[str, ...]


def _texts(tokenizer: Any, texts: dict[str, str], limit: int | None, truncate: bool, start: int | None) -> Input:
    """A text or a pair, a prompt with or without a continuation, a source with or without an output."""
    if "continuation" in texts:
        return _continued(tokenizer, texts, limit, truncate)
    output = {part: texts[part] for part in texts if part == "output"}
    first = {part: texts[part] for part in texts if part != "output"}
    encoded = _encoded(tokenizer, first, limit, truncate)
    stream = "source" if "source" in first else "text"
    result = _input(_checked_rows(encoded.rows, first), stream, encoded.tensors, first, notes=encoded.notes)
    if not output:
        return result
    room = None if limit is None else limit - 1  # the start token takes one place
    encoded = _encoded(tokenizer, output, room, truncate, target=True)
    rows = _checked_rows(encoded.rows, output)
    return _join(result, _target(tokenizer, rows, output["output"], start, encoded.notes))


def _continued(tokenizer: Any, texts: dict[str, str], limit: int | None, truncate: bool) -> Input:
    """A prompt and its continuation, whose pieces are those of the joint text where the boundary permits."""
    prompt, continuation = texts["prompt"], texts["continuation"]
    alone = _encoded(tokenizer, {"prompt": prompt})
    joint = _encoded(tokenizer, {"prompt": prompt + continuation})
    head, rest = _without_closing(alone.rows), _without_closing(joint.rows)
    notes = joint.notes
    if len(head) < len(alone.rows):
        notes += ("the tokenizer's closing special tokens were left out, since the prompt goes on",)
    if [row.id for row in rest[: len(head)]] == [row.id for row in head]:
        tail = [row._replace(part="continuation", span=_shifted(row.span, len(prompt))) for row in rest[len(head) :]]
    else:
        tail = _encoded(tokenizer, {"continuation": continuation}, special=False).rows
        notes += ("prompt and continuation were tokenised apart: together they give other pieces at the boundary",)
    rows = head + tail
    if limit is not None and len(rows) > limit:
        notes += (_cut_note(texts, len(rows), limit, truncate),)
        if len(tail) >= limit:
            raise ValueError(f"the continuation alone has {len(tail)} tokens, and the model takes {limit}: shorten it")
        rows = _cut(head, limit - len(tail), "left") + tail  # what stands next to the continuation is kept
    ids = np.array([row.id for row in rows])
    streams = ["target" if row.part == "continuation" else "source" for row in rows]
    generated = tuple(i for i, stream in enumerate(streams) if stream == "target")
    tensors = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    return _input(_checked_rows(rows, texts), streams, tensors, texts, notes=notes, generated=generated)


def _target(tokenizer: Any, rows: list[_Piece], text: str, start: int | None, notes: tuple[str, ...] = ()) -> Input:
    """The decoder's side: the start token, then the output, every token of which was generated."""
    if start is None:
        raise ValueError("an output needs the token that starts the decoder: set decoder_start_token_id in the config")
    rows = [_Piece(readable(tokenizer, [start])[0], start, special=True), *rows]
    tensors = {"decoder_input_ids": np.array([row.id for row in rows])}
    return _input(rows, "target", tensors, {"output": text}, notes=notes, generated=tuple(range(1, len(rows))))


def _encoded(
    tokenizer: Any,
    texts: dict[str, str],
    limit: int | None = None,
    truncate: bool = False,
    target: bool = False,
    special: bool = True,
) -> _Encoded:
    """Tokenise, and cut to `limit` where allowed."""
    clean = [_without_surrogates(text) for text in texts.values()]
    notes: tuple[str, ...] = () if clean == list(texts.values()) else ("lone surrogates were read as U+FFFD",)
    encoding = _call(tokenizer, *clean, target=target, special=special)
    count = len(encoding["input_ids"])
    if limit is not None and count > limit:
        notes += (_cut_note(texts, count, limit, truncate),)
        encoding = _call(tokenizer, *clean, target=target, special=special, limit=limit)
        if len(encoding["input_ids"]) > limit:
            raise ValueError(f"the model takes {limit} tokens, too few for the tokenizer's special tokens alone")
    if encoding.encodings is None:
        notes += ("the tokenizer gives no offsets: they were found by searching the text for the pieces",)
    extra = ("offset_mapping", "special_tokens_mask")
    tensors = {key: np.asarray(value) for key, value in encoding.items() if key not in extra}
    return _Encoded(_rows(tokenizer, encoding, texts), tensors, notes)


def _call(tokenizer: Any, *texts: str, target: bool = False, special: bool = True, limit: int | None = None) -> Any:
    """Call the tokenizer without its warnings, and leave its settings as they were."""
    given: dict[str, Any] = (
        {"text_target": texts[0]} if target else dict(zip(("text", "text_pair"), texts, strict=False))
    )
    if limit is not None:
        given |= {"truncation": True, "max_length": limit}
    if getattr(tokenizer, "is_fast", False):
        given["return_offsets_mapping"] = True
    with _TOKENIZING, _settings_kept(getattr(tokenizer, "backend_tokenizer", None)):
        return tokenizer(**given, add_special_tokens=special, return_special_tokens_mask=True, verbose=False)


@contextmanager
def _settings_kept(backend: Any) -> Iterator[None]:
    """Put back the truncation and padding that a call resets."""
    truncation, padding = getattr(backend, "truncation", None), getattr(backend, "padding", None)
    try:
        yield
    finally:
        if backend is not None and backend.truncation != truncation:
            backend.enable_truncation(**truncation) if truncation else backend.no_truncation()
        if backend is not None and backend.padding != padding:
            backend.enable_padding(**padding) if padding else backend.no_padding()


def _rows(tokenizer: Any, encoding: Any, texts: dict[str, str]) -> list[_Piece]:
    """The pieces of an encoding with their place in the original texts."""
    ids, special = list(encoding["input_ids"]), encoding["special_tokens_mask"]
    names, order = readable(tokenizer, ids), list(texts)
    if encoding.encodings is not None:
        words, spans = encoding.word_ids(), encoding["offset_mapping"]
        parts = ["" if n is None else order[n] for n in encoding.sequence_ids()]
    else:
        words, parts = [None] * len(ids), _parts_between(special, order)
        spans = _searched(names, parts, texts)
    rows = []
    for name, id, mark, part, span, word in zip(names, ids, special, parts, spans, words, strict=True):
        if mark or not part:
            rows.append(_Piece(name, id, special=True))
        else:
            rows.append(_Piece(name, id, False, part, _real_span(name, span, texts[part]), word))
    return rows


def _real_span(name: str, span: tuple[int, int], text: str) -> tuple[int, int]:
    """The span, or none for a piece that came from no text, as a space put before the first word."""
    origin = text[span[0] : span[1]] if span[0] >= 0 else ""
    invented = not origin or (not name.strip() and origin.strip())
    return _NOWHERE if invented else (span[0], span[1])


def _parts_between(special: Sequence[int], order: list[str]) -> list[str]:
    """Without sequence ids: each run of tokens between special ones is a part."""
    parts, run = [], -1
    for before, mark in zip([1, *special], special, strict=False):
        run += bool(before and not mark)
        parts.append("" if mark else order[min(run, len(order) - 1)])
    return parts


def _searched(names: list[str], parts: list[str], texts: dict[str, str]) -> list[tuple[int, int]]:
    """Without offsets: each piece where it comes next in the text, case and accents aside."""
    forms = {part: [_by_character(change, text) for change in (str.lower, _bare)] for part, text in texts.items()}
    ends, spans, lost = dict.fromkeys(texts, 0), [], False
    for name, part in zip(names, parts, strict=True):
        piece = _by_character(str.lower, name.removeprefix("##").strip() or name)
        places = [form.find(piece, ends[part]) for form in forms.get(part, ())]
        start = min((place for place in places if place >= 0), default=-1)
        # Only whitespace may be skipped, unless the piece before was not found: the text between may be its own.
        if start < 0 or (not lost and texts[part][ends[part] : start].strip()):
            spans.append(_NOWHERE)
            lost = bool(part)
        else:
            ends[part], lost = start + len(piece), False
            spans.append((start, ends[part]))
    return spans


def _by_character(change: Callable[[str], str], text: str) -> str:
    """Change each character where that leaves one character, so that places do not move."""
    return "".join(new if len(new := change(old)) == 1 else old for old in text)


def _bare(character: str) -> str:
    """A lower-case character without its accents."""
    base, *accents = list(unicodedata.normalize("NFD", character))
    return (base if all(map(unicodedata.combining, accents)) else character).lower()


def _without_surrogates(text: str) -> str:
    """Lone surrogates, which tokenizers refuse, as U+FFFD; as long as before."""
    return "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)


def readable(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The tokenizer's pieces, with byte-level, metaspace and end-of-word markers as the text they stand for."""
    from tokenizers.decoders import ByteLevel

    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    added = tokenizer.get_added_vocab()
    by_bytes, by_metaspace = "ByteLevel" in _rules(tokenizer), _has_metaspace(tokenizer)
    suffix = getattr(getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None), "end_of_word_suffix", None)
    names = []
    for id, token in zip(ids, tokens, strict=True):
        if token is None:  # a model may have more rows than its tokenizer has pieces
            token = f"<{id}>"
        elif token not in added:
            ending = " " if suffix and token.endswith(suffix) else ""
            token = token.removesuffix(suffix) if ending else token
            if by_bytes and "\ufffd" not in (text := ByteLevel().decode([token])):
                token = text
            token = (token.replace("▁", " ") if by_metaspace else token) + ending
        names.append(token)
    return names


def _rules(tokenizer: Any) -> str:
    """How a fast tokenizer splits and joins, as text to look markers up in."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return "" if backend is None else f"{backend.decoder!r} {backend.pre_tokenizer!r}"


def _has_metaspace(tokenizer: Any) -> bool:
    return "▁" in _rules(tokenizer) if getattr(tokenizer, "is_fast", False) else True


def _decoded_rows(tokenizer: Any, ids: list[int], text: str) -> list[_Piece]:
    """Pieces of generated ids: each came with the characters that decoding it added to the text."""
    marks = set(tokenizer.all_special_ids) - {mask_ids(tokenizer)["unknown"]}
    rows, end = [], 0
    for i, (id, name) in enumerate(zip(ids, readable(tokenizer, ids), strict=True)):
        sofar = tokenizer.decode(ids[: i + 1], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        sofar = sofar.rstrip("\ufffd")  # the first bytes of a character that is not complete yet
        start, end = end, max(end, len(sofar)) if text.startswith(sofar) else end
        if id in marks:
            rows.append(_Piece(name, id, special=True))
        else:
            rows.append(_Piece(name, id, False, "output", (start, end) if end > start else _NOWHERE))
    return rows


def _without_closing(rows: list[_Piece]) -> list[_Piece]:
    """The rows up to the last one that is not special."""
    last = max((i for i, row in enumerate(rows) if not row.special), default=-1)
    return rows[: last + 1]


def _shifted(span: tuple[int, int], by: int) -> tuple[int, int]:
    """The part of a span that lies after the first `by` characters."""
    return (max(span[0] - by, 0), span[1] - by) if span[1] > by else _NOWHERE


def _cut_note(texts: Mapping[str, str], count: int, limit: int, truncate: bool) -> str:
    """What is said of a text that was cut; an error where that is not allowed."""
    names = " and ".join(f"the {part}" for part in texts)
    have = "has" if len(texts) == 1 else "have"
    if not truncate:
        raise ValueError(
            f"{names} {have} {count} tokens, {count - limit} more than the {limit} the model takes;"
            " shorten it or pass truncate=True"
        )
    return f"{names} {'was' if len(texts) == 1 else 'were'} cut from {count} to {limit} tokens"


def _cut(rows: list[_Piece], limit: int, side: str) -> list[_Piece]:
    """Drop pieces from one side, keeping special tokens."""
    plain = [i for i, row in enumerate(rows) if not row.special]
    surplus = len(rows) - limit
    dropped = set(plain[:surplus] if side == "left" else plain[-surplus:])
    return [row for i, row in enumerate(rows) if i not in dropped]


def _checked_rows(rows: list[_Piece], texts: Mapping[str, str]) -> list[_Piece]:
    for part in texts:
        if not any(row.part == part for row in rows):
            raise ValueError(f"no token of the {part} is left for the model: give one that the tokenizer can read")
    return rows


def _words(rows: list[_Piece], texts: Mapping[str, str]) -> list[int]:
    """Number the words: the pre-tokenizer's, split again where the text has whitespace inside them."""
    words: list[int] = []
    ends = dict.fromkeys(texts, 0)
    number, previous, inked = -1, None, False  # inked: the word so far is more than whitespace
    for row in rows:
        if row.special or not row.part:
            words.append(-1)
            previous = None
            continue
        end = ends[row.part]
        start, stop = row.span if row.span != _NOWHERE else (end, end)
        text = texts[row.part][start:stop] or row.name
        apart = text[:1].isspace() or any(map(str.isspace, texts[row.part][end:start]))
        if previous != (row.part, row.word) or (inked and apart):
            number, inked = number + 1, False
        words.append(number)
        previous, ends[row.part], inked = (row.part, row.word), stop, inked or bool(text.strip())
    return words


# --- images ---------------------------------------------------------------------------------------------------------


def _image(processor: Any, picture: Image.Image, layout: Layout | None, task: str) -> Input:
    """A picture as the image processor gives it, its patches named row by row."""
    processor = _find(processor, "image_processor", "preprocess")
    if processor is None:
        raise ValueError(f"{task} needs an image processor: pass whence.wrap(model, image_processor)")
    outputs = processor(images=picture, return_tensors="np")
    tensors = {key: np.asarray(value)[0] for key, value in outputs.items()}
    rows: list[_Piece] = []
    if layout is not None:
        patches = [_Piece(f"patch {r},{c}") for r in range(layout.rows) for c in range(layout.cols)]
        before, after = ([_Piece(name, special=True) for name in names] for names in (layout.prefix, layout.suffix))
        rows = [*before, *patches, *after]
    return _input(
        rows,
        "image",
        tensors,
        {},
        grid=None if layout is None else (layout.rows, layout.cols),
        image=pictures.seen(processor, tensors["pixel_values"]),
        box=pictures.box(processor, picture.size, tensors["pixel_values"].shape),
        size=picture.size,
    )


# --- building -------------------------------------------------------------------------------------------------------


def _input(
    rows: list[_Piece],
    streams: str | list[str],
    tensors: dict[str, np.ndarray],
    texts: dict[str, str],
    **more: Any,
) -> Input:
    return Input(
        raw=None,
        features=tuple(row.name for row in rows),
        streams=(streams,) * len(rows) if isinstance(streams, str) else tuple(streams),
        special=np.array([row.special for row in rows], dtype=bool),
        tensors=tensors,
        words=np.array(_words(rows, texts), dtype=int),
        offsets=np.array([row.span for row in rows], dtype=int).reshape(-1, 2),
        parts=tuple(row.part for row in rows),
        texts=dict(texts),
        **more,
    )


def _join(first: Input, second: Input | None = None) -> Input:
    """Two streams of one example, one after the other."""
    if second is None:
        return first
    count, words = len(first.features), int(first.words.max(initial=-1)) + 1
    return replace(
        first,
        features=first.features + second.features,
        streams=first.streams + second.streams,
        special=np.concatenate([first.special, second.special]),
        tensors=first.tensors | second.tensors,
        words=np.concatenate([first.words, np.where(second.words < 0, -1, second.words + words)]),
        offsets=np.concatenate([first.offsets, second.offsets]),
        parts=first.parts + second.parts,
        texts=first.texts | second.texts,
        grid=second.grid,
        image=second.image,
        box=second.box,
        size=second.size,
        generated=first.generated + tuple(count + i for i in second.generated),
        notes=tuple(dict.fromkeys(first.notes + second.notes)),
    )


def _from_encoder(raw: Any, encoder: Callable[[Any], Any]) -> Input:
    """What the user's own encoder returned, checked."""
    given = encoder(raw)
    columns = {"special": False, "words": -1, "offsets": _NOWHERE, "parts": ""}
    known = {"tensors", "features", "texts", "grid", "image", "box", "size", "generated", "notes", *columns}
    if not isinstance(given, Mapping) or not {"tensors", "features"} <= set(given) or set(given) - known:
        came = f"the keys {_listed(given)}" if isinstance(given, Mapping) else f"a {type(given).__name__}"
        raise ValueError(
            f"encode= must return a dict with 'tensors', 'features' and of {_listed(sorted(known))} what applies,"
            f" but {came} came"
        )
    for key in ("tensors", "features"):
        if not isinstance(given[key], Mapping) or not given[key]:
            raise ValueError(f"encode= must return {key!r} as a dict that is not empty, but {given[key]!r} came")
    features = {stream: [str(name) for name in names] for stream, names in given["features"].items()}
    filled = {key: _column(key, given.get(key, {}), features, default) for key, default in columns.items()}
    special = np.array(filled["special"], dtype=bool)
    streams = tuple(stream for stream, names in features.items() for _ in names)
    grid, image = given.get("grid"), given.get("image")
    if grid is not None:
        _check_grid(grid, [s for s, mark in zip(streams, special, strict=True) if not mark])
    return Input(
        raw=_array("raw", raw) if hasattr(raw, "detach") else raw,
        features=tuple(name for names in features.values() for name in names),
        streams=streams,
        special=special,
        tensors={key: _array(key, value) for key, value in given["tensors"].items()},
        words=np.array(filled["words"], dtype=int),
        offsets=np.array(filled["offsets"], dtype=int).reshape(-1, 2),
        parts=tuple(filled["parts"]),
        texts=dict(given.get("texts", {})),
        grid=None if grid is None else (int(grid[0]), int(grid[1])),
        image=None if image is None else np.asarray(pictures.picture(_array("image", image))),
        box=given.get("box"),
        size=given.get("size"),
        generated=tuple(int(i) for i in given.get("generated", ())),
        notes=tuple(given.get("notes", ())),
    )


def _column(key: str, given: Any, features: dict[str, list[str]], default: Any) -> list[Any]:
    """One value per feature, from lists by stream."""
    if not isinstance(given, Mapping) or not set(given) <= set(features):
        raise ValueError(f"encode= must return {key!r} as lists by stream, one of {_listed(features)}, not {given!r}")
    column: list[Any] = []
    for stream, names in features.items():
        values = list(given.get(stream, [default] * len(names)))
        if len(values) != len(names):
            raise ValueError(f"encode= gave {len(values)} {key} for {len(names)} features of the stream {stream!r}")
        column += values
    return column


def _check_grid(grid: Any, streams: list[str]) -> None:
    count = streams.count("image") if "image" in streams else len(streams)
    if len(grid) != 2 or grid[0] * grid[1] != count:
        raise ValueError(f"encode= gave the grid {grid!r} for {count} features: rows times columns must equal them")


def _array(key: str, value: Any) -> np.ndarray:
    """A tensor or array as numpy, without importing torch."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if "bfloat16" in str(value.dtype) else value).numpy()  # numpy has no bfloat16
    try:
        array = np.asarray(value)
    except ValueError:  # lists of unequal lengths
        array = np.array(None)
    if array.dtype.kind not in "biufc":
        raise ValueError(f"encode= must return {key!r} as numbers in an array or tensor, not {type(value).__name__}")
    return array
