"""Rows of a data set cut into chunks, by a first pass over the data that keeps none of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from whence.core.checksums import checksum, digest_of
from whence.measure.datasets import Row

MAX_COST = 16_384  # of a chunk, in tokens: so small that a stop loses seconds of work, also where texts are long
LETTERS_PER_TOKEN = 4
PICTURE_TOKENS = 256


@dataclass(frozen=True)
class Chunk:
    """Rows that follow each other, which are run together."""

    number: int
    first: int  # number of its first row
    count: int
    cost: float  # estimated, in tokens
    digest: str  # of the content of its rows


@dataclass(frozen=True)
class Layout:
    """All chunks of a data set. It depends on the rows alone, so every engine runs the same batches."""

    chunks: tuple[Chunk, ...]
    rows: int
    digest: str  # of the content of all rows


def laid_out(rows: Iterable[Row], most: int) -> Layout:
    """The chunks of a data set, of at most `most` rows each, and the digest of its content."""
    chunks: list[Chunk] = []
    content, of_chunk = hashlib.sha256(), hashlib.sha256()
    first = count = 0
    cost = 0.0
    for row in rows:
        own = cost_of(row)
        if count and (count >= most or cost + own > MAX_COST):
            chunks.append(Chunk(len(chunks), first, count, cost, of_chunk.hexdigest()))
            first, count, cost, of_chunk = first + count, 0, 0.0, hashlib.sha256()
        count, cost = count + 1, cost + own
        digest = _row_digest(row)
        content.update(digest)
        of_chunk.update(digest)
    if not count:
        raise ValueError("there is nothing to run: the data is empty")
    chunks.append(Chunk(len(chunks), first, count, cost, of_chunk.hexdigest()))
    return Layout(tuple(chunks), first + count, content.hexdigest())


def _row_digest(row: Row) -> bytes:
    """A digest of a row: its name and its content; a picture counts by the content of its file."""
    return checksum([row.id, row.error, digest_of([row.raw, row.label, row.truth])]).encode()


def cost_of(row: Row) -> float:
    """What a row costs, in tokens: attention makes the cost of long texts grow faster than their length."""
    tokens = _tokens(row.raw)
    return tokens * (1 + tokens / 512)


def _tokens(raw: Any) -> float:
    if isinstance(raw, str):
        return len(raw) / LETTERS_PER_TOKEN + 2
    if isinstance(raw, Mapping):
        return sum(map(_tokens, raw.values()))
    if isinstance(raw, (list, tuple)):
        return sum(map(_tokens, raw))
    return PICTURE_TOKENS if isinstance(raw, Path) or hasattr(raw, "shape") or hasattr(raw, "size") else 1


def cut(rows: Iterable[Row], layout: Layout, wanted: set[int]) -> Iterator[tuple[Chunk, list[Row]]]:
    """The wanted chunks with their rows, in order; other rows are passed over, and rows that changed are refused."""
    stream = iter(rows)
    for chunk in layout.chunks:
        own = list(islice(stream, chunk.count))
        if chunk.number not in wanted:
            continue
        content = hashlib.sha256()
        for row in own:
            content.update(_row_digest(row))
        if len(own) < chunk.count or content.hexdigest() != chunk.digest:
            raise ValueError("the data changed while it was read; run again once nobody writes to it")
        yield chunk, own
