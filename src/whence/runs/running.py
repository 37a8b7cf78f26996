"""`whence.run`: a plan from its first row to its last shard."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from typing import Any, Literal

from whence.core.provenance import versions
from whence.core.wording import shown
from whence.measure.datasets import assumptions, stream
from whence.runs.chunks import Layout, cut, laid_out
from whence.runs.driving import Driver, Progress, Stopped
from whence.runs.engines.events import Engine, Failed, Ready
from whence.runs.folder import RunFolder, manifest_of
from whence.runs.plans import Plan
from whence.runs.progress import shown_progress
from whence.runs.reading import Run
from whence.runs.shards import need_arrow

EngineName = Literal["local", "ray"]
ENGINES = ("local", "ray")
LONG = 60.0  # seconds of waiting for the first worker, after which a message says so


def run_plan(
    plan: Plan,
    *,
    engine: EngineName = "local",
    workers: int = 1,
    threads: int | None = None,
    address: str | None = None,
    strict: bool = False,
    wait: bool = False,
    progress: bool = False,
) -> Run:
    """Run a plan; the arguments are those of `whence.run`."""
    need_arrow()
    _check(plan, engine, workers, address)
    folder = RunFolder(plan.folder)
    with ExitStack() as scope:
        scope.enter_context(folder.held(wait))
        folder.clear_staging()
        scope.callback(folder.clear_staging)  # only after the engine's end: until then workers may stage chunks
        started = _engine(plan, folder, engine, workers, threads, address)
        scope.callback(started.close)
        layout = laid_out(stream(plan.data, plan.limit), plan.chunk)
        ready = _first_ready(started)
        identity = _begin(plan, folder, layout, ready[0], started.name)
        state, damaged = _resumed(folder, identity, layout)
        wanted = {chunk.number for chunk in layout.chunks} - state.done
        report = scope.enter_context(shown_progress(state, started, folder, progress))
        chunks = cut(stream(plan.data, plan.limit), layout, wanted)
        driver = Driver(plan, started, folder, identity, state, chunks, first=ready[0], strict=strict, report=report)
        try:
            if strict and state.failed:
                raise Stopped(
                    f"{state.failed} of {state.before} examples failed before; without strict they are kept so"
                )
            driver.drive(ready)
        finally:
            _note_end(folder, damaged)
    return Run(folder.path)


def _check(plan: Plan, engine: str, workers: int, address: str | None) -> None:
    if not isinstance(plan, Plan):
        raise TypeError(f"run takes a whence.Plan, not {shown(plan)}")
    if engine not in ENGINES:
        raise ValueError(f"the engine is one of {', '.join(ENGINES)}, not {shown(engine)}")
    if isinstance(workers, bool) or not isinstance(workers, int) or not 1 <= workers <= 10_000:
        raise ValueError(f"workers is a number from 1 to 10,000, not {shown(workers)}")
    if address is not None and engine != "ray":
        raise ValueError("an address is that of a Ray cluster; give engine='ray' with it")
    if not plan.model_is_named and (engine == "ray" or workers > 1):
        raise ValueError(
            "the model exists only in this process, so only the local engine with one worker can run it; name a model, "
            "its folder, or 'package:function' that makes it"
        )


def _engine(
    plan: Plan, folder: RunFolder, engine: str, workers: int, threads: int | None, address: str | None
) -> Engine:
    if engine == "ray":
        from whence.runs.engines.ray_actors import RayEngine

        return RayEngine(plan, folder.staging, workers, threads, address)
    if workers > 1:
        from whence.runs.engines.processes import ProcessEngine

        return ProcessEngine(plan, folder.staging, workers, threads)
    from whence.runs.engines.here import HereEngine

    subject: Any = None if plan.model_is_named else plan.model
    return HereEngine(plan, folder.staging, threads, subject)


def _first_ready(engine: Engine) -> list[Ready]:
    """The workers that are ready first; a model that cannot be loaded stops the run."""
    found: list[Ready] = []
    deaths, begun, told = 0, time.monotonic(), False
    while not found:
        if time.monotonic() - begun > LONG and not told:
            told = True
            print(
                "still waiting for a worker that has read the model; has the cluster free processors?", file=sys.stderr
            )
        for event in engine.wait(1.0):
            if isinstance(event, Failed):
                raise Stopped(event.reason)
            if isinstance(event, Ready):
                found.append(event)
            else:
                deaths += 1
            if deaths > engine.workers:
                raise Stopped(
                    "workers died while they read the model; look for a lack of memory, or take fewer workers"
                )
    return found


def _begin(plan: Plan, folder: RunFolder, layout: Layout, ready: Ready, engine: str) -> str:
    """Write the manifest, or find that this run was begun here; return the run's identity."""
    heading = plan.heading(ready.hashes, layout.digest)
    manifest = manifest_of(
        plan.to_dict(),
        heading,
        model=ready.model,
        rows=layout.rows,
        chunks=len(layout.chunks),
        generates=ready.generates,
        engine=engine,
        seed=plan.seed,
        versions=versions(),
        begun=time.time(),
        notes=list(assumptions(plan.data)),
    )
    folder.begin(manifest)
    return str(manifest["identity"])


def _resumed(folder: RunFolder, identity: str, layout: Layout) -> tuple[Progress, list[str]]:
    """The progress of earlier runs, and sentences on the files that are no shards of this run."""
    state = Progress(layout)
    found, damaged = folder.set_aside(identity, len(layout.chunks))
    for facts in found.values():
        state.add(facts)
    state.before = state.examples
    return state, damaged


def _note_end(folder: RunFolder, damaged: list[str]) -> None:
    """Write a summary of the committed shards, for reports that read nothing else."""
    Run(folder.path).summary(notes=tuple(f"Run again: {sentence}." for sentence in damaged), running=False).save(
        folder.summary_file
    )
