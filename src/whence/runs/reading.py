"""Reading a run: `whence.load_run`. Needs pyarrow, no model and no torch."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from whence.core import registry
from whence.core.inputs import Input, Target
from whence.core.results import Attribution
from whence.core.run_summaries import FrequentFeature, RunSummary, WorkerShare
from whence.core.scoreboards import Scoreboard
from whence.runs.folder import RunFolder
from whence.runs.shards import Facts, check_shard, need_arrow, read_count, read_facts, schema

MAX_FEATURES = 12  # of each method in a summary
LEAST_OFTEN = 2  # examples that a feature of a summary occurs in
MAX_EXAMPLES = 20_000  # examples from which a summary takes features and metrics
PAUSE = 3.0  # a gap between two shards that is so many times as long as the work on the second one is a pause


@dataclass(frozen=True)
class Failure:
    """A row of the data without a result of a method."""

    row: int
    id: str
    method: str
    error: str


class Run:
    """The results of a run in its folder, read when they are asked for; while the run goes on, they grow."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        need_arrow()
        self.folder = RunFolder(Path(folder))
        self.manifest = self.folder.manifest()
        self._checked: set[Path] = set()  # shards whose checksum was found to be right

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: {self.manifest['model']}, {self.manifest['rows']} rows)"

    @property
    def plan(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return dict(self.manifest["plan"])

    def files(self) -> list[Path]:
        """The shards that are there, in the order of the data."""
        return self.folder.files(self.manifest["chunks"])

    def dataset(self) -> Any:
        """All rows as a pyarrow Dataset, which is read in batches and takes filters; all shards are checked first."""
        return self._dataset(self.files())

    def _dataset(self, files: Sequence[Path]) -> Any:
        """These shards as a pyarrow Dataset; one that is not what was written raises `Damaged`."""
        import pyarrow.dataset

        for path in files:
            if path not in self._checked:
                check_shard(path, self.manifest["identity"])
                self._checked.add(path)
        kind = schema(self.manifest["generates"])
        return pyarrow.dataset.dataset([str(path) for path in files], schema=kind, format="parquet")

    def to_frame(self) -> Any:
        """All rows as a pandas DataFrame."""
        return self.dataset().to_table().to_pandas()

    def rows(self, columns: list[str] | None = None, files: Sequence[Path] | None = None) -> Iterator[dict[str, Any]]:
        """Every row (of these shards, where some are named) as a dict: the results of one example stand together."""
        for path in self.files() if files is None else files:
            for batch in self._dataset([path]).to_batches(columns=columns, batch_size=1024):
                yield from batch.to_pylist()

    def failures(self) -> Iterator[Failure]:
        """The rows without a result of a method, and why."""
        failed = [path for path in self.files() if read_facts(path).failed]
        for row in self.rows(["row", "id", "method", "error"], failed):
            if row["error"] is not None:
                yield Failure(**row)

    def __iter__(self) -> Iterator[Attribution]:
        """Every explanation as an Attribution, in the order of rows and methods; failures are left out."""
        for row in self.rows():
            if row["error"] is None and not row["experiment"]:
                yield attribution_of(row)

    def __len__(self) -> int:
        """How many explanations and experiments there are, failed ones among them."""
        return sum(read_count(path) for path in self.files())

    def attributions(self, row: int) -> dict[str, Attribution]:
        """The explanations of one row of the data, by method."""
        files = self.files()
        place = bisect_right(files, row, key=lambda path: read_facts(path).first)  # behind the shard that may have it
        found = {one["method"]: one for one in self.rows(files=files[max(0, place - 1) : place]) if one["row"] == row}
        if not found:
            raise LookupError(f"the run has no results of row {row} yet; it has {self.manifest['rows']} rows, from 0")
        return {m: attribution_of(one) for m, one in found.items() if one["error"] is None and not one["experiment"]}

    # ---- summaries ---------------------------------------------------------------------------------------------------

    def board(self, files: Sequence[Path] | None = None) -> Scoreboard | None:
        """The metrics of all explanations (of these shards) as a Scoreboard; None where the plan has no metrics."""
        plan = self.manifest["plan"]
        if not plan["metrics"]:
            return None
        values: dict[str, dict[int, dict[str, float]]] = {method: {} for method in plan["methods"]}
        seconds: dict[str, dict[int, float]] = {method: {} for method in plan["methods"]}
        names: dict[str, None] = {}
        for row in self.rows(["row", "method", "values", "seconds", "experiment"], files):
            if not row["experiment"]:
                own = {one["name"]: one["value"] for one in row["values"] or ()}
                names |= dict.fromkeys(own)
                values[row["method"]][row["row"]] = own
                seconds[row["method"]][row["row"]] = row["seconds"]
        numbers, metrics = sorted({n for own in values.values() for n in own}), tuple(names) or tuple(plan["metrics"])
        table = [[[_number(values[m].get(n, {}).get(x)) for n in numbers] for x in metrics] for m in values]
        return Scoreboard(
            methods=tuple(values),
            metrics=metrics,
            better=tuple(registry.resolve("metric", metric)[0].better for metric in metrics),
            values=np.array(table, float).reshape(len(values), len(metrics), len(numbers)),
            seconds=np.array([[_number(own.get(n)) for n in numbers] for own in seconds.values()], float),
            model=self.manifest["model"],
            seed=self.manifest["seed"],
        )

    def summary(self, *, notes: tuple[str, ...] = (), running: bool | None = None) -> RunSummary:
        """How far the run has come, its time and its failures: a RunSummary.

        Features and metrics of a large run are those of `MAX_EXAMPLES` examples, and a note says so; `board` takes all.
        """
        files = self.files()
        facts = [read_facts(path) for path in files]
        sample = _spread(files, sum(one.examples for one in facts))
        some = (f"Features and metrics are those of {len(sample)} of {len(files)} chunks, evenly spread.",)
        plan, manifest = self.manifest["plan"], self.manifest
        questions = [*plan["methods"], *plan["experiments"]]
        done = sum(one.examples for one in facts)
        running = self.folder.running if running is None else running
        state = "finished" if len(facts) == manifest["chunks"] else "running" if running else "stopped"
        return RunSummary(
            name=self.folder.path.name,
            state=state,
            model=manifest["model"],
            weights=manifest["heading"]["model"]["weights"],
            data=", ".join(plan["data"]) if isinstance(plan["data"], list) else next(iter(plan["data"])),
            methods=tuple(questions),
            metrics=tuple(plan["metrics"]),
            seed=manifest["seed"],
            engine=manifest["engine"],
            examples=manifest["rows"],
            done=done,
            failed=sum(one.failed for one in facts),
            chunks=manifest["chunks"],
            chunks_done=len(facts),
            seconds=_worked(facts),
            method_seconds=tuple(sum(one.method_seconds.get(spec, 0.0) for one in facts) for spec in questions),
            failures=_by_reason(facts),
            workers=_shares(facts),
            features=tuple(self._features(sample)) if plan["inputs"] and facts else (),
            board=self.board(sample) if facts else None,
            versions=manifest["versions"],
            notes=(
                *manifest["notes"],
                *_mixed(facts, manifest["versions"]),
                *(some if len(sample) < len(files) else ()),
                *notes,
            ),
        )

    def _features(self, files: Sequence[Path]) -> Iterator[FrequentFeature]:
        """The features with the largest mean share of the scores, method by method."""
        sums: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0.0, 0.0]))
        for row in self.rows(["method", "features", "special", "scores", "grid"], files):
            if row["features"] is None or row["scores"] is None or row["grid"] is not None:
                continue
            scores = np.array(row["scores"], float)
            scores = scores.sum(0) if scores.ndim == 2 else scores
            total = float(np.abs(scores).sum()) or 1.0
            own: dict[str, float] = defaultdict(float)
            for feature, special, score in zip(row["features"], row["special"], scores.tolist(), strict=True):
                if not special:
                    own[feature] += score
            for feature, score in own.items():
                known = sums[row["method"]][feature]
                known[0], known[1], known[2] = known[0] + 1, known[1] + score, known[2] + abs(score) / total
        for method, by_feature in sums.items():
            often = {f: v for f, v in by_feature.items() if v[0] >= LEAST_OFTEN} or by_feature
            order = sorted(often.items(), key=lambda pair: (-pair[1][2] / pair[1][0], pair[0]))
            for feature, (count, score, share) in order[:MAX_FEATURES]:
                yield FrequentFeature(method, feature, int(count), score / count, share / count)


