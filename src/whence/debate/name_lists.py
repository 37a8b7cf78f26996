"""Lists of names with their groups, from a table, a dict, or the package faker."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whence.core.files import TABLES
from whence.core.wording import counted, shown
from whence.measure.table_files import records

NAME_COLUMNS = ("name", "word")
# Origins whose names are written in Latin letters, and which share few of them.
FAKER_LOCALES = ("de_DE", "en_IN", "en_US", "es_ES", "fr_FR", "id_ID", "it_IT", "pl_PL", "tr_TR", "yo_NG")


@dataclass(frozen=True)
class NameList:
    """Names, and for every kind of group the group of each name."""

    names: tuple[str, ...]
    kinds: dict[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()


def name_list(given: Any, per_group: int, seed: int) -> NameList:
    """Names from a table with a column `name` and a column per kind of group, a dict group -> names, or "faker".

    "faker" may be followed by locales, as "faker:en_US,tr_TR". At most `per_group` names are drawn from every group, or
    from every combination of groups where there are several kinds.
    """
    if isinstance(given, str) and given.partition(":")[0] == "faker":
        rows = _from_faker(given.partition(":")[2])
    elif isinstance(given, Mapping):
        rows = [{"name": name, "group": str(group)} for group, names in given.items() for name in _listed(group, names)]
    elif isinstance(given, (str, Path)):
        rows = _from_table(Path(given))
    else:
        raise TypeError(f"names are a table, a dict group -> names, or 'faker', not {type(given).__name__}")
    return _drawn(rows, per_group, seed)


def _listed(group: Any, names: Any) -> list[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"the group {shown(group)} must hold a list of names")
    return list(names)


def _from_table(path: Path) -> list[dict[str, str]]:
    """The rows of a table."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no table of names {str(path)!r}; its columns are name and a kind of group")
    if path.suffix.lower() not in TABLES:
        raise ValueError(f"names are read from {', '.join(TABLES)}, and {path.name} is none of them")
    rows = []
    for number, row in enumerate(records(path), 1):
        cells = {str(key).strip().lower(): str(value).strip() for key, value in row.items() if value not in (None, "")}
        name = next((cells.pop(column) for column in NAME_COLUMNS if column in cells), None)
        if not name or not cells:
            raise ValueError(f"{path.name}, row {number}: a column name and at least one kind of group are needed")
        rows.append({"name": name, **cells})
    return rows


def _from_faker(locales: str) -> list[dict[str, str]]:
    """First names of the package faker, by locale and gender."""
    rows = []
    for locale in [part.strip() for part in locales.split(",") if part.strip()] or FAKER_LOCALES:
        try:
            importlib.import_module("faker")
        except ImportError:
            raise ImportError(
                "these lists need faker, which is not installed; run: pip install whence[names]"
            ) from None
        try:
            provider = importlib.import_module(f"faker.providers.person.{locale}").Provider
        except ImportError:
            raise ValueError(f"faker has no names for {locale!r}; a locale is written as en_US") from None
        for gender in ("female", "male"):
            found = getattr(provider, f"first_names_{gender}", ())
            rows += [{"name": str(name), "origin": locale, "gender": gender} for name in found if " " not in str(name)]
    return rows


def _drawn(rows: list[dict[str, str]], per_group: int, seed: int) -> NameList:
    """At most `per_group` names of every combination of groups; names of several combinations are left out."""
    kinds = list(rows[0])[1:] if rows else []
    different = next((row for row in rows if list(row)[1:] != kinds), None)
    if different is not None:
        raise ValueError(f"every name needs the same kinds of groups, and {different['name']!r} has others")
    groups: dict[str, set[tuple[str, ...]]] = {}
    for row in rows:
        groups.setdefault(row["name"], set()).add(tuple(row[kind] for kind in kinds))
    shared = [name for name, own in groups.items() if len(own) > 1]
    by_group: dict[tuple[str, ...], list[str]] = {}
    for name, own in groups.items():
        if len(own) == 1:
            by_group.setdefault(next(iter(own)), []).append(name)
    if len(by_group) < 2:
        raise ValueError(f"names of at least two groups are needed, and {counted(len(by_group), 'group')} came")
    rng = np.random.default_rng([seed, 9])
    chosen: list[tuple[str, tuple[str, ...]]] = []
    for group, names in by_group.items():
        kept = names if len(names) <= per_group else [names[i] for i in sorted(rng.permutation(len(names))[:per_group])]
        chosen += [(name, group) for name in kept]
    notes = [f"{counted(len(shared), 'name')} that several groups share left out: {_few(shared)}"] if shared else []
    if len(chosen) < sum(map(len, by_group.values())):
        notes.append(f"{counted(len(chosen), 'name')} of {sum(map(len, by_group.values()))} drawn, seed {seed}")
    by_kind = {kind: tuple(group[place] for _, group in chosen) for place, kind in enumerate(kinds)}
    return NameList(tuple(name for name, _ in chosen), by_kind, tuple(notes))


def _few(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
