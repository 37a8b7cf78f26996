"""Runs over data sets in the app: a list of the runs that the server was given, and a live page of each."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI
from fastapi import Path as InPath
from fastapi.responses import HTMLResponse

from whence.core import display
from whence.core.run_summaries import RunSummary
from whence.core.wording import shown
from whence.web.inputs import Gone

AGAIN = 10  # seconds after which the page of an unfinished run is fetched again
Name = Annotated[str, InPath(max_length=100)]


class Runs:
    """The folders of runs by name; only these are ever read."""

    def __init__(self, folders: tuple[Path, ...]) -> None:
        self.folders = _by_name(folders)
        self._known: dict[str, tuple[Any, RunSummary]] = {}

    def summary(self, name: str) -> RunSummary:
        """The summary of a run; read again only if shards were added since, or the run began or ended."""
        from whence.runs.reading import load_run

        if name not in self.folders:
            raise Gone(f"the server has no run called {shown(name)}; whence serve --run FOLDER names one")
        run = load_run(self.folders[name])
        state = len(run.files()), run.folder.running
        if name not in self._known or self._known[name][0] != state:
            self._known[name] = state, run.summary()
        return self._known[name][1]


def _by_name(folders: tuple[Path, ...]) -> Mapping[str, Path]:
    """Folders by their own names; a number is added to a name that is taken."""
    found: dict[str, Path] = {}
    for folder in folders:
        name, number = folder.resolve().name, 2
        while name in found:
            name, number = f"{folder.resolve().name}-{number}", number + 1
        found[name] = folder
    return found


def add_runs(app: FastAPI, runs: Runs) -> None:
    """The routes of runs."""

    @app.get("/api/runs", tags=["runs"])
    def listed() -> list[dict[str, Any]]:
        """The runs that the server was given, and how far each has come."""
        found = ((name, runs.summary(name)) for name in runs.folders)
        return [{"run": name, "state": s.state, "done": s.done, "examples": s.examples} for name, s in found]

    @app.get("/api/runs/{run}/fragment", tags=["runs"], response_class=HTMLResponse)
    def fragment(run: Name) -> HTMLResponse:
        """The summary of a run as HTML to stand inside a page that has the style sheet and script of /assets."""
        return HTMLResponse(display.fragment(runs.summary(run)))

    @app.get("/runs", include_in_schema=False)
    def overview() -> HTMLResponse:
        names = "".join(f"<li>{_link(name)}</li>" for name in runs.folders)
        none = "<p>No run was named. Start the server with <code>whence serve --run FOLDER</code>.</p>"
        return _page("Runs over data sets", f"<ul>{names}</ul>" if names else none)

    @app.get("/runs/{run}", include_in_schema=False)
    def one(run: Name) -> HTMLResponse:
        summary = runs.summary(run)
        return _page(run, display.fragment(summary), again=summary.state == "running")


def _link(name: str) -> str:
    return f'<a href="/runs/{quote(name, safe="")}">{html.escape(name)}</a>'


def _page(title: str, content: str, again: bool = False) -> HTMLResponse:
    """A page of the app; `again` makes the browser reload it every `AGAIN` seconds."""
    refresh = f'<meta http-equiv="refresh" content="{AGAIN}">' if again else ""
    return HTMLResponse(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>{refresh}'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<link rel="stylesheet" href="/assets/style.css"><link rel="stylesheet" href="/static/app.css">'
        '<script src="/assets/whence.js" defer></script></head><body><main class="whence">'
        f"<h1>{html.escape(title)}</h1>{content}"
        '<p><a href="/">to the app</a> <a href="/runs">all runs</a></p></main></body></html>'
    )