def load_run(folder: str | PathLike[str]) -> Run:
    """The results of a run, from the folder that it wrote; needs no model."""
    return Run(folder)


def attribution_of(row: dict[str, Any]) -> Attribution:
    """The Attribution of one row of a shard; features of a run without inputs are numbered."""
    record = json.loads(row["record"])
    generated = tuple(row["generated"] or ())
    single = not generated and row["scores"] and isinstance(row["scores"][0], list)
    by_token = ("scores", "target", "output", "base", "residual")
    own = {name: _first(row[name]) if single else row[name] for name in by_token}
    scores = np.array(own["scores"], np.dtype(record["dtype"]))
    targets = [Target.from_dict(one) for one in record.get("targets", ())]
    if not targets:
        names = own["target"] if isinstance(own["target"], list) else [own["target"]]
        targets = [Target(kind="function", name=name) for name in names]
    return Attribution(
        scores=scores,
        input=_input_of(row, record, generated),
        method=row["method"],
        target=tuple(targets) if generated else targets[0],
        output=_array(own["output"]),
        base=_array(own["base"]),
        residual=_array(own["residual"]),
        axes=("generated", "feature") if generated else ("feature",),
        visible=_visible(scores, generated),
        notes=tuple(row["notes"] or ()),
        signs=row["signs"],
    )


