"""Shards: the results of one chunk as a Parquet file whose name carries its checksum.

`part-00000012-0123456789abcdef.parquet` holds chunk 12; the letters are the first of the SHA-256 of its bytes. The
file's own metadata name the run and the chunk, so that a file cannot pass for another one, whatever it is called.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from whence.core import display
from whence.core.checksums import file_checksum
from whence.core.wording import in_one_line

METADATA = b"whence"
LETTERS = 16  # of the checksum in a file's name
_NAME = re.compile(rf"part-(\d{{8,}})-([0-9a-f]{{{LETTERS}}})\.parquet")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a shard's metadata says of it."""

    run: str  # the identity of the run
    chunk: int
    first: int  # number of its first row
    examples: int
    failed: int
    failures: dict[str, int]  # reason -> examples
    method_seconds: dict[str, float]
    seconds: float
    worker: str
    finished: float  # seconds since the epoch
    threads: int
    versions: dict[str, str] = field(default_factory=dict)


class Damaged(ValueError):
    """Raised for a shard whose content differs from what was written; the message is one sentence."""


def schema(generates: bool) -> Any:
    """The columns of a shard; of models that generate text, scores and what belongs to them have a row per token."""
    need_arrow()
    import pyarrow as pa

    number, text = pa.float64(), pa.string()
    by_token = pa.list_ if generates else lambda kind: kind
    value = pa.struct([("place", text), ("name", text), ("value", number)])
    return pa.schema(
        [
            ("row", pa.int64()),  # number of the example in the data set
            ("id", text),  # its name: the column id, or file and row
            ("method", text),  # spec of a method, or of an experiment of an audit
            ("experiment", pa.bool_()),  # whether the row is of an experiment
            ("token", pa.int32()),  # of an experiment: which generated token; null elsewhere
            ("input", text),  # the text; other inputs as JSON, pictures by their file
            ("label", text),
            ("features", pa.list_(text)),
            ("streams", pa.list_(text)),
            ("special", pa.list_(pa.bool_())),
            ("words", pa.list_(pa.int32())),
            ("starts", pa.list_(pa.int32())),  # of each feature: characters of its text, -1 for none
            ("ends", pa.list_(pa.int32())),
            ("parts", pa.list_(text)),  # which text that is
            ("grid", pa.list_(pa.int32())),  # rows and columns of patches
            ("generated", pa.list_(pa.int32())),  # features that were generated
            ("scores", by_token(pa.list_(number))),
            ("target", by_token(text)),
            ("output", by_token(number)),  # f(x)
            ("base", by_token(number)),  # f(baseline)
            ("residual", by_token(number)),
            ("signs", pa.bool_()),
            ("length", pa.int32()),  # features that are not special
            ("values", pa.list_(value)),  # metrics of the explanation, or numbers of the experiment
            ("notes", pa.list_(text)),
            ("error", text),  # why there is no result; null where there is one
            ("seconds", number),  # of the method in the chunk, divided by its examples
            ("digest", text),  # of the content of the input
            ("record", text),  # JSON: what `load_run` needs to build the Attribution again
        ]
    )


def need_arrow() -> None:
    """One sentence where pyarrow is not installed."""
    display.need("pyarrow", "data", "a run, which is kept in Parquet files,")


def write_shard(table: Any, facts: Facts, staging: Path) -> Path:
    """Write a shard into the staging folder, under the file name that it keeps when it is committed."""
    import pyarrow.parquet

    table = table.replace_schema_metadata({METADATA: json.dumps(asdict(facts)).encode()})
    draft = staging / f"draft-{uuid.uuid4().hex}"
    with draft.open("wb") as file:
        pyarrow.parquet.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())  # after a power cut, no file may have its name without its content
    # Two workers may compute one chunk; each keeps its own staged file, so that neither removes the other's.
    folder = staging / uuid.uuid4().hex
    folder.mkdir()
    staged = folder / f"part-{facts.chunk:08d}-{file_checksum(draft)[:LETTERS]}.parquet"
    draft.rename(staged)
    return staged


def read_facts(path: Path) -> Facts:
    """The facts in a shard's metadata; the rows are not read."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        metadata = pyarrow.parquet.read_schema(path).metadata or {}
        return Facts(**json.loads(metadata[METADATA]))
    except (pa.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        raise Damaged(f"{path.name} cannot be read as a shard of a run: {in_one_line(error)}") from None


def read_count(path: Path) -> int:
    """How many rows a shard has, by its own metadata."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        return int(pyarrow.parquet.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise Damaged(f"{path.name} cannot be read as a shard of a run: {in_one_line(error)}") from None


def check_shard(path: Path, run: str) -> Facts:
    """The facts in a shard's metadata, after comparing its bytes and chunk with its name, and its run with `run`."""
    named = _NAME.fullmatch(path.name)
    if named is None:
        raise Damaged(f"{path.name} is no name of a shard")
    try:
        found = file_checksum(path)
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {in_one_line(error)}") from None
    if found[:LETTERS] != named[2]:
        raise Damaged(f"{path.name} is not what was written: its checksum is {found[:LETTERS]}")
    facts = read_facts(path)
    if facts.run != run:
        raise Damaged(f"{path.name} belongs to another run")
    if facts.chunk != int(named[1]):
        raise Damaged(f"{path.name} holds chunk {facts.chunk}")
    return facts


def chunk_of(path: Path) -> int | None:
    """The number of the chunk that a file's name promises; None for other files."""
    named = _NAME.fullmatch(path.name)
    return None if named is None else int(named[1])
