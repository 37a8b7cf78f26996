"""The folder of a run: a manifest, shards that are committed one by one, a lock.

    run/manifest.json                     plan, hashes, versions, under a checksum
    run/explanations/part-*.parquet       the results, a shard per chunk
    run/staging/                          shards that are not committed yet; emptied by every run
    run/lock                              held by the process that commits

Only the process that holds the lock commits, by renaming a staged shard, so that a shard is either complete or absent.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from whence.core.checksums import checksum, sealed, unsealed
from whence.core.locking import Busy, is_locked, locked
from whence.core.results import SUMMARY
from whence.core.wording import shown
from whence.runs.shards import Damaged, Facts, check_shard, chunk_of, read_facts

FORMAT = 1
SHARDS = "explanations"


class _Missing(ValueError):
    """There is no manifest."""


class _Damaged(ValueError):
    """The manifest differs from what was written."""


class RunFolder:
    """The files of a run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.shards, self.staging = self.path / SHARDS, self.path / "staging"
        self.manifest_file, self.lock_file = self.path / "manifest.json", self.path / "lock"
        self.summary_file = self.path / SUMMARY

    def __str__(self) -> str:
        return str(self.path)

    @contextmanager
    def held(self, wait: bool = False) -> Iterator[None]:
        """A scope that holds the folder's lock; a folder that contains other files is refused."""
        ours = self.lock_file.exists() or self.manifest_file.exists()
        if self.path.is_dir() and not ours and any(self.path.iterdir()):
            raise ValueError(f"{shown(str(self))} holds other files and no run; name a new folder")
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{shown(str(self))} is a file; name a folder for the results")
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self.lock_file, wait):
                for folder in (self.shards, self.staging):
                    folder.mkdir(exist_ok=True)
                yield
        except Busy:
            raise ValueError(
                f"another run is writing to {shown(str(self))}; wait for its end (--wait) or name a new folder"
            ) from None

    @property
    def running(self) -> bool:
        """Whether a process is at work on the folder."""
        return is_locked(self.lock_file)

    def clear_staging(self) -> None:
        """Remove what earlier runs staged and did not commit."""
        for entry in self.staging.iterdir():
            shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)

    # ---- the manifest ------------------------------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any]:
        """The manifest; a one-sentence error where the folder has none, or a damaged one."""
        if not self.path.is_dir():
            raise FileNotFoundError(f"there is no folder {shown(str(self))} of a run")
        try:
            found = unsealed(json.loads(self.manifest_file.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise _Missing(f"{shown(str(self))} has no manifest.json: no run was begun there") from None
        except (ValueError, RecursionError, OSError):
            found = None
        if found is None:
            raise _Damaged(
                f"manifest.json of {shown(str(self))} is damaged; run its plan again, which writes it anew and keeps "
                "the shards that are whole"
            )
        if found.get("format") != FORMAT:
            raise ValueError(f"manifest.json of {shown(str(self))} has format {found.get('format')!r}, not {FORMAT}")
        return found

    def begin(self, manifest: dict[str, Any]) -> None:
        """Write the manifest; the folder of another plan, model or data is refused, a damaged manifest replaced."""
        try:
            known: dict[str, Any] | None = self.manifest()
        except (_Damaged, _Missing):
            known = None
            self._check_owner(manifest["identity"])
        if known is not None and known["identity"] != manifest["identity"]:
            differing = differences(known["heading"], manifest["heading"])
            raise ValueError(f"{shown(str(self))} holds a run with {differing}; give that again, or name a new folder")
        if known is None:
            self.write(self.manifest_file, json.dumps(sealed(manifest), indent=1, ensure_ascii=True))

    def _check_owner(self, run: str) -> None:
        """Refuse a folder without a manifest whose intact shards are all of other runs: they are somebody's results."""
        owners = set()
        for path in self.shards.iterdir():
            with suppress(Damaged):
                owners.add(read_facts(path).run)
        if owners and run not in owners:
            raise ValueError(
                f"{shown(str(self))} has no readable manifest.json and holds results of another plan, model or data; "
                "name a new folder"
            )

    def write(self, file: Path, text: str) -> None:
        """Replace a file in one step."""
        draft = file.with_name(f".{file.name}.draft")
        with draft.open("w", encoding="utf-8") as open_file:
            open_file.write(text)
            open_file.flush()
            os.fsync(open_file.fileno())
        draft.replace(file)

    # ---- shards ------------------------------------------------------------------------------------------------------

    def commit(self, staged: Path) -> None:
        """Take a staged shard over: from here on its chunk is done."""
        staged.rename(self.shards / staged.name)
        staged.parent.rmdir()

    def committed(self, run: str) -> tuple[dict[int, tuple[Path, Facts]], list[str]]:
        """The intact shards by chunk, and a sentence on each other file; of two shards of a chunk, the first counts."""
        found: dict[int, tuple[Path, Facts]] = {}
        damaged = []
        for path in sorted(self.shards.iterdir()) if self.shards.is_dir() else ():
            try:
                facts = check_shard(path, run)
                if facts.chunk in found:
                    raise Damaged(f"{path.name} holds chunk {facts.chunk} a second time")
                found[facts.chunk] = path, facts
            except Damaged as error:
                damaged.append(str(error))
        return found, damaged

    def set_aside(self, run: str, layout_chunks: int) -> tuple[dict[int, Facts], list[str]]:
        """The facts of the shards that count, and sentences on all other files, which are moved to `damaged/`."""
        found, damaged = self.committed(run)
        for number in [number for number in found if number >= layout_chunks]:
            damaged.append(f"{found.pop(number)[0].name} is of a chunk that the data does not have")
        keep = {path for path, _ in found.values()}
        others = [path for path in self.shards.iterdir() if path not in keep]
        for path in others:
            aside = self.path / "damaged"
            aside.mkdir(exist_ok=True)
            path.rename(aside / f"{time.time_ns()}-{path.name}")
        return {number: facts for number, (_, facts) in found.items()}, damaged

    def files(self, chunks: int | None = None) -> list[Path]:
        """The shards in the order of their chunks; a second shard of a chunk, or one beyond `chunks`, raises."""
        found: dict[int, Path] = {}
        for path in sorted(self.shards.glob("part-*.parquet")):
            number = chunk_of(path)
            if number is None:
                continue
            if number in found or (chunks is not None and number >= chunks):
                raise Damaged(
                    f"{path.name} is one shard too many in {shown(str(self))}; run its plan again, which puts it aside"
                )
            found[number] = path
        return [found[number] for number in sorted(found)]


def manifest_of(
    plan: dict[str, Any], heading: dict[str, Any], *, model: str, rows: int, chunks: int, generates: bool, **facts: Any
) -> dict[str, Any]:
    """The manifest of a run: `heading` holds all that its numbers depend on, and the run's identity is made of it."""
    return {
        "format": FORMAT,
        "identity": checksum(heading),
        "heading": heading,
        "plan": plan,
        "model": model,
        "rows": rows,
        "chunks": chunks,
        "generates": generates,
        **facts,
    }


def differences(known: dict[str, Any], wanted: dict[str, Any]) -> str:
    """In what two headings differ, in words."""
    words = [
        f"{name} {_setting(known.get(name))}"
        for name in wanted
        if name not in ("model", "data") and known.get(name) != wanted[name]
    ]
    words += [f"another model ({_parts(known['model'], wanted['model'])})"] if known["model"] != wanted["model"] else []
    words += ["other data"] if known["data"] != wanted["data"] else []
    return ", ".join(words)


def _setting(value: Any) -> str:
    """A setting of a plan as it is written."""
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else shown(value)


def _parts(known: Any, wanted: dict[str, str]) -> str:
    differing = [name for name in wanted if not isinstance(known, dict) or known.get(name) != wanted[name]]
    return f"its {' and '.join(differing)} differ"