def _input_of(row: dict[str, Any], record: dict[str, Any], generated: tuple[int, ...]) -> Input:
    """The input of a row, as far as a shard holds it: no tensors and no pixels."""
    count = len(row["special"])
    text = row["input"] or ""
    none = [-1] * count
    parts = row["parts"] or [""] * count
    return Input(
        raw=text,
        features=tuple(row["features"] or (f"feature {n}" for n in range(count))),
        streams=tuple(row["streams"]),
        special=np.array(row["special"], bool),
        tensors={},
        words=np.array(row["words"] or none),
        offsets=np.stack([np.array(row["starts"] or none), np.array(row["ends"] or none)], -1),
        parts=tuple(parts),
        texts=record.get("texts") or texts_of(text, parts),
        grid=None if row["grid"] is None else (row["grid"][0], row["grid"][1]),
        box=None if record.get("box") is None else tuple(record["box"]),
        size=None if record.get("size") is None else tuple(record["size"]),
        generated=generated,
    )


def texts_of(text: str, parts: Sequence[str]) -> dict[str, str]:
    """The texts that offsets point into: the input itself, or the parts of one with several."""
    names = [name for name in dict.fromkeys(parts) if name]
    try:
        known = json.loads(text) if text.startswith("{") else None
    except ValueError:
        known = None
    if isinstance(known, dict) and set(names) & known.keys():
        return {name: known[name] for name in names if isinstance(known.get(name), str)}
    return {names[0]: text} if len(names) == 1 and text else {}


def _visible(scores: np.ndarray, generated: tuple[int, ...]) -> np.ndarray:
    """What each generated token could see: the features before it; without such tokens, everything."""
    if not generated:
        return np.ones(scores.shape, bool)
    return np.arange(scores.shape[-1])[None, :] < np.array(generated)[:, None]


def _spread(files: list[Path], examples: int) -> list[Path]:
    """All shards, or evenly spread ones that hold about `MAX_EXAMPLES` examples together."""
    if examples <= MAX_EXAMPLES:
        return files
    count = max(1, round(len(files) * MAX_EXAMPLES / examples))
    return [files[place] for place in np.linspace(0, len(files) - 1, count).round().astype(int).tolist()]


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _array(value: Any) -> Any:
    return np.array(value, float) if isinstance(value, list) else value


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _worked(facts: list[Facts]) -> float:
    """The seconds of work: the time from shard to shard, without pauses between two runs."""
    if not facts:
        return 0.0
    ends = sorted(facts, key=lambda one: one.finished)
    total = ends[0].seconds
    for before, one in pairwise(ends):
        total += min(one.finished - before.finished, max(PAUSE * one.seconds, one.seconds + 1.0))
    return total


def _by_reason(facts: list[Facts]) -> dict[str, int]:
    """How many examples failed for each reason; reasons that differ only in numbers and names count as one."""
    firsts: dict[str, str] = {}
    counts: Counter[str] = Counter()
    alike: set[str] = set()
    for reason, count in ((reason, count) for one in facts for reason, count in one.failures.items()):
        kind = re.sub(r"\d+|'[^']*'", "#", reason)
        if firsts.setdefault(kind, reason) != reason:
            alike.add(kind)
        counts[kind] += count
    return {
        f"{firsts[kind]} (and alike, with other numbers or names)" if kind in alike else firsts[kind]: count
        for kind, count in counts.most_common()
    }


def _shares(facts: list[Facts]) -> tuple[WorkerShare, ...]:
    """What each worker did."""
    names = sorted({one.worker for one in facts})
    own = {name: [one for one in facts if one.worker == name] for name in names}
    return tuple(
        WorkerShare(name, len(of), sum(one.examples for one in of), sum(one.seconds for one in of))
        for name, of in own.items()
    )


def _mixed(facts: list[Facts], versions: dict[str, str]) -> tuple[str, ...]:
    """A note where shards were made with other versions than the run was begun with."""
    others = {
        f"{name} {one.versions.get(name)}"
        for one in facts
        for name in one.versions
        if one.versions[name] != versions.get(name)
    }
    return (f"Some shards were made with {', '.join(sorted(others))}.",) if others else ()
