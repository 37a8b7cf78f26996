"""Reading a run: `whence.load_run`. Needs pyarrow, no model and no torch."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
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
from whence.runs.shards import Facts, need_arrow, read_facts

MAX_FEATURES = 12  # of each method in a summary
LEAST_OFTEN = 2  # examples that a feature of a summary occurs in
PAUSE = 3.0  # a gap between two shards that is so many times as long as the work on the second one is a pause


@dataclass(frozen=True)
class Failure:
    """A row of the data without a result of a method."""

    row: int
    id: str
    method: str
    error: str


class Run:
    """The results of a run in its folder, read when they are asked for; a run that goes on grows."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        need_arrow()
        self.folder = RunFolder(Path(folder))
        self.manifest = self.folder.manifest()

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}: {self.manifest['model']}, {self.manifest['rows']} rows)"

    @property
    def plan(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return dict(self.manifest["plan"])

    def dataset(self) -> Any:
        """All rows as a pyarrow Dataset, which is read bit by bit and takes filters."""
        import pyarrow.dataset

        files = [str(path) for path in self.folder.files()]
        return pyarrow.dataset.dataset(files, schema=self._schema(), format="parquet")

    def to_frame(self) -> Any:
        """All rows as a pandas DataFrame."""
        return self.dataset().to_table().to_pandas()

    def _schema(self) -> Any:
        from whence.runs.shards import schema

        return schema(self.manifest["generates"])

    def rows(self, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
        """Every row as a dict, shard by shard: the results of one example stand together."""
        for batch in self.dataset().to_batches(columns=columns, batch_size=1024):
            yield from batch.to_pylist()

    def failures(self) -> Iterator[Failure]:
        """What has no result, and why."""
        import pyarrow.dataset

        failed = pyarrow.dataset.field("error").is_valid()
        table = self.dataset().to_table(columns=["row", "id", "method", "error"], filter=failed)
        yield from (Failure(**row) for row in table.to_pylist())

    def __iter__(self) -> Iterator[Attribution]:
        """Every explanation as an Attribution, in the order of rows and methods; failures are left out."""
        for row in self.rows():
            if row["error"] is None and not row["experiment"]:
                yield attribution_of(row)

    def __len__(self) -> int:
        """How many explanations and experiments there are, failed ones among them."""
        return int(self.dataset().count_rows())

    def attributions(self, row: int) -> dict[str, Attribution]:
        """The explanations of one row of the data, by method."""
        import pyarrow.dataset

        table = self.dataset().to_table(filter=pyarrow.dataset.field("row") == row)
        found = {one["method"]: one for one in table.to_pylist()}
        if not found:
            raise LookupError(f"the run has no results of row {row} yet; it has {self.manifest['rows']} rows, from 0")
        return {m: attribution_of(one) for m, one in found.items() if one["error"] is None and not one["experiment"]}

    # ---- summaries ---------------------------------------------------------------------------------------------------

    def board(self) -> Scoreboard | None:
        """The metrics of all explanations as a Scoreboard; None where the plan has no metrics."""
        plan = self.manifest["plan"]
        if not plan["metrics"]:
            return None
        values: dict[str, dict[int, dict[str, float]]] = {method: {} for method in plan["methods"]}
        seconds: dict[str, dict[int, float]] = {method: {} for method in plan["methods"]}
        names: dict[str, None] = {}
        for row in self.rows(["row", "method", "values", "seconds", "experiment"]):
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
        """How far the run is, what it took and what failed: a RunSummary."""
        facts = [read_facts(path) for path in self.folder.files()]
        plan, manifest = self.manifest["plan"], self.manifest
        questions = [*plan["methods"], *plan["experiments"]]
        failures: Counter[str] = Counter()
        for one in facts:
            failures.update(one.failures)
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
            failures=dict(failures.most_common()),
            workers=_shares(facts),
            features=tuple(self._features()) if plan["inputs"] and facts else (),
            board=self.board() if facts else None,
            versions=manifest["versions"],
            notes=(*manifest["notes"], *_mixed(facts, manifest["versions"]), *notes),
        )

    def _features(self) -> Iterator[FrequentFeature]:
        """The features with the largest mean share of the scores, method by method."""
        sums: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0, 0.0, 0.0]))
        for row in self.rows(["method", "features", "special", "scores", "grid"]):
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
        texts=_texts(text, parts),
        grid=None if row["grid"] is None else (row["grid"][0], row["grid"][1]),
        box=None if record.get("box") is None else tuple(record["box"]),
        size=None if record.get("size") is None else tuple(record["size"]),
        generated=generated,
    )


def _texts(text: str, parts: list[str]) -> dict[str, str]:
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


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _array(value: Any) -> Any:
    return np.array(value, float) if isinstance(value, list) else value


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _worked(facts: list[Facts]) -> float:
    """The seconds that were worked: the time from shard to shard, without pauses between two runs."""
    if not facts:
        return 0.0
    ends = sorted(facts, key=lambda one: one.finished)
    total = ends[0].seconds
    for before, one in pairwise(ends):
        total += min(one.finished - before.finished, max(PAUSE * one.seconds, one.seconds + 1.0))
    return total


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
